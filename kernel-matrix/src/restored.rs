//! Judges a driver of which parts are removed while it is Ready (guest/restored.sh): the agent
//! reports not ready, logs the loss, and restores them.

use crate::checks::{self, Expected};
use crate::records::Records;
use crate::served;
use crate::timing;

/// Longest time in seconds until `/readyz` reports it: the agent has one second, the rest is for an
/// emulated machine in which each request is a new process.
const LONGEST: f64 = 15.0;

/// Returns the faults found.
pub fn wrong(expected: &Expected, records: &Records) -> Vec<String> {
    let mut wrong = checks::ready(expected, records, "ready");
    let restored = checks::ready(expected, records, "restored");
    wrong.extend(restored.into_iter().map(|why| format!("after the repair: {why}")));
    wrong.extend(not_ready(records));
    wrong.extend(said(records));
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

/// Checks that the agent is not ready without its node, by `/readyz` and `/status`, and is ready in
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
    match served::answered(records, "restored.readyz") {
        Ok(said) if said.trim_end() == "ready" => {}
        other => wrong.push(format!("/readyz answered {other:?} in the end")),
    }
    wrong
}

/// Checks that the log reports both losses, and that they were put right.
fn said(records: &Records) -> Vec<String> {
    let log = records.text("agent-log");
    let wanted = [
        "exposure-lost: ",
        "is no longer mounted on /run/nvidia/driver",
        "exposure-lost: no longer so: ",
        "phase changing",
    ];
    let unsaid = wanted.iter().filter(|text| !log.contains(**text));
    unsaid.map(|text| format!("the agent's log does not say `{text}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        let not_ready = "HTTP/1.1 503 Service Unavailable\n\nnot ready: exposure-lost: device nodes \
                         are missing or wrong: /dev/nvidia0";
        for (section, text) in [
            ("taken.readyz", not_ready),
            ("taken.status", not_ready),
            ("taken.metrics", "longshore_ready 0"),
            ("restored.readyz", "HTTP/1.1 200 OK\n\nready"),
            (
                "agent-log",
                "exposure-lost: x\nexposure-lost: /tree is no longer mounted on \
                 /run/nvidia/driver\nphase changing\nexposure-lost: no longer so: x",
            ),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(section.to_owned(), lines);
        }
        records
    }

    fn why(section: &str, text: &str) -> String {
        let mut records = good();
        records.sections.insert(section.to_owned(), vec![text.to_owned()]);
        let all = [not_ready(&records), said(&records)].concat();
        all.join("; ")
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
