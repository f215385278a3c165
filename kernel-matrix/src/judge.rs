//! Judges a cell: a pure function of its declaration and of the guest's records.

use std::collections::VecDeque;
use std::time::Duration;

use crate::attacked;
use crate::bad_input;
use crate::cdi;
use crate::checks::{self, Expected};
use crate::cluster;
use crate::cluster_upgrade;
use crate::confinement;
use crate::dead_disk;
use crate::drm;
use crate::event::Outcome;
use crate::hot_plug;
use crate::ima;
use crate::in_use;
use crate::manifest;
use crate::matrix::{Cell, Scenario, Supply};
use crate::nouveau;
use crate::operator;
use crate::operator_pod;
use crate::peermem;
use crate::records::Records;
use crate::restored;
use crate::scene::{self, Scene};
use crate::selinux;
use crate::served;
use crate::trials;
use crate::upgrade;
use crate::warns;

/// Number of last lines of the agent's log that are shown with the faults.
pub(crate) const LAST_LINES: usize = 6;

/// Evidence of a cell's run in a VM.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Random word that the guest was given.
    pub nonce: String,
    /// Records from the results port.
    pub records: Records,
    /// Verdict line of the console: nonce and exit code.
    pub console_verdict: Option<(String, i32)>,
    /// Console lines that report a kernel fault.
    pub trouble: Vec<String>,
    /// The last lines of the console.
    pub tail: VecDeque<String>,
    /// Phases, and the time since QEMU's start at which each was reached.
    pub reached: Vec<(String, Duration)>,
    /// True if the VM was still running at the deadline.
    pub overdue: bool,
    /// True if its power went off.
    pub power_lost: bool,
    /// Signal that ended QEMU.
    pub killed_by: Option<i32>,
}

/// Judges a cell that ran in a VM. QEMU's own exit code means nothing and is ignored.
pub fn judge(cell: &Cell, expected: &Expected, evidence: &Evidence) -> Outcome {
    let trouble = evidence.trouble.iter().filter(|line| !is_expected(cell.scenario, line));
    let mut wrong: Vec<String> = trouble.map(|line| format!("kernel: {line}")).collect();
    if let Some(why) = unfinished(cell, evidence) {
        // A guest that did not finish has no state to compare.
        wrong.push(why);
        wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
        if cell.scenario == Scenario::ClusterUpgrade {
            wrong.extend(cluster_upgrade::complaints(&evidence.records));
        }
    } else if cell.scenario == Scenario::Warns {
        // No agent runs in it.
        wrong.extend(warns::wrong(evidence));
    } else {
        wrong.extend(agent(cell, &evidence.records));
        wrong.extend(scenario(cell, expected, &evidence.records));
        wrong.extend(host(&evidence.records));
    }
    if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) }
}

/// True for a fault in the kernel's log that the scenario provokes.
fn is_expected(scenario: Scenario, trouble: &str) -> bool {
    match scenario {
        Scenario::Peermem => peermem::is_expected(trouble),
        Scenario::Warns => warns::is_expected(trouble),
        _ => false,
    }
}

/// Judges the boot of a cell that ends by a loss of power while the driver is Ready.
pub fn first_boot(cell: &Cell, expected: &Expected, evidence: &Evidence) -> Outcome {
    let mut wrong: Vec<String> =
        evidence.trouble.iter().map(|line| format!("kernel: {line}")).collect();
    match unfinished(cell, evidence) {
        Some(why) => {
            wrong.push(why);
            wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
        }
        None => wrong.extend(checks::ready(expected, &evidence.records, "ready")),
    }
    if wrong.is_empty() {
        return Outcome::Passed;
    }
    wrong.extend(last_log_lines(&evidence.records));
    Outcome::Failed(wrong.into_iter().map(|line| format!("first boot: {line}")).collect())
}

/// Returns the last lines of the agent's log.
pub(crate) fn last_log_lines(records: &Records) -> Vec<String> {
    let log = records.section("agent-log").unwrap_or_default();
    log[log.len().saturating_sub(LAST_LINES)..].iter().map(|l| format!("agent: {l}")).collect()
}

