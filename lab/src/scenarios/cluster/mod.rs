//! Judges a node whose DaemonSet ran the agent (script.sh), in a real Kubernetes cluster.

use crate::cell::needs::Needs;
use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{Cluster, Scenario};

impl Scenario for Cluster {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = checks::ready(expected, records, "ready");
        wrong.extend(condition(records));
        wrong.extend(through_kubelet(records));
        wrong.extend(looped(records));
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { cluster: true, ..Needs::default() }
    }

    /// Returns the measured times: of kubelet's start until its node was Ready, and of the DaemonSet's
    /// creation until its pod was, and of its deletion until the API server had no pod of it.
    fn measured(&self, _expected: &Expected, records: &Records) -> Vec<(String, String)> {
        timing::spans(
            records,
            &[
                ("node", "kubelet's start to node Ready"),
                ("pod", "DaemonSet to pod Ready"),
                ("deletion", "deletion to no pod"),
            ],
        )
    }
}

/// Checks the answers about an agent that was told to install driver 999, and ended with each start: there is no
/// container for `kubectl exec`; log and diagnosis are there all the same, and no pod of a diagnosis is left.
fn looped(records: &Records) -> Vec<String> {
    let pods = records.text("looped.pods");
    let mut wrong: Vec<String> = [
        ("looped.exec", &["container not found", "exit code 1"][..]),
        ("looped.asked", &["an agent's container are in default", "exit code 2"]),
        ("looped.logs", &["no archive is configured", "exit code 0"]),
        ("looped.doctor", &["REFUSED", "no archive is configured", "exit code 12"]),
    ]
    .iter()
    .flat_map(|(section, wanted)| wanted.iter().map(move |text| (section, text)))
    .filter(|(section, text)| !records.text(section).contains(**text))
    .map(|(section, text)| format!("{section} has no `{text}`: {}", records.text(section)))
    .collect();
    if pods.contains("longshore-doctor") {
        wrong.push(format!("a pod of a diagnosis is left: {pods}"));
    }
    if !pods.lines().any(has_restarted) {
        wrong.push(format!("no agent was started again: {pods}"));
    }
    wrong
}

/// True for a row of `kubectl get pods --all-namespaces` about an agent that was started again. Its status is
/// CrashLoopBackOff, or Running while it is started once more.
fn has_restarted(row: &str) -> bool {
    let columns: Vec<&str> = row.split_whitespace().collect();
    let [_, name, _, _, restarts, ..] = columns.as_slice() else { return false };
    name.starts_with("longshore-") && restarts.parse().is_ok_and(|count: u32| count > 0)
}

/// Checks that the API server reaches kubelet: for the agent's log, and for a command in its container, which says
/// `ready` and nothing else.
fn through_kubelet(records: &Records) -> Vec<String> {
    let (log, said) = (records.text("ready.logs"), records.text("ready.exec"));
    let is_ready = |line: &str| line.contains(" is ready") || line.contains("phase ready");
    let mut wrong = Vec::new();
    if !log.lines().any(is_ready) {
        wrong.push(format!("ready.logs has no line by which the driver is ready: {log}"));
    }
    if said.trim_end() != "ready" {
        wrong.push(format!("ready.exec is not `ready`: {said}"));
    }
    wrong
}

/// Checks the conditions that the API server has of the node.
fn condition(records: &Records) -> Option<String> {
    let node = records.text("ready.node");
    let is_ready = node.lines().any(|condition| condition == "Ready=True");
    (!is_ready).then(|| format!("the node is not Ready: {node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_ready_is_found() {
        for (conditions, fault) in [
            (&["MemoryPressure=False", "Ready=True"][..], ""),
            (&["MemoryPressure=True", "Ready=False"], "the node is not Ready: MemoryPressure=True"),
            (&[], "the node is not Ready"),
        ] {
            let mut records = Records::default();
            let lines = conditions.iter().map(|line| (*line).to_owned()).collect();
            records.sections.insert("ready.node".into(), lines);
            let wrong = condition(&records).unwrap_or_default();
            assert_eq!(wrong.is_empty(), fault.is_empty(), "{wrong}");
            assert!(wrong.starts_with(fault), "{wrong}");
        }
    }

    #[test]
    fn an_api_server_that_does_not_reach_kubelet_is_found() {
        for (logs, exec, faults) in [
            ("driver 550 is ready", "ready", 0),
            ("error: dial tcp", "ready", 1),
            ("error: dial tcp", "error: unable to upgrade connection", 2),
            ("driver 550 is ready", "not ready: exposure-lost: x", 1),
            ("driver 550 is ready", "ready\nerror: no", 1),
            ("phase failed: the node is not ready", "not ready", 2),
            ("", "", 2),
        ] {
            let mut records = Records::default();
            for (section, text) in [("ready.logs", logs), ("ready.exec", exec)] {
                records.sections.insert(section.into(), vec![text.to_owned()]);
            }
            assert_eq!(through_kubelet(&records).len(), faults, "{logs}, {exec}");
        }
    }

    #[test]
    fn a_wrong_answer_about_a_crash_loop_is_found() {
        let loops = "NAMESPACE NAME READY STATUS RESTARTS AGE\n\
                     default longshore-x 0/1 CrashLoopBackOff 2 (9s ago) 1m";
        let good = [
            (
                "looped.exec",
                "error: unable to upgrade connection: container not found\nexit code 1",
            ),
            ("looped.asked", "an agent's container are in default\nexit code 2"),
            ("looped.logs", "no archive is configured\nexit code 0"),
            ("looped.doctor", "REFUSED (exit code 12)\n  no archive is configured\nexit code 12"),
            ("looped.pods", loops),
        ];
        for (section, text, fault) in [
            ("", "", ""),
            ("looped.exec", "PASSED\nexit code 0", "looped.exec has no `container not found`"),
            ("looped.asked", "exit code 2", "looped.asked has no `an agent's container"),
            ("looped.logs", "\nexit code 0", "looped.logs has no `no archive is configured`"),
            ("looped.doctor", "exit code 32", "looped.doctor has no `REFUSED`"),
            ("looped.pods", "default longshore-x 0/1 Running 3 117s", ""),
            ("looped.pods", "default longshore-x 1/1 Running 0 1m", "no agent was started again"),
            ("looped.pods", "No resources found", "no agent was started again"),
            (
                "looped.pods",
                &format!("{loops}\ndefault longshore-doctor-1 0/1 Completed 0 1m"),
                "a pod of a diagnosis is left",
            ),
        ] {
            let mut records = Records::default();
            for (name, answer) in good.iter().chain([&(section, text)]) {
                let lines = answer.lines().map(str::to_owned).collect();
                records.sections.insert((*name).to_owned(), lines);
            }
            let wrong = looped(&records).join("; ");
            assert!(wrong.starts_with(fault), "{wrong}");
            assert_eq!(wrong.is_empty(), fault.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn the_times_that_were_reported_are_shown() {
        let mut records = Records::default();
        records.take("@fact node.seconds 12.5 30.0");
        records.take("@fact pod.seconds 40.0 101.25");
        let times = Cluster.measured(&Expected::default(), &records);
        let times: Vec<String> = times.into_iter().map(|(_, time)| time).collect();
        assert_eq!(times, ["17.5 s", "61.2 s"]);
    }
}
