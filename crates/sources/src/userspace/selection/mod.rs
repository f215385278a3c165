//! Selection of a driver version's packages: those built from one version of one source package,
//! and the nearest companions.

use std::collections::{BTreeMap, BTreeSet};

use crate::parts::{
    KERNEL_COMMON, Need, PARTS, Part, is_transitional, source_of, stem, stem_of, wants_firmware,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_debian::packages::Package;
use longshore_debian::version;

/// The packages of a driver version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    /// The packages, by name.
    pub(super) packages: Vec<Package>,
    /// Names of parts that are not available.
    pub(super) missing: Vec<String>,
}

/// Selects the packages of `driver_version` for a Debian architecture from those `offered`.
///
/// # Errors
/// Exit code 12 where no source package has the version, or the one that has lacks a required part.
pub(super) fn choose(
    driver_version: &str,
    arch: &str,
    offered: &[Package],
) -> Result<Selection, Failure> {
    let is_usable = |p: &&Package| (p.arch == arch || p.arch == "all") && !is_transitional(p);
    let offered: Vec<&Package> = offered.iter().filter(is_usable).collect();
    let groups = groups(driver_version, &offered);
    let best = groups.iter().max_by(|a, b| {
        let rank = |g: &Group| (g.lacking(driver_version).is_empty(), g.packages.len());
        // Of two equal sources, the one with the plain name.
        (rank(a).cmp(&rank(b)))
            .then_with(|| version::compare(a.version, b.version))
            .then_with(|| b.source.cmp(a.source))
    });
    let Some(group) = best else {
        return Err(no_such_version(driver_version, arch, &offered));
    };
    let lacking = group.lacking(driver_version);
    if !lacking.is_empty() {
        return Err(lacks(driver_version, group, &lacking, &offered));
    }
    Ok(select(driver_version, group, &offered))
}

/// The packages built from one version of one source package.
struct Group<'a> {
    source: &'a str,
    version: &'a str,
    /// Stem -> package.
    packages: BTreeMap<String, &'a Package>,
}

impl<'a> Group<'a> {
    fn of_part(&self, part: &Part) -> Option<&'a Package> {
        part.stems.iter().find_map(|stem| self.packages.get(*stem).copied())
    }

    /// Returns the names of missing required parts.
    fn lacking(&self, driver_version: &str) -> Vec<&'static str> {
        let absent = needed(driver_version).filter(|part| self.of_part(part).is_none());
        absent.map(|part| part.name).collect()
    }

    /// True if a package is there that is known to have the part. `nvidia-kernel-common` only may have it.
    fn surely_has(&self, part: &Part) -> bool {
        let mut stems = part.stems.iter().filter(|stem| **stem != KERNEL_COMMON);
        stems.any(|stem| self.packages.contains_key(*stem))
    }

    /// Adds the required packages that the source lacks from those of exactly its version in the same
    /// archive: an archive may build firmware and tools from sources of their own.
    fn complete(&mut self, driver_version: &str, offered: &[&'a Package]) {
        let Some(base) = self.packages.values().next().map(|p| p.base_url.clone()) else { return };
        let version = self.version;
        let is_beside = |p: &&&Package| {
            p.base_url == base && source_version(&p.version) == version && companion(p).is_none()
        };
        for part in needed(driver_version) {
            if self.surely_has(part) {
                continue;
            }
            let of_stem =
                |stem: &&str| offered.iter().filter(is_beside).find(|p| stem_of(p) == *stem);
            let found = part.stems.iter().find_map(of_stem);
            self.packages.extend(found.map(|p| (stem_of(p), *p)));
        }
    }
}

/// Returns the required parts of a driver version.
fn needed(driver_version: &str) -> impl Iterator<Item = &'static Part> {
    let wants_firmware = wants_firmware(driver_version);
    PARTS.iter().filter(move |part| match part.need {
        Need::Always => true,
        Need::Firmware => wants_firmware,
        Need::Optional | Need::Companion | Need::Twin => false,
    })
}

/// Returns the source's version of a package: a binary rebuild adds an ending (`+b1`).
fn source_version(version: &str) -> &str {
    match version.rsplit_once("+b") {
        Some((base, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => version,
    }
}

fn groups<'a>(driver_version: &str, offered: &[&'a Package]) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<(&str, &str), BTreeMap<String, &Package>> = BTreeMap::new();
    for package in offered.iter().filter(|p| version::upstream(&p.version) == driver_version) {
        if companion(package).is_none() {
            let key = (source_of(package), source_version(&package.version));
            groups.entry(key).or_default().entry(stem_of(package)).or_insert(package);
        }
    }
    let mut groups: Vec<_> = groups
        .into_iter()
        .map(|((source, version), packages)| Group { source, version, packages })
        .collect();
    for group in &mut groups {
        group.complete(driver_version, offered);
    }
    groups
}

