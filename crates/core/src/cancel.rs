//! Cancel flag for blocking and asynchronous code.

use std::sync::Arc;

use tokio::sync::watch;

/// Cancel flag, set once, by a signal; never cleared.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<watch::Sender<bool>>);

impl CancelFlag {
    /// Sets the flag; returns true the first time.
    pub fn set(&self) -> bool {
        self.0.send_if_modified(|set| !std::mem::replace(set, true))
    }

    /// True if the flag is set.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is set.
    pub async fn wait(&self) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
}
