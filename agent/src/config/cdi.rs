//! Parts of the driver that containers get.

use serde::{Deserialize, Serialize};

use super::values::words;

/// A part of the driver's user-mode files, with the meaning that it has in NVIDIA_DRIVER_CAPABILITIES
/// of NVIDIA's container toolkit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", rename_all = "lowercase")]
pub enum DriverCapability {
    /// CUDA and OpenCL.
    Compute,
    /// nvidia-smi and NVML.
    Utility,
    /// Encoding, decoding and optical flow.
    Video,
    /// OpenGL, Vulkan, EGL and ray tracing.
    Graphics,
}

/// Publication of the host's CDI spec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum CdiSpecs {
    /// Published where the host's directory can be reached.
    #[default]
    Auto,
    /// Never published.
    Off,
}

words! {
    CdiSpecs, "auto or off";
    "auto" => Self::Auto,
    "off" => Self::Off,
}

impl DriverCapability {
    /// Returns the default: all that a driver root of longshore has.
    pub(super) fn usual() -> Vec<Self> {
        vec![Self::Compute, Self::Utility, Self::Video]
    }
}

words! {
    DriverCapability, "compute, utility, video or graphics";
    "compute" => Self::Compute,
    "utility" => Self::Utility,
    "video" => Self::Video,
    "graphics" => Self::Graphics,
}
