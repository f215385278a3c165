//! The local machine's apt sources, for mmdebstrap: the archive and keyring that serve a suite.

use std::path::Path;

use longshore_debian::apt_sources::{self, AptSource};

use crate::error::Error;

/// Returns a deb822 stanza of the first of the machine's apt sources (below `root`) that serves
/// `suite`, reduced to that suite and component main. A release that none names is taken from the
/// first source of a release. With `frozen`, expired lists are accepted.
///
/// # Errors
/// No source serves the suite.
pub fn source_for(suite: &str, frozen: bool, root: &Path) -> Result<String, Error> {
    let options = if frozen { "Check-Valid-Until: no\n" } else { "" };
    Ok(stanza(&serving(suite, root)?, suite) + options)
}

/// Returns the release to which a suite's packages belong, and a stanza of both as [`source_for`]
/// does. Backports are beside their release in the archive; every other suite is its own release.
///
/// # Errors
/// No source serves the release.
pub fn source_with_base<'a>(suite: &'a str, root: &Path) -> Result<(&'a str, String), Error> {
    let base = suite.strip_suffix("-backports").unwrap_or(suite);
    let suites = if base == suite { suite.to_owned() } else { format!("{base} {suite}") };
    Ok((base, stanza(&serving(base, root)?, &suites)))
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
        Components: main\nEnabled: no\n";

    #[test]
    fn the_stanza_of_a_suite_is_found_and_reduced() {
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join("etc/apt/sources.list.d");
        std::fs::create_dir_all(&parts).unwrap();
        std::fs::write(parts.join("a.sources"), SOURCES).unwrap();
        assert_eq!(
            source_for("bookworm", false, dir.path()).unwrap().replace("debian/\n", "debian\n"),
            "Types: deb\nURIs: http://archive.example.com/debian\nSuites: bookworm\n\
             Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n"
        );
        let trixie = source_for("trixie", true, dir.path()).unwrap();
        assert!(trixie.contains("Suites: trixie\n") && trixie.ends_with("Check-Valid-Until: no\n"));
        let (base, backports) = source_with_base("trixie-backports", dir.path()).unwrap();
        assert_eq!(base, "trixie");
        assert_eq!(
            backports,
            trixie
                .replace("Suites: trixie\n", "Suites: trixie trixie-backports\n")
                .replace("Check-Valid-Until: no\n", "")
        );
        assert_eq!(source_with_base("forky", dir.path()).unwrap().0, "forky");
        let error = source_for("bookworm-security", false, dir.path()).unwrap_err();
        assert!(error.to_string().contains("bookworm-security"));
    }
}
