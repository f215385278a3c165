//! An unpacked .run file in the store.
//!
//! ```text
//! drivers/HEX/driver.json     its version, its flavours, and every path of tree/
//! drivers/HEX/tree/           the sources in kernel/ and kernel-open/, user-mode files, firmware
//! ```
//!
//! HEX is the sha256 of the .run file, which itself is not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::gpus::SupportedGpus;
use super::listing::{Listed, Listing};
use super::unpack::Unpacked;
use crate::driver;
use crate::place::place_of;
use crate::tree_entries::{TreeEntry, compare, is_taken, measure};
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::machine::Machine;
use longshore_core::root::read_up_to;
use longshore_core::store::Store;

/// Attempts to rename a driver into place: each failure means that another process renamed or
/// removed it meanwhile.
const TRIES: usize = 64;

/// Version of driver.json's format; a driver with another is fetched again.
const FORMAT: u32 = 1;

/// The directories of the kernel sources.
const SOURCES: [(Flavour, &str); 2] =
    [(Flavour::Open, "kernel-open"), (Flavour::Proprietary, "kernel")];
/// Maximum size of manifests and lists of GPUs, which have some hundred kilobytes.
const MOST_TEXT: u64 = 16 << 20;
const GPUS: &str = "supported-gpus/supported-gpus.json";

/// Record of an unpacked .run file (driver.json).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    format: u32,
    /// Name of the .run file.
    pub name: String,
    /// sha256 (hex) of the .run file.
    pub sha256: String,
    /// Driver version.
    pub version: String,
    /// `uname -m`.
    pub arch: String,
    /// Flavours with sources.
    pub flavours: Vec<Flavour>,
    /// Every path below `tree`.
    entries: BTreeMap<PathBuf, TreeEntry>,
}

/// An unpacked .run file in the store.
#[derive(Debug, Clone)]
pub struct StoredRunFile {
    /// Its record.
    pub written: Written,
    /// `drivers/HEX/tree`.
    tree: PathBuf,
}

/// Returns the driver in the store from the .run file with this sha256; None where there is none,
/// or only a damaged one.
pub fn find(store: &Store, sha256: &str) -> Option<StoredRunFile> {
    let dir = store.entry(Path::new("drivers").join(sha256));
    if !dir.exists() {
        return None;
    }
    let read = || -> Result<Written, Failure> {
        let path = dir.join("driver.json");
        let what = || format!("reading {}", path.display());
        let bytes = fs::read(&path).or_fail(FailureKind::Verification, what)?;
        let written: Written =
            serde_json::from_slice(&bytes).or_fail(FailureKind::Verification, what)?;
        if written.format != FORMAT || written.sha256 != sha256 {
            let cause = format!("{} is of another form", path.display());
            return Err(Failure::new(FailureKind::Verification, cause));
        }
        Ok(written)
    };
    match read() {
        Ok(written) => Some(StoredRunFile { written, tree: dir.join("tree") }),
        Err(failure) => {
            tracing::warn!("a driver in the store was ignored: {}", failure.one_line());
            None
        }
    }
}

impl StoredRunFile {
    /// Compares every file with its record.
    ///
    /// # Errors
    /// Exit code 13 where one differs.
    pub fn verify(&self) -> Result<(), Failure> {
        let found = measure(&self.tree)
            .or_fail(FailureKind::Verification, || format!("reading {}", self.tree.display()))?;
        compare(&self.tree, &self.written.entries, &found).map_err(|failure| {
            failure.remedy("the disk or a person changed it: remove its directory and run again")
        })
    }

    /// Copies the kernel sources of a flavour to `into/NAME`, and returns that directory.
    ///
    /// # Errors
    /// Exit code 12 where it lacks this flavour, 13 where the store's copy is damaged, 15 where
    /// `into` cannot be written.
    pub fn copy_sources(&self, flavour: Flavour, into: &Path) -> Result<PathBuf, Failure> {
        let Some(name) = directory_of(&self.written.flavours, flavour) else {
            let Written { name, flavours, .. } = &self.written;
            let has: Vec<_> = flavours.iter().map(Flavour::to_string).collect();
            let cause = format!("{name} has no {flavour} kernel modules");
            return Err(Failure::new(FailureKind::Download, cause)
                .remedy(format!("ask for flavour auto or {}", has.join(" or "))));
        };
        self.verify()?;
        let target = into.join(name);
        copy_tree(&self.tree.join(name), &target).map_err(|e| write_failure(&target, e))?;
        Ok(target)
    }

    /// Returns the supported GPUs; None where the driver has no list, or one of an unknown form.
    pub fn gpus(&self) -> Option<SupportedGpus> {
        let path = self.tree.join(GPUS);
        let bytes = read_small(&path).ok()?;
        SupportedGpus::parse(&bytes)
            .inspect_err(|error| tracing::warn!("ignoring {}: {error}", path.display()))
            .ok()
    }

