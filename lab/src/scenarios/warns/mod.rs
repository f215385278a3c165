//! Judges a guest in which a module provokes a warning of the kernel (script.sh): a control of the judge
//! of kernel logs, which must have found the warning in the form that this kernel gives it.

use crate::cell::Cell;
use crate::cell::needs::{Needs, StandIn};
use crate::judge::checks::Expected;
use crate::judge::evidence::Evidence;
use crate::judge::records::Records;
use crate::judge::tainted;
use crate::scenarios::{Scenario, Warns};

/// Module, as the kernel names it after a function of it.
const MODULE: &str = " [warns]";
/// Other lines of a warning that are trouble in every other cell.
const AROUND: [&str; 3] = ["[ cut here ]", "Call Trace:", "---[ end trace "];

/// True for the lines of the provoked warning.
fn is_expected(trouble: &str) -> bool {
    is_first_line(trouble) || AROUND.iter().any(|text| trouble.contains(text))
}

/// True for the line that says where the warning was.
fn is_first_line(trouble: &str) -> bool {
    let place = trouble.split_once("WARNING: ").map_or("", |(_, place)| place);
    place.contains("warns.c:") && place.contains(MODULE)
}

/// Module that provokes a warning of the kernel.
static WARNS: StandIn = StandIn { module: "warns", source: include_str!("warns.c"), header: None };

impl Scenario for Warns {
    fn needs(&self) -> Needs {
        Needs { stand_in: Some(&WARNS), ..Needs::default() }
    }

    fn provokes(&self, trouble: &str) -> bool {
        is_expected(trouble)
    }

    fn finished(&self, _: &Cell, _: &Expected, evidence: &Evidence) -> Vec<String> {
        let trouble = &evidence.trouble;
        let mut wrong = Vec::new();
        let found = trouble.iter().filter(|line| is_first_line(line)).count();
        if found != 1 {
            wrong.push(format!("{found} warnings of{MODULE} are in the kernel's log, not 1"));
        }
        let lost = AROUND.iter().filter(|text| !trouble.iter().any(|line| line.contains(**text)));
        wrong.extend(lost.map(|text| format!("the kernel's log has no `{text}`")));
        wrong.extend(loaded(&evidence.records));
        wrong.extend(tainted::not_warned(&evidence.records));
        wrong
    }
}

/// Checks that the module was loaded.
fn loaded(records: &Records) -> Option<String> {
    match records.section("provoked.modules") {
        Ok(modules) if modules.iter().any(|line| line.starts_with("warns ")) => None,
        Ok(_) => Some("the module that warns was not loaded".into()),
        Err(missing) => Some(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::console;
    use crate::judge::event::Outcome;
    use crate::scenarios;
    use rstest::rstest;

    const OLD: &str = "[    9.1] WARNING: CPU: 0 PID: 90 at /t/warns.c:5 provoke+0x1a/0x20 [warns]";
    const NEW: &str = "[    9.1] WARNING: warns.c:5 at provoke+0x1a/0x20 [warns], CPU#0: insmod/90";

    fn cell() -> Cell {
        toml::from_str(
            "name = 'a'\nscenario = 'warns'\nkernel = { suite = 's', package = 'p' }\n\
             driver = { branch = '535', flavour = 'open' }",
        )
        .unwrap()
    }

    /// Evidence of a guest with these lines on its console.
    fn evidence(console: &[&str]) -> Evidence {
        let mut evidence = Evidence {
            nonce: "n0nce".into(),
            console_verdict: Some(("n0nce".into(), 0)),
            ..Evidence::default()
        };
        let modules = [
            "@begin provoked.modules",
            "|warns 16384 0 - Live 0x0",
            "@end provoked.modules",
            "@fact provoked.tainted 12800",
        ];
        for line in modules.into_iter().chain(["@verdict n0nce 0"]) {
            evidence.records.take(line);
        }
        let trouble = console.iter().filter(|line| console::is_trouble(line));
        evidence.trouble = trouble.map(|line| (*line).to_owned()).collect();
        evidence
    }

    fn warning(first: &str) -> Vec<&str> {
        vec![
            "[    9.1] ------------[ cut here ]------------",
            "[    9.1] provoked",
            first,
            "[    9.1] Modules linked in: warns(OE+)",
            "[    9.1] Call Trace:",
            "[    9.1] ---[ end trace 0000000000000000 ]---",
        ]
    }

    fn faults(name: &str, console: &[&str]) -> String {
        let scenario = scenarios::named(name).unwrap();
        match scenario.judge(&cell(), &Expected::default(), &evidence(console)) {
            Outcome::Passed => String::new(),
            other => format!("{other:?}"),
        }
    }

    #[rstest]
    #[case(OLD)]
    #[case(NEW)]
    fn a_warning_is_found_here_and_a_fault_in_every_other_scenario(#[case] first: &str) {
        assert_eq!(faults("warns", &warning(first)), "");
        for scenario in ["round-trip", "refused", "peermem"] {
            let faults = faults(scenario, &warning(first));
            assert!(faults.contains(&format!("kernel: {first}")), "{scenario:?}: {faults}");
        }
    }

    #[test]
    fn a_warning_that_is_lost_or_another_one_is_a_fault() {
        let unseen = NEW.replace("WARNING: ", "Warning: ");
        let other = NEW.replace("[warns]", "[nvidia]");
        let cases: [(Vec<&str>, &str); 5] = [
            (Vec::new(), "0 warnings of"),
            (warning(&unseen), "0 warnings of"),
            ([warning(OLD), warning(OLD)].concat(), "2 warnings of"),
            ([warning(OLD), vec![other.as_str()]].concat(), "at provoke+0x1a/0x20 [nvidia]"),
            (vec![NEW], "no `[ cut here ]`"),
        ];
        for (console, wanted) in cases {
            let found = faults("warns", &console);
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
        let mut unloaded = evidence(&warning(NEW));
        unloaded.records.sections.clear();
        let faults = Warns.finished(&cell(), &Expected::default(), &unloaded);
        assert!(faults.join("\n").contains("provoked.modules"));
    }
}
