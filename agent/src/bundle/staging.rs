//! Staging of a bundle during import: read once, from first byte to last, into files of the store's
//! temporary directory, each compared with the digest in its name. Nothing in it is trusted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use longshore_core::digest::{hex, is_sha256};
use longshore_core::disk::Disk;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::Task;
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::space;
use longshore_core::store::Store;
use longshore_modules::artifact::image::{Descriptor, MAX_JSON, hex_of};
use longshore_modules::layout::MAX_MODULE;

/// Maximum number of files in a bundle: one of a driver has about 150.
const MOST_FILES: usize = 50_000;
/// Maximum size of a bundle: one of a driver has about 0.5 GiB.
const MOST_BYTES: u64 = 64 << 30;
/// Maximum size of extended headers, which other tools write and which are ignored.
const MOST_BETWEEN: u64 = 1 << 20;

/// The files of a bundle, outside of the store's final places. Dropping it removes them.
pub(super) struct Staging {
    dir: ScratchDir,
    name: String,
    /// sha256 (hex) -> bytes.
    blobs: BTreeMap<String, u64>,
    small: BTreeMap<&'static str, Vec<u8>>,
}

/// Kind of a file in a bundle.
enum BundleEntryKind {
    /// oci-layout or index.json.
    Small(&'static str),
    Blob(String),
    /// One of the directories.
    Directory,
    /// An extended header of another tool for the next file.
    Extended,
}

impl Staging {
    /// Reads a complete bundle; `name` is its name in messages.
    ///
    /// # Errors
    /// Exit code 13 where it is not a bundle, truncated or damaged, 15 where the store is full or
    /// cannot be written.
    pub(super) fn read(
        from: &mut dyn Read,
        name: &str,
        store: &Store,
        task: &dyn Task,
    ) -> Result<Self, Failure> {
        let dir = claim(store, "import")?;
        let mut staging =
            Self { dir, name: name.to_owned(), blobs: BTreeMap::new(), small: BTreeMap::new() };
        let mut left = MOST_BYTES;
        let mut archive = tar::Archive::new(from);
        let failed = |e| unreadable(name, e);
        // Raw: the library would read long names and extended headers into memory completely.
        let entries = archive.entries().map_err(failed)?.raw(true);
        for (number, entry) in entries.enumerate() {
            let mut entry = entry.map_err(failed)?;
            if number >= MOST_FILES {
                return Err(staging.wrong(format!("it holds more than {MOST_FILES} files")));
            }
            left = left.checked_sub(entry.size()).ok_or_else(|| {
                staging.wrong(format!("it holds more than {} GiB", MOST_BYTES >> 30))
            })?;
            staging.take(&mut entry, store, task)?;
        }
        // Reads the padding too: a program that writes into a pipe would otherwise get SIGPIPE.
        let _ = io::copy(&mut archive.into_inner().take(MOST_BETWEEN), &mut io::sink());
        staging.sync(store.disk())?;
        Ok(staging)
    }

    fn take(
        &mut self,
        entry: &mut tar::Entry<'_, &mut dyn Read>,
        store: &Store,
        task: &dyn Task,
    ) -> Result<(), Failure> {
        let (size, place) = (entry.size(), self.place(entry)?);
        let limit = match place {
            BundleEntryKind::Small(_) => MAX_JSON,
            BundleEntryKind::Blob(_) => MAX_MODULE,
            BundleEntryKind::Directory => 0,
            BundleEntryKind::Extended => MOST_BETWEEN,
        };
        if size > limit {
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            return Err(self.wrong(format!("{path} says it has {size} bytes")));
        }
        match place {
            BundleEntryKind::Directory => Ok(()),
            BundleEntryKind::Extended => self.drain(entry, size),
            BundleEntryKind::Small(name) => {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).map_err(|e| unreadable(&self.name, e))?;
                self.whole(bytes.len() as u64, size)?;
                match self.small.insert(name, bytes) {
                    None => Ok(()),
                    Some(_) => Err(self.wrong(format!("it holds {name} twice"))),
                }
            }
            BundleEntryKind::Blob(sha256) => {
                space::require(store.root(), size)?;
                self.take_blob(entry, sha256, size, task)
            }
        }
    }

    /// Returns the kind of an entry. Names are few and fixed, so none can lead elsewhere.
    fn place(&self, entry: &tar::Entry<'_, &mut dyn Read>) -> Result<BundleEntryKind, Failure> {
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() || kind.is_pax_local_extensions() {
            return Ok(BundleEntryKind::Extended);
        }
        let bytes = entry.path_bytes();
        let path = String::from_utf8_lossy(&bytes);
        let plain = path.strip_prefix("./").unwrap_or(&path).trim_end_matches('/');
        let found = match plain {
            "" | "." | "blobs" | "blobs/sha256" if kind.is_dir() => {
                Some(BundleEntryKind::Directory)
            }
            "oci-layout" if kind.is_file() => Some(BundleEntryKind::Small("oci-layout")),
            "index.json" if kind.is_file() => Some(BundleEntryKind::Small("index.json")),
            _ if kind.is_file() => plain
                .strip_prefix("blobs/sha256/")
                .filter(|name| is_sha256(name))
                .map(|name| BundleEntryKind::Blob(name.to_owned())),
            _ => None,
        };
        found.ok_or_else(|| {
            self.wrong(format!("{path:?} ({kind:?}) is not part of a bundle"))
                .remedy("give a file that `longshore bundle --out` wrote")
        })
    }

