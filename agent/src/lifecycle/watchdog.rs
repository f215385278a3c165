//! Watchdog: reports an agent run whose main task no longer answers.
//!
//! Calls that are known to hang are made by other threads or processes, with a deadline. But the
//! run's task calls the kernel as well: it opens the store's lock, it reads apt's configuration,
//! and none of that returns if a disk or a server is gone. Nothing gets the task out of the kernel,
//! and it handles no signal; so another task queries it, and reports in its place when it does not
//! answer.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::Renewal;
use crate::journal::phase::Phase;
use crate::serve::LivenessProbe;
use crate::telemetry::Telemetry;
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind};

/// Time limit for answering of a run that was told to stop before it changed anything.
const STOPPING: Duration = Duration::from_secs(10);
/// Time limit of the second query, after a possible pause of the whole process.
const AWAKE: Duration = Duration::from_secs(5);
/// Interval of the queries, as a fraction of the limit.
const PART: u32 = 10;

/// Idle state of an agent run: whether it waits for nothing but signals, and how long it may be
/// stuck otherwise. Clones share the state.
#[derive(Debug, Clone)]
pub struct Idle {
    at_rest: Arc<watch::Sender<bool>>,
    limit: Arc<Mutex<Duration>>,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            at_rest: Arc::new(watch::Sender::new(false)),
            limit: Arc::new(Mutex::new(Duration::MAX)),
        }
    }
}

impl Idle {
    /// Sets the idle state: true if the run waits for nothing but signals.
    pub(super) fn is(&self, at_rest: bool) {
        self.at_rest.send_replace(at_rest);
    }

    /// Sets the time that the run may be stuck.
    pub(super) fn give(&self, limit: Duration) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    fn limit(&self) -> Duration {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_now(&self) -> bool {
        *self.at_rest.borrow()
    }

    async fn over(&self) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.at_rest.subscribe().wait_for(|at_rest| !at_rest).await;
    }
}

/// Requests to an agent run, and its idle state.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub stop: CancelFlag,
    pub renewal: Renewal,
    pub rest: Idle,
}

/// Drives `run`, and calls `stuck` with the reason when it no longer answers.
pub(super) async fn watched<T>(
    run: impl Future<Output = T>,
    asked: Asked,
    telemetry: &Telemetry,
    stuck: impl FnOnce(&Failure) + Send + 'static,
) -> T {
    // A probe that /healthz has no part in: its clients could fill the queue.
    let (probe, responder) = LivenessProbe::new();
    let (Asked { stop, rest, .. }, telemetry) = (asked, telemetry.clone());
    let theirs = rest.clone();
    let watching = tokio::spawn(async move {
        stuck(&watch(probe, theirs, stop, telemetry).await);
    });
    let run = async {
        let ended = run.await;
        // It answers no query from now on.
        rest.is(true);
        ended
    };
    let ended = responder.drive(run).await;
    watching.abort();
    ended
}

/// Waits until a run no longer answers `probe`, and returns that failure. An idle run is not
/// queried.
async fn watch(
    probe: LivenessProbe,
    rest: Idle,
    stop: CancelFlag,
    telemetry: Telemetry,
) -> Failure {
    loop {
        rest.over().await;
        let stopping = stop.is_set();
        // A slow disk is no reason to leave on the host what can be undone a moment later.
        let limit = match stopping && is_untouched(phase(&telemetry)) {
            true => rest.limit().min(STOPPING),
            false => rest.limit(),
        };
        let answers = tokio::select! {
            answers = probe.answers(limit) => answers,
            () = stop.wait(), if !stopping => continue,
        };
        if !answers && !rest.is_now() {
            // A container that was paused for so long resumes with all its deadlines over.
            if !probe.answers(limit.min(AWAKE)).await && !rest.is_now() {
                return stuck(&telemetry, limit);
            }
        }
        // After a stop request the run is queried at once, otherwise at intervals.
        tokio::select! {
            () = tokio::time::sleep(limit / PART) => {}
            () = stop.wait(), if !stop.is_set() => {}
        }
    }
}

