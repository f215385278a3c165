//! Metrics of an agent. docs/operate/observability.md has a table of them, which a test compares.
//!
//! Every label has few values: of longshore's own lists, or as many as a host has modules, daemons and steps of a
//! plan. Processes, pods and texts of failures are in /status alone.

mod builder;

use std::collections::BTreeSet;

use super::exposition::{Family, MetricType, Sample};
use super::watched::is_version;
use super::{Live, Origin};
use crate::journal::phase::Phase;
use longshore_core::finding::{Code, OF_SUPPORT};

/// Sample of the host and of this process at the moment of a scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostSample {
    /// References to the driver's modules, by name.
    pub references: Vec<(String, i64)>,
    /// Processes that have a device of the driver open or mapped; None where that is unknown.
    pub holders: Option<usize>,
    /// Version of the loaded nvidia module, whichever program loaded it.
    pub loaded_version: Option<String>,
    /// The store's size; None where it was not measured yet.
    pub store: Option<StoreSample>,
    /// This process.
    pub process: ProcessSample,
}

/// Size of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSample {
    /// Bytes on the disk of everything in the store.
    pub bytes: u64,
    /// Bytes that are free on its file system.
    pub free: u64,
}

/// Resources of this process; None where one could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessSample {
    /// Bytes of memory in use.
    pub resident_bytes: Option<u64>,
    /// Bytes of address space.
    pub virtual_bytes: Option<u64>,
    /// Seconds of processor time.
    pub cpu_seconds: Option<f64>,
    /// Open files.
    pub open_fds: Option<u64>,
    /// Limit of open files.
    pub max_fds: Option<u64>,
}

/// Returns the families of an agent.
pub fn families(live: &Live, seen: &HostSample) -> Vec<Family> {
    let mut all = phases(live);
    all.extend(steps(live));
    all.extend(driver(live, seen));
    all.extend(findings(live));
    all.extend(support(live));
    all.extend(changes(live));
    all.extend(sources(live));
    all.extend(store(live, seen));
    all.extend(builder::builder(live));
    all.extend(process(live, seen));
    all
}

fn phases(live: &Live) -> Vec<Family> {
    let phase =
        |phase: Phase| labelled([("phase", phase.to_string())], one_if(live.phase == Some(phase)));
    let seconds = live.phase_seconds.iter().map(|(phase, s)| labelled([("phase", phase)], *s));
    let failure = live.last_failure.iter().map(|failure| {
        let code = failure.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let phase = failure.phase.map_or_else(String::new, |phase| phase.to_string());
        labelled([("code", code), ("phase", phase)], since_epoch(failure.time))
    });
    vec![
        gauge("longshore_ready", "1 if the driver is installed and every required daemon serves")
            .with([plain(one_if(live.ready))]),
        gauge("longshore_phase", "1 if the agent is in this phase").with(Phase::ALL.map(phase)),
        gauge("longshore_phase_entered_timestamp_seconds", "Start time of the present phase")
            .with(live.phase_since.map(|at| plain(since_epoch(at)))),
        counter("longshore_phase_seconds", "Time spent in each phase").with(seconds),
        counter("longshore_failures", "Failures of this agent").with([plain(live.failures as f64)]),
        gauge(
            "longshore_last_failure_timestamp_seconds",
            "Time of the last failure of this agent or an earlier one, with its exit code",
        )
        .with(failure),
    ]
}

fn steps(live: &Live) -> Vec<Family> {
    let counts = live.step_counts.iter().map(|count| {
        let labels = [("step", count.step.clone()), ("outcome", count.outcome.to_string())];
        labelled(labels, count.count as f64)
    });
    let seconds = live.steps.iter().map(|record| {
        let undo = if record.undo { "undo" } else { "apply" };
        let labels =
            [("step", record.step.as_str()), ("subject", &record.subject), ("direction", undo)];
        labelled(labels, record.seconds)
    });
    let running = live
        .current_step
        .iter()
        .map(|at| labelled([("step", at.step.as_str()), ("subject", &at.subject)], at.seconds));
    vec![
        counter("longshore_steps", "Steps carried out or undone, by outcome").with(counts),
        gauge("longshore_step_last_duration_seconds", "Time that each step took the last time")
            .with(seconds),
        gauge("longshore_step_running_seconds", "Time the step in progress has taken so far")
            .with(running),
    ]
}

