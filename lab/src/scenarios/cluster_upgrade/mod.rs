//! Judges an upgrade of the driver by an administrator of a real Kubernetes cluster: administrator wrote
//! the timeline of the node and of all pods, and script.sh the node's own state.

use crate::cell::needs::Needs;
use crate::guest::Guest;
use crate::guest::workbench::Workbench;
use crate::host::error::Error;
use crate::judge::checks::{self, Expected};
use crate::judge::identity;
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{ClusterUpgrade, Scenario};

/// Name of the Deployment that uses the GPU.
const USER: &str = "default/training-";
/// Kinds of the objects that the chart's release has, as `kubectl get --output name` begins their lines.
const RELEASE: [&str; 7] = [
    "serviceaccount/",
    "configmap/",
    "clusterrole.rbac.authorization.k8s.io/",
    "clusterrolebinding.rbac.authorization.k8s.io/",
    "role.rbac.authorization.k8s.io/",
    "rolebinding.rbac.authorization.k8s.io/",
    "daemonset.apps/",
];
/// Kinds of objects of which leftovers must have been searched, beyond those of the release: Leases and
/// what a DaemonSet owns.
const SEARCHED: [&str; 4] =
    ["leases.coordination.k8s.io", "secrets", "pods", "controllerrevisions.apps"];
/// Reasons of events about the node, in the order in which they must come.
const REASONS: [&str; 4] = ["DriverReady", "Cordoned", "Evicted", "Uncordoned"];

impl Scenario for ClusterUpgrade {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let Some(next) = &expected.next else { return vec!["there is no next driver".into()] };
        let mut wrong = self.complaints(records);
        wrong.extend(checks::ready(expected, records, "ready"));
        wrong.extend(checks::ready(next, records, "upgraded"));
        wrong.extend(identity::compare(records, "ready", "upgraded", identity::ALL));
        wrong.extend(user(records, "first-user", expected));
        wrong.extend(user(records, "second-user", next));
        wrong.extend(Timeline::read(records).wrong([&expected.version, &next.version]));
        wrong.extend(events(records));
        wrong.extend(removed(records));
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { next_driver: true, cluster: true, ..Needs::default() }
    }

    fn furnish(&self, guest: &mut Guest<'_>, workbench: &Workbench) -> Result<(), Error> {
        let (dir, cell) = (guest.dir().to_path_buf(), guest.cell);
        if let (Some(cluster), Some(next)) = (&mut guest.delivery.cluster, &cell.next_driver) {
            let branches = [cell.driver.branch.as_str(), next.branch.as_str()];
            cluster.administer(&dir, &workbench.agent().program, branches)?;
        }
        Ok(())
    }

    /// Returns the measured times of the administrator's steps.
    fn measured(&self, _expected: &Expected, records: &Records) -> Vec<(String, String)> {
        timing::spans(
            records,
            &[
                ("install.helm", "helm install"),
                ("install", "helm install to pod Ready"),
                ("pod", "GPU pod to Ready"),
                ("upgrade.helm", "helm upgrade"),
                ("agent-gone", "helm upgrade to the old agent's end"),
                ("cordoned", "helm upgrade to the cordon"),
                ("evicted", "helm upgrade to the end of the evicted pod"),
                ("exchanged", "helm upgrade to the new driver Ready"),
                ("back", "helm upgrade to the GPU pod Ready again"),
                ("uninstall", "helm uninstall to no pod"),
                ("node", "kubelet's start to node Ready"),
            ],
        )
    }

    /// Returns what the administrator's program reported, if it did not succeed.
    fn complaints(&self, records: &Records) -> Vec<String> {
        let code = records.fact("administrator.exit-code");
        if code == "0" {
            return Vec::new();
        }
        let messages = records.section("administrator.messages").unwrap_or_default();
        let messages = messages.iter().map(|line| format!("administrator: {line}"));
        [format!("the administrator's exit code is {code}")].into_iter().chain(messages).collect()
    }
}

/// Checks the log of a pod that used the GPU: the kernel's driver, and the library that CDI gave it.
fn user(records: &Records, section: &str, driver: &Expected) -> Vec<String> {
    let log = records.text(section);
    let library = format!("libcuda.so.{}", driver.version);
    [format!("  {}  ", driver.version), library]
        .iter()
        .filter(|text| !log.contains(text.as_str()))
        .map(|text| format!("{section} has no `{}`: {log}", text.trim()))
        .collect()
}

