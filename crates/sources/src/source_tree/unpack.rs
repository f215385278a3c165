//! Unpacking of a tree, and the check that it is one.

use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::{SourceTree, shown};
use crate::driver;
use crate::runfile::unpack::check_path;
use crate::tarball::{self, Limits, TarballEntry};
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind};
use longshore_debian::faults::bad;

/// Limits of a tree: those of today have 130 MB in 4000 files.
const LIMITS: Limits = Limits { bytes: 2 << 30, files: 50_000 };
/// Maximum size of version.mk.
const MOST_TEXT: u64 = 1 << 20;
/// File with the tree's version, at its top.
const VERSION_FILE: &str = "version.mk";
/// Directories of the parts.
const KERNEL_OPEN: &str = "kernel-open";
const SRC: &str = "src";

/// Part of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The files that are compiled for each kernel.
    KernelOpen,
    /// Everything.
    Whole,
}

/// A tree below a directory.
#[derive(Debug)]
pub struct UnpackedTree {
    /// Its top: the directory with version.mk.
    pub top: PathBuf,
}

impl UnpackedTree {
    /// Returns the directory with the sources that are compiled for each kernel.
    pub fn kernel_open(&self) -> PathBuf {
        self.top.join(KERNEL_OPEN)
    }
}

/// Unpacks a part of `tree` from the bytes of its tar.
pub(super) fn unpack(
    tree: &SourceTree,
    part: Part,
    from: impl Read,
    into: &Path,
) -> Result<UnpackedTree, Failure> {
    let name = tree.name();
    let wrong = |what: String| not_usable(tree, &what);
    let mut seen = Contents::default();
    let mut place = |path: &Path| seen.place(path, part);
    let from = BufReader::with_capacity(1 << 16, from);
    let mut check = |entry: &TarballEntry<'_, '_>| check(&name, entry);
    tarball::unpack(&name, from, into, LIMITS, &mut check, &mut place).map_err(|failure| {
        match failure.kind() {
            FailureKind::Verification => failure.remedy(remedy(tree)),
            _ => failure,
        }
    })?;
    let top = seen.top().map_err(wrong)?;
    let found = UnpackedTree { top: into.join(top) };
    let written = match bounded_read::read_text(&found.top.join(VERSION_FILE), MOST_TEXT) {
        Ok(text) => version_of(&text).map(str::to_owned),
        Err(error) => return Err(wrong(format!("its {VERSION_FILE} cannot be read: {error}"))),
    };
    let stated = driver::stated_version(&found.kernel_open())?;
    for (file, stated) in [(VERSION_FILE, written), ("kernel-open/Kbuild", stated)] {
        match stated {
            Some(stated) if stated == tree.version => {}
            Some(stated) => {
                return Err(wrong(format!("its {file} is of {stated}, not of {}", tree.version)));
            }
            None => return Err(wrong(format!("its {file} states no version"))),
        }
    }
    Ok(found)
}

/// Refuses entries that no tree has: links, devices, sparse files.
fn check(name: &str, entry: &TarballEntry<'_, '_>) -> Result<(), Failure> {
    check_path(name, &entry.path_bytes())?;
    let kind = entry.header().entry_type();
    if kind.is_file() || kind.is_dir() {
        return Ok(());
    }
    let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    Err(bad(name, &format!("{path} is a link, a device or a sparse file, and a tree has none")))
}

/// Paths that a tar has, as far as they tell whether it is a tree.
#[derive(Debug, Default)]
struct Contents {
    /// Directories with a version.mk; empty for the tar's own top.
    versions: BTreeSet<PathBuf>,
    /// First parts of the paths.
    firsts: BTreeSet<PathBuf>,
    has_kernel_open: bool,
    has_src: bool,
}

impl Contents {
    /// Notes a path of the tar; returns it where the part has it.
    fn place(&mut self, path: &Path, part: Part) -> Option<PathBuf> {
        let parts: Vec<_> = path.iter().collect();
        self.firsts.extend(parts.first().map(PathBuf::from));
        // A tar of a directory has no top of its own.
        let is = |depth: usize, name: &str| parts.get(depth).is_some_and(|part| *part == name);
        let depth = usize::from(!is(0, KERNEL_OPEN) && !is(0, SRC) && parts.len() > 1);
        let below = || parts[..depth].iter().collect::<PathBuf>();
        let is_version = is(depth, VERSION_FILE) && parts.len() == depth + 1;
        if is_version {
            self.versions.insert(below());
        }
        let of_kernel = is(depth, KERNEL_OPEN);
        self.has_kernel_open |= of_kernel && is(depth + 1, "Kbuild");
        self.has_src |= is(depth, SRC) && is(depth + 1, "nvidia") && is(depth + 2, "Makefile");
        (part == Part::Whole || of_kernel || is_version).then(|| path.to_path_buf())
    }

    /// Returns the top of the tree.
    fn top(&self) -> Result<PathBuf, String> {
        let listed = |names: &BTreeSet<PathBuf>| {
            let names: Vec<_> =
                names.iter().take(4).map(|name| name.display().to_string()).collect();
            names.join(", ")
        };
        let top = match self.versions.iter().collect::<Vec<_>>().as_slice() {
            [top] => top.to_path_buf(),
            [] => {
                return Err(format!(
                    "it is not NVIDIA's open-gpu-kernel-modules: no {VERSION_FILE} at its top (it has {})",
                    listed(&self.firsts)
                ));
            }
            _ => return Err(format!("it has several trees: {}", listed(&self.versions))),
        };
        if !top.as_os_str().is_empty() && self.firsts.len() > 1 {
            return Err(format!("it has more than one top folder: {}", listed(&self.firsts)));
        }
        match (self.has_kernel_open, self.has_src) {
            (true, true) => Ok(top),
            (false, _) => Err("it has no kernel-open/Kbuild".to_owned()),
            (_, false) => {
                Err("it has no src/nvidia: the parts that NVIDIA compiles for no kernel are \
                               missing (a package of kernel sources is an archive's)"
                    .to_owned())
            }
        }
    }
}

/// Returns the version that version.mk states.
fn version_of(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.strip_prefix("NVIDIA_VERSION"))?;
    Some(line.trim_start().strip_prefix('=')?.trim())
}

fn remedy(tree: &SourceTree) -> String {
    format!(
        "name a tarball of one tag of open-gpu-kernel-modules, as published, in [[source-tree]] ({} is none)",
        shown(&tree.urls)
    )
}

fn not_usable(tree: &SourceTree, what: &str) -> Failure {
    let cause = format!("{} is not a usable tree of sources: {what}", tree.name());
    Failure::new(FailureKind::Verification, cause).remedy(remedy(tree))
}
