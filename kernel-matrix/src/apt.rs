//! The machine's own apt sources, for mmdebstrap: which archive and keyring serve a suite.

use std::fs;
use std::path::Path;

use crate::error::{At, Error};

/// The stanza (deb822) of the machine's apt sources that serves `suite`, reduced to that suite and
/// component main.
///
/// # Errors
/// The sources cannot be read, or none serves the suite.
pub fn source_for(suite: &str, dir: &Path) -> Result<String, Error> {
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        if path.extension().is_some_and(|e| e == "sources") {
            let text = fs::read_to_string(&path).at("read", &path)?;
            if let Some(stanza) = text.split("\n\n").find_map(|s| reduce(s, suite)) {
                return Ok(stanza);
            }
        }
    }
    Err(Error::Unexpected(format!("no apt source in {} serves {suite}", dir.display())))
}

/// The stanza for `suite` alone; None where it does not serve it or is switched off.
fn reduce(stanza: &str, suite: &str) -> Option<String> {
    let field = |name: &str| {
        stanza.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let serves = field("Suites")?.split_whitespace().any(|s| s == suite)
        && field("Types")?.split_whitespace().any(|t| t == "deb")
        && !field("Enabled").is_some_and(|e| e.eq_ignore_ascii_case("no"));
    let mut text = format!(
        "Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\n",
        field("URIs").filter(|_| serves)?
    );
    if let Some(keyring) = field("Signed-By") {
        text.push_str(&format!("Signed-By: {keyring}\n"));
    }
    Some(text)
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
        fs::write(dir.path().join("a.sources"), SOURCES).unwrap();
        assert_eq!(
            source_for("bookworm", dir.path()).unwrap(),
            "Types: deb\nURIs: http://archive.example.com/debian\nSuites: bookworm\n\
             Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n"
        );
        for other in ["trixie", "bookworm-security"] {
            assert!(source_for(other, dir.path()).unwrap_err().to_string().contains(other));
        }
    }
}
