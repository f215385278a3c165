//! Libraries and tools of the driver, each with the capabilities that it belongs to.
//!
//! The rows are those of NVIDIA's container toolkit (libnvidia-container, src/nvc_info.c), with the
//! names of a user-mode tree's parts. The difference: libnvidia-gpucomp is listed for compute there,
//! and is the shader compiler of Vulkan and OpenGL too.

use crate::config::DriverCapability::{self, Compute, Graphics, Utility, Video};

/// Stems of libraries (`libcuda` of `libcuda.so.1`).
const LIBRARIES: &[(&str, &[DriverCapability])] = &[
    ("libnvidia-ml", &[Utility]),
    ("libnvidia-cfg", &[Utility]),
    ("libnvidia-nscq", &[Utility]),
    ("libcuda", &[Compute]),
    ("libcudadebugger", &[Compute]),
    ("libnvidia-ptxjitcompiler", &[Compute]),
    ("libnvidia-nvvm", &[Compute]),
    ("libnvidia-compiler", &[Compute]),
    ("libnvidia-fatbinaryloader", &[Compute]),
    ("libnvidia-gpucomp", &[Compute, Graphics]),
    ("libnvidia-opencl", &[Compute]),
    ("libnvidia-pkcs11", &[Compute]),
    ("libnvidia-pkcs11-openssl3", &[Compute]),
    ("libnvidia-allocator", &[Compute]),
    ("libnvidia-tileiras", &[Compute]),
    ("libnvidia-encode", &[Video]),
    ("libnvcuvid", &[Video]),
    ("libnvidia-opticalflow", &[Video]),
    ("libvdpau_nvidia", &[Video]),
    ("libnvidia-fbc", &[Graphics]),
    ("libnvidia-eglcore", &[Graphics]),
    ("libnvidia-glcore", &[Graphics]),
    ("libnvidia-tls", &[Graphics]),
    ("libnvidia-glsi", &[Graphics]),
    ("libnvidia-glvkspirv", &[Graphics]),
    ("libnvidia-rtcore", &[Graphics]),
    ("libnvoptix", &[Graphics]),
    ("libGLX_nvidia", &[Graphics]),
    ("libEGL_nvidia", &[Graphics]),
    ("libGLESv2_nvidia", &[Graphics]),
    ("libGLESv1_CM_nvidia", &[Graphics]),
];

/// Tools by name. The host's own (nvidia-modprobe, the fabric manager and its subnet manager) are no
/// container's.
const TOOLS: &[(&str, &[DriverCapability])] = &[
    ("nvidia-smi", &[Utility]),
    ("nvidia-debugdump", &[Utility]),
    ("nvidia-persistenced", &[Utility]),
    ("nvidia-cuda-mps-control", &[Compute]),
    ("nvidia-cuda-mps-server", &[Compute]),
];

/// True if a library of this file name belongs to one of these capabilities.
pub(super) fn has_library(capabilities: &[DriverCapability], file_name: &str) -> bool {
    let Some((stem, _)) = file_name.split_once(".so") else { return false };
    // libnvidia-nvvm70 is libnvidia-nvvm for another LLVM.
    let unnumbered = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    has(LIBRARIES, capabilities, stem) || has(LIBRARIES, capabilities, unnumbered)
}

/// True if a tool of this name belongs to one of these capabilities.
pub(super) fn has_tool(capabilities: &[DriverCapability], name: &str) -> bool {
    has(TOOLS, capabilities, name)
}

fn has(
    rows: &[(&str, &[DriverCapability])],
    capabilities: &[DriverCapability],
    name: &str,
) -> bool {
    let row = rows.iter().find(|(row, _)| *row == name);
    row.is_some_and(|(_, of)| of.iter().any(|capability| capabilities.contains(capability)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("libcuda.so.535.261.03", &[Compute])]
    #[case("libcuda.so", &[Compute])]
    #[case("libnvidia-nvvm70.so.4", &[Compute])]
    #[case("libnvidia-pkcs11-openssl3.so.550.163.01", &[Compute])]
    #[case("libnvidia-pkcs11.so.550.163.01", &[Compute])]
    #[case("libnvidia-gpucomp.so.550.163.01", &[Compute, Graphics])]
    #[case("libnvidia-ml.so.1", &[Utility])]
    #[case("libnvcuvid.so.1", &[Video])]
    #[case("libGLX_nvidia.so.0", &[Graphics])]
    #[case("libgrpc_mgr.so", &[])]
    #[case("libcuda", &[])]
    #[case("libcuda2x.so.1", &[])]
    #[case("", &[])]
    fn libraries(#[case] name: &str, #[case] of: &[DriverCapability]) {
        for capability in [Compute, Utility, Video, Graphics] {
            let has = has_library(&[capability], name);
            assert_eq!(has, of.contains(&capability), "{name} {capability:?}");
        }
        assert!(!has_library(&[], name));
    }

    /// A .run file's tree has only libraries of parts, a package's all that the package has.
    #[test]
    fn every_library_but_those_of_graphics_is_a_part_of_a_tree() {
        for (stem, of) in LIBRARIES.iter().filter(|(_, of)| **of != [Graphics]) {
            let name = format!("{stem}.so.1");
            assert!(longshore_sources::testing::is_part_library(&name), "{name} {of:?}");
        }
    }

    #[rstest]
    #[case("nvidia-smi", &[Utility])]
    #[case("nvidia-cuda-mps-server", &[Compute])]
    #[case("nvidia-modprobe", &[])]
    #[case("nv-fabricmanager", &[])]
    fn tools(#[case] name: &str, #[case] of: &[DriverCapability]) {
        for capability in [Compute, Utility, Video, Graphics] {
            assert_eq!(has_tool(&[capability], name), of.contains(&capability), "{name}");
        }
    }
}