    /// Puts the user-mode files and links into the driver root `root`. Files are shared with the
    /// store's copy.
    ///
    /// # Errors
    /// Exit code 13 where the store's copy is damaged, 15 where `root` cannot be written.
    pub fn fill(&self, root: &Path, machine: Machine) -> Result<(), Failure> {
        self.verify()?;
        let listing = listing_of(&self.written.name, &self.tree)?;
        for entry in &listing.entries {
            let Some(placed) = placed(entry, machine, &self.written.version) else { continue };
            let path = root.join(placed);
            put(&self.tree, entry, &path).map_err(|e| write_failure(&path, e))?;
        }
        Ok(())
    }
}

fn put(tree: &Path, entry: &Listed, path: &Path) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    // Manifests list a link once for each install location; here these are one.
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    match &entry.target {
        Some(target) => std::os::unix::fs::symlink(target, path),
        None => fs::hard_link(tree.join(&entry.path), path),
    }
}

/// Returns the place of a manifest's file or link below a driver root; None where it is not wanted.
fn placed(entry: &Listed, machine: Machine, version: &str) -> Option<PathBuf> {
    if entry.compat32 {
        return None;
    }
    let name = entry.path.file_name()?.to_str()?;
    if entry.path.parent() == Some(Path::new("firmware")) && name.ends_with(".bin") {
        return Some(Path::new("lib/firmware/nvidia").join(version).join(name));
    }
    let at_the_top = entry.path.parent() == Some(Path::new(""));
    at_the_top.then(|| place_of(name, machine.triplet)).flatten()
}

/// Checks that a file is for this machine; one without an architecture is checked library by
/// library.
///
/// # Errors
/// Exit code 10 where it is not.
pub(crate) fn check_machine(name: &str, arch: Option<&str>) -> Result<(), Failure> {
    let own = Machine::this()?.uname;
    match arch {
        Some(arch) if arch != own => {
            let cause = format!("{name} is for {arch}, and this host is {own}");
            Err(Failure::new(FailureKind::HostUnsupported, cause)
                .remedy(format!("take the .run file for {own}")))
        }
        _ => Ok(()),
    }
}

/// Checks an unpacked file against itself and against the request, and moves it into the store.
///
/// # Errors
/// Exit code 10 for another machine's driver, 13 where its contents are not as expected, 15 where
/// the store cannot be written.
pub fn keep(
    unpacked: Unpacked,
    name: &str,
    sha256: &str,
    store: &Store,
) -> Result<StoredRunFile, Failure> {
    let written = describe(&unpacked, name, sha256)?;
    let path = unpacked.dir.path().join("driver.json");
    let text = serde_json::to_vec_pretty(&written)
        .or_fail(FailureKind::Bug, || format!("writing {}", path.display()))?;
    fs::write(&path, text).map_err(|e| write_failure(&path, e))?;
    let target = store.writable().join("drivers").join(sha256);
    let failed = |e| write_failure(&target, e);
    let dir = unpacked.dir.path();
    fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(failed)?;
    // One call for thousands of files; the rename must not reach the disk before their content.
    File::open(dir).and_then(|dir| store.disk().sync_whole(&dir)).map_err(failed)?;
    let mut tries = 0;
    let is_moved = loop {
        // Another process may have been faster, and have it in use.
        if let Some(there) = find(store, sha256).filter(|there| there.verify().is_ok()) {
            return Ok(there);
        }
        tries += 1;
        match land(dir, &target) {
            // Another process added or removed it meanwhile.
            Err(e) if tries < TRIES && (is_taken(&e) || e.kind() == ErrorKind::NotFound) => {}
            landed => break landed.map_err(failed)?,
        }
    };
    if is_moved {
        unpacked.dir.moved();
    }
    let parent = target.parent().unwrap_or(Path::new("/"));
    File::open(parent).and_then(|dir| store.disk().sync(&dir)).map_err(failed)?;
    Ok(StoredRunFile { written, tree: target.join("tree") })
}

/// Checks an unpacked file against itself, removes the files that its manifest does not list, and
/// returns its record.
///
/// # Errors
/// As [`keep`].
pub(crate) fn describe(unpacked: &Unpacked, name: &str, sha256: &str) -> Result<Written, Failure> {
    let tree = unpacked.tree();
    let machine = Machine::this()?;
    check_machine(name, unpacked.header.arch.as_deref())?;
    let listing = listing_of(name, &tree)?;
    let version = listing.version.clone();
    if let Some(said) = unpacked.header.version.as_ref().filter(|said| **said != version) {
        return Err(wrong(name, format!("its header says {said}, its .manifest {version}")));
    }
    prune(name, &tree, &listing, machine)?;
    Ok(Written {
        format: FORMAT,
        name: name.to_owned(),
        sha256: sha256.to_owned(),
        flavours: flavours(name, &tree, &version)?,
        entries: measure(&tree).map_err(|e| write_failure(&tree, e))?,
        version,
        arch: machine.uname.to_owned(),
    })
}

