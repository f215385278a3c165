//! Table of the entries that this program can have written: one rule for every kind of step, with
//! its paths, names and values. A record with any other entry is refused whole, before anything of
//! it is undone.
//!
//! Undoing follows paths from the record, as root. A forged record could have any file overwritten,
//! unmounted or removed; by this table it can name nothing but an agent's own work. A new kind of
//! step needs a new rule here: its intent is refused until it has one.

mod daemon;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::{Before, Entry, NodeBefore, State};
use crate::host::modules::is_of_driver;
use crate::host::places::{self, FIRMWARE_PATH};
use crate::host::verbs::Node;
use crate::paths;
use crate::paths::Paths;
use crate::step::{Leftover, ModuleOrigin, Step};

/// MODULE_NAME_LEN of the kernel (include/linux/moduleparam.h) with 64-bit longs, less its end.
const MODULE_NAME: usize = 55;
/// Longest firmware path that the kernel takes (drivers/base/firmware_loader/main.c,
/// `fw_path_para`).
const FIRMWARE_VALUE: usize = 255;
/// Limit of a module's parameters, in bytes: sysfs would show at most a page of each.
const PARAMETERS: usize = 64 << 10;
/// Directories in which the kernel should find no firmware: other users write there.
const OTHERS: [&str; 7] = ["/run", "/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/home"];
/// NVIDIA's major number, and that of InfiniBand's user MADs
/// (Documentation/admin-guide/devices.txt).
const FIXED_MAJORS: [u32; 2] = [195, 231];
/// Majors that the kernel allocates (include/linux/fs.h, `CHRDEV_MAJOR_DYN_END` and beside it).
const GIVEN_MAJORS: [std::ops::RangeInclusive<u32>; 2] = [234..=254, 384..=511];

/// Proof that an agent wrote a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// Its place, or its seal.
    Whole,
    /// No proof: an older agent left it where others can write.
    None,
}

/// Settings that the rules depend on.
#[derive(Debug, Clone)]
pub(super) struct Table {
    proof: Proof,
    driver_roots: Vec<PathBuf>,
    stores: Vec<PathBuf>,
    /// Directories that get device nodes.
    devs: Vec<PathBuf>,
    #[cfg(test)]
    any_entry: bool,
}

/// Checks every step of a record.
///
/// # Errors
/// Names the first one that no agent writes.
pub(super) fn check(state: &State, paths: &Paths, proof: Proof) -> Result<(), String> {
    let table = Table { proof, ..Table::of(state, paths) };
    let named = |entry: &Entry| format!("entry {} ({})", entry.seq, entry.step.kind());
    let mut last = 0;
    for entry in &state.entries {
        if entry.seq <= last || entry.seq >= u64::from(u32::MAX) {
            return Err(format!("{} is out of order", named(entry)));
        }
        last = entry.seq;
        table
            .entry(&entry.step, &entry.before)
            .map_err(|why| format!("{}: {why}", named(entry)))?;
    }
    let refused = state.refused.iter().flat_map(|refused| &refused.loads);
    for step in state.previous.iter().chain(refused) {
        table.step(step).map_err(|why| format!("a step to carry out again: {why}"))?;
    }
    Ok(())
}

impl Table {
    /// Returns the table for entries of this program, made with the settings that the record names,
    /// and the present ones.
    pub(super) fn of(state: &State, paths: &Paths) -> Self {
        let mut driver_roots = vec![paths.driver_root.clone(), PathBuf::from(paths::DRIVER_ROOT)];
        let mut stores = vec![paths.store.clone(), PathBuf::from(paths::STORE)];
        for made_for in &state.made_for {
            driver_roots.push(made_for.driver_root.clone());
            stores.push(made_for.store.clone());
        }
        driver_roots.retain(|root| is_below_root(root));
        stores.retain(|store| is_below_root(store));
        let mut roots = vec![paths.host_root.clone(), PathBuf::from("/")];
        roots.extend(state.host_root.as_ref().map(|root| root.path.clone()));
        roots.retain(|root| is_plain(root));
        let devs = roots.iter().chain(&driver_roots).map(|root| root.join("dev")).collect();
        Self {
            proof: Proof::Whole,
            driver_roots,
            stores,
            devs,
            #[cfg(test)]
            any_entry: paths.any_entry,
        }
    }

