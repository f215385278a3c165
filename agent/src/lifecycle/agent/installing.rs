//! Installing: from the plan, which is made again once all is acquired, to Ready.

use super::{Agent, Base, Outcome, change, or_stop};
use crate::catalog::{AvailableSet, Catalog};
use crate::config::Config;
use crate::engine::Stopped;
use crate::journal::phase::Phase;
use crate::journal::{Journal, JournalEntry, PlanSummary};
use crate::plan::{Plan, Severity};
use crate::provider::{Configurations, Gathered, Provider};
use crate::steps::{LoadModule, Step};
use crate::telemetry::{DriverInfo, Origin};
use longshore_core::failure::{Failure, FailureKind};

impl Agent {
    /// Installs the driver that the configuration wants, which may change while that is held.
    pub(super) async fn install_wanted(
        &mut self,
        config: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        let ended = self.install_until(config, configurations).await;
        self.awaits_no_longer();
        ended
    }

    async fn install_until(
        &mut self,
        config: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        loop {
            let installed = self.install(&configurations.provider(config)).await;
            let renewed = match installed {
                Err(Outcome::Again { renewed }) => renewed,
                Err(Outcome::NoGpu) => self.idle().await?,
                Err(Outcome::Unpublished(awaited, failure)) => {
                    self.await_modules(*awaited, failure, config, configurations).await?
                }
                ended => return ended,
            };
            if renewed {
                self.read_held(config, configurations).await?;
            }
        }
    }

    pub(super) async fn install(&mut self, provider: &impl Provider) -> Result<(), Outcome> {
        let plan = self.decide(provider).await?;
        let plan = self.complete(provider, plan).await?;
        let (going, first) = (change::going(&self.journal, &plan), self.journal.next_seq());
        if going.is_empty() && self.journal.state().previous.is_empty() {
            self.apply(&plan).await?;
        } else if let Some(failure) = self.refused_before(&plan) {
            return Err(Outcome::Failed(failure));
        } else {
            self.exchange(&plan, going, Phase::InUse).await?;
        }
        self.held_for = None;
        self.ready(&plan, first)?;
        self.tell(provider).await;
        Ok(())
    }

    /// Returns a plan of which nothing is left to be acquired.
    pub(super) async fn complete(
        &mut self,
        provider: &impl Provider,
        plan: Plan,
    ) -> Result<Plan, Outcome> {
        if plan.idle {
            return Err(self.without_gpu(&plan));
        }
        if let (Some(awaited), Some(failure)) = (provider.awaits(&plan), plan.refusal()) {
            return Err(Outcome::Unpublished(Box::new(awaited), failure));
        }
        let mut plan = refused(plan)?;
        if !plan.acquire.is_empty() {
            let ready = self.journal.phase() == Phase::Ready;
            if !ready {
                self.enter(Phase::Acquiring)?;
            }
            self.awaits_no_longer();
            or_stop(&self.stop, provider.acquire(&plan)).await?;
            let again =
                if ready { self.plan(provider).await? } else { self.decide(provider).await? };
            plan = refused(again)?;
        }
        if !plan.exact || !plan.acquire.is_empty() {
            return Err(Outcome::Failed(not_exact(&plan)));
        }
        Ok(plan)
    }

    /// Carries out a plan that replaces nothing.
    pub(super) async fn apply(&mut self, plan: &Plan) -> Result<(), Outcome> {
        self.enter(Phase::Installing)?;
        self.journal.carry_out(PlanSummary::from(plan))?;
        let stop = self.stop.clone();
        let steps = plan.install.clone();
        let applied = self.on_engine(move |engine, journal| engine.apply(&steps, journal, &stop));
        match applied.await? {
            Ok(()) => Ok(()),
            Err(Stopped::Cancelled) => Err(Outcome::Stopped),
            Err(Stopped::Failed(failure)) => Err(Outcome::Failed(failure)),
        }
    }

    /// Enters Ready, and logs the time it took. Entries from number `first` on were made for it.
    pub(super) fn ready(&mut self, plan: &Plan, first: u64) -> Result<(), Failure> {
        let (of_driver, others): (Vec<_>, Vec<_>) = self.journal.live().partition(|entry| {
            LoadModule::recorded(&entry.step).is_some_and(LoadModule::is_of_driver)
        });
        let is_new = |entry: &&&JournalEntry| entry.seq >= first;
        let put_right = others.iter().filter(is_new).count();
        let how = match (of_driver.iter().filter(is_new).count(), put_right) {
            (0, 0) => "adopted as it was".to_owned(),
            (0, 1) => "adopted; 1 missing step carried out".to_owned(),
            (0, n) => format!("adopted; {n} missing steps carried out"),
            (n, _) => format!("{n} of its modules loaded"),
        };
        let is_ours = !of_driver.is_empty();
        self.context.telemetry.driver(installed(plan, &self.journal, first));
        self.base = Base::from_plan(plan);
        self.enter(Phase::Ready)?;
        self.context.conduct.held.over();
        let version = &plan.driver_version;
        let (what, since) = self.asked;
        let ms = since.elapsed().as_millis();
        tracing::info!(
            driver = version,
            ms,
            "driver {version} is ready ({how}), {ms} ms after {what}"
        );
        if !is_ours {
            tracing::warn!(
                "driver {version} was loaded by another program: it stays when this agent ends"
            );
        }
        Ok(())
    }

