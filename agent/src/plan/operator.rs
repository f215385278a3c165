//! The plan's part for NVIDIA's GPU operator: files that announce the driver, reasons and findings
//! (docs/cluster/gpu-operator.md).

use std::path::Path;

use super::values::Reason;
use crate::config::Config;
use crate::steps::{Step, WriteStatus};
use longshore_core::finding::{Code, Finding};

const DRM: &str = "nvidia_drm";

/// Returns the step before all others: the startup probe waits from then on.
pub(super) fn first(config: &Config) -> Option<Step> {
    let parent = parent(config)?;
    Some(Step::WriteStatus(WriteStatus::not_ready(parent)))
}

/// Returns the steps after all others, which announce a driver that is there, whole.
pub(super) fn last(config: &Config) -> Vec<Step> {
    let Some(parent) = parent(config) else { return Vec::new() };
    let digest = config.operator.digest.as_deref();
    let stored = digest.map(|digest| WriteStatus::digest(parent, digest));
    let all = [Some(WriteStatus::ready(parent)), stored];
    all.into_iter().flatten().map(Step::WriteStatus).collect()
}

/// Returns the directory of the driver root and of the operator's files; None without an operator.
fn parent(config: &Config) -> Option<&Path> {
    config.paths.driver_root.parent().filter(|_| config.operator.enabled)
}

/// Returns the findings about settings of the operator.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let operator = &config.operator;
    let mut found = Vec::new();
    if operator.vgpu {
        let seen = "vGPU is not supported: gridd.conf has no effect";
        found.push(Finding::warning(Code::VgpuUnsupported, seen));
    }
    if operator.enabled && config.driver.extra_modules.iter().any(|name| name == DRM) {
        let seen = format!("{DRM} is to be loaded, and the driver manager does not unload it");
        found.push(Finding::warning(Code::DrmUnderOperator, seen));
    }
    found
}

/// Returns the reason for the operator's part of the plan.
pub(super) fn reason(config: &Config) -> Option<Reason> {
    let operator = &config.operator;
    let openshift = operator.openshift.as_ref();
    let on = openshift.map(|version| format!("OpenShift {version}"));
    let reason = match &operator.digest {
        Some(digest) => format!("its driver manager keeps a driver with the digest {digest}"),
        None => "without DRIVER_CONFIG_DIGEST its driver manager unloads any driver".to_owned(),
    };
    operator.enabled.then(|| Reason { value: on, ..Reason::new("GPU operator", reason) })
}
