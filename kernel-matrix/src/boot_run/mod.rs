//! Cells of the rules in VMs: compiled by [`BuildRun`], prepared and booted as those of matrix.toml, and
//! explained in the results' terms.
//!
//! One cell is compiled and prepared at a time, as each uses all processors; guests run beside it.

mod console;
mod verdict;
mod wanted;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::build_run::{BuildRun, milliseconds};
use crate::results::{CellResult, Digest, Line, Phase, ResolvedCell, Times, Verdict};
use crate::rules::lock::Missing;
use crate::rules::{Cell, RuleScenario};
use longshore_lab::cell;
use longshore_lab::guest::workbench::{Workbench, hold};
use longshore_lab::guest::{Boot, Guest};
use longshore_lab::host::cache::digest;
use longshore_lab::host::error::Error;
use longshore_lab::judge::end;
use longshore_lab::judge::event::{Sink, What};
use longshore_lab::judge::evidence::Evidence;
use longshore_lab::scenarios;
use longshore_lab::supply::seed::SEED;
use longshore_lab::vm::kernel::KERNEL;
use verdict::Ran;

/// Largest number of phases, and of measurements, that a guest has in results.
const MOST_RECORDS: usize = 200;

/// Settings of all cells of a run.
pub struct BootRun<'a> {
    /// Compiles.
    pub builds: BuildRun<'a>,
    /// Files that guests are made from.
    pub workbench: Mutex<Workbench>,
    /// Largest size of the cached kernels and user-mode trees; those in use may exceed it.
    pub cache_bytes: u64,
}

/// A guest's run, and the times of its parts.
struct Booted {
    evidence: Evidence,
    ran: Ran,
    image_sha256: String,
    prepare: Duration,
    guest: Duration,
}

/// A guest that ran, or the verdict on a cell without one.
enum Attempt {
    Ran(Box<Booted>),
    NoGuest(Verdict),
}