    /// Checks a step with the state before it.
    ///
    /// # Errors
    /// A message, if no agent writes such an entry.
    pub(super) fn entry(&self, step: &Step, before: &Before) -> Result<(), String> {
        #[cfg(test)]
        if self.any_entry {
            return Ok(());
        }
        self.step(step)?;
        match (step, before) {
            (Step::MakeDir { path }, Before::MissingDirs { dirs }) => leads_to(dirs, path),
            (Step::WriteParameter { .. }, Before::Value { value }) => self.firmware_before(value),
            (Step::LoadModule { .. }, Before::NotLoaded)
            | (Step::RemoveLeftover { .. }, Before::Leftover)
            | (
                Step::Bind { .. } | Step::Share { .. } | Step::MountTmpfs { .. },
                Before::Mounts { .. },
            ) => Ok(()),
            (Step::StartDaemon { .. }, Before::NoDaemon { mark }) => daemon::mark(mark),
            (Step::MakeNodes { dirs }, Before::Nodes { missing_dirs, nodes }) => {
                nodes.iter().try_for_each(|node| node_before(dirs, node))?;
                missing_dirs.iter().try_for_each(|dir| missing_below(dirs, dir))
            }
            _ => Err("no such step has this state before it".to_owned()),
        }
    }

    fn step(&self, step: &Step) -> Result<(), String> {
        #[cfg(test)]
        if self.any_entry {
            return Ok(());
        }
        match step {
            Step::MakeDir { path } => self.directory(path),
            Step::WriteParameter { path, value } => self.firmware_path(path, value),
            Step::LoadModule { name, origin, parameters, version, srcversion } => {
                module(name, origin)?;
                let said = [version, srcversion].into_iter().flatten().map(String::as_str);
                [parameters.as_str()].into_iter().chain(said).try_for_each(one_line)
            }
            Step::Bind { source, target } => self.bind(source, target),
            Step::MountTmpfs { target } => {
                let targets = |root: &PathBuf| ["dev", "run"].map(|name| root.join(name));
                given(self.driver_roots.iter().flat_map(targets).any(|at| at == *target), target)
            }
            Step::Share { source, target } => {
                let is_dir = daemon::shown_dirs().any(|dir| dir == target);
                let is_same = |root: &PathBuf| below(root, target) == *source;
                given(is_dir && is_plain(target), target)?;
                given(self.driver_roots.iter().any(is_same), source)
            }
            Step::StartDaemon { daemon } => {
                let is_of = |root: &PathBuf| daemon::is_of_table(daemon, root);
                let of_one = self.driver_roots.iter().any(is_of);
                if of_one { Ok(()) } else { Err(format!("no daemon is started as {daemon} is")) }
            }
            Step::RemoveLeftover { what } => self.leftover(what),
            Step::MakeNodes { dirs } => {
                dirs.iter().try_for_each(|dir| given(self.devs.contains(dir), dir))
            }
        }
    }

    /// Accepts the driver root, or a directory that is exposed at its own path, here or below the
    /// driver root.
    fn directory(&self, path: &Path) -> Result<(), String> {
        let of_root = |root: &PathBuf| {
            root == path || daemon::shown_dirs().any(|dir| below(root, dir) == path)
        };
        let is = self.driver_roots.iter().any(of_root) || daemon::shown_dirs().any(|d| d == path);
        given(is && is_plain(path), path)
    }

    fn firmware_path(&self, path: &Path, value: &str) -> Result<(), String> {
        given(path == Path::new(FIRMWARE_PATH), path)?;
        given(self.is_own_firmware(value), Path::new(value))
    }

    fn is_own_firmware(&self, value: &str) -> bool {
        self.driver_roots.iter().any(|root| is(Path::new(value), &root.join("lib/firmware")))
    }

    /// Accepts any value that the host had if an agent is proved to have read it; else none, or a
    /// directory that only root writes to.
    fn firmware_before(&self, value: &str) -> Result<(), String> {
        // A path on the kernel's command line may end in a slash.
        let path = Path::new(value.strip_suffix('/').unwrap_or(value));
        let is_text = value.len() <= FIRMWARE_VALUE && !value.chars().any(char::is_control);
        let is_hosts = || is_below_root(path) && !OTHERS.iter().any(|dir| path.starts_with(dir));
        let is_safe = || value.is_empty() || self.is_own_firmware(value) || is_hosts();
        given(is_text && (self.proof == Proof::Whole || is_safe()), path)
    }

    /// Accepts a tree of a store on the driver root.
    fn bind(&self, source: &Path, target: &Path) -> Result<(), String> {
        given(self.driver_roots.iter().any(|root| is(target, root)), target)?;
        let is_tree = |store: &PathBuf| {
            let inside = source.strip_prefix(store.join("userspace")).unwrap_or(Path::new(""));
            let mut parts = inside.components();
            let named = matches!(parts.next(), Some(Component::Normal(_)));
            named && parts.as_path() == Path::new("root")
        };
        given(is_plain(source) && self.stores.iter().any(is_tree), source)
    }

    fn leftover(&self, what: &Leftover) -> Result<(), String> {
        match what {
            Leftover::Mount { target, .. } => {
                given(self.driver_roots.iter().any(|root| is(target, root)), target)
            }
            Leftover::File { path, .. } => {
                let beside = |root: &PathBuf| {
                    let parent = root.parent().unwrap_or(root);
                    places::FILES.iter().any(|name| is(path, &parent.join(name)))
                };
                given(self.driver_roots.iter().any(beside), path)
            }
            Leftover::Value { path, value } => self.firmware_path(path, value),
        }
    }
}

