//! Replacement of the installed driver: the entries to undo, the exchange, and SIGHUP, which
//! requests it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reading::{
    UNNAMED, UNUSABLE, next as read_next, takes_restart, warn_of, warn_of_restart,
};
use super::{Agent, Outcome, is_of_driver, or_stop};
use crate::config::Config;
use crate::engine::{Engine, NotExchanged, verify_available, with_mounts_on};
use crate::journal::phase::Phase;
use crate::journal::{Journal, PlanSummary, Refused};
use crate::plan::Plan;
use crate::provider::{Configurations, Provider};
use crate::steps::{Next, PublishSpec, Recorded, Step, WriteParameter};
use longshore_core::bounded_call::{self, NoResult};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_host::facts::in_use::InUse;

/// Time limit for a change to wait for the driver's users: enough for one that only queries it,
/// such as nvidia-smi, and short compared with SIGTERM's.
const USERS: Duration = Duration::from_secs(2);

impl Agent {
    /// Follows the configuration as it is now. A failure is only a warning as long as the installed
    /// driver stays.
    pub(super) async fn renew(
        &mut self,
        running: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        let is_whole = self.renewal.take_whole();
        self.asked = (if is_whole { "SIGHUP" } else { "another support table" }, Instant::now());
        let read = async { Ok(read_next(self.wanted(running), configurations, is_whole).await) };
        let mut next = match or_stop(&self.stop, read).await? {
            Ok(next) => next,
            Err(failure) => {
                self.context.telemetry.failed(&failure);
                warn_of(&failure, UNUSABLE);
                return Ok(());
            }
        };
        let settled = async { Ok(Self::settle_once(&mut next, configurations).await) };
        if let Err(failure) = or_stop(&self.stop, settled).await? {
            self.context.telemetry.failed(&failure);
            warn_of(&failure, UNNAMED);
            return Ok(());
        }
        // A valid configuration takes the place of the one that wanted a postponed change.
        self.no_longer_postponed();
        if next == *running {
            tracing::info!("the configuration has not changed");
            return Ok(());
        }
        if let Some(what) = takes_restart(running, &next) {
            warn_of_restart(what);
            return Ok(());
        }
        self.held_for = None;
        self.follow_next(next, running, configurations).await
    }

    /// Changes to the driver that `next` wants.
    pub(super) async fn follow_next(
        &mut self,
        next: Config,
        running: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        self.refused_by = None;
        // The new time limits are for the change itself.
        self.follow(&next);
        let changed = self.change(&configurations.provider(&next)).await;
        match changed {
            Err(Outcome::Failed(failure) | Outcome::Unpublished(_, failure))
                if self.journal.state().whole =>
            {
                self.follow(running);
                self.context.telemetry.failed(&failure);
                warn_of(&failure, "the running configuration and its driver stay");
                if self.journal.phase() != Phase::Ready {
                    // The modules were loaded anew.
                    self.base = self.base.anew();
                    self.enter(Phase::Ready)?;
                }
                self.postpone(next);
                return Ok(());
            }
            other => other?,
        }
        self.held_for = None;
        configurations.follows(&next);
        *running = next;
        Ok(())
    }

    /// Goes from Ready to Ready with the driver that another configuration wants. Until that is
    /// available completely, the installed driver stays as it is, and Ready.
    async fn change(&mut self, provider: &impl Provider) -> Result<(), Outcome> {
        let plan = self.plan(provider).await?;
        let plan = self.complete(provider, plan).await?;
        let (going, first) = (going(&self.journal, &plan), self.journal.next_seq());
        if going.is_empty() && self.holds(&plan).await? {
            tracing::info!("driver {} is already the wanted one", plan.driver_version);
            self.journal.carry_out(PlanSummary::from(&plan))?;
            self.base.follow(&plan);
            return Ok(());
        }
        self.verify_available(&plan).await?;
        self.exchange(&plan, going, Phase::Ready).await?;
        self.ready(&plan, first)?;
        self.tell(provider).await;
        Ok(())
    }

    /// Verifies all store content of the plan: reading a driver that was never exposed takes
    /// seconds, during which the installed one is Ready.
    async fn verify_available(&mut self, plan: &Plan) -> Result<(), Outcome> {
        let since = Instant::now();
        let (images, steps) = (Arc::clone(&self.context.images), plan.install.clone());
        let limit = self.context.step_limit;
        let look = bounded_call::off_runtime(limit, move || verify_available(&*images, &steps));
        or_stop(&self.stop, async {
            match look.await {
                Err(NoResult::Late) => {
                    let cause = format!(
                        "reading the next driver has not come to its end in {} s: the store's disk \
                         does not answer",
                        limit.as_secs_f64()
                    );
                    let failure = Failure::new(FailureKind::Preflight, cause);
                    Err(failure.remedy("see the kernel's log (dmesg)"))
                }
                looked => looked.or_fail(FailureKind::Bug, || "reading the next driver")?,
            }
        })
        .await?;
        let (version, ms) = (&plan.driver_version, since.elapsed().as_millis());
        tracing::info!(driver = version, ms, "driver {version} is available ({ms} ms)");
        Ok(())
    }

