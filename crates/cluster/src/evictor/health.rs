//! Health of the controller, for probes.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Time after which a controller that shows no sign counts as hung. It shows one every ten seconds, and while a call
/// lasts none: a list has a time limit for each page and try.
const HUNG: Duration = Duration::from_secs(180);

/// Signs of the controller's task.
#[derive(Debug)]
pub struct Health {
    beat: Mutex<Instant>,
    ready: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self { beat: Mutex::new(Instant::now()), ready: AtomicBool::new(false) }
    }
}

impl Health {
    pub(super) fn beat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// True while the controller's task goes on, also where no server answers.
    pub fn is_alive(&self) -> bool {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < HUNG
    }

    /// True if the nodes were listed, and are followed.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) && self.is_alive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_without_a_sign_is_neither_alive_nor_ready() {
        let health = Health::default();
        assert!(health.is_alive() && !health.is_ready());
        health.set_ready(true);
        tokio::time::advance(HUNG - Duration::from_secs(1)).await;
        assert!(health.is_alive() && health.is_ready());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!health.is_alive() && !health.is_ready());
        health.beat();
        assert!(health.is_ready());
    }
}