fn driver(live: &Live, seen: &HostSample) -> Vec<Family> {
    let info = live.driver.iter().map(|driver| {
        let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
        let labels = [
            ("version", driver.version.clone()),
            ("flavour", driver.flavour.clone()),
            ("kernel", driver.kernel.clone()),
            ("module_digest", or_empty(&driver.module_digest)),
            ("origin", driver.origin.as_ref().map(Origin::to_string).unwrap_or_default()),
        ];
        labelled(labels, 1.0)
    });
    // Without a GPU none is to be loaded.
    let is_wanted = |version: &&String| live.phase != Some(Phase::Idle) && is_version(version);
    let wanted = live.wanted.iter().filter(is_wanted);
    let wanted = wanted.map(|version| labelled([("version", version)], 1.0));
    let patches = live.patches.iter().map(|patch| labelled([("patch", patch)], 1.0));
    let next = live
        .next_kernel
        .iter()
        .map(|next| labelled([("release", &next.release)], one_if(next.ready)));
    let references =
        seen.references.iter().map(|(name, count)| labelled([("module", name)], *count as f64));
    let expected = live.gpus.map(|gpus| plain(gpus.expected as f64));
    let bound = live.gpus.map(|gpus| plain(gpus.bound as f64));
    let daemons = || live.daemons.iter();
    let up = daemons().map(|daemon| {
        let is_live = daemon.state == super::DaemonState::Live;
        let required = daemon.required.to_string();
        let labels = [("daemon", daemon.name.clone()), ("required", required)];
        labelled(labels, one_if(is_live))
    });
    let restarts = daemons().map(|d| labelled([("daemon", &d.name)], d.restarts as f64));
    vec![
        info_family("longshore_driver", "The driver that is installed").with(info),
        info_family("longshore_wanted_driver", "The driver that the last plan chose").with(wanted),
        info_family(
            "longshore_loaded_driver",
            "The driver that the kernel has, whichever program loaded it",
        )
        .with(seen.loaded_version.iter().map(|version| labelled([("version", version)], 1.0))),
        info_family(
            "longshore_driver_patch",
            "A patch that the modules of the installed driver were compiled with",
        )
        .with(patches),
        gauge(
            "longshore_next_kernel_ready",
            "1 if everything for the kernel of the next boot is in the store",
        )
        .with(next),
        gauge("longshore_module_references", "References to a module of the driver")
            .with(references),
        gauge("longshore_driver_holders", "Processes that hold a device of the driver")
            .with(seen.holders.map(|count| plain(count as f64))),
        gauge("longshore_gpus_expected", "GPUs that the driver is to have").with(expected),
        gauge("longshore_gpus_bound", "GPUs that the driver has").with(bound),
        gauge("longshore_daemon_up", "1 if a daemon of the driver serves").with(up),
        counter("longshore_daemon_restarts", "Restarts of a daemon").with(restarts),
    ]
}

fn findings(live: &Live) -> Vec<Family> {
    let all = live.findings.iter().chain(&live.plan_findings);
    // Each once, though the last plan and the last recheck may both have it.
    let all: BTreeSet<_> = all.map(|finding| (finding.severity, finding.code)).collect();
    let samples = all.into_iter().map(|(severity, code)| {
        labelled([("code", code.to_string()), ("severity", severity.as_str().to_owned())], 1.0)
    });
    let help = "1 for each finding of the last plan, the last recheck and the next kernel";
    vec![gauge("longshore_finding", help).with(samples)]
}

/// States of a driver by the support table: the last plan has the finding, or has not.
fn support(live: &Live) -> Vec<Family> {
    let state = |code: &Code| {
        let is_so = live.plan_findings.iter().any(|finding| finding.code == *code);
        labelled([("code", code.to_string())], one_if(is_so))
    };
    let is_planned = live.wanted.as_deref().is_some_and(is_version);
    let states = OF_SUPPORT.iter().filter(|_| is_planned).map(state);
    let help = "1 if the support table has this against the driver of the last plan";
    vec![gauge("longshore_driver_support", help).with(states)]
}

fn changes(live: &Live) -> Vec<Family> {
    let cordoned = live.node.map(|node| plain(one_if(node.cordoned)));
    let evictions = live.node.into_iter().flat_map(|node| {
        [("accepted", node.evicted), ("blocked", node.blocked)]
            .map(|(outcome, count)| labelled([("outcome", outcome)], count as f64))
    });
    vec![
        gauge(
            "longshore_change_held",
            "1 if the driver is to be changed or unloaded, and its users prevent it",
        )
        .with([plain(one_if(live.holders.is_some()))]),
        gauge("longshore_node_cordoned", "1 if longshore has cordoned the node for a change")
            .with(cordoned),
        counter("longshore_evictions", "Evictions of pods that use the driver, by outcome")
            .with(evictions),
    ]
}

