//! A directory as a tar, the same bytes on every host: those of GNU tar with
//! `--format=ustar --hard-dereference --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u=rwX,go=rX
//! --exclude=./.git -b1 -C DIR .`. Files with several names are written under each: a copy has the digest of the original.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use super::SourceTree;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;

/// Directory of git's own files, which no tarball of a tag has.
const GIT: &str = ".git";
/// Maximum number of bytes and files of a directory.
const MOST_BYTES: u64 = 2 << 30;
const MOST_FILES: usize = 50_000;
const DEEPEST: usize = 64;
const BLOCK: usize = 512;
/// Lengths of the fields of a ustar header that a path is split into.
const NAME: usize = 100;
const PREFIX: usize = 155;
/// Command that prints the digest of a directory.
const COMMAND: &str = "tar --format=ustar --hard-dereference --sort=name --owner=0 --group=0 --numeric-owner \
                       --mtime=@0 --mode=u=rwX,go=rX --exclude=./.git -b1 -cf - -C DIR . | sha256sum";

/// Packs `dir` into the store as the blob that `tree` names.
///
/// # Errors
/// Exit code 12 where the directory cannot be read, 13 where its contents are others or no tree's, 15 where the store
/// cannot be written.
pub(super) fn into_store(dir: &Path, tree: &SourceTree, store: &Store) -> Result<(), Failure> {
    let mut writer = store.blob_writer()?;
    let mut packing = Packing { to: &mut writer, bytes: 0, files: 0 };
    packing.whole(dir).map_err(|error| match error {
        Stopped::Read(path, error) => {
            let cause = format!("reading {}", path.display());
            Failure::new(FailureKind::Download, cause)
                .with_source(error)
                .remedy("correct [[source-tree]], or mount the directory in the container")
        }
        Stopped::Write(error) => write_failure(store.writable(), error),
        Stopped::Refused(what) => {
            let cause =
                format!("the directory {} cannot be used as a source tree: {what}", dir.display());
            Failure::new(FailureKind::Verification, cause).remedy(
                "name a directory with one version of open-gpu-kernel-modules, as published",
            )
        }
    })?;
    writer.commit(Some(&tree.sha256)).map(drop).map_err(|failure| match failure.kind() {
        FailureKind::Verification => {
            let cause = format!(
                "the source tree in {} is not the one that [[source-tree]] names: it has local changes, files that were \
                 built in it, or another version",
                dir.display()
            );
            Failure::new(FailureKind::Verification, cause)
                .with_source(failure)
                .remedy(format!("take a clean copy; the sha256 of a directory is that of `{COMMAND}`"))
        }
        _ => failure,
    })
}

/// Reason why packing ended.
enum Stopped {
    Read(PathBuf, io::Error),
    Write(io::Error),
    Refused(String),
}

struct Packing<'a, W> {
    to: &'a mut W,
    bytes: u64,
    files: usize,
}

impl<W: Write> Packing<'_, W> {
    fn whole(&mut self, dir: &Path) -> Result<(), Stopped> {
        self.directory(dir, Path::new("."), 0)?;
        self.to.write_all(&[0; 2 * BLOCK]).map_err(Stopped::Write)
    }

    /// Writes a directory and everything below, sorted by name.
    fn directory(&mut self, from: &Path, inside: &Path, depth: usize) -> Result<(), Stopped> {
        if depth > DEEPEST {
            return Err(Stopped::Refused(format!("it is deeper than {DEEPEST} directories")));
        }
        let mut name = inside.as_os_str().as_bytes().to_vec();
        name.push(b'/');
        self.header(&name, EntryType::Directory, 0o755, 0)?;
        let unread = |error| Stopped::Read(from.to_path_buf(), error);
        let names: io::Result<Vec<_>> =
            fs::read_dir(from).map_err(unread)?.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names.map_err(unread)?;
        names.sort();
        for name in names {
            if depth == 0 && name == GIT {
                continue;
            }
            self.entry(&from.join(&name), &inside.join(&name), depth + 1)?;
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, inside: &Path, depth: usize) -> Result<(), Stopped> {
        let unread = |error| Stopped::Read(from.to_path_buf(), error);
        let metadata = fs::symlink_metadata(from).map_err(unread)?;
        self.files += 1;
        if self.files > MOST_FILES {
            return Err(Stopped::Refused(format!("it has more than {MOST_FILES} files")));
        }
        if metadata.is_dir() {
            return self.directory(from, inside, depth);
        }
        if !metadata.is_file() {
            return Err(Stopped::Refused(format!("{} is a link or a device", inside.display())));
        }
        self.file(from, inside)
    }

    fn file(&mut self, from: &Path, inside: &Path) -> Result<(), Stopped> {
        let unread = |error| Stopped::Read(from.to_path_buf(), error);
        let mut file = File::open(from).map_err(unread)?;
        let metadata = file.metadata().map_err(unread)?;
        let (size, runs) = (metadata.len(), metadata.permissions().mode() & 0o111 != 0);
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > MOST_BYTES {
            return Err(Stopped::Refused(format!("it has more than {} MiB", MOST_BYTES >> 20)));
        }
        let mode = if runs { 0o755 } else { 0o644 };
        self.header(inside.as_os_str().as_bytes(), EntryType::Regular, mode, size)?;
        let mut left = size;
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let read = file.read(&mut buffer[..most]).map_err(unread)?;
            if read == 0 {
                return Err(Stopped::Refused(format!("{} changes meanwhile", inside.display())));
            }
            self.to.write_all(&buffer[..read]).map_err(Stopped::Write)?;
            left -= read as u64;
        }
        let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        let padding = if over == 0 { 0 } else { BLOCK - over };
        self.to.write_all(&vec![0; padding]).map_err(Stopped::Write)
    }

    fn header(
        &mut self,
        path: &[u8],
        kind: EntryType,
        mode: u32,
        size: u64,
    ) -> Result<(), Stopped> {
        let (prefix, name) = split(path).ok_or_else(|| {
            let path = String::from_utf8_lossy(path).into_owned();
            Stopped::Refused(format!("{path} is too long a path"))
        })?;
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        if let Some(ustar) = header.as_ustar_mut() {
            ustar.name[..name.len()].copy_from_slice(name);
            ustar.prefix[..prefix.len()].copy_from_slice(prefix);
            ustar.set_device_major(0);
            ustar.set_device_minor(0);
        }
        header.set_cksum();
        // GNU tar ends the checksum's six digits with NUL and a space, the library seven with NUL.
        let sum = header.cksum().unwrap_or_default();
        let text = format!("{sum:06o}\0 ");
        header.as_old_mut().cksum.copy_from_slice(text.as_bytes());
        self.to.write_all(header.as_bytes()).map_err(Stopped::Write)
    }
}

/// Splits a path into prefix and name as GNU tar does: at the last slash that leaves both short enough.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= NAME {
        return Some((&[], path));
    }
    let last = path.len().min(PREFIX + 1);
    let at = path[..last]
        .iter()
        .enumerate()
        .rev()
        .find(|(at, byte)| **byte == b'/' && *at > 0 && *at < path.len() - 1);
    let (prefix, rest) = path.split_at(at?.0);
    let name = &rest[1..];
    (name.len() <= NAME).then_some((prefix, name))
}
