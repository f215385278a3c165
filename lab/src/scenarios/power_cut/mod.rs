//! Judges losses of power (script.sh): each came at its point, and the next boot finds a
//! sound store and a host on which the agent installs the driver and which it leaves as it was.

use crate::cell::Cell;
use crate::guest::workbench::Workbench;
use crate::guest::{Boot, Guest};
use crate::host::disk as disks;
use crate::host::error::Error;
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::event::{Outcome, Sink, What};
use crate::judge::evidence::Evidence;
use crate::judge::records::Records;
use crate::judge::trials::{self, Trial};
use crate::scenarios::{PowerCut, Row, Scenario};
use crate::vm::Disk;

/// Points of the power losses, in order. After the last one a boot only recovers.
const CUTS: [&str; 6] =
    ["import-module", "import-tree", "import-set", "intent", "loading", "ready"];

impl Scenario for PowerCut {
    fn furnish(&self, guest: &mut Guest<'_>, _workbench: &Workbench) -> Result<(), Error> {
        let (store, disk) = (guest.work().join("store.ext4"), guest.work().join("store.qcow2"));
        disks::copy(&guest.prepared.seed.disk, &store)?;
        disks::volatile(&store, &disk)?;
        guest.delivery.kept_store = Some(Disk::Volatile(disk));
        Ok(())
    }

    /// Boots the guest repeatedly: each boot recovers from the last one's loss of power, and goes on
    /// until its own.
    fn boot(
        &self,
        guest: &mut Guest<'_>,
        expected: &Expected,
        sink: &Sink<'_>,
    ) -> Result<Outcome, Error> {
        let mut wrong = Vec::new();
        let script = self.script().unwrap_or_default();
        let mut after = "";
        for (number, cut) in CUTS.into_iter().chain([""]).enumerate() {
            let name = format!("boot-{}-", number + 1);
            let evidence = guest.watch(&Boot { name, after, cut, ..Boot::new(script) }, sink)?;
            if !after.is_empty() {
                let trial = recovered(guest.cell, expected, &evidence, after, cut);
                wrong.extend(trial.wrong.iter().map(|why| format!("{after}: {why}")));
                sink.tell(What::Trial(trial));
            }
            if let Some(why) = not_cut(guest.cell, &evidence, cut) {
                wrong.push(why);
                wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
                break;
            }
            after = cut;
        }
        Ok(if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) })
    }
}

/// Returns why a boot did not lose its power at `cut`; where `cut` is empty the boot must have run
/// to its end.
fn not_cut(cell: &Cell, evidence: &Evidence, cut: &str) -> Option<String> {
    match (cut.is_empty(), evidence.power_lost) {
        (false, true) => None,
        (false, false) => {
            let why = end::unfinished(cell, evidence);
            let why = why.unwrap_or_else(|| "it ran to its end".into());
            Some(format!("the power was to go off at `{cut}`: {why}"))
        }
        (true, _) => end::unfinished(cell, evidence),
    }
}

/// Judges the recovery of a host whose power had gone off at `after`, in a boot that then went on
/// to `cut`.
fn recovered(
    cell: &Cell,
    expected: &Expected,
    evidence: &Evidence,
    after: &str,
    cut: &str,
) -> Trial {
    let records = &evidence.records;
    let mut wrong: Vec<String> =
        evidence.trouble.iter().map(|line| format!("kernel: {line}")).collect();
    wrong.extend(disk(records));
    wrong.extend(end::agent(cell, records));
    wrong.extend(checks::ready(expected, records, "ready"));
    wrong.extend(end::host(records));
    if !wrong.is_empty() {
        wrong.extend(not_cut(cell, evidence, cut));
    }
    let recovery = records.facts.get("recovery").map_or("", String::as_str);
    Trial {
        point: format!("power off at {after}"),
        found: records.text("cut.named").replace('\n', ", "),
        recovery: recovery.split(' ').next().unwrap_or_default().to_owned(),
        seconds: trials::seconds(recovery).unwrap_or(f64::NAN),
        wrong,
    }
}

/// Checks that synced files are there and unsynced ones are not, and that every file matches the
/// digest in its name.
fn disk(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    if records.text("cut.synced") != "synced" {
        wrong.push("the file that was synced is not on the disk".into());
    }
    if records.text("cut.unsynced") == "unsynced" {
        wrong.push("the file that was not synced is on the disk: this was no loss of power".into());
    }
    wrong.extend(records.faults("cut.misnamed", |files| {
        files.iter().map(|file| format!("digest differs from name: {file}")).collect()
    }));
    let code = records.fact("cut.verify");
    if code != "0" {
        wrong.push(format!("`store verify` ended with {code}: {}", records.text("cut.verify-log")));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Cell {
        toml::from_str(
            "name = 'a'\nscenario = 'power-cut'\nkernel = { suite = 's', package = 'p' }\n\
             driver = { branch = '535', flavour = 'open' }",
        )
        .unwrap()
    }

    fn records(changed: &[(&str, &str)]) -> Records {
        let mut records = Records::default();
        records.facts.insert("cut.verify".into(), "0".into());
        let cat = "cat: /var/lib/longshore/lost+found/unsynced: No such file or directory";
        for (name, text) in [("synced", "synced"), ("unsynced", cat), ("misnamed", "")] {
            let text = changed.iter().find(|(n, _)| *n == name).map_or(text, |(_, text)| text);
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("cut.{name}"), lines);
        }
        records
    }

    #[test]
    fn a_disk_is_sound_where_it_lost_what_was_not_synced_and_nothing_else() {
        assert_eq!(disk(&records(&[])), Vec::<String>::new());
        let cases = [
            ("synced", "", "was synced"),
            ("unsynced", "unsynced", "no loss of power"),
            ("misnamed", "/s/blobs/sha256/ab", "digest differs from name: /s/blobs"),
        ];
        for (section, text, wanted) in cases {
            let wrong = disk(&records(&[(section, text)])).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
        let mut unsound = records(&[]);
        unsound.facts.insert("cut.verify".into(), "13".into());
        assert!(disk(&unsound)[0].contains("ended with 13"));
    }

    #[test]
    fn a_power_cut_has_to_come() {
        let lost = Evidence { power_lost: true, ..Evidence::default() };
        assert_eq!(not_cut(&cell(), &lost, "loading"), None);
        let lived = not_cut(&cell(), &Evidence::default(), "loading").unwrap();
        assert!(lived.contains("at `loading`") && lived.contains("without a verdict"), "{lived}");
        assert!(not_cut(&cell(), &lost, "").unwrap().contains("without a verdict"));
    }
}
