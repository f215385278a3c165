//! Saved originals of edited configurations, in the directory `runtimes` of the store's usual place on the
//! host: the same for every container and setting, so that `revert` finds them.
//!
//! A file beside an original lists those whose runtime has to be restarted for an edit or its undoing.
//!
//! They outlive a boot, as the edit does, which the journal's directory does not. Beside the edited file
//! they could be read as configuration: `imports = ["conf.d/*"]` takes any name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::journal::private_dir::PrivateDir;
use longshore_core::digest::digest_of;
use longshore_core::disk::Disk;
use longshore_core::root::Root;
use longshore_runtimes::{Edit, Runtime};

/// Name of the directory, below the store.
pub(super) const ORIGINALS: &str = "runtimes";
/// Version of the file's format.
const FORMAT: u32 = 1;
/// Size limit of a file: a configuration, escaped.
const MOST: u64 = 8 << 20;

/// An original, with the digest of the file that took its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    format: u32,
    /// Path of the file on the host.
    pub(super) path: PathBuf,
    /// Its text before; None where it was absent.
    pub(super) before: Option<String>,
    /// SHA-256 of that text.
    before_sha256: Option<String>,
    /// SHA-256 of the text that replaced it.
    after_sha256: String,
    /// True if its directory was made for it.
    pub(super) made_dir: bool,
}

/// State of a file, compared with its saved original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EditedFileState {
    /// As it was before the edit.
    Before,
    /// As the edit left it.
    After,
    /// Edited since.
    Changed,
}

impl Saved {
    pub(super) fn from_edit(edit: &Edit, made_dir: bool) -> Self {
        Self {
            format: FORMAT,
            path: edit.path.clone(),
            before: edit.before.clone(),
            before_sha256: edit.before.as_deref().map(|text| sha256(text.as_bytes())),
            after_sha256: sha256(edit.after.as_bytes()),
            made_dir,
        }
    }

    pub(super) fn compare(&self, present: Option<&[u8]>) -> EditedFileState {
        let digest = present.map(sha256);
        if digest == self.before_sha256 {
            EditedFileState::Before
        } else if digest.as_ref() == Some(&self.after_sha256) {
            EditedFileState::After
        } else {
            EditedFileState::Changed
        }
    }

    fn check(self) -> io::Result<Self> {
        let digest = self.before.as_deref().map(|text| sha256(text.as_bytes()));
        if self.format == FORMAT && digest == self.before_sha256 && self.path.is_absolute() {
            return Ok(self);
        }
        Err(io::Error::new(
            ErrorKind::InvalidData,
            "its original has not the digest that it was saved with",
        ))
    }
}

fn sha256(bytes: &[u8]) -> String {
    // A slice is always readable.
    digest_of(bytes).unwrap_or_default()
}

/// The directory of the originals.
pub(super) struct Originals {
    dir: PrivateDir,
    disk: Disk,
}

impl Originals {
    /// Opens the directory; None where it is absent.
    ///
    /// # Errors
    /// The kernel's error, or that others can have written there.
    pub(super) fn open(root: &Root, store: &Path, disk: Disk) -> io::Result<Option<Self>> {
        match root.exists(store.join(ORIGINALS))? {
            true => Self::make(root, store, disk).map(Some),
            false => Ok(None),
        }
    }

    /// Opens the directory, and makes it where it is absent.
    ///
    /// # Errors
    /// As [`Originals::open`].
    pub(super) fn make(root: &Root, store: &Path, disk: Disk) -> io::Result<Self> {
        let place = root.place(store)?;
        let store =
            PathBuf::from(format!("/proc/self/fd/{}", place.dir.as_raw_fd())).join(&place.name);
        match DirBuilder::new().mode(0o700).create(&store) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        Ok(Self { dir: PrivateDir::make(&store.join(ORIGINALS))?, disk })
    }

    /// Reads the original of a runtime's configuration.
    ///
    /// # Errors
    /// The kernel's error, or that it is not one that this program wrote.
    pub(super) fn read(&self, runtime: Runtime) -> io::Result<Option<Saved>> {
        let Some(bytes) = self.dir.read(&name(runtime), MOST)? else { return Ok(None) };
        let saved: Saved = serde_json::from_slice(&bytes)?;
        saved.check().map(Some)
    }

    /// Writes it durably.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn write(&self, runtime: Runtime, saved: &Saved) -> io::Result<()> {
        self.replace(&name(runtime), &serde_json::to_vec(saved)?)
    }

    /// Writes a file for a program to read; it need not outlive this process.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn put(&self, name: &str, text: &str) -> io::Result<()> {
        self.dir.remove(name)?;
        self.dir.create(name)?.write_all(text.as_bytes())
    }

    /// Removes such a file.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn take_away(&self, name: &str) -> io::Result<()> {
        self.dir.remove(name)
    }

    /// Removes it durably.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn remove(&self, runtime: Runtime) -> io::Result<()> {
        self.dir.remove(&name(runtime))?;
        self.dir.sync(self.disk)
    }

    /// Returns the files that were changed since their runtime was restarted.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn pending(&self, runtime: Runtime) -> io::Result<BTreeSet<PathBuf>> {
        let bytes = self.dir.read(&mark(runtime), MOST)?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect())
    }

    /// Writes these durably.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn mark(&self, runtime: Runtime, files: &BTreeSet<PathBuf>) -> io::Result<()> {
        if self.pending(runtime)? == *files {
            return Ok(());
        }
        if files.is_empty() {
            self.dir.remove(&mark(runtime))?;
            return self.dir.sync(self.disk);
        }
        let lines = files.iter().flat_map(|file| [file.as_os_str().as_bytes(), b"\n"]);
        self.replace(&mark(runtime), &lines.collect::<Vec<_>>().concat())
    }

    /// Replaces a file durably.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let next = format!("{name}.next");
        self.dir.remove(&next)?;
        let mut file = self.dir.create(&next)?;
        file.write_all(bytes)?;
        self.disk.sync(&file)?;
        self.dir.rename(&next, name)?;
        self.dir.sync(self.disk)
    }
}

fn mark(runtime: Runtime) -> String {
    format!("{runtime}.restart")
}

fn name(runtime: Runtime) -> String {
    format!("{runtime}.json")
}
