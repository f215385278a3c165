//! Stay in Ready: the driver is checked again after each event, and repaired where that is safe.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::watch::Watch;
use super::repairs::{FIRST, longer};
use super::{Agent, Outcome};
use crate::daemons::{Keeper, Kept};
use crate::engine::{Engine, Instances, Lost, Standing, Stopped, kept};
use crate::journal::JournalEntry;
use crate::journal::phase::Phase;
use crate::plan::Plan;
use crate::steps::{LoadModule, Recorded, Refresh, Step};
use crate::telemetry::{Condition, GpuCount};
use longshore_core::failure::Failure;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::privileges;
use longshore_host::facts::gpus::{self, Gpu, Taken};

/// Time limit of a check; a slower one makes the driver not ready.
const LOOK: Duration = Duration::from_secs(10);
/// Time limit for writing the features file again.
const REWRITE: Duration = Duration::from_secs(5);
/// Requests that end the stay.
pub(super) enum Next {
    /// Uninstall the driver.
    Stop,
    /// Read the configuration again.
    Renew,
    /// Try a postponed change again.
    Retry,
}

/// Steps, modules and GPUs that a Ready driver consists of.
#[derive(Debug, Default)]
pub(super) struct Base {
    /// The steps that are in effect.
    pub(super) steps: Vec<Step>,
    /// Findings of its plan that hold while it is Ready.
    pub(super) findings: Vec<Finding>,
    /// Loadings of the modules that it became Ready with; None before the first check.
    instances: Option<Instances>,
    /// The GPUs it had at any time since.
    had: BTreeMap<String, Gpu>,
}

impl Base {
    /// Returns the base of a driver that has just become Ready.
    pub(super) fn from_plan(plan: &Plan) -> Self {
        let mut base = Self::default();
        base.follow(plan);
        base
    }

    /// Returns that of the same driver after its modules were loaded anew.
    pub(super) fn anew(&self) -> Self {
        Self { steps: self.steps.clone(), findings: self.findings.clone(), ..Self::default() }
    }

    /// True if the modules were loaded anew, and not checked since.
    pub(super) fn is_anew(&self) -> bool {
        self.instances.is_none()
    }

    /// Replaces the steps: the same driver, under a newer plan.
    pub(super) fn follow(&mut self, plan: &Plan) {
        self.steps.clone_from(&plan.install);
        let unpublished = plan.findings.iter().filter(|f| f.code == Code::CdiUnpublished);
        self.findings = unpublished.cloned().collect();
    }

    /// Returns the present GPUs, and the driver's former ones that are no longer on the bus.
    fn gpus(&mut self, mut seen: Vec<Gpu>) -> Vec<Gpu> {
        let is_there = |address: &String| seen.iter().any(|gpu| gpu.address == *address);
        let gone = self.had.iter().filter(|(address, _)| !is_there(address));
        let gone: Vec<Gpu> =
            gone.map(|(_, gpu)| Gpu { taken: Taken::Gone, ..gpu.clone() }).collect();
        for gpu in seen.iter().filter(|gpu| gpu.taken == Taken::Driver) {
            self.had.insert(gpu.address.clone(), gpu.clone());
        }
        seen.extend(gone);
        seen
    }
}

/// Result of one check.
struct CheckResult {
    condition: Condition,
    /// Steps to carry out again; empty if that is not safe.
    repairable: Vec<Step>,
    is_right: bool,
    /// The loaded modules are not the driver's.
    is_replaced: bool,
    /// A module is gone together with the one that it is loaded after.
    is_unloaded: bool,
    /// No module is missing.
    has_modules: bool,
}

impl Agent {
    /// Stays Ready until a stop or a renewal is requested.
    pub(super) async fn stay(&mut self) -> Result<Next, Outcome> {
        let mut keeper = self.keep();
        self.context.rest.is(true);
        let next = self.watch(&mut keeper).await;
        self.context.rest.is(false);
        keeper.end().await;
        next
    }

    pub(super) fn keep(&self) -> Keeper {
        self.keep_running(kept(&self.journal))
    }

    fn keep_running(&self, daemons: Vec<Kept>) -> Keeper {
        let telemetry = self.context.telemetry.clone();
        Keeper::begin(&self.context.host, daemons, move |daemon, state| {
            telemetry.daemon(&daemon.name, daemon.required, state);
        })
    }