/// Checks that the reasons of the events have those of an upgrade among them, in order.
fn events(records: &Records) -> Option<String> {
    let events = records.section("events").unwrap_or_default();
    let mut wanted = REASONS.iter().peekable();
    for event in events {
        if event.split_whitespace().nth(2) == wanted.peek().copied().copied() {
            wanted.next();
        }
    }
    wanted.next().map(|reason| format!("no event {reason} in its order: {}", events.join("; ")))
}

/// Checks the cluster after `helm uninstall` and `longshore fleet clean`: no cordon, nothing of an agent's on the
/// node, no object of the chart.
fn removed(records: &Records) -> Vec<String> {
    let text = records.text("removed.node");
    let Ok(node) = serde_json::from_str::<serde_json::Value>(&text) else {
        return vec![format!("removed.node cannot be read: {text}")];
    };
    let mut wrong = Vec::new();
    if node["spec"]["unschedulable"] == true {
        wrong.push("the node is cordoned after the removal".to_owned());
    }
    let maps = ["labels", "annotations"].map(|map| node["metadata"][map].as_object());
    let names = maps.into_iter().flatten().flat_map(|map| map.keys().map(String::as_str));
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let types = conditions.filter_map(|condition| condition["type"].as_str());
    let own = |name: &&str| name.starts_with("longshore.dev/") || *name == "GpuDriverReady";
    wrong.extend(names.chain(types).filter(own).map(|name| format!("left on the node: {name}")));
    wrong.extend(released(records));
    wrong.extend(left(records));
    wrong
}

/// Checks that the release's objects were listed before its removal, of each kind one at least.
fn released(records: &Records) -> Vec<String> {
    records.faults("release.objects", |objects| {
        let has = |kind: &&&str| objects.iter().any(|object| object.starts_with(**kind));
        let missing = RELEASE.iter().filter(|kind| !has(kind));
        missing.map(|kind| format!("the release has no {kind}: {}", objects.join("; "))).collect()
    })
}

/// Checks that leftovers were searched among all kinds of objects, and that there are none. Each line is one, also
/// an error's text.
fn left(records: &Records) -> Vec<String> {
    let mut wrong = records.faults("removed.resources", |kinds| {
        let unsearched = SEARCHED.iter().filter(|kind| !kinds.iter().any(|seen| seen == *kind));
        unsearched.map(|kind| format!("no leftovers of {kind} were searched")).collect()
    });
    wrong.extend(records.faults("removed.objects", |left| {
        left.iter().map(|object| format!("left by helm uninstall: {object}")).collect()
    }));
    wrong
}

