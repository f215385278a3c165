//! Runs one cell from its declaration to its verdict.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::checks::Expected;
use crate::cluster;
use crate::cluster_upgrade;
use crate::compile;
use crate::deployed;
use crate::error::Error;
use crate::event::{Outcome, Sink, What};
use crate::guest::{Boot, Guest};
use crate::in_use;
use crate::judge::{self, Evidence};
use crate::matrix::{Cell, Scenario, Supply};
use crate::next_kernel;
use crate::operator;
use crate::operator_pod;
use crate::power;
use crate::records::Records;
use crate::rest::Rest;
use crate::start_times;
use crate::timing::Timing;
use crate::trials;
use crate::upgrade;
use crate::vm::{Power, Vm};
use crate::workbench::{Prepared, Workbench};

const POWER_CUT: &str = include_str!("../guest/power-cut.sh");
/// Rounds measured where instructions are counted: every round is like the others.
const COUNTED_ROUNDS: u32 = 2;

/// Runs a cell. Returns an outcome for every error, too.
pub fn run(cell: &Cell, workbench: &Mutex<Workbench>, sink: &Sink<'_>) -> Outcome {
    let ran = || {
        // Another run on this machine would empty this run's directory.
        let cache = hold(workbench).cache().clone();
        let _alone = cache.lock(&format!("run-{}", cell.name))?;
        match cell.scenario {
            Scenario::Build => compile::run(cell, workbench, sink),
            _ => boot(cell, workbench, sink),
        }
    };
    let outcome = ran().unwrap_or_else(|error| Outcome::NotRun(error.to_string()));
    sink.tell(What::Verdict(outcome.clone()));
    outcome
}

fn boot(cell: &Cell, workbench: &Mutex<Workbench>, sink: &Sink<'_>) -> Result<Outcome, Error> {
    let started = Instant::now();
    let mut guest = Guest::prepare(cell, &cell.name, &mut hold(workbench), sink)?;
    sink.tell(What::Prepared { took: started.elapsed() });
    let expected = expected(cell, &guest.prepared);
    if cell.scenario == Scenario::PowerCut {
        return cut_power(&guest, &expected, sink);
    }
    if cell.scenario == Scenario::Deployed {
        return deployed::run(&mut guest, &expected, sink);
    }
    if cell.scenario == Scenario::NextKernel {
        return next_kernel::run(&mut guest, sink);
    }
    let processors = if cell.from == Supply::Compile { 2 } else { 1 };
    let boot = Boot { processors, ..Boot::of(scenario(cell)) };
    if cell.from == Supply::Store {
        let first = Boot { name: "first-boot-".into(), loses_power: true, ..Boot::of(boot.script) };
        let outcome = judge::first_boot(cell, &expected, &guest.watch(&first, sink)?);
        if outcome != Outcome::Passed {
            return Ok(outcome);
        }
        guest.delivery.registry = None;
    }
    let evidence = guest.watch(&boot, sink)?;
    measure(&evidence, sink);
    if cell.scenario == Scenario::InUse
        && let Ok(value) = in_use::adoption(&evidence.records)
    {
        sink.tell(What::Measured { what: "start to Ready, adopting".into(), value });
    }
    if cell.scenario == Scenario::Upgrade {
        for (what, value) in upgrade::measured(&evidence.records) {
            sink.tell(What::Measured { what, value });
        }
    }
    for (what, value) in start_times::measured(&evidence.records) {
        sink.tell(What::Measured { what, value });
    }
    if cell.scenario == Scenario::Operator {
        for (what, value) in operator::measured(&evidence.records) {
            sink.tell(What::Measured { what, value });
        }
    }
    if cell.scenario == Scenario::OperatorPod {
        for (what, value) in operator_pod::measured(&expected, &evidence.records) {
            sink.tell(What::Measured { what, value });
        }
    }
    for (what, value) in cluster_upgrade::measured(&evidence.records) {
        sink.tell(What::Measured { what, value });
    }
    for (what, value) in cluster::measured(&evidence.records) {
        sink.tell(What::Measured { what, value });
    }
    for trial in trials::read(&evidence.records).unwrap_or_default() {
        sink.tell(What::Trial(trial));
    }
    Ok(judge::judge(cell, &expected, &evidence))
}

