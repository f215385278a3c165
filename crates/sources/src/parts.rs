//! Parts of a driver's user-mode files, and the names of their packages.
//!
//! Debian names the packages of its long-lived and legacy branches after the branch
//! (`libnvidia-tesla-470-ml1`, `nvidia-legacy-390xx-smi`), and their sonames' numbers change. Ubuntu's
//! names end with the branch (`libnvidia-compute-580-server`), firmware's with the version
//! (`nvidia-firmware-580-580.178.04`), and the packages of NVIDIA's archive have neither from 590 on. Its packages for
//! Debian have Debian's names, but the tools are in `nvidia-driver-cuda`. So
//! a package is recognized by its name without all of that. Ubuntu's packages hold several parts each
//! (debian/*.install of its source packages).

use longshore_core::driver_version::{DriverVersion, FIRST_OPEN_BRANCH};
use longshore_debian::packages::Package;

/// Requirement of a driver on a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
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
pub(crate) struct Part {
    /// Name in messages about missing parts.
    pub(crate) name: &'static str,
    pub(crate) need: Need,
    /// Stems of the packages that may contain it (see [`stem`]), best first. A package with several parts
    /// is of the driver's own source, also where a part of it is otherwise a companion.
    pub(crate) stems: &'static [&'static str],
}

/// The parts, grouped by driver capability. Graphics libraries are left out: a compute node's host
/// does not use them, and they double the size.
pub(crate) const PARTS: &[Part] = &[
    // utility
    part("libnvidia-ml", Need::Always, &["libnvidia-ml", COMPUTE]),
    part("nvidia-smi", Need::Always, &["nvidia-smi", UTILS, CUDA_TOOLS, KERNEL_COMMON]),
    part("libnvidia-cfg", Need::Optional, &["libnvidia-cfg"]),
    part("nvidia-debugdump", Need::Optional, &["nvidia-driver-bin", UTILS, CUDA_TOOLS]),
    part("nvidia-persistenced", Need::Companion, &["nvidia-persistenced", COMPUTE_UTILS]),
    part("nvidia-modprobe", Need::Companion, &["nvidia-modprobe"]),
    // NVLink switches and domains; Ubuntu (multiverse) and NVIDIA's own archive have them, up to 575
    // with the branch in the names
    part("libnvidia-nscq", Need::Twin, &["libnvidia-nscq"]),
    part("nv-fabricmanager", Need::Twin, &[FABRIC_MANAGER]),
    part("nvidia-imex", Need::Twin, &["nvidia-imex"]),
    part("nvlsm", Need::Companion, &[SUBNET_MANAGER]),
    // compute
    part("libcuda", Need::Always, &["libcuda", "libnvidia-cuda", COMPUTE]),
    part(
        "libcudadebugger",
        Need::Optional,
        &["libcudadebugger", "libnvidia-cudadebugger", COMPUTE],
    ),
    part("libnvidia-ptxjitcompiler", Need::Optional, &["libnvidia-ptxjitcompiler", COMPUTE]),
    part("libnvidia-nvvm", Need::Optional, &["libnvidia-nvvm", COMPUTE]),
    part("libnvidia-compiler", Need::Optional, &["libnvidia-compiler"]),
    part("libnvidia-fatbinaryloader", Need::Optional, &["libnvidia-fatbinaryloader"]),
    part("libnvidia-gpucomp", Need::Optional, &["libnvidia-gpucomp"]),
    part("libnvidia-opencl", Need::Optional, &["nvidia-opencl-icd", COMPUTE]),
    part("libnvidia-pkcs11", Need::Optional, &["libnvidia-pkcs", COMPUTE]),
    part("libnvidia-pkcs11-openssl3", Need::Optional, &["libnvidia-pkcs11-openssl", COMPUTE]),
    part("libnvidia-tileiras", Need::Optional, &["libnvidia-tileiras", COMPUTE]),
    part("libnvidia-allocator", Need::Optional, &["libnvidia-allocator", "libnvidia-extra"]),
    part("nvidia-cuda-mps", Need::Optional, &["nvidia-cuda-mps", COMPUTE_UTILS, CUDA_TOOLS]),
    // video
    part("libnvidia-encode", Need::Optional, &["libnvidia-encode"]),
    part("libnvcuvid", Need::Optional, &["libnvcuvid", "libnvidia-nvcuvid", DECODE]),
    part("libnvidia-opticalflow", Need::Optional, &["libnvidia-opticalflow", DECODE]),
    part("libvdpau_nvidia", Need::Optional, &["nvidia-vdpau-driver", DECODE]),
    part("libnvidia-fbc", Need::Optional, &["libnvidia-fbc"]),
    part("GSP firmware", Need::Firmware, &[FIRMWARE, "nvidia-firmware", KERNEL_COMMON]),
];

/// Stem of the fabric manager's packages.
pub(crate) const FABRIC_MANAGER: &str = "nvidia-fabricmanager";
/// Stem of the subnet manager's package.
pub(crate) const SUBNET_MANAGER: &str = "nvlsm";

/// Stems of Ubuntu's packages with several parts.
const COMPUTE: &str = "libnvidia-compute";
const UTILS: &str = "nvidia-utils";
const COMPUTE_UTILS: &str = "nvidia-compute-utils";
const DECODE: &str = "libnvidia-decode";

/// Stem of the package with the tools in NVIDIA's archive for Debian.
const CUDA_TOOLS: &str = "nvidia-driver-cuda";
/// Stem of the package that is beside the modules. NVIDIA's archive for Ubuntu has no package of the tools from 590 on
/// (the container image of its driver for 26.04 installs none): they are in this one or in that of the libraries,
/// which is always taken.
pub(crate) const KERNEL_COMMON: &str = "nvidia-kernel-common";