    /// Carries out a plan that replaces something installed. If that is in use, nothing is changed,
    /// and the next phase is `busy`.
    pub(super) async fn exchange(
        &mut self,
        plan: &Plan,
        going: BTreeSet<u64>,
        busy: Phase,
    ) -> Result<(), Outcome> {
        for replaced in &plan.replaces {
            tracing::info!("unloading {}: {}", replaced.module, replaced.reason);
        }
        self.change = name_of(self.journal.state().plan.as_ref(), plan);
        self.keep_confirmation().await?;
        self.enter(Phase::Changing)?;
        let stop = self.stop.clone();
        let steps = plan.install.clone();
        let in_use_wait = self.context.in_use_wait.at_most(USERS);
        let exchanged = self.on_engine(move |engine, journal| {
            let engine = Engine { in_use_wait, ..*engine };
            let exchanged =
                engine.exchange(&|entry| going.contains(&entry.seq), &steps, journal, &stop);
            if exchanged.is_ok() {
                engine.confirm_again(journal);
            }
            exchanged
        });
        match exchanged.await? {
            Ok(()) => Ok(self.journal.carry_out(PlanSummary::from(plan))?),
            Err(NotExchanged::Cancelled) => Err(Outcome::Stopped),
            Err(NotExchanged::Kept(failure) | NotExchanged::Lost(failure)) => {
                Err(Outcome::Failed(failure))
            }
            Err(NotExchanged::RolledBack(failure)) => {
                let no_device = failure.kind() == FailureKind::NoDevice;
                if no_device || failure.kind() == FailureKind::KernelRefused {
                    let loads = loads(plan).cloned().collect();
                    let why = failure.one_line();
                    self.journal.refuse(Refused { loads, why, no_device })?;
                }
                Err(Outcome::Failed(failure))
            }
            Err(NotExchanged::InUse(in_use))
                if busy == Phase::InUse && self.context.conduct.waits =>
            {
                self.enter(busy)?;
                Err(self.hold(&in_use, plan).await)
            }
            Err(NotExchanged::InUse(in_use)) => {
                self.enter(busy)?;
                let failure = busy_with(&in_use, plan);
                self.refused_by = Some(in_use);
                Err(Outcome::Failed(failure))
            }
        }
    }

    /// Returns the reason not to try the plan's driver: the kernel refused the same one before, in
    /// this boot and as a replacement of the installed one.
    pub(super) fn refused_before(&self, plan: &Plan) -> Option<Failure> {
        let refused =
            self.journal.state().refused.as_ref().filter(|_| self.journal.state().whole)?;
        let same = refused.loads.len() == loads(plan).count()
            && refused.loads.iter().zip(loads(plan)).all(|(then, now)| then.is_same(now));
        same.then(|| {
            let kind = match refused.no_device {
                true => FailureKind::NoDevice,
                false => FailureKind::KernelRefused,
            };
            let version = &plan.driver_version;
            let cause =
                format!("driver {version} failed before and is not tried again: {}", refused.why);
            Failure::new(kind, cause).remedy(
                "ask for another version, flavour or parameters; to try the same once more, run \
                 `longshore unload` and start again",
            )
        })
    }

    async fn holds(&mut self, plan: &Plan) -> Result<bool, Failure> {
        let steps = plan.install.clone();
        self.on_engine(move |engine, journal| engine.holds(&steps, journal)).await
    }
}

/// Returns the numbers of the journal's entries that the plan has no use for. None if the plan only
/// adds to them, or finds them whole.
pub(super) fn going(journal: &Journal, plan: &Plan) -> BTreeSet<u64> {
    let going = journal.live().filter(|entry| !stays(&entry.step, plan));
    with_mounts_on(journal, going.map(|entry| entry.seq).collect())
}

/// Returns the plan's loads of the driver's modules.
fn loads(plan: &Plan) -> impl Iterator<Item = &Step> {
    plan.install.iter().filter(|step| is_of_driver(step))
}