    fn take_blob(
        &mut self,
        entry: &mut dyn Read,
        sha256: String,
        size: u64,
        task: &dyn Task,
    ) -> Result<(), Failure> {
        if self.blobs.contains_key(&sha256) {
            return Err(self.wrong(format!("it holds the blob {sha256} twice")));
        }
        let path = self.path(&sha256);
        let mut file = File::create_new(&path).map_err(|e| write_failure(&path, e))?;
        let (mut hash, mut found) = (Sha256::new(), 0);
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = entry.read(&mut buffer).map_err(|e| unreadable(&self.name, e))?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            file.write_all(&buffer[..n]).map_err(|e| write_failure(&path, e))?;
            found += n as u64;
            task.advance(n as u64);
        }
        self.whole(found, size)?;
        let digest = hex(&hash.finalize());
        if digest != sha256 {
            return Err(self.wrong(format!("the blob {sha256} has the digest {digest}")));
        }
        self.blobs.insert(sha256, size);
        Ok(())
    }

    fn drain(&self, entry: &mut dyn Read, size: u64) -> Result<(), Failure> {
        let found = io::copy(entry, &mut io::sink()).map_err(|e| unreadable(&self.name, e))?;
        self.whole(found, size)
    }

    fn whole(&self, found: u64, size: u64) -> Result<(), Failure> {
        if found == size { Ok(()) } else { Err(self.wrong("it is cut off".into())) }
    }

    /// Syncs all files with one call: none gets its name in the store before its content is on the
    /// disk.
    fn sync(&self, disk: Disk) -> Result<(), Failure> {
        let path = self.dir.path();
        let synced = File::open(path).and_then(|dir| disk.sync_whole(&dir));
        synced.map_err(|e| write_failure(path, e))
    }

    /// Returns the path of a blob.
    pub(super) fn path(&self, sha256: &str) -> PathBuf {
        self.dir.path().join(sha256)
    }

    /// Returns the bundle's name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Parses oci-layout or index.json.
    ///
    /// # Errors
    /// Exit code 13 where it is missing or invalid.
    pub(super) fn small<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        let bytes = self.small.get(name).ok_or_else(|| {
            self.wrong(format!("it is cut off, or no bundle: it has no {name}"))
                .remedy("give a whole file that `longshore bundle --out` wrote")
        })?;
        serde_json::from_slice(bytes)
            .map_err(|e| self.wrong(format!("its {name} is damaged")).with_source(e))
    }

    /// Checks that the bundle has the blob of a descriptor, with its size.
    ///
    /// # Errors
    /// Exit code 13 where it is not.
    pub(super) fn has(&self, digest: &str, size: u64) -> Result<&str, Failure> {
        let wrong = |what| Err(self.wrong(what));
        match hex_of(digest).and_then(|sha256| self.blobs.get_key_value(sha256)) {
            Some((name, found)) if *found == size => Ok(name),
            Some(_) => wrong(format!("{digest} is said to have {size} bytes, and has others")),
            None => wrong(format!("{digest:?} is not in it")),
        }
    }

    /// Returns a small blob's bytes.
    ///
    /// # Errors
    /// Exit code 13 where it is missing, or too large.
    pub(super) fn bytes(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Failure> {
        self.bounded(&descriptor.digest, descriptor.size, MAX_JSON)
    }

    /// Returns a blob's bytes, at most `limit`.
    ///
    /// # Errors
    /// As [`Staging::bytes`].
    pub(super) fn bounded(&self, digest: &str, size: u64, limit: u64) -> Result<Vec<u8>, Failure> {
        let path = self.path(self.has(digest, size)?);
        if size > limit {
            return Err(self.wrong(format!("{digest} has {size} bytes, which is too many")));
        }
        let reading = || format!("reading {}", path.display());
        std::fs::read(&path).or_fail(FailureKind::Verification, reading)
    }

    /// Returns a failure that names the bundle.
    pub(super) fn wrong(&self, what: String) -> Failure {
        wrong(&self.name, what)
    }
}

fn wrong(name: &str, what: String) -> Failure {
    Failure::new(FailureKind::Verification, format!("the bundle {name}: {what}"))
        .remedy("copy it again from where it was made, or make it again (`longshore bundle`)")
}

/// The failure of a read: the file system's fault, or not a tar file.
fn unreadable(name: &str, error: io::Error) -> Failure {
    wrong(name, "it is cut off, or no tar file".into()).with_source(error)
}
