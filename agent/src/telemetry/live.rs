//! Live state of an agent at one moment: `live` in `/status` and `longshore status --json`.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Awaited, BuilderStatus, DaemonState, NodeDrain, Origin, SourceErrors, State, StepOutcome,
};
use crate::journal::phase::Phase;
use longshore_core::failure::Failure;
use longshore_core::finding::{Code, Finding};
use longshore_core::progress::Reused;
use longshore_host::facts::in_use::InUse;
use longshore_host::values::DriverUser;

/// State of an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// Version of longshore.
    pub version: String,
    /// Start time of the agent.
    pub started: Timestamp,
    /// Agent starts since the host was booted, including this one.
    pub starts: Option<u64>,
    /// The phase.
    pub phase: Option<Phase>,
    /// Start time of that phase.
    pub phase_since: Option<Timestamp>,
    /// True if the driver is installed and every required daemon serves.
    pub ready: bool,
    /// Reasons that it is not ready; empty if it is.
    pub not_ready: Vec<String>,
    /// Time since which `ready` has this value; None in the answer of an earlier agent.
    #[serde(default)]
    pub ready_since: Option<Timestamp>,
    /// Seconds in each phase so far, including the present one; phases never entered are left out.
    pub phase_seconds: BTreeMap<String, f64>,
    /// The step that is being carried out or undone.
    pub current_step: Option<CurrentStep>,
    /// Last outcome of each step that was carried out or undone, the oldest first.
    pub steps: Vec<StepRecord>,
    /// Number of times that each kind of step had each outcome.
    pub step_counts: Vec<StepCount>,
    /// The driver that is installed.
    pub driver: Option<DriverInfo>,
    /// Driver version of the last plan.
    #[serde(default)]
    pub wanted: Option<String>,
    /// True where the modules of that driver are at hand without compiling them; None where that is not known.
    #[serde(default)]
    pub prebuilt: Option<bool>,
    /// Modules for the kernel of the next boot; None where that is not known, or switched off.
    #[serde(default)]
    pub next_kernel: Option<NextKernel>,
    /// True if the agent has ended and left the driver to the next agent.
    #[serde(default)]
    pub kept: bool,
    /// Bytes fetched from archives, mirrors and registries.
    pub fetched_bytes: u64,
    /// Items that were available already.
    pub cache_hits: BTreeMap<Reused, u64>,
    /// Items that were not.
    pub cache_misses: BTreeMap<Reused, u64>,
    /// Users that prevent unloading the driver, as last found; None if there are none or none were
    /// looked for.
    pub holders: Option<Holders>,
    /// The daemons that belong to the driver.
    pub daemons: Vec<Daemon>,
    /// Findings of the last check of the installed driver, and about the next kernel.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Findings of the last plan.
    #[serde(default)]
    pub plan_findings: Vec<Finding>,
    /// Compatibility patches that the installed driver's modules were compiled with.
    #[serde(default)]
    pub patches: Vec<String>,
    /// Failures of sources.
    #[serde(default)]
    pub source_errors: Vec<SourceErrors>,
    /// Seconds that the last compile of a set took; None where this agent compiled none.
    #[serde(default)]
    pub last_compile_seconds: Option<f64>,
    /// Size limit of the store in bytes; None where it has none.
    #[serde(default)]
    pub store_limit_bytes: Option<u64>,
    /// Drain of the own node; None where this agent has no part in it.
    #[serde(default)]
    pub node: Option<NodeDrain>,
    /// The GPUs that the driver is to have, and has; None before it was installed.
    #[serde(default)]
    pub gpus: Option<GpuCount>,
    /// Modules that the agent waits for, because no registry has them yet.
    #[serde(default)]
    pub awaited: Option<Awaited>,
    /// State of a builder; None for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<BuilderStatus>,
    /// Number of failures of this agent.
    pub failures: u64,
    /// The last failure, of this agent or one before it.
    pub last_failure: Option<FailureRecord>,
}

/// The step in progress, carried out or undone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurrentStep {
    /// Its kind, for example `load-module`.
    pub step: String,
    /// Its subject, for example `nvidia_uvm`.
    pub subject: String,
    /// True if it is being undone.
    pub undo: bool,
    /// Seconds so far.
    pub seconds: f64,
}

