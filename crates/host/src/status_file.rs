//! Status files below a directory that containers write to as well: read without following a link or
//! waiting for a writer, written whole by a rename.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::verbs::VerbError;

/// Size of the largest status file that is read.
const MOST: u64 = 4096;
const FLAGS: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK);

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
    match openat(&dir, &name, OFlag::O_RDONLY | FLAGS, Mode::empty()) {
        Ok(file) => Ok(Some(text(file).unwrap_or(Status::Odd))),
        Err(Errno::ENOENT) => Ok(None),
        Err(Errno::ELOOP | Errno::ENXIO) => Ok(Some(Status::Odd)),
        Err(errno) => Err(errno),
    }
}

fn text(file: OwnedFd) -> Option<Status> {
    if !is_kind(&fstat(&file).ok()?, SFlag::S_IFREG) {
        return None;
    }
    let mut text = String::new();
    File::from(file).take(MOST + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MOST).then(|| Status::Text(text.trim().to_owned()))
}

/// Writes a line to the status file at `path`, and makes its directory where that is missing. What
/// was at the path before is replaced, and not followed.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Errno> {
    let (dir, name) = parts(path, true)?;
    let unfinished = unfinished(&name);
    remove_at(&dir, &unfinished)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | FLAGS;
    let file = openat(&dir, &unfinished, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IROTH;
    fchmod(&file, mode)?;
    let mut file = File::from(file);
    let written = file.write_all(format!("{text}\n").as_bytes());
    let renamed = match written {
        Ok(()) => renameat(&dir, &unfinished, &dir, &name),
        Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
    };
    renamed.inspect_err(|_| {
        // The first error counts.
        let _ = remove_at(&dir, &unfinished);
    })
}

/// Removes what is at the path of a status file, unless that is a directory, and an unfinished one.
pub(crate) fn remove(path: &Path) -> Result<(), Errno> {
    let (dir, name) = match parts(path, false) {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
        parts => parts?,
    };
    remove_at(&dir, &unfinished(&name))?;
    remove_at(&dir, &name)
}

fn remove_at(dir: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        Err(errno) if is_dir(dir, name) => {
            tracing::warn!("{} is a directory and stays ({errno})", name.display());
            Ok(())
        }
        result => result,
    }
}

fn is_dir(dir: &OwnedFd, name: &Path) -> bool {
    fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|found| is_kind(&found, SFlag::S_IFDIR))
}

fn is_kind(found: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == kind
}

/// Returns the name under which a file is written.
fn unfinished(name: &Path) -> PathBuf {
    let mut unfinished = name.as_os_str().to_owned();
    unfinished.push(".longshore-unfinished");
    unfinished.into()
}

/// Opens the directory of `path`, which may not be a link; returns it with the file's name.
fn parts(path: &Path, make: bool) -> Result<(OwnedFd, PathBuf), Errno> {
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
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    #[test]
    fn an_unfinished_file_of_a_killed_agent_does_no_harm() {
        let scene = Scene::new();
        fs::create_dir(scene.at("v")).expect("made");
        let unfinished = scene.at("v/.status.longshore-unfinished");
        symlink(scene.at("elsewhere/victim"), &unfinished).expect("linked");
        write(&scene.at("v/.status"), "Ready").expect("written");
        assert_eq!(scene.victim(), "theirs");
        fs::write(&unfinished, "Rea").expect("written");
        remove(&scene.at("v/.status")).expect("removed");
        assert_eq!(fs::read_dir(scene.at("v")).expect("stays").count(), 0);
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
        write(&path, "Ready").expect_err("a directory is in the way");
        assert_eq!(fs::read_dir(scene.at("v")).expect("there").count(), 1, "nothing unfinished");
    }
}
