//! The GPU operator's driver pod and validator pod, filled in by hand, on a node of a real cluster
//! (script.sh, operator-pod.yaml): each gate, and those that need a real GPU.

use serde_json::Value;

use crate::cell::needs::Needs;
use crate::guest::workbench::Workbench;
use crate::guest::{Guest, GuestFile};
use crate::host::error::Error;
use crate::judge::checks::{self, Expected};
use crate::judge::identity;
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::operator;
use crate::scenarios::{Operator, OperatorPod, Scenario};

/// Objects of the cluster and the scenario's other files, by their paths below /run/matrix.
const FILES: [(&str, &str); 2] = [
    ("gates/operator-pod.yaml", include_str!("operator-pod.yaml")),
    ("gates/rights.yaml", include_str!("../../../../deploy/gpu-operator/rights.yaml")),
];

/// A gate: the part of the operator or of Kubernetes that has it and its name; a section of the
/// records, and the beginning of the line by which it passes.
type Gate = (&'static str, &'static str, &'static str, &'static str);

const GATES: [Gate; 29] = [
    ("DaemonSet", "no pod on a node without the label", "unlabelled", "scheduled 0"),
    ("driver manager", "no driver is loaded", "refused.manager", "driver manager: no driver"),
    ("startup probe", "runs before nvidia is loaded", "refused.probe", "startup probe: nvidia is"),
    ("startup probe", "nvidia-smi finds no device", "refused.smi", "rc 6"),
    ("startup probe", "fails, so the pod is not ready", "refused.pod", UNREADY),
    ("service account", "labels of the node", "refused.node", "label longshore.dev/state=ready"),
    ("kubelet", "critical priority", "ready.pod", "priority system-node-critical 2000001000"),
    (
        "driver manager",
        "the next pod, after an unload",
        "ready.manager",
        "driver manager: no driver",
    ),
    ("driver manager", "its container ends with 0", "ready.pod", "init k8s-driver-manager exit 0"),
    ("startup probe", "passes, so the pod is ready", "ready.pod", READY),
    ("startup probe", "its file, of GDRCopy", "ready.confirmed", "GDRCOPY_ENABLED: false"),
    ("startup probe", "its file, of GDS", "ready.confirmed", "GDS_ENABLED: false"),
    ("startup probe", "its file, of RDMA", "ready.confirmed", "GPU_DIRECT_RDMA_ENABLED: false"),
    ("driver manager", "the digest is stored", "ready.state-file", "one"),
    ("rights.yaml", "condition of the node", "ready.node", "condition GpuDriverReady=True"),
    ("validator", "no driver of the host's own", VALIDATION, "host driver none"),
    ("validator", "startup probe has passed", VALIDATION, "container ready"),
    ("validator", "device root", VALIDATION, "device root /run/nvidia/driver"),
    ("validator", "GPUs in the device root", VALIDATION, "gpu 0000:"),
    ("validator", "major of nvidia", VALIDATION, "major nvidia"),
    ("validator", "major of nvidia-uvm", VALIDATION, "major nvidia-uvm"),
    ("validator", "confirms", "validated.driver-ready", "NVIDIA_DEV_ROOT=/run/nvidia/driver"),
    (
        "validator",
        "its pod is ready",
        "validated.pod",
        "container nvidia-operator-validator started true ready true",
    ),
    ("driver manager", "the same digest: the driver stays", "adopted.manager", SAME_DIGEST),
    ("startup probe", "passes beside an adopted driver", "adopted.pod", READY),
    ("driver manager", "another digest: fails while in use", "changed.refused", IN_USE),
    ("driver manager", "another digest: unloads", "other.pod", "init k8s-driver-manager exit 0"),
    ("startup probe", "passes after an unload", "other.pod", READY),
    ("driver manager", "another digest is stored", "other.state-file", "two"),
];
const VALIDATION: &str = "validated.driver-validation";
const UNREADY: &str = "container nvidia-driver-ctr started false ready false restarts 0";
const READY: &str = "container nvidia-driver-ctr started true ready true restarts 0";
const SAME_DIGEST: &str = "driver manager: the digest is the same";
const IN_USE: &str = "driver manager: nvidia was not unloaded";

