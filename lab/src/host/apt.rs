//! Roots of a suite, made by mmdebstrap from the archive and keyring that the local machine's apt sources name for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_debian::apt_sources::{self, AptSource};

use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};

/// A root file system of a suite, made by mmdebstrap from this machine's apt sources.
#[derive(Debug)]
pub(crate) struct Root<'a> {
    /// Suite of this machine's apt sources: a release, or its backports, updates or security.
    pub suite: &'a str,
    /// True if expired lists are accepted.
    pub frozen: bool,
    /// mmdebstrap's variant: what is in the root beside the packages, and whether they are configured.
    pub variant: &'a str,
    /// Names of packages, separated by commas.
    pub packages: &'a str,
    /// Further options of mmdebstrap.
    pub options: Vec<String>,
}

impl Root<'_> {
    /// Makes the root in `tree`. Returns the apt sources that it was made from, a file beside it.
    ///
    /// # Errors
    /// No apt source of this machine serves the suite; mmdebstrap failed.
    pub(crate) fn make(&self, tree: &Path) -> Result<PathBuf, Error> {
        let sources = tree.with_extension("sources");
        let (base, text) = sources_of(self.suite, self.frozen, Path::new("/"))?;
        fs::write(&sources, text).at("write", &sources)?;
        let mut command = Command::new("mmdebstrap");
        command.arg("--quiet").arg(format!("--variant={}", self.variant));
        command.arg(format!("--include={}", self.packages)).args(&self.options);
        run(command.arg(base).arg(tree).arg(&sources), LIMIT)?;
        Ok(sources)
    }
}

/// Suites beside a release, by what follows its name; true for those in the release's own archive.
const BESIDE: [(&str, bool); 3] = [("-backports", true), ("-updates", true), ("-security", false)];

/// Returns the release to which a suite's packages belong, and deb822 stanzas of both: the first of the machine's apt
/// sources (below `root`) that serves each, reduced to the suite and component main. A release that none names is taken
/// from the first source of a release. With `frozen`, expired lists are accepted.
fn sources_of<'a>(suite: &'a str, frozen: bool, root: &Path) -> Result<(&'a str, String), Error> {
    let beside = BESIDE.iter().find_map(|(end, same)| Some((suite.strip_suffix(end)?, *same)));
    let (base, in_one_archive) = beside.unwrap_or((suite, false));
    let release = serving(base, root)?;
    let stanzas = match beside {
        None => vec![stanza(&release, suite)],
        Some(_) if in_one_archive => vec![stanza(&release, &format!("{base} {suite}"))],
        Some(_) => vec![stanza(&release, base), stanza(&serving(suite, root)?, suite)],
    };
    let options = if frozen { "Check-Valid-Until: no\n" } else { "" };
    let stanzas: Vec<String> = stanzas.iter().map(|stanza| format!("{stanza}{options}")).collect();
    Ok((base, stanzas.join("\n")))
}

fn serving(suite: &str, root: &Path) -> Result<AptSource, Error> {
    let sources = apt_sources::read(root, "amd64").sources;
    let of =
        |serves: &dyn Fn(&String) -> bool| sources.iter().find(|s| s.suites.iter().any(serves));
    let is_release = |suite: &str| !suite.contains('-');
    let found =
        of(&|s| s == suite).or_else(|| of(&|s| is_release(s)).filter(|_| is_release(suite)));
    found.cloned().ok_or_else(|| {
        Error::Unexpected(format!("no apt source of {} serves {suite}", root.display()))
    })
}

fn stanza(source: &AptSource, suites: &str) -> String {
    let mut text =
        format!("Types: deb\nURIs: {}\nSuites: {suites}\nComponents: main\n", source.url);
    if let Some(key) = &source.signed_by.inline {
        let lines: Vec<&str> = key.lines().map(|l| if l.is_empty() { "." } else { l }).collect();
        text.push_str(&format!("Signed-By:\n {}\n", lines.join("\n ")));
    } else if !source.signed_by.files.is_empty() {
        let files = source.signed_by.files.iter().map(|f| f.display().to_string());
        text.push_str(&format!("Signed-By: {}\n", files.collect::<Vec<_>>().join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: &str = "Types: deb\n# http://archive.example.com/snapshot\n\
        URIs: http://archive.example.com/debian\nSuites: bookworm bookworm-updates\n\
        Components: main contrib\nSigned-By: /usr/share/keyrings/k.gpg\n\n\
        Types: deb\nURIs: http://archive.example.com/security\nSuites: bookworm-security\n\
        Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\n\
        Types: deb\nURIs: http://archive.example.com/off\nSuites: trixie-security\n\
        Components: main\nEnabled: no\n";

    #[test]
    fn the_sources_of_a_suite_are_found_and_reduced() {
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&parts).unwrap();
        fs::write(parts.join("a.sources"), SOURCES).unwrap();
        let of = |archive: &str, suites: &str| {
            format!(
                "Types: deb\nURIs: http://archive.example.com/{archive}\nSuites: {suites}\n\
                 Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n"
            )
        };
        let cases = [
            ("bookworm", "bookworm", of("debian", "bookworm")),
            ("trixie", "trixie", of("debian", "trixie")),
            ("trixie-backports", "trixie", of("debian", "trixie trixie-backports")),
            ("bookworm-updates", "bookworm", of("debian", "bookworm bookworm-updates")),
            (
                "bookworm-security",
                "bookworm",
                of("debian", "bookworm") + "\n" + &of("security", "bookworm-security"),
            ),
        ];
        let read = |suite, frozen| {
            let (base, text) = sources_of(suite, frozen, dir.path())?;
            Ok::<_, Error>((
                base,
                text.replace("debian/\n", "debian\n").replace("security/\n", "security\n"),
            ))
        };
        for (suite, base, expected) in cases {
            assert_eq!(read(suite, false).unwrap(), (base, expected), "{suite}");
        }
        let frozen = read("bookworm-security", true).unwrap().1;
        assert_eq!(frozen.matches("k.gpg\nCheck-Valid-Until: no\n").count(), 2, "{frozen}");
        let error = read("trixie-security", false).unwrap_err();
        assert!(error.to_string().contains("serves trixie-security"), "{error}");
    }
}
