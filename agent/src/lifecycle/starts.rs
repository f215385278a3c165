//! Counter of agent starts since the host was booted: `STATE/starts.json`.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use longshore_core::bounded_read;
use longshore_core::disk::Disk;

const NAME: &str = "starts.json";
const MOST_BYTES: u64 = 4 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Starts {
    boot_id: Option<String>,
    starts: u64,
}

/// Counts one more start, and returns the count; None if it cannot be written.
pub(super) fn count(state_dir: &Path, boot_id: Option<&str>, disk: Disk) -> Option<u64> {
    let path = state_dir.join(NAME);
    let before = bounded_read::read(&path, MOST_BYTES).ok();
    let before = before.and_then(|bytes| serde_json::from_slice::<Starts>(&bytes).ok());
    let before = before.filter(|before| before.boot_id.as_deref() == boot_id);
    let starts = before.map_or(0, |before| before.starts).saturating_add(1);
    let written = serde_json::to_vec(&Starts { boot_id: boot_id.map(str::to_owned), starts })
        .map_err(io::Error::other)
        .and_then(|bytes| disk.write_atomically(&path, &bytes));
    match written {
        Ok(()) => Some(starts),
        Err(error) => {
            tracing::warn!("cannot count this start of an agent: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted_within_a_boot() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(count(dir.path(), Some("a"), Disk::default()), Some(1));
        assert_eq!(count(dir.path(), Some("a"), Disk::default()), Some(2));
        assert_eq!(count(dir.path(), Some("b"), Disk::default()), Some(1));
        std::fs::write(dir.path().join(NAME), "{").expect("write");
        assert_eq!(count(dir.path(), Some("b"), Disk::default()), Some(1));
        assert_eq!(count(&dir.path().join("nowhere"), None, Disk::default()), None);
    }
}
