//! State file on disk: a reader finds one complete state or the next, whenever the writer died.
//!
//! The only writer holds the lock, so one temporary name is enough: a dead writer's file of that
//! name is replaced, and a crash loop leaves nothing behind.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::private_dir::PrivateDir;
use longshore_core::disk::Disk;
use longshore_host::values::DirId;

/// Name of the state.
pub(super) const NAME: &str = "state.json";

/// Name of a record without the right seal that was in the place of the state. It is kept for a person
/// to decide on.
pub(super) const SET_ASIDE: &str = "state.json.unsealed";

/// Name of the state while it is being written.
const NEXT: &str = "state.json.next";

/// Size limit. A state has some kilobytes; a file larger than this is none.
pub(super) const MOST_BYTES: u64 = 16 << 20;

/// Point between two system calls of a write, where a kill or a full disk can cut it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Nothing is done yet.
    Begun,
    /// The temporary file is there, and empty.
    Created,
    /// Half of the bytes are in it.
    HalfWritten,
    /// All of them.
    Written,
    /// They are on the disk.
    Synced,
    /// They have the state's name.
    Renamed,
    /// The name is on the disk.
    NameSynced,
}

/// Action of a test at a point; its error stands for the file system's.
#[cfg(test)]
pub(crate) type AtPoint = Box<dyn FnMut(Point) -> io::Result<()> + Send>;

/// The state file of a directory.
pub(super) struct StateFile {
    dir: PrivateDir,
    id: DirId,
    /// Disk under the directory, with the deadline of each write.
    pub(super) disk: Disk,
    #[cfg(test)]
    at_point: Option<AtPoint>,
}

impl StateFile {
    /// Opens the state file, on `disk`; makes the directory if it is missing.
    ///
    /// # Errors
    /// Like [`PrivateDir::make`]; also if the directory's name is a link, which its owner can turn
    /// elsewhere between two checks.
    pub(super) fn open(dir: &Path, disk: Disk) -> io::Result<Self> {
        let dir = PrivateDir::make(dir)?;
        let id = dir.id()?;
        Ok(Self {
            dir,
            id,
            disk,
            #[cfg(test)]
            at_point: None,
        })
    }

    /// Returns the path of the state.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join(NAME)
    }

    /// Renames the state, so that the next write does not replace it; a record that was set aside
    /// earlier is replaced.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(super) fn set_aside(&self) -> io::Result<()> {
        self.dir.rename(NAME, SET_ASIDE)?;
        self.dir.sync(self.disk)
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// The kernel's error; the state is then the last one, or already this one. Also if the
    /// directory is no longer the one that was opened.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // A state in the directory that was opened would not be found.
        if PrivateDir::open(self.dir.path())?.id()? != self.id {
            return Err(io::Error::other("the directory was replaced since this agent began"));
        }
        self.at(Point::Begun)?;
        self.dir.remove(NEXT)?;
        let mut file = self.dir.create(NEXT)?;
        self.at(Point::Created)?;
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        self.at(Point::HalfWritten)?;
        file.write_all(rest)?;
        self.at(Point::Written)?;
        self.disk.sync(&file)?;
        self.at(Point::Synced)?;
        self.dir.rename(NEXT, NAME)?;
        self.at(Point::Renamed)?;
        self.dir.sync(self.disk)?;
        self.at(Point::NameSynced)
    }

    #[cfg(test)]
    pub(super) fn at_point(&mut self, act: AtPoint) {
        self.at_point = Some(act);
    }

    #[cfg(test)]
    fn at(&mut self, point: Point) -> io::Result<()> {
        self.at_point.as_mut().map_or(Ok(()), |act| act(point))
    }

    #[cfg(not(test))]
    fn at(&self, _: Point) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for StateFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path().fmt(f)
    }
}
