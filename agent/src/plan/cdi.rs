//! The step that publishes the driver's CDI spec, and findings about its place.

use std::path::Path;

use super::preflight::{has_hosts_dev, is_host_hidden};
use super::values::Reason;
use crate::cdi::DIRECTORY;
use crate::config::{CdiSpecs, Config};
use crate::steps::{PublishSpec, Step};
use longshore_core::finding::{Code, Finding};
use longshore_host::HostFacts;
use longshore_host::facts::DeviceKind;

/// Step, findings and reasons.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    pub(super) step: Option<Step>,
    pub(super) finding: Option<Finding>,
    pub(super) reason: Option<Reason>,
}

/// Plans the spec: for a host with a GPU, where its /var/run/cdi can be reached.
pub(super) fn publishing(config: &Config, facts: &HostFacts) -> Publishing {
    let reason = |reason: &str| Some(Reason::chosen("CDI spec", "not published", reason));
    if config.cdi_spec == CdiSpecs::Off {
        return Publishing { reason: reason("cdi-spec is off"), ..Publishing::default() };
    }
    if config.modules_only {
        let reason = reason("modules-only: it would name files of the driver root");
        return Publishing { reason, ..Publishing::default() };
    }
    if !facts.devices.iter().any(|device| device.kind == DeviceKind::Gpu) {
        return Publishing { reason: reason("this host has no GPU"), ..Publishing::default() };
    }
    if let Some(why) = unreachable(config, facts) {
        let finding = Finding::note(Code::CdiUnpublished, why).remedy(
            "give the container the host's PID namespace (--pid host, hostPID: true), or \
             -v /var/run/cdi:/var/run/cdi and -v /dev:/dev; or set cdi-spec to off",
        );
        return Publishing { finding: Some(finding), ..Publishing::default() };
    }
    let step = Step::PublishSpec(PublishSpec {
        host_root: config.paths.host_root.clone(),
        driver_root: config.paths.driver_root.clone(),
        capabilities: config.cdi_capabilities.clone(),
    });
    Publishing { step: Some(step), ..Publishing::default() }
}

/// Returns the reason why the host's directory cannot be reached: through process 1, or by volumes for
/// it and for the /dev with the nodes that the spec names.
fn unreachable(config: &Config, facts: &HostFacts) -> Option<String> {
    if !is_host_hidden(config, facts) {
        return None;
    }
    let mounted = |path: &str| facts.mounts.iter().rfind(|m| m.target == Path::new(path));
    let has_dir = mounted(DIRECTORY).or_else(|| mounted("/run/cdi")).is_some();
    if !has_dir {
        return Some(format!("the host's {DIRECTORY} is not in this container"));
    }
    (!has_hosts_dev(config, facts)).then(|| {
        "/dev of this container is not the host's, whose nodes a CDI spec names".to_owned()
    })
}
