//! The host's apt sources: sources.list(5), read below a root path.

use std::fs;

use std::path::{Path, PathBuf};

use super::control::{self, BadLine, Paragraph};
use super::keyring::{Keyring, Signer};
use super::release::is_flat;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::root::{is_absent, read_below};

/// An apt source: an archive and some of its suites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AptSource {
    /// Base URL: http, https or file.
    pub url: String,
    /// Suites; one that ends with `/` is a directory of a flat archive.
    pub suites: Vec<String>,
    /// Components; none for a flat archive.
    pub components: Vec<String>,
    /// Keys that may sign it.
    pub signed_by: SignedBy,
    /// File that declares it, as the host sees it.
    pub file: PathBuf,
    /// Line of the declaration, from 1.
    pub line: usize,
}

/// Keys whose signatures a source accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignedBy {
    /// Keyring files, as the host sees them.
    pub files: Vec<PathBuf>,
    /// Armored keys written into the source itself.
    pub inline: Option<String>,
    /// Of the keys in the files, those that may sign; all where empty.
    pub signers: Vec<Signer>,
}

/// Directory of apt's further lists.
const LISTS: &str = "/etc/apt/sources.list.d";

/// Contents of a host's apt files.
#[derive(Debug, Default)]
pub struct AptSources {
    /// The usable sources, in apt's order.
    pub sources: Vec<AptSource>,
    /// Files that could not be read; the others are used all the same.
    pub problems: Vec<Failure>,
}

/// Reads /etc/apt/sources.list and sources.list.d below `root`, for the Debian architecture `arch`.
///
/// Silently left out: source packages, disabled entries, entries for other architectures, and
/// transports other than http, https, file and mirror+file.
pub fn read(root: &Path, arch: &str) -> AptSources {
    read_files(root, source_files(root), root, arch)
}

/// Like [`read`], after the lists of sources.list.d below `lists`, whose keyrings and directories are
/// those below `root`.
pub fn read_with(lists: Option<&Path>, root: &Path, arch: &str) -> AptSources {
    let host = read(root, arch);
    let Some(lists) = lists.filter(|lists| *lists != root) else { return host };
    let files = source_files(lists).into_iter().filter(|file| file.starts_with(LISTS));
    let mut found = read_files(lists, files.collect(), root, arch);
    found.sources.extend(host.sources);
    found.problems.extend(host.problems);
    found
}

fn read_files(lists: &Path, files: Vec<PathBuf>, root: &Path, arch: &str) -> AptSources {
    let mut found = AptSources::default();
    for file in files {
        let parsed = read_below(lists, &file)
            .or_fail(FailureKind::Usage, || format!("reading {}", file.display()))
            .and_then(|bytes| {
                parse(&file, &String::from_utf8_lossy(&bytes), arch).map_err(|bad| {
                    let place = format!("{}, line {}", file.display(), bad.line);
                    Failure::new(FailureKind::Usage, format!("{place}: {}", bad.what))
                        .remedy("correct the line; the other files were read")
                })
            });
        match parsed {
            Ok(sources) => found.sources.extend(sources),
            Err(failure) => found.problems.push(failure),
        }
    }
    found.sources = found.sources.into_iter().filter_map(|s| reachable(root, s)).collect();
    found
}

/// Parses the text of one file; its extension decides between the two formats.
fn parse(file: &Path, text: &str, arch: &str) -> Result<Vec<AptSource>, BadLine> {
    if file.extension().is_some_and(|extension| extension == "sources") {
        parse_deb822(file, text, arch)
    } else {
        parse_lines(file, text, arch)
    }
}

/// Lists the files apt reads, in its order: names with odd characters are ignored, as by apt.
fn source_files(root: &Path) -> Vec<PathBuf> {
    let dir = Path::new(LISTS);
    let names = fs::read_dir(root.join(dir.strip_prefix("/").unwrap_or(dir)))
        .into_iter()
        .flatten()
        .flatten();
    let mut files: Vec<PathBuf> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".list") || name.ends_with(".sources"))
        .filter(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)))
        .map(|name| dir.join(name))
        .collect();
    files.sort();
    let main = Path::new("/etc/apt/sources.list");
    if root.join("etc/apt/sources.list").exists() {
        files.insert(0, main.to_path_buf());
    }
    files
}

/// `deb [option=value ...] URI suite component ...`
fn parse_lines(file: &Path, text: &str, arch: &str) -> Result<Vec<AptSource>, BadLine> {
    let mut sources = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default().trim();
        let source = parse_line(content, arch).map_err(|what| BadLine { line, what })?;
        sources.extend(source.map(|s| AptSource { file: file.to_path_buf(), line, ..s }));
    }
    Ok(sources)
}

