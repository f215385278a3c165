//! State and history of an agent: kept in memory, for status, health and metrics.
//!
//! One cheap handle is passed down; the rooms that work report to it, the rooms that publish
//! ([`serve`](crate::serve), `longshore status`) take a [`Live`] from it. Its size is bounded: some
//! kilobytes, however long the agent runs.

mod awaited;
mod builder;
mod counted;
pub mod exposition;
mod live;
pub mod metrics;
mod watched;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::span::EnteredSpan;

pub use awaited::Awaited;
pub use builder::{BuilderSets, BuilderStatus};
pub use counted::Counted;
pub use live::{
    Condition, CurrentStep, DEGRADED, Daemon, DriverInfo, FailureRecord, GpuCount, Holders, Live,
    NextKernel, StepCount, StepRecord, Unprepared,
};
pub use watched::{NodeDrain, SourceErrors};

use crate::journal::phase::Phase;
use crate::logging::About;
use crate::steps::Step;
use longshore_core::failure::Failure;
use longshore_core::progress::Reused;
use longshore_core::source_id::SourceId;
use longshore_host::facts::in_use::InUse;

/// Upper limit of steps whose last outcome is kept: a plan has some twenty.
const MOST_STEPS: usize = 64;

/// Origin of the loaded modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum Origin {
    /// The driver was loaded already: nothing was loaded.
    Adopted,
    /// Taken from the store.
    Stored,
    /// Compiled on this host.
    Compiled,
    /// Fetched from a registry.
    Pulled,
    /// Copied from a directory with an image layout.
    Imported,
    /// Read from a package with finished modules.
    Packaged,
}

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Display)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum StepOutcome {
    /// It was carried out.
    Done,
    /// Already in effect by an earlier agent: it remains ours.
    StillOurs,
    /// Already in effect by another program.
    NotOurs,
    /// It could not be carried out.
    Failed,
    /// It was undone.
    Undone,
    /// Left as it is, because it belongs to another program now.
    Kept,
    /// It could not be undone.
    NotUndone,
}

/// State of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum DaemonState {
    /// It was started, and does not serve yet.
    Starting,
    /// It serves.
    Live,
    /// It ended, and is started again after a while.
    BackingOff,
    /// It was stopped on purpose.
    Stopped,
    /// It is not started any more.
    Failed,
}

/// Handle to an agent's reported state. Clones are of the same agent.
#[derive(Debug, Clone, Default)]
pub struct Telemetry(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Marked after each change that a report to a cluster would have.
    changes: watch::Sender<()>,
    /// Fields of the log's lines, which name the driver.
    about: About,
}

