//! Digests of files that were hashed, with their inode's state, to detect later writes.
//!
//! Some hundred megabytes are hashed before a driver is first used. If the next start finds inode,
//! size, times of content and of inode unchanged, it reuses the digests: every write to a file
//! updates its inode's time (`ctime`), which no program can set back. Bit rot on the disk is not
//! detected (docs/internals/decisions/verified-once.md).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::disk::Disk;

/// Format version of the file; another version counts as no file.
const FORMAT: u32 = 1;

/// Minimum age of an inode's last change when it is hashed. A file's times advance in steps of the
/// kernel's tick, at most 10 ms, so two writes within one step look the same. A file that changed
/// more recently is not recorded.
const SETTLED: Duration = Duration::from_secs(1);

/// Digests of files, by their path below a directory that the owner of the record chooses.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifiedFiles {
    format: u32,
    /// The boot it is valid in; absent if it is valid across boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
    files: BTreeMap<PathBuf, Hashed>,
}

/// State of a file when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hashed {
    identity: Identity,
    sha256: String,
}

/// Inode number, bytes, and (seconds, nanoseconds) of `mtime` and `ctime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    inode: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Identity {
    fn from_metadata(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// True if the inode has not changed for a while at `now`, by the same clock; a change time in
    /// the future means that the clock was set back.
    fn is_settled(&self, now: SystemTime) -> bool {
        let seconds = u64::try_from(self.ctime.0).unwrap_or(0);
        now.duration_since(UNIX_EPOCH + Duration::from_secs(seconds + 1))
            .is_ok_and(|ago| ago >= SETTLED)
    }
}

impl VerifiedFiles {
    /// Reads `record`; empty if that is absent or unreadable.
    pub fn read(record: &Path) -> Self {
        fs::read(record)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok())
            .filter(|known| known.format == FORMAT)
            .unwrap_or_else(Self::none)
    }

    /// Reads `record`; empty if it was not written in this boot.
    pub fn read_of_boot(record: &Path, boot_id: &str) -> Self {
        let boot_id = Some(boot_id.to_owned());
        let read = Self::read(record);
        if read.boot_id == boot_id { read } else { Self { boot_id, ..Self::none() } }
    }

    /// Returns the record of no file.
    pub fn none() -> Self {
        Self { format: FORMAT, boot_id: None, files: BTreeMap::new() }
    }

    /// The digest of a file that has not changed since it was hashed.
    pub fn digest(&self, path: &Path, metadata: &fs::Metadata) -> Option<&str> {
        let hashed = self.files.get(path)?;
        (hashed.identity == Identity::from_metadata(metadata)).then_some(hashed.sha256.as_str())
    }

    /// True if the file was not written to between the two.
    pub fn is_same(before: &fs::Metadata, after: &fs::Metadata) -> bool {
        Identity::from_metadata(before) == Identity::from_metadata(after)
    }

    /// Records the digest of a file that had `metadata` before it was read and hashed. Returns true
    /// if it is recorded: a file written a moment ago is not.
    pub fn learn(&mut self, path: &Path, metadata: &fs::Metadata, sha256: &str) -> bool {
        let identity = Identity::from_metadata(metadata);
        let settled = identity.is_settled(SystemTime::now());
        if settled {
            let hashed = Hashed { identity, sha256: sha256.to_owned() };
            self.files.insert(path.to_owned(), hashed);
        }
        settled
    }

    /// Removes the files for which `is_there` is false.
    pub fn retain(&mut self, mut is_there: impl FnMut(&Path) -> bool) {
        self.files.retain(|path, _| is_there(path));
    }

    /// Writes the record atomically to `record`, which is on `disk`.
    pub fn write(&self, record: &Path, disk: Disk) -> io::Result<()> {
        disk.write_atomically(record, &serde_json::to_vec(self)?)
    }
}
