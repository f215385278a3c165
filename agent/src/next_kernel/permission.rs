//! Permission to prepare a kernel.

use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Config;

/// Permission to prepare a kernel, which an agent run gives while its driver is Ready and it waits for nothing
/// but signals and events. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Permission(Arc<watch::Sender<Option<Arc<Config>>>>);

impl Permission {
    /// Gives it, with the configuration that the driver is Ready by.
    pub fn give(&self, config: &Config) {
        self.0.send_replace(Some(Arc::new(config.clone())));
    }

    /// Withdraws it, before the agent plans or changes anything.
    pub fn withdraw(&self) {
        self.0.send_replace(None);
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<Config>>> {
        self.0.subscribe()
    }
}