fn store(live: &Live, seen: &HostSample) -> Vec<Family> {
    let bytes = seen.store.map(|store| plain(store.bytes as f64));
    let free = seen.store.map(|store| plain(store.free as f64));
    let limit = live.store_limit_bytes.map(|bytes| plain(bytes as f64));
    vec![
        gauge("longshore_store_bytes", "Size of the store on its disk").with(bytes),
        gauge("longshore_store_limit_bytes", "Size at which the store is cleaned up").with(limit),
        gauge("longshore_store_free_bytes", "Free space on the store's file system").with(free),
    ]
}

fn sources(live: &Live) -> Vec<Family> {
    let errors = live.source_errors.iter().map(|errors| {
        let labels =
            [("source", errors.source.as_str().to_owned()), ("code", errors.code.to_string())];
        labelled(labels, errors.count as f64)
    });
    let name = |what| {
        let name = serde_json::to_value(what).ok();
        name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let hits = live.cache_hits.iter().map(|(what, n)| labelled([("cache", name(what))], *n as f64));
    let misses =
        live.cache_misses.iter().map(|(what, n)| labelled([("cache", name(what))], *n as f64));
    vec![
        counter("longshore_fetched_bytes", "Bytes from archives, mirrors and registries")
            .with([plain(live.fetched_bytes as f64)]),
        counter("longshore_cache_hits", "Items that were available already").with(hits),
        counter("longshore_cache_misses", "Items that had to be made or fetched").with(misses),
        counter("longshore_source_errors", "Failures of sources, with the exit code of each")
            .with(errors),
        gauge(
            "longshore_last_compile_duration_seconds",
            "Time that this agent's last compile of a set took",
        )
        .with(live.last_compile_seconds.map(plain)),
    ]
}

fn process(live: &Live, seen: &HostSample) -> Vec<Family> {
    let process = &seen.process;
    let number = |number: u64| plain(number as f64);
    let build = [("version", live.version.as_str()), ("arch", std::env::consts::ARCH)];
    vec![
        info_family("longshore_build", "The program").with([labelled(build, 1.0)]),
        counter("longshore_agent_starts", "Agents started on this host since it was booted")
            .with(live.starts.map(number)),
        gauge("process_start_time_seconds", "Start time of the agent")
            .with([plain(since_epoch(live.started))]),
        counter("process_cpu_seconds", "Processor time that the agent has used")
            .with(process.cpu_seconds.map(plain)),
        gauge("process_resident_memory_bytes", "Memory that the agent has in use")
            .with(process.resident_bytes.map(number)),
        gauge("process_virtual_memory_bytes", "Address space of the agent")
            .with(process.virtual_bytes.map(number)),
        gauge("process_open_fds", "Open files of the agent").with(process.open_fds.map(number)),
        gauge("process_max_fds", "Limit of the agent's open files")
            .with(process.max_fds.map(number)),
    ]
}

/// Units: the last word of a name, if it is one of these.
const UNITS: [&str; 2] = ["seconds", "bytes"];

fn gauge(name: &'static str, help: &'static str) -> Family {
    let unit =
        UNITS.into_iter().find(|unit| name.rsplit('_').next() == Some(unit)).unwrap_or_default();
    Family { name, kind: MetricType::Gauge, unit, help, samples: Vec::new() }
}

fn counter(name: &'static str, help: &'static str) -> Family {
    Family { kind: MetricType::Counter, ..gauge(name, help) }
}

fn info_family(name: &'static str, help: &'static str) -> Family {
    Family { kind: MetricType::Info, ..gauge(name, help) }
}

impl Family {
    fn with(self, samples: impl IntoIterator<Item = Sample>) -> Self {
        Self { samples: samples.into_iter().collect(), ..self }
    }
}

fn one_if(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

fn plain(value: f64) -> Sample {
    Sample { labels: Vec::new(), value }
}

fn labelled<const N: usize>(labels: [(&'static str, impl Into<String>); N], value: f64) -> Sample {
    let labels = labels.into_iter().map(|(name, value)| (name, value.into())).collect();
    Sample { labels, value }
}

fn since_epoch(at: jiff::Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

#[cfg(test)]
mod tests;