/// Returns why the guest did not finish well; console, results port and nonce must agree on its
/// end.
pub(crate) fn unfinished(cell: &Cell, evidence: &Evidence) -> Option<String> {
    if let Some(why) = evidence.records.excess() {
        return Some(why);
    }
    let phase = evidence.records.phases.last().map_or("boot", String::as_str);
    if evidence.overdue {
        return Some(format!("still at `{phase}` after {} s, killed", cell.deadline_seconds));
    }
    if let Some(signal) = evidence.killed_by {
        return Some(format!("QEMU was ended by signal {signal} at `{phase}`"));
    }
    let (Some(console), Some(results)) = (&evidence.console_verdict, &evidence.records.verdict)
    else {
        return Some(format!("the guest ended at `{phase}` without a verdict"));
    };
    if console.0 != evidence.nonce || results.0 != evidence.nonce {
        return Some("the verdict carries another nonce than the guest was given".into());
    }
    if console.1 != results.1 {
        return Some(format!("console says {}, results say {}", console.1, results.1));
    }
    (console.1 != 0).then(|| format!("the guest's script ended with {} at `{phase}`", console.1))
}

pub(crate) fn agent(cell: &Cell, records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    let wanted = cell.exit.to_string();
    let code = records.facts.get("exit-code").map_or("none", String::as_str);
    if code != wanted {
        wrong.push(format!("the agent's exit code is {code}, not {wanted}"));
    }
    let log = records.text("agent-log");
    let unsaid = cell.says.iter().filter(|text| !log.contains(text.as_str()));
    wrong.extend(unsaid.map(|text| format!("the agent's log does not say `{text}`")));
    if !wrong.is_empty() {
        wrong.extend(last_log_lines(records));
    }
    wrong
}

fn scenario(cell: &Cell, expected: &Expected, records: &Records) -> Vec<String> {
    let loaded = |name: &str| {
        let modules = records.section("before.modules").unwrap_or_default();
        modules.iter().any(|line| line.split(' ').next() == Some(name))
    };
    let mut wrong: Vec<String> = cell
        .preload
        .iter()
        .filter(|name| !loaded(name))
        .map(|name| format!("{name} was to be loaded before"))
        .collect();
    wrong.extend(cell.by_digest.then(|| checks::by_digest(records)).flatten());
    match cell.scenario {
        Scenario::RoundTrip => {
            wrong.extend(checks::ready(expected, records, "ready"));
            if records.phases.iter().any(|phase| phase == "ready") {
                wrong.extend(served::wrong(cell, expected, records));
                wrong.extend(cdi::wrong(cell, records));
                wrong.extend(checks::store_of_host(records));
            }
            wrong.extend(confinement::wrong(cell, records));
            wrong.extend(drm::wrong(cell, records));
            wrong.extend(cell.selinux.then(|| selinux::wrong(records)).into_iter().flatten());
        }
        Scenario::Interrupted => wrong.extend(checks::interrupted(records)),
        Scenario::InUse => wrong.extend(in_use::wrong(expected, records)),
        Scenario::Restored => wrong.extend(restored::wrong(expected, records)),
        Scenario::HotPlug => wrong.extend(hot_plug::wrong(expected, records)),
        Scenario::BadInput => wrong.extend(bad_input::wrong(expected, records)),
        Scenario::DeadDisk => wrong.extend(dead_disk::wrong(expected, records)),
        Scenario::Attacked => {
            let compiles = cell.from == Supply::Compile;
            wrong.extend(attacked::wrong(expected, records, compiles));
        }
        Scenario::Killed => wrong.extend(killed(records)),
        Scenario::Upgrade => wrong.extend(upgrade::wrong(expected, records)),
        Scenario::Ima => wrong.extend(ima::wrong(expected, records)),
        Scenario::Nouveau => wrong.extend(nouveau::wrong(expected, records)),
        Scenario::Peermem => wrong.extend(peermem::wrong(expected, records)),
        Scenario::Operator => wrong.extend(operator::wrong(expected, records)),
        Scenario::Cluster => wrong.extend(cluster::wrong(expected, records)),
        Scenario::ClusterUpgrade => wrong.extend(cluster_upgrade::wrong(expected, records)),
        Scenario::OperatorPod => wrong.extend(operator_pod::wrong(expected, records)),
        // Scenarios of several boots judge each.
        Scenario::Refused
        | Scenario::Warns
        | Scenario::PowerCut
        | Scenario::NextKernel
        | Scenario::Deployed
        | Scenario::Build => {}
    }
    wrong
}

/// Checks that every kill was recovered from.
fn killed(records: &Records) -> Vec<String> {
    let trials = match trials::read(records) {
        Ok(trials) => trials,
        Err(missing) => return vec![missing],
    };
    let mut wrong = differences(records, "after-0");
    if trials.len() < trials::LEAST {
        wrong.push(format!("only {} kills, not {}", trials.len(), trials::LEAST));
    }
    wrong.extend(trials::missing(&trials));
    for trial in trials {
        wrong.extend(trial.wrong.iter().map(|why| format!("{}: {why}", trial.point)));
    }
    wrong
}

