//! Selection of a driver version's packages: those built from one version of one source package,
//! and the nearest companions.

use std::collections::{BTreeMap, BTreeSet};

use super::parts::{Need, PARTS, Part, stem, stem_of, wants_firmware};
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
    let offered: Vec<&Package> =
        offered.iter().filter(|p| p.arch == arch || p.arch == "all").collect();
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
        let needed = |part: &&Part| match part.need {
            Need::Always => true,
            Need::Firmware => wants_firmware(driver_version),
            Need::Optional | Need::Companion | Need::Twin => false,
        };
        let absent = PARTS.iter().filter(needed).filter(|part| self.of_part(part).is_none());
        absent.map(|part| part.name).collect()
    }
}

fn source_of(package: &Package) -> &str {
    package.source.as_deref().unwrap_or(&package.name)
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
    groups
        .into_iter()
        .map(|((source, version), packages)| Group { source, version, packages })
        .collect()
}

fn companion(package: &Package) -> Option<&'static Part> {
    let stem = stem(&package.name);
    let is_apart = |p: &&Part| matches!(p.need, Need::Companion | Need::Twin);
    PARTS.iter().filter(is_apart).find(|p| p.stems.contains(&stem.as_str()))
}

fn select(driver_version: &str, group: &Group<'_>, offered: &[&Package]) -> Selection {
    let suite = PARTS.iter().find_map(|part| group.of_part(part)).map_or("", |p| p.suite.as_str());
    let mut packages = BTreeMap::new();
    let mut missing = Vec::new();
    for part in PARTS {
        let found = match part.need {
            Need::Companion => nearest(part, driver_version, suite, offered),
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
        (older, p.suite == suite, release(&p.suite) == release(suite))
    };
    let of_part = offered.iter().filter(|p| part.stems.contains(&stem(&p.name).as_str()));
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
    let libcuda = |p: &&&Package| matches!(stem(&p.name).as_str(), "libcuda" | "libnvidia-cuda");
    let versions: BTreeSet<_> =
        offered.iter().filter(libcuda).map(|p| version::upstream(&p.version).to_owned()).collect();
    let remedy = if versions.is_empty() {
        "they have no NVIDIA user-mode driver at all: NVIDIA's packages are in the components \
         contrib, non-free and non-free-firmware"
            .to_owned()
    } else {
        let versions: Vec<_> = versions.into_iter().collect();
        format!("they have {}; ask for one of these or add an archive", versions.join(", "))
    };
    let cause = format!(
        "the archives have no package of the user-mode driver {driver_version} for {arch} \
         (looked for libcuda1, libnvidia-ml1, nvidia-smi and their like of that version)"
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
        offered.iter().map(|p| format!("{} {}", p.suite, p.component)).collect();
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
         last) and the suite with that driver among the archive's",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use longshore_debian::relation::parse_provides;
    use rstest::rstest;

    fn package(text: &str) -> Package {
        let mut words = text.split(' ');
        let mut next = || words.next().expect("name version source suite component").to_owned();
        let (name, version, source, suite, component) = (next(), next(), next(), next(), next());
        let provides = text.split_once(" provides ").map_or("", |(_, provides)| provides);
        Package {
            sha256: format!("{name}_{version}"),
            filename: String::new(),
            arch: "amd64".into(),
            source: (source != name).then_some(source),
            size: 1,
            depends: Vec::new(),
            provides: parse_provides(provides),
            base_url: "file:///archive".into(),
            phased: None,
            name,
            version,
            suite,
            component,
        }
    }

    fn packages(texts: &[&str]) -> Vec<Package> {
        texts.iter().map(|text| package(text)).collect()
    }

    const GSP: &str = "firmware-nvidia-gsp 535.261.03-1 graphics bookworm non-free-firmware";
    const BOOKWORM: &[&str] = &[
        "libcuda1 535.261.03-1 graphics bookworm non-free",
        "libnvidia-ml1 535.261.03-1 graphics bookworm non-free",
        "nvidia-smi 535.261.03-1 graphics bookworm non-free",
        "libnvidia-nvvm4 535.261.03-1 graphics bookworm non-free",
        "nvidia-kernel-support 535.261.03-1 graphics bookworm non-free",
        "nvidia-modprobe 535.161.07-1~deb12u1 nvidia-modprobe bookworm contrib",
        "nvidia-modprobe 570.133.07-1 nvidia-modprobe trixie contrib",
        "libnvidia-tesla-470-cuda1 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
        "libnvidia-tesla-470-ml1 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
        "libnvidia-tesla-470-nvvm4 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
        "nvidia-tesla-470-smi 470.256.02-1~deb12u1 tesla-470 bookworm non-free",
        "nvidia-tesla-470-kernel-support 470.256.02-1~deb12u1 tesla-470 bookworm non-free provides firmware-nvidia-tesla-470-gsp (= 470.256.02)",
    ];

    #[test]
    fn the_packages_of_a_version_are_those_of_one_source() {
        let offered = packages(&[BOOKWORM, &[GSP]].concat());
        let chosen = choose("535.261.03", "amd64", &offered).expect("chosen");
        let names: Vec<_> =
            chosen.packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
        assert_eq!(
            names,
            [
                "firmware-nvidia-gsp 535.261.03-1",
                "libcuda1 535.261.03-1",
                "libnvidia-ml1 535.261.03-1",
                "libnvidia-nvvm4 535.261.03-1",
                "nvidia-modprobe 535.161.07-1~deb12u1",
                "nvidia-smi 535.261.03-1",
            ]
        );
        assert!(chosen.missing.contains(&"libnvidia-nscq".to_owned()));
        assert!(!chosen.missing.contains(&"nvidia-modprobe".to_owned()));
    }

    #[test]
    fn the_fabric_manager_has_exactly_the_drivers_version_and_the_subnet_manager_one_of_its_own() {
        let fabric = [
            "nvidia-fabricmanager-535 535.261.03-1 fabricmanager-535 cuda main",
            "nvidia-fabricmanager-535 535.274.02-1 fabricmanager-535 cuda main",
            "nvidia-fabricmanager 580.1-1 nvidia-fabricmanager cuda main",
            "nvlsm 2025.10.14-1 nvlsm cuda main",
        ];
        let offered = packages(&[BOOKWORM, &[GSP], &fabric].concat());
        let chosen = choose("535.261.03", "amd64", &offered).expect("chosen");
        let of = |name: &str| chosen.packages.iter().find(|p| p.name.starts_with(name));
        assert_eq!(of("nvidia-fabricmanager").expect("chosen").version, "535.261.03-1");
        assert_eq!(of("nvlsm").expect("chosen").version, "2025.10.14-1");
        let chosen = choose("470.256.02", "amd64", &offered).expect("chosen");
        assert!(chosen.missing.contains(&"nv-fabricmanager".to_owned()));
    }

    #[test]
    fn a_branch_of_its_own_is_found_under_its_names() {
        let chosen = choose("470.256.02", "amd64", &packages(BOOKWORM)).expect("chosen");
        let names: Vec<_> = chosen.packages.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "libnvidia-tesla-470-cuda1",
                "libnvidia-tesla-470-ml1",
                "libnvidia-tesla-470-nvvm4",
                "nvidia-modprobe",
                "nvidia-tesla-470-kernel-support",
                "nvidia-tesla-470-smi",
            ]
        );
    }

    #[test]
    fn of_two_complete_sources_the_newer_revision_is_taken() {
        let rebuilt: Vec<_> = [BOOKWORM, &[GSP]]
            .concat()
            .iter()
            .map(|text| {
                text.replace("535.261.03-1 ", "535.261.03-2~bpo+1 ")
                    .replace("bookworm", "backports")
            })
            .collect();
        let rebuilt: Vec<_> = rebuilt.iter().map(String::as_str).collect();
        let offered = packages(&[BOOKWORM, &[GSP], rebuilt.as_slice()].concat());
        let chosen = choose("535.261.03", "amd64", &offered).expect("chosen");
        let libcuda = chosen.packages.iter().find(|p| p.name == "libcuda1").expect("libcuda1");
        assert_eq!(libcuda.version, "535.261.03-2~bpo+1");
    }

    #[test]
    fn a_binary_rebuild_belongs_to_its_source_version() {
        let offered =
            packages(&[BOOKWORM, &[&GSP.replace("535.261.03-1", "535.261.03-1+b2")]].concat());
        assert!(choose("535.261.03", "amd64", &offered).is_ok());
    }

    #[rstest]
    #[case::no_firmware("535.261.03", "amd64", "GSP firmware")]
    #[case::no_such_version("999.1", "amd64", "999.1")]
    #[case::no_such_arch("535.261.03", "arm64", "arm64")]
    fn what_is_not_to_be_had_is_named(
        #[case] version: &str,
        #[case] arch: &str,
        #[case] said: &str,
    ) {
        let failure = choose(version, arch, &packages(BOOKWORM)).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Download);
        assert!(failure.to_string().contains(said), "{failure}");
        assert!(failure.remedy_text().is_some());
    }
}
