//! Places that a build root comes from, as a configuration names them.

use std::path::PathBuf;
use std::str::FromStr;

use derive_more::Display;
use serde::Deserialize;

use longshore_core::from_string;
use longshore_core::image_reference::{Reference, Repository};
use longshore_core::value::AbsolutePath;

/// Scheme of an image in a registry.
const SCHEME: &str = "oci://";

/// Error of a place that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a build root: {0}")]
pub struct BadBuildRoot(String);

/// Place of a build root.
#[derive(Debug, Clone, PartialEq, Eq, Display, Deserialize)]
#[serde(try_from = "String")]
pub enum BuildRootSource {
    /// An image in a registry.
    #[display("{}{repository}@{digest}", SCHEME)]
    Image {
        /// Its repository.
        repository: Repository,
        /// `sha256:...` of its manifest, or of the index that has it.
        digest: String,
    },
    /// A directory with a file system or an OCI image layout, or a tar file of either.
    #[display("{}", _0.display())]
    Path(PathBuf),
}

from_string!(BuildRootSource);

impl FromStr for BuildRootSource {
    type Err = BadBuildRoot;

    fn from_str(text: &str) -> Result<Self, BadBuildRoot> {
        let Some(reference) = text.strip_prefix(SCHEME) else {
            let path = AbsolutePath::strict(text);
            let path = path.map_err(|e| BadBuildRoot(format!("{e}, nor begins with {SCHEME}")))?;
            return Ok(Self::Path(path.as_path().to_path_buf()));
        };
        let Reference { repository, digest, .. } =
            reference.parse().map_err(|e| BadBuildRoot(format!("{e}")))?;
        let digest = digest.ok_or_else(|| {
            BadBuildRoot(format!(
                "{SCHEME}{repository} has to be named by its digest (@sha256:...): a tag may name another image \
                 later, and modules would not be compiled alike"
            ))
        })?;
        Ok(Self::Image { repository, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[rstest]
    #[case("oci://registry.example.com/roots/el9@DIGEST")]
    #[case("oci://http://127.0.0.1:5000/roots/el9@DIGEST")]
    #[case("/srv/roots/el9")]
    #[case("/srv/roots/el9.tar.zst")]
    fn places_are_read_and_shown_alike(#[case] text: &str) {
        let text = text.replace("DIGEST", DIGEST);
        assert_eq!(text.parse::<BuildRootSource>().expect("a place").to_string(), text);
    }

    #[test]
    fn a_tag_beside_the_digest_does_not_count() {
        let text = format!("oci://registry.example.com/a:9@{DIGEST}");
        let wanted = format!("oci://registry.example.com/a@{DIGEST}");
        assert_eq!(text.parse::<BuildRootSource>().expect("a place").to_string(), wanted);
    }

    #[rstest]
    #[case::tag("oci://registry.example.com/roots/el9:9.4", "by its digest")]
    #[case::neither("oci://registry.example.com/roots/el9", "by its digest")]
    #[case::no_host("oci://el9@sha256:1", "not a reference")]
    #[case::relative("roots/el9", "an absolute path, nor begins with oci://")]
    #[case::other_scheme("docker://registry.example.com/a", "an absolute path, nor begins")]
    fn other_texts_are_refused(#[case] text: &str, #[case] said: &str) {
        let bad = text.parse::<BuildRootSource>().expect_err("refused").to_string();
        assert!(bad.contains(said), "{bad}");
    }
}
