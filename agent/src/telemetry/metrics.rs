//! Metrics of an agent. docs/operate/observability.md has a table of them, which a test compares.

use super::exposition::{Family, Kind, Sample};
use super::{Live, Origin};
use crate::journal::phase::Phase;

/// Sample of the host and of this process at the moment of a scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostSample {
    /// References to the driver's modules, by name.
    pub references: Vec<(String, i64)>,
    /// Processes that have a device of the driver open or mapped; None where that is unknown.
    pub holders: Option<usize>,
    /// Bytes of memory that this process has in use.
    pub resident_bytes: Option<u64>,
    /// Seconds of processor time that this process has had.
    pub cpu_seconds: Option<f64>,
}

/// Returns the families of an agent.
pub fn families(live: &Live, seen: &HostSample) -> Vec<Family> {
    let mut all = phases(live);
    all.extend(steps(live));
    all.extend(driver(live, seen));
    all.extend(sources(live));
    all.extend(process(live, seen));
    all
}

fn phases(live: &Live) -> Vec<Family> {
    let phase = |phase: Phase| {
        let is_it = live.phase == Some(phase);
        labelled([("phase", phase.to_string())], f64::from(u8::from(is_it)))
    };
    let seconds = live.phase_seconds.iter().map(|(phase, s)| labelled([("phase", phase)], *s));
    let failure = live.last_failure.iter().map(|failure| {
        let code = failure.code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        let phase = failure.phase.map_or_else(String::new, |phase| phase.to_string());
        labelled([("code", code), ("phase", phase)], since_epoch(failure.time))
    });
    vec![
        gauge("ready", "", "1 if the driver is installed and every required daemon serves")
            .with([plain(f64::from(u8::from(live.ready)))]),
        gauge("phase", "", "1 if the agent is in this phase").with(Phase::ALL.map(phase)),
        gauge("phase_entered_timestamp_seconds", "seconds", "Start time of the present phase")
            .with(live.phase_since.map(|at| plain(since_epoch(at)))),
        counter("phase_seconds", "seconds", "Time spent in each phase").with(seconds),
        counter("failures", "", "Failures of this agent").with([plain(live.failures as f64)]),
        gauge(
            "last_failure_timestamp_seconds",
            "seconds",
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
            [("step", record.step.as_str()), ("what", &record.subject), ("direction", undo)];
        labelled(labels, record.seconds)
    });
    let running = live
        .current_step
        .iter()
        .map(|at| labelled([("step", at.step.as_str()), ("what", &at.subject)], at.seconds));
    vec![
        counter("steps", "", "Steps carried out or undone, by outcome").with(counts),
        gauge("step_duration_seconds", "seconds", "Time each step took the last time")
            .with(seconds),
        gauge("step_running_seconds", "seconds", "Time the step in progress has taken so far")
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
    let next = live
        .next_kernel
        .iter()
        .map(|next| labelled([("release", &next.release)], f64::from(u8::from(next.ready))));
    let references =
        seen.references.iter().map(|(name, count)| labelled([("module", name)], *count as f64));
    let expected = live.gpus.map(|gpus| plain(gpus.expected as f64));
    let bound = live.gpus.map(|gpus| plain(gpus.bound as f64));
    let daemons = || live.daemons.iter();
    let up = daemons().map(|daemon| {
        let is_live = daemon.state == super::DaemonState::Live;
        let required = daemon.required.to_string();
        let labels = [("daemon", daemon.name.clone()), ("required", required)];
        labelled(labels, f64::from(u8::from(is_live)))
    });
    let restarts = daemons().map(|d| labelled([("daemon", &d.name)], d.restarts as f64));
    vec![
        info_family("driver", "The driver that is installed").with(info),
        gauge(
            "next_kernel_ready",
            "",
            "1 if everything for the kernel of the next boot is in the store",
        )
        .with(next),
        gauge("module_references", "", "References to a module of the driver").with(references),
        gauge("driver_holders", "", "Processes that hold a device of the driver")
            .with(seen.holders.map(|count| plain(count as f64))),
        gauge("gpus_expected", "", "GPUs that the driver is to have").with(expected),
        gauge("gpus_bound", "", "GPUs that the driver has").with(bound),
        gauge("daemon_up", "", "1 if a daemon of the driver serves").with(up),
        counter("daemon_restarts", "", "Restarts of a daemon").with(restarts),
    ]
}

fn sources(live: &Live) -> Vec<Family> {
    let name = |what| {
        serde_json::to_value(what)
            .ok()
            .and_then(|v| v.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let hits = live.cache_hits.iter().map(|(what, n)| labelled([("cache", name(what))], *n as f64));
    let misses =
        live.cache_misses.iter().map(|(what, n)| labelled([("cache", name(what))], *n as f64));
    vec![
        counter("fetched_bytes", "bytes", "Bytes from archives, mirrors and registries")
            .with([plain(live.fetched_bytes as f64)]),
        counter("cache_hits", "", "Items that were available already").with(hits),
        counter("cache_misses", "", "Items that had to be made or fetched").with(misses),
    ]
}

fn process(live: &Live, seen: &HostSample) -> Vec<Family> {
    let build = [("version", live.version.as_str()), ("arch", std::env::consts::ARCH)];
    vec![
        info_family("build", "The program").with([labelled(build, 1.0)]),
        gauge("start_timestamp_seconds", "seconds", "Start time of the agent")
            .with([plain(since_epoch(live.started))]),
        counter("agent_starts", "", "Agents started on this host since it was booted")
            .with(live.starts.map(|starts| plain(starts as f64))),
        gauge("resident_memory_bytes", "bytes", "Memory that the agent has in use")
            .with(seen.resident_bytes.map(|bytes| plain(bytes as f64))),
        counter("cpu_seconds", "seconds", "Processor time that the agent has used")
            .with(seen.cpu_seconds.map(plain)),
    ]
}

fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, unit, help, samples: Vec::new() }
}

fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { kind: Kind::Counter, ..gauge(name, unit, help) }
}

