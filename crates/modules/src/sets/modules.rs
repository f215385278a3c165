//! Modules, stored as blobs and hashed once per boot.
//!
//! A module is hashed at its first use after the host booted. A later start in the same boot finds
//! the file unchanged and takes the digest from `hashed.json` (docs/internals/decisions/verified-once.md).

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::artifact::ModuleSet;
use longshore_core::digest::{digest_of, hex};
use longshore_core::durable::read_failure;
use longshore_core::failure::Failure;
use longshore_core::store::verified_files::VerifiedFiles;
use longshore_core::store::{Store, corrupt};

/// Path below the store's root.
const HASHED: &str = "hashed.json";

/// Boot id of the kernel that all hosts' roots and containers here share: that kernel sets a file's
/// times.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// See [`SetStore::holds`](super::SetStore::holds).
pub(super) fn holds(store: &Store, set: &ModuleSet) -> bool {
    let mut hashed = Hashed::load(store);
    let whole = set.modules.iter().all(|module| {
        let checked = hashed.check(&module.sha256);
        checked.inspect_err(|failure| tracing::warn!(module = module.file, "{failure}")).is_ok()
    });
    hashed.keep();
    whole
}

/// See [`SetStore::read_module`](super::SetStore::read_module).
pub(super) fn read(store: &Store, sha256: &str) -> Result<Vec<u8>, Failure> {
    let mut hashed = Hashed::load(store);
    let read = hashed.read(sha256);
    hashed.keep();
    read
}

/// See [`SetStore::verified_module`](super::SetStore::verified_module).
pub(super) fn verified(store: &Store, sha256: &str) -> Result<Option<VerifiedModule>, Failure> {
    let path = store.blob_path(sha256);
    let open = || -> io::Result<(File, fs::Metadata)> {
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    let (file, metadata) = open().map_err(|e| read_failure(&path, e))?;
    let known = Hashed::load(store).is_known(sha256, &metadata);
    let (sha256, metadata) = (sha256.to_owned(), Box::new(metadata));
    Ok(known.then_some(VerifiedModule { file, path, sha256, metadata }))
}

/// A module's file, open, that was verified earlier in this boot and not written to since.
#[derive(Debug)]
pub struct VerifiedModule {
    file: File,
    path: PathBuf,
    sha256: String,
    /// Its metadata when it was opened.
    metadata: Box<fs::Metadata>,
}

impl VerifiedModule {
    /// The file, open for reading.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Checks that the file was not changed since it was opened. It is hashed again if its inode
    /// changed at all: the change may only be a removed name.
    ///
    /// # Errors
    /// 13 where it has other bytes now; 15 where it cannot be read.
    pub fn check_unwritten(&self) -> Result<(), Failure> {
        let found = self.rehashed().map_err(|e| read_failure(&self.path, e))?;
        match found {
            Some(found) if found != self.sha256 => Err(corrupt(&self.path, &found)),
            _ => Ok(()),
        }
    }

    /// The digest, if the inode changed.
    fn rehashed(&self) -> io::Result<Option<String>> {
        if VerifiedFiles::is_same(&self.metadata, &self.file.metadata()?) {
            return Ok(None);
        }
        let mut file = &self.file;
        file.rewind()?;
        digest_of(file).map(Some)
    }
}

/// The modules of a store that were hashed in this boot.
struct Hashed<'a> {
    store: &'a Store,
    /// None if the boot id cannot be read: then every module is hashed.
    known: Option<VerifiedFiles>,
    learnt: bool,
}

impl<'a> Hashed<'a> {
    fn load(store: &'a Store) -> Self {
        let record = store.dir(HASHED);
        let boot_id = fs::read_to_string(BOOT_ID).ok();
        let known = boot_id.map(|id| VerifiedFiles::read_of_boot(&record, id.trim()));
        Self { store, known, learnt: false }
    }

    /// Verifies a module.
    fn check(&mut self, sha256: &str) -> Result<(), Failure> {
        let path = self.store.blob_path(sha256);
        let metadata = fs::metadata(&path).map_err(|e| read_failure(&path, e))?;
        if self.is_known(sha256, &metadata) {
            return Ok(());
        }
        self.store.open_blob(sha256)?;
        self.learn(sha256, &metadata);
        Ok(())
    }

    /// Reads and verifies a module.
    fn read(&mut self, sha256: &str) -> Result<Vec<u8>, Failure> {
        let path = self.store.blob_path(sha256);
        let (metadata, bytes, unchanged) = read_whole(&path).map_err(|e| read_failure(&path, e))?;
        if unchanged && self.is_known(sha256, &metadata) {
            return Ok(bytes);
        }
        let found = hex(&Sha256::digest(&bytes));
        if found != sha256 {
            return Err(corrupt(&path, &found));
        }
        if unchanged {
            self.learn(sha256, &metadata);
        }
        Ok(bytes)
    }

