//! A request to stop that both blocking and asynchronous code can see.

use std::sync::Arc;

use tokio::sync::watch;

/// Set once, by a signal; never cleared.
#[derive(Debug, Clone)]
pub struct CancelFlag(Arc<watch::Sender<bool>>);

impl Default for CancelFlag {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl CancelFlag {
    /// Asks to stop; returns whether this was the first time.
    pub fn set(&self) -> bool {
        self.0.send_if_modified(|set| !std::mem::replace(set, true))
    }

    /// Whether to stop.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is set.
    pub async fn wait(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
}
