//! What the agent finds in its store: modules and user-mode files for one kernel and driver, made
//! by the real `longshore` on this machine and handed to the guest as a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore::artifact::ModuleSet;

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
    {
        let _held = cache.lock("store")?;
        run(fetch, FETCH_LIMIT)?;
    }
    let (name, set) = find_set(store, release, driver)?;
    let userspace = userspace_of(store, &set.key.driver_version)?;
    let digests: Vec<&str> = set.modules.iter().map(|m| m.sha256.as_str()).collect();
    let digests = digests.join(",");
    let manifest = fs::read_to_string(userspace.join("manifest.json"))
        .at("read", &userspace.join("manifest.json"))?;
    let dir = cache.produce("seed", &[&name, &digests, &manifest], |dir| {
        fill(dir, store, &name, &set, &userspace)
    })?;
    Ok(Seed { disk: dir.join("store.ext4"), set })
}

fn find_set(
    store: &Path,
    release: &str,
    driver: &DriverWanted,
) -> Result<(String, ModuleSet), Error> {
    let dir = store.join("sets");
    let mut best: Option<(String, ModuleSet)> = None;
    for entry in fs::read_dir(&dir).at("read", &dir)? {
        let path = entry.at("read", &dir)?.path();
        let bytes = fs::read(&path).at("read", &path)?;
        let set: ModuleSet = serde_json::from_slice(&bytes)
            .map_err(|e| Error::Unexpected(format!("{}: {e}", path.display())))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fits = set.key.kernel_release == release
            && set.key.flavour == driver.flavour
            && driver.is_met_by(&set.key.driver_version);
        let newer = |(old, than): &(String, ModuleSet)| {
            (&than.key.driver_version, old) < (&set.key.driver_version, &name)
        };
        if fits && best.as_ref().is_none_or(newer) {
            best = Some((name, set));
        }
    }
    best.ok_or_else(|| {
        let (branch, flavour) = (&driver.branch, driver.flavour_name());
        let dir = dir.display();
        Error::Unexpected(format!("{dir} has no set {branch} {flavour} for {release}"))
    })
}

/// The directory of the user-mode tree for a driver version.
fn userspace_of(store: &Path, version: &str) -> Result<PathBuf, Error> {
    let dir = store.join("userspace");
    for entry in fs::read_dir(&dir).at("read", &dir)? {
        let path = entry.at("read", &dir)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains(version) && path.join("manifest.json").is_file() {
            return Ok(path);
        }
    }
    Err(Error::Unexpected(format!("{} has nothing for {version}", dir.display())))
}

fn fill(
    dir: &Path,
    store: &Path,
    name: &str,
    set: &ModuleSet,
    userspace: &Path,
) -> Result<(), Error> {
    let tree = dir.join("tree");
    for part in ["blobs/sha256", "sets", "userspace", "roots", "logs", "tmp"] {
        let path = tree.join(part);
        fs::create_dir_all(&path).at("make", &path)?;
    }
    let mut copy = vec![PathBuf::from("sets").join(name)];
    copy.extend(set.modules.iter().map(|m| PathBuf::from("blobs/sha256").join(&m.sha256)));
    for file in copy {
        fs::copy(store.join(&file), tree.join(&file)).at("copy", &store.join(&file))?;
    }
    run(Command::new("cp").arg("-a").arg(userspace).arg(tree.join("userspace")), LIMIT)?;
    disk::make(&tree, &dir.join("store.ext4"), SPARE)?;
    fs::remove_dir_all(&tree).at("remove", &tree)
}
