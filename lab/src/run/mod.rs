//! Runs one cell from its declaration to its verdict.

pub mod heartbeat;
pub mod matrix;
pub mod report;
pub mod rest;
pub mod show;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::cell::Cell;
use crate::guest::Boot;
use crate::guest::workbench::{Workbench, hold};
use crate::host::error::Error;
use crate::judge::end;
use crate::judge::event::{Outcome, Sink, What};
use crate::judge::records::Records;
use crate::judge::timing::Timing;
use crate::run::rest::Rest;
use crate::scenarios;
use crate::vm::{Power, Vm};

/// Rounds measured where instructions are counted: every round is like the others.
const COUNTED_ROUNDS: u32 = 2;

/// Runs a cell. Returns an outcome for every error, too.
pub fn run(cell: &Cell, workbench: &Mutex<Workbench>, sink: &Sink<'_>) -> Outcome {
    let ran = || {
        // Another run on this machine would empty this run's directory.
        let cache = hold(workbench).cache().clone();
        let _alone = cache.lock(&format!("run-{}", cell.name))?;
        scenarios::scenario_of(cell)?.run(cell, workbench, sink)
    };
    let outcome = ran().unwrap_or_else(|error| Outcome::NotRun(error.to_string()));
    sink.tell(What::Verdict(outcome.clone()));
    outcome
}

/// Boots a cell's VM with a shell on the terminal instead of its scenario.
///
/// # Errors
/// Something could not be obtained or made, or QEMU could not be started.
pub fn shell(cell: &Cell, mut workbench: Workbench, sink: &Sink<'_>) -> Result<(), Error> {
    let name = format!("{}.shell", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let guest = scenarios::scenario_of(cell)?.guest(cell, &name, &mut workbench, sink)?;
    let script = include_str!("shell.sh");
    let mut spec = guest.spec(&Boot::new(script), "shell")?;
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
    let boot = timed(include_str!("timing.sh"));
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
    let script = include_str!("timing.sh");
    let name = "counted-".to_owned();
    let counted = Boot { name, counts: true, rounds: COUNTED_ROUNDS, ..Boot::new(script) };
    let [counted, timed] = measured(cell, workbench, "timing", [counted, timed(script)], sink)?;
    let read = |records| Timing::read(records).map_err(Error::Unexpected);
    Ok([read(&counted)?, read(&timed)?])
}

/// Boots a cell's VM and measures the agent's resource use while it is Ready.
///
/// # Errors
/// As [`time`].
pub fn rest(cell: &Cell, workbench: Workbench, sink: &Sink<'_>) -> Result<Rest, Error> {
    let boot = timed(include_str!("rest.sh"));
    let [records] = measured(cell, workbench, "rest", [boot], sink)?;
    Rest::read(&records).map_err(Error::Unexpected)
}

/// A boot for measuring time: podman and conmon, which read the agent's log, have a processor
/// beside the agent's, as on a host.
fn timed(script: &'static str) -> Boot {
    Boot { processors: 2, ..Boot::new(script) }
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
    let guest = scenarios::scenario_of(&cell)?.guest(&cell, &name, &mut workbench, sink)?;
    let mut all = boots.each_ref().map(|_| Records::default());
    for (boot, records) in boots.iter().zip(&mut all) {
        let evidence = guest.watch(boot, sink)?;
        if let Some(why) = end::unfinished(&cell, &evidence) {
            return Err(Error::Unexpected(why));
        }
        *records = evidence.records;
    }
    Ok(all)
}
