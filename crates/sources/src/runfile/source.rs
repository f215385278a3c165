//! .run files as a configuration names them: URLs and checksums.

use serde::Deserialize;

use crate::pinned::{plain_url_of, url_of};
use longshore_core::digest::is_sha256;
use longshore_core::redact::redacted;

/// Remedy for a file without a checksum.
const PIN_IT: &str = "give its sha256 (--run-file-sha256, sha256 in [[run-file]]), or where it is \
                      written (--run-file-checksum, checksum): NVIDIA puts FILE.run.sha256sum \
                      beside each FILE.run";

/// One .run file: URLs of the same bytes, in order of preference, and their checksum.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct RunFileSource {
    /// http, https or file URLs, or repositories of registries (`oci://HOST/REPOSITORY`).
    pub urls: Vec<String>,
    /// Checksum of the file.
    pub pin: Pin,
}

/// Checksum of a .run file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// Its sha256 (lower-case hex).
    Sha256(String),
    /// An https or file URL of a text with its sha256, as `sha256sum` writes it.
    Sidecar(String),
}

/// A `[[run-file]]` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    urls: Vec<String>,
    sha256: Option<String>,
    checksum: Option<String>,
}

impl TryFrom<Written> for RunFileSource {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        Self::new(&written.urls, written.sha256.as_deref(), written.checksum.as_deref())
    }
}

impl RunFileSource {
    /// Returns the .run file with these URLs or absolute paths, and this checksum.
    ///
    /// # Errors
    /// A message, if a URL or the checksum is not of an accepted form.
    pub fn new(
        urls: &[String],
        sha256: Option<&str>,
        checksum: Option<&str>,
    ) -> Result<Self, String> {
        if urls.is_empty() {
            return Err("a .run file without a URL or path".to_owned());
        }
        let urls = urls.iter().map(|place| url_of(place)).collect::<Result<Vec<_>, _>>()?;
        let pin = match (sha256, checksum) {
            (Some(sha256), None) => Pin::Sha256(digest(sha256)?),
            (None, Some(place)) => Pin::Sidecar(sidecar(place)?),
            (None, None) => {
                return Err(format!(
                    "nothing proves the .run file {}: {PIN_IT}",
                    redacted(&urls[0])
                ));
            }
            (Some(_), Some(_)) => {
                return Err("a sha256 and a checksum's URL for one .run file: one is enough".into());
            }
        };
        Ok(Self { urls, pin })
    }
}

pub(crate) fn digest(text: &str) -> Result<String, String> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_prefix("sha256:").unwrap_or(&lower);
    if is_sha256(lower) {
        Ok(lower.to_owned())
    } else {
        Err(format!("`{text}` is no sha256: 64 hex digits"))
    }
}

fn sidecar(place: &str) -> Result<String, String> {
    if place.starts_with("http://") {
        return Err(format!(
            "a checksum read over plain http proves nothing: {}; use https, or give the sha256",
            redacted(place)
        ));
    }
    plain_url_of(place).ok_or_else(|| {
        format!("`{}` is no https or file URL and no absolute path of a checksum", redacted(place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HEX: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn source(url: &str, sha256: Option<&str>, checksum: Option<&str>) -> Result<Pin, String> {
        RunFileSource::new(&[url.to_owned()], sha256, checksum).map(|source| source.pin)
    }

    #[test]
    fn a_path_becomes_a_url_and_a_digest_lower_case() {
        let read: RunFileSource =
            toml::from_str(&format!("urls = [\"/srv/a b.run\"]\nsha256 = \"{HEX}\"\n"))
                .expect("read");
        assert_eq!(read.urls, ["file:///srv/a%20b.run"]);
        assert_eq!(read.pin, Pin::Sha256(HEX.to_lowercase()));
    }

    #[rstest]
    #[case::unpinned("/a.run", None, None, "--run-file-sha256")]
    #[case::both("/a.run", Some(HEX), Some("/a.sum"), "one is enough")]
    #[case::no_digest("/a.run", Some("abc"), None, "64 hex digits")]
    #[case::relative("a.run", Some(HEX), None, "no absolute path")]
    #[case::scheme("ftp://h/a.run", Some(HEX), None, "no http, https or file URL")]
    #[case::plain("/a.run", None, Some("http://h/a.sum"), "proves nothing")]
    #[case::tag("oci://h.example.com/a:1", Some(HEX), None, "without tag and digest")]
    #[case::checksum_of_a_registry(
        "/a.run",
        None,
        Some("oci://h.example.com/a"),
        "no https or file URL"
    )]
    fn what_proves_nothing_is_refused(
        #[case] url: &str,
        #[case] sha256: Option<&str>,
        #[case] checksum: Option<&str>,
        #[case] said: &str,
    ) {
        let refused = source(url, sha256, checksum).expect_err("refused");
        assert!(refused.contains(said), "{refused}");
    }

    #[rstest]
    #[case::unpinned("https://u:secret@h/a.run", None)]
    #[case::scheme("ftp://u:secret@h/a.run", None)]
    #[case::plain("/a.run", Some("http://u:secret@h/a.sum"))]
    #[case::repository("oci://http://u:secret@h.example.com/a", None)]
    #[case::checksum("/a.run", Some("oci://http://u:secret@h.example.com/a"))]
    fn passwords_are_not_shown(#[case] url: &str, #[case] checksum: Option<&str>) {
        let refused = source(url, None, checksum).expect_err("refused");
        assert!(refused.contains("//***@h") && !refused.contains("secret"), "{refused}");
    }

    #[test]
    fn a_sidecar_may_be_a_file_or_https() {
        for place in ["/a.run.sha256sum", "https://archive.example.com/a.run.sha256sum"] {
            assert!(matches!(source("/a.run", None, Some(place)), Ok(Pin::Sidecar(_))), "{place}");
        }
    }
}