fn info_family(name: &'static str, help: &'static str) -> Family {
    Family { kind: Kind::Info, ..gauge(name, "", help) }
}

impl Family {
    fn with(self, samples: impl IntoIterator<Item = Sample>) -> Self {
        Self { samples: samples.into_iter().collect(), ..self }
    }
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
mod tests {
    use super::*;
    use crate::steps::{MakeDir, Step};
    use crate::telemetry::{
        Condition, DaemonState, DriverInfo, GpuCount, NextKernel, StepOutcome, Telemetry,
    };

    /// Returns an agent with every part of its state set.
    fn state() -> Live {
        let telemetry = Telemetry::default();
        telemetry.starts(2);
        telemetry.enter(Phase::Installing);
        let step = Step::MakeDir(MakeDir { path: "/run".into() });
        telemetry.begin(&step, false).end(StepOutcome::Done);
        telemetry.driver(DriverInfo {
            version: "535.1".into(),
            flavour: "open".into(),
            kernel: "6.1".into(),
            module_digest: Some("ab".into()),
            origin: Some(Origin::Compiled),
        });
        telemetry.daemon("nvidia-persistenced", true, DaemonState::Live);
        let gpus = Some(GpuCount { expected: 2, bound: 1 });
        telemetry.condition(Condition { gpus, ..Condition::default() });
        let release = "6.1.0-51-amd64".to_owned();
        telemetry.next_kernel(Some(NextKernel { release, ..NextKernel::default() }));
        telemetry.reused(longshore_core::progress::Reused::Conftest, 3, 1);
        telemetry.failed(&longshore_core::failure::Failure::new(
            longshore_core::failure::FailureKind::InUse,
            "in use",
        ));
        telemetry.enter(Phase::Ready);
        let timer = telemetry.begin(&step, true);
        let live = telemetry.live();
        timer.end(StepOutcome::Undone);
        live
    }

    fn seen() -> HostSample {
        HostSample {
            references: vec![("nvidia".into(), 4)],
            holders: Some(1),
            resident_bytes: Some(1 << 20),
            cpu_seconds: Some(0.5),
        }
    }

    #[test]
    fn names_end_with_their_units_and_help_is_a_sentence() {
        for family in families(&state(), &seen()) {
            assert!(family.name.ends_with(family.unit), "{}", family.name);
            assert!(!family.samples.is_empty(), "{} has no sample", family.name);
            assert!(!family.help.is_empty() && !family.help.ends_with('.'), "{}", family.name);
        }
    }

    #[test]
    fn exactly_one_phase_is_the_present_one() {
        let all = families(&state(), &seen());
        let phase = all.iter().find(|family| family.name == "phase").expect("phase");
        assert_eq!(phase.samples.len(), Phase::ALL.len());
        let now: Vec<_> = phase.samples.iter().filter(|s| s.value == 1.0).collect();
        assert_eq!(now.len(), 1);
        assert_eq!(now[0].labels, [("phase", "ready".to_owned())]);
    }

    #[test]
    fn the_page_about_them_has_every_one_with_its_type_unit_and_meaning() {
        let page = include_str!("../../../docs/operate/observability.md");
        for family in families(&state(), &seen()) {
            let (kind, suffix) = match family.kind {
                Kind::Gauge => ("gauge", ""),
                Kind::Counter => ("counter", "_total"),
                Kind::Info => ("info", "_info"),
            };
            let mut labels: Vec<_> =
                family.samples[0].labels.iter().map(|(name, _)| format!("`{name}`")).collect();
            if labels.is_empty() {
                labels.push("-".to_owned());
            }
            let unit = if family.unit.is_empty() { "-" } else { family.unit };
            let row = format!(
                "| `longshore_{}{suffix}` | {kind} | {unit} | {} | {} |",
                family.name,
                labels.join(", "),
                family.help
            );
            assert!(page.contains(&row), "docs/operate/observability.md has no row\n{row}");
        }
    }
}
