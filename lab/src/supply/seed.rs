//! The agent's store in a guest: modules and user-mode files for one kernel and driver, made by the
//! real `longshore` on this machine and given to the guest as a disk.
//!
//! The user-mode files take most of it and are the same for every kernel: the cache has one image of them per
//! driver, and a guest gets a copy with the modules added, which is removed after its run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::sets::SetStore;
use longshore_sources::userspace;

use crate::cell::needs::Needs;
use crate::cell::supply::Supply;
use crate::cell::{Cell, DriverWanted};
use crate::host::cache::{Cache, Held};
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run, run_with};
use crate::judge::event::{Sink, What};

/// A store for one kernel and driver.
#[derive(Debug)]
pub struct Seed {
    /// ext4 image for /var/lib/longshore. It has the modules once it is [completed](Seed::complete).
    pub disk: PathBuf,
    /// True if the guest's store has the modules from the beginning.
    has_modules: bool,
    _held: Held,
    /// The modules in it, or those that the guest gets in another way.
    pub set: ModuleSet,
    /// The modules of the driver that the first one is changed to.
    pub next: Option<ModuleSet>,
    /// The modules for the next kernel, which the guest compiles itself.
    pub next_kernel: Option<ModuleSet>,
    /// Store on this machine that has the set.
    store: Store,
}

/// Parts of a driver that a guest's store has from the beginning.
#[derive(Debug, Clone, Copy)]
pub struct Parts {
    modules: bool,
    userspace: bool,
    /// Objects and conftest results of earlier compiles.
    compiled: bool,
    /// True if some of these objects are left out, for a compile that takes a while.
    lacks_objects: bool,
}

impl Parts {
    /// Returns the parts for a cell with these needs of its scenario.
    pub fn new(cell: &Cell, needs: Needs) -> Self {
        let (modules, userspace) = match cell.from {
            Supply::Archive | Supply::UbuntuArchive | Supply::BuildRoot | Supply::FabricManager => {
                (true, true)
            }
            Supply::RunFile | Supply::SourceTree => (true, false),
            Supply::Registry | Supply::Store => (false, true),
            Supply::Bundle | Supply::Compile | Supply::FinishedModules => (false, false),
        };
        let compiled = cell.from == Supply::Compile;
        let lacks_objects = compiled && needs.lacks_objects;
        Self { modules, userspace, compiled, lacks_objects }
    }
}

/// Argument of a fetch of the modules alone.
pub(crate) const MODULES_ONLY: &str = "--modules-only";
/// Kind of the cached images.
pub const SEED: &str = "seed";
/// Directories of a store in which compiles keep results for later ones.
const COMPILED: [&str; 2] = ["conftests", "objects"];
/// Of the objects, one in so many is left out, if any: the compiler runs for minutes then. All of them take an
/// emulated machine an hour.
const LEFT_OUT: usize = 60;
/// Number of files of a build root with a kernel's headers, and of a driver's sources beside it.
const BUILD_FILES: u64 = 1 << 17;
/// Time limit for fetching a toolchain and a driver, and for compiling it.
const FETCH_LIMIT: Duration = Duration::from_secs(1800);
/// Free space for the guest to write to, MiB: an unpacked .run file takes most. Sparse on this
/// machine.
const SPARE: u64 = 4096;

/// A driver, and the `longshore fetch` that fetches it into a store and compiles it.
pub struct Fetch<'a> {
    /// The command.
    pub command: Command,
    /// The driver.
    pub driver: &'a DriverWanted,
    /// The kernel's release.
    pub release: &'a str,
    /// sha256 of the key of the wanted set, which the store has; None for the one that `longshore fetch` prints.
    pub set: Option<&'a str>,
}

/// Everything that is fetched for a seed.
pub struct Fetches<'a> {
    /// The driver that is installed first.
    pub first: Fetch<'a>,
    /// The driver that it is changed to, if any.
    pub next: Option<Fetch<'a>>,
    /// The first driver for the kernel that is booted next, if any: the guest has the results of its
    /// compile, and not its modules.
    pub next_kernel: Option<Fetch<'a>>,
}

impl<'a> Fetches<'a> {
    /// Returns the fetch of one driver alone.
    pub fn new(first: Fetch<'a>) -> Self {
        Self { first, next: None, next_kernel: None }
    }
}

/// A driver in the store on this machine.
struct Fetched {
    set: ModuleSet,
    /// The directory of its user-mode tree; None where the modules alone were fetched.
    userspace: Option<PathBuf>,
}