/// The stem of the packages with GSP firmware; Ubuntu's have another, and up to 530 it is in
/// `nvidia-kernel-common`.
const FIRMWARE: &str = "firmware-nvidia-gsp";

/// In 470 this package contains the firmware, as its Provides states.
const FIRMWARE_UNTIL_470: &str = "nvidia-kernel-support";

const fn part(name: &'static str, need: Need, stems: &'static [&'static str]) -> Part {
    Part { name, need, stems }
}

/// Words that begin a branch's name inside package names: `nvidia-tesla-470-smi`.
const BRANCH_WORDS: [&str; 2] = ["tesla", "legacy"];

/// Returns a package's name without its branch and without the soname's number:
/// `libnvidia-tesla-470-nvvm4` and `libnvidia-nvvm4` give `libnvidia-nvvm`, and so
/// `libnvidia-compute-580-server` gives `libnvidia-compute`.
pub(crate) fn stem(name: &str) -> String {
    let mut words: Vec<&str> = name.split('-').collect();
    if let Some(at) = words.iter().position(|word| BRANCH_WORDS.contains(word)) {
        let numbered =
            words.get(at + 1).is_some_and(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        words.drain(at..at + 1 + usize::from(numbered));
    }
    words.truncate(words.iter().position(|word| is_branch(word)).unwrap_or(words.len()));
    words.join("-").trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
}

/// True for a word that is a branch: three digits.
fn is_branch(word: &str) -> bool {
    word.len() == 3 && word.bytes().all(|b| b.is_ascii_digit())
}

/// True if a package of this name may be a part.
pub(crate) fn is_part(name: &str) -> bool {
    let stem = stem(name);
    stem == FIRMWARE_UNTIL_470 || PARTS.iter().any(|part| part.stems.contains(&stem.as_str()))
}

/// True if a library of this file name belongs to a part: `libcuda.so.1` does, `libGLX_nvidia.so.0`
/// does not.
pub(crate) fn is_part_library(name: &str) -> bool {
    let Some((stem, _)) = name.split_once(".so") else { return false };
    // libnvidia-nvvm70 is libnvidia-nvvm for another LLVM.
    let unnumbered = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    PARTS.iter().any(|part| part.name == stem || part.name == unnumbered)
}

/// True for a transitional package: it holds nothing, and depends on the package of the same part
/// (`libnvidia-compute-570` on `libnvidia-compute-580`).
pub(crate) fn is_transitional(package: &Package) -> bool {
    let own = stem(&package.name);
    package.successor(|name| stem(name) == own).is_some()
}

/// Returns the stem of the part that a package contains.
pub(crate) fn stem_of(package: &Package) -> String {
    let own = stem(&package.name);
    let firmware = package.provides.iter().any(|provided| stem(&provided.name) == FIRMWARE);
    if own == FIRMWARE_UNTIL_470 && firmware { FIRMWARE.to_owned() } else { own }
}

/// Returns the name of the source that a package was built from.
pub(crate) fn source_of(package: &Package) -> &str {
    package.source.as_deref().unwrap_or(&package.name)
}

/// True if a tree of this driver must have GSP firmware.
pub(crate) fn wants_firmware(driver_version: &str) -> bool {
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
    #[case("libnvidia-compute-580", "libnvidia-compute")]
    #[case("libnvidia-compute-580-server", "libnvidia-compute")]
    #[case("libnvidia-compute", "libnvidia-compute")]
    #[case("nvidia-utils-580-server", "nvidia-utils")]
    #[case("nvidia-compute-utils-580", "nvidia-compute-utils")]
    #[case("libnvidia-cfg1-580", "libnvidia-cfg")]
    #[case("libnvidia-fbc1-580-server", "libnvidia-fbc")]
    #[case("libnvidia-extra-580", "libnvidia-extra")]
    #[case("nvidia-firmware-580-580.178.04", "nvidia-firmware")]
    #[case("nvidia-firmware-580-server-580.173.02", "nvidia-firmware")]
    #[case("nvidia-firmware", "nvidia-firmware")]
    #[case("nvidia-kernel-common-525", "nvidia-kernel-common")]
    #[case("nvidia-fabricmanager-575", "nvidia-fabricmanager")]
    #[case("libnvidia-nscq-580", "libnvidia-nscq")]
    #[case("nvidia-imex-570", "nvidia-imex")]
    #[case("nvidia-driver-cuda", "nvidia-driver-cuda")]
    #[case("libnvidia-tileiras", "libnvidia-tileiras")]
    #[case("libnvidia-gpucomp", "libnvidia-gpucomp")]
    #[case("libnvidia-nvvm704", "libnvidia-nvvm")]
    fn a_stem_has_neither_branch_nor_number(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(stem(name), expected);
        assert!(is_part(name), "{name}");
    }

    #[rstest]
    #[case("libcuda.so.535.261.03", true)]
    #[case("libnvidia-pkcs11-openssl3.so.535.261.03", true)]
    #[case("libnvidia-nvvm70.so.4", true)]
    #[case("libnvidia-tileiras.so.590.48.01", true)]
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
    #[case("libnvidia-gl-580")]
    #[case("libnvidia-common-580")]
    #[case("nvidia-dkms-580-open")]
    #[case("nvidia-driver-580-server")]
    #[case("nvidia-headless-no-dkms-580")]
    #[case("libcudart11.0")]
    #[case("")]
    fn what_is_no_part(#[case] name: &str) {
        assert!(!is_part(name), "{name}");
    }
}
