//! Judges a GPU that appears while the agent waits for one (script.sh): Ready without a change to the host
//! before, and with the driver after.

use serde_json::Value;

use crate::guest::Guest;
use crate::guest::workbench::Workbench;
use crate::host::error::Error;
use crate::judge::answers;
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{HotPlug, Scenario};

/// Longest time in seconds from the scan of the bus until the driver is Ready, from a store that has it. Hashing it
/// takes most, in an emulated processor.
const LONGEST: f64 = 180.0;
/// Part of the agent's log line before the wait.
const WAITS: &str = "waiting for one (no-gpu = wait)";

impl Scenario for HotPlug {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = idle(records);
        // Processes, mounts and files of its own container are there.
        let of_driver =
            |why: &String| ["modules: ", "dev: ", "firmware"].iter().any(|of| why.starts_with(of));
        let changed = end::differences(records, "idle").into_iter().filter(of_driver);
        wrong.extend(checks::under("while it waited", changed));
        wrong.extend(checks::ready(expected, records, "ready"));
        match timing::span(records, "plugged.seconds") {
            Ok(seconds) if seconds <= LONGEST => {}
            Ok(seconds) => wrong.push(format!("ready only {seconds:.1} s after the GPU appeared")),
            Err(missing) => wrong.push(missing),
        }
        wrong
    }

    fn furnish(&self, guest: &mut Guest<'_>, _workbench: &Workbench) -> Result<(), Error> {
        guest.delivery.arguments.extend(["--no-gpu", "wait"].map(str::to_owned));
        Ok(())
    }
}

/// Checks the answers of an agent that waits.
fn idle(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    match answers::answered(records, "idle.readyz") {
        Ok(said) if said.trim_end() == "ready" => {}
        other => wrong.push(format!("without a GPU /readyz answered {other:?}")),
    }
    let status = answers::answered(records, "idle.status").unwrap_or_default();
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    if status["live"]["phase"] != "idle" || !status["live"]["driver"].is_null() {
        wrong.push(format!("without a GPU /status says {}", status["live"]));
    }
    if records.text("idle.probe").trim() != "ready" {
        wrong.push(format!("`status --ready` says {}", records.text("idle.probe")));
    }
    if !records.text("agent-log").contains(WAITS) {
        wrong.push(format!("the agent's log does not say `{WAITS}`"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        let status = r#"{"live": {"phase": "idle", "driver": null}}"#;
        for (section, text) in [
            ("idle.readyz", "exit code 0\n\nready"),
            ("idle.status", &format!("exit code 0\n\n{status}")),
            ("idle.probe", "ready"),
            ("agent-log", "no NVIDIA GPU is on the PCI bus: waiting for one (no-gpu = wait)"),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(section.to_owned(), lines);
        }
        records
    }

    #[test]
    fn an_agent_that_does_not_wait_is_found() {
        assert_eq!(idle(&good()), [""; 0]);
        let installing = r#"{"live": {"phase": "ready", "driver": {"version": "535"}}}"#;
        for (section, text, wanted) in [
            ("idle.readyz", "exit code 30\n\nnot ready", "/readyz answered"),
            ("idle.status", &format!("exit code 0\n\n{installing}"), "/status says"),
            ("idle.status", "exit code 0\n\n{", "/status says"),
            ("idle.probe", "no agent runs", "`status --ready` says no agent runs"),
            ("agent-log", "", "does not say"),
        ] {
            let mut records = good();
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(section.to_owned(), lines);
            let why = idle(&records).join("; ");
            assert!(why.contains(wanted), "{section}: {why}");
        }
    }
}
