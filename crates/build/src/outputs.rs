//! Reads the output of sandboxed programs without trusting any of it.
//!
//! Such a program may have replaced a file by a link, a pipe, a device or a terabyte of zeros. So
//! no link is followed, only regular files are opened, and each is read up to a given size.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use longshore_core::ownership::Owner;
use longshore_core::root::reopen;

/// A directory that a sandboxed program could write to.
#[derive(Debug)]
pub(crate) struct OutputDir {
    dir: OwnedFd,
}

/// An entry of an output directory.
#[derive(Debug)]
pub(crate) struct OutputEntry {
    /// File name.
    pub(crate) name: OsString,
    stat: FileStat,
}

/// Kind of an entry.
#[derive(Debug)]
pub(crate) enum OutputEntryKind {
    Directory,
    Link(PathBuf),
    File,
}

impl OutputEntry {
    /// True for a directory, not for a link to one.
    pub(crate) fn is_dir(&self) -> bool {
        kind(&self.stat) == SFlag::S_IFDIR
    }

    /// True for a regular file, not for a link to one.
    pub(crate) fn is_file(&self) -> bool {
        kind(&self.stat) == SFlag::S_IFREG
    }

    /// Owner and mode.
    pub(crate) fn owner(&self) -> Owner {
        Owner::from(&self.stat)
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

impl OutputDir {
    /// Opens `path`, whose last part must not be a link; no other user may write to its parents.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(Self { dir: open(path, flags, Mode::empty())? })
    }

    /// Opens the directory `path` of another system's file system, whose root is `root`; links in `path` lead
    /// where they lead there.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn open_in_root(root: &Path, path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(root, flags, Mode::empty())?;
        let within = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        Ok(Self { dir: resolve(&root, path, flags, within)? })
    }

    /// Opens a directory below this one.
    ///
    /// # Errors
    /// The errno of the system call, also where a part of the path is a link.
    pub(crate) fn below(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { dir: self.resolve(path.as_ref(), OFlag::O_DIRECTORY)? })
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// The errno of the system call, also where a part of the path is a link; invalid data where it is no
    /// regular file.
    pub(crate) fn file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        reopen(&self.resolve(path.as_ref(), OFlag::O_PATH)?)
    }

    /// Reads a regular file of at most `most` bytes.
    ///
    /// # Errors
    /// As [`OutputDir::file`]; invalid data where it is larger.
    pub(crate) fn read(&self, path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
        let file = self.file(path)?;
        let large =
            || io::Error::new(ErrorKind::InvalidData, format!("it is larger than {most} bytes"));
        let size = file.metadata()?.len();
        if size > most {
            return Err(large());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).map_err(io::Error::other)?);
        (&file).take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most { Err(large()) } else { Ok(bytes) }
    }

    /// Reads a file as [`OutputDir::read`], as text.
    ///
    /// # Errors
    /// As [`OutputDir::read`]; invalid data where it is no UTF-8.
    pub(crate) fn read_text(&self, path: impl AsRef<Path>, most: u64) -> io::Result<String> {
        let bytes = self.read(path, most)?;
        String::from_utf8(bytes).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
    }

    /// Returns the kind of one of its entries, with a link's target; None for devices, FIFOs and sockets.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn kind(&self, entry: &OutputEntry) -> io::Result<Option<OutputEntryKind>> {
        Ok(match entry {
            _ if entry.is_dir() => Some(OutputEntryKind::Directory),
            _ if entry.is_file() => Some(OutputEntryKind::File),
            _ if kind(&entry.stat) == SFlag::S_IFLNK => {
                Some(OutputEntryKind::Link(readlinkat(&self.dir, entry.name.as_os_str())?.into()))
            }
            _ => None,
        })
    }

    /// Lists the directory's entries, at most `most`.
    ///
    /// # Errors
    /// The errno of the system call; invalid data where there are more.
    pub(crate) fn entries(&self, most: usize) -> io::Result<Vec<OutputEntry>> {
        let mut list = Dir::from_fd(self.resolve(Path::new("."), OFlag::O_DIRECTORY)?)?;
        let mut entries = Vec::new();
        for entry in list.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() == most {
                let cause = format!("it has more than {most} entries");
                return Err(io::Error::new(ErrorKind::InvalidData, cause));
            }
            match fstatat(&self.dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) => entries.push(OutputEntry { name: name.to_owned(), stat }),
                // The program may still be running.
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(entries)
    }

    /// Moves the entry `name`, which no process writes to any more, to `to`, owned by root.
    ///
    /// # Errors
    /// As [`OutputDir::file`], and what the kernel says of the other place.
    pub(crate) fn take(&self, name: &OsStr, to: &Path) -> io::Result<()> {
        let file = self.file(name)?;
        renameat(&self.dir, name, nix::fcntl::AT_FDCWD, to)?;
        std::os::unix::fs::fchown(&file, Some(0), Some(0))
    }

    fn resolve(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let within = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        resolve(&self.dir, path, flags | OFlag::O_RDONLY | OFlag::O_CLOEXEC, within)
    }
}

