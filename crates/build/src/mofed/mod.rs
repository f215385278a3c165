//! Headers and symbols of MOFED, the network driver that is not the kernel's own, as an input of a compile.
//!
//! nvidia_peermem registers with `ib_register_peer_memory_client`, which MOFED's ib_core has and most kernels
//! have not. The driver's sources look for it in `/usr/src/ofa_kernel` (`OFA_CANDIDATES` of
//! nvidia-peermem.Kbuild, `ib_peer_memory_symbols` of conftest.sh): all versions of them try `RELEASE` there,
//! so that is where the build root gets it. The tree is written by a container, as the host's root: all of it, and the
//! way to it, has to be root's alone, since it becomes kernel code. No link is followed in it, everything is bounded,
//! and the copy is compared with the digest in the set's key.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::outputs::{OutputDir, OutputEntry, OutputEntryKind};
use longshore_core::digest::{add_field, hex};
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::ownership;
use longshore_core::root::stays_inside;
use longshore_modules::artifact::ModuleKey;

/// Directory in which the driver's sources look for MOFED.
const PLACE: &str = "usr/src/ofa_kernel";
/// Parts of MOFED's tree that a compile reads.
const HEADERS: &str = "include";
const SYMBOLS: &str = "Module.symvers";
/// Limits of the tree, which has some thousand files in 20 MiB.
const LIMITS: Limits = Limits { entries: 20_000, bytes: 128 << 20, depth: 24 };
/// Limit of each file.
const MOST_OF_FILE: u64 = 16 << 20;

/// MOFED's headers and symbols for one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mofed {
    /// Root of the file system that has them: of MOFED's container, or of the host.
    root: PathBuf,
    /// Path below the root.
    path: PathBuf,
    release: String,
    /// sha256 (hex) of names, links and contents.
    digest: String,
}

impl Mofed {
    /// Finds the tree for a kernel below `root`, the root of the file system that MOFED is installed in; None
    /// where there is none.
    ///
    /// # Errors
    /// The reason why a tree is unusable; permission denied with [`ownership::Untrusted`] where others than root may
    /// write to it.
    pub fn find(root: &Path, release: &str, arch: &str) -> io::Result<Option<Self>> {
        let is_name = Path::new(release).file_name().is_some_and(|name| name == release);
        let places = [format!("{PLACE}/{arch}/{release}"), format!("{PLACE}/{release}")];
        for path in places.into_iter().filter(|_| is_name).map(PathBuf::from) {
            let tree = match OutputDir::open_in_root(root, &path) {
                Ok(tree) => tree,
                Err(e) if longshore_core::root::is_absent(&e) => continue,
                Err(e) => return Err(with_path(&path, &e)),
            };
            // The tree below is checked where it is read.
            for name in [HEADERS, SYMBOLS] {
                ownership::way(root, &path.join(name))?;
            }
            let digest = Tree::read(tree, LIMITS).and_then(|tree| tree.digest());
            let digest = digest.map_err(|e| with_path(&path, &e))?;
            return Ok(Some(Self { root: root.into(), path, release: release.into(), digest }));
        }
        Ok(None)
    }

    /// Returns the name and the digest by which a set's key has this tree: as headers that are not packages.
    pub fn keyed(&self) -> (String, String) {
        (name(&self.release), self.digest.clone())
    }

    /// True if a set with this key was compiled against this tree.
    pub fn is_in(&self, key: &ModuleKey) -> bool {
        key.headers.get(&name(&self.release)) == Some(&self.digest)
    }

    /// Returns where the tree is.
    pub fn place(&self) -> PathBuf {
        self.root.join(&self.path)
    }

