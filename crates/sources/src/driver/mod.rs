//! Driver packages in an archive: available versions and flavours, and their kernel sources.
//!
//! Debian's packages are called `nvidia[-open][-tesla[-BRANCH]]-kernel-source`; each holds
//! `usr/src/NAME.tar.xz` with the patched sources below `modules/NAME/`. Other distributions put
//! the unpacked sources below `usr/src`. Both are found by their `Kbuild` and `conftest.sh`. Ubuntu's
//! are called `nvidia-kernel-source-BRANCH[-server][-open]`, those of NVIDIA's archive for Ubuntu from 590 on
//! `nvidia-kernel-source[-open]`; `nvidia-dkms-*` only depends on them. NVIDIA's archive for Debian has packages for
//! DKMS alone ([`dkms`]).

mod dkms;

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::packaging_patches::{self, PackagingPatches};
use longshore_core::driver_version::DriverVersion;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::package_origin::PackageOrigin;
use longshore_core::redact::redacted;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::{deb, version};
use serde::{Deserialize, Serialize};

/// A driver that can be compiled: its kernel sources in one flavour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailableDriver {
    /// Upstream version.
    pub version: String,
    /// Flavour of the kernel sources.
    pub flavour: Flavour,
    /// Source of the kernel sources.
    pub origin: DriverOrigin,
    /// sha256 (hex) of the package, the .run file or the tree.
    pub sha256: String,
}

/// Source of a driver's kernel sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverOrigin {
    /// A package of an archive.
    Package {
        /// Name, for example `nvidia-kernel-source`.
        name: String,
        /// Debian version.
        version: String,
        /// Origin of the package.
        #[serde(flatten)]
        origin: PackageOrigin,
    },
    /// One of NVIDIA's .run files.
    RunFile {
        /// Name, for example `NVIDIA-Linux-x86_64-535.261.03.run`.
        name: String,
    },
    /// A tree of NVIDIA's open kernel modules.
    SourceTree {
        /// Places of the tree, in order of preference.
        urls: Vec<String>,
    },
}

impl AvailableDriver {
    /// True if it is of a source that was added on the host. The distribution's own comes before it where no version
    /// is named.
    pub fn is_added(&self) -> bool {
        matches!(&self.origin, DriverOrigin::Package { origin, .. } if origin.is_added)
    }

    /// Returns package, version and origin, the name of the .run file, or the place of the tree.
    pub fn package_name(&self) -> String {
        match &self.origin {
            DriverOrigin::Package { name, version, origin } => {
                format!("{name} {version} ({})", origin.text)
            }
            DriverOrigin::RunFile { name } => name.clone(),
            DriverOrigin::SourceTree { urls } => {
                let place = urls.first().map(|url| redacted(url)).unwrap_or_default();
                format!("open-gpu-kernel-modules {} ({place})", self.version)
            }
        }
    }
}

/// Unpacked kernel sources.
#[derive(Debug)]
pub struct KernelSources {
    /// Directory with their `Kbuild`.
    pub dir: PathBuf,
    /// Patches of their package that were applied to them.
    pub packaging_patches: Option<PackagingPatches>,
}

/// Maximum size of a Kbuild file; they have a few kB.
const MOST_KBUILD: u64 = 1 << 20;
/// Maximum number of versions that a message names.
const NAMED: usize = 8;

/// Returns the driver packages of an archive, newest first.
pub fn drivers(archive: &Archive) -> Vec<AvailableDriver> {
    let names = archive
        .names_matching(&|name| flavour_of(name).is_some() || dkms::flavour_of(name).is_some());
    of_packages(names.iter().flat_map(|name| archive.packages(name)).collect())
}

/// Returns the drivers of these packages, newest first. A transitional package holds only a changelog;
/// the sources are its successor's.
fn of_packages(mut packages: Vec<Package>) -> Vec<AvailableDriver> {
    leave_out_halted(&mut packages);
    let open: HashSet<_> = packages.iter().filter_map(open_successor).collect();
    let of_package = |package: &Package| {
        let is_open = open.contains(&(package.name.clone(), package.version.clone()));
        let flavour = if is_open { Some(Flavour::Open) } else { flavour_of(&package.name) };
        available(package.clone(), flavour?)
    };
    let mut found: Vec<_> =
        packages.iter().filter(|p| successor(p).is_none()).filter_map(of_package).collect();
    let of_dkms = dkms::with_own_sources(&packages, &found);
    found.extend(
        of_dkms
            .filter_map(|(package, flavour)| available(package.clone(), flavour))
            .collect::<Vec<_>>(),
    );
    sort(&mut found);
    found
}