/// Last outcome of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its kind, for example `load-module`.
    pub step: String,
    /// Its subject, for example `nvidia_uvm`.
    pub subject: String,
    /// True if it was undone.
    pub undo: bool,
    /// Its outcome.
    pub outcome: StepOutcome,
    /// Seconds it took.
    pub seconds: f64,
}

/// Number of times that a kind of step had an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCount {
    /// The kind, for example `load-module`.
    pub step: String,
    /// The outcome.
    pub outcome: StepOutcome,
    /// The number.
    pub count: u64,
}

/// The driver that is installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    /// Driver version.
    pub version: String,
    /// `open` or `proprietary`.
    pub flavour: String,
    /// Kernel release.
    pub kernel: String,
    /// sha256 (hex) of nvidia.ko, which names the set in the store; None if no agent loaded a
    /// module.
    pub module_digest: Option<String>,
    /// Origin of its modules.
    pub origin: Option<Origin>,
}

/// Users that prevent unloading the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// Time of the inspection.
    pub inspected: Timestamp,
    /// Descriptions of the modules that are held.
    pub held: Vec<String>,
    /// The processes that hold it.
    pub processes: Vec<DriverUser>,
    /// Reason that the processes could not be inspected.
    pub inspection_error: Option<String>,
}

impl From<&InUse> for Holders {
    fn from(in_use: &InUse) -> Self {
        Self {
            inspected: Timestamp::now(),
            held: in_use.held.iter().map(ToString::to_string).collect(),
            processes: in_use.users.clone(),
            inspection_error: in_use.unseen.clone(),
        }
    }
}

/// Number of GPUs that the driver is to have, and has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuCount {
    /// GPUs on the PCI bus that no other driver has, and those that it had and that left the bus.
    pub expected: usize,
    /// GPUs that the driver took.
    pub bound: usize,
}

/// Modules for the kernel of the next boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextKernel {
    /// Its release.
    pub release: String,
    /// True if it is the running kernel: no newer one of its flavour is installed.
    pub running: bool,
    /// True if the store has everything for it.
    pub ready: bool,
    /// True while that is being fetched or compiled.
    pub preparing: bool,
    /// Reason that the last preparation failed.
    pub failure: Option<Unprepared>,
}

/// Failed preparation of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unprepared {
    /// Cause, in one line.
    pub cause: String,
    /// Remedy, where there is a better one than the finding's own.
    pub remedy: Option<String>,
}

impl NextKernel {
    /// Returns the finding about a failed preparation.
    pub fn finding(&self) -> Option<Finding> {
        let Unprepared { cause, remedy } = self.failure.as_ref()?;
        let detail = format!("kernel {}: {cause}", self.release);
        let finding = Finding::warning(Code::NextKernelUnprepared, detail);
        Some(match remedy {
            Some(remedy) => finding.remedy(remedy.clone()),
            None => finding,
        })
    }
}

/// Result of checking the installed driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// Its GPUs; None if they were not checked.
    pub gpus: Option<GpuCount>,
    /// Faults and notes.
    pub findings: Vec<Finding>,
    /// Descriptions of the faults that make the driver not ready.
    pub not_ready: Vec<String>,
}

/// A daemon that belongs to the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Its name, for example `nvidia-persistenced`.
    pub name: String,
    /// True if the agent is ready only while it serves.
    pub required: bool,
    /// Its state.
    pub state: DaemonState,
    /// Number of restarts.
    pub restarts: u64,
}

/// Failure of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// Its time.
    pub time: Timestamp,
    /// Exit code; None if the agent ended without one.
    pub code: Option<u8>,
    /// Cause and chain, in one line.
    pub cause: String,
    /// Remedy.
    pub remedy: String,
    /// The phase it happened in.
    pub phase: Option<Phase>,
}

impl FailureRecord {
    /// Returns the record of a failure that happens now.
    pub fn new(failure: &Failure, phase: Option<Phase>) -> Self {
        Self {
            time: Timestamp::now(),
            code: Some(failure.code().number()),
            cause: failure.one_line(),
            remedy: failure.remedy_or_default().to_owned(),
            phase,
        }
    }

