//! Certificates that were mounted into this container, as the GPU operator does with its certConfig.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::client_error::root_cause;
use longshore_core::bounded_read;

/// Directory of local certificates (update-ca-certificates(8)).
pub(super) const DIR: &str = "/usr/local/share/ca-certificates";
/// Upper limits: of files, and of the size of one.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 1 << 20;

/// Returns the certificates of all `*.crt` files in `dir`; one that cannot be read is left out, with a
/// warning.
pub(super) fn mounted(dir: &Path) -> Vec<String> {
    let read = |file: PathBuf| {
        bounded_read::read(&file, MOST_BYTES).and_then(checked).inspect_err(|e| {
            tracing::warn!("the certificates in {} are not used: {e}", file.display());
        })
    };
    files(dir).into_iter().filter_map(|file| read(file).ok()).collect()
}

/// Returns the text of certificates in PEM.
///
/// # Errors
/// The reason why it has none that can be used.
pub(super) fn checked(pem: Vec<u8>) -> io::Result<String> {
    let found = reqwest::Certificate::from_pem_bundle(&pem)
        .map_err(|e| io::Error::other(root_cause(&e)))?;
    if found.is_empty() {
        return Err(io::Error::other("no certificate in it"));
    }
    // Only comments between the certificates can be anything but ASCII.
    Ok(String::from_utf8_lossy(&pem).into_owned())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "crt");
    let mut files: Vec<PathBuf> = entries.filter(is_one).take(MOST_FILES).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_readable_file_counts_and_a_bad_one_does_not_spoil_the_rest() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(mounted(&dir.path().join("absent")).is_empty());
        let pem = include_bytes!("../../testdata/certificate.pem");
        fs::write(dir.path().join("a.crt"), pem).expect("written");
        fs::write(dir.path().join("bundle.crt"), [&pem[..], &pem[..]].concat()).expect("written");
        fs::write(dir.path().join("bad.crt"), "nonsense").expect("written");
        fs::write(dir.path().join("large.crt"), vec![b'x'; (1 << 20) + 1]).expect("written");
        fs::write(dir.path().join("key.pem"), pem).expect("written");
        let certificates = mounted(dir.path());
        let count = |pem: &String| pem.matches("BEGIN CERTIFICATE").count();
        assert_eq!(certificates.iter().map(count).sum::<usize>(), 3);
    }
}
