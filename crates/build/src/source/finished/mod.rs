//! Finished modules: packages of an archive with a driver's modules for one kernel, which need no
//! compiler.
//!
//! Ubuntu has `linux-modules-nvidia-BRANCH[-server]-open-RELEASE` with five signed modules below
//! `lib/modules/RELEASE/kernel`, and the same unsigned in `linux-objects-nvidia-...`. Any package
//! counts that is named after the kernel and NVIDIA's driver; its contents decide.

#[cfg(any(test, feature = "testing"))]
pub mod sample;
mod stanza;
mod unpack;

use std::cmp::Reverse;

use super::driver::leave_out_halted;
use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;
use longshore_debian::archive::{Archive, Package, compare};

pub use unpack::read;

/// A package with finished modules, as far as its stanza says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedModules {
    /// The package.
    pub package: Package,
    /// Driver version that it requires of the driver's other packages.
    pub driver_version: String,
    /// Flavour by its name.
    pub flavour: Flavour,
    /// False where the modules are unsigned by the package's name.
    pub may_be_signed: bool,
    /// Kernel that they are for.
    pub kernel: Kernel,
    /// True if the package's version names the kernel's build, false if it names another; None where
    /// that is unknown.
    pub of_build: Option<bool>,
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
}

/// Returns an archive's packages with finished modules for a kernel, best first: the newest driver,
/// then the kernel's own build, then signed ones, then the distribution's, then the newest package.
/// One that needs others to be linked first, or whose driver version is not stated, is left out.
pub fn find(archive: &Archive, kernel: &Kernel) -> Vec<FinishedModules> {
    let mut packages: Vec<Package> = archive
        .names_matching(&|name| stanza::driver_part(name, &kernel.release).is_some())
        .iter()
        .flat_map(|name| archive.packages(name))
        .collect();
    leave_out_halted(&mut packages);
    let mut found: Vec<FinishedModules> =
        packages.into_iter().filter_map(|package| described(package, kernel)).collect();
    found.sort_by(|a, b| {
        let rank = |one: &FinishedModules| {
            Reverse((one.of_build == Some(true), one.of_build != Some(false), one.may_be_signed))
        };
        DriverVersion::new(&b.driver_version)
            .cmp(&DriverVersion::new(&a.driver_version))
            .then_with(|| rank(a).cmp(&rank(b)))
            .then_with(|| a.package.host_flat.cmp(&b.package.host_flat))
            .then_with(|| compare(&b.package.version, &a.package.version))
    });
    found
}

fn described(package: Package, kernel: &Kernel) -> Option<FinishedModules> {
    let part = stanza::driver_part(&package.name, &kernel.release)?;
    if stanza::is_linked_first(&package, &part) {
        return None;
    }
    let Some(driver_version) = stanza::driver_version(&package) else {
        tracing::debug!("{} states no driver version, and is not used", package.name);
        return None;
    };
    Some(FinishedModules {
        driver_version,
        flavour: stanza::flavour(&part),
        may_be_signed: !part.starts_with(stanza::OBJECTS),
        kernel: kernel.clone(),
        of_build: stanza::names_build(&package.version, kernel),
        package,
    })
}

#[cfg(test)]
mod tests;
