//! A change by SIGHUP that the driver's users postponed: the agent stays Ready with the installed driver,
//! and tries the change again when they are gone.

use std::time::{Duration, Instant};

use super::waiting::{Look, Waiting};
use super::{Agent, Outcome};
use crate::config::Config;
use crate::provider::Configurations;

/// Pause after a try that failed for another reason than users, in intervals: one minute.
const APART: u32 = 30;

/// A change that waits.
pub(super) struct Postponed {
    /// The configuration that wants it.
    next: Config,
    waiting: Waiting,
    /// Time of the next look at the users.
    at: Instant,
}

impl Agent {
    /// Keeps a change for later where the configuration that wants it waits for users.
    pub(super) fn postpone(&mut self, next: Config) {
        let Some(in_use) = self.refused_by.take() else { return };
        if !next.operator.wait_to_change {
            return;
        }
        tracing::warn!("the change is made when the users of the installed driver are gone");
        self.context.telemetry.holders(Some(&in_use));
        self.context.conduct.held.waits(&in_use, &self.change);
        let waiting = self.wait_for(in_use);
        let at = Instant::now() + waiting.wait.min(self.context.conduct.held.look_within());
        self.postponed = Some(Postponed { next, waiting, at });
    }

    /// Returns the configuration that a postponed change wants, else the running one: another support table alone does not
    /// withdraw that change.
    pub(super) fn wanted<'a>(&'a self, running: &'a Config) -> &'a Config {
        self.postponed.as_ref().map_or(running, |postponed| &postponed.next)
    }

    /// Ends the wait of a change that is no longer wanted.
    pub(super) fn no_longer_postponed(&mut self) {
        if self.postponed.take().is_some() {
            self.context.telemetry.holders(None);
            self.context.conduct.held.over();
        }
    }

    /// Returns the time until the next look at the users; None if no change waits for them.
    pub(super) fn until_next_look(&self) -> Option<Duration> {
        let at = self.postponed.as_ref()?.at;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Looks at the holders that a change waits for, and returns true if none is left.
    pub(super) async fn is_driver_free(&mut self) -> bool {
        let seen = self.holders().await;
        let Some(Postponed { waiting, at, .. }) = &mut self.postponed else { return false };
        let now = Instant::now();
        match waiting.look(seen, now) {
            Look::Free => {
                self.context.conduct.held.tries(&self.change);
                return true;
            }
            Look::Same => {}
            Look::Changed => {
                let in_use = &waiting.in_use;
                tracing::warn!("still waiting for the users of the driver: {in_use}");
                self.context.telemetry.holders(Some(in_use));
                self.context.conduct.held.waits(in_use, &self.change);
            }
        }
        *at = now + waiting.wait.min(self.context.conduct.held.look_within());
        false
    }

    /// Tries a postponed change again. A drain that was asked for stays wanted meanwhile.
    pub(super) async fn retry(
        &mut self,
        running: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        self.asked = ("the end of its users", Instant::now());
        let Some(Postponed { next, .. }) = self.postponed.take() else { return Ok(()) };
        self.follow_next(next.clone(), running, configurations).await?;
        if self.postponed.is_some() {
            return Ok(());
        }
        self.context.conduct.held.over();
        match next == *running {
            true => {}
            // Pods that start meanwhile would find no driver.
            false if self.base.is_anew() => tracing::warn!(
                "the change is not tried again before SIGHUP: the installed driver was unloaded for it"
            ),
            false => self.try_again(next),
        }
        Ok(())
    }

    /// Keeps a change that failed before the installed driver was touched, which may pass.
    fn try_again(&mut self, next: Config) {
        let pause = self.context.conduct.interval * APART;
        tracing::warn!("the change is tried again in {} s", pause.as_secs());
        let waiting = Waiting::none(self.context.conduct.interval);
        self.postponed = Some(Postponed { next, waiting, at: Instant::now() + pause });
    }
}