/// Renames the directory to `target`, replacing a damaged one; returns true if nothing is left
/// under the old name. Each step replaces one whole directory by another: no lock is needed.
fn land(dir: &Path, target: &Path) -> io::Result<bool> {
    match fs::rename(dir, target) {
        Err(e) if is_taken(&e) => {}
        renamed => return renamed.map(|()| true),
    }
    match renameat_with(CWD, dir, CWD, target, RenameFlags::EXCHANGE) {
        // Some file systems cannot exchange (renameat2(2)).
        Err(Errno::INVAL | Errno::NOSYS) => {}
        exchanged => return exchanged.map(|()| false).map_err(io::Error::from),
    }
    let aside = dir.with_extension("replaced");
    fs::rename(target, &aside)?;
    fs::rename(dir, target)?;
    fs::remove_dir_all(aside)?;
    Ok(true)
}

/// Removes the files that the manifest does not list for this machine, and sets the modes of the
/// rest.
fn prune(name: &str, tree: &Path, listing: &Listing, machine: Machine) -> Result<(), Failure> {
    let files = listing.entries.iter().filter(|e| e.target.is_none());
    let wanted: BTreeMap<&Path, u32> = files
        .filter(|entry| placed(entry, machine, &listing.version).is_some())
        .map(|entry| (entry.path.as_path(), entry.mode))
        .collect();
    for (path, mode) in &wanted {
        let lies = tree.join(path);
        if !lies.symlink_metadata().is_ok_and(|found| found.is_file()) {
            let what = format!("its .manifest lists {}, and it is not there", path.display());
            return Err(wrong(name, what));
        }
        let set = fs::set_permissions(&lies, Permissions::from_mode(*mode | 0o400));
        set.map_err(|e| write_failure(&lies, e))?;
    }
    let targets: BTreeSet<&str> =
        listing.entries.iter().filter_map(|entry| entry.target.as_deref()).collect();
    for dir in ["", "firmware"] {
        remove_unlisted(&tree.join(dir), Path::new(dir), &wanted, &targets)?;
    }
    Ok(())
}

fn remove_unlisted(
    dir: &Path,
    below: &Path,
    wanted: &BTreeMap<&Path, u32>,
    targets: &BTreeSet<&str>,
) -> Result<(), Failure> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(|e| write_failure(dir, e))?;
        let name = entry.file_name();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let listed = wanted.contains_key(below.join(&name).as_path());
        if !is_dir && !listed && name != ".manifest" {
            let linked = name.to_str().is_some_and(|name| targets.contains(name));
            tracing::debug!(?name, linked, "the manifest does not list it as a file");
            fs::remove_file(entry.path()).map_err(|e| write_failure(&entry.path(), e))?;
        }
    }
    Ok(())
}

/// Returns the flavours with sources, each checked to be of this version.
fn flavours(name: &str, tree: &Path, version: &str) -> Result<Vec<Flavour>, Failure> {
    let mut found = Vec::new();
    for (flavour, directory) in SOURCES {
        let dir = tree.join(directory);
        if !dir.join("Kbuild").is_file() || !dir.join("conftest.sh").is_file() {
            continue;
        }
        if let Some(stated) = driver::stated_version(&dir)?.filter(|stated| stated != version) {
            return Err(wrong(name, format!("{directory} is of {stated}, the rest of {version}")));
        }
        found.push(flavour);
    }
    if found.is_empty() {
        return Err(wrong(name, "it holds no kernel sources in kernel or kernel-open".to_owned()));
    }
    Ok(found)
}

fn directory_of(flavours: &[Flavour], flavour: Flavour) -> Option<&'static str> {
    let has = flavours.contains(&flavour);
    SOURCES.into_iter().find(|(f, _)| has && *f == flavour).map(|(_, name)| name)
}

fn listing_of(name: &str, tree: &Path) -> Result<Listing, Failure> {
    let path = tree.join(".manifest");
    let text = read_small(&path).map_err(|e| wrong(name, format!("it has no .manifest: {e}")))?;
    Listing::parse(&String::from_utf8_lossy(&text))
        .map_err(|what| wrong(name, format!("its .manifest cannot be used: {what}")))
}

/// Reads a file of limited size.
fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_up_to(File::open(path)?, MOST_TEXT)?;
    bytes.ok_or_else(|| io::Error::other(format!("more than {MOST_TEXT} bytes")))
}

fn wrong(name: &str, what: String) -> Failure {
    Failure::new(FailureKind::Verification, format!("{name} is not a usable driver: {what}"))
        .remedy("get the file from NVIDIA again, or choose another")
}

/// Copies files, links and times: make(1) compares times.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    if metadata.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    if metadata.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::copy(from, to)?;
    File::options().write(true).open(to)?.set_modified(metadata.modified()?)
}
