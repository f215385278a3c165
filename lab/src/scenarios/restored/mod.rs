//! Judges a driver of which parts are removed while it is Ready (script.sh): the agent
//! reports not ready, logs the loss, and restores them.

use crate::judge::answers;
use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{Restored, Scenario};

/// Longest time in seconds from a loss until the agent's own log has it (docs/operate/lifecycle.md).
const FOUND: f64 = 1.0;
/// Seconds beyond it: the guest takes the time before the programs that remove the part, which are started on an
/// emulated processor that others on the machine share (4.6 s seen). `lifecycle::watch` has the exact bound, on a paused clock.
const EMULATED: f64 = 5.0;
/// Longest time in seconds from there until the log has the begin of the repair.
const REPAIR: f64 = 3.0;
/// Longest time in seconds until `status --ready` reports it, which is asked by a new process each time.
const LONGEST: f64 = 15.0;
/// Parts of the agent's message about the lost node: that it is missing, or cannot be made.
const NODE: [&str; 2] = ["exposure-lost: ", "/dev/nvidia0"];
/// Part of the agent's message about the lost mount.
const MOUNT: &str = "is no longer mounted on /run/nvidia/driver";

impl Scenario for Restored {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = checks::ready(expected, records, "ready");
        let restored = checks::ready(expected, records, "restored");
        wrong.extend(checks::under("after the repair", restored));
        wrong.extend(not_ready(records));
        wrong.extend(said(records));
        wrong.extend(found(records));
        for (what, fact) in [
            ("not ready without its node", "restored.node-seconds"),
            ("ready with its mount put back", "restored.mount-seconds"),
        ] {
            match timing::span(records, fact) {
                Ok(seconds) if seconds <= LONGEST => {}
                Ok(seconds) => wrong.push(format!("{what} only after {seconds:.1} s")),
                Err(missing) => wrong.push(missing),
            }
        }
        wrong
    }
}

/// Checks that the agent is not ready without its node, by `status --ready` and `--json`, and is ready in
/// the end.
fn not_ready(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for section in ["taken.readyz", "taken.status"] {
        let said = records.text(section);
        if !said.contains("exposure-lost") || !said.contains("/dev/nvidia0") {
            wrong.push(format!("{section} does not report the node: `{said}`"));
        }
    }
    if !records.text("taken.metrics").contains("longshore_ready 0") {
        wrong.push("the metrics say that it is ready without its node".into());
    }
    match answers::answered(records, "restored.readyz") {
        Ok(said) if said.trim_end() == "ready" => {}
        other => wrong.push(format!("/readyz answered {other:?} in the end")),
    }
    wrong
}

/// Checks that the log reports both losses, and that they were put right.
fn said(records: &Records) -> Vec<String> {
    let log = records.text("agent-log");
    let wanted = ["exposure-lost: ", MOUNT, "exposure-lost: no longer so: ", "phase changing"];
    let unsaid = wanted.iter().filter(|text| !log.contains(**text));
    unsaid.map(|text| format!("the agent's log does not say `{text}`")).collect()
}

/// Checks by the agent's own times that each loss was found in time, that the repair of the mount began at once, and that
/// it succeeded.
fn found(records: &Records) -> Vec<String> {
    let log = records.section("agent-log").unwrap_or_default();
    let lost = [("node", &NODE[..]), ("mount", &[MOUNT])];
    let mut wrong: Vec<String> = lost
        .into_iter()
        .filter_map(|(what, parts)| match found_after(records, log, what, parts) {
            Ok((_, seconds)) if seconds <= FOUND + EMULATED => None,
            Ok((_, seconds)) => Some(format!("the lost {what} was logged {seconds:.2} s later")),
            Err(missing) => Some(missing),
        })
        .collect();
    if let Ok((at, _)) = found_after(records, log, "mount", &[MOUNT]) {
        let begun = log.iter().filter(|line| line.contains("phase changing"));
        let begun = begun.filter_map(|line| timing::time_of(line));
        match begun.map(|time| timing::since(at, time)).min_by(f64::total_cmp) {
            Some(seconds) if seconds <= REPAIR => {}
            Some(seconds) => {
                wrong.push(format!("the repair of the mount began {seconds:.2} s later"))
            }
            None => wrong.push("the log has no repair of the mount".into()),
        }
    }
    if !log.iter().any(|line| line.contains("no longer so: ") && line.contains(MOUNT)) {
        wrong.push("the log does not say that the mount was put right".into());
    }
    wrong
}

