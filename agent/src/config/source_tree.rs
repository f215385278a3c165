//! Trees of NVIDIA's open kernel modules of flags and variables.

use std::collections::BTreeMap;

use longshore_core::failure::{Failure, FailureKind};
use longshore_sources::source_tree::SourceTrees;

/// Remedy for a tree in a form that is none of those of docs/supply-chain/source-trees.md.
const FORMS: &str = "name http, https or file URLs, oci://HOST/REPOSITORY or absolute paths of one tarball or directory, \
                     with {version} where there are several (--source-tree), and VERSION=SHA256 of each (--source-tree-sha256)";

/// Returns the trees of the flags or variables, where they name some: `sha256` has `VERSION=HEX`.
///
/// # Errors
/// Exit code 2 for places without digests, digests without a place, and forms that are not accepted.
pub(super) fn from_parts(
    urls: &[String],
    sha256: &[String],
) -> Result<Option<SourceTrees>, Failure> {
    let usage = |what: String| Failure::new(FailureKind::Usage, what).remedy(FORMS);
    if urls.is_empty() {
        return match sha256.is_empty() {
            true => Ok(None),
            false => Err(usage("a digest of a source tree, and no source tree".to_owned())),
        };
    }
    let mut digests = BTreeMap::new();
    for text in sha256 {
        let Some((version, digest)) = text.split_once('=') else {
            return Err(usage(format!("`{text}` is not VERSION=SHA256")));
        };
        if digests.insert(version.to_owned(), digest.to_owned()).is_some() {
            return Err(usage(format!("two digests of the source tree {version}")));
        }
    }
    SourceTrees::new(urls, &digests).map(Some).map_err(usage)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use longshore_core::failure::ExitCode;

    #[rstest]
    #[case::digest_alone(&[], &["580.142=HEX"], "no source tree")]
    #[case::place_alone(&["/a"], &[], "nothing proves")]
    #[case::no_version(&["/a"], &["HEX"], "is not VERSION=SHA256")]
    #[case::twice(&["/a"], &["580.142=HEX", "580.142=HEX"], "two digests")]
    fn mistakes_are_named(#[case] urls: &[&str], #[case] sha256: &[&str], #[case] what: &str) {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        let hex = "a".repeat(64);
        let sha256: Vec<String> = sha256.iter().map(|text| text.replace("HEX", &hex)).collect();
        let failure = from_parts(&urls, &sha256).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.to_string().contains(what), "{failure}");
    }

    #[test]
    fn flags_name_several_versions() {
        let digests = ["580.142", "595.45.04"].map(|v| format!("{v}={}", "a".repeat(64)));
        let trees = from_parts(&["/srv/{version}".to_owned()], &digests).expect("read");
        let trees = trees.expect("some").0;
        assert_eq!(trees[1].urls, ["file:///srv/595.45.04"]);
    }
}
