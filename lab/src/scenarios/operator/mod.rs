//! The GPU operator's driver pod, re-enacted (script.sh): its gates, its pod deleted under a
//! process that holds the driver, and a configuration that the operator's digest does not tell.

pub(super) mod gates;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::guest::workbench::Workbench;
use crate::guest::{Guest, GuestFile};
use crate::host::error::{At, Error};
use crate::judge::checks::{self, Expected};
use crate::judge::identity;
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{Operator, Scenario};

/// Source of the stand-in for libnvidia-ml.
const NVML: &str = include_str!("nvml.c");
/// Path of the compiled stand-in below /run/matrix.
const NVML_PATH: &str = "gates/libnvidia-ml.so.1";
/// Re-enactments of the operator's gates, by their paths below /run/matrix.
const GATES: [(&str, &str); 4] = [
    ("gates/gates.sh", include_str!("gates.sh")),
    ("gates/driver-manager", include_str!("../../../../tests/operator-gates/driver-manager")),
    ("gates/pre-stop", include_str!("../../../../tests/operator-gates/pre-stop")),
    ("gates/startup-probe", include_str!("../../../../tests/operator-gates/startup-probe")),
];
/// Deletions of the pod under a process that holds the driver.
const DELETIONS: usize = 10;
/// Path at which the agent exposes the driver to the host.
const DRIVER_ROOT: &str = "/run/nvidia/driver";

impl Scenario for Operator {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = Vec::new();
        for when in ["ready", "adopted", "other"] {
            // Reported after the phase of that name, or in the one before.
            wrong.extend(checks::under(when, checks::kernel_side(expected, records, when)));
            wrong.extend(checks::under(when, checks::user_side(expected, records, when)));
        }
        wrong.extend(gates(expected, records));
        wrong.extend(gates::wrong(records));
        wrong.extend(deletions(records));
        wrong.extend(identity::compare(records, "held", "adopted", &[]));
        wrong.extend(change(records));
        wrong
    }

    /// Gives a guest the re-enacted gates, and the stand-in for libnvidia-ml.
    ///
    /// # Errors
    /// This machine's compiler `cc` fails.
    fn furnish(&self, guest: &mut Guest<'_>, _workbench: &Workbench) -> Result<(), Error> {
        let version = &guest.prepared.seed.set.key.driver_version;
        let library = stand_in(version, guest.work())?;
        guest.files.extend(GATES.map(|(name, text)| GuestFile::program(name, text)));
        guest.files.push(GuestFile { name: NVML_PATH.to_owned(), mode: 0o644, content: library });
        Ok(())
    }

    /// Returns the measured times from the start of the pod's container to Ready.
    fn measured(&self, _expected: &Expected, records: &Records) -> Vec<(String, String)> {
        let of = |digest: &str| timing::span(records, &format!("start.{digest}.seconds")).ok();
        let at = |digest: &str| of(digest).map(|seconds| format!("{seconds:.1} s"));
        let name = |digest: &str| format!("container start to Ready, digest {digest}, last start");
        let mut all: Vec<_> =
            ["one", "two"].into_iter().filter_map(|d| Some((name(d), at(d)?))).collect();
        all.extend(restarts(records));
        all
    }
}

/// Compiles the stand-in for libnvidia-ml of a driver's version, in this directory, and returns it.
///
/// # Errors
/// This machine's compiler `cc` fails.
fn stand_in(version: &str, dir: &Path) -> Result<Vec<u8>, Error> {
    let (source, library) = (dir.join("nvml.c"), dir.join("libnvidia-ml.so.1"));
    fs::write(&source, NVML).at("write", &source)?;
    let mut compile = Command::new("cc");
    compile.args([
        "-shared",
        "-fPIC",
        "-O1",
        "-fvisibility=hidden",
        "-Wl,-soname,libnvidia-ml.so.1",
    ]);
    compile.arg(format!("-DVERSION=\"{version}\"")).arg("-o").args([&library, &source]);
    let done = compile.output().at("run cc on", &source)?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        return Err(Error::Unexpected(format!("cc refuses the stand-in for libnvidia-ml: {said}")));
    }
    fs::read(&library).at("read", &library)
}

/// Returns the median times from a restart of the pod's container to Ready while a process holds the
/// driver: from outside, and by the agent's log.
fn restarts(records: &Records) -> Vec<(String, String)> {
    let spans = |turn| timing::span(records, &format!("restart-{turn}.seconds")).ok();
    let spans: Vec<f64> =
        (1..=DELETIONS).filter_map(spans).map(|seconds| seconds * 1000.0).collect();
    let own = |turn| records.facts.get(&format!("restart-{turn}.agent-ms"))?.parse().ok();
    let own: Vec<f64> = (1..=DELETIONS).filter_map(own).collect();
    [("container restart to Ready", spans), ("agent's start to Ready, adopting", own)]
        .into_iter()
        .filter(|(_, times)| !times.is_empty())
        .map(|(name, times)| {
            let (name, of) = (format!("{name}, median of {}", times.len()), timing::median(&times));
            (name, format!("{of:.0} ms"))
        })
        .collect()
}

/// Beginnings of the lines that the validator's search of the driver root must print.
pub(super) fn search(version: &str) -> Vec<String> {
    let links = ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
    [
        format!("library {DRIVER_ROOT}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}"),
        format!("tool {DRIVER_ROOT}/usr/bin/nvidia-smi"),
    ]
    .into_iter()
    .chain(links.map(|node| format!("link {node} ../{node}")))
    .collect()
}

