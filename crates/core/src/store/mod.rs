//! The content-addressed store on the host's disk.
//!
//! Layout below the root:
//!
//! ```text
//! blobs/sha256/HEX       packages, modules, manifests, by digest
//! sets/NAME.json         one ModuleSet each; its modules are blobs
//! sets/NAME.evidence     the manifest, signatures and attestations a set came with
//! sets/NAME.build        record of the compile that made a set
//! userspace/NAME/        assembled driver roots: manifest.json and root/
//! drivers/HEX/           unpacked .run files: driver.json and tree/ (see runfile of longshore-sources)
//! roots/DIGEST/          hermetic build roots
//! logs/                  compiler logs
//! patches/DIGEST.json    patches that a driver needs for a kernel, found by an earlier build
//! failures/NAME.json     failed compiles, which are not retried for a while
//! core/DIGEST.json       core objects of a source tree, which are blobs (see build::core_objects)
//! conftests/ROOT.json    results of NVIDIA's conftests in a build root (see build::reuse)
//! objects/               ccache's directories, at most 500 MB each (see build::reuse)
//! tmp/                   unfinished files, locked by their makers; a build removes the rest
//! history.json           the current and the previous driver of this host (see upkeep::history)
//! fits.json              the sets that are known to fit their kernel (see sets::fits)
//! hashed.json            the modules that were hashed since the host booted (see sets::modules)
//! archives.json          dates of the archives' metadata (see rollback of longshore-debian)
//! indexes.json           highest versions of registries' indexes (see sets::index_versions)
//! indexes.lock           lock of the processes that change it
//! support-table.json     support table of an artifact (see support_table of longshore)
//! lock                   lock of the processes that use the store (see usage)
//! ```
//!
//! Files are written by: temporary name in the same file system, verify, fsync, rename.

mod private;
pub mod usage;
pub mod verified_files;

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::fcntl::Flock;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::digest::{digest_of, hex};
use crate::disk::Disk;
use crate::durable::{read_failure, write_failure};
use crate::failure::{Failure, FailureKind};
use crate::locks;

/// Prefix of the name of an unfinished blob, in `tmp`.
pub(crate) const UNFINISHED: &str = "blob-";

/// Directory of the blobs.
const BLOBS: &str = "blobs/sha256";

/// A content-addressed store.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    disk: Disk,
    /// Directory of everything that is written, in the place of a root that is only read.
    scratch: Option<Arc<Path>>,
}

impl Store {
    /// Opens the store at `root`, on `disk`, closes it to other users, and makes its directories.
    ///
    /// # Errors
    /// Exit code 15 where the directories cannot be made, or the store cannot be closed to other
    /// users.
    pub fn open(root: &Path, disk: Disk) -> Result<Self, Failure> {
        private::make(root)?;
        Self::with_directories(root, disk)
    }

    /// Opens the store at `root` for a command that only looks: nothing is made or changed there, and what is written
    /// goes to `scratch`. A store that does not exist, or that this user may not read, is empty.
    ///
    /// # Errors
    /// Exit code 15 where `root` is another user's than root's or this one's, or holds files that others could have
    /// written, and where `scratch` cannot be written.
    pub fn open_read_only(root: &Path, scratch: &Path, disk: Disk) -> Result<Self, Failure> {
        private::check(root)?;
        let made = Self::with_directories(scratch, disk)?;
        Ok(Self { root: root.to_path_buf(), scratch: Some(made.root.into()), disk })
    }

    fn with_directories(root: &Path, disk: Disk) -> Result<Self, Failure> {
        const DIRS: [&str; 9] =
            [BLOBS, "sets", "userspace", "drivers", "roots", "logs", "patches", "failures", "tmp"];
        for dir in DIRS {
            let path = root.join(dir);
            fs::create_dir_all(&path).map_err(|e| write_failure(&path, e))?;
        }
        Ok(Self::at(root, disk))
    }

    /// The store at `root` as it is, even if absent: makes nothing.
    pub fn at(root: &Path, disk: Disk) -> Self {
        Self { root: root.to_path_buf(), disk, scratch: None }
    }

    /// The same store, its disk with another deadline.
    #[must_use]
    pub fn on(self, disk: Disk) -> Self {
        Self { disk, ..self }
    }

    /// The directory it was opened at.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The disk that it is on, with the deadline of every write to it.
    pub fn disk(&self) -> Disk {
        self.disk
    }

    /// The directory that files are written below: the root, but for a store that is only read.
    pub fn writable(&self) -> &Path {
        self.scratch.as_deref().unwrap_or(&self.root)
    }

