//! Regular files, told from others before they are opened for reading.
//!
//! To open a device is an act on it: a watchdog starts, a tape is rewound. A file that others can put in
//! place is therefore opened with `O_PATH` first, which no driver notices (open(2)), and again by its
//! descriptor once its kind is known.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};

use super::{Root, at};

impl Root {
    /// Opens a file with `O_PATH`: for its metadata, and for [`reopen`].
    ///
    /// # Errors
    /// The error of openat2(2), with the path.
    pub fn found(&self, inner: impl AsRef<Path>) -> io::Result<File> {
        self.resolve(inner.as_ref(), OFlag::O_PATH).map(File::from)
    }

    /// Reads a regular file of at most `most` bytes as text; bytes that are not UTF-8 are replaced. Links
    /// resolve inside the root.
    ///
    /// # Errors
    /// The kernel's error, with the path; invalid data for a larger file, a device or a FIFO.
    pub fn read_small_text(&self, inner: impl AsRef<Path>, most: u64) -> io::Result<String> {
        let inner = inner.as_ref();
        let found = self.found(inner)?;
        let read = reopen(&found).and_then(|file| read_up_to(file, most)).and_then(|bytes| {
            bytes.ok_or_else(|| {
                io::Error::new(ErrorKind::InvalidData, format!("larger than {most} bytes"))
            })
        });
        let bytes = read.map_err(|e| at(&self.display(inner), e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Reads to the end; None where that is after more than `most` bytes.
///
/// # Errors
/// The reader's error.
pub fn read_up_to(from: impl Read, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Opens the regular file at `path` for reading; `more` is `O_NOFOLLOW` where it must be no link.
///
/// # Errors
/// As [`reopen`].
pub fn open_regular(path: &Path, more: OFlag) -> io::Result<File> {
    reopen(&open(path, OFlag::O_PATH | OFlag::O_CLOEXEC | more, Mode::empty())?)
}

/// Opens a file for reading that is open with `O_PATH`. Another program's lease is not waited for: fcntl(2).
///
/// # Errors
/// Invalid data for all but a regular file; else the kernel's error.
pub fn reopen(found: &impl AsFd) -> io::Result<File> {
    let found = found.as_fd();
    if fstat(found)?.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        return Err(io::Error::new(ErrorKind::InvalidData, "no regular file"));
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    Ok(open(path.as_str(), flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::unistd::mkfifo;

    use super::*;
    use crate::testing::Waiting;

    #[test]
    fn a_regular_file_is_opened_and_all_else_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        fs::write(dir.path().join("file"), "text").unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        let mut text = String::new();
        reopen(&root.found("link").unwrap()).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let pipe = dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let writer = Waiting::at(&pipe);
        for name in ["pipe", "."] {
            let error = reopen(&root.found(name).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
        for (name, more, is) in [
            ("link", OFlag::empty(), true),
            ("link", OFlag::O_NOFOLLOW, false),
            ("pipe", OFlag::empty(), false),
        ] {
            assert_eq!(open_regular(&dir.path().join(name), more).is_ok(), is, "{name}");
        }
        assert!(writer.is_waiting());
    }

    #[test]
    fn a_small_text_is_bounded_and_no_device_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("usr")).unwrap();
        fs::write(dir.path().join("usr/text"), b"a\xff").unwrap();
        symlink("/usr/text", dir.path().join("link")).unwrap();
        symlink("../../../usr/text", dir.path().join("usr/climb")).unwrap();
        mkfifo(&dir.path().join("pipe"), Mode::S_IRWXU).unwrap();
        for name in ["usr/text", "link", "usr/climb"] {
            assert_eq!(root.read_small_text(name, 2).unwrap(), "a\u{fffd}");
        }
        for (name, most, why) in [
            ("link", 1, "link: larger than 1 bytes"),
            ("pipe", 9, "pipe: no regular file"),
            ("none", 9, "none: No such file"),
        ] {
            let error = root.read_small_text(name, most).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