/// Checks that the host is exactly as before.
pub(crate) fn host(records: &Records) -> Vec<String> {
    let mut wrong = differences(records, "after");
    wrong.extend(record(records, "after.record"));
    wrong.extend(manifest::wrong(records));
    wrong
}

/// Returns the differences between the host before and in the state reported under `after`.
pub(crate) fn differences(records: &Records, after: &str) -> Vec<String> {
    differences_between(records, "before", after)
}

/// Returns the differences between two states of the host, except the agent's own record.
pub(crate) fn differences_between(records: &Records, before: &str, after: &str) -> Vec<String> {
    let scenes =
        Scene::read(records, before).and_then(|before| Ok((before, Scene::read(records, after)?)));
    let mut wrong = match scenes {
        Ok((before, after)) => before.differences(&after),
        Err(missing) => vec![missing],
    };
    wrong.retain(|difference| !is_own_record(difference));
    wrong
}

/// True if a difference is only the presence of the agent's record: it stays, so that `status` can
/// report the agent's end. Every other file in its directory is a leftover.
fn is_own_record(difference: &str) -> bool {
    difference.strip_prefix("run: after ").is_some_and(scene::is_own_record)
}

/// Checks that the record that stays lists nothing as left.
pub(crate) fn record(records: &Records, section: &str) -> Option<String> {
    let text = match records.section(section) {
        Ok(lines) => lines.join("\n"),
        Err(missing) => return Some(missing),
    };
    let record: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let Some(entries) = record.as_ref().and_then(|r| r.get("entries")?.as_array()) else {
        return Some(format!("the agent's record cannot be read: {text}"));
    };
    let left: Vec<String> =
        entries.iter().filter(|e| e["state"] != "undone").map(|e| e["step"].to_string()).collect();
    (!left.is_empty()).then(|| format!("the agent's record has leftovers: {}", left.join(", ")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn cell() -> Cell {
        toml::from_str(
            "name = 'a'\nscenario = 'refused'\nexit = 17\nsays = ['remedy:']\n\
             kernel = { suite = 's', package = 'p' }\ndriver = { branch = '535', flavour = 'open' }",
        )
        .unwrap()
    }

    /// Evidence of a host that is untouched and an agent that ended with 17.
    pub(crate) fn good() -> Evidence {
        let mut records = Records::default();
        for when in ["before", "after"] {
            scene::tests::report(&mut records, when);
        }
        manifest::tests::report_unchanged(&mut records);
        for line in [
            "@begin after.record",
            "|{ \"phase\": \"failed\", \"entries\": [] }",
            "@end after.record",
            "@begin agent-log",
            "|error: no GPU",
            "|  remedy: put one in",
            "@end agent-log",
            "@fact exit-code 17",
            "@phase stopped",
            "@verdict n0nce 0",
        ] {
            records.take(line);
        }
        Evidence {
            nonce: "n0nce".into(),
            records,
            console_verdict: Some(("n0nce".into(), 0)),
            ..Evidence::default()
        }
    }

    fn why(change: impl FnOnce(&mut Evidence)) -> String {
        let mut evidence = good();
        change(&mut evidence);
        match judge(&cell(), &Expected::default(), &evidence) {
            Outcome::Failed(why) => why.join("\n"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_good_cell_passes() {
        assert_eq!(judge(&cell(), &Expected::default(), &good()), Outcome::Passed);
    }

    #[test]
    fn console_results_and_nonce_have_to_agree() {
        assert!(why(|e| e.console_verdict = None).contains("without a verdict"));
        let silent = |e: &mut Evidence| {
            e.console_verdict = None;
            e.tail.push_back("qemu: no such disk".into());
        };
        assert!(why(silent).contains("console: qemu: no such disk"));
        assert!(why(|e| e.records.verdict = None).contains("without a verdict"));
        assert!(why(|e| e.console_verdict = Some(("other".into(), 0))).contains("another nonce"));
        assert!(why(|e| e.records.verdict = Some(("x".into(), 0))).contains("another nonce"));
        assert!(why(|e| e.console_verdict = Some(("n0nce".into(), 1))).contains("console says 1"));
        let both = |e: &mut Evidence| {
            e.console_verdict = Some(("n0nce".into(), 2));
            e.records.verdict = Some(("n0nce".into(), 2));
        };
        assert!(why(both).contains("ended with 2 at `stopped`"));
        let much = |e: &mut Evidence| {
            e.records.take(&"x".repeat(17 << 20));
        };
        assert!(why(much).contains("more than 16 MiB of records"));
        assert!(why(|e| e.overdue = true).contains("still at `stopped` after 600 s"));
    }

    #[test]
    fn a_first_boot_is_judged_when_the_driver_is_ready_and_says_which_it_was() {
        let Outcome::Failed(why) = first_boot(&cell(), &Expected::default(), &good()) else {
            panic!("passed")
        };
        assert!(why.iter().all(|line| line.starts_with("first boot: ")), "{why:?}");
        assert!(why[0].contains("was never Ready"), "{why:?}");
        assert!(why.iter().any(|line| line.contains("agent: error: no GPU")), "{why:?}");
    }

    #[test]
    fn a_refused_load_of_nvidia_peermem_is_trouble_in_other_scenarios() {
        let line = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)";
        let mut evidence = good();
        evidence.trouble.push(line.into());
        let faults = |scenario| {
            let cell = Cell { scenario, ..cell() };
            format!("{:?}", judge(&cell, &Expected::default(), &evidence))
        };
        assert!(faults(Scenario::Refused).contains(line));
        assert!(!faults(Scenario::Peermem).contains(line));
    }

    #[test]
    fn a_kernel_in_trouble_fails_and_is_shown() {
        assert!(why(|e| e.trouble.push("BUG: bad".into())).contains("kernel: BUG: bad"));
    }

    #[test]
    fn exit_code_and_log_are_held_to_what_was_declared() {
        let code = |e: &mut Evidence| {
            e.records.facts.insert("exit-code".into(), "0".into());
        };
        assert!(why(code).contains("exit code is 0, not 17"));
        assert!(why(code).contains("agent:   remedy: put one in"));
        let log = |e: &mut Evidence| {
            e.records.sections.insert("agent-log".into(), vec!["error".into()]);
        };
        assert!(why(log).contains("does not say `remedy:`"));
        let json = |e: &mut Evidence| {
            for line in [
                "@begin agent-log",
                r#"|{"timestamp":"t","level":"ERROR","message":"m","exit_code":17,"cause":"no GPU","remedy":"r"}"#,
                "@end agent-log",
            ] {
                e.records.take(line);
            }
        };
        assert_eq!(why(json), "Passed");
    }

    #[test]
    fn the_agents_record_may_stay_and_nothing_beside_it() {
        let with = |line: &str| {
            let line = line.to_owned();
            move |e: &mut Evidence| e.records.sections.get_mut("after.run").unwrap().insert(0, line)
        };
        assert_eq!(why(with("f 600 0:0 912 /run/longshore/state.json")), "Passed");
        assert_eq!(why(with(&format!("{}  /run/longshore/state.json", "a".repeat(64)))), "Passed");
        assert_eq!(why(with("f 644 0:0 0 /run/longshore/starts.json")), "Passed");
        for line in [
            "f 600 0:0 912 /run/longshore/other",
            "f 600 9:0 - /run/longshore/state.json",
            "l 777 0:0 - /run/longshore/state.json /etc/passwd",
            "d 755 0:0 - /run/nvidia/driver",
        ] {
            assert!(why(with(line)).contains(line), "{line}: {}", why(with(line)));
        }
        let record = |text: &'static str| {
            move |e: &mut Evidence| {
                e.records.sections.insert("after.record".into(), vec![text.into()]);
            }
        };
        let undone = "{\"entries\": [{\"step\": {\"do\": \"bind\"}, \"state\": \"undone\"}]}";
        assert_eq!(why(record(undone)), "Passed");
        let done = "{\"entries\": [{\"step\": {\"do\": \"bind\"}, \"state\": \"done\"}]}";
        assert!(why(record(done)).contains("leftovers: {\"do\":\"bind\"}"));
        assert!(why(record("cat: no such file")).contains("cannot be read"));
    }

    #[test]
    fn what_is_left_on_the_host_fails() {
        let left = |e: &mut Evidence| {
            let modules = vec!["ext4 1 0 - Live 0x0".into(), "nvidia 9 0 - Live 0x0".into()];
            e.records.sections.insert("after.modules".into(), modules);
        };
        assert!(why(left).contains("modules: after nvidia"));
        let written = |e: &mut Evidence| {
            e.records.sections.insert("after.written".into(), vec!["/etc/x".into()]);
        };
        assert!(why(written).contains("written: /etc/x"));
        let unsaid = |e: &mut Evidence| {
            e.records.sections.remove("after.mounts");
        };
        assert!(why(unsaid).contains("did not report `after.mounts`"));
    }
}
