//! A wanted driver that cannot replace the installed one, because that is in use: the installed one
//! is served until its users are gone. An agent that ended instead would be started again, and end
//! again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::waiting::Look;
use super::{Agent, Outcome};
use crate::cluster::Successor;
use crate::config::Config;
use crate::engine::{Engine, Stopped, kept};
use crate::journal::phase::Phase;
use crate::journal::{Journal, JournalEntry};
use crate::plan::Plan;
use crate::steps::{Announces, Step, WriteStatus};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::Failure;
use longshore_core::privileges;
use longshore_host::facts::in_use::InUse;
use longshore_host::values::DriverUsers;

/// Wait before the first look at the users.
const FIRST: Duration = Duration::from_secs(2);

/// Time limit for an announcement beside a step that hangs.
const UNRECORDED: Duration = Duration::from_secs(5);

/// Receiver of changes that wait for the users of a driver: in a cluster, it asks for the node to be
/// drained.
pub trait HeldChange: Send + Sync {
    /// The change, for example `driver 535.261.03 to 550.163.01`, waits for these users. Called again when
    /// they change.
    fn waits(&self, in_use: &InUse, change: &str);
    /// The change has no users to wait for at the moment, and is tried.
    fn tries(&self, _change: &str) {}
    /// No change waits any more: the driver is Ready, or the agent is to end.
    fn over(&self);
    /// Longest time between two looks at the users.
    fn look_within(&self) -> Duration {
        Duration::MAX
    }
    /// Waits until what was asked for is withdrawn, or a time limit is over.
    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Receiver of an agent outside of a cluster: log and status alone name the users.
#[derive(Debug, Clone, Copy)]
pub struct OnlyLogged;

impl HeldChange for OnlyLogged {
    fn waits(&self, _: &InUse, _: &str) {}
    fn over(&self) {}
}

/// Source of the answer to the question that a stop asks: does another agent follow this one?
pub trait Successors: Send + Sync {
    /// Asks, within a time limit.
    fn ask(&self) -> BoxFuture<'_, Successor>;
}

/// Cluster of this process.
#[derive(Debug, Clone, Copy)]
struct OfCluster;

impl Successors for OfCluster {
    fn ask(&self) -> BoxFuture<'_, Successor> {
        Box::pin(crate::cluster::successor(&|name| std::env::var(name).ok()))
    }
}

/// Conduct of an agent in a cluster, and in the driver pod of the GPU operator.
#[derive(Clone)]
pub struct Conduct {
    /// Directory of the operator's files; None without an operator.
    pub parent: Option<PathBuf>,
    /// Waits for the users of an installed driver that another one is to replace.
    pub waits: bool,
    /// Wait before the first look at the users of the driver.
    pub interval: Duration,
    /// First pause between two questions for the version in the tag of the pod's image.
    pub asks_again: Duration,
    /// Receives changes that wait.
    pub held: Arc<dyn HeldChange>,
    /// Keeps the driver at a stop that another agent follows.
    pub keeps: bool,
    /// Tells of the agent that follows.
    pub successors: Arc<dyn Successors>,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            parent: None,
            waits: false,
            interval: FIRST,
            asks_again: FIRST,
            held: Arc::new(OnlyLogged),
            keeps: false,
            successors: Arc::new(OfCluster),
        }
    }
}

impl Conduct {
    /// Returns the conduct by these settings, with the same receiver.
    #[must_use]
    pub fn follow(&self, config: &Config) -> Self {
        let operator = &config.operator;
        let parent = config.paths.driver_root.parent().filter(|_| operator.enabled);
        let parent = parent.map(PathBuf::from);
        // Under the operator it is the driver manager that decides about the driver between two pods.
        let keeps = config.cluster.keep_for_successor && !operator.enabled;
        Self { parent, waits: operator.wait_to_change, keeps, ..self.clone() }
    }
}

/// Announces that the driver is not ready: without that file the startup probe takes any driver for the
/// configured one.
fn announce_not_ready(engine: &Engine<'_>, journal: &mut Journal, parent: &Path) {
    let step = Step::WriteStatus(WriteStatus::not_ready(parent));
    if let Err(Stopped::Failed(failure)) = engine.apply(&[step], journal, &CancelFlag::default()) {
        tracing::warn!("{}", failure.one_line());
    }
}

impl Agent {
    /// Removes what an earlier agent announced about itself, and its confirmation by the startup
    /// probe: the probe would otherwise find a driver ready that is not.
    pub(super) async fn withdraw_at_start(&mut self) -> Result<(), Failure> {
        // The probe runs anew in this container.
        self.journal.forget_announced()?;
        let Some(parent) = self.context.conduct.parent.clone() else { return Ok(()) };
        self.on_engine(move |engine, journal| {
            engine.withdraw(Announces::Agent, journal);
            for path in WriteStatus::of_agent(&parent) {
                let is_there = engine.host.status(&path).map(|found| found.is_some());
                let removed = is_there
                    .and_then(|is| if is { engine.host.remove_status(&path) } else { Ok(()) });
                if let Err(error) = removed {
                    tracing::warn!("a stale file of an earlier driver stays: {error}");
                }
            }
            announce_not_ready(engine, journal, &parent);
        })
        .await
    }

