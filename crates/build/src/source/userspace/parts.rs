//! Parts of a driver's user-mode files, and the names of their packages.
//!
//! Debian names the packages of its long-lived and legacy branches after the branch
//! (`libnvidia-tesla-470-ml1`, `nvidia-legacy-390xx-smi`), and their sonames' numbers change. So a
//! package is recognized by its name without both.

use longshore_core::driver_version::{DriverVersion, FIRST_OPEN_BRANCH};
use longshore_debian::packages::Package;

/// Requirement of a driver on a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Every driver needs it.
    Always,
    /// Drivers with a GPU System Processor need it: all since [`FIRST_OPEN_BRANCH`].
    Firmware,
    /// Included if available.
    Optional,
    /// From a source package with versions of its own; the nearest version is taken.
    Companion,
    /// From a source package of its own; must have exactly the driver's version.
    Twin,
}

/// A part of the driver.
pub(super) struct Part {
    /// Name in messages about missing parts.
    pub(super) name: &'static str,
    pub(super) need: Need,
    /// Stems of the packages that may contain it (see [`stem`]), best first.
    pub(super) stems: &'static [&'static str],
}

/// The parts, grouped by driver capability. Graphics libraries are left out: a compute node's host
/// does not use them, and they double the size.
pub(super) const PARTS: &[Part] = &[
    // utility
    part("libnvidia-ml", Need::Always, &["libnvidia-ml"]),
    part("nvidia-smi", Need::Always, &["nvidia-smi"]),
    part("libnvidia-cfg", Need::Optional, &["libnvidia-cfg"]),
    part("libnvidia-nscq", Need::Optional, &["libnvidia-nscq"]),
    part("nvidia-debugdump", Need::Optional, &["nvidia-driver-bin"]),
    part("nvidia-persistenced", Need::Companion, &["nvidia-persistenced"]),
    part("nvidia-modprobe", Need::Companion, &["nvidia-modprobe"]),
    // NVLink switches; NVIDIA's own archive has it, up to 575 with the branch in its name
    part("nv-fabricmanager", Need::Twin, &["nvidia-fabricmanager", "nvidia-fabricmanager-"]),
    part("nvlsm", Need::Companion, &["nvlsm"]),
    // compute
    part("libcuda", Need::Always, &["libcuda", "libnvidia-cuda"]),
    part("libcudadebugger", Need::Optional, &["libcudadebugger", "libnvidia-cudadebugger"]),
    part("libnvidia-ptxjitcompiler", Need::Optional, &["libnvidia-ptxjitcompiler"]),
    part("libnvidia-nvvm", Need::Optional, &["libnvidia-nvvm"]),
    part("libnvidia-compiler", Need::Optional, &["libnvidia-compiler"]),
    part("libnvidia-fatbinaryloader", Need::Optional, &["libnvidia-fatbinaryloader"]),
    part("libnvidia-gpucomp", Need::Optional, &["libnvidia-gpucomp"]),
    part("libnvidia-opencl", Need::Optional, &["nvidia-opencl-icd"]),
    part("libnvidia-pkcs11", Need::Optional, &["libnvidia-pkcs"]),
    part("libnvidia-pkcs11-openssl3", Need::Optional, &["libnvidia-pkcs11-openssl"]),
    part("libnvidia-allocator", Need::Optional, &["libnvidia-allocator"]),
    part("nvidia-cuda-mps", Need::Optional, &["nvidia-cuda-mps"]),
    // video
    part("libnvidia-encode", Need::Optional, &["libnvidia-encode"]),
    part("libnvcuvid", Need::Optional, &["libnvcuvid", "libnvidia-nvcuvid"]),
    part("libnvidia-opticalflow", Need::Optional, &["libnvidia-opticalflow"]),
    part("libvdpau_nvidia", Need::Optional, &["nvidia-vdpau-driver"]),
    part("libnvidia-fbc", Need::Optional, &["libnvidia-fbc"]),
    part("GSP firmware", Need::Firmware, &[FIRMWARE]),
];

/// The stem of the packages with GSP firmware.
const FIRMWARE: &str = "firmware-nvidia-gsp";