    /// Copies the tree to its place in a build root, and checks that it is the one of the digest.
    ///
    /// # Errors
    /// Exit code 13 where it is another tree by now, 15 where the root cannot be written.
    pub fn copy_into(&self, build_root: &Path) -> Result<(), Failure> {
        let what = || format!("reading {}", self.place().display());
        let open = || Tree::read(OutputDir::open_in_root(&self.root, &self.path)?, LIMITS);
        let tree = open().or_fail(FailureKind::Verification, what)?;
        let target = build_root.join(PLACE).join(&self.release);
        tree.copy(&target).map_err(|e| write_failure(&target, e))?;
        let copied = OutputDir::open(&target).and_then(|dir| Tree::read(dir, LIMITS)?.digest());
        if copied.or_fail(FailureKind::Verification, what)? == self.digest {
            return Ok(());
        }
        let cause = format!("{} changed while it was copied", self.place().display());
        Err(Failure::new(FailureKind::Verification, cause)
            .remedy("run again when MOFED's installation has ended"))
    }
}

/// Name of the tree in a key: its place in the build root.
fn name(release: &str) -> String {
    format!("/{PLACE}/{release}")
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{} {why}", path.display()))
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    entries: usize,
    bytes: u64,
    depth: usize,
}

/// A tree whose names and kinds were read.
struct Tree {
    dir: OutputDir,
    /// By path, so that a directory comes before its contents.
    entries: BTreeMap<PathBuf, OutputEntryKind>,
}

impl Tree {
    fn read(dir: OutputDir, limits: Limits) -> io::Result<Self> {
        let entries = BTreeMap::from([(PathBuf::from(SYMBOLS), OutputEntryKind::File)]);
        dir.file(SYMBOLS).map_err(|e| with_path(Path::new(SYMBOLS), &e))?;
        let (mut tree, mut bytes) = (Self { dir, entries }, 0u64);
        tree.entries.insert(HEADERS.into(), OutputEntryKind::Directory);
        let mut next = vec![PathBuf::from(HEADERS)];
        while let Some(at) = next.pop() {
            let left = limits.entries.saturating_sub(tree.entries.len());
            let opened = tree.dir.below(&at).map_err(|e| with_path(&at, &e))?;
            for entry in opened.entries(left).map_err(|e| with_path(&at, &e))? {
                let path = at.join(&entry.name);
                bytes = bytes.saturating_add(entry.size());
                if bytes > limits.bytes || path.components().count() > limits.depth {
                    return Err(refused(&path, "is more than the headers of a network driver"));
                }
                entry.owner().check(&path)?;
                let kind = kind(&opened, &entry, &path)?;
                next.extend(matches!(kind, OutputEntryKind::Directory).then(|| path.clone()));
                tree.entries.insert(path, kind);
            }
        }
        Ok(tree)
    }

    fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.dir.read(path, MOST_OF_FILE).map_err(|e| with_path(path, &e))
    }

    fn digest(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        let mut field = |bytes: &[u8]| add_field(&mut hash, bytes);
        for (path, kind) in &self.entries {
            field(path.as_os_str().as_encoded_bytes());
            match kind {
                OutputEntryKind::Directory => field(b"directory"),
                OutputEntryKind::Link(target) => {
                    field(b"link");
                    field(target.as_os_str().as_encoded_bytes());
                }
                OutputEntryKind::File => {
                    field(b"file");
                    field(&self.contents(path)?);
                }
            }
        }
        Ok(hex(&hash.finalize()))
    }

    /// Copies it to a directory that does not exist.
    fn copy(&self, target: &Path) -> io::Result<()> {
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        make_dir(target)?;
        for (path, kind) in &self.entries {
            let to = target.join(path);
            match kind {
                OutputEntryKind::Directory => make_dir(&to)?,
                OutputEntryKind::Link(target) => symlink(target, &to)?,
                OutputEntryKind::File => {
                    let mut file = File::create_new(&to)?;
                    file.write_all(&self.contents(path)?)?;
                    file.set_permissions(fs::Permissions::from_mode(0o644))?;
                }
            }
        }
        Ok(())
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn kind(dir: &OutputDir, entry: &OutputEntry, path: &Path) -> io::Result<OutputEntryKind> {
    match dir.kind(entry)? {
        Some(OutputEntryKind::Link(target)) if !stays_inside(path, &target) => {
            Err(refused(path, "is a link that leads out of the tree"))
        }
        kind => kind.ok_or_else(|| refused(path, "is neither a file nor a directory nor a link")),
    }
}

#[cfg(test)]
mod tests;
