//! What a tree's files were hashed to, and how to tell that they were not written since.
//!
//! Some hundred megabytes are hashed before a tree is first shown. The next start finds inode,
//! size, times of content and of inode as they were and takes the digests from then: whatever
//! writes to a file moves its inode's time (`ctime`), which no program can set back. What it does
//! not see is a disk that rots; a kernel module is always hashed before it is loaded.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The version of the file's form; one of another is as none.
const FORMAT: u32 = 1;
const NAME: &str = "hashed.json";

/// A file's times come in steps of the kernel's tick, at most 10 ms, so two writes within one step
/// look the same. A file whose inode changed this short a while before it was hashed is not known.
const SETTLED: Duration = Duration::from_secs(1);

/// Digests of a tree's files, by their path below its root.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    format: u32,
    files: BTreeMap<PathBuf, Hashed>,
}

/// A file when it was hashed.
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
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether the inode has not changed for a while at `now`, by the same clock; a time that lies
    /// ahead is that of a clock which was set.
    fn is_settled(&self, now: SystemTime) -> bool {
        let seconds = u64::try_from(self.ctime.0).unwrap_or(0);
        now.duration_since(UNIX_EPOCH + Duration::from_secs(seconds + 1))
            .is_ok_and(|ago| ago >= SETTLED)
    }
}

impl Known {
    /// What was written beside `root`; nothing where that is absent or unreadable.
    pub(super) fn read(root: &Path) -> Self {
        fs::read(root.with_file_name(NAME))
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok())
            .filter(|known| known.format == FORMAT)
            .unwrap_or_else(Self::none)
    }

    pub(super) fn none() -> Self {
        Self { format: FORMAT, files: BTreeMap::new() }
    }

    /// The digest of a file that is as it was when it was hashed.
    pub(super) fn digest(&self, path: &Path, metadata: &fs::Metadata) -> Option<&str> {
        let hashed = self.files.get(path)?;
        (hashed.identity == Identity::of(metadata)).then_some(hashed.sha256.as_str())
    }

    /// Remembers a file that was found to be `metadata` before it was opened, and was hashed after.
    pub(super) fn learn(&mut self, path: &Path, metadata: &fs::Metadata, sha256: &str) {
        let identity = Identity::of(metadata);
        if identity.is_settled(SystemTime::now()) {
            let hashed = Hashed { identity, sha256: sha256.to_owned() };
            self.files.insert(path.to_owned(), hashed);
        }
    }

    /// Writes it beside `root`, whole or not at all.
    pub(super) fn write(&self, root: &Path) -> io::Result<()> {
        let directory = root.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.as_file().sync_all()?;
        file.persist(directory.join(NAME))?;
        Ok(())
    }
}
