//! The two formats of apt's files of sources: lines (`.list`) and stanzas (`.sources`).
//!
//! Held to apt itself by a test: what `apt-get indextargets` prints is what is read here, or is left out for a
//! reason.

use std::path::{Path, PathBuf};

use super::options::{Choices, list};
use super::{AptSource, LeftOut, SignedBy, ValidUntil};
use crate::control::{self, BadLine, Paragraph};
use crate::release::is_flat;

/// An entry of a file.
#[derive(Debug, Clone)]
pub(super) enum SourcesEntry {
    /// A source of binary packages for this architecture.
    Source(AptSource),
    /// One for others.
    LeftOut(LeftOut),
}

/// Parses the text of one file; its extension decides between the two formats. A bad line or stanza spoils no
/// other.
pub(super) fn parse(file: &Path, text: &str, arch: &str) -> Vec<Result<SourcesEntry, BadLine>> {
    if file.extension().is_some_and(|extension| extension == "sources") {
        parse_stanzas(file, text, arch)
    } else {
        parse_lines(file, text, arch)
    }
}

/// `deb [option=value ...] URI suite component ...`
fn parse_lines(file: &Path, text: &str, arch: &str) -> Vec<Result<SourcesEntry, BadLine>> {
    let mut entries = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        match parse_line(without_comment(content).trim(), arch) {
            Ok(None) => {}
            Ok(Some((source, choices))) => {
                entries.push(Ok(entry(declared(source, file, line), &choices, arch)));
            }
            Err(what) => entries.push(Err(BadLine { line, what })),
        }
    }
    entries
}

/// Adds the place of its declaration to a source.
fn declared(source: AptSource, file: &Path, line: usize) -> AptSource {
    let valid_until = ValidUntil { file: file.to_path_buf(), ..source.valid_until };
    AptSource { file: file.to_path_buf(), line, valid_until, ..source }
}

fn entry(source: AptSource, choices: &Choices, arch: &str) -> SourcesEntry {
    let is_flat = source.suites.iter().all(|suite| is_flat(suite));
    match choices.reason_against(arch, is_flat) {
        Some(why) => SourcesEntry::LeftOut(LeftOut::new(&source, why)),
        None => SourcesEntry::Source(source),
    }
}

/// Cuts a comment off; a `#` between brackets begins none.
fn without_comment(line: &str) -> &str {
    let mut bracket_ends = 0;
    for (at, c) in line.char_indices() {
        match c {
            '[' if at >= bracket_ends => {
                bracket_ends = line[at..].find(']').map_or(bracket_ends, |length| at + length);
            }
            '#' if at >= bracket_ends => return &line[..at],
            _ => {}
        }
    }
    line
}

/// Words of a line as apt reads them (`ParseQuoteWord`): quotation marks and brackets hold blanks together, the
/// marks are dropped, and `%20` is a blank.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    /// Returns the next word as it stands; None at the end.
    fn next_raw(&mut self) -> Result<Option<&'a str>, String> {
        let rest = self.0.trim_start();
        if rest.is_empty() {
            self.0 = rest;
            return Ok(None);
        }
        let mut end = 0;
        while let Some(c) = rest[end..].chars().next().filter(|c| !c.is_whitespace()) {
            end += c.len_utf8();
            let closing = match c {
                '"' => '"',
                '[' => ']',
                _ => continue,
            };
            end += rest[end..].find(closing).ok_or_else(|| format!("{c} is not closed"))? + 1;
        }
        let (word, after) = rest.split_at(end);
        self.0 = after;
        Ok(Some(word))
    }

    fn next(&mut self) -> Result<Option<String>, String> {
        Ok(self.next_raw()?.map(decoded))
    }

    /// Reads `[name=value ...]`, where that is next.
    fn options(&mut self) -> Result<Vec<(String, String)>, String> {
        let mut options = Vec::new();
        let Some(rest) = self.0.trim_start().strip_prefix('[') else { return Ok(options) };
        self.0 = rest.trim_start();
        while !self.0.starts_with(']') {
            let word = self.next_raw()?.ok_or("the options are not closed")?;
            let (option, is_last) = match word.strip_suffix(']') {
                Some(option) => (decoded(option), true),
                None => (decoded(word), false),
            };
            let (name, value) =
                option.split_once('=').ok_or_else(|| format!("{option} has no value"))?;
            if name.is_empty() || value.is_empty() {
                return Err(format!("{option} has no value"));
            }
            options.push((name.to_owned(), value.to_owned()));
            if is_last {
                return Ok(options);
            }
            self.0 = self.0.trim_start();
        }
        self.0 = self.0.strip_prefix(']').unwrap_or(self.0);
        Ok(options)
    }
}

