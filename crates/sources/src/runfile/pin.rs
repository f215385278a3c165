//! The sha256 of a .run file, given directly or by a checksum file.

use crate::runfile::{Pin, RunFileSource};
use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::ownership;
use longshore_core::redact::redacted;
use longshore_fetch::http::Fetcher;

/// Maximum size of a checksum file: one line, or one for each file of a directory.
const MOST_BYTES: u64 = 1 << 20;

/// Returns the sha256 (hex) that a .run file must have.
///
/// # Errors
/// Exit code 12 where the checksum file cannot be fetched, or only over http, 13 where it lacks the
/// digest, or is a file that others than root may write to.
pub(super) async fn sha256_of(
    source: &RunFileSource,
    name: &str,
    fetcher: &Fetcher,
) -> Result<String, Failure> {
    let url = match &source.pin {
        Pin::Sha256(sha256) => return Ok(sha256.clone()),
        Pin::Sidecar(url) => url,
    };
    check_owners(url)?;
    // The server alone makes the checksum trustworthy, and a redirection may lead to http.
    let fetcher = fetcher.over_https_only()?;
    let text = fetcher.bytes(url, MOST_BYTES).await?;
    digest_in(&String::from_utf8_lossy(&text), name).ok_or_else(|| lacks(url, name))
}

/// Checks that nobody but root may write to a checksum on this system: it decides which driver is compiled.
fn check_owners(url: &str) -> Result<(), Failure> {
    let path = reqwest::Url::parse(url).ok().filter(|url| url.scheme() == "file");
    let Some(path) = path.and_then(|url| url.to_file_path().ok()) else { return Ok(()) };
    ownership::file(&path).map_err(|error| {
        let what = format!("reading the checksum {}", path.display());
        ownership::failure(FailureKind::Verification, what, error, "give the sha256 itself")
    })
}

fn lacks(url: &str, name: &str) -> Failure {
    Failure::new(FailureKind::Verification, format!("{} has no sha256 of {name}", redacted(url)))
        .remedy("give the sha256 itself, or the URL of a text as sha256sum writes it")
}

/// Returns the digest of `name` from lines like `HEX NAME`, `HEX *NAME` or `SHA256 (NAME) = HEX`;
/// or the only digest, because mirrors rename files.
fn digest_in(text: &str, name: &str) -> Option<String> {
    let all: Vec<(String, &str)> = text.lines().filter_map(entry).collect();
    let named = all.iter().find(|(_, file)| is_of(file, name));
    let only = || all.first().filter(|_| all.len() == 1);
    named.or_else(only).map(|(digest, _)| digest.clone())
}

/// Parses the digest and file name of a line.
fn entry(line: &str) -> Option<(String, &str)> {
    let line = line.trim();
    let (digest, file) = match line.strip_prefix("SHA256 (").and_then(|r| r.split_once(") = ")) {
        Some((file, digest)) => (digest, file),
        None => line.split_once(char::is_whitespace).unwrap_or((line, "")),
    };
    let digest = digest.to_ascii_lowercase();
    is_sha256(&digest).then(|| (digest, file.trim_start().trim_start_matches('*')))
}

fn is_of(file: &str, name: &str) -> bool {
    file.rsplit('/').next() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::os::unix::fs::PermissionsExt;

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
    #[case::of_another_name(format!("{}  driver.run\n", hex("a")))]
    fn a_digest_is_found(#[case] text: String) {
        assert_eq!(digest_in(&text, NAME), Some(hex("a")));
    }

    #[rstest]
    #[case::roots(0o644, true)]
    #[case::written_by_all(0o666, false)]
    fn a_checksum_on_this_system_is_roots_alone(#[case] mode: u32, #[case] accepted: bool) {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("a.sha256sum");
        std::fs::write(&path, "").expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        let checked = check_owners(&format!("file://{}", path.display()));
        assert_eq!(checked.is_ok(), accepted);
        if let Err(failure) = checked {
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(failure.remedy_or_default().contains("chmod go-w"));
        }
        check_owners("https://example.com/a.sha256sum").expect("of a server");
    }

    #[test]
    fn a_password_is_not_shown() {
        let report = lacks("https://user:secret@archive.example.com/sum", NAME).report();
        assert!(report.contains("//***@") && !report.contains("secret"), "{report}");
    }

    #[rstest]
    #[case::of_others(format!("{}  a.run\n{}  b.run\n", hex("a"), hex("b")))]
    #[case::too_short(format!("{}  {NAME}\n", "a".repeat(40)))]
    #[case::several_without_names(format!("{}\n{}\n", hex("a"), hex("b")))]
    #[case::a_page("<html>not found</html>".to_owned())]
    #[case::nothing(String::new())]
    fn no_digest_is_taken(#[case] text: String) {
        assert_eq!(digest_in(&text, NAME), None);
    }
}
