//! Parts of a kernel's headers: the packages that hold them together.
//!
//! A part is a dependency of the headers package, or of another part, that was built from the same
//! source package. Names do not tell it: Ubuntu's common part is `linux-headers-6.8.0-142` for one
//! source and `linux-hwe-6.8-headers-6.8.0-52` or `linux-aws-headers-6.8.0-1015` for others.

use std::collections::{HashSet, VecDeque};

use crate::parts::source_of;
use longshore_debian::archive::{Package, Requirement};

/// Prefix of the headers packages, and of some parts.
pub(super) const PREFIX: &str = "linux-headers-";
/// Prefixes of the headers packages of kernels, best first: before the release as `uname -r` has it. Proxmox's were
/// `pve-headers-` until Proxmox VE 7; their files are below `/usr/src/linux-headers-RELEASE` all the same.
pub(super) const PREFIXES: [&str; 3] = [PREFIX, "proxmox-headers-", "pve-headers-"];

/// Returns the name of the directory below `/usr/src` with the files of a headers package.
pub(super) fn tree_of(package: &str) -> String {
    let release = PREFIXES.iter().find_map(|prefix| package.strip_prefix(prefix));
    release.map_or_else(|| package.to_owned(), |release| format!("{PREFIX}{release}"))
}
/// Prefix of Debian's package with the programs that go with the headers.
pub(super) const KBUILD: &str = "linux-kbuild-";
/// Prefix of Debian's packages that depend on a kernel's compiler, and hold nothing.
pub(super) const COMPILER: &str = "linux-compiler-";
/// Prefixes of packages that headers depend on since Linux 6.12, and a build does not need: the
/// kernel's image, and the programs that install it.
const OF_IMAGE: [&str; 2] = ["linux-image-", "linux-base"];

/// A part of a kernel's headers.
#[derive(Debug)]
pub(super) struct Part {
    /// Its name.
    pub(super) name: String,
    /// The dependency on it that was met first.
    pub(super) wanted: Requirement,
    /// The package that was found for it.
    pub(super) package: Package,
}

/// Returns the parts of `headers` beside itself, those it depends on directly first; `find` returns
/// the package for a dependency. Each name is followed once, so that a loop ends.
pub(super) fn parts_of(
    headers: &Package,
    find: impl Fn(&Requirement) -> Option<Package>,
) -> Vec<Part> {
    let mut seen = HashSet::from([headers.name.clone()]);
    let mut waiting = VecDeque::from([headers.clone()]);
    let mut parts = Vec::new();
    while let Some(package) = waiting.pop_front() {
        for wanted in needed(&package) {
            if !seen.insert(wanted.name.clone()) {
                continue;
            }
            let Some(part) = find(wanted).filter(|found| is_part(found, headers)) else { continue };
            waiting.push_back(part.clone());
            parts.push(Part { name: part.name.clone(), wanted: wanted.clone(), package: part });
        }
    }
    parts
}

/// Returns a package's dependencies, without the kernel image and its companions.
pub(super) fn needed(package: &Package) -> impl Iterator<Item = &Requirement> {
    let of_image = |name: &str| OF_IMAGE.iter().any(|prefix| name.starts_with(prefix));
    package
        .depends
        .iter()
        .filter_map(|clause| clause.0.first())
        .filter(move |one| !of_image(&one.name))
}

/// True if a package that `headers` lead to holds a part of them. Debian's names count too: a
/// `linux-kbuild-*` of one release may come from two sources.
fn is_part(package: &Package, headers: &Package) -> bool {
    let named = PREFIXES.iter().chain(&[KBUILD]).any(|prefix| package.name.starts_with(prefix));
    let holds_files = !package.name.starts_with(COMPILER);
    holds_files && (named || source_of(package) == source_of(headers))
}

#[cfg(test)]
mod tests {
    use longshore_debian::archive::Archive;

    use super::*;

    /// As in linux-headers-7.3.4+deb13-rt-amd64, and in 6.12.107 with its image.
    const DEPENDS: &str = "gcc-14-for-host, linux-base (>= 4.12~), linux-base-7.3.4+deb13-rt-amd64 \
        (= 7.3.4-1~bpo13+1), linux-image-a (= 1) | linux-image-a-unsigned (= 1), \
        linux-kbuild-7.3.4+deb13";

    #[test]
    fn what_comes_with_the_image_is_not_needed() {
        let sha256 = "0".repeat(64);
        let text = format!(
            "Package: linux-headers-a\nVersion: 1\nArchitecture: amd64\nDepends: {DEPENDS}\n\
             Filename: a.deb\nSize: 1\nSHA256: {sha256}\n"
        );
        let headers =
            Archive::of_suites(&[("trixie", &text)]).packages("linux-headers-a").remove(0);
        let names: Vec<_> = needed(&headers).map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["gcc-14-for-host", "linux-kbuild-7.3.4+deb13"]);
    }
}
