//! A change by SIGHUP that the driver's users postponed: the agent stays Ready with the installed driver,
//! and tries the change again when they are gone.

use std::time::{Duration, Instant};

use super::held::{LONGEST, LONGEST_LOOK};
use super::{Agent, Outcome};
use crate::config::Config;
use crate::provider::Configurations;
use longshore_host::in_use::InUse;

/// A change that waits.
pub(super) struct Postponed {
    /// The configuration that wants it.
    next: Config,
    /// The users, as they were seen last.
    in_use: InUse,
    wait: Duration,
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
        // Users that /proc does not show are found out only by another try.
        let wait = self.held_for.unwrap_or(self.world.conduct.interval);
        self.held_for = Some((wait * 2).min(LONGEST));
        tracing::warn!("the change is made when the users of the installed driver are gone");
        self.world.conduct.held.waits(&in_use);
        self.postponed = Some(Postponed { next, in_use, wait, at: Instant::now() + wait });
    }

    /// Ends the wait of a change that is no longer wanted.
    pub(super) fn no_longer_postponed(&mut self) {
        if self.postponed.take().is_some() {
            self.world.conduct.held.over();
        }
    }

    /// Returns the time until the next look at the users; None if no change waits for them.
    pub(super) fn until_next_look(&self) -> Option<Duration> {
        let at = self.postponed.as_ref()?.at;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Looks at the users that a change waits for, and returns true if none is left.
    pub(super) async fn is_driver_free(&mut self) -> bool {
        let found = self.users().await;
        let interval = self.world.conduct.interval;
        let Some(postponed) = &mut self.postponed else { return false };
        if found.users.is_empty() {
            return true;
        }
        self.held_for = None;
        postponed.wait = (postponed.wait * 2).min(LONGEST_LOOK);
        if found.users != postponed.in_use.users {
            postponed.wait = interval;
            postponed.in_use.users = found.users;
            postponed.in_use.unseen = found.unseen;
            tracing::warn!("still waiting for the users of the driver: {}", postponed.in_use);
            self.world.conduct.held.waits(&postponed.in_use);
        }
        postponed.at = Instant::now() + postponed.wait;
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
        self.follow_next(next, running, configurations).await?;
        if self.postponed.is_none() {
            self.world.conduct.held.over();
        }
        Ok(())
    }
}
