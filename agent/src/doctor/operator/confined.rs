//! Reads of files that a container or user may have written: bounded, without blocking, and without a
//! link that leads out.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};

use longshore_core::root::reopen;
use longshore_core::sanitize;

/// Size limit of a text; the largest real one is /proc/devices.
const LARGEST: u64 = 64 << 10;
/// Number of names that are read from a directory; a library directory of a whole system has fewer.
const MOST_NAMES: usize = 20_000;
/// Length at which a text is cut in a report.
const SHOWN: usize = 80;

/// Entry of a file system, after its links were followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResolvedEntry {
    File {
        executable: bool,
        empty: bool,
    },
    Directory,
    /// Pipe, socket or device.
    Other,
    Absent,
    /// A link leads out of the directory that counts as the root.
    LeadsOut,
}

/// A directory that counts as a root.
#[derive(Debug)]
pub(super) struct ConfinedRoot {
    dir: OwnedFd,
    rule: ResolveFlag,
}

impl ConfinedRoot {
    /// Opens the root of a file system: absolute links resolve inside it, as after chroot(2).
    pub(super) fn root(path: &Path) -> io::Result<Self> {
        let dir: OwnedFd = File::open(path)?.into();
        Ok(Self { dir, rule: ResolveFlag::RESOLVE_IN_ROOT })
    }

    /// Opens a directory below as a tree that no link may leave: a reader elsewhere, which has the tree
    /// under another path, finds nothing behind an absolute link.
    pub(super) fn tree(&self, inner: &Path) -> io::Result<Option<Self>> {
        let opened = self.open(inner, OFlag::O_PATH | OFlag::O_DIRECTORY);
        let tree = |dir| Self { dir, rule: ResolveFlag::RESOLVE_BENEATH };
        absent(opened).map(|dir| dir.map(tree))
    }

    /// Looks at an entry without opening it: a device or pipe notices nothing.
    pub(super) fn entry(&self, inner: impl AsRef<Path>) -> io::Result<ResolvedEntry> {
        let file = match self.open(inner.as_ref(), OFlag::O_PATH) {
            Ok(fd) => File::from(fd),
            Err(Errno::EXDEV) => return Ok(ResolvedEntry::LeadsOut),
            Err(e) => return absent::<()>(Err(e)).map(|_| ResolvedEntry::Absent),
        };
        let found = file.metadata()?;
        let executable = found.permissions().mode() & 0o111 != 0;
        Ok(match (found.is_file(), found.is_dir()) {
            (true, _) => ResolvedEntry::File { executable, empty: found.len() == 0 },
            (_, true) => ResolvedEntry::Directory,
            _ => ResolvedEntry::Other,
        })
    }

    /// True for a regular file.
    pub(super) fn has_file(&self, inner: impl AsRef<Path>) -> io::Result<bool> {
        Ok(matches!(self.entry(inner)?, ResolvedEntry::File { .. }))
    }

