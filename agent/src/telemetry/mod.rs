//! What an agent is at, and what it has been through: kept in memory, for whoever asks.
//!
//! One cheap handle that is handed down; the rooms that work call it, the rooms that tell
//! ([`serve`](crate::serve), `longshore status`) take a [`Live`] from it. What it keeps is bounded:
//! some kilobytes, however long the agent lives.

mod counted;
pub mod exposition;
mod live;
pub mod metrics;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use counted::Counted;
pub use live::{
    Condition, Daemon, DriverInfo, FailureRecord, GpuCount, Holders, Live, StepAt, StepCount,
    StepRecord,
};

use crate::failure::Failure;
use crate::host::in_use::InUse;
use crate::journal::phase::Phase;
use crate::progress::Reused;
use crate::step::Step;

/// Steps whose last outcome is kept: a plan has some twenty.
const MOST_STEPS: usize = 64;

/// Where the modules came from that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The driver was live already: nothing was loaded.
    Adopted,
    /// Out of the store.
    Stored,
    /// Compiled on this host.
    Compiled,
    /// Fetched from a registry.
    Pulled,
    /// Copied from a directory with an image layout.
    Imported,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOutcome {
    /// It was carried out.
    Done,
    /// It was so already, by an earlier agent: it remains ours.
    StillOurs,
    /// It was so already, by somebody else.
    NotOurs,
    /// It could not be carried out.
    Failed,
    /// It was undone.
    Undone,
    /// It was left as it is: it has become somebody else's.
    Kept,
    /// It could not be undone.
    NotUndone,
}

/// What a daemon is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// A handle to what one agent tells of itself. Clones tell of the same agent.
#[derive(Debug, Clone, Default)]
pub struct Telemetry(Arc<Mutex<Told>>);

/// What is kept.
#[derive(Debug)]
struct Told {
    started: Timestamp,
    phase: Option<(Phase, Instant, Timestamp)>,
    /// The phase before it.
    before: Option<Phase>,
    /// Seconds in each phase before the present one, in the order of [`Phase::ALL`].
    phases: [Duration; Phase::ALL.len()],
    at: Option<(StepAt, Instant)>,
    /// The last outcome of each step, the oldest first.
    steps: Vec<StepRecord>,
    counts: BTreeMap<(&'static str, StepOutcome), u64>,
    driver: Option<DriverInfo>,
    origin: Option<Origin>,
    fetched_bytes: u64,
    reused: BTreeMap<Reused, u64>,
    missed: BTreeMap<Reused, u64>,
    holders: Option<Holders>,
    daemons: Vec<Daemon>,
    condition: Condition,
    starts: Option<u64>,
    failures: u64,
    last_failure: Option<FailureRecord>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            started: Timestamp::now(),
            phase: None,
            before: None,
            phases: Default::default(),
            at: None,
            steps: Vec::new(),
            counts: BTreeMap::new(),
            driver: None,
            origin: None,
            fetched_bytes: 0,
            reused: BTreeMap::new(),
            missed: BTreeMap::new(),
            holders: None,
            daemons: Vec::new(),
            condition: Condition::default(),
            starts: None,
            failures: 0,
            last_failure: None,
        }
    }
}

impl Telemetry {
    fn told(&self) -> MutexGuard<'_, Told> {
        // Another thread that panicked between two numbers leaves numbers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent enters a phase.
    pub fn enter(&self, phase: Phase) {
        let mut told = self.told();
        let now = Instant::now();
        if let Some((last, since, _)) = told.phase.replace((phase, now, Timestamp::now())) {
            told.phases[last as usize] += now.duration_since(since);
            told.before = Some(last);
        }
        match phase {
            Phase::Removed => {
                told.driver = None;
                told.origin = None;
                told.holders = None;
                told.condition = Condition::default();
            }
            Phase::Ready => told.holders = None,
            _ => {}
        }
    }

