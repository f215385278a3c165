//! Judges many agent runs in one guest, each killed at another point (scenarios/killed/script.sh): the state
//! of the host at each kill, its recovery, and that it is as before.

use serde::Serialize;

use crate::judge::end;
use crate::judge::records::Records;

/// Exit code of a container that SIGKILL ended, as podman gives it.
pub(crate) const KILLED: &str = "137";

/// Least number of agent runs in a guest that must have been killed.
pub(crate) const LEAST: usize = 20;

/// Points that are no write of the journal, and the state of each module in /proc/modules that they are named for.
const NAMED: [(&str, &[(&str, &str)]); 3] = [
    ("nvidia is being loaded", &[("nvidia", "Loading")]),
    ("Ready", &[("nvidia", "Live"), ("nvidia_uvm", "Live"), ("nvidia_modeset", "Live")]),
    ("nvidia is being removed", &[("nvidia", "Unloading")]),
];

/// One agent run that was cut off, and its recovery.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Point at which it was cut off.
    pub point: String,
    /// State of the host then.
    pub found: String,
    /// Command that recovered the host: `start` or `unload`.
    pub recovery: String,
    /// Seconds until the agent was Ready again, or `unload` had ended, including the start of its
    /// container.
    pub seconds: f64,
    /// Faults after the recovery.
    pub wrong: Vec<String>,
}

impl Trial {
    /// Returns the trial as a line for people.
    pub fn line(&self) -> String {
        let Self { point, found, recovery, seconds, wrong } = self;
        let outcome = if wrong.is_empty() { "recovered" } else { "NOT RECOVERED" };
        format!("{point:42} {found:60} {recovery:6} {seconds:5.1} s  {outcome}")
    }
}

/// Reads and judges all trials of a guest.
///
/// # Errors
/// The guest did not report how many there are.
pub(crate) fn read(records: &Records) -> Result<Vec<Trial>, String> {
    let count = records.facts.get("trials").and_then(|n| n.parse::<usize>().ok());
    let count = count.ok_or("the guest did not report the number of trials")?;
    Ok((1..=count).map(|number| trial(records, number)).collect())
}

fn trial(records: &Records, number: usize) -> Trial {
    let fact = |what: &str| records.facts.get(&format!("{what}-{number}")).map(String::as_str);
    let recovery = fact("recovery").unwrap_or("none");
    Trial {
        point: fact("point").unwrap_or("unknown").to_owned(),
        found: found(records, number),
        recovery: recovery.split(' ').next().unwrap_or_default().to_owned(),
        seconds: seconds(recovery).unwrap_or(f64::NAN),
        wrong: wrong(records, number),
    }
}

/// Returns the seconds of the fact `start FROM UNTIL`, both in seconds since boot.
pub(crate) fn seconds(recovery: &str) -> Option<f64> {
    let mut words = recovery.split(' ').skip(1);
    let (from, until): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(until - from)
}

/// Returns the named points at which no agent run was killed.
pub(crate) fn missing(trials: &[Trial]) -> Vec<String> {
    let is_there = |point: &str| trials.iter().any(|trial| trial.point == point);
    let missing = NAMED.iter().filter(|(point, _)| !is_there(point));
    missing.map(|(point, _)| format!("no kill when {point}")).collect()
}

/// Checks that the modules were, at the kill, in the states that the point is named for.
fn elsewhere(records: &Records, number: usize) -> Vec<String> {
    let point = records.facts.get(&format!("point-{number}")).map_or("", String::as_str);
    let Some((_, states)) = NAMED.iter().find(|(named, _)| *named == point) else {
        return Vec::new();
    };
    let modules = match records.section(&format!("death-{number}.modules")) {
        Ok(modules) => modules,
        Err(missing) => return vec![missing],
    };
    let state_of = |name: &str| {
        let line = modules.iter().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.split(' ').nth(4)).unwrap_or("not loaded")
    };
    let others = states.iter().filter(|(name, state)| state_of(name) != *state);
    others
        .map(|(name, state)| format!("{name} was {} at the kill, not {state}", state_of(name)))
        .collect()
}