    /// Reads a small text; None where it does not exist.
    pub(super) fn text(&self, inner: impl AsRef<Path>) -> io::Result<Option<String>> {
        let inner = inner.as_ref();
        let Some(fd) = absent(self.open(inner, OFlag::O_PATH))? else { return Ok(None) };
        let found = File::from(fd);
        if !found.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is no file", inner.display())));
        }
        let mut bytes = Vec::new();
        reopen(&found)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST {
            let why = format!("{} is larger than {LARGEST} bytes", inner.display());
            return Err(io::Error::other(why));
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Names in a directory, sorted; None where it does not exist or a link leads out.
    pub(super) fn names(&self, inner: impl AsRef<Path>) -> io::Result<Option<Vec<String>>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        let fd = match self.open(inner.as_ref(), flags) {
            Err(Errno::EXDEV) => return Ok(None),
            opened => absent(opened)?,
        };
        let Some(fd) = fd else { return Ok(None) };
        let mut names = Vec::new();
        for entry in Dir::from_fd(fd)?.iter() {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if names.len() == MOST_NAMES {
                let why = format!("{} has more than {MOST_NAMES} names", inner.as_ref().display());
                return Err(io::Error::other(why));
            }
            names.push(name);
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(Some(names))
    }

    /// Target of a link; None where it does not exist or is none.
    pub(super) fn link(&self, inner: impl AsRef<Path>) -> io::Result<Option<String>> {
        let opened = self.open(inner.as_ref(), OFlag::O_PATH | OFlag::O_NOFOLLOW);
        let Some(fd) = absent(opened)? else { return Ok(None) };
        // The kernel says that a file which is no link is absent.
        Ok(readlinkat(fd.as_fd(), "").ok().map(|target| target.to_string_lossy().into_owned()))
    }

    fn open(&self, inner: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
        let inner = inner.strip_prefix("/").unwrap_or(inner);
        let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
        let rule = self.rule | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(rule);
        loop {
            match openat2(&self.dir, inner, how) {
                // A rename raced with the resolution of `..`; openat2(2) says to try again.
                Err(Errno::EAGAIN) => {}
                opened => return opened,
            }
        }
    }
}

fn absent<T>(opened: Result<T, Errno>) -> io::Result<Option<T>> {
    match opened {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Text of a file for one line of a report: trimmed, escaped, and cut.
pub(super) fn shown(text: &str) -> String {
    let text = text.trim();
    let cut: String = text.chars().take(SHOWN).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("`{}{dots}`", sanitize::in_line(&cut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn scene() -> (tempfile::TempDir, ConfinedRoot) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tree/lib")).unwrap();
        fs::write(dir.path().join("outside"), "secret").unwrap();
        fs::write(dir.path().join("tree/lib/file"), "text\n").unwrap();
        symlink("lib/file", dir.path().join("tree/inside")).unwrap();
        symlink("/lib/file", dir.path().join("tree/absolute")).unwrap();
        symlink("../outside", dir.path().join("tree/climb")).unwrap();
        symlink("loop", dir.path().join("tree/loop")).unwrap();
        symlink("gone", dir.path().join("tree/dangling")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("tree/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(dir.path().join("tree/large"), vec![b'a'; 65 << 10]).unwrap();
        let place = ConfinedRoot::root(dir.path()).unwrap();
        (dir, place)
    }

    #[test]
    fn no_link_leads_out_of_a_tree() {
        let (_dir, place) = scene();
        let tree = place.tree(Path::new("/tree")).unwrap().unwrap();
        let file = ResolvedEntry::File { executable: false, empty: false };
        for (name, wanted) in [
            ("inside", file),
            ("lib", ResolvedEntry::Directory),
            ("absolute", ResolvedEntry::LeadsOut),
            ("climb", ResolvedEntry::LeadsOut),
            ("dangling", ResolvedEntry::Absent),
            ("lib/file/below", ResolvedEntry::Absent),
            ("pipe", ResolvedEntry::Other),
        ] {
            assert_eq!(tree.entry(name).unwrap(), wanted, "{name}");
        }
        assert!(tree.entry("loop").is_err());
        assert_eq!(tree.names("lib").unwrap().unwrap(), ["file"]);
        assert_eq!(tree.names("absolute").unwrap(), None);
        assert!(place.tree(Path::new("none")).unwrap().is_none());
    }

    #[test]
    fn a_text_is_a_small_regular_file() {
        let (_dir, place) = scene();
        assert_eq!(place.text("tree/inside").unwrap().as_deref(), Some("text\n"));
        assert_eq!(place.text("tree/none").unwrap(), None);
        assert_eq!(place.text("tree/climb").unwrap().as_deref(), Some("secret"), "below the root");
        for name in ["tree/pipe", "tree/large", "tree/lib", "tree/loop"] {
            assert!(place.text(name).is_err(), "{name}");
        }
        assert_eq!(place.link("tree/climb").unwrap().as_deref(), Some("../outside"));
        assert_eq!(place.link("tree/lib").unwrap(), None);
    }

    #[test]
    fn a_shown_text_is_one_short_line() {
        assert_eq!(shown(" a\n"), "`a`");
        assert_eq!(shown("a\nb\x1b"), "`a\\nb`".replace("b`", "b\\u{1b}`"));
        assert_eq!(shown(&"x".repeat(100)), format!("`{}...`", "x".repeat(80)));
    }
}
