//! Checks of every guest: its end, the agent's, and that the host is as before.

use crate::cell::Cell;
use crate::judge::checks;
use crate::judge::evidence::Evidence;
use crate::judge::manifest;
use crate::judge::records::Records;
use crate::judge::scene::{self, Scene};

/// Number of last lines of the agent's log that are shown with the faults.
const LAST_LINES: usize = 6;

/// Returns the last lines of the agent's log in a section.
pub(crate) fn last_lines(records: &Records, section: &str) -> Vec<String> {
    let log = records.section(section).unwrap_or_default();
    log[log.len().saturating_sub(LAST_LINES)..].iter().map(|l| format!("agent: {l}")).collect()
}

/// Returns why the guest did not finish well; console, results port and nonce must agree on its
/// end.
pub fn unfinished(cell: &Cell, evidence: &Evidence) -> Option<String> {
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

/// Returns the faults in the kernel's log, and those that `judge` finds in the records of a guest that finished well; of
/// any other one, which has no state to judge, why it did not, and the last lines of its console.
pub(crate) fn judged(
    cell: &Cell,
    evidence: &Evidence,
    judge: impl FnOnce(&Records) -> Vec<String>,
) -> Vec<String> {
    let mut wrong: Vec<String> =
        evidence.trouble.iter().map(|line| format!("kernel: {line}")).collect();
    match unfinished(cell, evidence) {
        Some(why) => {
            wrong.push(why);
            wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
        }
        None => wrong.extend(judge(&evidence.records)),
    }
    wrong
}

/// Checks the guest before the agent started: modules that the cell loads, and the image that it names by its digest.
pub(crate) fn begin(cell: &Cell, records: &Records) -> Vec<String> {
    let loaded = |name: &str| {
        let modules = records.section("before.modules").unwrap_or_default();
        modules.iter().any(|line| line.split(' ').next() == Some(name))
    };
    let absent = cell.preload.iter().filter(|name| !loaded(name));
    let mut wrong: Vec<String> =
        absent.map(|name| format!("{name} was to be loaded before")).collect();
    wrong.extend(cell.by_digest.then(|| checks::by_digest(records)).flatten());
    wrong
}

/// Checks the exit code and the log of the agent.
pub(crate) fn agent(cell: &Cell, records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    let wanted = cell.exit.to_string();
    let other = records.unlike("exit-code", &wanted);
    wrong.extend(other.map(|code| format!("the agent's exit code is {code}, not {wanted}")));
    let log = records.text("agent-log");
    let unsaid = cell.says.iter().filter(|text| !log.contains(text.as_str()));
    wrong.extend(unsaid.map(|text| format!("the agent's log does not say `{text}`")));
    if !wrong.is_empty() {
        wrong.extend(last_lines(records, "agent-log"));
    }
    wrong
}

/// Checks that the host is exactly as before.
pub fn host(records: &Records) -> Vec<String> {
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
