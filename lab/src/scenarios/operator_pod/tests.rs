//! Records of a driver pod that passes every gate, and each of their faults.

use super::*;

const VERSION: &str = "550.163.01";
const VALUES: &str = include_str!("../../../../deploy/gpu-operator/values.yaml");

/// Records of a driver pod that passes every gate.
fn good() -> Records {
    let mut records = Records::default();
    for gate in gates(VERSION) {
        records.sections.entry(gate.section.to_owned()).or_default().push(gate.line);
    }
    let smi = "startup probe: nvidia-smi failed".to_owned();
    records.sections.entry("refused.probe".into()).or_default().push(smi);
    for empty in ["hook-failures", "validated.left"] {
        records.sections.insert(empty.into(), Vec::new());
    }
    records
        .sections
        .insert("ready.doctor".into(), vec![crate::scenarios::operator::gates::report(true, true)]);
    for name in DELETIONS {
        records.take(&format!("@fact {name}.exit-code 0"));
    }
    for (when, uid) in [("ready", "1"), ("adopted", "2"), ("changed", "2"), ("other", "3")] {
        records.take(&format!("@fact {when}.pod-uid {uid}"));
    }
    records
}

fn all(records: &Records) -> String {
    let mut wrong: Vec<String> = gates(VERSION).filter_map(|gate| gate.fault(records)).collect();
    wrong.extend(last_probe(records));
    wrong.extend(unconditioned(records));
    wrong.extend(doctor(records));
    wrong.extend(replaced(records));
    wrong.extend(DELETIONS.into_iter().filter_map(|name| operator::deletion(records, name)));
    wrong.extend(left(records));
    wrong.join("\n")
}

#[test]
fn a_pod_that_passes_every_gate_has_nothing_wrong() {
    assert_eq!(all(&good()), "");
}

#[test]
fn each_gate_is_missed_and_named() {
    for gate in gates(VERSION) {
        let mut records = good();
        let lines = records.sections.entry(gate.section.to_owned()).or_default();
        lines.retain(|line| !line.starts_with(&gate.line));
        let wrong = all(&records);
        assert!(wrong.contains(&gate.name), "{}: {wrong}", gate.name);
    }
}

#[test]
fn a_line_that_must_not_be_there_is_found() {
    for (section, line, wanted) in [
        ("refused.probe", "startup probe: the daemons are not ready", "by another gate"),
        ("refused.node", "condition GpuDriverReady=True", "without rights.yaml"),
        ("hook-failures", "preStop hook failed", "hook-failures: preStop"),
        ("validated.left", "/run/nvidia/validations/driver-ready", "validated.left: /run"),
    ] {
        let mut records = good();
        records.sections.entry(section.into()).or_default().push(line.into());
        let wrong = all(&records);
        assert!(wrong.contains(wanted), "{wanted}: {wrong}");
    }
    let mut records = good();
    records.sections.remove("hook-failures");
    assert!(all(&records).contains("did not report `hook-failures`"));
    records.sections.remove("refused.node");
    assert!(all(&records).contains("did not report `refused.node`"));
}

#[test]
fn a_report_of_doctor_with_a_failing_gate_is_found() {
    for (text, wanted) in [
        (r#"{"gates": [{"name": "x", "answer": "fails"}]}"#, "in the Ready pod: {"),
        (r#"{"gates": []}"#, "ready.doctor: startup-probe, nvidia is loaded does not pass"),
        (crate::scenarios::operator::gates::report(false, true).as_str(), "in the Ready pod: {"),
        ("error", "cannot be read: error"),
    ] {
        let mut records = good();
        records.sections.insert("ready.doctor".into(), vec![text.into()]);
        let wrong = all(&records);
        assert!(wrong.contains(wanted), "{wanted}: {wrong}");
    }
}

#[test]
fn pods_and_exit_codes_are_compared() {
    for (fact, value, wanted) in [
        ("changed.pod-uid", "4", "replaced without a deletion: 4"),
        ("other.pod-uid", "2", "no new pod after adopted: 2"),
        ("held.exit-code", "20", "deletion held: the exit code is 20"),
    ] {
        let mut records = good();
        records.facts.insert(fact.into(), value.into());
        let wrong = all(&records);
        assert!(wrong.contains(wanted), "{wanted}: {wrong}");
    }
}

#[test]
fn the_gates_that_need_a_real_gpu_are_named() {
    let expected = Expected { version: VERSION.into(), ..Expected::default() };
    let text = |records: &Records| {
        let lines = OperatorPod.measured(&expected, records).into_iter();
        lines.map(|(what, value)| format!("{what}: {value}")).collect::<Vec<_>>().join("\n")
    };
    let good = good();
    let gates = gates(VERSION).count();
    assert!(text(&good).starts_with(&format!("gates passed: {gates} of {gates}\n")));
    for by in ["startup probe", "validator"] {
        let line = format!("gate that needs a real GPU: {by}, nvidia-smi: fails");
        assert!(text(&good).contains(&line), "{}", text(&good));
    }
    assert!(!text(&good).contains("NOT"));
    assert!(text(&Records::default()).contains("NOT as expected"));
}

/// Lines of a YAML text, trimmed, without comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with('#'))
}

#[test]
fn the_pod_is_filled_with_the_values_that_users_are_given() {
    let pod = FILES[0].1;
    let value = |key: &str| {
        let found = lines(VALUES).find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("no {key}")).trim_matches('"')
    };
    let (repository, image) = (value("repository"), value("image"));
    let version = value("version");
    assert!(pod.contains(&format!("image: {repository}/{image}:@VERSION@-@SYSTEM@")));
    assert!(pod.contains(&format!("KERNEL_MODULE_TYPE, value: {}}}", value("kernelModuleType"))));
    assert!(pod.contains(&format!("configMap: {{name: {}}}", value("name"))));
    let variables = lines(VALUES).filter(|line| line.starts_with("- {name: "));
    let mut count = 0;
    for variable in variables {
        let variable = variable.replace(version, "@VERSION@");
        assert!(lines(pod).any(|line| line == variable), "{variable}");
        count += 1;
    }
    assert_eq!(count, 1);
    for key in ["initialDelaySeconds", "periodSeconds", "failureThreshold", "timeoutSeconds"] {
        let wanted = format!("{key}: {}", value(key));
        assert!(lines(pod).any(|line| line == wanted), "{wanted}");
    }
}