fn parse_line(content: &str, arch: &str) -> Result<Option<AptSource>, String> {
    let (kind, rest) = content.split_once(char::is_whitespace).unwrap_or((content, ""));
    match kind {
        "" | "deb-src" => return Ok(None),
        "deb" => {}
        _ => return Err(format!("{kind} is not a type of source")),
    }
    let mut rest = rest.trim_start();
    let mut options = "";
    if let Some(inner) = rest.strip_prefix('[') {
        let (inner, after) = inner.split_once(']').ok_or("the options are not closed")?;
        (options, rest) = (inner, after);
    }
    let mut words = rest.split_whitespace();
    let url = words.next().ok_or("there is no URI")?;
    if url.starts_with("cdrom:") {
        return Ok(None);
    }
    let suite = words.next().ok_or("there is no suite")?;
    let components: Vec<String> = words.map(str::to_owned).collect();
    check_components(suite, &components)?;
    let mut signed_by = SignedBy::default();
    for option in options.split_whitespace() {
        let (name, value) = option.split_once('=').ok_or(format!("{option} has no value"))?;
        let values: Vec<&str> = value.split(',').collect();
        match name {
            "arch" if !values.contains(&arch) => return Ok(None),
            "arch-" if values.contains(&arch) => return Ok(None),
            "signed-by" => signed_by = SignedBy::of_words(&values),
            _ => {}
        }
    }
    Ok(Some(AptSource {
        url: url.replace("$(ARCH)", arch),
        suites: vec![suite.replace("$(ARCH)", arch)],
        components,
        signed_by,
        file: PathBuf::new(),
        line: 0,
    }))
}

/// Checks that a suite has components, and a flat archive none: apt refuses the same.
fn check_components(suite: &str, components: &[String]) -> Result<(), String> {
    match (is_flat(suite), components.is_empty()) {
        (false, true) => Err("there is no component".to_owned()),
        (true, false) => Err(format!("the flat archive {suite} has no components")),
        _ => Ok(()),
    }
}

fn parse_deb822(file: &Path, text: &str, arch: &str) -> Result<Vec<AptSource>, BadLine> {
    let mut sources = Vec::new();
    for paragraph in control::paragraphs(text)? {
        let line = paragraph.line;
        let found = parse_paragraph(&paragraph, arch).map_err(|what| BadLine { line, what })?;
        sources.extend(found.into_iter().map(|s| AptSource {
            file: file.to_path_buf(),
            line,
            ..s
        }));
    }
    Ok(sources)
}

fn parse_paragraph(fields: &Paragraph, arch: &str) -> Result<Vec<AptSource>, String> {
    let needed = |name: &str| match fields.words(name) {
        words if words.is_empty() => Err(format!("there is no {name}")),
        words => Ok(words),
    };
    let architectures = fields.words("Architectures");
    if fields.truth("Enabled") == Some(false)
        || !needed("Types")?.iter().any(|kind| kind == "deb")
        || !(architectures.is_empty() || architectures.iter().any(|a| a == arch))
        || fields.words("Architectures-Remove").iter().any(|a| a == arch)
    {
        return Ok(Vec::new());
    }
    let urls = needed("URIs")?;
    let suites: Vec<_> =
        needed("Suites")?.iter().map(|suite| suite.replace("$(ARCH)", arch)).collect();
    let components = fields.words("Components");
    for suite in &suites {
        check_components(suite, &components)?;
    }
    let signed_by = SignedBy::of_field(fields.get("Signed-By").unwrap_or_default());
    let source = |url: String| AptSource {
        url: url.replace("$(ARCH)", arch),
        suites: suites.clone(),
        components: components.clone(),
        signed_by: signed_by.clone(),
        file: PathBuf::new(),
        line: 0,
    };
    Ok(urls.into_iter().map(source).collect())
}

/// Makes the URL one that can be fetched from here; None for unsupported transports.
fn reachable(root: &Path, mut source: AptSource) -> Option<AptSource> {
    // apt-transport-mirror(1): a file of mirrors, best first, options after a tab.
    if let Some(list) = source.url.strip_prefix("mirror+file:") {
        let list = Path::new("/").join(list.trim_start_matches('/'));
        let text = String::from_utf8(read_below(root, &list).ok()?).ok()?;
        let mirror = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#'))?;
        source.url = mirror.split_whitespace().next()?.to_owned();
    }
    if let Some(path) = source.url.strip_prefix("file:") {
        let below = root.join(path.trim_start_matches('/'));
        source.url = reqwest::Url::from_file_path(below).ok()?.to_string();
        return Some(source);
    }
    (source.url.starts_with("http://") || source.url.starts_with("https://")).then_some(source)
}