/// Fetches drivers into `store`, and makes a disk of the parts that a guest has from the beginning.
///
/// # Errors
/// `longshore fetch` failed, or left no such modules in the store.
pub fn make(
    cache: &Cache,
    fetches: Fetches<'_>,
    store: &Path,
    mut parts: Parts,
    sink: &Sink<'_>,
) -> Result<Seed, Error> {
    let Fetches { first, next, next_kernel } = fetches;
    let (store, drivers, next_kernel) = {
        let _held = cache.lock("store")?;
        let fetched = |fetch: Fetch<'_>| fetched(fetch, store, sink);
        let drivers: Result<Vec<_>, _> = [first].into_iter().chain(next).map(fetched).collect();
        let next_kernel = next_kernel.map(fetched).transpose()?;
        (Store::open(store, disk::of_this_machine())?, drivers?, next_kernel)
    };
    // An agent that prepares for a kernel has a driver that is Ready.
    (parts.modules, parts.userspace) =
        (parts.modules || next_kernel.is_some(), parts.userspace || next_kernel.is_some());
    let inputs = inputs(&drivers, next_kernel.as_ref(), parts);
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let filled = |dir: &Path| fill(dir, &store, &drivers, parts);
    let (dir, held) = cache.produce_held(SEED, &inputs, filled)?;
    let mut sets = drivers.into_iter().map(|fetched| fetched.set);
    let set = sets.next().ok_or_else(|| Error::Unexpected("no driver was fetched".into()))?;
    let (disk, next) = (dir.join("store.ext4"), sets.next());
    let next_kernel = next_kernel.map(|fetched| fetched.set);
    Ok(Seed { disk, has_modules: parts.modules, _held: held, set, next, next_kernel, store })
}

/// Returns all that the cached image depends on; without modules, it is the same for every kernel.
fn inputs(drivers: &[Fetched], next_kernel: Option<&Fetched>, parts: Parts) -> Vec<String> {
    let mut inputs = vec!["without modules".to_owned()];
    for Fetched { set, userspace } in drivers.iter().chain(next_kernel) {
        if let Some(userspace) = userspace.as_ref().filter(|_| parts.userspace) {
            inputs.push(userspace.display().to_string());
        }
        if parts.compiled {
            let digests: Vec<&str> = set.modules.iter().map(|m| m.sha256.as_str()).collect();
            inputs.extend([set.key.file_stem(), digests.join(","), format!("{BUILD_FILES} files")]);
        }
        if parts.lacks_objects {
            inputs.push(format!("without an object of {LEFT_OUT}"));
        }
    }
    inputs
}

impl Seed {
    /// Adds the modules, if the guest's store has them from the beginning, in a copy of the image in `dir`.
    ///
    /// # Errors
    /// A file cannot be read or written; cp or debugfs failed.
    pub fn complete(&mut self, dir: &Path) -> Result<(), Error> {
        if !self.has_modules {
            return Ok(());
        }
        let (tree, image) = (dir.join("modules"), dir.join("seed.ext4"));
        let own = Store::open(&tree, disk::of_this_machine())?;
        let before = disk::paths(&tree)?;
        for set in [&self.set].into_iter().chain(&self.next) {
            copy(&self.store, set, &own)?;
        }
        disk::copy_sparse(&self.disk, &image)?;
        disk::add(&tree, &before, &image)?;
        fs::remove_dir_all(&tree).at("remove", &tree)?;
        self.disk = image;
        Ok(())
    }
}

fn fetched(mut fetch: Fetch<'_>, store: &Path, sink: &Sink<'_>) -> Result<Fetched, Error> {
    fetch.command.env("LONGSHORE_LOG_FORMAT", "pretty");
    let tell = |line: &str| sink.tell(What::Output(line.to_owned()));
    let said = run_with(&mut fetch.command, FETCH_LIMIT, tell)?.join("\n");
    let store = Store::open(store, disk::of_this_machine())?;
    let has_tree = !fetch.command.get_args().any(|argument| argument == MODULES_ONLY);
    let userspace = has_tree.then(|| find_userspace(&store, &said)).transpose()?;
    Ok(Fetched { set: find_set(&store, &said, &fetch)?, userspace })
}

/// Makes `dir` a store that contains only the seed's set.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy_set(seed: &Seed, dir: &Path) -> Result<(), Error> {
    copy(&seed.store, &seed.set, &Store::open(dir, disk::of_this_machine())?)
}

/// Writes the seed's modules into `dir`, each as `NAME.ko`.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_modules(seed: &Seed, dir: &Path) -> Result<(), Error> {
    for module in &seed.set.modules {
        let blob = seed.store.blob_path(&module.sha256);
        fs::copy(&blob, dir.join(&module.file)).at("copy", &blob)?;
    }
    Ok(())
}

fn copy(from: &Store, set: &ModuleSet, to: &Store) -> Result<(), Error> {
    for module in &set.modules {
        let blob = from.blob_path(&module.sha256);
        fs::copy(&blob, to.blob_path(&module.sha256)).at("copy", &blob)?;
    }
    to.put_set(set)?;
    Ok(())
}

/// Returns the set of a fetch that printed `said`.
fn find_set(store: &Store, said: &str, fetch: &Fetch<'_>) -> Result<ModuleSet, Error> {
    chosen(store.sets()?, said, fetch).ok_or_else(|| {
        let (branch, flavour) = (&fetch.driver.branch, fetch.driver.flavour);
        let (root, release) = (store.root().display(), fetch.release);
        Error::Unexpected(format!("{root} has no set {branch} {flavour} for {release} of: {said}"))
    })
}