    /// Reports the installed driver to the provider; a stop does not wait for it.
    pub(super) async fn tell(&self, provider: &impl Provider) {
        let Some(plan) = self.journal.state().plan.clone() else { return };
        let steps: Vec<Step> = self.journal.live().map(|entry| entry.step.step()).collect();
        tokio::select! {
            biased;
            () = self.stop.wait() => {}
            () = provider.installed(&plan, &steps) => {}
        }
    }

    /// Reads the host and makes a plan.
    pub(super) async fn decide(&mut self, provider: &impl Provider) -> Result<Plan, Outcome> {
        let gathered = or_stop(&self.stop, provider.gather()).await?;
        self.enter(Phase::Planning)?;
        Ok(self.planned(provider, &gathered)?)
    }

    /// The same while the driver is Ready, which it stays.
    pub(super) async fn plan(&self, provider: &impl Provider) -> Result<Plan, Outcome> {
        let gathered = or_stop(&self.stop, provider.gather()).await?;
        Ok(self.planned(provider, &gathered)?)
    }

    /// Makes the plan, and warns of the sources that it goes on without.
    fn planned(&self, provider: &impl Provider, gathered: &Gathered) -> Result<Plan, Failure> {
        let plan = provider.plan(gathered)?;
        gathered.catalog.warn_of_failures();
        let telemetry = &self.context.telemetry;
        telemetry.wanted(&plan.driver_version, plan.is_prebuilt());
        telemetry.planned(&plan.findings, patches(&plan.install, &gathered.catalog));
        Ok(plan)
    }
}

/// Returns the names of the patches that the modules of `steps` were compiled with, as far as their set is in the store.
fn patches(steps: &[Step], catalog: &Catalog) -> Vec<String> {
    let nvidia = steps.iter().filter_map(LoadModule::from_step).find(|load| load.name == "nvidia");
    let Some(digest) = nvidia.and_then(LoadModule::digest) else { return Vec::new() };
    let is_it = |set: &&AvailableSet| {
        set.place.is_store() && set.set.modules.iter().any(|m| m.sha256 == digest)
    };
    let set = catalog.sets.iter().find(is_it);
    set.map(|set| set.set.key.patches.keys().cloned().collect()).unwrap_or_default()
}

/// Returns the description of the driver that `plan` installed with the entries from number `first`
/// on.
fn installed(plan: &Plan, journal: &Journal, first: u64) -> DriverInfo {
    let is_of_driver = |module: &&LoadModule| module.is_of_driver();
    let mut planned = plan.install.iter().filter_map(LoadModule::from_step).filter(is_of_driver);
    let nvidia = planned.find(|module| module.name == "nvidia");
    let entries = journal.live().filter(|entry| entry.seq >= first);
    let mut loaded = entries.filter_map(|e| LoadModule::recorded(&e.step)).filter(is_of_driver);
    DriverInfo {
        version: plan.driver_version.clone(),
        flavour: plan.flavour.to_string(),
        kernel: plan.kernel_release.clone(),
        module_digest: nvidia.and_then(LoadModule::digest).map(str::to_owned),
        origin: loaded.next().is_none().then_some(Origin::Adopted),
    }
}

/// Returns the plan, unless preflight refused it: the gravest refusal, which comes first, ends the
/// run and is reported then; the others are logged.
fn refused(plan: Plan) -> Result<Plan, Outcome> {
    let refusals = plan.findings.iter().filter(|f| f.severity == Severity::Refusal);
    for finding in refusals.skip(1) {
        tracing::error!("{}: {}; remedy: {}", finding.code, finding.detail, finding.remedy);
    }
    match plan.refusal() {
        Some(failure) => Err(Outcome::Failed(failure)),
        None => Ok(plan),
    }
}

fn not_exact(plan: &Plan) -> Failure {
    let left = plan.acquire.len();
    Failure::new(
        FailureKind::Bug,
        format!(
            "planning again after acquiring everything: the plan is {}exact and still wants {left} \
             things acquired",
            if plan.exact { "" } else { "not " }
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::SetPlace;
    use crate::steps::ModuleOrigin;
    use longshore_modules::testing::set;

    fn load(name: &str, sha256: &str) -> Step {
        let origin = ModuleOrigin::Driver { sha256: sha256.to_owned() };
        let (name, parameters) = (name.to_owned(), String::new());
        Step::LoadModule(LoadModule { name, origin, parameters, version: None, srcversion: None })
    }

    #[test]
    fn patches_are_those_of_the_set_that_is_loaded() {
        let mut patched = set();
        patched.key.patches = [("gcc-14".to_owned(), "4".repeat(64))].into();
        let sha256 = patched.modules[0].sha256.clone();
        let mut catalog = Catalog::without_sources("not asked");
        catalog.sets = vec![AvailableSet { set: patched, place: SetPlace::store() }];
        assert_eq!(patches(&[load("drm", ""), load("nvidia", &sha256)], &catalog), ["gcc-14"]);
        for (steps, why) in [
            (vec![load("nvidia", &"5".repeat(64))], "another set"),
            (vec![load("nvidia_uvm", &sha256)], "no nvidia module"),
            (Vec::new(), "an adopted driver"),
        ] {
            assert!(patches(&steps, &catalog).is_empty(), "{why}");
        }
    }
}
