//! Whether the agent's own task still runs: it is asked, and has to answer itself.
//!
//! Nothing ticks: a question wakes the task, which answers between two things that it does. Where its
//! thread is stuck, or its runtime has no thread left, no answer comes.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Asks.
#[derive(Debug, Clone)]
pub struct Pulse(mpsc::Sender<oneshot::Sender<()>>);

/// Answers.
#[derive(Debug)]
pub struct Heart(mpsc::Receiver<oneshot::Sender<()>>);

impl Pulse {
    /// One that asks and the one that answers.
    pub fn new() -> (Self, Heart) {
        // Whoever finds the queue full knows that nobody has answered the others either.
        let (ask, asked) = mpsc::channel(4);
        (Self(ask), Heart(asked))
    }

    /// Whether an answer comes within `limit`.
    pub async fn beats(&self, limit: Duration) -> bool {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(answer).is_ok()
            && matches!(tokio::time::timeout(limit, answered).await, Ok(Ok(())))
    }
}

impl Heart {
    /// Lives `life`, and answers meanwhile from within the same task.
    pub async fn beside<T>(mut self, life: impl Future<Output = T>) -> T {
        let mut life = pin!(life);
        loop {
            tokio::select! {
                biased;
                ended = &mut life => return ended,
                // Whoever asked may have gone away.
                Some(answer) = self.0.recv() => drop(answer.send(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_life_that_waits_for_something_beats_and_one_that_ended_does_not() {
        let (pulse, heart) = Pulse::new();
        let (end, ended) = oneshot::channel::<()>();
        let life = tokio::spawn(heart.beside(ended));
        assert!(pulse.beats(SOON).await && pulse.beats(SOON).await);
        end.send(()).expect("it lives");
        life.await.expect("joins").expect("ends");
        assert!(!pulse.beats(SOON).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_life_whose_thread_is_stuck_does_not_beat() {
        let (pulse, heart) = Pulse::new();
        let (release, stuck) = std::sync::mpsc::channel::<()>();
        let life = tokio::spawn(heart.beside(async move { stuck.recv().is_err() }));
        assert!(!pulse.beats(Duration::from_millis(50)).await);
        drop(release);
        assert!(life.await.expect("joins"));
    }

    #[tokio::test]
    async fn questions_do_not_pile_up() {
        let (pulse, _heart) = Pulse::new();
        for _ in 0..100 {
            assert!(!pulse.beats(Duration::ZERO).await);
        }
    }
}
