//! Judges a driver that is in use at TERM (script.sh): its users are named, it stays usable,
//! and the next agent adopts it.

use crate::judge::checks::{self, Expected};
use crate::judge::identity;
use crate::judge::records::Records;
use crate::judge::timing;
use crate::judge::trials;
use crate::scenarios::{InUse, Scenario};

/// Default of `on-busy` in seconds: so long the agent waits for the driver's users (docs/reference/deadlines.md).
const ON_BUSY: f64 = 20.0;
/// Seconds beyond it, by the agent's own log: the last look at all processes, and the journal, on an emulated
/// processor.
const EMULATED: f64 = 5.0;
/// Longest end of its container in seconds: that, and the time that a container takes to end on a busy machine.
const LONGEST: f64 = ON_BUSY + 25.0;
/// Exit code for a driver in use.
const IN_USE: &str = "20";

impl Scenario for InUse {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = Vec::new();
        wrong.extend(ended(records));
        wrong.extend(named(records));
        wrong.extend(left(records));
        let held = checks::ready(expected, records, "held");
        wrong.extend(checks::under("while it is held", held));
        wrong.extend(checks::under("adopted", checks::ready(expected, records, "ready")));
        // No module was loaded again, and no process lost the driver.
        wrong.extend(identity::compare(records, "held", "adopted", &[]));
        wrong
    }

    fn measured(&self, _expected: &Expected, records: &Records) -> Vec<(String, String)> {
        let value = adoption(records).ok();
        value.into_iter().map(|value| ("start to Ready, adopting".to_owned(), value)).collect()
    }
}

/// Returns the time from the adopting agent's first log line to Ready.
fn adoption(records: &Records) -> Result<String, String> {
    let log = records.section("agent-log")?;
    let seconds = timing::between(log, "phase probing", "is ready")?;
    Ok(format!("{:.0} ms", seconds * 1000.0))
}

fn ended(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    let fault = |code| format!("with the driver in use the exit code is {code}, not {IN_USE}");
    wrong.extend(records.unlike("held.exit-code", IN_USE).map(fault));
    let log = records.section("held.log").unwrap_or_default();
    let waited = ("SIGTERM: stopping", "phase in-use");
    wrong.extend(timing::not_within(log, waited, (ON_BUSY, ON_BUSY + EMULATED)));
    match timing::span(records, "held.seconds") {
        Ok(seconds) if seconds <= LONGEST => {}
        Ok(seconds) => wrong.push(format!("the agent took {seconds:.1} s to end")),
        Err(missing) => wrong.push(missing),
    }
    wrong
}

/// Checks that the termination message names both users, the contained one with its container.
fn named(records: &Records) -> Vec<String> {
    let log = records.section("held.log").unwrap_or_default();
    let holders: Vec<&str> = log
        .iter()
        .filter(|line| line.contains("in use"))
        .flat_map(|line| line.split("; "))
        .collect();
    // A bare number could be a part of another one, or of an id.
    let said = |pid: &str, owner: &str| {
        let begins = format!("pid {pid} (");
        holders.iter().any(|holder| holder.starts_with(&begins) && holder.contains(owner))
    };
    let mut wrong = Vec::new();
    match records.facts.get("holder") {
        Some(pid) if said(pid, "holds /dev/nvidiactl") => {}
        holder => wrong.push(format!("the log does not name the host's process {holder:?}")),
    }
    let contained = records.facts.get("contained-holder").and_then(|c| c.split_once(' '));
    match contained {
        Some((pid, id)) if id.len() == 64 && said(pid, &format!("of container {id} ")) => {}
        holder => wrong.push(format!("the log does not name the contained process {holder:?}")),
    }
    wrong
}

/// Checks that the journal has everything as still installed.
fn left(records: &Records) -> Option<String> {
    let found = trials::journal_of(&records.text("held.record"));
    let whole = found.starts_with("in-use, ") && found.ends_with(" done, 0 intended");
    let whole = whole && !found.contains(", 0 done");
    (!whole).then(|| format!("the record of a driver in use says: {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let id = "ab".repeat(32);
        let mut records = Records::default();
        for line in ["holder 41".to_owned(), format!("contained-holder 42 {id}")] {
            records.take(&format!("@fact {line}"));
        }
        records.take("@fact held.exit-code 20");
        records.take("@fact held.seconds 10.0 31.0");
        let begun = "2026-11-25T20:00:00.1Z  INFO SIGTERM: stopping".to_owned();
        let over = "2026-11-25T20:00:20.9Z  INFO phase in-use, after 20.7 s of removing".to_owned();
        let log = format!(
            "error: the driver is in use: nvidia is held by 2 references of open devices; \
             pid 41 (sleep) holds /dev/nvidiactl; \
             pid 42 (busybox, inside pid 1) of container {id} holds /dev/nvidiactl"
        );
        records.sections.insert("held.log".into(), vec![begun, over, log]);
        let record = "{\"phase\": \"in-use\", \"entries\": [{\"state\": \"done\"}]}";
        records.sections.insert("held.record".into(), vec![record.into()]);
        records
    }

    fn all(records: &Records) -> Vec<String> {
        let mut wrong = ended(records);
        wrong.extend(named(records));
        wrong.extend(left(records));
        wrong
    }

    #[test]
    fn a_driver_that_is_left_and_adopted_has_nothing_wrong() {
        assert_eq!(all(&good()), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_found() {
        let fact = |key: &str, value: &str, wanted: &str| {
            let mut records = good();
            records.facts.insert(key.into(), value.into());
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        };
        fact("held.exit-code", "0", "exit code is 0");
        fact("held.seconds", "10.0 100.0", "took 90.0 s");
        fact("holder", "7777", "the host's process");
        fact("holder", "4", "the host's process");
        fact("contained-holder", "42 short", "the contained process");
        fact("contained-holder", &format!("41 {}", "ab".repeat(32)), "the contained process");
        let section = |name: &str, text: &str, wanted: &str| {
            let mut records = good();
            records.sections.insert(name.into(), vec![text.into()]);
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        };
        let ends = |at: &str, wanted: &str| {
            let mut records = good();
            for line in records.sections.get_mut("held.log").into_iter().flatten() {
                *line = line.replace("20:00:20.9Z", at);
            }
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        };
        ends("20:00:00.3Z", "came 0.20 s after `SIGTERM: stopping`, not 20 to 25 s");
        ends("20:00:19.9Z", "came 19.80 s");
        ends("20:00:40.1Z", "came 40.00 s");
        ends("without a time", "no line with `phase in-use` and a time");
        section("held.record", "{\"phase\": \"failed\", \"entries\": []}", "failed, 0 done");
    }
}