/// Sorts drivers: newest first, of equal versions those of the distribution's own archives before added ones. Equal ones keep
/// their order.
pub fn sort(drivers: &mut [AvailableDriver]) {
    drivers.sort_by(newest_first);
}

/// Leaves out packages of a phased update at 0 percent, by which Ubuntu stops an update that breaks hosts, where
/// there is another version of the package.
pub(crate) fn leave_out_halted(packages: &mut Vec<Package>) {
    let is_halted = |package: &Package| package.origin.percentage == Some(0);
    let sound: HashSet<String> =
        packages.iter().filter(|p| !is_halted(p)).map(|p| p.name.clone()).collect();
    packages.retain(|p| !is_halted(p) || !sound.contains(&p.name));
}

/// Returns the package of kernel sources that a transitional one leads to.
fn successor(package: &Package) -> Option<&str> {
    package.successor(|name| flavour_of(name).is_some())
}

/// Returns name and version of a package whose sources are open though its name does not say so: one
/// that replaces an open package. Ubuntu's `nvidia-kernel-source-595` has the open sources alone, and
/// `nvidia-kernel-source-595-open` depends on it.
fn open_successor(package: &Package) -> Option<(String, String)> {
    let name = successor(package).filter(|_| flavour_of(&package.name) == Some(Flavour::Open))?;
    Some((name.to_owned(), package.version.clone()))
}

/// Returns the newest driver of this version (`535.261.03`) or branch (`535`), and of this flavour,
/// if given. Without a version one of a host's flat source is returned only where no other archive has any.
///
/// # Errors
/// Exit code 12 where the archive has none, with the nearest versions.
pub fn find(
    drivers: &[AvailableDriver],
    wanted: Option<&str>,
    flavour: Option<Flavour>,
) -> Result<AvailableDriver, Failure> {
    let matches = |driver: &&AvailableDriver| {
        wanted.is_none_or(|wanted| DriverVersion::new(&driver.version).is_within(wanted))
            && flavour.is_none_or(|flavour| driver.flavour == flavour)
    };
    let is_first = |driver: &&AvailableDriver| wanted.is_some() || !driver.is_added();
    let mut found = drivers.iter().filter(matches);
    let first = found.clone().find(is_first).or_else(|| found.next());
    first.cloned().ok_or_else(|| none_of(drivers, wanted, flavour))
}

/// Returns the package of a driver in the catalog.
///
/// # Errors
/// Exit code 12 where the archive no longer has it.
pub fn package(archive: &Archive, driver: &AvailableDriver) -> Result<Package, Failure> {
    let DriverOrigin::Package { name, version, .. } = &driver.origin else {
        let cause = format!("driver {} is of no package", driver.version);
        return Err(Failure::new(FailureKind::Bug, cause));
    };
    archive.packages(name).into_iter().find(|p| p.sha256 == driver.sha256).ok_or_else(|| {
        Failure::new(
            FailureKind::Download,
            format!("the archives have no {name} {version} with sha256 {}", driver.sha256),
        )
        .remedy("read the archives again: the version was replaced by a newer one")
    })
}

/// Unpacks the kernel sources of a package in the store into the empty directory `into`, and applies the patches
/// that the package leaves to whoever compiles ([`packaging_patches`]).
///
/// # Errors
/// Exit code 13 where the package is damaged, holds no kernel sources, or patches that do not fit them; 15 where
/// `into` cannot be written.
pub(crate) fn unpack_sources(
    package: &Package,
    store: &Store,
    into: &Path,
) -> Result<KernelSources, Failure> {
    let sources = Path::new("usr/src");
    let reader = store.open_blob(&package.sha256)?;
    deb::unpack(&package.name, reader, into, &mut |path| {
        path.strip_prefix(sources).ok().map(Path::to_path_buf)
    })?;
    for entry in entries(into)? {
        if entry.file_name().is_some_and(|n| n.to_string_lossy().contains(".tar")) {
            unpack_tar(&package.name, &entry, into)?;
        }
    }
    let name = format!("{} {}", package.name, package.version);
    let dir = find_sources(into, 3)?.ok_or_else(|| {
        let cause = format!("{name} holds no kernel sources below usr/src");
        Failure::new(FailureKind::Verification, cause)
            .remedy("this package has an unknown layout; choose another driver")
    })?;
    check_objects(&name, &dir)?;
    let packaging_patches = packaging_patches::apply(&name, &dir)?;
    Ok(KernelSources { dir, packaging_patches })
}