    /// A step is begun: carried out, or undone where `undo`.
    pub fn begin(&self, step: &Step, undo: bool) -> Doing<'_> {
        let now = Instant::now();
        let at = StepAt { step: step.kind().into(), what: step.subject(), undo, seconds: 0.0 };
        self.told().at = Some((at, now));
        Doing { telemetry: self, kind: step.kind(), what: step.subject(), undo, since: now }
    }

    /// The phase it is in; None before the first.
    pub fn phase(&self) -> Option<Phase> {
        self.told().phase.map(|(phase, ..)| phase)
    }

    /// The step in progress, in words, and how long it has been.
    pub fn in_progress(&self) -> Option<(String, Duration)> {
        let told = self.told();
        let (at, since) = told.at.as_ref()?;
        let undoing = if at.undo { "undoing " } else { "" };
        Some((format!("{undoing}{} {}", at.step, at.what), since.elapsed()))
    }

    /// Where the modules come from that are about to be loaded.
    pub fn origin(&self, origin: Origin) {
        self.told().origin = Some(origin);
    }

    /// The driver that is installed; its origin is [`Origin::Stored`] unless something else was
    /// told.
    pub fn driver(&self, driver: DriverInfo) {
        let mut told = self.told();
        let origin = driver.origin.or(told.origin.take()).unwrap_or(Origin::Stored);
        match origin {
            Origin::Adopted => {}
            Origin::Stored => *told.reused.entry(Reused::Set).or_default() += 1,
            _ => *told.missed.entry(Reused::Set).or_default() += 1,
        }
        told.driver = Some(DriverInfo { origin: Some(origin), ..driver });
    }

    /// So many bytes more came from elsewhere.
    pub fn fetched(&self, bytes: u64) {
        let mut told = self.told();
        told.fetched_bytes = told.fetched_bytes.saturating_add(bytes);
    }

    /// So many things were at hand, and so many had to be made or fetched.
    pub fn reused(&self, what: Reused, hits: u64, misses: u64) {
        let mut told = self.told();
        *told.reused.entry(what).or_default() += hits;
        *told.missed.entry(what).or_default() += misses;
    }

    /// Who keeps the driver from being taken off; None as soon as nobody does.
    pub fn holders(&self, in_use: Option<&InUse>) {
        self.told().holders = in_use.map(Holders::from);
    }

    /// What a daemon is at. Started a second time it counts as restarted.
    pub fn daemon(&self, name: &str, required: bool, state: DaemonState) {
        let mut told = self.told();
        match told.daemons.iter_mut().find(|daemon| daemon.name == name) {
            Some(daemon) => {
                let again = state == DaemonState::Starting && daemon.state != state;
                daemon.restarts += u64::from(again);
                daemon.state = state;
                daemon.required = required;
            }
            None => {
                told.daemons.push(Daemon { name: name.to_owned(), required, state, restarts: 0 });
            }
        }
    }

    /// What was found when the driver that is installed was last looked at; returns what was found
    /// before it.
    pub fn condition(&self, condition: Condition) -> Condition {
        std::mem::replace(&mut self.told().condition, condition)
    }

    /// Agents that began their life since the host was booted, this one among them.
    pub fn starts(&self, starts: u64) {
        self.told().starts = Some(starts);
    }

    /// What an agent before this one failed at.
    pub fn failed_before(&self, failure: Option<FailureRecord>) {
        self.told().last_failure = failure;
    }

    /// This agent failed; it may go on from there.
    pub fn failed(&self, failure: &Failure) {
        let record = self.record(failure);
        let mut told = self.told();
        told.failures += 1;
        told.last_failure = Some(record);
    }

    /// The record of a failure that happens now, or has just led into the present phase.
    pub fn record(&self, failure: &Failure) -> FailureRecord {
        let told = self.told();
        let phase = match told.phase {
            Some((Phase::Failed | Phase::InUse, ..)) => told.before,
            Some((phase, ..)) => Some(phase),
            None => None,
        };
        FailureRecord::of(failure, phase)
    }

    /// What it is at, all of it.
    pub fn live(&self) -> Live {
        self.told().live()
    }
}

/// A step that is being carried out or undone.
#[derive(Debug)]
pub struct Doing<'a> {
    telemetry: &'a Telemetry,
    kind: &'static str,
    what: String,
    undo: bool,
    since: Instant,
}

impl Doing<'_> {
    /// It is over; returns the seconds it took.
    pub fn end(self, outcome: StepOutcome) -> f64 {
        let seconds = self.since.elapsed().as_secs_f64();
        let mut told = self.telemetry.told();
        told.at = None;
        *told.counts.entry((self.kind, outcome)).or_default() += 1;
        let is_same =
            |r: &StepRecord| (r.step == self.kind) && r.what == self.what && r.undo == self.undo;
        told.steps.retain(|record| !is_same(record));
        if told.steps.len() == MOST_STEPS {
            told.steps.remove(0);
        }
        let Self { kind, what, undo, .. } = self;
        told.steps.push(StepRecord { step: kind.to_owned(), what, undo, outcome, seconds });
        seconds
    }
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::StillOurs => "still-ours",
            Self::NotOurs => "not-ours",
            Self::Failed => "failed",
            Self::Undone => "undone",
            Self::Kept => "kept",
            Self::NotUndone => "not-undone",
        })
    }
}

impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Live => "live",
            Self::BackingOff => "backing-off",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adopted => "adopted",
            Self::Stored => "stored",
            Self::Compiled => "compiled",
            Self::Pulled => "pulled",
            Self::Imported => "imported",
        })
    }
}

#[cfg(test)]
mod tests;
