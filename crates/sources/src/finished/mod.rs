//! Finished modules: packages of an archive with a driver's modules for one kernel, which need no
//! compiler.
//!
//! Ubuntu has `linux-modules-nvidia-BRANCH[-server]-open-RELEASE` with five signed modules below
//! `lib/modules/RELEASE/kernel`, and the same unsigned in `linux-objects-nvidia-...`. Any package
//! counts that is named after the kernel and NVIDIA's driver; its contents decide.
//!
//! The proprietary ones (`linux-modules-nvidia-BRANCH[-server]-RELEASE`) come as objects, detached signatures and
//! the digests of the linked modules, and are linked on the host (`linking` of longshore-build).

mod linked;
pub mod objects;
pub mod recipe;
#[cfg(any(test, feature = "testing"))]
pub mod sample;
mod stanza;
mod unpack;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::driver::leave_out_halted;
use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;
use longshore_debian::archive::{Archive, Package, compare};

pub use linked::LinkedFrom;
use stanza::Contents;
pub use unpack::read;
pub use unpack::store_from;

/// A package with finished modules, as far as its stanza says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedModules {
    /// The package.
    pub package: Package,
    /// Driver version that it requires of the driver's other packages.
    pub driver_version: String,
    /// Flavour by its name.
    pub flavour: Flavour,
    /// False where the modules are unsigned: by the package's name, or as no signatures come with objects.
    pub may_be_signed: bool,
    /// Kernel that they are for.
    pub kernel: Kernel,
    /// True if the package's version names the kernel's build, false if it names another; None where
    /// that is unknown.
    pub of_build: Option<bool>,
    /// Packages that the modules are linked from here; None where they come whole.
    pub linked: Option<Box<LinkedFrom>>,
}

/// The kernel that finished modules are wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`; empty where the build is not known.
    pub version: String,
}

impl FinishedModules {
    /// Returns the package's name and version.
    pub fn describe(&self) -> String {
        format!("{} {}", self.package.name, self.package.version)
    }

    /// Returns the packages with the modules, or with what they are linked from; [`FinishedModules::package`] comes
    /// first. The linker's are not among them.
    pub fn packages(&self) -> Vec<Package> {
        let linked = self.linked.iter().flat_map(|linked| linked.packages());
        std::iter::once(&self.package).chain(linked).cloned().collect()
    }

    /// Returns the sha256 (hex) of these packages by name, version and architecture: the headers in the key of a
    /// set that is made of them.
    pub fn digests(&self) -> BTreeMap<String, String> {
        self.packages().iter().map(|package| (id(package), package.sha256.clone())).collect()
    }
}

/// Returns name, version and architecture of a package, joined by `_`.
fn id(package: &Package) -> String {
    format!("{}_{}_{}", package.name, package.version, package.arch)
}

/// Returns an archive's packages with finished modules for a kernel, best first: the newest driver,
/// then the kernel's own build, then signed ones, then whole ones, then the distribution's, then the newest
/// package. One whose driver version is not stated, or whose objects or linker no archive has, is left out.
pub fn find(archive: &Archive, kernel: &Kernel) -> Vec<FinishedModules> {
    let mut linkers = linked::Linkers::new(archive);
    let mut packages: Vec<Package> = archive
        .names_matching(&|name| stanza::driver_part(name, &kernel.release).is_some())
        .iter()
        .flat_map(|name| archive.packages(name))
        .collect();
    leave_out_halted(&mut packages);
    let mut found: Vec<FinishedModules> = packages
        .into_iter()
        .filter_map(|package| described(package, kernel, &mut linkers))
        .collect();
    found.sort_by(|a, b| {
        let rank = |one: &FinishedModules| {
            let is_whole = one.linked.is_none();
            let of_build = (one.of_build == Some(true), one.of_build != Some(false));
            Reverse((of_build, one.may_be_signed, is_whole))
        };
        DriverVersion::new(&b.driver_version)
            .cmp(&DriverVersion::new(&a.driver_version))
            .then_with(|| rank(a).cmp(&rank(b)))
            .then_with(|| a.package.origin.is_added.cmp(&b.package.origin.is_added))
            .then_with(|| compare(&b.package.version, &a.package.version))
    });
    found
}

fn described(
    package: Package,
    kernel: &Kernel,
    linkers: &mut linked::Linkers<'_>,
) -> Option<FinishedModules> {
    let part = stanza::driver_part(&package.name, &kernel.release)?;
    let linked = match stanza::contents(&package, &part) {
        Contents::Nothing => return None,
        Contents::Whole => None,
        Contents::Linked(objects) => match linkers.resolve(&package, objects) {
            Ok(linked) => Some(Box::new(linked)),
            Err(why) => {
                tracing::debug!("{} is not used: {why}", package.name);
                return None;
            }
        },
    };
    let Some(driver_version) = stanza::driver_version(&package) else {
        tracing::debug!("{} states no driver version, and is not used", package.name);
        return None;
    };
    let may_be_signed = match &linked {
        Some(linked) => linked.signatures.is_some(),
        None => !part.starts_with(stanza::OBJECTS),
    };
    Some(FinishedModules {
        driver_version,
        flavour: stanza::flavour(&part),
        may_be_signed,
        kernel: kernel.clone(),
        of_build: stanza::names_build(&package.version, kernel),
        package,
        linked,
    })
}

#[cfg(test)]
mod tests;