/// Returns the part of a package that is not of the driver's source; none for a package that holds one
/// of the driver's own parts, too.
fn companion(package: &Package) -> Option<&'static Part> {
    let stem = stem(&package.name);
    let is_apart = |p: &&Part| matches!(p.need, Need::Companion | Need::Twin);
    let mut of_stem = PARTS.iter().filter(|p| p.stems.contains(&stem.as_str()));
    let first = of_stem.clone().find(is_apart)?;
    of_stem.all(|part| is_apart(&part)).then_some(first)
}

fn select(driver_version: &str, group: &Group<'_>, offered: &[&Package]) -> Selection {
    let suite =
        PARTS.iter().find_map(|part| group.of_part(part)).map_or("", |p| p.origin.text.as_str());
    let mut packages = BTreeMap::new();
    let mut missing = Vec::new();
    for part in PARTS {
        let found = match part.need {
            Need::Companion => {
                group.of_part(part).or_else(|| nearest(part, driver_version, suite, offered))
            }
            Need::Twin => twin(part, driver_version, offered),
            _ => group.of_part(part),
        };
        match found {
            Some(package) => {
                packages.insert(package.name.clone(), package.clone());
            }
            None => missing.push(part.name.to_owned()),
        }
    }
    Selection { packages: packages.into_values().collect(), missing }
}

/// Returns the nearest companion: not newer than the driver, from the driver's suite, else its
/// release, and then the newest. Unlike the rest of a driver it was compiled in its suite, and one
/// of a later suite may need a later C library.
fn nearest<'a>(
    part: &Part,
    driver_version: &str,
    suite: &str,
    offered: &[&'a Package],
) -> Option<&'a Package> {
    let release = |suite: &str| suite.split('-').next().unwrap_or_default().to_owned();
    let rank = |p: &Package| {
        let older = version::compare(version::upstream(&p.version), driver_version).is_le();
        (older, p.origin.text == suite, release(&p.origin.text) == release(suite))
    };
    let is_part =
        |p: &&&Package| part.stems.contains(&stem(&p.name).as_str()) && companion(p).is_some();
    let of_part = offered.iter().filter(is_part);
    of_part
        .copied()
        .max_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| version::compare(&a.version, &b.version)))
}

/// Returns the package of exactly the driver's version.
fn twin<'a>(part: &Part, driver_version: &str, offered: &[&'a Package]) -> Option<&'a Package> {
    let is_it = |p: &&&Package| {
        part.stems.contains(&stem(&p.name).as_str())
            && version::upstream(&p.version) == driver_version
    };
    let found = offered.iter().filter(is_it).copied();
    found.max_by(|a, b| version::compare(&a.version, &b.version))
}

fn no_such_version(driver_version: &str, arch: &str, offered: &[&Package]) -> Failure {
    let libcuda = |p: &&&Package| {
        matches!(stem(&p.name).as_str(), "libcuda" | "libnvidia-cuda" | "libnvidia-compute")
    };
    let versions: BTreeSet<_> =
        offered.iter().filter(libcuda).map(|p| version::upstream(&p.version).to_owned()).collect();
    let remedy = if versions.is_empty() {
        "they have no NVIDIA user-mode driver at all: NVIDIA's packages are in the components \
         contrib, non-free and non-free-firmware (Ubuntu: restricted)"
            .to_owned()
    } else {
        let versions: Vec<_> = versions.into_iter().collect();
        format!("they have {}; ask for one of these or add an archive", versions.join(", "))
    };
    let cause = format!(
        "the archives have no package of the user-mode driver {driver_version} for {arch} \
         (looked for libcuda1, libnvidia-ml1, nvidia-smi, libnvidia-compute-NNN and their like of \
         that version)"
    );
    Failure::new(FailureKind::Download, cause).remedy(remedy)
}

fn lacks(
    driver_version: &str,
    group: &Group<'_>,
    lacking: &[&'static str],
    offered: &[&Package],
) -> Failure {
    let stems = PARTS.iter().filter(|part| lacking.contains(&part.name)).flat_map(|p| p.stems);
    let looked: BTreeSet<_> =
        offered.iter().map(|p| format!("{} {}", p.origin.text, p.component)).collect();
    let cause = format!(
        "the user-mode driver {driver_version} is not complete in the archives: of source {} {} \
         there is no {} (looked for packages like {} in {})",
        group.source,
        group.version,
        lacking.join(", "),
        stems.copied().collect::<Vec<_>>().join(", "),
        looked.into_iter().collect::<Vec<_>>().join(", "),
    );
    Failure::new(FailureKind::Download, cause).remedy(
        "name the components contrib, non-free and non-free-firmware (GSP firmware is in the \
         last; Ubuntu: restricted) and the suite with that driver among the archive's",
    )
}

#[cfg(test)]
mod tests;
