//! Settings that NVIDIA's GPU operator gives to the driver's container (docs/cluster/gpu-operator.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::environment::get;
use super::layer::{FromEnv, Over, settings};
use super::{DEFAULT_FILE, is_there};
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::value::BadValue;

/// Path of the configuration file in the operator's ConfigMap `driver.kernelModuleConfig`.
pub const OPERATOR_FILE: &str = "/drivers/longshore.toml";
/// Beginning of the variables that set a value of fabricmanager.cfg.
pub const FABRIC_VARIABLES: &str = "NVFM_CONFIG_";
/// Variables of NVIDIA's driver containers.
pub const OPERATOR_VARIABLES: [&str; 9] = [
    "DRIVER_VERSION",
    "KERNEL_MODULE_TYPE",
    "OPEN_KERNEL_MODULES_ENABLED",
    "DRIVER_CONFIG_DIGEST",
    "GPU_DIRECT_RDMA_ENABLED",
    "USE_HOST_MOFED",
    "GDS_ENABLED",
    "GDRCOPY_ENABLED",
    "OPENSHIFT_VERSION",
];
/// Settings of a vGPU guest, which only NVIDIA's own image can use.
const VGPU: &str = "gridd.conf";
/// Module that GPUDirect RDMA needs.
const PEERMEM: &str = "nvidia_peermem";

settings! {
    /// Settings of the GPU operator in one configuration layer.
    OperatorFragment;

    /// Run as the driver container of NVIDIA's GPU operator
    ///
    /// See [gpu-operator.md](../cluster/gpu-operator.md).
    enabled: Option<bool>;
        key "enabled" flag "gpu-operator" "BOOL" alone "true" env "LONGSHORE_GPU_OPERATOR"
        default "`true` where `DRIVER_CONFIG_DIGEST` is set, or called as `nvidia-driver`"
    /// Default of `gpu-operator`
    ///
    /// `nvidia-driver init` and `load` begin with it.
    called: Option<bool>;
        attributes #[serde(skip)]
        flag "called-as-nvidia-driver" "BOOL" alone "true"
        default "`false`"
        is "internal"
    /// Keep serving a driver in use that another is to replace
    ///
    /// The change waits for its users; without it the agent ends with exit code 20 at its start,
    /// and tries no second time after SIGHUP
    /// ([gpu-operator.md](../cluster/gpu-operator.md#a-change-while-pods-hold-the-driver)).
    wait_to_change: Option<bool>;
        key "wait-to-change" flag "wait-to-change" "BOOL" alone "true" env "LONGSHORE_WAIT_TO_CHANGE"
        default "`true` under the GPU operator and where pods are [evicted](../cluster/rolling-upgrade.md), else `false`"
    /// Digest of the operator's configuration of the driver
    ///
    /// The operator compares it before it unloads a driver; it is written to
    /// `/run/nvidia/nvidia-driver.state` when the driver is ready.
    digest: Option<ConfigDigest>;
        attributes #[serde(skip)] #[arg(skip)]
        env "DRIVER_CONFIG_DIGEST"
        default "none"
    /// Load nvidia-peermem, too
    ///
    /// It is compiled against [MOFED's headers](../cluster/gpu-operator.md#mofeds-headers) where
    /// they are.
    rdma: Option<bool>;
        attributes #[serde(skip)] #[arg(skip)]
        env "GPU_DIRECT_RDMA_ENABLED"
        default "`false`"
    /// The network driver is the host's own
    ///
    /// `reload_nvidia_peermem` waits for its module instead of its container's file, and MOFED's
    /// headers are the host's.
    host_mofed: Option<bool>;
        attributes #[serde(skip)] #[arg(skip)]
        env "USE_HOST_MOFED"
        default "`false`"
    /// Expose the driver's sources for GPUDirect Storage
    ///
    /// In `usr/src` of the driver root, for its container
    /// ([gpu-operator.md](../cluster/gpu-operator.md#sources-for-gpudirect-storage-and-gdrcopy)).
    gds: Option<bool>;
        attributes #[serde(skip)] #[arg(skip)]
        env "GDS_ENABLED"
        default "`false`"
    /// Expose the driver's sources for the container of GDRCopy
    gdrcopy: Option<bool>;
        attributes #[serde(skip)] #[arg(skip)]
        env "GDRCOPY_ENABLED"
        default "`false`"
    /// Version of OpenShift: named in the plan, without effect
    openshift: Option<String>;
        attributes #[serde(skip)] #[arg(skip)]
        env "OPENSHIFT_VERSION"
        default "none"
    /// Values of fabricmanager.cfg, each a number
    fabric: FabricSettings;
        attributes #[serde(skip)] #[arg(skip)]
        env "NVFM_CONFIG_FABRIC_MODE" "NVFM_CONFIG_FABRIC_MODE_RESTART" "NVFM_CONFIG_LOG_LEVEL"
            "NVFM_CONFIG_LOG_FILE_MAX_SIZE" "NVFM_CONFIG_LOG_MAX_ROTATE_COUNT"
            "NVFM_CONFIG_FM_STAY_RESIDENT_ON_FAILURES" "NVFM_CONFIG_ACCESS_LINK_FAILURE_MODE"
            "NVFM_CONFIG_TRUNK_LINK_FAILURE_MODE" "NVFM_CONFIG_NVSWITCH_FAILURE_MODE"
            "NVFM_CONFIG_ABORT_CUDA_JOBS_ON_FM_EXIT"
        default "none"
}

