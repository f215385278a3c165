//! Judges a store whose disk does not answer (script.sh): an agent that starts on it ends
//! by its deadline and reports why; an agent whose driver is Ready uninstalls it without the store.

use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::identity;
use crate::judge::records::Records;
use crate::judge::timing;
use crate::judge::trials;
use crate::scenarios::{DeadDisk, Scenario};

/// The guest's `--step-deadline` in seconds.
const STEP: f64 = 5.0;
/// Time limit of the termination message in seconds, which is written to the store, too (docs/reference/deadlines.md).
const MESSAGE: f64 = 5.0;
/// Seconds beyond the deadline, by the agent's own log: the phases before and after it on an emulated processor.
const EMULATED: f64 = 3.0;
/// Longest end of the agent in seconds, as another process sees it: that, and the delay of a busy machine.
const LONGEST: f64 = STEP + MESSAGE + 25.0;
/// Exit code for a host that is not ready, and that was not changed.
const NOT_READY: &str = "15";
/// Texts that the log must contain then.
const SAID: [&str; 2] =
    ["reading the host and the store has not come to its end in 5 s", "step-deadline"];

impl Scenario for DeadDisk {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = ended(records, "untouched");
        wrong.extend(struck(records));
        wrong.extend(ended(records, "killed"));
        wrong.extend(checks::under("a dead disk", end::differences(records, "untouched")));
        // Neither the agent without a disk nor the adopting one changed the driver that was there.
        for later in ["after-killed", "adopted"] {
            wrong.extend(identity::compare(records, "killed", later, &[]));
        }
        wrong.extend(checks::ready(expected, records, "ready"));
        wrong.extend(removed(records));
        wrong
    }
}

/// Checks that the Ready agent was killed, and did not end by itself.
fn struck(records: &Records) -> Option<String> {
    let other = records.unlike("struck.exit-code", trials::KILLED);
    other.map(|code| format!("SIGKILL: the exit code is {code}"))
}

/// Checks the end of an agent that started with the disk frozen.
fn ended(records: &Records, when: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let fault = |code| format!("with a dead disk the exit code is {code}, not {NOT_READY}");
    let other = records.unlike(&format!("{when}.exit-code"), NOT_READY).map(fault);
    wrong.extend(checks::under(when, other));
    let log = records.text(&format!("{when}.log"));
    let unsaid = SAID.iter().filter(|text| !log.contains(*text));
    wrong.extend(unsaid.map(|text| format!("{when}: the log does not say `{text}`")));
    let lines = records.section(&format!("{when}.log")).unwrap_or_default();
    let given_up = ("phase probing", "phase failed");
    let late = timing::not_within(lines, given_up, (STEP, STEP + EMULATED));
    wrong.extend(checks::under(when, late));
    wrong.extend(in_time(records, &format!("{when}.seconds")));
    wrong
}

fn removed(records: &Records) -> Vec<String> {
    let mut wrong: Vec<String> = in_time(records, "removed.seconds").into_iter().collect();
    let log = records.section("agent-log").unwrap_or_default();
    let late =
        timing::not_within(log, ("SIGTERM: stopping", "phase removed"), (0.0, MESSAGE + STEP));
    wrong.extend(checks::under("TERM with a dead disk", late));
    wrong.extend(records.faults("removed.modules", |modules| {
        let left = modules.iter().filter(|line| line.starts_with("nvidia"));
        left.map(|line| format!("with a dead disk TERM left {line}")).collect()
    }));
    wrong
}

fn in_time(records: &Records, what: &str) -> Option<String> {
    match timing::span(records, what) {
        Ok(seconds) if seconds <= LONGEST => None,
        Ok(seconds) => Some(format!("{what}: {seconds:.1}, not {LONGEST} at most")),
        Err(missing) => Some(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        for when in ["untouched", "killed"] {
            records.take(&format!("@fact {when}.exit-code 15"));
            records.take(&format!("@fact {when}.seconds 10.0 16.0"));
            let phases = [
                "2026-11-25T20:00:00.0Z  INFO phase probing",
                "2026-11-25T20:00:05.2Z  INFO phase failed, after 5.2 s of probing",
            ];
            let log = phases.iter().chain(&SAID).map(|line| (*line).to_owned()).collect();
            records.sections.insert(format!("{when}.log"), log);
        }
        let removal = [
            "2026-11-25T20:01:00.0Z  INFO SIGTERM: stopping",
            "2026-11-25T20:01:01.0Z  INFO phase removed, after 1.0 s of removing",
        ];
        records.sections.insert("agent-log".into(), removal.map(str::to_owned).to_vec());
        records.take("@fact struck.exit-code 137");
        records.take("@fact removed.seconds 20.0 21.0");
        records.sections.insert("removed.modules".into(), vec!["drm 1 0 - Live".into()]);
        records
    }

    fn all(records: &Records) -> String {
        let ended = ["untouched", "killed"].map(|when| ended(records, when)).concat();
        let struck = struck(records).into_iter().collect();
        [ended, struck, removed(records)].concat().join("\n")
    }

    #[test]
    fn an_agent_that_ends_and_one_that_takes_off_have_nothing_wrong() {
        assert_eq!(all(&good()), "");
    }

    #[test]
    fn what_is_wrong_is_found() {
        let fact = |key: &str, value: &str, wanted: &str| {
            let mut records = good();
            records.facts.insert(key.into(), value.into());
            assert!(all(&records).contains(wanted), "{wanted}: {}", all(&records));
        };
        fact("untouched.exit-code", "70", "exit code is 70");
        fact("killed.exit-code", "0", "exit code is 0");
        fact("struck.exit-code", "21", "SIGKILL: the exit code is 21");
        fact("killed.seconds", "10.0 46.0", "killed.seconds: 36.0");
        fact("removed.seconds", "10.0 50.0", "removed.seconds: 40.0");
        let at = |log: &str, from: &str, to: &str, wanted: &str| {
            let mut records = good();
            for line in records.sections.get_mut(log).into_iter().flatten() {
                *line = line.replace(from, to);
            }
            assert!(all(&records).contains(wanted), "{wanted}: {}", all(&records));
        };
        let failed = "20:00:05.2Z";
        at("untouched.log", failed, "20:00:00.4Z", "untouched: by the agent's log");
        at("killed.log", failed, "20:00:10.4Z", "`phase failed` came 10.40 s");
        at("killed.log", "phase failed", "", "no line with `phase failed`");
        at("agent-log", "20:01:01.0Z", "20:01:20.0Z", "`phase removed` came 20.00 s");
        let section = |name: &str, text: &str, wanted: &str| {
            let mut records = good();
            records.sections.insert(name.into(), vec![text.into()]);
            assert!(all(&records).contains(wanted), "{wanted}: {}", all(&records));
        };
        section("killed.log", "a fault", "killed: the log does not say `step-deadline`");
        section("removed.modules", "nvidia 1 0 - Live", "TERM left nvidia");
        let mut untold = good();
        untold.sections.remove("removed.modules");
        assert!(all(&untold).contains("removed.modules"), "{}", all(&untold));
    }
}
