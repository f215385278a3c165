//! What the agent finds in its store: modules and user-mode files for one kernel and driver, made
//! by the real `longshore` on this machine and handed to the guest as a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore::artifact::ModuleSet;
use longshore::source::userspace;
use longshore::store::Store;

use crate::cache::Cache;
use crate::disk;
use crate::error::{At, Error};
use crate::matrix::DriverWanted;
use crate::process::{LIMIT, run};

/// A store for one kernel and driver.
#[derive(Debug)]
pub struct Seed {
    /// ext4 image for /var/lib/longshore.
    pub disk: PathBuf,
    /// The modules in it.
    pub set: ModuleSet,
}

/// Packages of a toolchain, a driver and its compiling.
const FETCH_LIMIT: Duration = Duration::from_secs(1800);
/// Room for the guest to write to, MiB.
const SPARE: u64 = 256;

/// Runs `fetch`, which brings what the kernel `release` needs into `store` and compiles it, and makes
/// a disk of just that.
///
/// # Errors
/// `longshore fetch` failed, or left no such modules in the store.
pub fn make(
    cache: &Cache,
    fetch: &mut Command,
    store: &Path,
    release: &str,
    driver: &DriverWanted,
) -> Result<Seed, Error> {
    let (store, said) = {
        let _held = cache.lock("store")?;
        let said = run(fetch, FETCH_LIMIT)?.join("\n");
        (Store::open(store)?, said)
    };
    let set = find_set(&store, &said, release, driver)?;
    let userspace = find_userspace(&store, &said)?;
    let digests: Vec<&str> = set.modules.iter().map(|m| m.sha256.as_str()).collect();
    let inputs = [set.key.file_stem(), digests.join(","), userspace.display().to_string()];
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let dir = cache.produce("seed", &inputs, |dir| fill(dir, &store, &set, &userspace))?;
    Ok(Seed { disk: dir.join("store.ext4"), set })
}

/// The set that `fetch` said it brought. The store may have others of the same version, made of
/// other packages or by an older longshore: they are not what is to be tested.
fn find_set(
    store: &Store,
    said: &str,
    release: &str,
    driver: &DriverWanted,
) -> Result<ModuleSet, Error> {
    let fits = |set: &ModuleSet| {
        said.contains(&set.key.file_stem())
            && set.key.kernel_release == release
            && set.key.flavour == driver.flavour
            && driver.is_met_by(&set.key.driver_version)
    };
    store.sets()?.into_iter().find(fits).ok_or_else(|| {
        let (branch, flavour) = (&driver.branch, driver.flavour_name());
        let root = store.root().display();
        Error::Unexpected(format!("{root} has no set {branch} {flavour} for {release} of: {said}"))
    })
}

/// The directory of the user-mode tree that `fetch` said it brought; its name has the manifest's
/// digest.
fn find_userspace(store: &Store, said: &str) -> Result<PathBuf, Error> {
    userspace::at_hand(store)?
        .into_iter()
        .filter(|tree| said.contains(&tree.root.display().to_string()))
        .find_map(|tree| tree.root.parent().map(Path::to_path_buf))
        .ok_or_else(|| {
            let root = store.root().display();
            Error::Unexpected(format!("{root} has no user-mode tree of: {said}"))
        })
}

fn fill(dir: &Path, store: &Store, set: &ModuleSet, userspace: &Path) -> Result<(), Error> {
    let tree = dir.join("tree");
    let own = Store::open(&tree)?;
    for module in &set.modules {
        let from = store.blob_path(&module.sha256);
        fs::copy(&from, own.blob_path(&module.sha256)).at("copy", &from)?;
    }
    own.put_set(set)?;
    run(Command::new("cp").arg("-a").arg(userspace).arg(own.dir("userspace")), LIMIT)?;
    disk::make(&tree, &dir.join("store.ext4"), SPARE)?;
    fs::remove_dir_all(&tree).at("remove", &tree)
}
