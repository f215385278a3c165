//! Gates of NVIDIA's GPU operator on this host: its driver manager, startup probe, validator, toolkit
//! and side containers each look at files before they go on. The same files are read here, and no
//! program is run: `nvidia-smi` opens the devices, and it may lie where a container can write.
//!
//! Sources of the facts: gpu-operator (assets/state-driver, cmd/nvidia-validator), k8s-driver-manager
//! (cmd/driver-manager), nvidia-container-toolkit (internal/lookup), of August 2026.

mod confined;
mod gates;
mod inputs;
mod render;

use std::io;

use serde::Serialize;

pub use render::render;

use crate::config::Config;
use crate::plan;
use crate::status::{LOOK, hangs};
use longshore_core::bounded_call;
use longshore_core::environment::Env;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::finding::Verdict;
use longshore_host::HostFacts;

use confined::ConfinedRoot;
use inputs::GateInputs;

/// Format of the report.
const FORMAT: u32 = 1;

/// Result of all gates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OperatorReport {
    /// Format of this structure: 1.
    pub format: u32,
    /// Refused where a gate fails, warned where only an installed driver is missing.
    pub verdict: Verdict,
    /// 0 where no gate fails; 30 where an installed driver lets the failing ones pass; else 15.
    #[serde(serialize_with = "super::as_number")]
    pub exit_code: ExitCode,
    /// Gates in the order in which the operator asks them.
    pub gates: Vec<Gate>,
}

/// One gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gate {
    /// Part of the operator.
    pub asked_by: AskedBy,
    /// Name.
    pub name: &'static str,
    /// Result.
    #[serde(flatten)]
    pub answer: GateOutcome,
}

/// Part of the operator that asks, in the order of a node's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AskedBy {
    /// Init container of the driver's pod.
    DriverManager,
    /// Startup probe of the driver's container.
    StartupProbe,
    /// Init container of the operator's validator.
    Validator,
    /// Toolkit's DaemonSet.
    Toolkit,
    /// Containers beside the driver's.
    SideContainers,
}

/// Answer of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum GateOutcome {
    /// Passes, with the fact that was read.
    Passes {
        /// State that was read.
        fact: String,
    },
    /// Fails.
    Fails {
        /// State that was read.
        fact: String,
        /// Remedy.
        remedy: String,
        /// True if it passes once a driver is installed and Ready.
        until_ready: bool,
    },
    /// Not asked, with the reason.
    NotAsked {
        /// Reason.
        fact: String,
    },
}

/// Values that the operator gives the driver's pod, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// DRIVER_CONFIG_DIGEST.
    pub digest: Option<String>,
    /// GDS_ENABLED.
    pub gds: bool,
    /// GDRCOPY_ENABLED.
    pub gdrcopy: bool,
    /// GPU_DIRECT_RDMA_ENABLED.
    pub rdma: bool,
}

impl Asked {
    /// Reads them from the environment of the driver's container; `digest` goes first.
    pub fn from_env(env: Env<'_>, digest: Option<String>) -> Self {
        let is_on = |name: &str| env(name).is_some_and(|value| value == "true");
        Self {
            digest: digest.or_else(|| env("DRIVER_CONFIG_DIGEST")).filter(|text| !text.is_empty()),
            gds: is_on("GDS_ENABLED"),
            gdrcopy: is_on("GDRCOPY_ENABLED"),
            rdma: is_on("GPU_DIRECT_RDMA_ENABLED"),
        }
    }
}

/// Answers each gate from this host's files; changes nothing and runs nothing.
///
/// # Errors
/// Exit code 10 where the kernel's release cannot be read, 15 where a file system does not answer.
pub fn diagnose(config: &Config, asked: Asked) -> Result<OperatorReport, Failure> {
    let config = config.clone();
    let look =
        bounded_call::in_time("operator", LOOK, move || io::Result::Ok(read(&config, asked)));
    look.ok_or_else(hangs)?.or_fail(FailureKind::Preflight, || "looking at the host")?
}

fn read(config: &Config, asked: Asked) -> Result<OperatorReport, Failure> {
    let paths = &config.paths;
    let facts = HostFacts::read(&paths.root, &paths.host_root)?;
    let open = |path| {
        ConfinedRoot::root(path).or_fail(FailureKind::HostUnsupported, || "opening the root")
    };
    let root = open(&paths.root)?;
    let host = match plan::is_host_hidden(config, &facts) {
        true => None,
        false => Some(open(&paths.host_root)?),
    };
    let seen = GateInputs::read(root, host, paths.driver_root.clone(), asked);
    Ok(report(&seen.or_fail(FailureKind::Preflight, || "reading the driver root")?))
}

fn report(seen: &GateInputs) -> OperatorReport {
    let gates: Vec<Gate> = gates::answers(seen);
    let exit_code = exit_code(&gates);
    let verdict = match exit_code {
        ExitCode::Done => Verdict::Passed,
        ExitCode::NotReady => Verdict::Warned,
        _ => Verdict::Refused,
    };
    OperatorReport { format: FORMAT, verdict, exit_code, gates }
}

fn exit_code(gates: &[Gate]) -> ExitCode {
    let fails = |now: bool| {
        gates.iter().any(
            |gate| matches!(gate.answer, GateOutcome::Fails { until_ready, .. } if until_ready == now),
        )
    };
    match (fails(false), fails(true)) {
        (true, _) => ExitCode::Preflight,
        (false, true) => ExitCode::NotReady,
        (false, false) => ExitCode::Done,
    }
}

#[cfg(test)]
mod tests;
