//! Reading files of another root: absolute symbolic links count from that root, not from ours.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// Configuration and keys are small.
const MOST_BYTES: u64 = 64 << 20;

/// Reads the file that a process whose root is `root` would find at `path`.
pub(super) fn read(root: &Path, path: &Path) -> io::Result<Vec<u8>> {
    let below = path.strip_prefix("/").unwrap_or(path);
    if root == Path::new("/") {
        return fs::read(path);
    }
    let dir = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = match openat2(&dir, below, how) {
        Ok(fd) => File::from(fd),
        // Linux before 5.6, or a container runtime's system call filter.
        Err(Errno::ENOSYS | Errno::EPERM) => File::open(root.join(below))?,
        Err(errno) => return Err(errno.into()),
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_count_from_the_other_root() {
        let root = tempfile::tempdir().expect("dir");
        fs::create_dir_all(root.path().join("usr/share")).expect("dir");
        fs::write(root.path().join("usr/share/key"), "key").expect("write");
        symlink("/usr/share/key", root.path().join("key")).expect("link");
        symlink("/etc/passwd", root.path().join("out")).expect("link");
        assert_eq!(read(root.path(), Path::new("/key")).expect("reads"), b"key");
        let missing = read(root.path(), Path::new("/out")).expect_err("not there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
