//! Programs for NVLink switches among the packages of archives: the fabric manager and the subnet
//! manager.

use std::collections::BTreeSet;

use crate::parts::{self, stem};
use longshore_debian::archive::Archive;
use longshore_debian::packages::Package;
use longshore_debian::version;

/// Switch programs that archives offer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchPrograms {
    /// Driver versions with a fabric manager of exactly that version.
    pub fabric_managers: BTreeSet<String>,
    /// True if there is a subnet manager; its versions are its own.
    pub subnet_manager: bool,
}

/// Returns the switch programs of an archive for a Debian architecture.
pub fn switch_programs(archive: &Archive, arch: &str) -> SwitchPrograms {
    let names = archive.names_matching(&parts::is_part);
    of_packages(names.iter().flat_map(|name| archive.packages(name)), arch)
}

fn of_packages(packages: impl Iterator<Item = Package>, arch: &str) -> SwitchPrograms {
    let mut found = SwitchPrograms::default();
    for package in packages.filter(|p| p.arch == arch || p.arch == "all") {
        match stem(&package.name).as_str() {
            parts::FABRIC_MANAGER => {
                found.fabric_managers.insert(version::upstream(&package.version).to_owned());
            }
            parts::SUBNET_MANAGER => found.subnet_manager = true,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            arch: "amd64".into(),
            source: None,
            component: "non-free".into(),
            filename: String::new(),
            size: 1,
            sha256: String::new(),
            depends: Vec::new(),
            provides: Vec::new(),
            base_url: "".into(),
            origin: longshore_core::package_origin::PackageOrigin::named("bookworm"),
        }
    }

    #[test]
    fn switch_programs_are_told_by_name_version_and_architecture() {
        let mut packages = vec![
            package("nvidia-fabricmanager-535", "535.261.03-1"),
            package("nvidia-fabricmanager", "590.48.01-0ubuntu1"),
            package("libcuda1", "550.163.01-1"),
        ];
        let mut foreign = package("nvidia-fabricmanager-550", "550.163.01-1");
        foreign.arch = "arm64".into();
        packages.push(foreign);
        let of = |packages: &[Package]| of_packages(packages.iter().cloned(), "amd64");
        let found = of(&packages);
        let versions: Vec<&str> = found.fabric_managers.iter().map(String::as_str).collect();
        assert_eq!(versions, ["535.261.03", "590.48.01"]);
        assert!(!found.subnet_manager);
        packages.push(package("nvlsm", "2025.03.1-1"));
        assert!(of(&packages).subnet_manager);
    }
}
