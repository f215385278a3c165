//! Parts of the driver that containers get.

use std::str::FromStr;

use serde::Deserialize;

use longshore_core::value::BadValue;

/// A part of the driver's user-mode files, with the meaning that it has in NVIDIA_DRIVER_CAPABILITIES
/// of NVIDIA's container toolkit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
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

impl DriverCapability {
    /// Returns the default: all that a driver root of longshore has.
    pub(super) fn usual() -> Vec<Self> {
        vec![Self::Compute, Self::Utility, Self::Video]
    }
}

impl FromStr for DriverCapability {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match text {
            "compute" => Ok(Self::Compute),
            "utility" => Ok(Self::Utility),
            "video" => Ok(Self::Video),
            "graphics" => Ok(Self::Graphics),
            _ => Err(BadValue::new(text, "compute, utility, video or graphics")),
        }
    }
}

impl TryFrom<String> for DriverCapability {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}
