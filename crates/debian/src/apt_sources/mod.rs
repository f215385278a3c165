//! The host's apt sources: sources.list(5), read below a root path as apt reads them.

mod options;
mod parse;

use std::fs;
use std::path::{Path, PathBuf};

use super::control;
use super::keyring::{Keyring, Signer};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::redact::redacted;
use longshore_core::root::{is_absent, read_below};
use parse::{SourcesEntry, parse};

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
    /// Conduct towards old metadata.
    pub valid_until: ValidUntil,
    /// File that declares it, as the host sees it.
    pub file: PathBuf,
    /// Line of the declaration, from 1.
    pub line: usize,
}

/// Options of a source about old metadata; the default states none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidUntil {
    /// `Valid-Until-Max`: seconds after its Date that metadata is accepted; 0 for apt's own setting.
    pub max: i64,
    /// `Check-Valid-Until`; None for apt's own setting.
    pub check: Option<bool>,
    /// File that declares the source, as the host sees it.
    pub file: PathBuf,
}

impl ValidUntil {
    /// Reads the values of the two options.
    fn parse(max: Option<&str>, check: Option<&str>) -> Self {
        let max = max.unwrap_or_default().trim();
        let end = max.find(|c: char| !c.is_ascii_digit()).unwrap_or(max.len());
        Self {
            max: if end == 0 { 0 } else { max[..end].parse().unwrap_or(i64::MAX) },
            check: check.map(|value| control::truth(value, false)),
            ..Self::default()
        }
    }

    /// Adds what another entry for the same suite states.
    pub(super) fn merge(&mut self, other: &Self) {
        if self.max == 0 {
            (self.max, self.file) = (other.max, other.file.clone());
        }
        self.check = self.check.or(other.check);
    }
}

/// Number of sources that a message names.
const SHOWN: usize = 4;

/// Names the first of some sources that are left out, and the number of the others.
pub fn named(left_out: &[LeftOut]) -> String {
    let shown: Vec<String> = left_out.iter().take(SHOWN).map(ToString::to_string).collect();
    match left_out.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

/// Keys whose signatures a source accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Files, lines and stanzas that could not be read; the others are used all the same.
    pub problems: Vec<Failure>,
    /// Sources that apt reads, and that are not used here.
    pub left_out: Vec<LeftOut>,
}

/// A source that apt reads, and that is not used here.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}, line {line}: {source}: {why}", file.display())]
pub struct LeftOut {
    /// File that declares it, as the host sees it.
    pub file: PathBuf,
    /// Line of the declaration, from 1.
    pub line: usize,
    /// Its URI, without a password, and suite.
    pub source: String,
    /// Reason.
    pub why: String,
}

impl LeftOut {
    /// Describes a source that is left out.
    pub(super) fn new(source: &AptSource, why: impl Into<String>) -> Self {
        let described = format!("{} {}", redacted(&source.url), source.suites.join(" "));
        Self {
            file: source.file.clone(),
            line: source.line,
            source: described.trim_end().to_owned(),
            why: why.into(),
        }
    }
}

/// Reads /etc/apt/sources.list and sources.list.d below `root`, for the Debian architecture `arch`.
///
/// Source packages and disabled entries are no sources; what else is not used is in
/// [`AptSources::left_out`].
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
    found.left_out.extend(host.left_out);
    found
}

fn read_files(lists: &Path, files: Vec<PathBuf>, root: &Path, arch: &str) -> AptSources {
    let mut found = AptSources::default();
    for file in files {
        match read_below(lists, &file) {
            Ok(bytes) => found.add(&file, &String::from_utf8_lossy(&bytes), root, arch),
            Err(error) => {
                let failed: Result<(), _> = Err(error)
                    .or_fail(FailureKind::Usage, || format!("reading {}", file.display()));
                found.problems.extend(failed.err());
            }
        }
    }
    found
}

impl AptSources {
    /// Adds the sources of a file's text.
    fn add(&mut self, file: &Path, text: &str, root: &Path, arch: &str) {
        for entry in parse(file, text, arch) {
            match entry {
                Ok(SourcesEntry::Source(source)) => match reachable(root, source.clone()) {
                    Ok(source) => self.sources.push(source),
                    Err(why) => self.left_out.push(LeftOut::new(&source, why)),
                },
                Ok(SourcesEntry::LeftOut(left_out)) => self.left_out.push(left_out),
                Err(bad) => {
                    let place = format!("{}, line {}", file.display(), bad.line);
                    self.problems.push(
                        Failure::new(FailureKind::Usage, format!("{place}: {}", bad.what))
                            .remedy("correct the line, with which apt reads no source; the others were read"),
                    );
                }
            }
        }
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

/// Makes the URL one that can be fetched from here.
///
/// # Errors
/// Why it cannot be.
fn reachable(root: &Path, mut source: AptSource) -> Result<AptSource, String> {
    // apt-transport-mirror(1): a file of mirrors, best first, options after a tab.
    if let Some(list) = source.url.strip_prefix("mirror+file:") {
        let list = Path::new("/").join(list.trim_start_matches('/'));
        source.url = first_mirror(root, &list)?;
    }
    let (transport, rest) = source.url.split_once(':').unwrap_or_default();
    match transport {
        "file" => {
            let below = root.join(rest.trim_start_matches('/'));
            let url = reqwest::Url::from_file_path(below);
            source.url = url.map_err(|()| "it is no path of a directory".to_owned())?.to_string();
            Ok(source)
        }
        "http" | "https" => Ok(source),
        "" => Err("its URI has no transport such as https:".to_owned()),
        other => Err(format!(
            "the transport {other}: is not one of those that longshore has (https, http, file, mirror+file)"
        )),
    }
}

fn first_mirror(root: &Path, list: &Path) -> Result<String, String> {
    let bytes = read_below(root, list).map_err(|e| format!("reading {}: {e}", list.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut mirrors = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let first = mirrors.next().and_then(|mirror| mirror.split_whitespace().next());
    first.map(str::to_owned).ok_or_else(|| format!("{} names no mirror", list.display()))
}

impl SignedBy {
    fn of_field(value: &str) -> Self {
        if value.contains("-----BEGIN PGP") {
            // An empty line is written as a dot (deb822(5)); apt strips each line.
            let lines =
                value.lines().map(str::trim).map(|line| if line == "." { "" } else { line });
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
            let cause = "there is no OpenPGP certificate that may sign this source";
            return Err(Failure::new(FailureKind::Verification, cause)
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
mod against_apt;
#[cfg(test)]
mod tests;
