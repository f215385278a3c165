//! Driver packages in an archive: available versions and flavours, and their kernel sources.
//!
//! Debian's packages are called `nvidia[-open][-tesla[-BRANCH]]-kernel-source`; each holds
//! `usr/src/NAME.tar.xz` with the patched sources below `modules/NAME/`. Other distributions put
//! the unpacked sources below `usr/src`. Both are found by their `Kbuild` and `conftest.sh`.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use longshore_core::driver_version::DriverVersion;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
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
    /// Returns the sha256 (hex) of the package or the .run file.
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
        /// Suite of the package.
        suite: String,
    },
    /// One of NVIDIA's .run files.
    RunFile {
        /// Name, for example `NVIDIA-Linux-x86_64-535.261.03.run`.
        name: String,
    },
}

/// Maximum size of a Kbuild file; they have a few kB.
const MOST_KBUILD: u64 = 1 << 20;
/// Maximum number of versions that a message names.
const NAMED: usize = 8;

/// Returns the driver packages of an archive, newest first.
pub fn drivers(archive: &Archive) -> Vec<AvailableDriver> {
    let mut found: Vec<AvailableDriver> = archive
        .names_matching(&|name| flavour_of(name).is_some())
        .iter()
        .flat_map(|name| archive.packages(name))
        .filter_map(at_hand)
        .collect();
    found.sort_by(newest_first);
    found
}

/// Returns the newest driver of this version (`535.261.03`) or branch (`535`), and of this flavour,
/// if given.
///
/// # Errors
/// Exit code 12 where the archive has none, with the nearest versions.
pub fn find(
    drivers: &[AvailableDriver],
    wanted: Option<&str>,
    flavour: Option<Flavour>,
) -> Result<AvailableDriver, Failure> {
    let matches = |driver: &&AvailableDriver| {
        wanted.is_none_or(|wanted| is_of(&driver.version, wanted))
            && flavour.is_none_or(|flavour| driver.flavour == flavour)
    };
    drivers.iter().find(matches).cloned().ok_or_else(|| none_of(drivers, wanted, flavour))
}

