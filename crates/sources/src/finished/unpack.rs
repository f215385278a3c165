//! Modules of a package, unpacked and brought into the store.

use std::fs::OpenOptions;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::FinishedModules;
use longshore_core::driver_modules;
use longshore_core::durable::write_failure;
use longshore_core::failure::Failure;
use longshore_core::scratch::claim;
use longshore_core::store::Store;
use longshore_debian::bounds::Bounded;
use longshore_debian::compression::decompressed;
use longshore_debian::deb;
use longshore_debian::faults;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::layout::elsewhere::{CompiledElsewhere, OfPackage};

/// Maximum size of a package's files together, and of a decompressed module: the proprietary
/// modules have some 100 MiB.
const MOST: u64 = 512 << 20;
/// Endings of compressed modules.
const COMPRESSED: [&str; 3] = [".xz", ".zst", ".gz"];

/// Reads the modules of a package that is in the store, and stores them; returns the set of them,
/// which is not recorded yet.
///
/// # Errors
/// Exit code 13 where it has no nvidia.ko for the kernel, or anything but modules of one driver and
/// that kernel in its place; 15 where the store cannot be written.
pub fn read(finished: &FinishedModules, store: &Store) -> Result<ModuleSet, Failure> {
    let (package, release) = (&finished.package, &finished.kernel.release);
    let unpacked = claim(store, "modules")?;
    let reader = store.open_blob(&package.sha256)?;
    let wanted = |path: &Path| module_name(path, release).is_some();
    deb::each_file(&package.name, reader, MOST, &wanted, &mut |path, file| {
        let Some(name) = module_name(path, release) else { return Ok(()) };
        write(&package.name, path, file, &unpacked.path().join(name))
    })?;
    store_from(unpacked.path(), finished, store)
}

/// Stores the modules of the directory `dir`, which come from a package or were linked from its objects; returns the
/// set of them, which is not recorded yet.
///
/// # Errors
/// As [`read`].
pub fn store_from(
    dir: &Path,
    finished: &FinishedModules,
    store: &Store,
) -> Result<ModuleSet, Failure> {
    let modules = CompiledElsewhere {
        dir: dir.to_path_buf(),
        release: Some(finished.kernel.release.clone()),
        package: Some(of_package(finished)),
    };
    modules.examine()?.store_modules(&finished.kernel.version, store)
}

fn of_package(finished: &FinishedModules) -> OfPackage {
    let (id, mut beside) = (super::id(&finished.package), finished.digests());
    beside.remove(&id);
    OfPackage {
        id,
        sha256: finished.package.sha256.clone(),
        beside,
        linker: finished.linked.as_ref().map(|linked| linked.linker_version()),
    }
}

/// Returns the file name, without the ending of its compression, of a module of NVIDIA's driver for
/// the kernel `release`; None for any other path in a package.
fn module_name(path: &Path, release: &str) -> Option<PathBuf> {
    let merged = path.strip_prefix("usr").unwrap_or(path);
    let below = merged.strip_prefix("lib/modules").ok()?.strip_prefix(release).ok()?;
    let name = below.file_name()?.to_str()?;
    let name = COMPRESSED.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let module = name.strip_suffix(".ko")?.replace('-', "_");
    driver_modules::is_one(&module).then(|| name.into())
}

fn write(package: &str, path: &Path, file: &mut dyn Read, to: &Path) -> Result<(), Failure> {
    let name = path.to_string_lossy();
    let damaged = |e| faults::damaged(package, e);
    let reader = decompressed(&name, BufReader::new(file)).map_err(damaged)?;
    let mut bytes = Vec::new();
    Bounded::new(reader, MOST).read_to_end(&mut bytes).map_err(damaged)?;
    // create_new: no second file takes the place of the first.
    let mut target = match OpenOptions::new().write(true).create_new(true).open(to) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            return Err(faults::bad(package, &format!("it holds {name} twice")));
        }
        opened => opened.map_err(|e| write_failure(to, e))?,
    };
    io::Write::write_all(&mut target, &bytes).map_err(|e| write_failure(to, e))
}