fn wrong(records: &Records, number: usize) -> Vec<String> {
    let mut wrong = elsewhere(records, number);
    for (what, wanted) in [("killed", KILLED), ("recovered", "0")] {
        let other = records.unlike(&format!("{what}-{number}"), wanted);
        wrong.extend(other.map(|code| format!("{what} with exit code {code}, not {wanted}")));
    }
    let recovery = records.facts.get(&format!("recovery-{number}")).map_or("", String::as_str);
    if recovery.is_empty() {
        wrong.push("the agent was not Ready again".into());
    } else if recovery.starts_with("start ") {
        wrong.extend(end::differences_between(records, "ready-0", &format!("ready-{number}")));
    }
    let after = format!("after-{number}");
    wrong.extend(end::differences(records, &after));
    wrong.extend(end::record(records, &format!("{after}.record")));
    if !wrong.is_empty() {
        wrong.extend(end::last_lines(records, &format!("recovery-log-{number}")));
    }
    wrong
}

/// Describes the state that a killed agent left: its journal's phase and entries, and the host's
/// modules, mounts and nodes.
fn found(records: &Records, number: usize) -> String {
    let lines =
        |what: &str| records.section(&format!("death-{number}.{what}")).unwrap_or_default().iter();
    let before = records.section("before.modules").unwrap_or_default();
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    let known: Vec<String> = before.iter().map(name).collect();
    let modules = lines("modules").filter(|line| !known.contains(&name(line))).count();
    let mounts = lines("mounts").count();
    let nodes = lines("nodes").count();
    let journal = records.text(&format!("death-{number}.journal"));
    format!("{}; {modules} modules, {mounts} mounts, {nodes} nodes", journal_of(&journal))
}

