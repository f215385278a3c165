//! Compares `longshore doctor --operator` with the re-enacted gates of the GPU operator
//! (script.sh): before the first driver pod, and while the driver is Ready.

use serde_json::Value;

use crate::judge::records::Records;

/// A gate: the part that asks and its name in the report; the section of its re-enactment and the
/// beginning of the line by which that passes.
type Gate = (&'static str, &'static str, &'static str, &'static str);

const GATES: [Gate; 11] = [
    ("startup-probe", "nvidia is loaded", "probe-standin", "rc 0"),
    ("startup-probe", "daemons are ready", "probe-standin", "rc 0"),
    ("startup-probe", "nvidia-smi in the image", "probe-standin", "rc 0"),
    ("validator", "startup probe has passed", "validator", "container ready"),
    ("validator", "libnvidia-ml.so.1", "validator", "library /"),
    ("validator", "nvidia-smi", "validator", "tool /"),
    ("validator", "majors of the driver", "validator", "major nvidia-uvm"),
    ("validator", "GPUs in the device root", "validator", "gpu "),
    ("validator", "links in /dev/char", "validator", "link nvidia-uvm ../nvidia-uvm"),
    ("toolkit", "driver library with its version", "toolkit", "version "),
    ("toolkit", "other libraries of the same version", "toolkit", "libraries "),
];
/// Re-enactment that cannot be asked without a pod: there is no container whose startup probe could run.
const OF_A_POD: &str = "probe-standin";
/// Gate of the driver manager: the pod's digest is that of the last one.
const DIGEST: (&str, &str) = ("driver-manager", "digest of the last pod");

/// Returns the gates of which the report and the re-enactment say different things.
pub(crate) fn wrong(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for when in ["none", "ready"] {
        let asked = |gate: &&Gate| when == "ready" || gate.2 != OF_A_POD;
        wrong.extend(GATES.iter().filter(asked).filter_map(|gate| differs(records, when, gate)));
    }
    for (section, expected) in
        [("none.doctor", false), ("ready.doctor", true), ("ready.doctor-two", false)]
    {
        if passes(records, section, DIGEST) != Some(expected) {
            wrong.push(format!("{section}: `{}` is not {expected}", DIGEST.1));
        }
    }
    wrong
}

fn section(when: &str, gate: &Gate) -> String {
    format!("{when}.{}", gate.2)
}

fn differs(records: &Records, when: &str, gate: &Gate) -> Option<String> {
    let (asked_by, name, _, begin) = *gate;
    let lines = match records.section(&section(when, gate)) {
        Ok(lines) => lines,
        Err(missing) => return Some(format!("{asked_by}, {name}: {missing}")),
    };
    let re_enacted = lines.iter().any(|line| line.starts_with(begin));
    let reported = passes(records, &format!("{when}.doctor"), (asked_by, name));
    (reported != Some(re_enacted)).then(|| {
        format!(
            "doctor --operator, {when}: {asked_by}, {name}: passes: {reported:?}; the re-enacted \
             gate passes: {re_enacted}"
        )
    })
}

/// Returns the gates of the re-enactments that a report lacks, or that do not pass by it.
pub(crate) fn not_passing(records: &Records, section: &str) -> Vec<String> {
    let passes = |gate: &&Gate| passes(records, section, (gate.0, gate.1)) == Some(true);
    let others = GATES.iter().filter(|gate| !passes(gate));
    others.map(|gate| format!("{section}: {}, {} does not pass", gate.0, gate.1)).collect()
}

/// Returns true if the report says that a gate passes; None if it does not have the gate.
fn passes(records: &Records, section: &str, gate: (&str, &str)) -> Option<bool> {
    let report: Value = serde_json::from_str(&records.text(section)).ok()?;
    let is_it = |one: &&Value| one["asked_by"] == gate.0 && one["name"] == gate.1;
    let found = report["gates"].as_array()?.iter().find(is_it)?;
    Some(found["answer"] == "passes")
}

/// Returns a report in which these gates pass or fail, and that of the digest.
#[cfg(test)]
pub(crate) fn report(passing: bool, digest: bool) -> String {
    let answer = |passes: bool| if passes { "passes" } else { "fails" };
    let gate = |asked_by: &str, name: &str, passes: bool| serde_json::json!({ "asked_by": asked_by, "name": name, "answer": answer(passes) });
    let mut gates: Vec<Value> =
        GATES.iter().map(|(asked_by, name, ..)| gate(asked_by, name, passing)).collect();
    gates.push(gate(DIGEST.0, DIGEST.1, digest));
    serde_json::json!({ "gates": gates }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(change: &str, text: &str) -> String {
        let mut records = records();
        records.sections.insert(change.into(), text.lines().map(str::to_owned).collect());
        wrong(&records).join("\n")
    }

    fn records() -> Records {
        let mut records = Records::default();
        let lines: String = GATES.iter().map(|(.., begin)| format!("{begin}x\n")).collect();
        for (name, text) in [
            ("none.doctor", report(false, false).as_str()),
            ("none.validator", "no nvidia-smi"),
            ("none.toolkit", ""),
            ("ready.doctor", &report(true, true)),
            ("ready.doctor-two", &report(true, false)),
            ("ready.probe-standin", &lines),
            ("ready.validator", &lines),
            ("ready.toolkit", &lines),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(name.into(), lines);
        }
        records
    }

    #[test]
    fn a_gate_of_which_the_two_say_different_things_is_found() {
        assert_eq!(all("other", ""), "");
        for (section, text, wanted) in [
            (
                "none.validator",
                "gpu 1",
                "none: validator, GPUs in the device root: passes: Some(false)",
            ),
            ("ready.toolkit", "libraries 2", "ready: toolkit, driver library"),
            ("ready.doctor", "{", "ready: startup-probe, nvidia is loaded: passes: None"),
            ("ready.doctor-two", &report(true, true), "ready.doctor-two: `digest of the last pod`"),
        ] {
            let wrong = all(section, text);
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
        let empty = all("ready.doctor", r#"{"gates": []}"#);
        assert_eq!(empty.lines().count(), GATES.len() + 1, "{empty}");
    }

    #[test]
    fn a_re_enactment_that_was_not_reported_is_found() {
        for section in ["none.validator", "none.toolkit", "ready.probe-standin", "ready.toolkit"] {
            let mut records = records();
            records.sections.remove(section);
            let wrong = wrong(&records).join("\n");
            assert!(wrong.contains(&format!("did not report `{section}`")), "{section}: {wrong}");
        }
    }

    #[test]
    fn a_gate_that_is_absent_or_fails_does_not_pass() {
        assert_eq!(not_passing(&records(), "ready.doctor"), Vec::<String>::new());
        assert_eq!(not_passing(&records(), "none.doctor").len(), GATES.len());
        assert_eq!(not_passing(&Records::default(), "ready.doctor").len(), GATES.len());
    }
}
