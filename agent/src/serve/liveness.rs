//! Liveness probe of the agent's own task, which has to answer itself.
//!
//! There is no timer: a query wakes the task, which answers between two other events. If its thread
//! is stuck, or its runtime has no thread left, no answer comes. There is one query at a time, and
//! its answer is for all callers that wait for one: any number of callers can wait.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

/// Validity of an answer: callers without pause wake the task once in this time.
const FRESH: Duration = Duration::from_millis(500);

/// Querying side of the probe.
#[derive(Debug, Clone)]
pub struct LivenessProbe {
    ask: mpsc::Sender<()>,
    /// Time of the task's last answer.
    answered: watch::Receiver<Option<Instant>>,
}

/// Answering side of the probe.
#[derive(Debug)]
pub struct Responder {
    asked: mpsc::Receiver<()>,
    answer: watch::Sender<Option<Instant>>,
}

impl LivenessProbe {
    /// Returns the querying and the answering side.
    pub fn new() -> (Self, Responder) {
        let (ask, asked) = mpsc::channel(1);
        let (answer, answered) = watch::channel(None);
        (Self { ask, answered }, Responder { asked, answer })
    }

    /// True if the task answers within `limit`, or did a moment ago.
    pub async fn answers(&self, limit: Duration) -> bool {
        let mut answered = self.answered.clone();
        // The task has ended, and its earlier answers do not count.
        if answered.has_changed().is_err() {
            return false;
        }
        let last = *answered.borrow_and_update();
        if last.is_some_and(|at| at.elapsed() < FRESH) {
            return true;
        }
        // If a query is already waiting, its answer is for this caller as well.
        let _ = self.ask.try_send(());
        matches!(tokio::time::timeout(limit, answered.changed()).await, Ok(Ok(())))
    }
}

impl Responder {
    /// Drives `run` to completion and answers queries from the same task.
    pub async fn drive<T>(mut self, run: impl Future<Output = T>) -> T {
        let mut run = pin!(run);
        loop {
            tokio::select! {
                biased;
                ended = &mut run => return ended,
                Some(()) = self.asked.recv() => drop(self.answer.send_replace(Some(Instant::now()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_run_that_waits_for_something_answers_and_one_that_ended_does_not() {
        let (probe, responder) = LivenessProbe::new();
        let (end, ended) = oneshot::channel::<()>();
        let run = tokio::spawn(responder.drive(ended));
        assert!(probe.answers(SOON).await && probe.answers(SOON).await);
        end.send(()).expect("it runs");
        run.await.expect("joins").expect("ends");
        assert!(!probe.answers(SOON).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_run_whose_thread_is_stuck_does_not_answer() {
        let (probe, responder) = LivenessProbe::new();
        let (release, stuck) = std::sync::mpsc::channel::<()>();
        let run = tokio::spawn(responder.drive(async move { stuck.recv().is_err() }));
        assert!(!probe.answers(Duration::from_millis(50)).await);
        drop(release);
        assert!(run.await.expect("joins"));
    }

    #[tokio::test]
    async fn questions_do_not_pile_up() {
        let (probe, _responder) = LivenessProbe::new();
        for _ in 0..100 {
            assert!(!probe.answers(Duration::ZERO).await);
        }
    }

    /// Regression: sixteen callers at once were told at once that the task had not answered for
    /// five seconds.
    #[tokio::test]
    async fn however_many_ask_before_the_task_wakes_all_are_answered() {
        let (probe, responder) = LivenessProbe::new();
        let asking: Vec<_> = (0..64)
            .map(|_| {
                let probe = probe.clone();
                tokio::spawn(async move { probe.answers(SOON).await })
            })
            .collect();
        // All of them have sent their query, and none was received yet.
        tokio::task::yield_now().await;
        let (_end, ended) = oneshot::channel::<()>();
        let run = tokio::spawn(responder.drive(ended));
        for one in asking {
            assert!(one.await.expect("joins"));
        }
        run.abort();
    }

    #[tokio::test]
    async fn an_answer_of_long_ago_counts_no_more() {
        let (probe, responder) = LivenessProbe::new();
        let long_ago = Instant::now().checked_sub(2 * FRESH).expect("the clock has run");
        responder.answer.send_replace(Some(long_ago));
        assert!(!probe.answers(Duration::ZERO).await);
        responder.answer.send_replace(Some(Instant::now()));
        assert!(probe.answers(Duration::ZERO).await);
    }
}
