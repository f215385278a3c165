//! The state file on disk: whoever reads it, whenever its writer died, finds one state or the next.
//!
//! There is one writer, who holds the lock, and so one temporary name: what a writer that died left
//! under it is replaced, and a crash loop leaves nothing behind.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::disk;
use crate::host::verbs::DirId;

/// The state.
const NAME: &str = "state.json";

/// The state that is being written.
const NEXT: &str = "state.json.next";

/// A state has some kilobytes; what is so much larger is none.
const MOST_BYTES: u64 = 16 << 20;

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
    dir: PathBuf,
    id: DirId,
    #[cfg(test)]
    at_point: Option<AtPoint>,
}

impl StateFile {
    /// Makes the directory where it is missing.
    ///
    /// # Errors
    /// What the kernel says; also where the directory's name is a link, which whoever made it can
    /// turn elsewhere between two looks.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(dir).is_ok_and(|found| found.is_symlink()) {
            return Err(io::Error::other("it is a symbolic link"));
        }
        fs::create_dir_all(dir)?;
        let id = identity(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            id,
            #[cfg(test)]
            at_point: None,
        })
    }

    /// Where the state lies.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// Replaces the state.
    ///
    /// # Errors
    /// What the kernel says; the state is then the last one, or already this one. Also where the
    /// directory is no longer the one that was opened.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if identity(&self.dir)? != self.id {
            return Err(io::Error::other("the directory was replaced since this agent began"));
        }
        let next = self.dir.join(NEXT);
        self.at(Point::Begun)?;
        match fs::remove_file(&next) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&next)?;
        // For everybody to read, whatever the umask.
        file.set_permissions(Permissions::from_mode(0o644))?;
        self.at(Point::Created)?;
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        self.at(Point::HalfWritten)?;
        file.write_all(rest)?;
        self.at(Point::Written)?;
        disk::sync(&file)?;
        self.at(Point::Synced)?;
        fs::rename(&next, self.path())?;
        self.at(Point::Renamed)?;
        disk::sync(&File::open(&self.dir)?)?;
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

/// Reads the state in `dir`, with its path; waits for nobody: what is no file, for example a pipe
/// or a link, is refused. None where there is none.
pub(super) fn read(dir: &Path) -> (PathBuf, io::Result<Option<Vec<u8>>>) {
    let path = dir.join(NAME);
    let read = || -> io::Result<Vec<u8>> {
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = File::options().read(true).custom_flags(flags.bits()).open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(io::Error::other("it is far too large"));
        }
        Ok(bytes)
    };
    let bytes = match read() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    };
    (path, bytes)
}

fn identity(dir: &Path) -> io::Result<DirId> {
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() {
        return Err(io::Error::new(ErrorKind::NotADirectory, "it is no directory"));
    }
    Ok((found.dev(), found.ino()))
}
