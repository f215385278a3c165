//! Judges a GPU that is bound to nouveau (script.sh): the agent refuses while a process holds
//! it, and names that; it unloads it when nobody does, and brings it back at TERM.

use crate::cell::needs::{Needs, StandIn};
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::records::Records;
use crate::scenarios::{Nouveau, Scenario};

/// Exit code of a preflight refusal.
const REFUSED: &str = "15";

/// Stand-in for nouveau.
static NOUVEAU: StandIn =
    StandIn { module: "nouveau", source: include_str!("nouveau.c"), header: None };

impl Scenario for Nouveau {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = refused(records);
        wrong.extend(checks::under("refused", end::differences(records, "held")));
        wrong.extend(checks::ready(expected, records, "ready"));
        wrong.extend(bindings(records));
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { stand_in: Some(&NOUVEAU), ..Needs::default() }
    }
}

/// Checks the exit code, and that the log names the process with its node.
fn refused(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    let fault = |code| format!("with nouveau in use the exit code is {code}, not {REFUSED}");
    wrong.extend(records.unlike("held.exit-code", REFUSED).map(fault));
    let holder = format!("pid {} (sleep) holds /dev/dri/renderD128", records.fact("holder"));
    if !records.text("held.log").contains(&format!("nouveau is in use: {holder}")) {
        wrong.push(format!("the log does not say that {holder}"));
    }
    wrong
}

/// Checks the driver of the GPU: nouveau before, nvidia while Ready, and the same as before after
/// that and after the refusal.
fn bindings(records: &Records) -> Vec<String> {
    let before = records.text("before.bindings");
    let mut wrong = Vec::new();
    if !before.contains(" nouveau override (null)") || !before.contains("runpm 0") {
        wrong.push(format!("nouveau was not bound before: {before}"));
    }
    for when in ["held", "after"] {
        let now = records.text(&format!("{when}.bindings"));
        if now != before {
            wrong.push(format!("{when}: the GPU's driver is `{now}`, and was `{before}`"));
        }
    }
    let ready = records.text("ready.bindings");
    if !ready.contains(" nvidia override nvidia") || !ready.contains("runpm none") {
        wrong.push(format!("while Ready the GPU's driver is `{ready}`"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: &str = "0000:00:01.0 nouveau override (null)\nrunpm 0\n/dev/dri/card0";

    fn good() -> Records {
        let mut records = Records::default();
        records.take("@fact holder 41");
        records.take("@fact held.exit-code 15");
        let ready = "0000:00:01.0 nvidia override nvidia\nrunpm none";
        let said = "by nouveau; nouveau is in use: pid 41 (sleep) holds /dev/dri/renderD128";
        for (name, text) in [
            ("before.bindings", BOUND),
            ("held.bindings", BOUND),
            ("ready.bindings", ready),
            ("after.bindings", BOUND),
            ("held.log", said),
        ] {
            records.sections.insert(name.into(), text.lines().map(str::to_owned).collect());
        }
        records
    }

    fn all(records: &Records) -> Vec<String> {
        refused(records).into_iter().chain(bindings(records)).collect()
    }

    #[test]
    fn a_driver_that_is_brought_back_has_nothing_wrong() {
        assert_eq!(all(&good()), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_found() {
        for (section, text, wanted) in [
            ("before.bindings", "0000:00:01.0 none override (null)", "not bound before"),
            ("held.bindings", "0000:00:01.0 nouveau override nvidia", "held: the GPU's driver"),
            ("ready.bindings", BOUND, "while Ready"),
            ("after.bindings", "0000:00:01.0 none override (null)", "after: the GPU's driver"),
            ("held.log", "pid 4 (sleep) holds /dev/dri/renderD128", "pid 41"),
        ] {
            let mut records = good();
            records.sections.insert(section.into(), vec![text.into()]);
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
    }
}