/// Refuses sources without NVIDIA's precompiled objects, but with the sources of these: NVIDIA's packages for DKMS may
/// have the tree of its repository of open modules (`kernel-open` beside `src`), whose objects are compiled from `src`.
fn check_objects(package: &str, dir: &Path) -> Result<(), Failure> {
    let object = Path::new("nvidia/nv-kernel.o_binary");
    let of_object = dir.parent().map(|beside| beside.join("src/nvidia"));
    if dir.join(object).exists() || !of_object.is_some_and(|sources| sources.is_dir()) {
        return Ok(());
    }
    let cause = format!(
        "{package} has the sources of {} in src/nvidia in place of the object, which is not compiled here",
        object.display()
    );
    Err(Failure::new(FailureKind::Verification, cause).remedy(
        "name the .run file of this version, which has the object, or another archive's package of it",
    ))
}

/// Returns the next package of the same version and flavour, where that of `driver` in the store holds
/// no kernel sources: a transitional package that the index does not show to be one.
pub fn instead_of(
    driver: &AvailableDriver,
    archive: &Archive,
    store: &Store,
) -> Option<AvailableDriver> {
    let package = package(archive, driver).ok()?;
    let paths = deb::list(&package.name, store.open_blob(&package.sha256).ok()?).ok()?;
    if paths.iter().any(|path| may_be_sources(path)) {
        return None;
    }
    let is_like = |other: &AvailableDriver| {
        other.version == driver.version && other.flavour == driver.flavour
    };
    let from_it = drivers(archive).into_iter().skip_while(|other| other.sha256 != driver.sha256);
    from_it.skip(1).find(is_like)
}

/// Returns the packages among `drivers`, which are sorted newest first, that are of the same version and flavour as
/// `driver` and of an older revision, newest first. A .run file has none, and none is the same package in another
/// suite.
pub fn older_revisions(
    driver: &AvailableDriver,
    drivers: &[AvailableDriver],
) -> Vec<AvailableDriver> {
    let is_other = |other: &&AvailableDriver| {
        (&other.version, other.flavour) == (&driver.version, driver.flavour)
            && other.is_added() == driver.is_added()
            && other.sha256 != driver.sha256
    };
    let is_package = matches!(driver.origin, DriverOrigin::Package { .. });
    let from_it = drivers.iter().skip_while(|other| other.sha256 != driver.sha256);
    let mut older: Vec<AvailableDriver> = Vec::new();
    for other in from_it.filter(is_other).filter(|_| is_package) {
        if !older.iter().any(|known| known.sha256 == other.sha256) {
            older.push(other.clone());
        }
    }
    older
}

/// True for a path of unpacked or packed kernel sources.
fn may_be_sources(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let below = path.components().any(|part| part.as_os_str() == "src");
    below && (name == "Kbuild" || name.contains(".tar"))
}

