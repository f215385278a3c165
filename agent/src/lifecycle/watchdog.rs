//! A life whose own task is stuck in a call that does not come back.
//!
//! What is known to hang is done by others, with a deadline of its own. But the life's task calls the
//! kernel as well: it opens the store's lock, it reads what apt is told, and a disk or a server that is
//! gone lets none of that come back. Nothing takes the task out of the kernel, and it hears no signal;
//! so somebody else asks it whether it still answers, and speaks in its place where it does not.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::Renewal;
use crate::cancel::CancelFlag;
use crate::failure::{ExitCode, Failure};
use crate::journal::phase::Phase;
use crate::serve::Pulse;
use crate::telemetry::Telemetry;

/// How long a life that was asked to stop before it changed anything may leave that unanswered.
const STOPPING: Duration = Duration::from_secs(10);
/// How long it has to answer once more, when everybody was awake.
const AWAKE: Duration = Duration::from_secs(5);
/// How often it is asked, as a part of the limit.
const PART: u32 = 10;

/// Whether a life waits for nothing but signals, and how long it may be stuck where it does not.
/// Clones are of the same life.
#[derive(Debug, Clone)]
pub struct Rest {
    at_rest: Arc<watch::Sender<bool>>,
    limit: Arc<Mutex<Duration>>,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            at_rest: Arc::new(watch::Sender::new(false)),
            limit: Arc::new(Mutex::new(Duration::MAX)),
        }
    }
}

impl Rest {
    /// From now on the life waits for nothing but signals, or no longer does.
    pub(super) fn is(&self, at_rest: bool) {
        self.at_rest.send_replace(at_rest);
    }

    /// From now on the life may be stuck for so long.
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
        // The sender lives in self, so waiting cannot fail.
        let _ = self.at_rest.subscribe().wait_for(|at_rest| !at_rest).await;
    }
}

/// What a life is asked for, and whether it waits for that alone.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub stop: CancelFlag,
    pub renewal: Renewal,
    pub rest: Rest,
}

/// Lives `life`, and tells `stuck` why where that does not come to its end any more.
pub(super) async fn watched<T>(
    life: impl Future<Output = T>,
    asked: Asked,
    telemetry: &Telemetry,
    stuck: impl FnOnce(&Failure) + Send + 'static,
) -> T {
    // One that /healthz has no part in: who asks there may fill the queue.
    let (pulse, heart) = Pulse::new();
    let (Asked { stop, rest, .. }, telemetry) = (asked, telemetry.clone());
    let theirs = rest.clone();
    let watching = tokio::spawn(async move {
        stuck(&watch(pulse, theirs, stop, telemetry).await);
    });
    let life = async {
        let ended = life.await;
        // It answers nobody from now on.
        rest.is(true);
        ended
    };
    let ended = heart.beside(life).await;
    watching.abort();
    ended
}

/// Waits until a life does not answer `pulse` any more, and says so. At rest it is not asked.
async fn watch(pulse: Pulse, rest: Rest, stop: CancelFlag, telemetry: Telemetry) -> Failure {
    loop {
        rest.over().await;
        let stopping = stop.is_set();
        // A disk that is slow is no reason to leave on the host what can be taken off a moment later.
        let limit = match stopping && is_untouched(phase(&telemetry)) {
            true => rest.limit().min(STOPPING),
            false => rest.limit(),
        };
        let answers = tokio::select! {
            answers = pulse.beats(limit) => answers,
            () = stop.wait(), if !stopping => continue,
        };
        if !answers && !rest.is_now() {
            // A container that was paused for so long wakes with all its deadlines over.
            if !pulse.beats(limit.min(AWAKE)).await && !rest.is_now() {
                return stuck(&telemetry, limit);
            }
        }
        // A stop is asked about at once, and only once in a while afterwards.
        tokio::select! {
            () = tokio::time::sleep(limit / PART) => {}
            () = stop.wait(), if !stop.is_set() => {}
        }
    }
}

