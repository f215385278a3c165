//! Wait for modules that no registry has yet: a builder makes them for the whole fleet, and this agent may not compile
//! them, or has no key that signs what it compiles. No claim and no failure of another host is read.

use tokio::time::sleep;

use super::{Agent, Outcome, or_stop};
use crate::config::Config;
use crate::journal::phase::Phase;
use crate::provider::{Configurations, Provider};
use crate::supplier::OfferWait;
use crate::telemetry::Awaited;
use longshore_core::failure::Failure;

impl Agent {
    /// Waits until the registries offer something that they did not at the last plan; returns true where the
    /// configuration is to be read before the next one. `failure` is that of the plan, which ends the wait after
    /// `registry-wait`.
    pub(super) async fn await_modules(
        &mut self,
        awaited: Awaited,
        failure: Failure,
        config: &Config,
        configurations: &impl Configurations,
    ) -> Result<bool, Outcome> {
        if self.journal.phase() == Phase::Planning {
            self.enter(Phase::Acquiring)?;
        }
        let mut wait = match self.awaiting.take() {
            Some(wait) => wait,
            None => {
                tracing::info!(
                    driver = awaited.driver,
                    kernel = awaited.kernel,
                    "waiting for {awaited}, for {} s at most: {}",
                    config.registry_wait.as_secs(),
                    failure.one_line()
                );
                self.context.telemetry.awaits(Some(awaited));
                OfferWait::begin(config.registry_wait)
            }
        };
        let provider = configurations.provider(config);
        while let Some(pause) = wait.pause() {
            let (stop, renewal) = (self.stop.clone(), self.renewal.clone());
            tokio::select! {
                biased;
                () = stop.wait() => return Err(Outcome::Stopped),
                () = renewal.asked() => {
                    self.awaiting = Some(wait);
                    return Ok(true);
                }
                () = sleep(pause) => {}
            }
            let asked = async { Ok(provider.offered().await) };
            if wait.is_new(or_stop(&self.stop, asked).await?) {
                tracing::info!("a registry has a set after {} s", wait.seconds());
                self.awaiting = Some(wait);
                return Ok(false);
            }
        }
        tracing::warn!("no registry has the modules after {} s", wait.seconds());
        Err(Outcome::Failed(failure))
    }

    /// Ends the wait: the modules are there, or nothing waits for them any more.
    pub(super) fn awaits_no_longer(&mut self) {
        self.awaiting = None;
        self.context.telemetry.awaits(None);
    }
}