/// True if the plan wants a step's effect, or is not harmed by it.
fn stays(step: &Recorded, plan: &Plan) -> bool {
    let replaced = |name: &str| plan.replaces.iter().any(|replaced| replaced.module == name);
    let own = without_label(step.step());
    let wanted = || plan.install.iter().any(|wanted| without_label(wanted.clone()) == own);
    let mut written = plan.install.iter().filter_map(WriteParameter::from_step);
    match step.properties().next {
        Next::AnyDriver => true,
        Next::Overwritten(path) => written.any(|wanted| wanted.path == path),
        Next::RewrittenUnlessReplaced(root, module) => {
            let mut published = plan.install.iter().filter_map(PublishSpec::from_step);
            published.any(|wanted| wanted.host_root == root) && !replaced(module)
        }
        Next::UnlessReplaced(module) => !replaced(module),
        Next::Wanted => wanted(),
        Next::WantedUnlessReplaced(module) => wanted() && !replaced(module),
    }
}

/// Returns the name of a change, for people who wait for it.
fn name_of(installed: Option<&PlanSummary>, plan: &Plan) -> String {
    let to = &plan.driver_version;
    match installed.map(|installed| &installed.driver_version) {
        Some(from) if from != to => format!("driver {from} to {to}"),
        Some(_) => format!("driver {to} in another build or with other parameters"),
        None => format!("driver {to} instead of the loaded one"),
    }
}

/// Returns a step without the label of what it mounts, which counts only when the mount is made: a mount that is
/// there stays under its consumers.
fn without_label(mut step: Step) -> Step {
    match &mut step {
        Step::MountRoot(mount) => mount.label = None,
        Step::MountTmpfs(mount) => mount.label = None,
        _ => {}
    }
    step
}

/// Failure of a change because the installed driver is in use.
fn busy_with(in_use: &InUse, plan: &Plan) -> Failure {
    let why = plan.replaces.first().map_or("it has to go", |replaced| &replaced.reason);
    let cause = format!("the driver is in use and stays as it is, though {why}: {in_use}");
    Failure::new(FailureKind::InUse, cause)
        .remedy("stop its users (drain the node) and try again; the driver stays usable")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_about_deadlines_has_the_wait() {
        longshore_core::testing::assert_in_page("changed for another", super::USERS);
    }
}

#[cfg(test)]
mod restarts {
    use super::*;
    use crate::config::settings::{Change, Setting};
    use crate::config::{Fragment, load};

    /// Loads a configuration with keys that do not change the policy, too.
    fn loaded(name: &str, value: &str) -> Option<Config> {
        let env = |asked: &str| match asked {
            asked if asked == name => Some(value.to_owned()),
            "LONGSHORE_REQUIRE_SIGNATURE" => Some("false".to_owned()),
            "LONGSHORE_SIGNATURE_KEYS" => Some("/key.pub".to_owned()),
            // Neither is taken without the other.
            "LONGSHORE_LISTEN_CERTIFICATE" => Some("/tls.crt".to_owned()),
            "LONGSHORE_LISTEN_KEY" => Some("/tls.key".to_owned()),
            _ => None,
        };
        load(Fragment::default(), &env, None).ok()
    }

    /// Returns values of a type.
    fn values(kind: &str) -> &'static [&'static str] {
        match kind {
            "path" | "path, or off" => &["/elsewhere"],
            "true or false" => &["true", "false"],
            "address and port, unix:PATH, or off" => &["off"],
            "auto, on or off" => &["on"],
            "auto or off" => &["off"],
            "exit or wait" => &["wait"],
            "warn or refuse" => &["warn", "refuse"],
            "number from 1 to 65535" => &["3"],
            "size, such as 5GiB, or none" => &["none"],
            "version, branch or newest" => &["470"],
            _ if kind.starts_with("span of time") => &["7s", "9m"],
            _ => &[],
        }
    }

    #[test]
    fn settings_that_need_a_restart_are_those_of_the_tables() {
        let running = loaded("", "").expect("a configuration");
        let (mut restarts, mut followed) = (0, 0);
        for setting in Setting::all() {
            let Some(variable) = setting.variables().first() else { continue };
            let of_value = |value: &&str| loaded(variable, value);
            let changed = values(setting.kind()).iter().filter_map(of_value);
            let Some(next) = changed.into_iter().find(|next| *next != running) else {
                assert_ne!(setting.change(), Change::Restart, "{variable}: no value was tried");
                continue;
            };
            let restart = takes_restart(&running, &next).is_some();
            match setting.change() {
                Change::Restart => restarts += 1,
                Change::Followed => followed += 1,
                Change::OnlyAtStart => continue,
            }
            assert_eq!(restart, setting.change() == Change::Restart, "{variable}");
        }
        assert!(restarts >= 12 && followed >= 20, "{restarts} and {followed} were compared");
    }
}
