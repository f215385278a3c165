//! The sha256 a .run file must have, where a text beside it says it.

use crate::artifact::is_sha256;
use crate::config::{Pin, RunFileSource};
use crate::failure::{ExitCode, Failure};
use crate::source::http::Fetcher;

/// A checksum's text is a line, or one for each file of a directory.
const MOST_BYTES: u64 = 1 << 20;

/// The sha256 (hex) that a .run file must have.
///
/// # Errors
/// Exit code 12 where the text with it cannot be had, 13 where it does not say it.
pub(super) async fn sha256_of(
    source: &RunFileSource,
    name: &str,
    fetcher: &Fetcher,
) -> Result<String, Failure> {
    let url = match &source.pin {
        Pin::Sha256(sha256) => return Ok(sha256.clone()),
        Pin::Sidecar(url) => url,
    };
    let text = fetcher.bytes(url, MOST_BYTES).await?;
    digest_in(&String::from_utf8_lossy(&text), name).ok_or_else(|| {
        Failure::new(ExitCode::Verification, format!("{url} has no sha256 of {name}"))
            .remedy("give the sha256 itself, or the URL of a text as sha256sum writes it")
    })
}

/// The digest of `name` in lines like `HEX  NAME`, `HEX *NAME` or `SHA256 (NAME) = HEX`; or the
/// only digest there is, where it stands alone.
fn digest_in(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let named = lines.clone().find_map(|line| {
        if let Some(rest) = line.strip_prefix("SHA256 (") {
            let (file, digest) = rest.split_once(") = ")?;
            return is_of(file, name).then_some(digest);
        }
        let (digest, file) = line.split_once(char::is_whitespace)?;
        is_of(file.trim_start().trim_start_matches('*'), name).then_some(digest)
    });
    let alone = || {
        let only = lines.next().filter(|line| !line.contains(char::is_whitespace))?;
        lines.next().is_none().then_some(only)
    };
    let digest = named.or_else(alone)?.trim().to_ascii_lowercase();
    is_sha256(&digest).then_some(digest)
}

fn is_of(file: &str, name: &str) -> bool {
    file.rsplit('/').next() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NAME: &str = "NVIDIA-Linux-x86_64-535.261.03.run";

    fn hex(digit: &str) -> String {
        digit.repeat(64)
    }

    #[rstest]
    #[case::sha256sum(format!("{}  {NAME}\n", hex("a")))]
    #[case::binary(format!("{} *./{NAME}\n", hex("A")))]
    #[case::among_others(format!("{}  other.run\n{}  {NAME}\n", hex("b"), hex("a")))]
    #[case::bsd(format!("SHA256 ({NAME}) = {}\n", hex("a")))]
    #[case::alone(format!("{}\n", hex("a")))]
    fn a_digest_is_found(#[case] text: String) {
        assert_eq!(digest_in(&text, NAME), Some(hex("a")));
    }

    #[rstest]
    #[case::of_another_file(format!("{}  other.run\n", hex("a")))]
    #[case::too_short(format!("{}  {NAME}\n", "a".repeat(40)))]
    #[case::several_without_names(format!("{}\n{}\n", hex("a"), hex("b")))]
    #[case::a_page("<html>not found</html>".to_owned())]
    #[case::nothing(String::new())]
    fn no_digest_is_taken(#[case] text: String) {
        assert_eq!(digest_in(&text, NAME), None);
    }
}
