//! Parts of the driver that containers get.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use longshore_core::value::BadValue;

/// A part of the driver's user-mode files, with the meaning that it has in NVIDIA_DRIVER_CAPABILITIES
/// of NVIDIA's container toolkit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
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

impl FromStr for CdiSpecs {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err(BadValue::new(text, "auto or off")),
        }
    }
}

impl TryFrom<String> for CdiSpecs {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
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

impl From<DriverCapability> for &'static str {
    fn from(part: DriverCapability) -> Self {
        match part {
            DriverCapability::Compute => "compute",
            DriverCapability::Utility => "utility",
            DriverCapability::Video => "video",
            DriverCapability::Graphics => "graphics",
        }
    }
}
