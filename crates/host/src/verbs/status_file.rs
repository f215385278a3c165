//! Status files below a directory that containers write to as well: read without following a link or
//! waiting for a writer, written whole.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};

use crate::verbs::error::VerbError;
use crate::verbs::shared_dir::{SharedDir, SharedFile};

/// Size of the largest status file that is read.
const MOST: u64 = 4096;

/// Something at the path of a status file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Text without white space at its ends.
    Text(String),
    /// A link, a pipe, a directory, or a file that is no short text.
    Odd,
}

/// Returns the status file at `path`; None where there is nothing.
pub(crate) fn read(path: &Path) -> Result<Option<Status>, Errno> {
    let (dir, name) = match parts(path, false) {
        Ok(parts) => parts,
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Ok(Some(Status::Odd)),
        Err(errno) => return Err(errno),
    };
    match SharedDir::new(&dir).read(&name, MOST).map_err(errno)? {
        SharedFile::Nothing => Ok(None),
        SharedFile::File(bytes) => Ok(Some(text(bytes))),
        SharedFile::Other(_) => Ok(Some(Status::Odd)),
    }
}

fn text(bytes: Vec<u8>) -> Status {
    String::from_utf8(bytes).map_or(Status::Odd, |text| Status::Text(text.trim().to_owned()))
}

/// Writes a line to the status file at `path`, and makes its directory where that is missing. What
/// was at the path before is replaced, and not followed; a directory with files is renamed.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Errno> {
    let (dir, name) = parts(path, true)?;
    write_in(SharedDir::new(&dir), &name, text).map_err(errno)
}

fn write_in(dir: SharedDir<'_>, name: &OsString, text: &str) -> io::Result<()> {
    dir.sweep(name);
    let new = dir.create(name)?;
    new.file().write_all(format!("{text}\n").as_bytes())?;
    new.file().set_permissions(Permissions::from_mode(0o644))?;
    new.publish_anyway()
}

/// Removes what is at the path of a status file, unless that is a directory, and an unfinished one.
pub(crate) fn remove(path: &Path) -> Result<(), Errno> {
    let (dir, name) = match parts(path, false) {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
        parts => parts?,
    };
    let shared = SharedDir::new(&dir);
    shared.sweep(&name);
    match shared.remove(&name).map_err(errno) {
        Err(errno) if is_dir(&dir, &name) => {
            tracing::warn!("{} is a directory and stays ({errno})", path.display());
            Ok(())
        }
        removed => removed,
    }
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn is_dir(dir: &OwnedFd, name: &OsString) -> bool {
    fstatat(dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|found| found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits())
}

/// Opens the directory of `path`, which may not be a link; returns it with the file's name.
fn parts(path: &Path, make: bool) -> Result<(OwnedFd, OsString), Errno> {
    let (dir, name) = (path.parent(), path.file_name());
    let (Some(dir), Some(name)) = (dir, name) else { return Err(Errno::EINVAL) };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = match (dir.parent(), dir.file_name()) {
        (Some(above), Some(last)) => {
            let above = open(above, flags, Mode::empty())?;
            if make {
                make_dir(&above, Path::new(last))?;
            }
            openat(&above, last, flags | OFlag::O_NOFOLLOW, Mode::empty())?
        }
        _ => open(dir, flags, Mode::empty())?,
    };
    Ok((opened, name.into()))
}

fn make_dir(above: &OwnedFd, name: &Path) -> Result<(), Errno> {
    let mode = Mode::S_IRWXU | Mode::S_IRGRP | Mode::S_IXGRP | Mode::S_IROTH | Mode::S_IXOTH;
    match mkdirat(above, name, mode) {
        Err(Errno::EEXIST) => Ok(()),
        result => result,
    }
}

/// Returns the failure of a verb on a status file.
pub(crate) fn failed(verb: &'static str, path: &Path) -> impl FnOnce(Errno) -> VerbError {
    move |errno| VerbError::new(verb, path.display().to_string(), errno)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use nix::sys::stat::Mode as FifoMode;
    use nix::unistd::mkfifo;
    use rstest::rstest;

    use super::*;

    struct Scene {
        dir: tempfile::TempDir,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            fs::create_dir(dir.path().join("elsewhere")).expect("made");
            fs::write(dir.path().join("elsewhere/victim"), "theirs").expect("written");
            Self { dir }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn victim(&self) -> String {
            fs::read_to_string(self.at("elsewhere/victim")).expect("still there")
        }
    }

    fn some(text: &str) -> Option<Status> {
        Some(Status::Text(text.to_owned()))
    }

    #[test]
    fn a_status_is_written_read_replaced_and_removed() {
        let scene = Scene::new();
        let path = scene.at("validations/.status");
        assert_eq!(read(&path), Ok(None));
        remove(&path).expect("nothing to remove");
        for text in ["NotReady", "Ready"] {
            write(&path, text).expect("written");
            assert_eq!(read(&path), Ok(some(text)));
            assert_eq!(fs::read_to_string(&path).expect("there"), format!("{text}\n"));
            assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
        }
        remove(&path).expect("removed");
        assert_eq!(fs::read_dir(scene.at("validations")).expect("stays").count(), 0);
    }

    #[rstest]
    #[case::link("elsewhere/victim")]
    #[case::dangling("nothing")]
    #[case::endless("/dev/zero")]
    fn a_link_in_its_place_is_replaced_and_not_followed(#[case] to: &str) {
        let scene = Scene::new();
        fs::create_dir(scene.at("v")).expect("made");
        let path = scene.at("v/.status");
        symlink(scene.at(to), &path).expect("linked");
        assert_eq!(read(&path), Ok(Some(Status::Odd)));
        write(&path, "Ready").expect("written");
        assert_eq!(read(&path), Ok(some("Ready")));
        assert_eq!(scene.victim(), "theirs");
        assert!(!scene.at("nothing").exists());
    }

    #[test]
    fn a_link_in_place_of_its_directory_is_refused() {
        let scene = Scene::new();
        symlink(scene.at("elsewhere"), scene.at("v")).expect("linked");
        let path = scene.at("v/victim");
        assert_eq!(read(&path), Ok(Some(Status::Odd)));
        assert!(matches!(write(&path, "Ready"), Err(Errno::ELOOP | Errno::ENOTDIR)));
        remove(&path).expect("left alone");
        assert_eq!(scene.victim(), "theirs");
    }

    #[test]
    fn neither_a_pipe_nor_a_directory_nor_a_large_or_binary_file_is_read() {
        let scene = Scene::new();
        fs::create_dir(scene.at("v")).expect("made");
        let path = scene.at("v/.status");
        mkfifo(&path, FifoMode::S_IRWXU).expect("a pipe");
        assert_eq!(read(&path), Ok(Some(Status::Odd)));
        remove(&path).expect("removed");
        for content in [vec![b'1'; 5000], vec![0xff; 3]] {
            fs::write(&path, content).expect("written");
            assert_eq!(read(&path), Ok(Some(Status::Odd)));
        }
        remove(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        assert_eq!(read(&path), Ok(Some(Status::Odd)));
        remove(&path).expect("left alone");
        assert!(path.is_dir());
        write(&path, "Ready").expect("an empty directory is no obstacle");
        assert_eq!(read(&path), Ok(some("Ready")));
        assert_eq!(fs::read_dir(scene.at("v")).expect("there").count(), 1, "nothing unfinished");
    }
}