    async fn watch(&mut self, keeper: &mut Keeper) -> Result<Next, Outcome> {
        let mut watch = Watch::begin(&self.context.triggers);
        let mut wait = FIRST;
        // An earlier agent may have written the file a while ago.
        let mut refresh_at = Instant::now();
        let mut was_right = true;
        loop {
            watch.arm(&self.base.steps);
            let seen = match self.look(watch.left_out()).await {
                Ok(seen) => seen,
                Err(next) => return Ok(next),
            };
            self.tell_condition(seen.condition);
            if was_right != seen.is_right {
                was_right = seen.is_right;
                refresh_at = Instant::now();
            }
            if seen.is_replaced {
                self.withdraw_all().await?;
            }
            self.repairs.saw(seen.has_modules, seen.is_unloaded);
            if seen.is_unloaded {
                // It is loaded at once when the module below is there again.
                self.on_engine(|engine, journal| engine.end_unloaded(journal)).await?;
            }
            if self.repair(seen.repairable, keeper).await? {
                continue;
            }
            let stopped = self.stop.clone();
            let renewal = self.renewal.clone();
            let look = self.until_next_look();
            let refreshed = self.refreshed();
            let refresh = refresh_at.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                () = stopped.wait() => return Ok(Next::Stop),
                () = renewal.asked() => return Ok(Next::Renew),
                () = tokio::time::sleep(look.unwrap_or_default()), if look.is_some() => {
                    if self.is_driver_free().await {
                        return Ok(Next::Retry);
                    }
                }
                () = tokio::time::sleep(refresh), if refreshed.is_some() => {
                    refresh_at = self.refresh(refreshed).await;
                }
                () = watch.changed() => {
                    self.repairs.heard(Instant::now());
                    wait = FIRST;
                }
                // A fault may disappear without an event.
                () = tokio::time::sleep(wait), if !seen.is_right => wait = longer(wait),
            }
            if seen.is_right {
                wait = FIRST;
            }
        }
    }

    /// Returns the step of the driver whose effect expires unless it is written again.
    pub(super) fn refreshed(&self) -> Option<Step> {
        let mut steps = self.journal.live().map(|entry| &entry.step);
        steps.find(|step| step.properties().refresh.is_some()).map(Recorded::step)
    }

    /// Writes the step's effect again, before it expires; returns the time of the next write.
    pub(super) async fn refresh(&self, step: Option<Step>) -> Instant {
        let now = Instant::now();
        let Some(step) = step else { return now };
        let Some(Refresh { every, name, .. }) = step.properties().refresh else { return now };
        let host = Arc::clone(&self.context.host);
        let state = self.context.telemetry.live().state();
        let write = privileges::run_privileged(move || {
            step.properties().refresh.map_or(Ok(()), |refresh| refresh.step.refresh(&*host, &state))
        });
        match tokio::time::timeout(REWRITE, write).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!("the {name} expires: {error}"),
            Ok(Err(error)) => tracing::warn!("the {name} expires: {error}"),
            Err(_) => tracing::warn!("the {name} expires: writing it hangs"),
        }
        now + every
    }

    /// Checks the driver on a thread that may block; handles requests meanwhile.
    async fn look(&mut self, left_out: &[Finding]) -> Result<CheckResult, Next> {
        let entries: Vec<JournalEntry> = self.journal.live().cloned().collect();
        let (steps, instances) = (self.base.steps.clone(), self.base.instances.clone());
        let context = self.context.clone();
        let work = move || {
            let engine = context.engine();
            let instances = match instances {
                Some(instances) => instances,
                None => engine.instances(&steps, &entries)?,
            };
            let standing = engine.look_again(&steps, &entries, &instances);
            Ok((standing, instances))
        };
        let (stop, renewal) = (self.stop.clone(), self.renewal.clone());
        let mut looking = pin!(privileges::run_privileged(work));
        let mut late = pin!(tokio::time::sleep(LOOK));
        let mut is_late = false;
        loop {
            let looked: std::io::Result<Result<_, longshore_host::VerbError>> = tokio::select! {
                biased;
                () = stop.wait() => return Err(Next::Stop),
                () = renewal.asked() => return Err(Next::Renew),
                looked = &mut looking => looked,
                () = &mut late, if !is_late => {
                    is_late = true;
                    self.tell_condition(unanswered(left_out));
                    continue;
                }
            };
            return Ok(match looked {
                Ok(Ok((standing, instances))) => {
                    self.base.instances = Some(instances);
                    self.judge(standing, left_out)
                }
                Ok(Err(error)) => unseen(&error, left_out),
                Err(error) => unseen(&error, left_out),
            });
        }
    }

    /// Judges the findings of a check.
    fn judge(&mut self, standing: Standing, left_out: &[Finding]) -> CheckResult {
        let Standing { modules, lost, rivals, gpus } = standing;
        let mut findings: Vec<Finding> =
            modules.iter().map(|seen| Finding::warning(Code::ModuleReplaced, seen)).collect();
        findings.extend(lost.iter().map(|lost| {
            let code = lost.step.properties().optional.unwrap_or(Code::ExposureLost);
            Finding::warning(code, &lost.detail)
        }));
        findings.extend(rivals);
        findings.extend_from_slice(&self.base.findings);
        let mut count = None;
        match gpus {
            // Without its modules the driver has no GPUs.
            _ if !modules.is_empty() => {}
            Ok(gpus) => {
                let gpus = self.base.gpus(gpus);
                count = Some(GpuCount {
                    expected: gpus.iter().filter(|gpu| gpu.is_expected()).count(),
                    bound: gpus.iter().filter(|gpu| gpu.taken == Taken::Driver).count(),
                });
                findings.extend(gpus::missing(&gpus, self.context.missing_gpus.refuses()));
            }
            Err(error) => findings.push(limited(format!("the GPUs were not compared: {error}"))),
        }
        let blocks = |finding: &&Finding| {
            finding.severity == Severity::Refusal
                || matches!(finding.code, Code::ModuleReplaced | Code::ExposureLost)
        };
        let not_ready: Vec<String> = findings.iter().filter(blocks).map(in_a_line).collect();
        findings.extend_from_slice(left_out);
        let is_right = modules.is_empty() && lost.is_empty();
        let is_safe = modules.is_empty() && !lost.iter().any(|lost| lost.covered);
        let is_module = |lost: &&Lost| LoadModule::from_step(&lost.step).is_some();
        let has_modules = !lost.iter().any(|lost| is_module(&lost));
        let is_unloaded = lost.iter().filter(is_module).any(|lost| !lost.repairable);
        let lost = lost.into_iter().filter(|lost| is_safe && lost.repairable);
        let steps = lost.map(|Lost { step, .. }| step);
        let repairable = steps.collect();
        let condition = Condition { gpus: count, findings, not_ready };
        let is_replaced = !modules.is_empty();
        CheckResult { condition, repairable, is_right, is_replaced, is_unloaded, has_modules }
    }

    /// Carries out these steps once more, as far as their budgets allow; returns true if some are in
    /// effect again. Optional steps come second: a spec names nodes.
    async fn repair(&mut self, steps: Vec<Step>, keeper: &mut Keeper) -> Result<bool, Outcome> {
        let (optional, needed): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(|step| step.properties().optional.is_some());
        let mut repaired = false;
        if !needed.is_empty() && self.repairs.needed.take(Instant::now()) {
            repaired = self.repair_needed(&needed, keeper).await?;
            self.repairs.needed.ended(repaired, Instant::now());
        }
        let entries: Vec<JournalEntry> = self.journal.live().cloned().collect();
        let mut optional = self.repairs.leave_unloaded(optional, &entries, Instant::now());
        while let Some(code) = optional.iter().find_map(|step| step.properties().optional) {
            let is_of_code = |step: &Step| step.properties().optional == Some(code);
            let (steps, others) = optional.into_iter().partition(is_of_code);
            optional = others;
            repaired |= self.repair_of(code, steps).await?;
        }
        Ok(repaired)
    }

    async fn repair_of(&mut self, code: Code, steps: Vec<Step>) -> Result<bool, Outcome> {
        if !self.repairs.optional(code).take(Instant::now()) {
            return Ok(false);
        }
        let well = self.repair_optional(&steps).await?;
        self.repairs.optional(code).ended(well, Instant::now());
        Ok(well)
    }

    /// Carries out steps that every driver needs. The daemons' keeper is idle meanwhile: daemons may
    /// depend on these steps.
    async fn repair_needed(
        &mut self,
        steps: &[Step],
        keeper: &mut Keeper,
    ) -> Result<bool, Outcome> {
        self.context.rest.is(false);
        let idle = self.keep_running(Vec::new());
        std::mem::replace(keeper, idle).end().await;
        let repaired = self.do_again(steps).await;
        *keeper = self.keep();
        self.context.rest.is(true);
        repaired
    }

    /// Carries out steps without which the driver is Ready, and stays so meanwhile.
    async fn repair_optional(&mut self, steps: &[Step]) -> Result<bool, Outcome> {
        self.context.rest.is(false);
        let (steps, stop) = (steps.to_vec(), self.stop.clone());
        let applied = self.on_engine(move |engine, journal| {
            let engine = Engine { refuses_missing_gpus: false, ..*engine };
            engine.apply(&steps, journal, &stop).map(|()| engine.holds(&steps, journal))
        });
        let repaired = match applied.await? {
            Ok(holds) => holds,
            Err(Stopped::Cancelled) => return Err(Outcome::Stopped),
            Err(Stopped::Failed(failure)) => {
                tracing::warn!("repair failed: {}", with_remedy(&failure));
                false
            }
        };
        // The driver itself was not touched.
        if let Err(failure) = self.journal.restored() {
            tracing::warn!("{}", failure.one_line());
        }
        self.context.rest.is(true);
        Ok(repaired)
    }

    async fn do_again(&mut self, steps: &[Step]) -> Result<bool, Outcome> {
        if let Err(failure) = self.enter(Phase::Changing) {
            tracing::warn!("not repaired, because it cannot be recorded: {}", failure.one_line());
            self.back_to_ready();
            return Ok(false);
        }
        let (steps, stop) = (steps.to_vec(), self.stop.clone());
        let applied = self.on_engine(move |engine, journal| {
            // A GPU that is missing is no reason not to make a node.
            let engine = Engine { refuses_missing_gpus: false, ..*engine };
            engine.apply(&steps, journal, &stop)
        });
        let well = match applied.await? {
            Ok(()) => true,
            Err(Stopped::Cancelled) => return Err(Outcome::Stopped),
            Err(Stopped::Failed(failure)) => {
                tracing::warn!("repair failed: {}", with_remedy(&failure));
                false
            }
        };
        self.back_to_ready();
        Ok(well)
    }

    /// Enters Ready again; the next check shows whether the driver is.
    fn back_to_ready(&mut self) {
        if let Err(failure) = self.enter(Phase::Ready) {
            tracing::warn!("{}", failure.one_line());
            self.context.telemetry.enter(Phase::Ready);
        }
    }

    /// Reports the driver's condition, and logs the changes in it.
    fn tell_condition(&self, condition: Condition) {
        let now = condition.findings.clone();
        let before = self.context.telemetry.condition(condition).findings;
        for finding in now.iter().filter(|finding| !before.contains(finding)) {
            let Finding { code, severity, detail, remedy } = finding;
            match severity {
                Severity::Note => tracing::info!(%code, "{code}: {detail}; remedy: {remedy}"),
                _ => tracing::warn!(%code, "{code}: {detail}; remedy: {remedy}"),
            }
        }
        for Finding { code, detail, .. } in before.iter().filter(|finding| !now.contains(finding)) {
            tracing::info!(%code, "{code}: no longer so: {detail}");
        }
    }
}

