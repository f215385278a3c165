//! Default mode of coherent GPU memory: that of the driver (CDMM) on Grace.
//!
//! On Grace Hopper and Grace Blackwell the kernel may get the GPU's memory as a NUMA node of its own: Kubernetes counts
//! it as the node's memory. `NVreg_CoherentGPUMemoryMode=driver` leaves it to the driver. The parameter came with
//! 580.65.06 (kernel-open/nvidia/nv-reg.h), where unset means `numa`. NVIDIA's driver container sets it since 580, as
//! do the images of EKS. It has no effect without such memory.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::values::{Reason, name_of};
use crate::config::Config;
use crate::config::parameters::{self, Parameters};
use longshore_core::driver_version::DriverVersion;
use longshore_core::module_parameters;
use longshore_host::HostFacts;
use longshore_host::facts::{DeviceKind, PciDevice};

/// `uname -m` of Grace.
const ARCH: &str = "aarch64";
/// Device ids of GPUs beside a Grace CPU: GH200, GB200 and GB300 (kernel-open/nvidia/detect-self-hosted.h of 595.45.04).
const SELF_HOSTED: [RangeInclusive<u16>; 4] =
    [0x2340..=0x237f, 0x2940..=0x297f, 0x31a1..=0x31a1, 0x31c0..=0x31ff];
const MODULE: &str = "nvidia";
const PARAMETER: &str = "NVreg_CoherentGPUMemoryMode";
/// Parameter of earlier branches that `driver` implies (kernel-open/nvidia/os-registry.c); where it is given, its owner decides.
const OLDER: &str = "NVreg_EnableUserNUMAManagement";
const MODE: &str = "driver";
/// Topic of the reason.
const TOPIC: &str = "coherent memory";
/// First branch with the parameter.
const FIRST_BRANCH: u64 = 580;

/// Returns the configuration of a plan with the default mode, and the reason for the mode; the configuration as it is, and
/// no reason, where no GPU shares its memory or the driver has no modes.
pub(super) fn with_default<'a>(
    config: &'a Config,
    facts: &HostFacts,
    version: &str,
) -> (Cow<'a, Config>, Option<Reason>) {
    let has_modes = DriverVersion::new(version).branch().is_some_and(|b| b >= FIRST_BRANCH);
    let Some(gpu) = coherent_gpu(facts).filter(|_| has_modes) else {
        return (Cow::Borrowed(config), None);
    };
    let kept = |why: &str| (Cow::Borrowed(config), Some(Reason::new(TOPIC, why)));
    if is_given(config) {
        return kept("as the given module parameters say");
    }
    if is_loaded_otherwise(facts, version) {
        return kept(
            "the loaded driver stays in the mode that it was loaded in; the next one is in mode driver",
        );
    }
    let mut defaults = Parameters::from([(MODULE.to_owned(), format!("{PARAMETER}={MODE}"))]);
    parameters::merge(&mut defaults, &config.driver.parameters);
    let mut config = config.clone();
    config.driver.parameters = defaults;
    let why = format!(
        "{gpu} shares its memory with the CPU, and the kernel would count it as the node's own; {PARAMETER}={MODE} is \
         the default of NVIDIA's driver container, too"
    );
    (Cow::Owned(config), Some(Reason::chosen(TOPIC, MODE, why)))
}

/// Returns the name of a GPU whose memory the kernel may have as a NUMA node.
fn coherent_gpu(facts: &HostFacts) -> Option<String> {
    let is_coherent = |device: &&PciDevice| {
        device.kind == DeviceKind::Gpu && SELF_HOSTED.iter().any(|ids| ids.contains(&device.device))
    };
    let found = facts.devices.iter().find(is_coherent).filter(|_| facts.kernel.arch == ARCH);
    found.map(name_of)
}

/// True if a parameter of nvidia that sets the mode is configured.
fn is_given(config: &Config) -> bool {
    let given = config.driver.parameters.get(MODULE).map_or("", String::as_str);
    let mut names =
        module_parameters::split(given).into_iter().map(|(name, _)| name.replace('-', "_"));
    names.any(|name| [PARAMETER, OLDER].contains(&name.as_str()))
}

/// True if this driver is loaded in another mode: a default is no reason to take it from its users.
fn is_loaded_otherwise(facts: &HostFacts, version: &str) -> bool {
    let live = facts.live_driver.as_ref().filter(|live| live.version == version);
    let module = facts.loaded.get(MODULE).filter(|_| live.is_some());
    module.is_some_and(|module| module.parameters.get(PARAMETER).map(String::as_str) != Some(MODE))
}