/// Lines that a gate must print.
fn gates(expected: &Expected, records: &Records) -> Vec<String> {
    let version = &expected.version;
    let validated = [
        "container ready".to_owned(),
        format!("device root {DRIVER_ROOT}"),
        "gpu 0000:".to_owned(),
        "major nvidia".to_owned(),
        "major nvidia-uvm".to_owned(),
        "nvidia-smi rc 6".to_owned(),
    ];
    let mut wrong = Vec::new();
    let mut gate = |name: &str, wanted: &[String]| {
        wrong.extend(unsaid(records, name, wanted));
    };
    let words = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    gate("ready.probe", &words(&["startup probe: nvidia-smi failed", "rc 1"]));
    gate(
        "ready.probe-standin",
        &words(&[
            "GDRCOPY_ENABLED: false",
            "GDS_ENABLED: false",
            "GPU_DIRECT_RDMA_ENABLED: false",
            "rc 0",
        ]),
    );
    gate("ready.validator", &[&validated[..], &search(version)[..]].concat());
    gate("ready.validator-standin", &words(&["nvidia-smi rc 0"]));
    gate("ready.toolkit", &[format!("version {version}"), "libraries ".to_owned()]);
    let files = ["nvidia-driver.state", "validations/.driver-daemons-status"];
    gate("ready.files", &files.map(|file| format!("/run/nvidia/{file}")));
    wrong
}

/// Returns the wanted beginnings that no line of the gate's report has.
fn unsaid(records: &Records, gate: &str, wanted: &[String]) -> Vec<String> {
    records.faults(gate, |said| {
        let is_said = |begin: &&String| said.iter().any(|line| line.starts_with(begin.as_str()));
        let missing = wanted.iter().filter(|begin| !is_said(begin));
        missing.map(|begin| format!("{gate}: no line `{begin}`; it says {said:?}")).collect()
    })
}

/// Checks that each deletion of the pod ended with 0: held, idle, and at the end.
fn deletions(records: &Records) -> Vec<String> {
    let held = (1..=DELETIONS).map(|turn| format!("held-{turn}"));
    let all = held.chain(["idle".to_owned(), "last".to_owned()]);
    all.filter_map(|name| deletion(records, &name)).collect()
}

/// Checks that a deletion of the pod ended with 0.
pub(super) fn deletion(records: &Records, name: &str) -> Option<String> {
    let other = records.unlike(&format!("{name}.exit-code"), "0");
    other.map(|code| format!("deletion {name}: the exit code is {code}, not 0"))
}

/// Checks that the changed parameter is in effect under the same digest.
fn change(records: &Records) -> Option<String> {
    let (before, after) = (records.fact("prefetch.before"), records.fact("prefetch.after"));
    ((before, after) != ("1", "0"))
        .then(|| format!("nvidia_uvm's parameter was {before} and is {after}, not 1 and 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        for turn in 1..=DELETIONS {
            records.take(&format!("@fact held-{turn}.exit-code 0"));
        }
        let facts =
            ["idle.exit-code 0", "last.exit-code 0", "prefetch.before 1", "prefetch.after 0"];
        for fact in facts {
            records.take(&format!("@fact {fact}"));
        }
        let sections = [
            ("ready.probe", "startup probe: nvidia-smi failed\nrc 1"),
            (
                "ready.probe-standin",
                "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: false\nrc 0",
            ),
            (
                "ready.validator",
                "container ready\n\
                 library /run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03\n\
                 tool /run/nvidia/driver/usr/bin/nvidia-smi\nnvidia-smi rc 6\n\
                 device root /run/nvidia/driver\ngpu 0000:00:05.0\nmajor nvidia-frontend\n\
                 major nvidia-uvm\nlink nvidia0 ../nvidia0\nlink nvidiactl ../nvidiactl\n\
                 link nvidia-uvm ../nvidia-uvm\nlink nvidia-uvm-tools ../nvidia-uvm-tools\n\
                 link nvidia-modeset ../nvidia-modeset",
            ),
            ("ready.validator-standin", "nvidia-smi rc 0"),
            ("ready.toolkit", "version 535.261.03\nlibraries 12"),
            (
                "ready.files",
                "/run/nvidia/nvidia-driver.state\n/run/nvidia/validations/.driver-daemons-status",
            ),
        ];
        for (name, text) in sections {
            records.sections.insert(name.into(), text.lines().map(str::to_owned).collect());
        }
        records
    }

    fn all(records: &Records) -> Vec<String> {
        let expected = Expected { version: "535.261.03".into(), ..Expected::default() };
        let mut wrong = gates(&expected, records);
        wrong.extend(deletions(records));
        wrong.extend(change(records));
        wrong
    }

    #[test]
    fn a_pod_that_passes_every_gate_has_nothing_wrong() {
        assert_eq!(all(&good()), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_found() {
        for (name, old, new, wanted) in [
            ("ready.probe", "rc 1", "rc 0", "ready.probe: no line `rc 1`"),
            ("ready.probe-standin", "rc 0", "rc 1", "no line `rc 0`"),
            ("ready.validator", "gpu 0000", "cpu", "no line `gpu 0000:`"),
            ("ready.validator", "../nvidiactl", "../null", "no line `link nvidiactl ../nvidiactl`"),
            ("ready.toolkit", "535", "550", "no line `version 535.261.03`"),
            ("ready.files", "nvidia-driver.state", "other", "nvidia-driver.state`"),
        ] {
            let mut records = good();
            for line in records.sections.get_mut(name).unwrap() {
                *line = line.replace(old, new);
            }
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
        for (fact, value, wanted) in [
            ("held-10.exit-code", "20", "deletion held-10: the exit code is 20"),
            ("prefetch.after", "1", "was 1 and is 1"),
        ] {
            let mut records = good();
            records.facts.insert(fact.into(), value.into());
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
    }
}
