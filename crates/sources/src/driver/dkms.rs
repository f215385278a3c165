//! Packages for DKMS that hold the kernel sources themselves.
//!
//! NVIDIA's archive for Debian has no other package of them: `nvidia-kernel-dkms` and `nvidia-kernel-open-dkms`, with
//! the unpacked sources and `dkms.conf` in `usr/src/nvidia-VERSION`. Debian's own packages of these names are built
//! beside `nvidia-kernel-source`, which is used then; those of Ubuntu and of NVIDIA's archive for it
//! (`nvidia-dkms[-BRANCH][-server][-open]`) only depend on the package with the sources.

use longshore_core::flavour::Flavour;
use longshore_debian::archive::Package;
use longshore_debian::version;

use super::AvailableDriver;

/// Words that such a name has beside `dkms` and the branch. `nvidia-fs-dkms` is of another module,
/// `nvidia-headless-no-dkms-open` of none.
const WORDS: [&str; 7] = ["nvidia", "kernel", "open", "server", "current", "tesla", "legacy"];

/// Returns the flavour of a package for DKMS, by its name; None for any other package.
pub(super) fn flavour_of(name: &str) -> Option<Flavour> {
    let is_branch = |word: &str| {
        let digits = word.strip_suffix("xx").unwrap_or(word);
        digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let is_known = |word: &str| word == "dkms" || WORDS.contains(&word) || is_branch(word);
    let mut words = name.split('-');
    let is_one = words.clone().next() == Some("nvidia")
        && words.clone().any(|word| word == "dkms")
        && words.clone().all(is_known);
    let open = words.any(|word| word == "open");
    is_one.then_some(if open { Flavour::Open } else { Flavour::Proprietary })
}

/// Returns the packages for DKMS, with their flavours, that hold sources: of a version and flavour that none of the
/// drivers `found` has, and dependent on no package of sources and on no other one for DKMS, as a transitional one is.
pub(super) fn with_own_sources<'a>(
    packages: &'a [Package],
    found: &'a [AvailableDriver],
) -> impl Iterator<Item = (&'a Package, Flavour)> {
    packages.iter().filter_map(move |package| {
        let flavour = flavour_of(&package.name)?;
        let is_elsewhere =
            |name: &str| super::flavour_of(name).is_some() || flavour_of(name).is_some();
        let version = version::upstream(&package.version);
        let is_found = found.iter().any(|d| d.version == version && d.flavour == flavour);
        (!is_found && package.successor(is_elsewhere).is_none()).then_some((package, flavour))
    })
}