impl SignedBy {
    fn of_field(value: &str) -> Self {
        if value.contains("-----BEGIN PGP") {
            // An empty line is written as a dot (deb822(5)).
            let lines = value.lines().map(|line| if line.trim() == "." { "" } else { line });
            let key = lines.collect::<Vec<_>>().join("\n");
            return Self { inline: Some(key), ..Self::default() };
        }
        let words = value.split(|c: char| c == ',' || c.is_whitespace());
        Self::of_words(&words.filter(|word| !word.is_empty()).collect::<Vec<_>>())
    }

    fn of_words(words: &[&str]) -> Self {
        let mut signed_by = Self::default();
        for word in words {
            if word.starts_with('/') {
                signed_by.files.push(PathBuf::from(word));
            } else {
                let fingerprint = word.trim_end_matches('!').to_owned();
                signed_by.signers.push(Signer { fingerprint, exact: word.ends_with('!') });
            }
        }
        signed_by
    }

    /// Reads the source's keys from files below `root`.
    ///
    /// A source without Signed-By uses apt's trusted keys; where apt has none, those of the
    /// distribution in /usr/share/keyrings, by its `ids` (ID and ID_LIKE of os-release, in this
    /// order). The other keyrings there are only for sources that name them.
    ///
    /// # Errors
    /// Exit code 13 where a keyring cannot be read or no key is left.
    pub fn keyring(&self, root: &Path, ids: &[String]) -> Result<Keyring, Failure> {
        let mut keyring = Keyring::default();
        if let Some(key) = &self.inline {
            keyring.extend(Keyring::read(key.as_bytes()));
        } else if self.files.is_empty() {
            keyring.extend(trusted(root));
            if keyring.is_empty() {
                keyring.extend(distributions_own(root, ids));
            }
        }
        for file in &self.files {
            let bytes = read_below(root, file).or_fail(FailureKind::Verification, || {
                format!("reading the keyring {}", file.display())
            })?;
            keyring.extend(Keyring::read(&bytes));
        }
        if !self.signers.is_empty() {
            keyring.only(&self.signers);
        }
        if keyring.is_empty() {
            return Err(Failure::new(
                FailureKind::Verification,
                "there is no OpenPGP certificate that may sign this source",
            )
            .remedy("install the archive's keyring, and name it in Signed-By"));
        }
        Ok(keyring)
    }
}

/// Reads the keys that apt trusts for every source: apt-key(8), "FILES".
fn trusted(root: &Path) -> Keyring {
    let dir = "/etc/apt/trusted.gpg.d";
    let listed = fs::read_dir(root.join(dir.trim_start_matches('/'))).into_iter().flatten();
    let mut paths = vec![PathBuf::from("/etc/apt/trusted.gpg")];
    paths.extend(listed.flatten().map(|entry| Path::new(dir).join(entry.file_name())).filter(
        |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // debian-archive-removed-keys.gpg holds revoked keys.
            (name.ends_with(".gpg") || name.ends_with(".asc")) && !name.contains("removed")
        },
    ));
    paths.sort();
    read_keyrings(root, paths)
}

/// Reads the keys of a distribution's own archive, from its keyring package: `debian` has
/// `debian-archive-keyring.gpg`, `ubuntu` has `ubuntu-archive-keyring.gpg`. A distribution without
/// one uses that of the distribution it derives from.
fn distributions_own(root: &Path, ids: &[String]) -> Keyring {
    let plain = |id: &&String| id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let keyrings = ids.iter().filter(plain).map(|id| {
        let path = |kind| format!("/usr/share/keyrings/{id}-archive-keyring.{kind}").into();
        read_keyrings(root, ["asc", "gpg", "pgp"].map(path))
    });
    keyrings.into_iter().find(|keyring| !keyring.is_empty()).unwrap_or_default()
}

/// Reads the keys of those files that exist.
fn read_keyrings(root: &Path, paths: impl IntoIterator<Item = PathBuf>) -> Keyring {
    let mut keyring = Keyring::default();
    for path in paths {
        match read_below(root, &path) {
            Ok(bytes) => keyring.extend(Keyring::read(&bytes)),
            Err(e) if is_absent(&e) => {}
            // Another keyring may have the key.
            Err(e) => tracing::warn!("the keys of {} are ignored: {e}", path.display()),
        }
    }
    keyring
}

#[cfg(test)]
mod tests;