    /// Returns the record of an agent that a signal has just killed.
    pub fn killed(code: u8, signal: &str) -> Self {
        Self {
            time: Timestamp::now(),
            code: Some(code),
            cause: format!("the agent was killed by {signal}"),
            remedy:
                "if it was not killed on purpose: raise the container's memory limit, and see the \
                     kernel's log; the next agent continues from its journal"
                    .to_owned(),
            phase: None,
        }
    }

    /// Returns the record of an agent that ended in `phase` without a report, and wrote its journal
    /// last at `time`.
    pub fn without_report(phase: Phase, time: Option<Timestamp>) -> Self {
        Self {
            time: time.unwrap_or_else(Timestamp::now),
            code: None,
            cause: format!("the agent before this one ended without a report in phase {phase}"),
            remedy:
                "find its killer: see the pod's last state, and the kernel's log for its being out \
                     of memory"
                    .to_owned(),
            phase: Some(phase),
        }
    }
}

/// State that is reported for phase `ready` of a driver that is not whole, or whose daemon does not serve. It is no
/// phase of the journal: the agent stays in `ready`, repairs, and waits for other programs.
pub const DEGRADED: &str = "degraded";

impl Live {
    /// Returns the state for labels, annotations and tables: the phase, but [`DEGRADED`] for `ready` while the
    /// driver is not ready.
    pub fn state(&self) -> String {
        match self.phase {
            Some(Phase::Ready) if !self.ready => DEGRADED.to_owned(),
            phase => phase.unwrap_or(Phase::Probing).to_string(),
        }
    }

    /// Returns the start time of that state.
    pub fn state_since(&self) -> Option<Timestamp> {
        match self.phase {
            Some(Phase::Ready) => self.phase_since.max(self.ready_since),
            _ => self.phase_since,
        }
    }
}

impl State {
    pub(super) fn live(&self) -> Live {
        let not_ready = self.not_ready();
        let mut current_step = self.current_step.clone();
        if let Some((step, since)) = &mut current_step {
            step.seconds = since.elapsed().as_secs_f64();
        }
        let count = |(&(step, outcome), &count): (&(&'static str, StepOutcome), &u64)| StepCount {
            step: step.to_owned(),
            outcome,
            count,
        };
        let errors = |(&(source, code), &count)| SourceErrors { source, code, count };
        Live {
            phase: self.phase.map(|(phase, ..)| phase),
            phase_since: self.phase.map(|(_, _, since)| since),
            ready: not_ready.is_empty(),
            not_ready,
            phase_seconds: self.phase_seconds(Instant::now()),
            current_step: current_step.map(|(step, _)| step),
            step_counts: self.counts.iter().map(count).collect(),
            findings: self.findings(),
            source_errors: self.source_errors.iter().map(errors).collect(),
            gpus: self.condition.gpus,
            builder: self.builder.as_ref().map(super::builder::Builder::status),
            ..self.reported.clone()
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = self.condition.findings.clone();
        findings.extend(self.reported.next_kernel.as_ref().and_then(NextKernel::finding));
        findings
    }

    pub(super) fn not_ready(&self) -> Vec<String> {
        let mut why = Vec::new();
        if let Some(builder) = &self.builder {
            return builder.not_ready();
        }
        match self.phase {
            Some((Phase::Ready | Phase::Idle, ..)) => {}
            Some((phase, since, _)) => {
                why.push(format!("phase {phase} for {} s", since.elapsed().as_secs()));
            }
            None => why.push("the agent is starting".to_owned()),
        }
        for daemon in &self.reported.daemons {
            if daemon.required && daemon.state != DaemonState::Live {
                why.push(format!("{} is {}", daemon.name, daemon.state));
            }
        }
        why.extend(self.condition.not_ready.iter().cloned());
        why
    }

    fn phase_seconds(&self, now: Instant) -> BTreeMap<String, f64> {
        let mut all = BTreeMap::new();
        for phase in Phase::ALL {
            let before = self.phases[phase as usize];
            let present = match self.phase {
                Some((at, since, _)) if at == phase => Some(now.duration_since(since)),
                _ => None,
            };
            if !before.is_zero() || present.is_some() {
                let total = before + present.unwrap_or_default();
                all.insert(phase.to_string(), total.as_secs_f64());
            }
        }
        all
    }
}