/// Changes of the node and of pods, in order, each with a time in seconds.
#[derive(Debug, Default)]
struct Timeline<'a> {
    nodes: Vec<(f64, &'a str)>,
    pods: Vec<(f64, &'a str)>,
}

impl<'a> Timeline<'a> {
    fn read(records: &'a Records) -> Self {
        let mut timeline = Self::default();
        for line in records.section("timeline").unwrap_or_default() {
            let Some((time, rest)) = line.split_once(' ') else { continue };
            let Ok(time) = time.parse() else { continue };
            match rest.split_once(' ') {
                Some(("node", change)) => timeline.nodes.push((time, change)),
                Some(("pod", change)) => timeline.pods.push((time, change)),
                _ => {}
            }
        }
        timeline
    }

    fn wrong(&self, versions: [&str; 2]) -> Vec<String> {
        let mut wrong = Vec::new();
        let cordons = self.values(|change| {
            format!("{} {}", value(change, "schedulable"), value(change, "annotation"))
        });
        if cordons != ["true false", "false true", "true false"] {
            wrong.push(format!("schedulable, and recorded as cordoned: {}", cordons.join(", ")));
        }
        let mut live = self.values(|change| value(change, "live").to_owned());
        live.retain(|version| version != "-");
        live.dedup();
        if live != versions {
            wrong.push(format!("live drivers in order: {}, not {versions:?}", live.join(", ")));
        }
        wrong.extend(self.scheduled_too_early());
        wrong
    }

    /// Returns the values that the node had, one after the other.
    fn values(&self, of: impl Fn(&str) -> String) -> Vec<String> {
        let mut values: Vec<String> = self.nodes.iter().map(|(_, change)| of(change)).collect();
        values.dedup();
        values
    }

    /// Checks that there were two pods that used the GPU, and that the second one got the node after it was
    /// schedulable again.
    fn scheduled_too_early(&self) -> Option<String> {
        let cordoned = |change: &&(f64, &str)| value(change.1, "schedulable") == "false";
        let last = self.nodes.iter().rposition(|change| cordoned(&change));
        let uncordoned = last.and_then(|last| self.nodes.get(last + 1)).map(|(time, _)| *time);
        let Some(uncordoned) = uncordoned else {
            return Some("the node was not uncordoned".into());
        };
        let is_user = |change: &&&(f64, &str)| change.1.starts_with(USER);
        let mut first_seen: Vec<(&str, f64)> = Vec::new();
        for (time, change) in self.pods.iter().filter(|change| is_user(&change)) {
            let name = change.split(' ').next().unwrap_or_default();
            if value(change, "node") != "-" && !first_seen.iter().any(|(seen, _)| *seen == name) {
                first_seen.push((name, *time));
            }
        }
        match first_seen[..] {
            [_, (_, second)] if second >= uncordoned - SLACK => None,
            [_, (name, _)] => Some(format!("{name} got the cordoned node")),
            _ => Some(format!("not two pods used the GPU: {first_seen:?}")),
        }
    }
}

/// Tolerance in seconds between the watch of the node and that of the pods.
const SLACK: f64 = 1.0;

/// Returns the value of a `KEY=VALUE` among a line's words.
fn value<'a>(line: &'a str, key: &str) -> &'a str {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMELINE: [&str; 9] = [
        "1.0 node schedulable=true annotation=false live=- condition=-/-",
        "2.0 node schedulable=true annotation=false live=535.1 condition=True/DriverReady",
        "3.0 pod default/training-a node=matrix phase=Running ready=True ends=false",
        "4.0 node schedulable=false annotation=true live=535.1 condition=False/DriverInUse",
        "5.0 pod default/training-a node=matrix phase=Running ready=True ends=true",
        "6.0 pod default/training-b node=- phase=Pending ready=- ends=false",
        "7.0 node schedulable=false annotation=true live=550.1 condition=True/DriverReady",
        "8.0 node schedulable=true annotation=false live=550.1 condition=True/DriverReady",
        "8.1 pod default/training-b node=matrix phase=Pending ready=- ends=false",
    ];

    fn records(section: &str, lines: impl IntoIterator<Item = String>) -> Records {
        let mut records = Records::default();
        records.sections.insert(section.into(), lines.into_iter().collect());
        records
    }

    /// Returns the faults of the timeline above with one text of it replaced.
    fn fault(from: &str, to: &str) -> String {
        let records = records("timeline", TIMELINE.map(|line| line.replace(from, to)));
        Timeline::read(&records).wrong(["535.1", "550.1"]).join("\n")
    }

    #[test]
    fn each_fault_of_the_timeline_is_found() {
        for (from, to, wanted) in [
            ("", "", ""),
            (
                "annotation=true",
                "annotation=false",
                "recorded as cordoned: true false, false false",
            ),
            ("8.0 node schedulable=true", "8.0 node schedulable=false", "was not uncordoned"),
            ("live=550.1", "live=535.1", "live drivers in order: 535.1, not"),
            (
                "6.0 pod default/training-b node=-",
                "6.0 pod default/training-b node=matrix",
                "got the cordoned",
            ),
            ("training-b", "training-a", "not two pods used the GPU"),
        ] {
            let fault = fault(from, to);
            assert!(fault.contains(wanted), "{wanted}: {fault}");
            assert_eq!(fault.is_empty(), wanted.is_empty(), "{fault}");
        }
    }

    #[test]
    fn events_have_to_come_in_order_with_others_between() {
        let lines = |reasons: &[&str]| -> Vec<String> {
            reasons.iter().map(|r| format!("04:00:00  Normal  {r}  node/matrix  x")).collect()
        };
        let mut reasons = REASONS.to_vec();
        reasons.insert(1, "DriverInUse");
        reasons.push("DriverChanging");
        assert_eq!(events(&records("events", lines(&reasons))), None);
        reasons.retain(|reason| *reason != "Evicted");
        let fault = events(&records("events", lines(&reasons))).unwrap_or_default();
        assert!(fault.starts_with("no event Evicted in its order"), "{fault}");
    }

    #[test]
    fn remains_on_the_node_and_of_the_chart_are_found() {
        let clean = r#"{"spec": {}, "metadata": {"annotations": {"other.example/a": "{}"}},
            "status": {"conditions": [{"type": "Ready"}]}}"#;
        let reported = r#"{"spec": {}, "metadata": {"labels": {"longshore.dev/state": "ready"},
            "annotations": {"longshore.dev/status": "{}"}},
            "status": {"conditions": [{"type": "GpuDriverReady"}]}}"#;
        let cordoned = r#"{"spec": {"unschedulable": true}, "metadata": {"annotations":
            {"longshore.dev/cordoned": "{}"}}}"#;
        for (node, faults) in [(clean, 0), (cordoned, 2), (reported, 3), ("error", 1)] {
            let mut records = uninstalled();
            records.sections.insert("removed.node".into(), vec![node.to_owned()]);
            assert_eq!(removed(&records).len(), faults, "{node}: {:?}", removed(&records));
        }
    }

    /// Returns the sections about the objects of a release that was removed.
    fn uninstalled() -> Records {
        let mut records = records("removed.objects", []);
        let objects = RELEASE.map(|kind| format!("{kind}longshore"));
        records.sections.insert("release.objects".into(), objects.into());
        records.sections.insert("removed.resources".into(), SEARCHED.map(str::to_owned).into());
        records
    }

    #[test]
    fn each_object_that_is_left_and_each_question_that_was_not_asked_is_found() {
        let faults = |records: &Records| [released(records), left(records)].concat().join("\n");
        assert_eq!(faults(&uninstalled()), "");
        for line in [
            "clusterrole.rbac.authorization.k8s.io/gpu-driver-longshore",
            "clusterrolebinding.rbac.authorization.k8s.io/gpu-driver-longshore",
            "role.rbac.authorization.k8s.io/longshore",
            "lease/gpu-driver/longshore-build-0123456789abcdef",
            "validatingadmissionpolicy.admissionregistration.k8s.io/gpu-driver-longshore",
            "Error from server (Forbidden): clusterroles is forbidden",
            "The connection to the server 127.0.0.1:6443 was refused",
        ] {
            let mut records = uninstalled();
            records.sections.insert("removed.objects".into(), vec![line.to_owned()]);
            assert_eq!(faults(&records), format!("left by helm uninstall: {line}"));
        }
        for section in ["release.objects", "removed.resources", "removed.objects"] {
            let mut records = uninstalled();
            records.sections.remove(section);
            assert!(faults(&records).contains(&format!("`{section}`")), "{}", faults(&records));
        }
        for (section, absent, wanted) in [
            ("release.objects", RELEASE[2], "the release has no clusterrole.rbac"),
            ("removed.resources", SEARCHED[0], "no leftovers of leases"),
        ] {
            let mut records = uninstalled();
            if let Some(lines) = records.sections.get_mut(section) {
                lines.retain(|line| !line.starts_with(absent));
            }
            assert!(faults(&records).contains(wanted), "{wanted}: {}", faults(&records));
        }
    }

    #[test]
    fn a_user_has_to_see_the_drivers_version_in_the_kernel_and_in_its_library() {
        let driver = Expected { version: "550.1".into(), ..Expected::default() };
        let kernel = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.1  Release";
        let library = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.1";
        for (lines, faults) in [(&[kernel, library][..], 0), (&[kernel], 1), (&[], 2)] {
            let lines = lines.iter().map(|line| (*line).to_owned());
            assert_eq!(user(&records("first-user", lines), "first-user", &driver).len(), faults);
        }
    }

    #[test]
    fn an_administrator_that_failed_is_reported_with_its_messages() {
        let mut records = records("administrator.messages", ["error: timed out".to_owned()]);
        assert_eq!(ClusterUpgrade.complaints(&records).len(), 2);
        records.take("@fact administrator.exit-code 1");
        assert_eq!(ClusterUpgrade.complaints(&records)[1], "administrator: error: timed out");
        records.take("@fact administrator.exit-code 0");
        assert!(ClusterUpgrade.complaints(&records).is_empty());
    }
}
