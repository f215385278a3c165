//! A directory with a file system, as a build root: its digest, and its copy.
//!
//! Another process may change it at any time. So it is copied, the copy is hashed while it is written, and that
//! has to be the digest in the build's key. No link is followed in it, and no device or FIFO opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::bounds::{Count, DEEPEST, LIMITS};
use super::unpack::{Refusal, Unpacking};
use crate::outputs::{OutputDir, OutputEntryKind};
use longshore_core::digest::{add_field, hex};

/// Directories at its top that a running system fills, and no build reads.
const LEFT_OUT: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];
/// Directories at its top with files of other users, in any system, of which no compile takes a file.
const OF_USERS: [&str; 6] = ["home", "media", "mnt", "root", "srv", "var"];
/// Mode of every directory in the copy.
const MODE: u32 = 0o755;

type Outcome<T> = Result<T, Refusal>;

/// A directory whose names and kinds were read.
#[derive(Debug)]
pub(super) struct Directory {
    dir: OutputDir,
    /// By path, so that a directory comes before its contents.
    entries: BTreeMap<PathBuf, OutputEntryKind>,
    /// Bytes of all files together.
    pub(super) size: u64,
}

/// An entry with its contents.
enum Node<'a> {
    Directory,
    Link(&'a Path),
    File { mode: u32, modified: Option<SystemTime>, contents: &'a mut dyn Read },
}

impl Directory {
    /// Reads names and kinds. Everything that a compile may take has to be root's alone.
    pub(super) fn read(dir: OutputDir) -> Outcome<Self> {
        let mut read = Self { dir, entries: BTreeMap::new(), size: 0 };
        let mut count = Count::new(LIMITS);
        let mut next = vec![PathBuf::new()];
        while let Some(at) = next.pop() {
            let most = usize::try_from(LIMITS.entries).unwrap_or(usize::MAX);
            let top = if at.as_os_str().is_empty() { Path::new(".") } else { at.as_path() };
            let opened = read.dir.below(top).map_err(|e| refusal(top, &e))?;
            for entry in opened.entries(most).map_err(|e| refusal(top, &e))? {
                let path = at.join(&entry.name);
                if LEFT_OUT.iter().any(|name| path == Path::new(name)) {
                    continue;
                }
                if !OF_USERS.iter().any(|name| path.starts_with(name)) {
                    entry.owner().check(&path).map_err(Refusal::Untrusted)?;
                }
                count.add(if entry.is_file() { entry.size() } else { 0 }).map_err(Refusal::Bad)?;
                let Some(kind) = opened.kind(&entry).map_err(|e| refusal(&path, &e))? else {
                    continue;
                };
                if matches!(kind, OutputEntryKind::Directory) {
                    next.push(not_too_deep(&path)?);
                }
                read.entries.insert(path, kind);
            }
        }
        read.size = count.bytes();
        Ok(read)
    }

    /// Returns the sha256 (hex) of names, kinds, modes of files, targets of links, and contents.
    pub(super) fn digest(&self) -> Outcome<String> {
        self.visit(|_, node| match node {
            Node::File { contents, .. } => {
                io::copy(contents, &mut io::sink()).map(drop).map_err(Refusal::Read)
            }
            Node::Directory | Node::Link(_) => Ok(()),
        })
    }

    /// Copies everything, and returns the digest of the copy. Ends with an error once it is not `wanted` any more.
    pub(super) fn copy(&self, to: &mut Unpacking, wanted: &dyn Fn() -> bool) -> Outcome<String> {
        self.visit(|path, node| {
            if !wanted() {
                return Err(Refusal::Read(io::Error::other("the build was cancelled")));
            }
            let made = match node {
                Node::Directory => to.target.make_dir(path, MODE),
                Node::Link(target) => to.target.make_link(path, target),
                Node::File { mode, modified, contents } => {
                    return to.write_file(path, mode, modified, contents).map(drop);
                }
            };
            made.map_err(|e| to.refusal(path, e))
        })
    }

    /// Visits everything in order, and hashes it as it is read.
    fn visit(&self, mut visit: impl FnMut(&Path, Node<'_>) -> Outcome<()>) -> Outcome<String> {
        let mut hash = Sha256::new();
        for (path, kind) in &self.entries {
            add_field(&mut hash, path.as_os_str().as_encoded_bytes());
            match kind {
                OutputEntryKind::Directory => {
                    add_field(&mut hash, b"directory");
                    visit(path, Node::Directory)?;
                }
                OutputEntryKind::Link(target) => {
                    add_field(&mut hash, b"link");
                    add_field(&mut hash, target.as_os_str().as_encoded_bytes());
                    visit(path, Node::Link(target))?;
                }
                OutputEntryKind::File => self.visit_file(path, &mut hash, &mut visit)?,
            }
        }
        Ok(hex(&hash.finalize()))
    }

    fn visit_file(
        &self,
        path: &Path,
        hash: &mut Sha256,
        visit: &mut dyn FnMut(&Path, Node<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let file = self.dir.file(path).map_err(|e| refusal(path, &e))?;
        let meta = file.metadata().map_err(|e| refusal(path, &e))?;
        let (mode, size) = (meta.mode() & 0o777, meta.len());
        add_field(hash, b"file");
        hash.update(mode.to_le_bytes());
        hash.update(size.to_le_bytes());
        let mut contents = Hashed { file: file.take(size.saturating_add(1)), hash, read: 0 };
        let modified = meta.modified().ok();
        visit(path, Node::File { mode, modified, contents: &mut contents })?;
        if contents.read == size {
            return Ok(());
        }
        Err(Refusal::Bad(format!("{} changed while it was read", path.display())))
    }
}

fn not_too_deep(path: &Path) -> Outcome<PathBuf> {
    if path.components().count() > DEEPEST {
        return Err(Refusal::Bad(format!("it has a path of more than {DEEPEST} directories")));
    }
    Ok(path.to_path_buf())
}

fn refusal(path: &Path, error: &io::Error) -> Refusal {
    Refusal::Read(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// A file that is hashed as it is read.
struct Hashed<'a> {
    file: io::Take<File>,
    hash: &'a mut Sha256,
    read: u64,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.read += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use longshore_core::testing::Waiting;

    fn scene() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |path: &str| dir.path().join(path);
        for path in ["usr/bin", "proc/1", "tmp"] {
            fs::create_dir_all(at(path)).expect("directory");
        }
        fs::write(at("usr/bin/gcc"), "program").expect("write");
        fs::set_permissions(at("usr/bin/gcc"), fs::Permissions::from_mode(0o4755)).expect("mode");
        fs::write(at("proc/1/environ"), "secret").expect("write");
        symlink("/etc/passwd", at("usr/link")).expect("link");
        symlink("usr/bin", at("bin")).expect("link");
        dir
    }

    fn read(dir: &Path) -> Directory {
        Directory::read(OutputDir::open(dir).expect("opens")).expect("reads")
    }

    #[test]
    fn a_copy_has_the_digest_of_its_source_and_nothing_of_the_running_system() {
        let (dir, copy) = (scene(), tempfile::tempdir().expect("temporary directory"));
        let source = read(dir.path());
        let mut target = Unpacking::into(copy.path()).expect("opens");
        let copied = source.copy(&mut target, &|| true).expect("copies");
        assert_eq!(copied, source.digest().expect("digest"));
        // Of its only file: what is left out takes no space.
        assert_eq!(source.size, 7);
        assert_eq!(copied, read(copy.path()).digest().expect("digest"));
        assert!(!copy.path().join("proc").exists());
        let mode =
            fs::metadata(copy.path().join("usr/bin/gcc")).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(fs::read_link(copy.path().join("bin")).expect("link"), Path::new("usr/bin"));
    }

    #[rstest]
    #[case::contents(|at: &Path| fs::write(at.join("usr/bin/gcc"), "Program"))]
    #[case::name(|at: &Path| fs::rename(at.join("usr/bin/gcc"), at.join("usr/bin/cc")))]
    #[case::mode(|at: &Path| fs::set_permissions(at.join("usr/bin/gcc"), fs::Permissions::from_mode(0o644)))]
    #[case::link(|at: &Path| fs::remove_file(at.join("bin")).and_then(|()| symlink("usr", at.join("bin"))))]
    #[case::directory(|at: &Path| fs::create_dir(at.join("etc")))]
    fn every_change_has_another_digest(#[case] change: fn(&Path) -> io::Result<()>) {
        let dir = scene();
        let before = read(dir.path()).digest().expect("digest");
        change(dir.path()).expect("changed");
        assert_ne!(read(dir.path()).digest().expect("digest"), before);
    }

    #[test]
    fn what_changes_while_it_is_copied_is_found() {
        let dir = scene();
        let source = read(dir.path());
        let digest = source.digest().expect("digest");
        fs::write(dir.path().join("usr/bin/gcc"), "another").expect("write");
        assert_ne!(source.digest().expect("digest"), digest);
        // A link in the place of a directory is not followed.
        let other = tempfile::tempdir().expect("temporary directory");
        fs::write(other.path().join("gcc"), "program").expect("write");
        fs::remove_dir_all(dir.path().join("usr/bin")).expect("removed");
        symlink(other.path(), dir.path().join("usr/bin")).expect("link");
        source.digest().expect_err("a link");
    }

    #[test]
    fn a_fifo_is_neither_opened_nor_copied() {
        let (dir, copy) = (scene(), tempfile::tempdir().expect("temporary directory"));
        let pipe = dir.path().join("usr/pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let writer = Waiting::at(&pipe);
        let mut target = Unpacking::into(copy.path()).expect("opens");
        read(dir.path()).copy(&mut target, &|| true).expect("copies");
        assert!(writer.is_waiting() && !copy.path().join("usr/pipe").exists());
    }
}
