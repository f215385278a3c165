//! View of another system's file system, with paths and links as that system sees them.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use longshore_core::root::{is_absent, open_regular, read_up_to};
use nix::fcntl::OFlag;

/// Maximum number of links followed one after the other: the kernel's own limit.
const MOST_LINKS: usize = 40;
/// Maximum size of a file that is read; the Makefiles and generated headers have some kB.
const MOST: u64 = 16 << 20;

/// Maps the path `inside` of its system, and everything below it, to `outside` here: `/` to a
/// host's root, or `/usr/src` to a directory with header trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    inside: PathBuf,
    outside: PathBuf,
}

impl View {
    pub(super) fn new(inside: impl Into<PathBuf>, outside: impl Into<PathBuf>) -> Self {
        Self { inside: inside.into(), outside: outside.into() }
    }

    /// Returns the path here of a path without links; None where it is outside the view.
    pub(super) fn outside(&self, path: &Path) -> Option<PathBuf> {
        Some(self.outside.join(path.strip_prefix(&self.inside).ok()?))
    }

    /// Returns a path of the view as one below a root: the system's own where the view has it, or else this one's.
    pub(super) fn place(&self, path: &Path) -> (PathBuf, PathBuf) {
        match self.inside.parent() {
            None => (self.outside.clone(), path.to_path_buf()),
            Some(_) => ("/".into(), self.outside(path).unwrap_or_default()),
        }
    }

    /// Resolves links, `.` and `..`; None where nothing exists there or it is outside the view.
    ///
    /// # Errors
    /// The kernel's error for a part of the path, and a loop of links.
    pub(super) fn resolve(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut left: Vec<PathBuf> = reversed(path);
        let mut done = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == Path::new("..") {
                done.pop();
                continue;
            }
            done.push(&part);
            let Some(outside) = self.outside(&done) else {
                // The directories above the view are not visible, so they are taken as no links.
                if self.inside.starts_with(&done) {
                    continue;
                }
                return Ok(None);
            };
            let target = match fs::symlink_metadata(&outside) {
                Ok(found) if found.is_symlink() => fs::read_link(&outside)?,
                Ok(_) => continue,
                Err(e) if is_absent(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            links += 1;
            if links > MOST_LINKS {
                let what = format!("{}: too many links", path.display());
                return Err(io::Error::other(what));
            }
            done.pop();
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            left.extend(reversed(&target));
        }
        Ok(Some(done).filter(|path| self.outside(path).is_some()))
    }

    /// Returns the directory of the Makefile that the one in `dir` includes by an absolute path:
    /// that include is the whole Makefile of Debian's flavours.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn included(&self, dir: &Path) -> io::Result<Option<PathBuf>> {
        let text = self.read(&dir.join("Makefile"))?;
        let named = text.lines().take(20).find_map(|line| line.strip_prefix("include /"));
        match named
            .and_then(|path| Path::new("/").join(path.trim()).parent().map(Path::to_path_buf))
        {
            Some(parent) => self.resolve(&parent),
            None => Ok(None),
        }
    }

    /// Reads a file through any links; empty where it does not exist.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn read(&self, path: &Path) -> io::Result<String> {
        let Some(lies) = self.resolve(path)?.and_then(|path| self.outside(&path)) else {
            return Ok(String::new());
        };
        match read_bounded(&lies) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(e) if is_absent(&e) => Ok(String::new()),
            Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", lies.display()))),
        }
    }
}

/// Reads a regular file of at most [`MOST`] bytes: a build root's files may be anybody's.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_up_to(open_regular(path, OFlag::empty())?, MOST)?;
    bytes.ok_or_else(|| io::Error::other(format!("it has more than {MOST} bytes")))
}

/// Returns the parts of a path, the last first, without the root.
fn reversed(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().filter(|c| !matches!(c, Component::RootDir | Component::CurDir));
    parts.map(|c| PathBuf::from(c.as_os_str())).collect::<Vec<_>>().into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::os::unix::fs::symlink;

    /// A host with usrmerge whose headers are in Debian's places.
    fn host() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/lib/modules/r")).expect("directory");
        fs::create_dir_all(at("usr/src/h")).expect("directory");
        fs::write(at("usr/src/h/Makefile"), "text").expect("write");
        symlink("usr/lib", at("lib")).expect("link");
        symlink("/usr/src/h", at("usr/lib/modules/r/build")).expect("link");
        symlink("../../../src/h", at("usr/lib/modules/r/relative")).expect("link");
        symlink("../../../../../../../../usr/src/h", at("usr/lib/modules/r/climbs")).expect("link");
        symlink("/gone", at("usr/lib/modules/r/gone")).expect("link");
        symlink("round", at("usr/src/round")).expect("link");
        dir
    }

    #[rstest]
    #[case("/lib/modules/r/build", Some("/usr/src/h"))]
    #[case("/lib/modules/r/relative", Some("/usr/src/h"))]
    #[case("/lib/modules/r/climbs/Makefile", Some("/usr/src/h/Makefile"))]
    #[case("/lib/modules/r/gone", None)]
    #[case("/lib/modules/other/build", None)]
    #[case("/usr/src/h/Makefile/x", None)]
    fn links_lead_where_their_own_system_says(#[case] path: &str, #[case] wanted: Option<&str>) {
        let dir = host();
        let view = View::new("/", dir.path());
        let found = view.resolve(Path::new(path)).expect("resolves");
        assert_eq!(found.as_deref(), wanted.map(Path::new));
    }

    #[test]
    fn a_loop_is_an_error() {
        let dir = host();
        assert!(View::new("/", dir.path()).resolve(Path::new("/usr/src/round")).is_err());
    }

    #[test]
    fn what_is_out_of_view_is_not_there() {
        let dir = host();
        let view = View::new("/usr/src", dir.path().join("usr/src"));
        assert_eq!(view.read(Path::new("/usr/src/h/Makefile")).expect("reads"), "text");
        assert_eq!(view.resolve(Path::new("/usr/lib/modules")).expect("resolves"), None);
        assert_eq!(view.read(Path::new("/usr/src/h")).unwrap_or_default(), "");
    }

    #[test]
    fn files_without_an_end_are_not_read_whole() {
        let dir = host();
        let view = View::new("/", dir.path());
        let endless = fs::File::create(dir.path().join("usr/src/endless")).expect("create");
        endless.set_len(MOST + 1).expect("length");
        symlink("/dev/zero", dir.path().join("usr/src/device")).expect("link");
        let error = view.read(Path::new("/usr/src/endless")).expect_err("too large");
        assert!(error.to_string().contains("more than"), "{error}");
        assert_eq!(view.read(Path::new("/usr/src/device")).expect("reads"), "");
    }
}
