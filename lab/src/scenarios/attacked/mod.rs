//! Judges the attempts of an unprivileged user, and of a container with /run/nvidia mounted,
//! against the agent (script.sh): none may have had an effect.

use crate::cell::Cell;
use crate::cell::needs::Needs;
use crate::cell::supply::Supply;
use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::scenarios::{Attacked, Scenario};

/// Attempts of the user that may succeed: locking and reading a store that no agent has opened yet,
/// and shared paths of NVIDIA's convention, which the agent neither locks nor trusts.
const HARMLESS: [&str; 6] = [
    "early locked /var/lib/longshore",
    "early read /var/lib/longshore",
    "early locked /run/nvidia",
    "early read /run/nvidia/longshore/",
    "late locked /run/nvidia",
    "late read /run/nvidia/longshore/",
];
/// Number of health probes sent while others flooded the server.
const PROBES: &str = "5";
/// Least number of the flood's sixteen connections that were answered.
const LEAST_ANSWERED: u32 = 16;
/// Phases of the agent in which its store may still be open to all: those before it changes the host.
const BEFORE_CHANGES: [&str; 3] = ["none", "probing", "planning"];
/// Least number of rounds of the user, before and after the agent opened the store, and of the container, before and
/// after the driver root was exposed.
const LEAST_ROUNDS: [(&str, &str, usize); 4] = [
    ("attack.rounds", "early", 1),
    ("attack.rounds", "late", 3),
    ("attack.container", "round early", 3),
    ("attack.container", "round exposed", 3),
];
/// Attempts of which some must have succeeded: they show that the user's program works.
const CONTROLS: [&str; 2] = ["early locked /var/lib/longshore", "late locked /run/nvidia"];
/// Processes that the user must have tried, and those of a compile.
const TRIED: [&str; 1] = ["longshore"];
const TRIED_OF_COMPILE: [&str; 2] = ["make", "cc1"];

impl Scenario for Attacked {
    fn wrong_in(&self, cell: &Cell, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = checks::ready(expected, records, "ready");
        wrong.extend(attacks(records, cell.from == Supply::Compile));
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { lacks_objects: true, ..Needs::default() }
    }
}

/// Returns the faults of the attacks on an agent that `compiles` or does not: those that had an effect, and attackers
/// that did not try.
fn attacks(records: &Records, compiles: bool) -> Vec<String> {
    let mut wrong = facts(records);
    match records.facts.get("opened-in") {
        Some(phase) if BEFORE_CHANGES.contains(&phase.as_str()) => {}
        Some(phase) => wrong.push(format!("the store was open to all until the phase {phase}")),
        None => wrong.push("the guest did not report when the store was opened".into()),
    }
    wrong.extend(effects(records, "attack.user", |line| {
        HARMLESS.iter().any(|harmless| line.starts_with(harmless))
    }));
    wrong.extend(effects(records, "attack.container", |line| line.starts_with("round ")));
    wrong.extend(effects(records, "attack.user-log", |_| false));
    wrong.extend(idle(records, compiles));
    wrong
}

/// Returns the signs of an attacker that did not try.
fn idle(records: &Records, compiles: bool) -> Vec<String> {
    let lines = |section: &str| records.section(section).unwrap_or_default();
    let mut wrong = Vec::new();
    for (section, round, least) in LEAST_ROUNDS {
        let count = lines(section).iter().filter(|line| *line == round).count();
        if count < least {
            wrong.push(format!("{section}: {count} times `{round}`, not {least}"));
        }
    }
    let has_control =
        |control: &&&str| lines("attack.user").iter().any(|line| line.starts_with(**control));
    let lost = CONTROLS.iter().filter(|control| !has_control(control));
    wrong.extend(lost.map(|control| format!("attack.user: no `{control}`, which has to succeed")));
    let of_compile = if compiles { TRIED_OF_COMPILE.as_slice() } else { &[] };
    let was_tried = |name: &&&str| lines("attack.tried").contains(&format!("late {name}"));
    let untried = TRIED.iter().chain(of_compile).filter(|name| !was_tried(name));
    wrong.extend(untried.map(|name| format!("attack.tried: no process {name}")));
    let answered = records.fact("flood-answered");
    if answered.parse::<u32>().is_ok_and(|answered| answered >= LEAST_ANSWERED) {
        return wrong;
    }
    wrong.push(format!("the flood got {answered} answers, not {LEAST_ANSWERED}"));
    wrong
}

fn facts(records: &Records) -> Vec<String> {
    let wanted =
        [("core-pattern-kept", "yes"), ("marked-process", "lives"), ("probes-answered", PROBES)];
    wanted
        .into_iter()
        .filter_map(|(fact, wanted)| {
            let found = records.unlike(fact, wanted)?;
            Some(format!("{fact} is {found}, not {wanted}"))
        })
        .collect()
}