fn phase(telemetry: &Telemetry) -> Phase {
    telemetry.phase().unwrap_or(Phase::Probing)
}

/// Whether nothing is changed on the host.
fn is_untouched(phase: Phase) -> bool {
    matches!(phase, Phase::Probing | Phase::Planning | Phase::Acquiring)
}

fn stuck(telemetry: &Telemetry, limit: Duration) -> Failure {
    let phase = phase(telemetry);
    let code = if is_untouched(phase) { ExitCode::Preflight } else { ExitCode::RolledBack };
    let cause = format!(
        "the agent is stuck while {phase}, and has not answered for {:.0} s: a disk or a file system \
         does not answer. It ends where it is; its journal says what is on the host",
        limit.as_secs_f64()
    );
    Failure::new(code, cause).remedy(
        "see the kernel's log (dmesg) for what does not answer; where the host is only slow, give it \
         more time (step-deadline)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn life() -> (Rest, CancelFlag, Telemetry) {
        let rest = Rest::default();
        rest.give(Duration::from_millis(50));
        (rest, CancelFlag::default(), Telemetry::default())
    }

    #[test]
    fn whoever_ends_the_process_is_told_of_a_life_that_is_stuck_and_of_no_other() {
        for hangs in [true, false] {
            let (tell, told) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            // As in `main`: the life's task is the thread's that started the runtime.
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let asked = Asked::default();
                asked.rest.give(Duration::from_millis(50));
                let life = async { if hangs { released.recv().is_err() } else { true } };
                let stuck = move |failure: &Failure| {
                    let _ = tell.send(failure.code());
                };
                runtime.block_on(watched(life, asked, &Telemetry::default(), stuck))
            });
            let wanted = if hangs { Ok(ExitCode::Preflight) } else { Err(mpsc::RecvError) };
            assert_eq!(told.recv(), wanted);
            drop(release);
            assert!(thread.join().unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_life_that_is_stuck_is_spoken_for() {
        for (phase, code) in
            [(Phase::Probing, ExitCode::Preflight), (Phase::Installing, ExitCode::RolledBack)]
        {
            let (rest, stop, telemetry) = life();
            telemetry.enter(phase);
            let (pulse, heart) = Pulse::new();
            let (release, hangs) = mpsc::channel::<()>();
            let life = tokio::spawn(heart.beside(async move { hangs.recv().is_err() }));
            let failure = watch(pulse, rest, stop, telemetry).await;
            assert_eq!(failure.code(), code);
            assert!(failure.report().contains(&format!("stuck while {phase}")), "{failure}");
            drop(release);
            assert!(life.await.unwrap());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_that_is_to_stop_is_asked_at_once() {
        let (rest, stop, telemetry) = life();
        rest.give(Duration::from_secs(3600));
        let (pulse, heart) = Pulse::new();
        let (release, hangs) = mpsc::channel::<()>();
        let life = tokio::spawn(heart.beside(async move { hangs.recv().is_err() }));
        let watching = tokio::spawn(watch(pulse, rest.clone(), stop.clone(), telemetry));
        // As it is where nothing else is known: what waits an hour is told of the stop.
        rest.give(Duration::from_millis(50));
        stop.set();
        assert_eq!(watching.await.unwrap().code(), ExitCode::Preflight);
        drop(release);
        assert!(life.await.unwrap());
    }

    #[tokio::test]
    async fn one_that_answers_and_one_at_rest_are_left_alone() {
        let (rest, stop, telemetry) = life();
        let (pulse, heart) = Pulse::new();
        let life = tokio::spawn(heart.beside(std::future::pending::<()>()));
        let watching = tokio::spawn(watch(pulse, rest.clone(), stop.clone(), telemetry));
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.set();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!watching.is_finished());
        rest.is(true);
        // Once more it may have been asked already.
        tokio::time::sleep(Duration::from_millis(200)).await;
        life.abort();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!watching.is_finished(), "who is at rest is not asked");
        watching.abort();
    }
}