    /// A directory of the store, for example `roots`. `tmp` is for writing.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.find(Path::new(name), |path| name != "tmp" && path.exists())
    }

    /// Path of a file or directory of the store, for example `drivers/DIGEST`.
    pub fn entry(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.find(relative.as_ref(), Path::exists)
    }

    /// Path of the blob with this digest, whether or not it exists. `sha256` is lower-case hex.
    pub fn blob_path(&self, sha256: &str) -> PathBuf {
        self.entry(Path::new(BLOBS).join(sha256))
    }

    /// Returns the path in the root, or in the directory for writing where the root has none.
    fn find(&self, relative: &Path, is_there: impl Fn(&Path) -> bool) -> PathBuf {
        let path = self.root.join(relative);
        match &self.scratch {
            Some(scratch) if !is_there(&path) => scratch.join(relative),
            _ => path,
        }
    }

    /// True if a blob exists; its content is verified only when it is read.
    pub fn has_blob(&self, sha256: &str) -> bool {
        self.blob_path(sha256).is_file()
    }

    /// Starts a blob that is hashed while it is written.
    ///
    /// # Errors
    /// Exit code 15 where the temporary file cannot be made.
    pub fn blob_writer(&self) -> Result<BlobWriter, Failure> {
        let tmp = self.dir("tmp");
        let make = || tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&tmp);
        let (file, held) = locks::made_locked(make).map_err(|e| write_failure(&tmp, e))?;
        Ok(BlobWriter { file, _held: held, hash: Sha256::new(), size: 0, store: self.clone() })
    }

    /// Stores `bytes` and returns their digest (hex).
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    pub fn put(&self, bytes: &[u8]) -> Result<String, Failure> {
        let mut writer = self.blob_writer()?;
        writer.write_all(bytes).map_err(|e| write_failure(self.writable(), e))?;
        writer.commit(None)
    }

    /// Reads a blob and verifies it against its digest.
    ///
    /// # Errors
    /// Exit code 13 where the content does not match the digest, 12 where it is absent, 15 where it
    /// cannot be read.
    pub fn read_blob(&self, sha256: &str) -> Result<Vec<u8>, Failure> {
        let path = self.blob_path(sha256);
        let bytes = fs::read(&path).map_err(|e| read_failure(&path, e))?;
        let found = hex(&Sha256::digest(&bytes));
        if found != sha256 {
            return Err(corrupt(&path, &found));
        }
        Ok(bytes)
    }

    /// Renames the verified file at `path`, which is on the store's file system and synced, to the
    /// blob with this digest.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    pub fn adopt_blob(&self, path: &Path, sha256: &str) -> Result<(), Failure> {
        let blob = self.writable().join(BLOBS).join(sha256);
        let name = || -> io::Result<()> {
            fs::rename(path, &blob)?;
            self.disk.sync_parent(&blob)
        };
        name().map_err(|e| write_failure(&blob, e))
    }

    /// Verifies a blob by reading it once, and returns the same file at its start.
    ///
    /// # Errors
    /// As [`Store::read_blob`].
    pub fn open_blob(&self, sha256: &str) -> Result<File, Failure> {
        let path = self.blob_path(sha256);
        let unread = |e| read_failure(&path, e);
        let mut file = File::open(&path).map_err(unread)?;
        let found = digest_of(&file).map_err(unread)?;
        if found != sha256 {
            return Err(corrupt(&path, &found));
        }
        // The verified file itself: another file may have its name by now.
        file.rewind().map_err(unread)?;
        Ok(file)
    }

    /// Marks the file or directory at `relative` as used now: the least recently used is removed
    /// first.
    pub fn mark_used(&self, relative: &Path) {
        if self.scratch.is_some() {
            return;
        }
        let path = self.root.join(relative);
        let marked = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = marked {
            tracing::debug!(path = %path.display(), "not marked as used: {error}");
        }
    }

    /// Writes `bytes` to `relative` below the root by temporary name, fsync and rename.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    pub fn write_file(&self, relative: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.writable().join(relative);
        self.disk.write_atomically(&path, bytes).map_err(|e| write_failure(&path, e))
    }
}

/// A blob that is being written to the store.
#[derive(Debug)]
pub struct BlobWriter {
    file: NamedTempFile,
    /// Lock that marks the temporary file as owned: the kernel releases it when its owner dies.
    _held: Flock<File>,
    hash: Sha256,
    size: u64,
    store: Store,
}