/// In 470 this package contains the firmware, as its Provides states.
const FIRMWARE_UNTIL_470: &str = "nvidia-kernel-support";

const fn part(name: &'static str, need: Need, stems: &'static [&'static str]) -> Part {
    Part { name, need, stems }
}

/// Words that begin a branch's name inside package names: `nvidia-tesla-470-smi`.
const BRANCH_WORDS: [&str; 2] = ["tesla", "legacy"];

/// Returns a package's name without its branch and without the soname's number:
/// `libnvidia-tesla-470-nvvm4` and `libnvidia-nvvm4` give `libnvidia-nvvm`.
pub(super) fn stem(name: &str) -> String {
    let mut words: Vec<&str> = name.split('-').collect();
    if let Some(at) = words.iter().position(|word| BRANCH_WORDS.contains(word)) {
        let numbered =
            words.get(at + 1).is_some_and(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        words.drain(at..at + 1 + usize::from(numbered));
    }
    words.join("-").trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
}

/// True if a package of this name may be a part.
pub(super) fn is_part(name: &str) -> bool {
    let stem = stem(name);
    stem == FIRMWARE_UNTIL_470 || PARTS.iter().any(|part| part.stems.contains(&stem.as_str()))
}

/// True if a library of this file name belongs to a part: `libcuda.so.1` does, `libGLX_nvidia.so.0`
/// does not.
pub(super) fn is_part_library(name: &str) -> bool {
    let Some((stem, _)) = name.split_once(".so") else { return false };
    // libnvidia-nvvm70 is libnvidia-nvvm for another LLVM.
    let unnumbered = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    PARTS.iter().any(|part| part.name == stem || part.name == unnumbered)
}

/// Returns the stem of the part that a package contains.
pub(super) fn stem_of(package: &Package) -> String {
    let own = stem(&package.name);
    let firmware = package.provides.iter().any(|provided| stem(&provided.name) == FIRMWARE);
    if own == FIRMWARE_UNTIL_470 && firmware { FIRMWARE.to_owned() } else { own }
}

/// True if a tree of this driver must have GSP firmware.
pub(super) fn wants_firmware(driver_version: &str) -> bool {
    let branch = DriverVersion::new(driver_version).branch();
    branch.is_some_and(|branch| branch >= FIRST_OPEN_BRANCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("libcuda1", "libcuda")]
    #[case("libnvidia-tesla-470-cuda1", "libnvidia-cuda")]
    #[case("libnvidia-tesla-cuda1", "libnvidia-cuda")]
    #[case("libnvidia-legacy-390xx-ml1", "libnvidia-ml")]
    #[case("nvidia-tesla-535-smi", "nvidia-smi")]
    #[case("firmware-nvidia-tesla-535-gsp", "firmware-nvidia-gsp")]
    #[case("libnvidia-pkcs11-openssl3", "libnvidia-pkcs11-openssl")]
    fn a_stem_has_neither_branch_nor_number(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(stem(name), expected);
        assert!(is_part(name), "{name}");
    }

    #[rstest]
    #[case("libcuda.so.535.261.03", true)]
    #[case("libnvidia-pkcs11-openssl3.so.535.261.03", true)]
    #[case("libnvidia-nvvm70.so.4", true)]
    #[case("libvdpau_nvidia.so.1", true)]
    #[case("libnvidia-glcore.so.535.261.03", false)]
    #[case("libOpenCL.so.1.0.0", false)]
    #[case("libcuda.txt", false)]
    fn libraries_are_told_by_their_names(#[case] name: &str, #[case] wanted: bool) {
        assert_eq!(is_part_library(name), wanted);
    }

    #[rstest]
    #[case("libcuda1-any")]
    #[case("libnvidia-ml-dev")]
    #[case("nvidia-settings")]
    #[case("libnvidia-glcore")]
    #[case("nvidia-tesla-470-kernel-dkms")]
    #[case("libcudart11.0")]
    #[case("")]
    fn what_is_no_part(#[case] name: &str) {
        assert!(!is_part(name), "{name}");
    }
}
