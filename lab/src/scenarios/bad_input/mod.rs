//! Judges a driver on a host with bad input (script.sh): links of former nodes in /dev/char, a
//! directory of specs that is read-only and then full, and a second agent.

use crate::judge::answers;
use crate::judge::checks::{self, Expected};
use crate::judge::identity;
use crate::judge::records::Records;
use crate::scenarios::{BadInput, Scenario};

/// Name of the published spec.
const SPEC: &str = "longshore-nvidia.com-gpu.json";

impl Scenario for BadInput {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = checks::ready(expected, records, "ready");
        let mut beside = checks::kernel_side(expected, records, "beside");
        beside.extend(checks::user_side(expected, records, "beside"));
        wrong.extend(checks::under("beside a second agent", beside));
        wrong.extend(identity::compare(records, "alone", "beside", &[]));
        wrong.extend(answers(records));
        wrong.extend(specs(records));
        wrong.extend(links(records));
        wrong.extend(second(records));
        wrong
    }
}

/// Checks that the agent is ready throughout, and names the spec that it cannot publish: the reason is in
/// the log.
fn answers(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for (when, reason) in [
        ("read-only", Some("Read-only file system")),
        ("full", Some("No space left on device")),
        ("published", None),
        ("beside", None),
    ] {
        if answers::answered(records, &format!("{when}.readyz")).as_deref().map(str::trim)
            != Ok("ready")
        {
            wrong.push(format!("{when}: not ready: {}", records.text(&format!("{when}.readyz"))));
        }
        let status = records.text(&format!("{when}.status"));
        let is_named = status.contains("cdi-unpublished");
        if is_named != reason.is_some() {
            wrong.push(format!("{when}: cdi-unpublished in /status: {is_named}: {status}"));
        }
        if reason.is_some_and(|reason| !records.text("agent-log").contains(reason)) {
            wrong.push(format!("{when}: the agent's log does not say {reason:?}"));
        }
    }
    wrong
}

/// Checks that there is no part of a spec, and a whole one once there is space.
fn specs(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for (when, wanted) in
        [("read-only", &[][..]), ("full", &["filler"]), ("published", &[SPEC]), ("beside", &[SPEC])]
    {
        let seen = match records.section(&format!("{when}.specs")) {
            Ok(seen) => seen,
            Err(missing) => return vec![missing],
        };
        let names: Vec<&str> = seen.iter().filter_map(|line| line.split(' ').next()).collect();
        if names != wanted {
            wrong.push(format!("{when}: the directory of specs has {seen:?}, not {wanted:?}"));
        }
    }
    wrong
}

/// Checks that the link of a number that the driver has now leads to its node, after the start and after
/// another program changed it, that the change is back in the end, and that one of no device stays.
fn links(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for when in ["ready", "repaired"] {
        let seen = records.text(&format!("{when}.links"));
        let uvm = seen.lines().last().unwrap_or_default();
        let is_right = seen.contains("195:255 ../nvidiactl")
            && seen.contains("511:0 ../nvidia-uvm")
            && uvm.ends_with(" ../nvidia-uvm")
            && !uvm.starts_with("511:0 ");
        if !is_right {
            wrong.push(format!("{when}: links in /dev/char: {seen}"));
        }
    }
    let returned = records.text("returned");
    if returned != "../nvidia-modeset" {
        wrong.push(format!("another program's link came back as `{returned}`"));
    }
    wrong
}

/// Checks the ends of second agents: one at its deadline, one at TERM.
fn second(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, code, said) in [
        ("late", "15", "another longshore runs (pid "),
        ("stopped", "0", "another longshore runs (pid "),
    ] {
        let seen = records.fact(&format!("{name}.exit-code"));
        let log = records.text(&format!("{name}.log"));
        if seen != code || !log.contains(said) {
            wrong
                .push(format!("second agent, {name}: exit code {seen}, not {code}; it says {log}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(section: &str, text: &str, code: &str) -> String {
        let mut records = Records::default();
        let (ready, spec) = ("exit code 0\n\nready", format!("{SPEC} 4000"));
        let right = "195:255 ../nvidiactl\n511:0 ../nvidia-uvm\n241:0 ../nvidia-uvm";
        let log = "INFO another longshore runs (pid 7 on node)";
        for (name, text) in [
            ("read-only.status", "cdi-unpublished"),
            ("full.status", "cdi-unpublished"),
            ("agent-log", "Read-only file system\nNo space left on device"),
            ("read-only.specs", ""),
            ("full.specs", "filler 131072"),
            ("published.specs", &spec),
            ("beside.specs", &spec),
            ("read-only.readyz", ready),
            ("full.readyz", ready),
            ("published.readyz", ready),
            ("beside.readyz", ready),
            ("ready.links", right),
            ("repaired.links", right),
            ("returned", "../nvidia-modeset"),
            ("late.log", log),
            ("stopped.log", log),
            (section, text),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(name.to_owned(), lines);
        }
        records.facts.insert("late.exit-code".into(), code.into());
        records.facts.insert("stopped.exit-code".into(), "0".into());
        [answers(&records), specs(&records), links(&records), second(&records)].concat().join("; ")
    }

    #[test]
    fn each_fault_is_found() {
        assert_eq!(all("other", "", "15"), "");
        assert!(all("other", "", "20").contains("late: exit code 20, not 15"));
        for (section, text, wanted) in [
            ("read-only.readyz", "exit code 30\n\nnot ready", "read-only: not ready"),
            ("read-only.status", "{}", "read-only: cdi-unpublished in /status: false"),
            ("agent-log", "Read-only file system", "full: the agent's log does not say"),
            ("published.status", "cdi-unpublished", "published: cdi-unpublished in /status: true"),
            ("full.specs", "filler 1\n.spec 3", "full: the directory of specs has"),
            ("beside.specs", "", "beside: the directory of specs has"),
            ("ready.links", "195:255 ../nvidia-uvm", "ready: links in /dev/char"),
            ("returned", "", "came back as ``"),
            ("stopped.log", "", "stopped: exit code 0"),
        ] {
            let wrong = all(section, text, "15");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
    }
}