/// A gate that runs nvidia-smi, which needs a real GPU: the same, and the line with a stand-in for
/// libnvidia-ml by which it passes.
type GpuGate =
    (&'static str, &'static str, (&'static str, &'static str), (&'static str, &'static str));

const NEED_GPU: [GpuGate; 2] = [
    (
        "startup probe",
        "nvidia-smi",
        ("refused.probe", "startup probe: nvidia-smi failed"),
        ("ready.pod", READY),
    ),
    (
        "validator",
        "nvidia-smi",
        (VALIDATION, "nvidia-smi rc 6"),
        (VALIDATION, "stand-in: nvidia-smi rc 0"),
    ),
];

/// Deletions of the pod while the driver was idle and held, and at the end.
const DELETIONS: [&str; 4] = ["idle", "held", "busy", "last"];

impl Scenario for OperatorPod {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = Vec::new();
        for when in ["ready", "adopted", "other"] {
            wrong.extend(checks::under(when, checks::kernel_side(expected, records, when)));
            wrong.extend(checks::under(when, checks::user_side(expected, records, when)));
        }
        wrong.extend(gates(&expected.version).filter_map(|gate| gate.fault(records)));
        wrong.extend(last_probe(records));
        wrong.extend(unconditioned(records));
        wrong.extend(doctor(records));
        wrong.extend(identity::compare(records, "held", "adopted", &[]));
        wrong.extend(identity::compare(records, "adopted", "other", identity::ALL));
        wrong.extend(replaced(records));
        wrong.extend(DELETIONS.into_iter().filter_map(|name| operator::deletion(records, name)));
        wrong.extend(left(records));
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { cluster: true, ..Needs::default() }
    }

    fn furnish(&self, guest: &mut Guest<'_>, workbench: &Workbench) -> Result<(), Error> {
        Operator.furnish(guest, workbench)?;
        guest.files.extend(FILES.map(|(name, text)| GuestFile::data(name, text)));
        Ok(())
    }

    /// Returns the number of gates that passed, the gates that need a real GPU, and the measured times.
    fn measured(&self, expected: &Expected, records: &Records) -> Vec<(String, String)> {
        let all: Vec<Asked> = gates(&expected.version).collect();
        let passed = all.iter().filter(|gate| gate.fault(records).is_none()).count();
        let mut lines = vec![("gates passed".to_owned(), format!("{passed} of {}", all.len()))];
        lines.extend(NEED_GPU.iter().map(|(by, name, real, stand_in)| {
            let is_real = is_said(records, real.0, real.1);
            let passes = is_said(records, stand_in.0, stand_in.1);
            let word = |yes: bool| if yes { "as expected" } else { "NOT as expected" };
            let value = format!(
                "fails without one: {}; passes with a stand-in for libnvidia-ml: {}",
                word(is_real),
                word(passes)
            );
            (format!("gate that needs a real GPU: {by}, {name}"), value)
        }));
        lines.extend(timing::spans(
            records,
            &[
                ("ready", "idle pod's deletion to the next pod Ready"),
                ("adopted", "pod's deletion under a holder to the next pod Ready"),
                ("deletion", "DaemonSet's deletion to no pod"),
                ("node", "kubelet's start to node Ready"),
            ],
        ));
        lines
    }
}

/// A gate with the line by which it passes.
struct Asked {
    name: String,
    section: &'static str,
    line: String,
}

impl Asked {
    fn fault(&self, records: &Records) -> Option<String> {
        if is_said(records, self.section, &self.line) {
            return None;
        }
        let Self { name, section, line } = self;
        Some(format!("{name}: {section} has no line `{line}`: {}", records.text(section)))
    }
}