/// Decodes a word: drops quotation marks, and replaces `%20`.
fn decoded(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        match (first, byte.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'"', _) => {}
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parse_line(content: &str, arch: &str) -> Result<Option<(AptSource, Choices)>, String> {
    let mut words = Words(content);
    match words.next()?.as_deref() {
        None | Some("deb-src") => return Ok(None),
        Some("deb") => {}
        Some(kind) => return Err(format!("{kind} is not a type of source")),
    }
    let mut choices = Choices::default();
    let mut signed_by = SignedBy::default();
    let (mut max, mut check) = (None, None);
    for (name, value) in words.options()? {
        let values = list(&value);
        match name.as_str() {
            "arch" => choices.architectures.set = Some(values),
            "arch+" => choices.architectures.add = values,
            "arch-" => choices.architectures.remove = values,
            "target" => choices.targets.set = Some(values),
            "target+" => choices.targets.add = values,
            "target-" => choices.targets.remove = values,
            "signed-by" => signed_by = SignedBy::of_field(&value),
            "valid-until-max" => max = Some(value),
            "check-valid-until" => check = Some(value),
            _ => {}
        }
    }
    let url = words.next()?.ok_or("there is no URI")?;
    let suite = words.next()?.ok_or("there is no suite")?;
    let mut components = Vec::new();
    while let Some(component) = words.next()? {
        components.push(component);
    }
    check_components(&suite, &components)?;
    // apt replaces it in the suites of flat archives alone.
    let suite = if is_flat(&suite) { suite.replace("$(ARCH)", arch) } else { suite };
    let source = source(&url, vec![suite], components, signed_by, arch)?;
    let valid_until = ValidUntil::parse(max.as_deref(), check.as_deref());
    Ok(Some((AptSource { valid_until, ..source }, choices)))
}

/// Checks that a suite has components, and a flat archive none: apt refuses the same.
fn check_components(suite: &str, components: &[String]) -> Result<(), String> {
    match (is_flat(suite), components.is_empty()) {
        (false, true) => Err("there is no component".to_owned()),
        (true, false) => Err(format!("the flat archive {suite} has no components")),
        _ => Ok(()),
    }
}

fn source(
    url: &str,
    suites: Vec<String>,
    mut components: Vec<String>,
    signed_by: SignedBy,
    arch: &str,
) -> Result<AptSource, String> {
    if !url.contains(':') {
        return Err(format!("{url} is no URI"));
    }
    let mut seen = Vec::new();
    components.retain(|component| {
        let is_new = !seen.contains(component);
        seen.push(component.clone());
        is_new
    });
    let url = url.replace("$(ARCH)", arch);
    let (valid_until, file) = (ValidUntil::default(), PathBuf::new());
    Ok(AptSource { url, suites, components, signed_by, valid_until, file, line: 0 })
}

fn parse_stanzas(file: &Path, text: &str, arch: &str) -> Vec<Result<SourcesEntry, BadLine>> {
    let stanzas = match control::stanzas(text) {
        Ok(stanzas) => stanzas,
        Err(bad) => return vec![Err(bad)],
    };
    let mut entries = Vec::new();
    for stanza in stanzas {
        let line = stanza.line;
        match parse_stanza(&stanza, arch) {
            Ok((sources, choices)) => entries.extend(
                sources
                    .into_iter()
                    .map(|source| Ok(entry(declared(source, file, line), &choices, arch))),
            ),
            Err(what) => entries.push(Err(BadLine { line, what })),
        }
    }
    entries
}

fn parse_stanza(fields: &Paragraph, arch: &str) -> Result<(Vec<AptSource>, Choices), String> {
    let needed = |name: &str| match fields.words(name) {
        words if words.is_empty() => Err(format!("there is no {name}")),
        words => Ok(words),
    };
    let types = needed("Types")?;
    if let Some(kind) = types.iter().find(|kind| !["deb", "deb-src"].contains(&kind.as_str())) {
        return Err(format!("{kind} is not a type of source"));
    }
    if fields.truth("Enabled") == Some(false) || !types.iter().any(|kind| kind == "deb") {
        return Ok((Vec::new(), Choices::default()));
    }
    let listed = |name: &str| fields.get(name).map(list);
    let mut choices = Choices::default();
    for (field, listed_in) in
        [("Architectures", &mut choices.architectures), ("Targets", &mut choices.targets)]
    {
        listed_in.set = listed(field).filter(|names| !names.is_empty());
        listed_in.add = listed(&format!("{field}-Add")).unwrap_or_default();
        listed_in.remove = listed(&format!("{field}-Remove")).unwrap_or_default();
    }
    let urls = needed("URIs")?;
    let suites: Vec<_> =
        needed("Suites")?.iter().map(|suite| suite.replace("$(ARCH)", arch)).collect();
    let components = fields.words("Components");
    for suite in &suites {
        check_components(suite, &components)?;
    }
    let signed_by = SignedBy::of_field(fields.get("Signed-By").unwrap_or_default());
    let valid_until =
        ValidUntil::parse(fields.get("Valid-Until-Max"), fields.get("Check-Valid-Until"));
    let of_url = |url: &String| {
        let source = source(url, suites.clone(), components.clone(), signed_by.clone(), arch)?;
        Ok(AptSource { valid_until: valid_until.clone(), ..source })
    };
    Ok((urls.iter().map(of_url).collect::<Result<_, String>>()?, choices))
}
