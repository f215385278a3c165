//! Kernel, driver and build of finished modules, by a package's name, version and relations.

use super::Kernel;
use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;
use longshore_debian::archive::{Operator, Package, Requirement, upstream};

/// Beginning of the names of packages with unsigned modules, or with objects to be linked.
pub(super) const OBJECTS: &str = "linux-objects-";
/// Beginning of the names of packages with detached signatures.
pub(super) const SIGNATURES: &str = "linux-signatures-";
/// Packages without modules: signatures to append, and debug symbols.
const OTHERS: [&str; 2] = [SIGNATURES, "-dbgsym"];
/// Lowest branch of NVIDIA's driver that a version may begin with; kernels' versions are lower.
const LOWEST_BRANCH: u64 = 100;

/// Returns a package's name without the kernel's release, where it is named after both that and
/// NVIDIA's driver. A release may contain `nvidia` itself.
pub(super) fn driver_part(name: &str, release: &str) -> Option<String> {
    if !name.contains("nvidia") {
        return None;
    }
    // Package names have neither capitals nor underscores (Debian policy 5.6.1).
    let release = release.to_ascii_lowercase().replace('_', "-");
    let (before, after) = name.split_once(&format!("-{release}"))?;
    let is_whole = !release.is_empty() && (after.is_empty() || after.starts_with('-'));
    let part = format!("{before}{after}");
    let is_drivers = part.split('-').any(|word| word == "nvidia")
        && !OTHERS.iter().any(|other| part.starts_with(other) || part.ends_with(other));
    (is_whole && is_drivers).then_some(part)
}

/// Returns the flavour by the rest of a package's name.
pub(super) fn flavour(part: &str) -> Flavour {
    match part.split('-').any(|word| word == "open") {
        true => Flavour::Open,
        false => Flavour::Proprietary,
    }
}

/// Modules of a package, by its name and relations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents<'a> {
    /// Whole modules.
    Whole,
    /// None: they are linked from the objects of this package. Ubuntu's proprietary ones are, as their licence
    /// forbids to distribute them linked.
    Linked(&'a Requirement),
    /// None that count by themselves: objects, or a package that leads to whole modules.
    Nothing,
}

/// Returns the contents of a package.
pub(super) fn contents<'a>(package: &'a Package, part: &str) -> Contents<'a> {
    let is_proprietary = flavour(part) == Flavour::Proprietary;
    let objects = requirements(package).find(|one| one.name.starts_with(OBJECTS));
    match objects {
        _ if part.starts_with(OBJECTS) && is_proprietary => Contents::Nothing,
        Some(objects) if is_proprietary => Contents::Linked(objects),
        Some(_) => Contents::Nothing,
        None => Contents::Whole,
    }
}

/// Returns the driver version that a package states: as the lower bound of a driver's package that
/// it depends on (`nvidia-kernel-common-580-server (>= 580.173.02)`), as one that it provides, or as
/// its own.
pub(super) fn driver_version(package: &Package) -> Option<String> {
    let needed = requirements(package).filter(|one| one.name.starts_with("nvidia-"));
    let bounds = needed.filter_map(|one| match &one.version {
        Some((Operator::LaterOrEqual | Operator::Equal, version)) => Some(version.as_str()),
        _ => None,
    });
    let provided = package.provides.iter().filter(|one| one.name.starts_with("nvidia-"));
    let provided = provided.filter_map(|one| one.version.as_deref());
    let stated = bounds.chain(provided).chain([package.version.as_str()]);
    stated.filter_map(version_in).max_by_key(|version| DriverVersion::new(version)).map(Into::into)
}

/// True if a package's version names the build of the kernel that `uname -v` names, false if it
/// names another build; None where the one or the other names none.
///
/// Ubuntu's `#62~20.04.1-Ubuntu SMP ...` of the release 5.15.0-56-generic is 5.15.0-56.62~20.04.1,
/// and its modules have that version, or that with `+1`; Debian's has its version after `Debian`.
pub(super) fn names_build(version: &str, kernel: &Kernel) -> Option<bool> {
    let mut words = kernel.version.split_ascii_whitespace();
    let first = words.next()?.strip_prefix('#')?;
    if let Some(upload) = first.strip_suffix("-Ubuntu") {
        let abi = kernel.release.splitn(3, '-').take(2).collect::<Vec<_>>().join("-");
        let found = version.strip_prefix(&format!("{abi}."))?;
        let again = found.strip_prefix(upload).is_some_and(|rest| rest.starts_with('+'));
        return Some(found == upload || again);
    }
    let of_debian = words.skip_while(|word| *word != "Debian").nth(1)?;
    version.contains(of_debian).then_some(true)
}

pub(super) fn requirements(package: &Package) -> impl Iterator<Item = &Requirement> {
    package.depends.iter().flat_map(|clause| &clause.0)
}

/// Returns the driver version that a package's version begins with.
fn version_in(version: &str) -> Option<&str> {
    let version = upstream(version);
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let found = DriverVersion::parse(&version[..end])?;
    found.branch().is_some_and(|branch| branch >= LOWEST_BRANCH).then_some(&version[..end])
}