/// Digest of the operator's configuration: opaque, compared as a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDigest(String);

impl ConfigDigest {
    /// Length of the longest one that is accepted; the operator's has ten digits.
    pub const MOST: usize = 128;

    /// True for a text without blanks and control characters, of bounded length.
    pub fn is_valid(text: &str) -> bool {
        (1..=Self::MOST).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
    }
}

impl FromStr for ConfigDigest {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match Self::is_valid(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(BadValue::new(text, "a word of at most 128 printable characters")),
        }
    }
}

/// Values of fabricmanager.cfg by their keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FabricSettings(BTreeMap<String, String>);

impl FromEnv for FabricSettings {
    fn from_env(env: Env<'_>, names: &[&str]) -> Result<Self, Failure> {
        let mut all = BTreeMap::new();
        for name in names {
            if let (Some(key), Some(value)) =
                (name.strip_prefix(FABRIC_VARIABLES), get(env, name, number)?)
            {
                all.insert(key.to_owned(), value);
            }
        }
        Ok(Self(all))
    }
}

impl Over for FabricSettings {
    fn over(self, below: Self) -> Self {
        if self.0.is_empty() { below } else { self }
    }
}

fn number(text: &str) -> Result<String, BadValue> {
    let is_one = (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if is_one {
        Ok(text.to_owned())
    } else {
        Err(BadValue::new(text, "a number of at most 9 digits"))
    }
}

/// Refusal of a variable that sets another value of fabricmanager.cfg: paths, sockets and addresses
/// are longshore's to set.
pub fn unknown_fabric_variable(name: &str) -> Failure {
    let keys = OperatorFragment::from_env(&|_| Some("1".to_owned()), &[]);
    let keys: Vec<String> = keys.map(|all| all.fabric.0.into_keys().collect()).unwrap_or_default();
    let cause = format!(
        "the environment variable {name} sets a value of fabricmanager.cfg that is not to be set"
    );
    Failure::new(FailureKind::Usage, cause)
        .remedy(format!("{FABRIC_VARIABLES} takes {}; correct or unset it", keys.join(", ")))
}

/// Settings of the GPU operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorConfig {
    /// True in the operator's driver pod.
    pub enabled: bool,
    /// Waits for the users of an installed driver that another one is to replace.
    pub wait_to_change: bool,
    /// Digest to write when the driver is ready.
    pub digest: Option<String>,
    /// GPUDirect RDMA is on.
    pub rdma: bool,
    /// The network driver is the host's own.
    pub host_mofed: bool,
    /// GPUDirect Storage is on.
    pub gds: bool,
    /// GDRCopy is on.
    pub gdrcopy: bool,
    /// Version of OpenShift.
    pub openshift: Option<String>,
    /// Settings of a vGPU guest were found.
    pub vgpu: bool,
    /// Values of fabricmanager.cfg by their keys.
    pub fabric: BTreeMap<String, String>,
}

impl OperatorConfig {
    /// Returns the settings with their defaults; `evicts` is true where pods are evicted.
    pub(super) fn from_fragment(given: &OperatorFragment, evicts: bool) -> Self {
        let is_called = given.called.unwrap_or(false);
        let enabled = given.enabled.unwrap_or(is_called || given.digest.is_some());
        Self {
            enabled,
            wait_to_change: given.wait_to_change.unwrap_or(enabled || evicts),
            digest: given.digest.clone().map(|digest| digest.0),
            rdma: given.rdma.unwrap_or(false),
            host_mofed: given.host_mofed.unwrap_or(false),
            gds: given.gds.unwrap_or(false),
            gdrcopy: given.gdrcopy.unwrap_or(false),
            openshift: given.openshift.clone(),
            vgpu: false,
            fabric: given.fabric.0.clone(),
        }
    }

    /// Returns the features whose containers compile against the driver's sources.
    pub fn features_with_sources(&self) -> impl Iterator<Item = &'static str> {
        let all = [("GPUDirect Storage", self.gds), ("GDRCopy", self.gdrcopy)];
        all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name)
    }

    /// True if the driver's sources are to be exposed in the driver root.
    pub fn exposes_sources(&self) -> bool {
        self.features_with_sources().next().is_some()
    }

    /// Returns these settings with what lies beside the operator's parameter files.
    #[must_use]
    pub(super) fn with_files(self, dir: &Path) -> Self {
        Self { vgpu: is_there(&dir.join(VGPU)), ..self }
    }
}

impl OperatorFragment {
    /// Returns the modules that these settings add.
    pub(super) fn extra_modules(&self) -> impl Iterator<Item = &str> {
        self.rdma.unwrap_or(false).then_some(PEERMEM).into_iter()
    }
}

/// Returns the configuration file to read where none is named: the operator's, else the default.
pub fn usual_file() -> PathBuf {
    let operators = Path::new(OPERATOR_FILE);
    if is_there(operators) { operators.to_path_buf() } else { DEFAULT_FILE.into() }
}

#[cfg(test)]
mod tests;