    fn is_known(&self, sha256: &str, metadata: &fs::Metadata) -> bool {
        let known = self.known.as_ref();
        known.and_then(|known| known.digest(Path::new(sha256), metadata)) == Some(sha256)
    }

    fn learn(&mut self, sha256: &str, metadata: &fs::Metadata) {
        if let Some(known) = &mut self.known {
            self.learnt |= known.learn(Path::new(sha256), metadata, sha256);
        }
    }

    /// Writes new digests to the record.
    fn keep(self) {
        let Some(mut known) = self.known.filter(|_| self.learnt) else { return };
        known.retain(|blob| self.store.blob_path(&blob.to_string_lossy()).exists());
        if let Err(e) = known.write(&self.store.writable().join(HASHED), self.store.disk()) {
            tracing::debug!("modules will be hashed again: {e}");
        }
    }
}

/// Reads a file: its metadata before, its bytes, and true if the metadata did not change meanwhile.
fn read_whole(path: &Path) -> io::Result<(fs::Metadata, Vec<u8>, bool)> {
    let mut file = File::open(path)?;
    let before = file.metadata()?;
    let mut bytes = Vec::with_capacity(usize::try_from(before.len()).unwrap_or_default());
    file.read_to_end(&mut bytes)?;
    let unchanged =
        VerifiedFiles::is_same(&before, &file.metadata()?) && bytes.len() as u64 == before.len();
    Ok((before, bytes, unchanged))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::super::SetStore;
    use super::*;
    use crate::testing::set;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const BYTES: &[u8] = b"module";
    const OTHER: &[u8] = b"other!";

    /// A store with a set of one module that was hashed a while after it was written.
    fn hashed() -> (tempfile::TempDir, Store, ModuleSet) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let mut set = set();
        set.modules.truncate(1);
        set.modules[0].sha256 = store.put(BYTES).expect("put");
        // A file written a moment ago is not recorded.
        let record = store.dir(HASHED);
        while !record.exists() {
            thread::sleep(Duration::from_millis(100));
            assert!(store.holds(&set));
        }
        (dir, store, set)
    }

    /// Makes the record claim that the file as it is has the module's digest, so that a test can
    /// see when the record is used.
    fn forge(store: &Store, set: &ModuleSet, boot_id: &str) {
        let sha256 = &set.modules[0].sha256;
        let file = store.blob_path(sha256);
        fs::write(&file, OTHER).expect("written");
        let mut known = VerifiedFiles::read_of_boot(&store.dir("none"), boot_id);
        let metadata = fs::metadata(&file).expect("metadata");
        while !known.learn(Path::new(sha256), &metadata, sha256) {
            thread::sleep(Duration::from_millis(100));
        }
        known.write(&store.dir(HASHED), store.disk()).expect("written");
    }

    fn this_boot() -> String {
        fs::read_to_string(BOOT_ID).expect("boot id").trim().to_owned()
    }

    #[test]
    fn a_module_hashed_in_this_boot_is_not_hashed_again() {
        let (_dir, store, set) = hashed();
        forge(&store, &set, &this_boot());
        assert!(store.holds(&set));
        assert_eq!(store.read_module(&set.modules[0].sha256).expect("read"), OTHER);
        store.read_blob(&set.modules[0].sha256).expect_err("hashed");
    }

    #[test]
    fn a_module_hashed_in_another_boot_is_hashed_again() {
        let (_dir, store, set) = hashed();
        forge(&store, &set, "another");
        assert!(!store.holds(&set));
        let failure = store.read_module(&set.modules[0].sha256).expect_err("hashed");
        assert_eq!(failure.code(), ExitCode::Verification);
    }

    #[rstest]
    #[case::written_in_place(|file: &Path| fs::write(file, OTHER))]
    #[case::replaced(|file: &Path| {
        fs::write(file.with_extension("new"), OTHER)?;
        fs::rename(file.with_extension("new"), file)
    })]
    #[case::with_its_old_time(|file: &Path| {
        let before = fs::metadata(file)?.modified()?;
        fs::write(file, OTHER)?;
        File::options().write(true).open(file)?.set_modified(before)
    })]
    fn a_module_written_since_is_hashed_again(#[case] change: fn(&Path) -> io::Result<()>) {
        let (_dir, store, set) = hashed();
        change(&store.blob_path(&set.modules[0].sha256)).expect("changed");
        assert!(!store.holds(&set));
        store.read_module(&set.modules[0].sha256).expect_err("hashed");
    }

    #[test]
    fn a_record_that_is_damaged_or_names_what_is_gone_does_no_harm() {
        let (_dir, store, set) = hashed();
        fs::write(store.dir(HASHED), b"{").expect("written");
        assert!(store.holds(&set));
        assert_eq!(store.read_module(&set.modules[0].sha256).expect("read"), BYTES);
        fs::remove_file(store.blob_path(&set.modules[0].sha256)).expect("removed");
        assert!(!store.holds(&set));
        let failure = store.read_module(&set.modules[0].sha256).expect_err("absent");
        assert_eq!(failure.code(), ExitCode::Download);
    }
}
