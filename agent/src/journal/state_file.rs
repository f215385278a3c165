//! The state file on disk: whoever reads it, whenever its writer died, finds one state or the next.
//!
//! There is one writer, who holds the lock, and so one temporary name: what a writer that died left
//! under it is replaced, and a crash loop leaves nothing behind.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::private_dir::PrivateDir;
use crate::disk;
use crate::host::verbs::DirId;

/// The state.
pub(super) const NAME: &str = "state.json";

/// The state that is being written.
const NEXT: &str = "state.json.next";

/// A state has some kilobytes; what is so much larger is none.
pub(super) const MOST_BYTES: u64 = 16 << 20;

/// What lies between two system calls of a write: there a kill or a full disk can cut it off.
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

/// What a test does at a point; an error is what the file system answers there.
#[cfg(test)]
pub(crate) type AtPoint = Box<dyn FnMut(Point) -> io::Result<()> + Send>;

/// The state file of a directory.
pub(super) struct StateFile {
    dir: PrivateDir,
    id: DirId,
    #[cfg(test)]
    at_point: Option<AtPoint>,
}

impl StateFile {
    /// Makes the directory where it is missing.
    ///
    /// # Errors
    /// As [`PrivateDir::make`]; also where the directory's name is a link, which whoever made it can
    /// turn elsewhere between two looks.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let dir = PrivateDir::make(dir)?;
        let id = dir.id()?;
        Ok(Self {
            dir,
            id,
            #[cfg(test)]
            at_point: None,
        })
    }

    /// Where the state lies.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join(NAME)
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// What the kernel says; the state is then the last one, or already this one. Also where the
    /// directory is no longer the one that was opened.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Nobody would look for it in the one that was opened.
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
        disk::sync(&file)?;
        self.at(Point::Synced)?;
        self.dir.rename(NEXT, NAME)?;
        self.at(Point::Renamed)?;
        self.dir.sync()?;
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