impl BootRun<'_> {
    /// Compiles a cell and runs its scenario in a VM, if it has one and the modules compile.
    ///
    /// # Errors
    /// The program cannot be started, or a log cannot be written. A guest that cannot be made is a result.
    pub fn run(&self, cell: &Cell, sink: &Sink<'_>) -> Result<CellResult, Error> {
        let workbench = hold(&self.workbench);
        let began = Instant::now();
        sink.tell(What::Preparing("modules".into()));
        let compiled = self.builds.build(cell)?;
        let patches = match &compiled.verdict {
            Verdict::Compiled { patches } if cell.scenario.boots() => patches.clone(),
            _ => return Ok(with_other_time(compiled, began)),
        };
        let result = match self.boot(cell, &compiled, workbench, sink) {
            Ok(Attempt::Ran(booted)) => self.explained(cell, compiled, patches, *booted)?,
            Ok(Attempt::NoGuest(verdict)) => CellResult { verdict, ..compiled },
            Err(error) => {
                let why = Line::new(&error.to_string());
                CellResult { verdict: Verdict::NotRun { why }, ..compiled }
            }
        };
        Ok(with_other_time(result, began))
    }

    /// Prepares the guest of a cell whose modules compiled, and runs its scenario.
    fn boot(
        &self,
        cell: &Cell,
        compiled: &CellResult,
        mut workbench: MutexGuard<'_, Workbench>,
        sink: &Sink<'_>,
    ) -> Result<Attempt, Error> {
        let began = Instant::now();
        let wanted = match self.wanted(cell, &workbench)? {
            Ok(wanted) => cell::Cell { set: set_of(compiled), ..wanted },
            Err(verdict) => return Ok(Attempt::NoGuest(verdict)),
        };
        workbench.cache().bound(&[SEED, KERNEL], self.cache_bytes)?;
        let _alone = workbench.cache().lock(&format!("run-{}", cell.name))?;
        let scenario = scenarios::scenario_of(&wanted)?;
        let guest = scenario.guest(&wanted, &cell.name, &mut workbench, sink)?;
        drop(workbench);
        check_same(&guest, compiled)?;
        let prepare = began.elapsed();
        let boot = Boot::new(fault(cell.scenario).or(scenario.script()).unwrap_or_default());
        let started = Instant::now();
        let evidence = guest.watch(&boot, sink)?;
        let taken = started.elapsed();
        let ran = Ran {
            outcome: scenario.judge(&wanted, &guest.expected(), &evidence),
            unfinished: end::unfinished(&wanted, &evidence),
            console: console::lines(&guest.console_log(&boot))?,
        };
        let image_sha256 = guest.prepared.image.sha256.clone();
        Ok(Attempt::Ran(Box::new(Booted { evidence, ran, image_sha256, prepare, guest: taken })))
    }

    /// Returns the cell as one of matrix.toml, if the archive still has the locked kernel; else the verdict.
    fn wanted(
        &self,
        cell: &Cell,
        workbench: &Workbench,
    ) -> Result<Result<cell::Cell, Verdict>, Error> {
        let (kernel, driver) = match self.builds.parts(cell) {
            Ok(parts) => parts,
            Err(Missing { part, why }) => {
                return Ok(Err(Verdict::Unavailable { part, why: Line::new(&why) }));
            }
        };
        let wanted = wanted::cell(cell, driver, self.builds.lock)?;
        let (_, resolved) = workbench.resolve(&wanted)?;
        if kernel.image.as_ref().is_some_and(|image| image.sha256 == resolved.kernel_sha256) {
            return Ok(Ok(wanted));
        }
        // The archive has moved on, which says nothing about the cell.
        let why = format!(
            "the archive has {} {}, and the lock another one or none; run `kernel-matrix resolve`",
            resolved.kernel_package, resolved.kernel_version
        );
        Ok(Err(Verdict::NotRun { why: Line::new(&why) }))
    }

    /// Returns the result of a cell whose guest ran.
    fn explained(
        &self,
        cell: &Cell,
        compiled: CellResult,
        patches: Vec<Line>,
        booted: Booted,
    ) -> Result<CellResult, Error> {
        let Booted { evidence, ran, image_sha256, prepare, guest } = booted;
        let verdict = verdict::verdict_of(&ran, &evidence, patches);
        let log = console::keep(self.builds.dir, cell, &ran, &evidence, &verdict)?;
        let inputs = [
            compiled.key.as_ref().map(Digest::as_str).unwrap_or_default(),
            &cell.scenario.to_string(),
            &cell.gpus.to_string(),
            &image_sha256,
        ];
        let line = |text: &String| Line::new(text);
        Ok(CellResult {
            key: compiled.key.as_ref().and_then(|_| Digest::try_from(digest(&inputs)).ok()),
            verdict,
            phases: evidence.reached.iter().take(MOST_RECORDS).map(phase).collect(),
            measured: evidence
                .measurements()
                .iter()
                .take(MOST_RECORDS)
                .map(|(what, value)| (line(what), line(value)))
                .collect(),
            times: Times {
                prepare_ms: milliseconds(prepare),
                guest_ms: milliseconds(guest),
                ..compiled.times
            },
            log: Some(log),
            resolved: compiled
                .resolved
                .map(|resolved| ResolvedCell { compile_key: compiled.key, ..resolved }),
            ..compiled
        })
    }
}

fn phase((name, after): &(String, Duration)) -> Phase {
    Phase { name: Line::new(name), after_ms: milliseconds(*after) }
}

/// Returns the set that a cell compiled: the store may have others that suit its guest.
fn set_of(compiled: &CellResult) -> Option<String> {
    let set = compiled.resolved.as_ref()?.set.as_ref()?;
    Some(set.as_str().to_owned())
}

/// Returns the script of a scenario that checks this harness by a fault of the guest.
fn fault(of: RuleScenario) -> Option<&'static str> {
    let script = match of {
        RuleScenario::GuestPanic => include_str!("faults/panic.sh"),
        RuleScenario::GuestHang => include_str!("faults/hang.sh"),
        RuleScenario::GuestFullDisk => include_str!("faults/full-disk.sh"),
        _ => return None,
    };
    Some(script)
}

/// Refuses a guest with other modules than those that the cell compiled.
fn check_same(guest: &Guest<'_>, compiled: &CellResult) -> Result<(), Error> {
    let key = &guest.prepared.seed.set.key;
    let compiled = compiled.resolved.as_ref().and_then(|resolved| resolved.set.as_ref());
    let prepared = key.digest();
    if compiled.is_some_and(|set| set.as_str() == prepared) {
        return Ok(());
    }
    let compiled = compiled.map_or("none", Digest::as_str);
    Err(Error::Unexpected(format!(
        "the guest has the module set {prepared}, of {} and {}, and the set that was compiled is {compiled}",
        key.compiler, key.driver_digest
    )))
}

/// Adds the time that the harness itself took.
fn with_other_time(mut result: CellResult, began: Instant) -> CellResult {
    let known = Times { other_ms: 0, ..result.times }.total_ms();
    result.times.other_ms = milliseconds(began.elapsed()).saturating_sub(known);
    result
}