/// Boots the guest repeatedly: each boot recovers from the last one's loss of power, and goes on
/// until its own.
fn cut_power(guest: &Guest<'_>, expected: &Expected, sink: &Sink<'_>) -> Result<Outcome, Error> {
    let mut wrong = Vec::new();
    let mut after = "";
    for (number, cut) in power::CUTS.into_iter().chain([""]).enumerate() {
        let name = format!("boot-{}-", number + 1);
        let evidence = guest.watch(&Boot { name, after, cut, ..Boot::of(POWER_CUT) }, sink)?;
        if !after.is_empty() {
            let trial = power::recovered(guest.cell, expected, &evidence, after, cut);
            wrong.extend(trial.wrong.iter().map(|why| format!("{after}: {why}")));
            sink.tell(What::Trial(trial));
        }
        if let Some(why) = power::not_cut(guest.cell, &evidence, cut) {
            wrong.push(why);
            wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
            break;
        }
        after = cut;
    }
    Ok(if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) })
}

/// Boots a cell's VM with a shell on the terminal instead of its scenario.
///
/// # Errors
/// Something could not be obtained or made, or QEMU could not be started.
pub fn shell(cell: &Cell, mut workbench: Workbench, sink: &Sink<'_>) -> Result<(), Error> {
    let name = format!("{}.shell", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let guest = Guest::prepare(cell, &name, &mut workbench, sink)?;
    let script = include_str!("../guest/shell.sh");
    let mut spec = guest.spec(&Boot::of(script), "shell")?;
    spec.on_terminal = true;
    // An interactive shell has no deadline worth the name: seven days.
    let days = Instant::now() + Duration::from_secs(7 * 86400);
    Vm::start(&spec)?.watch(days, |_| Power::On)?;
    Ok(())
}

/// Boots a cell's VM and times the agent in it beside modprobe and rmmod.
///
/// # Errors
/// Something could not be obtained or made, or the guest did not finish.
pub fn time(cell: &Cell, workbench: Workbench, sink: &Sink<'_>) -> Result<Timing, Error> {
    let boot = timed(include_str!("../guest/timing.sh"));
    let [records] = measured(cell, workbench, "timing", [boot], sink)?;
    Timing::read(&records).map_err(Error::Unexpected)
}

/// Like [`time`], preceded by the same in a VM whose clock counts instructions executed, which are
/// the same in every run. Returns the counted result first.
///
/// # Errors
/// As [`time`].
pub fn time_and_count(
    cell: &Cell,
    workbench: Workbench,
    sink: &Sink<'_>,
) -> Result<[Timing; 2], Error> {
    let script = include_str!("../guest/timing.sh");
    let name = "counted-".to_owned();
    let counted = Boot { name, counts: true, rounds: COUNTED_ROUNDS, ..Boot::of(script) };
    let [counted, timed] = measured(cell, workbench, "timing", [counted, timed(script)], sink)?;
    let read = |records| Timing::read(records).map_err(Error::Unexpected);
    Ok([read(&counted)?, read(&timed)?])
}

/// Boots a cell's VM and measures the agent's resource use while it is Ready.
///
/// # Errors
/// As [`time`].
pub fn rest(cell: &Cell, workbench: Workbench, sink: &Sink<'_>) -> Result<Rest, Error> {
    let boot = timed(include_str!("../guest/rest.sh"));
    let [records] = measured(cell, workbench, "rest", [boot], sink)?;
    Rest::read(&records).map_err(Error::Unexpected)
}

/// A boot for measuring time: podman and conmon, which read the agent's log, have a processor
/// beside the agent's, as on a host.
fn timed(script: &'static str) -> Boot {
    Boot { processors: 2, ..Boot::of(script) }
}

/// Returns the records of a cell's guest for each of these boots.
fn measured<const N: usize>(
    cell: &Cell,
    mut workbench: Workbench,
    what: &str,
    boots: [Boot; N],
    sink: &Sink<'_>,
) -> Result<[Records; N], Error> {
    // Measuring takes longer than a cell's scenario.
    const AT_LEAST: u64 = 1800;
    let mut cell = cell.clone();
    cell.deadline_seconds = cell.deadline_seconds.max(AT_LEAST);
    let name = format!("{}.{what}", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let guest = Guest::prepare(&cell, &name, &mut workbench, sink)?;
    let mut all = boots.each_ref().map(|_| Records::default());
    for (boot, records) in boots.iter().zip(&mut all) {
        let evidence = guest.watch(boot, sink)?;
        if let Some(why) = judge::unfinished(&cell, &evidence) {
            return Err(Error::Unexpected(why));
        }
        *records = evidence.records;
    }
    Ok(all)
}

/// Locks the workbench, so that no other cell prepares meanwhile.
pub fn hold(workbench: &Mutex<Workbench>) -> std::sync::MutexGuard<'_, Workbench> {
    // A thread that panicked while holding it left only the cache behind, which is consistent.
    workbench.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the script of a cell's scenario.
pub(crate) fn scenario(cell: &Cell) -> &'static str {
    match cell.scenario {
        Scenario::RoundTrip | Scenario::Build => include_str!("../guest/round-trip.sh"),
        Scenario::Refused => include_str!("../guest/refused.sh"),
        Scenario::Interrupted => include_str!("../guest/interrupted.sh"),
        Scenario::PowerCut => POWER_CUT,
        Scenario::Ima => include_str!("../guest/ima.sh"),
        Scenario::NextKernel => next_kernel::SCRIPT,
        Scenario::InUse => include_str!("../guest/in-use.sh"),
        Scenario::Restored => include_str!("../guest/restored.sh"),
        Scenario::Deployed => deployed::SCRIPT,
        Scenario::HotPlug => include_str!("../guest/hot-plug.sh"),
        Scenario::BadInput => include_str!("../guest/bad-input.sh"),
        Scenario::DeadDisk => include_str!("../guest/dead-disk.sh"),
        Scenario::Attacked => include_str!("../guest/attacked.sh"),
        Scenario::Killed => include_str!("../guest/killed.sh"),
        Scenario::Upgrade => include_str!("../guest/upgrade.sh"),
        Scenario::Nouveau => include_str!("../guest/nouveau.sh"),
        Scenario::Peermem => include_str!("../guest/peermem.sh"),
        Scenario::Warns => include_str!("../guest/warns.sh"),
        Scenario::Operator => include_str!("../guest/operator.sh"),
        Scenario::Cluster => include_str!("../guest/cluster.sh"),
        Scenario::ClusterUpgrade => include_str!("../guest/cluster-upgrade.sh"),
        Scenario::OperatorPod => include_str!("../guest/operator-pod.sh"),
    }
}

/// Returns the driver that the guest must have.
pub(crate) fn expected(cell: &Cell, prepared: &Prepared) -> Expected {
    let of = |set| Expected::of(set, &cell.extra_modules);
    let next = prepared.seed.next.as_ref().map(|set| Box::new(of(set)));
    Expected { next, ..of(&prepared.seed.set) }
}

fn measure(evidence: &Evidence, sink: &Sink<'_>) {
    for (what, value) in measurements(evidence) {
        sink.tell(What::Measured { what, value });
    }
}

/// Returns the time from start to Ready, and the memory in use when Ready, as far as the guest came.
pub(crate) fn measurements(evidence: &Evidence) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let at = |phase: &str| evidence.reached.iter().find(|(name, _)| name == phase).map(|r| r.1);
    if let (Some(start), Some(ready)) = (at("start"), at("ready")) {
        let value = format!("{:.1} s", ready.saturating_sub(start).as_secs_f64());
        found.push(("start to Ready".to_owned(), value));
    }
    for line in evidence.records.section("ready.guest-memory").unwrap_or_default() {
        if let Some((what, value)) = line.split_once(": ") {
            found.push((what.to_owned(), value.to_owned()));
        }
    }
    for line in evidence.records.section("ready.memory").unwrap_or_default() {
        if let Some((what, value)) = line.split_once(':') {
            found.push((format!("agent {what}"), value.trim().to_owned()));
        }
    }
    found
}