impl BlobWriter {
    /// Bytes written so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Verifies the digest if one is `expected`, syncs and renames; returns the digest (hex).
    ///
    /// # Errors
    /// Exit code 13 where the digest differs; 15 where the store cannot be written.
    pub fn commit(self, expected: Option<&str>) -> Result<String, Failure> {
        let found = hex(&self.hash.finalize());
        if let Some(expected) = expected
            && expected != found
        {
            return Err(Failure::new(
                FailureKind::Verification,
                format!("expected sha256 {expected}, got {found} ({} bytes)", self.size),
            ));
        }
        let path = self.store.writable().join(BLOBS).join(&found);
        self.store.disk.land(self.file, &path).map_err(|e| write_failure(&path, e))?;
        Ok(found)
    }
}

impl Write for BlobWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.write(buf)?;
        self.hash.update(&buf[..n]);
        self.size += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the failure of a blob whose digest is `found`.
pub fn corrupt(path: &Path, found: &str) -> Failure {
    Failure::new(
        FailureKind::Verification,
        format!("{} does not match the digest in its name (its sha256 is {found})", path.display()),
    )
    .remedy("the file was damaged or changed: remove it and run again")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::failure::ExitCode;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        (dir, store)
    }

    #[test]
    fn what_was_put_is_read_back() {
        let (_dir, store) = store();
        let digest = store.put(b"bytes").expect("put");
        assert!(store.has_blob(&digest));
        assert_eq!(store.read_blob(&digest).expect("read"), b"bytes");
    }

    #[test]
    fn a_stranger_who_locks_the_directory_of_unfinished_files_keeps_no_blob_out() {
        let dir = crate::testing::for_all();
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        crate::testing::loosen(dir.path(), &store.dir("tmp"));
        let _holder = crate::testing::Holder::start(&store.dir("tmp"));
        let digest = store.put(b"bytes").expect("put");
        assert!(store.has_blob(&digest));
    }

    /// A store that is only read: what is in it is found, and what is written goes elsewhere.
    #[test]
    fn a_store_that_is_only_read_keeps_as_it_is() {
        let (dir, store) = store();
        let old = store.put(b"old").expect("put");
        fs::write(store.dir("sets").join("a.json"), "{}").expect("written");
        let listing = || {
            let all = ["", "blobs/sha256", "tmp", "sets"].map(|name| dir.path().join(name));
            all.map(|path| fs::read_dir(path).expect("listed").count())
        };
        let before = listing();
        let scratch = tempfile::tempdir().expect("temporary directory");
        let read =
            Store::open_read_only(dir.path(), scratch.path(), Disk::default()).expect("opens");
        let new = read.put(b"new").expect("put");
        read.write_file(Path::new("archives.json"), b"{}").expect("written");
        assert_eq!(read.read_blob(&old).expect("the store's"), b"old");
        assert_eq!(read.read_blob(&new).expect("the new one"), b"new");
        assert_eq!(read.root(), dir.path());
        assert_eq!(read.entry("sets/a.json"), dir.path().join("sets/a.json"));
        assert_eq!(read.entry("drivers/a"), read.writable().join("drivers/a"));
        assert!(
            read.dir("sets").starts_with(dir.path()) && read.dir("sets").join("a.json").exists()
        );
        assert!(!store.has_blob(&new));
        assert_eq!(listing(), before);
        // One that is not there is empty, and stays away.
        let none = dir.path().join("none");
        let read = Store::open_read_only(&none, scratch.path(), Disk::default()).expect("opens");
        assert_eq!(fs::read_dir(read.dir("sets")).expect("listed").count(), 0);
        assert!(!none.exists());
    }

    #[test]
    fn a_changed_blob_is_refused() {
        let (_dir, store) = store();
        let digest = store.put(b"bytes").expect("put");
        fs::write(store.blob_path(&digest), b"bytez").expect("write");
        for failure in [
            store.read_blob(&digest).expect_err("read_blob refuses"),
            store.open_blob(&digest).expect_err("open_blob refuses"),
        ] {
            assert_eq!(failure.code(), ExitCode::Verification);
        }
    }

    #[test]
    fn a_blob_is_read_from_its_start_after_it_was_verified() {
        let (_dir, store) = store();
        let digest = store.put(b"bytes").expect("put");
        let mut text = String::new();
        store.open_blob(&digest).expect("open").read_to_string(&mut text).expect("read");
        assert_eq!(text, "bytes");
    }

    #[test]
    fn a_wrong_digest_leaves_nothing_behind() {
        let (_dir, store) = store();
        let mut writer = store.blob_writer().expect("writer");
        writer.write_all(b"bytes").expect("write");
        let failure = writer.commit(Some(&"0".repeat(64))).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        for dir in ["blobs/sha256", "tmp"] {
            assert_eq!(fs::read_dir(store.dir(dir)).expect("list").count(), 0);
        }
    }
}