fn phase(telemetry: &Telemetry) -> Phase {
    telemetry.phase().unwrap_or(Phase::Probing)
}

/// True if the phase leaves the host unchanged.
fn is_untouched(phase: Phase) -> bool {
    matches!(phase, Phase::Probing | Phase::Planning | Phase::Acquiring)
}

fn stuck(telemetry: &Telemetry, limit: Duration) -> Failure {
    let phase = phase(telemetry);
    let is_untouched = is_untouched(phase);
    let kind = if is_untouched { FailureKind::Preflight } else { FailureKind::RolledBack };
    let cause = format!(
        "the agent is stuck while {phase}, and has not answered for {:.0} s: a disk or a file \
         system does not answer. It ends where it is; its journal has its changes to the host",
        limit.as_secs_f64()
    );
    Failure::new(kind, cause).remedy(
        "see the kernel's log (dmesg) for what does not answer; if the host is only slow, give it \
         more time (step-deadline)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use std::sync::mpsc;

    fn run_state() -> (Idle, CancelFlag, Telemetry) {
        let rest = Idle::default();
        rest.give(Duration::from_millis(50));
        (rest, CancelFlag::default(), Telemetry::default())
    }

    #[test]
    fn whoever_ends_the_process_is_told_of_a_run_that_is_stuck_and_of_no_other() {
        for hangs in [true, false] {
            let (sender, receiver) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            // As in `main`: the run's task is on the thread that started the runtime.
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let asked = Asked::default();
                asked.rest.give(Duration::from_millis(50));
                let run = async { if hangs { released.recv().is_err() } else { true } };
                let stuck = move |failure: &Failure| {
                    let _ = sender.send(failure.code());
                };
                runtime.block_on(watched(run, asked, &Telemetry::default(), stuck))
            });
            let wanted = if hangs { Ok(ExitCode::Preflight) } else { Err(mpsc::RecvError) };
            assert_eq!(receiver.recv(), wanted);
            drop(release);
            assert!(thread.join().unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_run_that_is_stuck_is_reported() {
        for (phase, code) in
            [(Phase::Probing, ExitCode::Preflight), (Phase::Installing, ExitCode::RolledBack)]
        {
            let (rest, stop, telemetry) = run_state();
            telemetry.enter(phase);
            let (probe, responder) = LivenessProbe::new();
            let (release, hangs) = mpsc::channel::<()>();
            let run = tokio::spawn(responder.drive(async move { hangs.recv().is_err() }));
            let failure = watch(probe, rest, stop, telemetry).await;
            assert_eq!(failure.code(), code);
            assert!(failure.report().contains(&format!("stuck while {phase}")), "{failure}");
            drop(release);
            assert!(run.await.unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_that_is_to_stop_is_asked_at_once() {
        let (rest, stop, telemetry) = run_state();
        rest.give(Duration::from_secs(3600));
        let (probe, responder) = LivenessProbe::new();
        let (release, hangs) = mpsc::channel::<()>();
        let run = tokio::spawn(responder.drive(async move { hangs.recv().is_err() }));
        let watching = tokio::spawn(watch(probe, rest.clone(), stop.clone(), telemetry));
        // As in a real run: a wait of an hour is ended by the stop.
        rest.give(Duration::from_millis(50));
        stop.set();
        assert_eq!(watching.await.unwrap().code(), ExitCode::Preflight);
        drop(release);
        assert!(run.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_answers_and_one_at_rest_are_left_alone() {
        let (rest, stop, telemetry) = run_state();
        let (probe, responder) = LivenessProbe::new();
        let run = tokio::spawn(responder.drive(std::future::pending::<()>()));
        let watching = tokio::spawn(watch(probe, rest.clone(), stop.clone(), telemetry));
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop.set();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!watching.is_finished());
        rest.is(true);
        // One more query may have been sent already.
        tokio::time::sleep(Duration::from_secs(60)).await;
        run.abort();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!watching.is_finished(), "an idle run is not queried");
        watching.abort();
    }
}