/// Reported state of an agent.
#[derive(Debug)]
struct State {
    /// Parts that are reported as they are, and `ready` at its last change; [`State::live`] makes that
    /// and the others anew, of the fields below.
    reported: Live,
    phase: Option<(Phase, Instant, Timestamp)>,
    /// The phase before it.
    before: Option<Phase>,
    /// Seconds in each phase before the present one, in the order of [`Phase::ALL`].
    phases: [Duration; Phase::ALL.len()],
    current_step: Option<(CurrentStep, Instant)>,
    counts: BTreeMap<(&'static str, StepOutcome), u64>,
    origin: Option<Origin>,
    condition: Condition,
    /// Patches of the set that the last plan loads.
    planned_patches: Vec<String>,
    source_errors: BTreeMap<(SourceId, u8), u64>,
    builder: Option<builder::Builder>,
}

impl Default for State {
    fn default() -> Self {
        let started = Timestamp::now();
        Self {
            reported: Live {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started,
                ready_since: Some(started),
                ..Live::default()
            },
            phase: None,
            before: None,
            phases: Default::default(),
            current_step: None,
            counts: BTreeMap::new(),
            origin: None,
            condition: Condition::default(),
            planned_patches: Vec::new(),
            source_errors: BTreeMap::new(),
            builder: None,
        }
    }
}

impl State {
    fn enter(&mut self, phase: Phase) {
        let now = Instant::now();
        if let Some((last, since, _)) = self.phase.replace((phase, now, Timestamp::now())) {
            self.phases[last as usize] += now.duration_since(since);
            self.before = Some(last);
        }
        match phase {
            Phase::Removed | Phase::Idle => {
                self.reported.driver = None;
                self.reported.holders = None;
                self.reported.patches.clear();
                self.origin = None;
                self.condition = Condition::default();
            }
            Phase::Ready => self.reported.holders = None,
            _ => {}
        }
    }
}

impl Telemetry {
    /// Returns the state of an agent whose log has the fields `about`.
    pub fn logged(about: &About) -> Self {
        Self(Arc::new(Shared { about: about.clone(), ..Shared::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked between two updates leaves valid numbers.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and marks the change.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.state();
            let result = change(&mut state);
            let ready = state.not_ready().is_empty();
            if state.reported.ready != ready {
                state.reported.ready = ready;
                state.reported.ready_since = Some(Timestamp::now());
            }
            result
        };
        self.0.changes.send_replace(());
        result
    }

    /// Returns the changes of phase, driver, users, daemons, condition and failures from now on. Steps and
    /// counts are none.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Records that the agent enters a phase.
    pub fn enter(&self, phase: Phase) {
        self.change(|state| state.enter(phase));
    }

    /// Records that a step is begun: carried out, or undone if `undo`.
    pub fn begin(&self, step: &Step, undo: bool) -> StepTimer<'_> {
        let now = Instant::now();
        let current =
            CurrentStep { step: step.kind().into(), subject: step.subject(), undo, seconds: 0.0 };
        // Of this level, so that no filter leaves it out of the fields of a warning.
        let span = tracing::error_span!(
            "step",
            step = step.kind(),
            what = step.subject(),
            module = step.module()
        );
        self.state().current_step = Some((current, now));
        StepTimer {
            telemetry: self,
            kind: step.kind(),
            subject: step.subject(),
            undo,
            since: now,
            _fields: span.entered(),
        }
    }

    /// Returns the present phase; None before the first.
    pub fn phase(&self) -> Option<Phase> {
        self.state().phase.map(|(phase, ..)| phase)
    }

    /// Returns a description of the step in progress, and its duration so far.
    pub fn in_progress(&self) -> Option<(String, Duration)> {
        let state = self.state();
        let (step, since) = state.current_step.as_ref()?;
        let undoing = if step.undo { "undoing " } else { "" };
        Some((format!("{undoing}{} {}", step.step, step.subject), since.elapsed()))
    }

    /// Records the origin of the modules that are about to be loaded.
    pub fn origin(&self, origin: Origin) {
        self.state().origin = Some(origin);
    }

    /// Records the installed driver; its origin is [`Origin::Stored`] unless another one was
    /// recorded.
    pub fn driver(&self, driver: DriverInfo) {
        self.0.about.set_driver(&driver.version);
        self.change(|state| {
            let origin = driver.origin.or(state.origin.take()).unwrap_or(Origin::Stored);
            match origin {
                Origin::Adopted => {}
                Origin::Stored => {
                    *state.reported.cache_hits.entry(Reused::Set).or_default() += 1;
                }
                _ => *state.reported.cache_misses.entry(Reused::Set).or_default() += 1,
            }
            // Patches of the last plan, whose modules are loaded.
            state.reported.patches.clone_from(&state.planned_patches);
            state.reported.driver = Some(DriverInfo { origin: Some(origin), ..driver });
        });
    }

    /// Records the driver version of the last plan, and true where its modules are at hand without compiling
    /// them, None where that is not known.
    pub fn wanted(&self, version: &str, prebuilt: Option<bool>) {
        if watched::is_version(version) {
            self.0.about.set_driver(version);
        }
        self.change(|state| {
            state.reported.wanted = Some(version.to_owned());
            state.reported.prebuilt = prebuilt;
        });
    }

    /// Records the modules for the kernel of the next boot; None where that is not known.
    pub fn next_kernel(&self, next: Option<NextKernel>) {
        if self.state().reported.next_kernel != next {
            self.change(|state| state.reported.next_kernel = next);
        }
    }

    /// Records that the agent ends, and that the driver stays for the next one.
    pub fn kept(&self) {
        self.change(|state| state.reported.kept = true);
    }

    /// Adds to the number of fetched bytes.
    pub fn fetched(&self, bytes: u64) {
        let mut state = self.state();
        state.reported.fetched_bytes = state.reported.fetched_bytes.saturating_add(bytes);
    }

    /// Adds to the numbers of items that were available, and that had to be made or fetched.
    pub fn reused(&self, what: Reused, hits: u64, misses: u64) {
        let mut state = self.state();
        *state.reported.cache_hits.entry(what).or_default() += hits;
        *state.reported.cache_misses.entry(what).or_default() += misses;
    }

    /// Records the users that prevent unloading the driver; None as soon as there are none.
    pub fn holders(&self, in_use: Option<&InUse>) {
        self.change(|state| state.reported.holders = in_use.map(Holders::from));
    }

    /// Records the state of a daemon. A second start counts as a restart.
    pub fn daemon(&self, name: &str, required: bool, state: DaemonState) {
        self.change(|all| match all.reported.daemons.iter_mut().find(|one| one.name == name) {
            Some(daemon) => {
                let again = state == DaemonState::Starting && daemon.state != state;
                daemon.restarts += u64::from(again);
                daemon.state = state;
                daemon.required = required;
            }
            None => {
                let name = name.to_owned();
                all.reported.daemons.push(Daemon { name, required, state, restarts: 0 });
            }
        });
    }

    /// Records the findings of the last check of the installed driver; returns the previous ones.
    pub fn condition(&self, condition: Condition) -> Condition {
        self.change(|state| std::mem::replace(&mut state.condition, condition))
    }

    /// Records the number of agent starts since the host was booted, including this one.
    pub fn starts(&self, starts: u64) {
        self.state().reported.starts = Some(starts);
    }

    /// Records the failure of an earlier agent.
    pub fn failed_before(&self, failure: Option<FailureRecord>) {
        self.change(|state| state.reported.last_failure = failure);
    }

    /// Records a failure of this agent, which may continue after it.
    pub fn failed(&self, failure: &Failure) {
        let record = self.record(failure);
        self.change(|state| {
            state.reported.failures += 1;
            state.reported.last_failure = Some(record);
        });
    }

    /// Returns the record of a failure that happens now, or has just led into the present phase.
    pub fn record(&self, failure: &Failure) -> FailureRecord {
        let state = self.state();
        let phase = match state.phase {
            Some((Phase::Failed | Phase::InUse, ..)) => state.before,
            Some((phase, ..)) => Some(phase),
            None => None,
        };
        FailureRecord::new(failure, phase)
    }

    /// Returns the whole state.
    pub fn live(&self) -> Live {
        self.state().live()
    }
}

/// A step in progress, carried out or undone.
#[derive(Debug)]
pub struct StepTimer<'a> {
    telemetry: &'a Telemetry,
    kind: &'static str,
    subject: String,
    undo: bool,
    since: Instant,
    /// Step and subject in each line until its end.
    _fields: EnteredSpan,
}

impl StepTimer<'_> {
    /// Records the end of the step; returns the seconds it took.
    pub fn end(self, outcome: StepOutcome) -> f64 {
        let seconds = self.since.elapsed().as_secs_f64();
        let mut state = self.telemetry.state();
        state.current_step = None;
        *state.counts.entry((self.kind, outcome)).or_default() += 1;
        let is_same = |r: &StepRecord| {
            (r.step == self.kind) && r.subject == self.subject && r.undo == self.undo
        };
        let steps = &mut state.reported.steps;
        steps.retain(|record| !is_same(record));
        if steps.len() == MOST_STEPS {
            steps.remove(0);
        }
        let Self { kind, subject, undo, .. } = self;
        steps.push(StepRecord { step: kind.to_owned(), subject, undo, outcome, seconds });
        seconds
    }
}

#[cfg(test)]
mod tests;