/// Reads the version stated by the sources in `dir`.
///
/// # Errors
/// Exit code 13 where their `Kbuild` cannot be read.
pub fn stated_version(dir: &Path) -> Result<Option<String>, Failure> {
    let path = dir.join("Kbuild");
    let mut text = Vec::new();
    fs::File::open(&path)
        .and_then(|file| file.take(MOST_KBUILD).read_to_end(&mut text))
        .or_fail(FailureKind::Verification, || format!("reading {}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    let rest = text.split("-DNV_VERSION_STRING=\\\"").nth(1);
    Ok(rest.and_then(|r| r.split("\\\"").next()).map(str::to_owned))
}

/// Returns the flavour of a package of kernel sources, or None for any other package.
fn flavour_of(name: &str) -> Option<Flavour> {
    let is_one = name.starts_with("nvidia-")
        && (name.ends_with("-kernel-source") || name.contains("-kernel-source-"));
    let open = name.split('-').any(|part| part == "open");
    is_one.then_some(if open { Flavour::Open } else { Flavour::Proprietary })
}

fn available(package: Package, flavour: Flavour) -> Option<AvailableDriver> {
    let version = version::upstream(&package.version);
    // A transitional or renamed package has no driver version.
    let is_version = DriverVersion::parse(version).is_some();
    Some(AvailableDriver {
        version: is_version.then(|| version.to_owned())?,
        flavour,
        origin: DriverOrigin::Package {
            name: package.name,
            version: package.version,
            origin: package.origin,
        },
        sha256: package.sha256,
    })
}

fn newest_first(a: &AvailableDriver, b: &AvailableDriver) -> Ordering {
    let ((name_a, of_a), (name_b, of_b)) = (named(a), named(b));
    version::compare(&b.version, &a.version)
        .then_with(|| a.is_added().cmp(&b.is_added()))
        .then_with(|| version::compare(of_b, of_a))
        .then_with(|| (name_a, a.flavour).cmp(&(name_b, b.flavour)))
}

/// Returns the name and version of a driver's package or file.
fn named(driver: &AvailableDriver) -> (&str, &str) {
    match &driver.origin {
        DriverOrigin::Package { name, version, .. } => (name, version),
        DriverOrigin::RunFile { name } => (name, &driver.version),
        DriverOrigin::SourceTree { .. } => ("open-gpu-kernel-modules", &driver.version),
    }
}

fn none_of(drivers: &[AvailableDriver], wanted: Option<&str>, flavour: Option<Flavour>) -> Failure {
    let mut asked = String::from("driver");
    for part in [wanted.map(str::to_owned), flavour.map(|f| f.to_string())].into_iter().flatten() {
        asked = format!("{asked} {part}");
    }
    let cause = format!("no archive has the {asked}");
    if let Some(open) = open_alone(drivers, wanted, flavour) {
        let cause = format!("{cause}: they have {} with the open modules alone", open.version);
        return Failure::new(FailureKind::Download, cause).remedy(OPEN_ALONE);
    }
    let failure = Failure::new(FailureKind::Download, cause);
    let nearest = nearest(drivers, wanted.unwrap_or_default());
    failure.remedy(if nearest.is_empty() {
        "none of the archives has any driver: add the components contrib and non-free (Ubuntu: \
         restricted)"
            .to_owned()
    } else {
        format!("the nearest available are: {}", nearest.join(", "))
    })
}

/// Remedy where a version is there with the open modules alone.
const OPEN_ALONE: &str = "select flavour open, which every GPU since Turing supports: distributions leave the \
                          proprietary modules out, from branch 590 or 595 on. Older GPUs have branch 580 as their \
                          last, and a .run file of NVIDIA's has both flavours";

/// Returns the newest open driver of a version that was requested with the proprietary modules.
fn open_alone<'a>(
    drivers: &'a [AvailableDriver],
    wanted: Option<&str>,
    flavour: Option<Flavour>,
) -> Option<&'a AvailableDriver> {
    let wanted = wanted.filter(|_| flavour == Some(Flavour::Proprietary))?;
    drivers.iter().find(|driver| {
        driver.flavour == Flavour::Open && DriverVersion::new(&driver.version).is_within(wanted)
    })
}

/// Returns the available versions, those that share most of `wanted` first, each with its flavour.
fn nearest(drivers: &[AvailableDriver], wanted: &str) -> Vec<String> {
    let shared = |version: &str| {
        version.split('.').zip(wanted.split('.')).take_while(|(a, b)| a == b).count()
    };
    let mut sorted: Vec<_> = drivers.iter().collect();
    sorted.sort_by_key(|driver| std::cmp::Reverse(shared(&driver.version)));
    let mut named: Vec<String> = Vec::new();
    for driver in sorted {
        let name = format!("{} {}", driver.version, driver.flavour);
        if !named.contains(&name) {
            named.push(name);
        }
    }
    named.truncate(NAMED);
    named
}

/// Lists a directory, sorted.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let list = || -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut paths = list().map_err(|e| write_failure(dir, e))?;
    paths.sort();
    Ok(paths)
}

fn unpack_tar(package: &str, path: &Path, into: &Path) -> Result<(), Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = File::open(path).map_err(|e| write_failure(path, e))?;
    deb::unpack_tar(package, &name, BufReader::new(file), into)?;
    fs::remove_file(path).map_err(|e| write_failure(path, e))
}

/// Finds the first directory with NVIDIA's kernel sources, at most `depth` below `dir`.
fn find_sources(dir: &Path, depth: usize) -> Result<Option<PathBuf>, Failure> {
    if dir.join("Kbuild").is_file() && dir.join("conftest.sh").is_file() {
        return Ok(Some(dir.to_path_buf()));
    }
    if depth == 0 {
        return Ok(None);
    }
    for entry in entries(dir)? {
        if entry.is_dir()
            && !entry.is_symlink()
            && let Some(found) = find_sources(&entry, depth - 1)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