/// Returns the second of the day of the first line with these parts since `what` was taken away, and the seconds
/// between the two.
fn found_after(
    records: &Records,
    log: &[String],
    what: &str,
    parts: &[&str],
) -> Result<(f64, f64), String> {
    let fact = format!("restored.{what}-taken");
    let taken = records.facts.get(&fact).and_then(|clock| timing::seconds_of_day(clock));
    let taken = taken.ok_or_else(|| format!("the guest's `{fact}` is absent or malformed"))?;
    let says = |line: &&String| {
        parts.iter().all(|part| line.contains(part)) && !line.contains("no longer so")
    };
    let times = log.iter().filter(says).filter_map(|line| timing::time_of(line));
    let later = times.map(|time| (time, timing::since(taken, time)));
    later
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .ok_or_else(|| format!("the agent's log has no line with {parts:?} and a time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        2026-11-25T20:00:10.5Z  WARN exposure-lost: exposing the driver to the host: mknod \
        /proc/1/root/dev/nvidia0 (no character device): EEXIST: File exists; remedy: x\n\
        2026-11-25T20:00:10.6Z  INFO phase changing, after 9.0 s of ready\n\
        2026-11-25T20:00:15.0Z  INFO exposure-lost: no longer so: exposing the driver to the host: mknod \
        /proc/1/root/dev/nvidia0 (no character device): EEXIST: File exists\n\
        2026-11-25T20:00:20.4Z  WARN exposure-lost: /tree is no longer mounted on /run/nvidia/driver/usr; remedy: x\n\
        2026-11-25T20:00:20.5Z  INFO phase changing, after 7.6 s of ready\n\
        2026-11-25T20:00:27.4Z  INFO exposure-lost: no longer so: /tree is no longer mounted on \
        /run/nvidia/driver/usr";

    fn good() -> Records {
        let mut records = Records::default();
        records.take("@fact restored.node-taken 20:00:10.123456789");
        records.take("@fact restored.mount-taken 20:00:20.000000000");
        let not_ready = "exit code 30\n\nnot ready: exposure-lost: device nodes \
                         are missing or wrong: /dev/nvidia0";
        for (section, text) in [
            ("taken.readyz", not_ready),
            ("taken.status", not_ready),
            ("taken.metrics", "longshore_ready 0"),
            ("restored.readyz", "exit code 0\n\nready"),
            ("agent-log", LOG),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(section.to_owned(), lines);
        }
        records
    }

    fn why(section: &str, text: &str) -> String {
        let mut records = good();
        records.sections.insert(section.to_owned(), vec![text.to_owned()]);
        let all = [not_ready(&records), said(&records), found(&records)].concat();
        all.join("; ")
    }

    #[test]
    fn an_agent_that_finds_a_loss_late_or_puts_it_right_late_is_found() {
        for (from, to, wanted) in [
            ("20:00:10.5Z", "20:00:11.4Z", ""),
            ("20:00:10.5Z", "20:00:17.2Z", "the lost node was logged 7.08 s later"),
            ("20:00:10.5Z", "20:00:20.5Z", "the lost node was logged 10.38 s later"),
            ("20:00:20.4Z", "20:00:27.1Z", "the lost mount was logged 7.10 s later"),
            ("20:00:20.5Z", "20:00:30.4Z", "the repair of the mount began 10.00 s later"),
            ("no longer so: /tree", "/tree", "does not say that the mount was put right"),
            ("WARN exposure-lost: /tree", "WARN", "no line with [\"is no longer mounted"),
        ] {
            let text = LOG.replace(from, to);
            let text = if to == "WARN" { text.replace("is no longer mounted", "x") } else { text };
            let mut records = good();
            records.sections.insert("agent-log".into(), text.lines().map(str::to_owned).collect());
            let why = found(&records).join("; ");
            assert_eq!(why.is_empty(), wanted.is_empty(), "{why}");
            assert!(why.contains(wanted), "{why}");
        }
        let mut untold = good();
        untold.facts.remove("restored.node-taken");
        assert!(found(&untold)[0].contains("`restored.node-taken` is absent"));
    }

    #[test]
    fn each_thing_that_is_not_said_is_found() {
        assert_eq!(why("other", ""), "");
        for (section, wanted) in [
            ("taken.readyz", "taken.readyz does not report"),
            ("taken.status", "taken.status does not report"),
            ("taken.metrics", "the metrics say"),
            ("restored.readyz", "in the end"),
            ("agent-log", "`phase changing`"),
        ] {
            assert!(why(section, "").contains(wanted), "{section}");
        }
    }
}
