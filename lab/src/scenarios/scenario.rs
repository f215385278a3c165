//! A scenario: what happens in a guest, and the judgement of it.

use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

use crate::cell::Cell;
use crate::cell::needs::Needs;
use crate::cell::supply::Supply;
use crate::guest::workbench::{Workbench, hold};
use crate::guest::{Boot, Guest};
use crate::host::error::Error;
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::event::{Outcome, Sink, What};
use crate::judge::evidence::Evidence;
use crate::judge::records::Records;
use crate::judge::start_times;
use crate::judge::trials;

/// A scenario's row in the table of all (`scenarios!`).
pub trait Row {
    /// Returns its name in matrix.toml.
    fn name(&self) -> String;

    /// Returns the script of the guest; None where there is no guest.
    fn script(&self) -> Option<&'static str> {
        None
    }

    /// True if it is in no cell of the core set: the time of CI is limited.
    fn is_on_demand(&self) -> bool {
        false
    }
}

/// A scenario. Its script acts in the guest and only reports; the judge decides from the reports alone.
pub trait Scenario: Row + fmt::Debug + Sync {
    /// Returns the faults that a guest reported which came to its end. Agent's exit code and log, and the host before
    /// and after, are judged for every scenario.
    fn wrong(&self, _expected: &Expected, _records: &Records) -> Vec<String> {
        Vec::new()
    }

    /// Returns the same, where it depends on the cell.
    fn wrong_in(&self, _cell: &Cell, expected: &Expected, records: &Records) -> Vec<String> {
        self.wrong(expected, records)
    }

    /// Returns the needs that are known before a guest is made.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Gives a guest that is made what it has beyond others: files, disks, arguments of the agent, a program beside it.
    ///
    /// # Errors
    /// Something could not be obtained or made.
    fn furnish(&self, _guest: &mut Guest<'_>, _workbench: &Workbench) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the measurements of this scenario alone.
    fn measured(&self, _expected: &Expected, _records: &Records) -> Vec<(String, String)> {
        Vec::new()
    }

    /// True for a fault in the kernel's log that the scenario provokes.
    fn provokes(&self, _trouble: &str) -> bool {
        false
    }

    /// Returns further faults of a guest that did not come to its end.
    fn complaints(&self, _records: &Records) -> Vec<String> {
        Vec::new()
    }

    /// Makes a cell's guest, with `name`'s directory for the logs and results that stay.
    ///
    /// # Errors
    /// Something could not be obtained or made.
    fn guest<'a>(
        &self,
        cell: &'a Cell,
        name: &str,
        workbench: &mut Workbench,
        sink: &Sink<'_>,
    ) -> Result<Guest<'a>, Error> {
        let mut guest = Guest::prepare(cell, self.needs(), name, workbench, sink)?;
        self.furnish(&mut guest, workbench)?;
        Ok(guest)
    }

    /// Runs a cell, in a guest that is made for it.
    ///
    /// # Errors
    /// The guest could not be made or booted.
    fn run(
        &self,
        cell: &Cell,
        workbench: &Mutex<Workbench>,
        sink: &Sink<'_>,
    ) -> Result<Outcome, Error> {
        let started = Instant::now();
        let mut guest = self.guest(cell, &cell.name, &mut hold(workbench), sink)?;
        sink.tell(What::Prepared { took: started.elapsed() });
        let expected = guest.expected();
        self.boot(&mut guest, &expected, sink)
    }

    /// Boots the guest and judges it: once, after a first boot that loses its power where the cell's store is of one.
    ///
    /// # Errors
    /// The guest could not be booted.
    fn boot(
        &self,
        guest: &mut Guest<'_>,
        expected: &Expected,
        sink: &Sink<'_>,
    ) -> Result<Outcome, Error> {
        let cell = guest.cell;
        let processors = if cell.from == Supply::Compile { 2 } else { 1 };
        let boot = Boot { processors, ..Boot::new(self.script().unwrap_or_default()) };
        if cell.from == Supply::Store {
            let name = "first-boot-".into();
            let first = Boot { name, loses_power: true, ..Boot::new(boot.script) };
            let outcome = first_boot(cell, expected, &guest.watch(&first, sink)?);
            if outcome != Outcome::Passed {
                return Ok(outcome);
            }
            guest.delivery.registry = None;
        }
        let evidence = guest.watch(&boot, sink)?;
        let records = &evidence.records;
        let all = evidence.measurements().into_iter();
        let all = all.chain(self.measured(expected, records)).chain(start_times::measured(records));
        for (what, value) in all {
            sink.tell(What::Measured { what, value });
        }
        for trial in trials::read(records).unwrap_or_default() {
            sink.tell(What::Trial(trial));
        }
        Ok(self.judge(cell, expected, &evidence))
    }

    /// Judges the boot of a cell that ran in a VM. QEMU's own exit code means nothing and is ignored.
    fn judge(&self, cell: &Cell, expected: &Expected, evidence: &Evidence) -> Outcome {
        let trouble = evidence.trouble.iter().filter(|line| !self.provokes(line));
        let mut wrong: Vec<String> = trouble.map(|line| format!("kernel: {line}")).collect();
        if let Some(why) = end::unfinished(cell, evidence) {
            // A guest that did not finish has no state to compare.
            wrong.push(why);
            wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
            wrong.extend(self.complaints(&evidence.records));
        } else {
            wrong.extend(self.finished(cell, expected, evidence));
        }
        if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) }
    }

    /// Returns all faults of a guest that came to its end.
    fn finished(&self, cell: &Cell, expected: &Expected, evidence: &Evidence) -> Vec<String> {
        let records = &evidence.records;
        let mut wrong = end::agent(cell, records);
        wrong.extend(end::begin(cell, records));
        wrong.extend(self.wrong_in(cell, expected, records));
        wrong.extend(end::host(records));
        wrong
    }
}

/// Judges the boot of a cell that ends by a loss of power while the driver is Ready.
pub(super) fn first_boot(cell: &Cell, expected: &Expected, evidence: &Evidence) -> Outcome {
    let ready = |records: &Records| checks::ready(expected, records, "ready");
    let mut wrong = end::judged(cell, evidence, ready);
    if wrong.is_empty() {
        return Outcome::Passed;
    }
    wrong.extend(end::last_lines(&evidence.records, "agent-log"));
    Outcome::Failed(checks::under("first boot", wrong))
}