    /// Records the startup probe's confirmation of a driver that is Ready. Before that the probe has
    /// yet to run, and what it confirmed to an earlier agent is void.
    pub(super) async fn keep_confirmation(&mut self) -> Result<(), Failure> {
        let parent = self.context.conduct.parent.clone();
        let Some(parent) = parent.filter(|_| self.journal.phase() == Phase::Ready) else {
            return Ok(());
        };
        self.on_engine(move |engine, journal| engine.keep_confirmation(&parent, journal)).await
    }

    /// Announces that the driver of a failed agent, which stays, is not ready.
    pub(super) async fn leave_not_ready(&mut self) {
        if self.is_journal_lost {
            return self.leave_not_ready_unrecorded().await;
        }
        let is_left = self.journal.live().next().is_some();
        let Some(parent) = self.context.conduct.parent.clone().filter(|_| is_left) else { return };
        let announced = self.on_engine(move |engine, journal| {
            engine.withdraw(Announces::Agent, journal);
            announce_not_ready(engine, journal, &parent);
        });
        if let Err(failure) = announced.await {
            tracing::warn!("{}", failure.one_line());
        }
    }

    /// The same where a step hangs and keeps the journal: the next agent writes or removes these files
    /// anyhow.
    async fn leave_not_ready_unrecorded(&self) {
        let Some(parent) = self.context.conduct.parent.clone() else { return };
        let host = Arc::clone(&self.context.host);
        let write = move || {
            let not_ready = WriteStatus::not_ready(&parent);
            // One that fails does not keep the other from being made.
            let written = host.write_status(&not_ready.path, &not_ready.text);
            written.and(host.remove_status(&WriteStatus::confirmed_at(&parent)))
        };
        match tokio::time::timeout(UNRECORDED, privileges::run_privileged(write)).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!("{error}"),
            Ok(Err(error)) => tracing::warn!("{error}"),
            Err(_) => tracing::warn!("the driver stays announced: writing its status hangs, too"),
        }
    }

    /// Withdraws all announcements of a driver that is no longer the one that was installed.
    pub(super) async fn withdraw_all(&mut self) -> Result<(), Failure> {
        let announces =
            |e: &JournalEntry| WriteStatus::recorded(&e.step).is_some_and(WriteStatus::is_final);
        if !self.journal.live().any(announces) {
            return Ok(());
        }
        let parent = self.context.conduct.parent.clone();
        self.on_engine(move |engine, journal| {
            engine.withdraw(Announces::Agent, journal);
            engine.withdraw(Announces::Driver, journal);
            if let Some(parent) = &parent {
                announce_not_ready(engine, journal, parent);
            }
        })
        .await
    }

    /// Serves the installed driver, which is in use, until its users are gone or the configuration is
    /// to be read again; returns the reason to go on.
    pub(super) async fn hold(&mut self, in_use: &InUse, plan: &Plan) -> Outcome {
        if let Err(failure) = self.withdraw_all().await {
            return Outcome::Failed(failure);
        }
        let version = &plan.driver_version;
        tracing::warn!(
            "driver {version} waits for the users of the installed driver, which stays usable: {in_use}"
        );
        self.context.conduct.held.waits(in_use, &self.change);
        let keeper = self.keep();
        self.context.rest.is(true);
        let ended = self.until_free(in_use).await;
        self.context.rest.is(false);
        keeper.end().await;
        ended
    }

    async fn until_free(&mut self, in_use: &InUse) -> Outcome {
        let mut waiting = self.wait_for(in_use.clone());
        let mut refresh_at = Instant::now();
        loop {
            if refresh_at <= Instant::now() {
                refresh_at = self.refresh(self.refreshed()).await;
            }
            let (stop, renewal) = (self.stop.clone(), self.renewal.clone());
            let wait = waiting.wait.min(self.context.conduct.held.look_within());
            tokio::select! {
                biased;
                () = stop.wait() => return Outcome::Stopped,
                () = renewal.asked() => return Outcome::Again { renewed: true },
                () = tokio::time::sleep(wait) => {}
            }
            match waiting.look(self.holders().await, Instant::now()) {
                Look::Free => {
                    self.context.conduct.held.tries(&self.change);
                    return Outcome::Again { renewed: false };
                }
                Look::Same => {}
                Look::Changed => {
                    let now = &waiting.in_use;
                    tracing::warn!("still waiting for the users of the installed driver: {now}");
                    self.context.telemetry.holders(Some(now));
                    self.context.conduct.held.waits(now, &self.change);
                }
            }
        }
    }

    /// Returns the processes that hold the driver, without its own daemons.
    pub(super) async fn users(&self) -> DriverUsers {
        let (host, daemons) = (Arc::clone(&self.context.host), kept(&self.journal));
        let look = move || {
            let mut found = host.driver_users()?;
            for kept in &daemons {
                let own = host.daemon(&kept.daemon, &kept.mark)?.processes;
                found.users.retain(|user| !own.contains(&user.pid));
            }
            Ok::<_, longshore_host::VerbError>(found)
        };
        match privileges::run_privileged(look).await {
            Ok(Ok(found)) => found,
            // The next try shows it.
            Ok(Err(_)) | Err(_) => DriverUsers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_deadlines_has_the_limit() {
        let row = "The GPU operator's status files, at the end of an agent of which a step hangs";
        longshore_core::testing::assert_in_page(row, UNRECORDED);
    }
}
