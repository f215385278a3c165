//! Kernel headers in an archive.
//!
//! `linux-headers-RELEASE` (Proxmox: `proxmox-headers-RELEASE`) depends on its other [parts](super::parts). Debian's also depends, directly
//! or by `linux-compiler-gcc-N-x86`, on the compiler that the kernel was built with; Ubuntu's depends
//! on none (Launchpad bug 1991664).

use super::compiler::compiler_of;
use super::kernel_build::KernelBuild;
use super::nearest::{self, nearest};
use super::parts::{PREFIXES, tree_of};
use super::stated::{self, Reading, Stated};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::deb;

/// Maximum number of builds that a message names.
const NAMED: usize = 6;

/// The headers of one kernel in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InArchive {
    /// `linux-headers-RELEASE`, or of another prefix.
    pub package: Package,
    /// The compiler package it depends on, for example `gcc-12`; None where it depends on none.
    pub compiler: Option<String>,
}

/// Finds the headers of the kernel `release`: of the build that `kernel_version` (`uname -v`)
/// names, or the newest.
///
/// # Errors
/// Exit code 11 where the archive has no headers for it, with the nearest releases.
pub fn find(
    archive: &Archive,
    release: &str,
    kernel_version: Option<&str>,
) -> Result<InArchive, Failure> {
    let named = PREFIXES.iter().map(|prefix| archive.packages(&format!("{prefix}{release}")));
    let Some(candidates) = named.into_iter().find(|found| !found.is_empty()) else {
        return Err(missing(archive, release));
    };
    let package = choose(&candidates, release, kernel_version)
        .ok_or_else(|| other_build(&candidates, kernel_version.unwrap_or_default()))?;
    Ok(InArchive { package: package.clone(), compiler: compiler_of(archive, package) })
}

/// Reads the headers package, which is in the store.
///
/// # Errors
/// Exit code 13 where the package is damaged or has not the form of a headers package.
pub(super) fn read(package: &Package, store: &Store) -> Result<Reading, Failure> {
    Reading::read(&package.name, |path| {
        let reader = store.open_blob(&package.sha256)?;
        let path = format!("usr/src/{}/{path}", tree_of(&package.name));
        let bytes = deb::read_file(&package.name, reader, path.as_ref())?;
        Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
    })
}

/// Returns `kernel_version` (`uname -v`) where the version of the headers package says that it is of
/// that build.
pub(super) fn implied_version(
    package: &Package,
    release: &str,
    kernel_version: &str,
) -> Option<String> {
    let build = KernelBuild::named(kernel_version)?;
    build.is_of(release, &package.version).then(|| kernel_version.to_owned())
}

/// Compares the kernel that the headers package states with `uname -v`, if given.
///
/// # Errors
/// Exit code 11 where it is for another build of the same release.
pub(super) fn check_build(
    package: &Package,
    kernel_version: Option<&str>,
    stated: &Stated,
) -> Result<(), Failure> {
    match kernel_version.filter(|wanted| *wanted != stated.kernel_version) {
        Some(wanted) => Err(other_build(std::slice::from_ref(package), wanted)),
        None => Ok(()),
    }
}

/// Reads the hash that the kernel's own modules are signed with (CONFIG_MODULE_SIG_HASH) from the
/// headers package, which is in the store; None for a kernel without signatures.
///
/// # Errors
/// Exit code 13 where the package is damaged.
pub fn signature_hash(headers: &InArchive, store: &Store) -> Result<Option<String>, Failure> {
    let name = &headers.package.name;
    let reader = store.open_blob(&headers.package.sha256)?;
    let path = format!("usr/src/{}/include/config/auto.conf", tree_of(name));
    let bytes = deb::read_file(name, reader, path.as_ref())?.unwrap_or_default();
    Ok(stated::configured(&String::from_utf8_lossy(&bytes), "CONFIG_MODULE_SIG_HASH"))
}

/// Chooses the package of the running build, if `uname -v` names it, or else the newest; the
/// version stated in the headers is compared afterwards.
fn choose<'a>(
    candidates: &'a [Package],
    release: &str,
    kernel_version: Option<&str>,
) -> Option<&'a Package> {
    let build = kernel_version.and_then(KernelBuild::named);
    candidates.iter().find(|p| build.is_none_or(|build| build.is_of(release, &p.version)))
}

fn other_build(candidates: &[Package], wanted: &str) -> Failure {
    let name = candidates.first().map_or("", |p| p.name.as_str());
    let mut versions: Vec<&str> = candidates.iter().map(|p| p.version.as_str()).collect();
    versions.truncate(NAMED);
    let versions = versions.join(", ");
    Failure::new(
        FailureKind::Toolchain,
        format!(
            "the kernel is {wanted:?}, but the archives have its headers only for another build \
             of the same release: {name} {versions}"
        ),
    )
    .remedy(
        "update the host's kernel to that build and reboot, or add an archive that still has the \
         headers of this one, or use a prebuilt set",
    )
}

fn missing(archive: &Archive, release: &str) -> Failure {
    let nearest = nearest(&releases(archive), release);
    Failure::new(
        FailureKind::Toolchain,
        format!(
            "no archive has {}, the headers of this kernel",
            PREFIXES.map(|prefix| format!("{prefix}{release}")).join(" or ")
        ),
    )
    .remedy(if nearest.is_empty() {
        format!(
            "the archives have no headers of kernels like {}; {WITHOUT_PACKAGE}",
            nearest::flavour_of(release)
        )
    } else {
        format!(
            "boot a kernel whose headers there are ({}), or add an archive that has them, or use \
             a prebuilt set",
            nearest.join(", ")
        )
    })
}

/// Ways to headers whose package is not known by its name.
pub const WITHOUT_PACKAGE: &str = "if their package has another name, install it on the host or give its files with \
                                   --headers, or set build-root to a root that has them; or use a prebuilt set";

/// Returns the releases of the same flavour nearest to `release` that the archives have headers for.
pub fn nearest_in<'a>(
    archives: impl IntoIterator<Item = &'a Archive>,
    release: &str,
) -> Vec<String> {
    let mut all: Vec<String> = archives.into_iter().flat_map(releases).collect();
    all.sort();
    all.dedup();
    nearest(&all, release)
}

/// Returns the releases that the archive has headers for.
pub(super) fn releases(archive: &Archive) -> Vec<String> {
    let is_one = |name: &str| {
        release_of(name).is_some_and(|rest| {
            let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
            // `6.12-amd64` is a meta-package; `6.1.0-50-common` and Ubuntu's `6.8.0-142` are parts.
            is_number(rest)
                && rest.split('-').next().is_some_and(|v| v.split('.').count() >= 3)
                && rest.rsplit('-').next().is_some_and(|last| !is_number(last))
                && !rest.contains("-common")
        })
    };
    let names = archive.names_matching(&is_one);
    names.iter().filter_map(|name| release_of(name)).map(str::to_owned).collect()
}

/// Returns what follows the prefix of a headers package.
fn release_of(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
}

#[cfg(test)]
mod tests;
