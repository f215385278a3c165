//! Trees of sources as a configuration names them: a place, and the sha256 of each version there.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::SourceTree;
use crate::pinned::{repository_of, url_of};
use crate::runfile::source::digest;
use longshore_core::driver_version::DriverVersion;
use longshore_core::redact::redacted;

/// Stands for the version in a place.
const VERSION: &str = "{version}";

/// Versions of NVIDIA's open kernel modules in one place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct SourceTrees(pub Vec<SourceTree>);

/// A `[[source-tree]]` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    urls: Vec<String>,
    sha256: BTreeMap<String, String>,
}

impl TryFrom<Written> for SourceTrees {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        Self::new(&written.urls, &written.sha256)
    }
}

impl SourceTrees {
    /// Returns the versions that `sha256` has, each at these URLs, absolute paths or repositories, in which `{version}`
    /// stands for it.
    ///
    /// # Errors
    /// A message, if a place, a version or a digest is not of an accepted form, or several versions are at one place.
    pub fn new(urls: &[String], sha256: &BTreeMap<String, String>) -> Result<Self, String> {
        if urls.is_empty() {
            return Err("a source tree without a URL or path".to_owned());
        }
        if sha256.is_empty() {
            return Err(format!(
                "nothing proves the source tree {}: give the sha256 of each version",
                redacted(&urls[0])
            ));
        }
        if let Some((place, word)) = urls.iter().find_map(|url| Some((url, other_word(url)?))) {
            return Err(format!(
                "`{word}` in {} stands for nothing: {VERSION} alone does, for the version",
                redacted(place)
            ));
        }
        // A repository has each version by its digest.
        let is_one = |url: &&String| !url.contains(VERSION) && repository_of(url).is_none();
        if let (Some(place), 2..) = (urls.iter().find(is_one), sha256.len()) {
            return Err(format!(
                "several versions, and {} is one place: write {VERSION} where their names differ",
                redacted(place)
            ));
        }
        let trees = sha256.iter().map(|(version, digest)| {
            if !is_version(version) {
                return Err(format!("`{version}` is no driver version, like 580.142"));
            }
            let urls = urls.iter().map(|place| url_of(&place.replace(VERSION, version)));
            let urls = urls.collect::<Result<_, _>>()?;
            Ok(SourceTree { version: version.clone(), sha256: digest_of(version, digest)?, urls })
        });
        trees.collect::<Result<_, _>>().map(Self)
    }
}

/// Returns the first text in braces of a place that is not the version's, up to the end where they are not closed.
fn other_word(place: &str) -> Option<String> {
    let rest = place.replace(VERSION, "");
    let begin = rest.find(['{', '}'])?;
    let word = rest.get(begin..)?;
    let end = word.find('}').map_or(word.len(), |end| end + 1);
    word.get(..end).map(str::to_owned)
}

/// True for a whole version: a branch names none.
fn is_version(text: &str) -> bool {
    DriverVersion::parse(text).is_some() && text.contains('.')
}

fn digest_of(version: &str, text: &str) -> Result<String, String> {
    digest(text).map_err(|what| format!("{version}: {what}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn trees(text: &str) -> Result<Vec<SourceTree>, String> {
        toml::from_str::<SourceTrees>(text).map(|trees| trees.0).map_err(|e| e.to_string())
    }

    #[test]
    fn one_place_has_several_versions() {
        let hex = "a".repeat(64);
        let text = format!(
            "urls = [\"https://git.example.com/{{version}}.tar.gz\", \"/srv/{{version}}\"]\n\
             sha256 = {{ \"580.142\" = \"{}\", \"595.45.04\" = \"sha256:{hex}\" }}\n",
            "B".repeat(64)
        );
        let trees = trees(&text).expect("read");
        let read: Vec<_> = trees.iter().map(|t| (t.version.as_str(), t.sha256.as_str())).collect();
        assert_eq!(read, [("580.142", "b".repeat(64).as_str()), ("595.45.04", hex.as_str())]);
        let urls = ["https://git.example.com/580.142.tar.gz", "file:///srv/580.142"];
        assert_eq!(trees[0].urls, urls);
    }

    #[rstest]
    #[case::repository_of_all(
        "oci://registry.example.com/sources",
        "oci://registry.example.com/sources"
    )]
    #[case::repository_of_each(
        "oci://registry.example.com/sources/{version}",
        "oci://registry.example.com/sources/580.142"
    )]
    fn a_repository_has_several_versions(#[case] place: &str, #[case] expected: &str) {
        let hex = "a".repeat(64);
        let text = format!(
            "urls = [\"{place}\"]\nsha256 = {{ \"580.142\" = \"{hex}\", \"595.45.04\" = \"{hex}\" }}\n"
        );
        assert_eq!(trees(&text).expect("read")[0].urls, [expected]);
    }

    #[rstest]
    #[case::no_place("urls = []\nsha256 = { \"580.142\" = \"HEX\" }", "without a URL")]
    #[case::unpinned("urls = [\"/a\"]\nsha256 = {}", "nothing proves")]
    #[case::several(
        "urls = [\"/a\"]\nsha256 = { \"580.142\" = \"HEX\", \"590.48.01\" = \"HEX\" }",
        "{version}"
    )]
    #[case::tag(
        "urls = [\"oci://registry.example.com/a:{version}\"]\nsha256 = { \"580.142\" = \"HEX\" }",
        "without tag and digest"
    )]
    #[case::upper_case(
        "urls = [\"/a/{Version}\"]\nsha256 = { \"580.142\" = \"HEX\" }",
        "`{Version}` in /a/{Version} stands for nothing"
    )]
    #[case::beside_it(
        "urls = [\"https://git.example.com/{version}/{arch}\"]\nsha256 = { \"580.142\" = \"HEX\" }",
        "`{arch}`"
    )]
    #[case::in_a_repository(
        "urls = [\"oci://registry.example.com/a/{ver}\"]\nsha256 = { \"580.142\" = \"HEX\" }",
        "`{ver}`"
    )]
    #[case::not_closed(
        "urls = [\"/a/{version\"]\nsha256 = { \"580.142\" = \"HEX\" }",
        "`{version` in"
    )]
    #[case::not_opened("urls = [\"/a/version}\"]\nsha256 = { \"580.142\" = \"HEX\" }", "`}` in")]
    #[case::branch("urls = [\"/a\"]\nsha256 = { \"580\" = \"HEX\" }", "no driver version")]
    #[case::digest("urls = [\"/a\"]\nsha256 = { \"580.142\" = \"abc\" }", "64 hex digits")]
    #[case::relative("urls = [\"a\"]\nsha256 = { \"580.142\" = \"HEX\" }", "no absolute path")]
    #[case::unknown("urls = [\"/a\"]\nsha = \"abc\"\nsha256 = {}", "unknown field")]
    fn mistakes_are_named(#[case] text: &str, #[case] expected: &str) {
        let error = trees(&text.replace("HEX", &"a".repeat(64))).expect_err("refused");
        assert!(error.contains(expected), "{error}");
    }
}