/// Returns all gates of a driver's version.
fn gates(version: &str) -> impl Iterator<Item = Asked> {
    let fixed = GATES.into_iter().map(|(by, name, section, line)| Asked {
        name: format!("{by}, {name}"),
        section,
        line: line.to_owned(),
    });
    let need_gpu = NEED_GPU.into_iter().flat_map(|(by, name, real, stand_in)| {
        [(real, "without a real GPU"), (stand_in, "with the stand-in")].map(
            |((section, line), how)| Asked {
                name: format!("{by}, {name} {how}"),
                section,
                line: line.to_owned(),
            },
        )
    });
    let toolkit = Asked {
        name: "toolkit, version of the driver's libraries".to_owned(),
        section: "validated.toolkit",
        line: format!("version {version}"),
    };
    let search = operator::search(version).into_iter().map(|line| Asked {
        name: "validator, search of the driver root".to_owned(),
        section: VALIDATION,
        line,
    });
    fixed.chain(need_gpu).chain([toolkit]).chain(search)
}

/// True if a line of the section begins so.
fn is_said(records: &Records, section: &str, begin: &str) -> bool {
    let lines = records.section(section).unwrap_or_default();
    lines.iter().any(|line| line.starts_with(begin))
}

/// Checks that nothing but nvidia-smi makes the operator's own probe fail in the end.
fn last_probe(records: &Records) -> Option<String> {
    let said = records.section("refused.probe").unwrap_or_default();
    let last = said.iter().rfind(|line| !line.is_empty()).map_or("", String::as_str);
    let is_smi = last == "startup probe: nvidia-smi failed";
    (!is_smi).then(|| format!("the startup probe fails in the end by another gate: {said:?}"))
}

/// Checks that the operator's rights alone give the node no condition.
fn unconditioned(records: &Records) -> Option<String> {
    let report = match records.section("refused.node") {
        Ok(lines) => lines.join("\n"),
        Err(missing) => return Some(missing),
    };
    let has_condition = report.contains("condition ");
    has_condition.then(|| format!("the node has a condition without rights.yaml: {report}"))
}

/// Checks that `longshore doctor --operator` finds no gate that fails in the Ready pod, and that those which are
/// re-enacted pass.
fn doctor(records: &Records) -> Vec<String> {
    let text = records.text("ready.doctor");
    let report: Option<Value> = serde_json::from_str(&text).ok();
    let Some(gates) = report.as_ref().and_then(|report| report["gates"].as_array()) else {
        return vec![format!("the report of doctor --operator cannot be read: {text}")];
    };
    let fails = gates.iter().filter(|gate| gate["answer"] == "fails");
    let fails = fails.map(|gate| format!("doctor --operator in the Ready pod: {gate}"));
    fails.chain(crate::scenarios::operator::gates::not_passing(records, "ready.doctor")).collect()
}

/// Checks that another template alone changes no pod (OnDelete), and that each deletion makes a new one.
fn replaced(records: &Records) -> Vec<String> {
    let uid = |when: &str| records.facts.get(&format!("{when}.pod-uid")).map_or("", String::as_str);
    let mut wrong = Vec::new();
    if uid("changed").is_empty() || uid("changed") != uid("adopted") {
        wrong.push(format!("the pod was replaced without a deletion: {}", uid("changed")));
    }
    for (before, after) in [("ready", "adopted"), ("adopted", "other")] {
        if uid(after).is_empty() || uid(before) == uid(after) {
            wrong.push(format!("no new pod after {before}: {}", uid(after)));
        }
    }
    wrong
}

/// Checks that the preStop hooks succeeded, and that no file of the validator's is left.
fn left(records: &Records) -> Vec<String> {
    ["hook-failures", "validated.left"]
        .into_iter()
        .filter_map(|section| match records.section(section) {
            Ok([]) => None,
            Ok(lines) => Some(format!("{section}: {}", lines.join("; "))),
            Err(missing) => Some(missing),
        })
        .collect()
}

#[cfg(test)]
mod tests;
