//! The directory and name under which a file of a root is replaced or removed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};

use super::{Root, at};

/// Number of links that are followed, as the kernel does.
const MOST_LINKS: usize = 40;

/// A name that may be absent, in its open directory: no link leads elsewhere any more.
#[derive(Debug)]
pub struct ResolvedName {
    /// Its directory, opened with `O_PATH`.
    pub dir: OwnedFd,
    /// Its name, which was no link.
    pub name: OsString,
    /// Its path inside the root.
    pub path: PathBuf,
}

impl Root {
    /// Opens a directory with `O_PATH`.
    ///
    /// # Errors
    /// The error of openat2(2), with the path.
    pub fn dir(&self, inner: impl AsRef<Path>) -> io::Result<OwnedFd> {
        self.resolve(inner.as_ref(), OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    /// Finds the place of a file, behind all links; the file itself may be absent.
    ///
    /// # Errors
    /// The kernel's error, with the path.
    pub fn place(&self, inner: impl AsRef<Path>) -> io::Result<ResolvedName> {
        let mut path = Path::new("/").join(inner);
        for _ in 0..=MOST_LINKS {
            let named = path
                .parent()
                .zip(path.file_name())
                .map(|(dir, name)| (dir.to_owned(), name.to_owned()));
            let (parent, name) =
                named.ok_or_else(|| at(&self.display(&path), Errno::EISDIR.into()))?;
            let dir = self.dir(&parent)?;
            match readlinkat(&dir, OsStr::new(&name)) {
                Ok(target) => path = parent.join(target),
                Err(Errno::EINVAL | Errno::ENOENT) => {
                    return Ok(ResolvedName { dir, name, path });
                }
                Err(e) => return Err(at(&self.display(&path), e.into())),
            }
        }
        Err(at(&self.display(&path), Errno::ELOOP.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[rstest]
    #[case("etc/file", Ok("/etc/file"))]
    #[case("/etc/none", Ok("/etc/none"))]
    #[case("etc/link", Ok("/srv/file"))]
    #[case("etc/climb", Ok("/etc/../../srv/file"))]
    #[case("etc/dangling", Ok("/srv/none"))]
    #[case("etc/loop", Err(Errno::ELOOP))]
    #[case("none/file", Err(Errno::ENOENT))]
    #[case("/", Err(Errno::EISDIR))]
    fn places(#[case] path: &str, #[case] wanted: Result<&str, Errno>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(dir.path().join("etc")).expect("made");
        fs::create_dir(dir.path().join("srv")).expect("made");
        fs::write(dir.path().join("etc/file"), "").expect("written");
        for (name, target) in [
            ("link", "/srv/file"),
            ("climb", "../../srv/file"),
            ("dangling", "/srv/none"),
            ("loop", "loop"),
        ] {
            symlink(target, dir.path().join("etc").join(name)).expect("link");
        }
        let root = Root::open(dir.path()).expect("root");
        let found =
            root.place(path).map(|place| place.path).map_err(|e| super::super::errno_of(&e));
        assert_eq!(found, wanted.map(PathBuf::from).map_err(Some));
    }
}