/// Accepts the host's own module by its file, or one of the driver's by its digest.
fn module(name: &str, origin: &ModuleOrigin) -> Result<(), String> {
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let plain = !name.is_empty() && name.len() <= MODULE_NAME && name.bytes().all(is_byte);
    let fits = plain
        && match origin {
            ModuleOrigin::Driver { sha256 } => is_of_driver(name) && is_hex(sha256, 64),
            ModuleOrigin::Kernel { file } => !is_of_driver(name) && is_module_file(file, name),
        };
    if fits { Ok(()) } else { Err(format!("no module is loaded as {name:?} is")) }
}

/// True if a path below /lib/modules/RELEASE is that of the module's file.
fn is_module_file(file: &Path, name: &str) -> bool {
    let Some(last) = file.file_name().and_then(OsStr::to_str) else { return false };
    let stem = last.split_once(".ko").map(|(stem, _)| stem.replace('-', "_"));
    stem.as_deref() == Some(name)
        && file.components().all(|part| matches!(part, Component::Normal(_)))
        && is_written_plainly(file)
}

/// Accepts a node in one of the directories, and the one in its place before.
fn node_before(dirs: &[PathBuf], node: &NodeBefore) -> Result<(), String> {
    let NodeBefore { path, made, was } = node;
    let is_named = |dir: &PathBuf| path.strip_prefix(dir).is_ok_and(is_node_name);
    given(is_plain(path) && dirs.iter().any(is_named), path)?;
    let is_known = |node: &Node| {
        let given = || GIVEN_MAJORS.iter().any(|majors| majors.contains(&node.major));
        node.mode & !0o777 == 0 && (FIXED_MAJORS.contains(&node.major) || given())
    };
    if is_known(made) && was.as_ref().is_none_or(is_known) {
        return Ok(());
    }
    Err(format!("{} is no such device", path.display()))
}

/// Accepts a missing directory on the way to a node.
fn missing_below(dirs: &[PathBuf], missing: &Path) -> Result<(), String> {
    let is_inside = |dir: &PathBuf| {
        missing
            .strip_prefix(dir)
            .is_ok_and(|name| name.components().count() == 1 && is_device_name(name.as_os_str()))
    };
    given(is_plain(missing) && dirs.iter().any(is_inside), missing)
}

/// True for `nvidia0`, `nvidia-caps/nvidia-cap1`, `nvidia-caps-imex-channels/channel0`,
/// `infiniband/umad0`.
fn is_node_name(name: &Path) -> bool {
    let parts: Vec<&OsStr> = name.components().map(Component::as_os_str).collect();
    match parts.as_slice() {
        [name] => is_device_name(name) && *name != OsStr::new("infiniband"),
        [dir, name] => is_device_name(dir) && is_word(name),
        _ => false,
    }
}

fn is_device_name(name: &OsStr) -> bool {
    is_word(name) && (name.as_bytes().starts_with(b"nvidia") || name == OsStr::new("infiniband"))
}

fn is_word(name: &OsStr) -> bool {
    let is_byte =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(byte);
    name.as_bytes().iter().all(is_byte)
}

/// Checks that the directories are the last of those that lead to `path`, outermost first.
fn leads_to(dirs: &[PathBuf], path: &Path) -> Result<(), String> {
    let mut way: Vec<&Path> = path.ancestors().take(dirs.len()).collect();
    way.reverse();
    let is_way = way.len() == dirs.len() && way.iter().zip(dirs).all(|(a, b)| is(b, a));
    let is_root = dirs.iter().any(|dir| dir == Path::new("/"));
    given(!dirs.is_empty() && is_way && !is_root, path)
}

/// Returns `path` below `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// True if both are the same path, written the same.
fn is(path: &Path, wanted: &Path) -> bool {
    path.as_os_str() == wanted.as_os_str()
}

/// True if a path is absolute, without `.`, `..`, a second slash or a control character.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && !path.components().any(|part| part == Component::ParentDir)
        && is_written_plainly(path)
}

fn is_written_plainly(path: &Path) -> bool {
    let again: PathBuf = path.components().collect();
    is(path, &again) && !path.as_os_str().as_bytes().iter().any(u8::is_ascii_control)
}

fn is_below_root(path: &Path) -> bool {
    is_plain(path) && path != Path::new("/")
}

fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == digits && text.bytes().all(is_digit)
}

fn one_line(text: &str) -> Result<(), String> {
    if text.len() <= PARAMETERS && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err("no module is given such parameters".to_owned())
}

fn given(holds: bool, path: &Path) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("no such step is at {:?}", path.display().to_string())) }
}

#[cfg(test)]
mod tests;