fn resolve(dir: &OwnedFd, path: &Path, flags: OFlag, within: ResolveFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags).resolve(within);
    loop {
        match openat2(dir, path, how) {
            // A rename raced with the resolution; openat2(2) says to try again.
            Err(Errno::EAGAIN) => {}
            opened => return Ok(opened?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;

    const MOST: u64 = 4096;

    /// A directory `out` beside a file that its program must not reach.
    fn scene() -> (tempfile::TempDir, OutputDir) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let out = dir.path().join("out");
        fs::create_dir_all(out.join("sub")).expect("directories");
        fs::write(dir.path().join("secret"), "outside").expect("write");
        fs::write(out.join("file"), "text").expect("write");
        fs::write(out.join("sub/file"), "below").expect("write");
        let opened = OutputDir::open(&out).expect("opens");
        (dir, opened)
    }

    #[test]
    fn regular_files_are_read() {
        let (_dir, out) = scene();
        assert_eq!(out.read_text("file", MOST).expect("read"), "text");
        assert_eq!(out.read("sub/file", 5).expect("read"), b"below");
        assert_eq!(
            out.below("sub").and_then(|sub| sub.read_text("file", MOST)).expect("read"),
            "below"
        );
    }

    #[rstest]
    #[case::link("link")]
    #[case::absolute_link("absolute")]
    #[case::through_a_link("linked/file")]
    #[case::parent("../secret")]
    #[case::absolute("/etc/passwd")]
    #[case::pipe("pipe")]
    #[case::directory("sub")]
    #[case::device("zero")]
    #[case::sparse("sparse")]
    #[case::larger("large")]
    fn nothing_else_is_read(#[case] path: &str) {
        let (dir, out) = scene();
        let at = |name: &str| dir.path().join("out").join(name);
        symlink("file", at("link")).expect("link");
        symlink(dir.path().join("secret"), at("absolute")).expect("link");
        symlink("sub", at("linked")).expect("link");
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRUSR).expect("a pipe");
        let zero = nix::sys::stat::makedev(1, 5);
        nix::sys::stat::mknod(&at("zero"), SFlag::S_IFCHR, Mode::S_IRUSR, zero).expect("a device");
        File::create(at("sparse")).and_then(|f| f.set_len(1 << 40)).expect("a sparse file");
        fs::write(at("large"), vec![0; MOST as usize + 1]).expect("write");
        let writer = longshore_core::testing::Waiting::at(&at("pipe"));
        out.read(path, MOST).expect_err("refused");
        assert!(writer.is_waiting());
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_opened() {
        let (dir, _out) = scene();
        symlink("out", dir.path().join("link")).expect("link");
        OutputDir::open(&dir.path().join("link")).expect_err("a link");
    }

    #[test]
    fn entries_are_told_apart_and_bounded() {
        let (dir, out) = scene();
        symlink("sub", dir.path().join("out/link")).expect("link");
        let mut entries: Vec<_> = out
            .entries(3)
            .expect("listed")
            .into_iter()
            .map(|e| (e.name.clone(), e.is_dir(), e.is_file()))
            .collect();
        entries.sort();
        let wanted = [("file", false, true), ("link", false, false), ("sub", true, false)];
        assert_eq!(entries, wanted.map(|(name, dir, file)| (OsString::from(name), dir, file)));
        out.entries(2).expect_err("there are three");
    }

    #[test]
    fn only_a_regular_file_is_taken_and_it_is_roots_then() {
        let (dir, out) = scene();
        let at = |name: &str| dir.path().join(name);
        std::os::unix::fs::chown(at("out/file"), Some(1000), Some(1000)).expect("chown");
        symlink("../secret", at("out/link")).expect("link");
        out.take(OsStr::new("file"), &at("taken")).expect("taken");
        out.take(OsStr::new("link"), &at("link")).expect_err("a link");
        let found = fs::symlink_metadata(at("taken")).expect("there");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&found), 0);
        assert!(!at("link").exists());
    }
}