/// Returns the wanted set, or else the one that `fetch` printed. The store may have others of the same version, made of
/// other packages, with more modules or by an older longshore, which are not to be tested.
fn chosen(sets: Vec<ModuleSet>, said: &str, fetch: &Fetch<'_>) -> Option<ModuleSet> {
    let is_meant = |set: &ModuleSet| match fetch.set {
        Some(digest) => set.key.digest() == digest,
        None => said.contains(&set.key.file_stem()),
    };
    sets.into_iter().find(|set| {
        is_meant(set)
            && set.key.kernel_release == fetch.release
            && set.key.flavour == fetch.driver.flavour
            && fetch.driver.is_met_by(&set.key.driver_version)
    })
}

/// Returns the directory of the user-mode tree that `fetch` printed; its name has the manifest's
/// digest.
fn find_userspace(store: &Store, said: &str) -> Result<PathBuf, Error> {
    userspace::available(store)?
        .into_iter()
        .filter(|tree| said.contains(&tree.root.display().to_string()))
        .find_map(|tree| tree.root.parent().map(Path::to_path_buf))
        .ok_or_else(|| {
            let root = store.root().display();
            Error::Unexpected(format!("{root} has no user-mode tree of: {said}"))
        })
}

fn fill(dir: &Path, store: &Store, drivers: &[Fetched], parts: Parts) -> Result<(), Error> {
    let tree = dir.join("tree");
    let own = Store::open(&tree, disk::of_this_machine())?;
    for Fetched { userspace, .. } in drivers {
        if let Some(userspace) = userspace.as_ref().filter(|_| parts.userspace) {
            run(Command::new("cp").arg("-a").arg(userspace).arg(own.dir("userspace")), LIMIT)?;
        }
    }
    let image = dir.join("store.ext4");
    if parts.compiled {
        for part in COMPILED {
            run(Command::new("cp").arg("-a").arg(store.dir(part)).arg(&tree), LIMIT)?;
        }
        if parts.lacks_objects {
            leave_out(&tree.join("objects"))?;
        }
        disk::make_for(&tree, &image, SPARE, BUILD_FILES)?;
    } else {
        disk::make(&tree, &image, SPARE)?;
    }
    fs::remove_dir_all(&tree).at("remove", &tree)
}

/// Removes one in [`LEFT_OUT`] objects of ccache's: files whose names end in `R`, for result.
fn leave_out(objects: &Path) -> Result<(), Error> {
    let is_result = |path: &PathBuf| path.to_string_lossy().ends_with('R');
    let results: Vec<PathBuf> = disk::paths(objects)?.into_iter().filter(is_result).collect();
    if results.len() < LEFT_OUT {
        let why = format!("{} has {} objects of compiles", objects.display(), results.len());
        return Err(Error::Unexpected(why));
    }
    for path in results.iter().step_by(LEFT_OUT) {
        let path = objects.join(path);
        fs::remove_file(&path).at("remove", &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a set with these options.
    fn set(options: &str) -> ModuleSet {
        let set = serde_json::json!({"modules": [], "key": {
            "driver_version": "550.1", "flavour": "open", "driver_digest": "a".repeat(64),
            "kernel_release": "6.1", "kernel_version": "v", "arch": "x86_64", "headers": {},
            "compiler": "gcc", "options": [options],
        }});
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn one_in_sixty_objects_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("signed/0");
        fs::create_dir_all(&own).unwrap();
        let make = |range: std::ops::Range<usize>| {
            range.for_each(|n| fs::write(own.join(format!("{n:03}R")), "").unwrap());
        };
        make(0..59);
        assert!(leave_out(dir.path()).unwrap_err().to_string().contains("59 objects"));
        make(59..180);
        fs::write(own.join("000M"), "").unwrap();
        leave_out(dir.path()).unwrap();
        let left = disk::paths(&own).unwrap();
        assert_eq!(left.len(), 178);
        assert!(left.contains(Path::new("000M")) && !left.contains(Path::new("060R")));
    }

    #[test]
    fn a_wanted_set_is_taken_whichever_was_printed() {
        let [wanted, more] = ["modules=nvidia", "modules=nvidia,nvidia-drm"].map(set);
        let driver: DriverWanted =
            toml::from_str("branch = '550'\nflavour = 'open'").expect("a driver");
        let said = format!("to the store: {}", more.key.file_stem());
        let found = |set: Option<&str>, release: &str| {
            let fetch = Fetch { command: Command::new("true"), driver: &driver, release, set };
            chosen(vec![more.clone(), wanted.clone()], &said, &fetch).map(|set| set.key)
        };
        assert_eq!(found(None, "6.1"), Some(more.key.clone()));
        assert_eq!(found(Some(&wanted.key.digest()), "6.1"), Some(wanted.key.clone()));
        assert_eq!(found(Some(&"0".repeat(64)), "6.1"), None);
        assert_eq!(found(Some(&wanted.key.digest()), "6.12"), None);
    }
}