/// Returns the journal's phase, and the number of entries that are not undone.
pub(crate) fn journal_of(text: &str) -> String {
    let Ok(state) = serde_json::from_str::<serde_json::Value>(text) else {
        return "no journal".to_owned();
    };
    let phase = state["phase"].as_str().unwrap_or("no phase");
    let empty = Vec::new();
    let entries = state["entries"].as_array().unwrap_or(&empty);
    let count = |wanted: &str| entries.iter().filter(|e| e["state"] == wanted).count();
    format!("{phase}, {} done, {} intended", count("done"), count("intended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        for when in ["before", "ready-0", "ready-1", "after-1", "after-2"] {
            crate::judge::testing::report_scene(&mut records, when);
        }
        let mut section = |name: &str, text: &str| {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(name.to_owned(), lines);
        };
        for number in [1, 2] {
            section(&format!("after-{number}.record"), "{\"entries\": []}");
            section(
                &format!("death-{number}.journal"),
                "{\"phase\": \"installing\", \"entries\": [{\"state\": \"done\"}, {\"state\": \"intended\"}]}",
            );
            let modules = match number {
                1 => "nvidia 9 0 - Loading 0x0",
                _ => {
                    "nvidia_uvm 9 0 - Live 0x0\nnvidia_modeset 9 0 - Live 0x0\n\
                      nvidia 9 2 nvidia_uvm,nvidia_modeset, Live 0x0"
                }
            };
            section(&format!("death-{number}.modules"), &format!("ext4 1 0 - Live 0x0\n{modules}"));
            section(&format!("death-{number}.mounts"), "");
            section(&format!("death-{number}.nodes"), "/dev/nvidia0");
            section(&format!("recovery-log-{number}"), "phase removed");
        }
        for line in [
            "@fact trials 2",
            "@fact point-1 nvidia is being loaded",
            "@fact killed-1 137",
            "@fact recovery-1 start 10.00 12.50",
            "@fact recovered-1 0",
            "@fact point-2 Ready",
            "@fact killed-2 137",
            "@fact recovery-2 unload 20.00 21.00",
            "@fact recovered-2 0",
        ] {
            records.take(line);
        }
        records
    }

    #[test]
    fn a_trial_tells_what_was_found_and_how_long_the_recovery_took() {
        let trials = read(&good()).unwrap();
        assert_eq!(trials[0].point, "nvidia is being loaded");
        assert_eq!(trials[0].found, "installing, 1 done, 1 intended; 1 modules, 0 mounts, 1 nodes");
        assert_eq!((trials[0].recovery.as_str(), trials[0].seconds), ("start", 2.5));
        assert_eq!((trials[1].recovery.as_str(), trials[1].seconds), ("unload", 1.0));
        assert!(trials.iter().all(|trial| trial.wrong.is_empty()), "{trials:?}");
    }

    #[test]
    fn what_is_wrong_is_found() {
        let fact = |key: &'static str, value: &'static str| {
            move |records: &mut Records| {
                records.facts.insert(key.into(), value.into());
            }
        };
        let section = |name: &'static str, text: &'static str| {
            move |records: &mut Records| {
                records.sections.insert(name.into(), vec![text.into()]);
            }
        };
        let why = |change: &dyn Fn(&mut Records)| {
            let mut records = good();
            change(&mut records);
            read(&records).unwrap().remove(0).wrong.join("\n")
        };
        assert!(why(&fact("killed-1", "0")).contains("killed with exit code 0, not 137"));
        assert!(why(&fact("recovered-1", "21")).contains("recovered with exit code 21"));
        assert!(why(&fact("recovered-1", "21")).contains("agent: phase removed"));
        let never = |records: &mut Records| {
            records.facts.remove("recovery-1");
        };
        assert!(why(&never).contains("was not Ready again"));
        let other = |records: &mut Records| {
            let line = "c 666 0:0 1:3 /dev/other".to_owned();
            records.sections.get_mut("ready-1.dev").unwrap().insert(0, line);
        };
        assert!(why(&other).contains("/dev/other"));
        assert!(why(&section("after-1.modules", "nvidia 9 0 - Live 0x0")).contains("after nvidia"));
        assert!(why(&section("after-1.record", "cut off")).contains("cannot be read"));
        assert!(read(&Records::default()).is_err());
    }

    #[test]
    fn a_kill_at_another_moment_than_its_point_is_named_for_is_a_fault() {
        for (point, modules, wanted) in [
            ("nvidia is being loaded", "nvidia 9 0 - Live 0x0", "nvidia was Live"),
            ("nvidia is being loaded", "ext4 9 0 - Live 0x0", "nvidia was not loaded"),
            ("nvidia is being loaded", "nvidia_uvm 9 0 - Loading 0x0", "nvidia was not loaded"),
            ("nvidia is being removed", "nvidia 9 0 - Live 0x0", "nvidia was Live"),
            ("nvidia is being removed", "", "nvidia was not loaded"),
            ("Ready", "nvidia 9 0 - Live 0x0", "nvidia_uvm was not loaded"),
            ("Ready", "nvidia 9 0 - Unloading 0x0", "nvidia was Unloading"),
        ] {
            let mut records = good();
            records.facts.insert("point-1".into(), point.into());
            let lines = modules.lines().map(str::to_owned).collect();
            records.sections.insert("death-1.modules".into(), lines);
            let wrong = read(&records).unwrap().remove(0).wrong.join("\n");
            assert!(wrong.contains(&format!("{wanted} at the kill")), "{point}: {wrong}");
        }
        let mut records = good();
        records.sections.remove("death-1.modules");
        let wrong = read(&records).unwrap().remove(0).wrong.join("\n");
        assert!(wrong.contains("death-1.modules"), "{wrong}");
    }

    #[test]
    fn a_named_point_without_a_kill_is_told() {
        assert_eq!(missing(&read(&good()).unwrap()), ["no kill when nvidia is being removed"]);
    }
}