fn in_a_line(finding: &Finding) -> String {
    format!("{}: {}", finding.code, finding.detail)
}

fn limited(detail: String) -> Finding {
    Finding::note(Code::WatchLimited, detail)
}

/// Returns the condition of a host that could not be checked.
fn unseen(error: &dyn std::fmt::Display, left_out: &[Finding]) -> CheckResult {
    let mut findings = vec![limited(format!("the driver could not be checked: {error}"))];
    findings.extend_from_slice(left_out);
    let condition = Condition { findings, ..Condition::default() };
    CheckResult {
        condition,
        repairable: Vec::new(),
        is_right: false,
        is_replaced: false,
        is_unloaded: false,
        has_modules: false,
    }
}

/// Returns the condition during a check that hangs.
fn unanswered(left_out: &[Finding]) -> Condition {
    let seen = format!(
        "checking the driver has not come to its end in {} s: the kernel or a file system does not \
         answer",
        LOOK.as_secs()
    );
    let finding = limited(seen);
    let not_ready = vec![in_a_line(&finding)];
    let findings = [std::slice::from_ref(&finding), left_out].concat();
    Condition { gpus: None, findings, not_ready }
}

fn with_remedy(failure: &Failure) -> String {
    let remedy = failure.remedy_text().map(|text| format!("; remedy: {text}"));
    format!("{}{}", failure.one_line(), remedy.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_deadlines_has_the_look() {
        longshore_core::testing::assert_in_page("looked at again", LOOK);
        longshore_core::testing::assert_in_page("features file](", REWRITE);
    }
}
