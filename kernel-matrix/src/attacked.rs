//! Judges the attempts of an unprivileged user, and of a container with /run/nvidia mounted,
//! against the agent (guest/attacked.sh): none may have had an effect.

use crate::checks::{self, Expected};
use crate::records::Records;

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

/// Returns the deviations from the expected outcome.
pub fn wrong(expected: &Expected, records: &Records) -> Vec<String> {
    let mut wrong = checks::ready(expected, records, "ready");
    wrong.extend(facts(records));
    wrong.extend(effects(records, "attack.user", |line| {
        HARMLESS.iter().any(|harmless| line.starts_with(harmless))
    }));
    wrong.extend(effects(records, "attack.container", |_| false));
    wrong
}

fn facts(records: &Records) -> Vec<String> {
    let wanted =
        [("core-pattern-kept", "yes"), ("marked-process", "lives"), ("probes-answered", PROBES)];
    wanted
        .into_iter()
        .filter_map(|(fact, wanted)| {
            let found = records.facts.get(fact).map_or("none", String::as_str);
            (found != wanted).then(|| format!("{fact} is {found}, not {wanted}"))
        })
        .collect()
}

/// Returns the attempts that had an effect, except those that are `harmless`.
fn effects(records: &Records, section: &str, harmless: fn(&str) -> bool) -> Vec<String> {
    match records.section(section) {
        Ok(lines) => lines
            .iter()
            .filter(|line| !line.is_empty() && !harmless(line))
            .map(|line| format!("{section}: {line}"))
            .collect(),
        Err(missing) => vec![missing],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(user: &str, container: &str, facts: [&str; 3]) -> Records {
        let mut records = Records::default();
        for (name, text) in [("attack.user", user), ("attack.container", container)] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(name.to_owned(), lines);
        }
        for (name, value) in
            ["core-pattern-kept", "marked-process", "probes-answered"].into_iter().zip(facts)
        {
            records.facts.insert(name.to_owned(), value.to_owned());
        }
        records
    }

    fn all(records: &Records) -> Vec<String> {
        let mut wrong = facts(records);
        wrong.extend(effects(records, "attack.user", |line| {
            HARMLESS.iter().any(|harmless| line.starts_with(harmless))
        }));
        wrong.extend(effects(records, "attack.container", |_| false));
        wrong
    }

    #[test]
    fn attempts_without_an_effect_pass() {
        let user = "early locked /var/lib/longshore\nlate locked /run/nvidia\n\
            late read /run/nvidia/longshore/state.json";
        assert_eq!(all(&records(user, "", ["yes", "lives", "5"])), Vec::<String>::new());
    }

    #[test]
    fn every_effect_is_found() {
        let good = ["yes", "lives", "5"];
        let cases = [
            (
                records("late locked /var/lib/longshore/tmp", "", good),
                "locked /var/lib/longshore/tmp",
            ),
            (records("early wrote /var/lib/longshore", "", good), "wrote /var/lib/longshore"),
            (records("late signalled cc1", "", good), "signalled cc1"),
            (records("", "wrote /run/nvidia/driver/attack", good), "wrote /run/nvidia"),
            (records("", "", ["no", "lives", "5"]), "core-pattern-kept is no"),
            (records("", "", ["yes", "ended", "5"]), "marked-process is ended"),
            (records("", "", ["yes", "lives", "4"]), "probes-answered is 4"),
        ];
        for (records, wanted) in cases {
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
        assert!(all(&Records::default()).join("\n").contains("attack.user"));
    }
}