/// Returns the attempts that had an effect, except those that are `harmless`.
fn effects(records: &Records, section: &str, harmless: fn(&str) -> bool) -> Vec<String> {
    records.faults(section, |lines| {
        let effects = lines.iter().filter(|line| !line.is_empty() && !harmless(line));
        effects.map(|line| format!("{section}: {line}")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest in which every attacker tried, and nothing but harmless attempts had an effect.
    fn good() -> Records {
        let mut records = Records::default();
        for (name, text) in [
            (
                "attack.user",
                "early locked /var/lib/longshore\nlate locked /run/nvidia\n\
                 late read /run/nvidia/longshore/state.json",
            ),
            ("attack.user-log", ""),
            ("attack.rounds", "early\nlate\nlate\nlate"),
            ("attack.tried", "early sh\nlate cc1\nlate longshore\nlate make\nlate sh"),
            (
                "attack.container",
                "round early\nround early\nround early\n\
                 round exposed\nround exposed\nround exposed",
            ),
        ] {
            records.sections.insert(name.into(), text.lines().map(str::to_owned).collect());
        }
        for (name, value) in [
            ("core-pattern-kept", "yes"),
            ("marked-process", "lives"),
            ("probes-answered", "5"),
            ("flood-answered", "320"),
            ("opened-in", "probing"),
        ] {
            records.facts.insert(name.into(), value.into());
        }
        records
    }

    #[test]
    fn attempts_without_an_effect_pass() {
        assert_eq!(attacks(&good(), true), Vec::<String>::new());
        assert_eq!(attacks(&good(), false), Vec::<String>::new());
    }

    #[test]
    fn every_effect_is_found() {
        for (section, line) in [
            ("attack.user", "late locked /var/lib/longshore/tmp"),
            ("attack.user", "early wrote /var/lib/longshore"),
            ("attack.user", "late signalled cc1"),
            ("attack.container", "wrote /run/nvidia/driver/attack"),
            (
                "attack.container",
                "replaced /run/nvidia/driver/run/nvidia-fabricmanager/fabricmanager.cfg",
            ),
            ("attack.user-log", "user.sh: 3: Syntax error"),
        ] {
            let mut records = good();
            records.sections.get_mut(section).unwrap().push(line.into());
            assert_eq!(attacks(&records, true), [format!("{section}: {line}")]);
        }
        for (fact, value) in
            [("core-pattern-kept", "no"), ("marked-process", "ended"), ("probes-answered", "4")]
        {
            let mut records = good();
            records.facts.insert(fact.into(), value.into());
            let wrong = attacks(&records, true).join("\n");
            assert!(wrong.starts_with(&format!("{fact} is {value}")), "{wrong}");
        }
    }

    #[test]
    fn a_store_that_is_open_to_all_during_an_installation_is_found() {
        for phase in ["installing", "ready"] {
            let mut records = good();
            records.facts.insert("opened-in".into(), phase.into());
            let wanted = format!("the store was open to all until the phase {phase}");
            assert_eq!(attacks(&records, true), [wanted]);
        }
        let mut silent = good();
        silent.facts.remove("opened-in");
        assert_eq!(attacks(&silent, true), ["the guest did not report when the store was opened"]);
    }

    #[test]
    fn an_attacker_that_did_not_try_is_found() {
        for (section, line, wanted) in [
            ("attack.user", "early locked /var/lib/longshore", "no `early locked"),
            ("attack.user", "late locked /run/nvidia", "no `late locked"),
            ("attack.rounds", "early", "0 times `early`"),
            ("attack.rounds", "late", "0 times `late`"),
            ("attack.container", "round early", "0 times `round early`"),
            ("attack.container", "round exposed", "0 times `round exposed`"),
            ("attack.tried", "late longshore", "no process longshore"),
            ("attack.tried", "late make", "no process make"),
            ("attack.tried", "late cc1", "no process cc1"),
        ] {
            let mut records = good();
            records.sections.get_mut(section).unwrap().retain(|other| other != line);
            let wrong = attacks(&records, true);
            assert!(wrong.len() == 1 && wrong[0].contains(wanted), "{wanted}: {wrong:?}");
        }
        let mut without_compile = good();
        without_compile.sections.insert("attack.tried".into(), vec!["late longshore".into()]);
        assert_eq!(attacks(&without_compile, false), Vec::<String>::new());
        for value in ["0", "15", "many"] {
            let mut records = good();
            records.facts.insert("flood-answered".into(), value.into());
            assert_eq!(attacks(&records, true), [format!("the flood got {value} answers, not 16")]);
        }
        for section in ["attack.user", "attack.user-log", "attack.container"] {
            let mut records = good();
            records.sections.remove(section);
            assert!(attacks(&records, true).join("\n").contains(&format!("`{section}`")));
        }
        assert!(attacks(&Records::default(), false).len() > 10);
    }
}
