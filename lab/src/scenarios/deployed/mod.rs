//! Judges an agent that the compose file and the systemd unit of deploy run (script.sh), through restarts of
//! dockerd and of the guest: the driver is uninstalled with them, and comes back.

use crate::guest::workbench::Workbench;
use crate::guest::{Boot, Guest, GuestFile};
use crate::host::error::Error;
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::event::{Outcome, Sink, What};
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{Deployed, Row, Scenario};

/// Files of deploy, by their names in /run/matrix of the guest.
const FILES: [(&str, &str); 2] = [
    ("compose.yaml", include_str!("../../../../deploy/compose.yaml")),
    ("longshore.service", include_str!("../../../../deploy/systemd/longshore.service")),
];
/// Point after which the second boot goes on.
const REBOOT: &str = "reboot";
/// Facts of the first boot: spans until the driver was Ready.
const FIRST: [&str; 4] =
    ["compose.seconds", "compose.restarted.seconds", "unit.seconds", "unit.restarted.seconds"];
/// The fact of the second boot.
const SECOND: &str = "reboot.seconds";
/// Sections with the modules of a host whose agent was ended.
const WITHOUT: [&str; 5] =
    ["compose.restarted.down", "compose.after", "unit.restarted.down", "unit.after", "reboot.down"];

impl Scenario for Deployed {
    fn furnish(&self, guest: &mut Guest<'_>, _workbench: &Workbench) -> Result<(), Error> {
        guest.files.extend(FILES.map(|(name, text)| GuestFile::data(name, text)));
        Ok(())
    }

    /// Boots twice, with the same disks, and judges both.
    ///
    /// # Errors
    /// A guest cannot be booted, or its disks cannot be copied.
    fn boot(
        &self,
        guest: &mut Guest<'_>,
        expected: &Expected,
        sink: &Sink<'_>,
    ) -> Result<Outcome, Error> {
        guest.keep_system()?;
        let script = self.script().unwrap_or_default();
        let boot = |guest: &Guest<'_>, name: &str, after| {
            let boot = Boot { name: name.to_owned(), after, processors: 2, ..Boot::new(script) };
            guest.watch(&boot, sink)
        };
        let evidence = boot(guest, "first-", "")?;
        let mut wrong = end::judged(guest.cell, &evidence, |_| Vec::new());
        if wrong.is_empty() {
            wrong.extend(checks::ready(expected, &evidence.records, "ready"));
            wrong.extend(first(&evidence.records));
            tell(sink, &evidence.records, &FIRST);
        }
        if !wrong.is_empty() {
            return Ok(Outcome::Failed(wrong));
        }
        let evidence = boot(guest, "second-", REBOOT)?;
        let mut wrong = end::judged(guest.cell, &evidence, |_| Vec::new());
        if wrong.is_empty() {
            wrong.extend(second(&evidence.records));
            tell(sink, &evidence.records, &[SECOND]);
        }
        Ok(if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) })
    }
}

fn tell(sink: &Sink<'_>, records: &Records, facts: &[&str]) {
    for fact in facts {
        if let Ok(seconds) = timing::span(records, fact) {
            let what = format!("{} to Ready", fact.trim_end_matches(".seconds"));
            sink.tell(What::Measured { what, value: format!("{seconds:.1} s") });
        }
    }
}

fn first(records: &Records) -> Vec<String> {
    let mut wrong: Vec<String> =
        FIRST.iter().filter_map(|fact| timing::span(records, fact).err()).collect();
    wrong.extend(WITHOUT.iter().filter_map(|section| still_loaded(records, section)));
    if !is_ready(records, "unit.readyz") {
        wrong.push("`systemctl start` ended before the driver was ready".into());
    }
    if records.text("unit.state").trim() != "active" {
        wrong.push(format!("after dockerd's restart the unit is {}", records.text("unit.state")));
    }
    wrong
}

fn second(records: &Records) -> Vec<String> {
    let mut wrong: Vec<String> = timing::span(records, SECOND).err().into_iter().collect();
    if !is_ready(records, "rebooted.readyz") {
        wrong.push("the driver is not ready after the reboot".into());
    }
    wrong.extend(still_loaded(records, "rebooted.down"));
    wrong
}

fn is_ready(records: &Records, section: &str) -> bool {
    records.text(section).starts_with("exit code 0")
}

/// Returns the fault of a driver that stays loaded, or of a section that is not there.
fn still_loaded(records: &Records, section: &str) -> Option<String> {
    match records.section(section) {
        Ok(modules) if modules.iter().any(|line| line.starts_with("nvidia")) => {
            Some(format!("{section}: the driver is loaded"))
        }
        Ok([]) => Some(format!("{section}: no module at all")),
        Ok(_) => None,
        Err(missing) => Some(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        for fact in FIRST.iter().chain(&[SECOND]) {
            records.take(&format!("@fact {fact} 10.0 20.5"));
        }
        let mut put = |section: &str, text: &str| {
            records.sections.insert(section.to_owned(), vec![text.to_owned()]);
        };
        for section in WITHOUT.iter().chain(&["rebooted.down"]) {
            put(section, "virtio_blk 28672 5 - Live 0x0");
        }
        put("unit.readyz", "exit code 0");
        put("rebooted.readyz", "exit code 0");
        put("unit.state", "active");
        records
    }

    #[test]
    fn a_driver_that_stays_or_does_not_come_back_is_found() {
        assert_eq!([first(&good()), second(&good())].concat(), [""; 0]);
        let loaded = "nvidia 8671232 0 - Live 0x0";
        for (section, text, wanted) in [
            ("compose.restarted.down", loaded, "compose.restarted.down: the driver is loaded"),
            ("unit.after", loaded, "unit.after: the driver is loaded"),
            ("rebooted.down", loaded, "rebooted.down: the driver is loaded"),
            ("unit.readyz", "exit code 30", "before the driver was ready"),
            ("unit.state", "failed", "the unit is failed"),
            ("rebooted.readyz", "", "not ready after the reboot"),
        ] {
            let mut records = good();
            records.sections.insert(section.to_owned(), vec![text.to_owned()]);
            let why = [first(&records), second(&records)].concat().join("; ");
            assert!(why.contains(wanted), "{section}: {why}");
        }
        for fact in FIRST.iter().chain(&[SECOND]) {
            let mut records = good();
            records.facts.remove(*fact);
            assert_eq!([first(&records), second(&records)].concat().len(), 1, "{fact}");
        }
    }
}