/// Returns the package of a driver in the catalog.
///
/// # Errors
/// Exit code 12 where the archive no longer has it.
pub fn package(archive: &Archive, driver: &AvailableDriver) -> Result<Package, Failure> {
    let DriverOrigin::Package { name, version, .. } = &driver.origin else {
        let cause = format!("driver {} is of a .run file, not of a package", driver.version);
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

/// Unpacks the kernel sources of a package in the store into the empty directory `into`, and
/// returns the directory with their `Kbuild`.
///
/// # Errors
/// Exit code 13 where the package is damaged or holds no kernel sources, 15 where `into` cannot be
/// written.
pub(crate) fn unpack_sources(
    package: &Package,
    store: &Store,
    into: &Path,
) -> Result<PathBuf, Failure> {
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
    find_sources(into, 3)?.ok_or_else(|| {
        Failure::new(
            FailureKind::Verification,
            format!("{} {} holds no kernel sources below usr/src", package.name, package.version),
        )
        .remedy("this package has an unknown layout; choose another driver")
    })
}

/// Reads the version stated by the sources in `dir`.
///
/// # Errors
/// Exit code 13 where their `Kbuild` cannot be read.
pub(crate) fn stated_version(dir: &Path) -> Result<Option<String>, Failure> {
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

fn at_hand(package: Package) -> Option<AvailableDriver> {
    let version = version::upstream(&package.version);
    // A transitional or renamed package has no driver version.
    let is_version = DriverVersion::parse(version).is_some();
    Some(AvailableDriver {
        version: is_version.then(|| version.to_owned())?,
        flavour: flavour_of(&package.name)?,
        origin: DriverOrigin::Package {
            name: package.name,
            version: package.version,
            suite: package.suite,
        },
        sha256: package.sha256,
    })
}

fn newest_first(a: &AvailableDriver, b: &AvailableDriver) -> Ordering {
    let ((name_a, of_a), (name_b, of_b)) = (named(a), named(b));
    version::compare(&b.version, &a.version)
        .then_with(|| version::compare(of_b, of_a))
        .then_with(|| (name_a, a.flavour).cmp(&(name_b, b.flavour)))
}

/// Returns the name and version of a driver's package or file.
fn named(driver: &AvailableDriver) -> (&str, &str) {
    match &driver.origin {
        DriverOrigin::Package { name, version, .. } => (name, version),
        DriverOrigin::RunFile { name } => (name, &driver.version),
    }
}

/// True if `version` equals `wanted`, or belongs to the branch `wanted`.
fn is_of(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn none_of(drivers: &[AvailableDriver], wanted: Option<&str>, flavour: Option<Flavour>) -> Failure {
    let mut asked = String::from("driver");
    for part in [wanted.map(str::to_owned), flavour.map(|f| f.to_string())].into_iter().flatten() {
        asked = format!("{asked} {part}");
    }
    let failure = Failure::new(FailureKind::Download, format!("no archive has the {asked}"));
    let nearest = nearest(drivers, wanted.unwrap_or_default());
    failure.remedy(if nearest.is_empty() {
        "none of the archives has any driver: add the components contrib and non-free".to_owned()
    } else {
        format!("the nearest available are: {}", nearest.join(", "))
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
pub(super) fn entries(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
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
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    fn driver(package: &str, package_version: &str) -> AvailableDriver {
        AvailableDriver {
            version: version::upstream(package_version).to_owned(),
            flavour: flavour_of(package).expect("a driver package"),
            origin: DriverOrigin::Package {
                name: package.to_owned(),
                version: package_version.to_owned(),
                suite: "bookworm".to_owned(),
            },
            sha256: "1".repeat(64),
        }
    }

    fn some() -> Vec<AvailableDriver> {
        let mut drivers = vec![
            driver("nvidia-tesla-470-kernel-source", "470.256.02-1~deb12u1"),
            driver("nvidia-kernel-source", "535.261.03-1"),
            driver("nvidia-open-kernel-source", "535.261.03-1"),
            driver("nvidia-kernel-source", "535.309.01-0+deb12u1"),
            driver("nvidia-open-kernel-source", "550.163.01-2"),
        ];
        drivers.sort_by(newest_first);
        drivers
    }

    #[rstest]
    #[case("nvidia-kernel-source", Some(Flavour::Proprietary))]
    #[case("nvidia-open-kernel-source", Some(Flavour::Open))]
    #[case("nvidia-tesla-470-kernel-source", Some(Flavour::Proprietary))]
    #[case("nvidia-kernel-source-535-open", Some(Flavour::Open))]
    #[case("nvidia-kernel-source-535", Some(Flavour::Proprietary))]
    #[case("nvidia-kernel-dkms", None)]
    #[case("linux-kernel-source", None)]
    #[case("nvidia-kernel-sources", None)]
    fn packages_are_told_by_their_names(#[case] name: &str, #[case] wanted: Option<Flavour>) {
        assert_eq!(flavour_of(name), wanted);
    }

    #[rstest]
    #[case(None, None, "550.163.01")]
    #[case(None, Some(Flavour::Proprietary), "535.309.01")]
    #[case(Some("535"), Some(Flavour::Open), "535.261.03")]
    #[case(Some("535.261.03"), None, "535.261.03")]
    #[case(Some("470"), None, "470.256.02")]
    #[case(Some("535.261"), None, "535.261.03")]
    fn the_newest_that_fits_is_found(
        #[case] wanted: Option<&str>,
        #[case] flavour: Option<Flavour>,
        #[case] version: &str,
    ) {
        assert_eq!(find(&some(), wanted, flavour).expect("found").version, version);
    }

    #[rstest]
    #[case(
        "535.1.2",
        "no archive has the driver 535.1.2 open",
        "535.309.01 proprietary, 535.261.03"
    )]
    #[case("53", "no archive has the driver 53 open", "550.163.01 open")]
    fn an_unknown_version_names_the_nearest(
        #[case] wanted: &str,
        #[case] cause: &str,
        #[case] remedy: &str,
    ) {
        let failure = find(&some(), Some(wanted), Some(Flavour::Open)).expect_err("none");
        assert_eq!(failure.code(), ExitCode::Download);
        assert_eq!(failure.to_string(), cause);
        let text = failure.remedy_text().expect("a remedy");
        assert!(text.contains(&format!("available are: {remedy}")), "{text}");
    }

    #[test]
    fn an_archive_without_drivers_says_what_is_missing() {
        let failure = find(&[], None, None).expect_err("none");
        assert!(failure.remedy_text().expect("a remedy").contains("non-free"));
    }

    #[test]
    fn sources_are_found_and_say_their_version() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let sources = dir.path().join("modules/nvidia-kernel");
        fs::create_dir_all(&sources).expect("directory");
        assert_eq!(find_sources(dir.path(), 3).expect("reads"), None);
        fs::write(sources.join("conftest.sh"), "").expect("write");
        fs::write(sources.join("Kbuild"), r#"ccflags-y += -DNV_VERSION_STRING=\"535.261.03\""#)
            .expect("write");
        assert_eq!(find_sources(dir.path(), 3).expect("reads"), Some(sources.clone()));
        assert_eq!(stated_version(&sources).expect("reads").as_deref(), Some("535.261.03"));
    }
}
