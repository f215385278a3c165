//! Refusal of rules that are without effect, contradict one another, or give no reason.

use std::collections::BTreeMap;

use super::axes::at_line;
use super::{Cell, Driver, File, Kernel, Text};

/// Deadlines of a guest that make sense, in seconds.
const SECONDS: std::ops::RangeInclusive<u64> = 10..=7200;

/// Refuses includes and excludes without a reason.
pub(super) fn reasons(file: &File, text: &Text<'_>) -> Result<(), String> {
    let excludes = file.exclude.iter().map(|e| (text.line(e), e.get_ref().reason.as_str()));
    let includes = file.include.iter().map(|i| (text.line(i), i.get_ref().reason.as_str()));
    match excludes.chain(includes).find(|(_, reason)| reason.trim().is_empty()) {
        Some((at, _)) => Err(at_line(at, "the reason is empty")),
        None => Ok(()),
    }
}

/// Refuses scenarios and sets of devices of a rule that are there twice, are without effect or are missing.
pub(super) fn scenarios(file: &File, text: &Text<'_>) -> Result<(), String> {
    for spanned in &file.rule {
        let (rule, at) = (spanned.get_ref(), text.line(spanned));
        let fault = |what: &str| Err(at_line(at, &format!("the rule `{}`: {what}", rule.name)));
        let names: Vec<String> = rule.scenarios.iter().map(ToString::to_string).collect();
        if names.is_empty() {
            return fault("scenarios is empty, so that it gives nothing");
        }
        if let Some(name) = twice(&names) {
            return fault(&format!("the scenario {name} is listed twice"));
        }
        let boots = rule.scenarios.iter().any(|scenario| scenario.boots());
        match (boots, rule.gpus.as_slice()) {
            (true, []) => {
                return fault("a scenario that boots needs gpus: a list of sets of devices");
            }
            (false, [_, ..]) => return fault("gpus are without effect: no scenario boots"),
            _ => {}
        }
        let sets: Vec<String> = rule.gpus.iter().map(|set| set.get_ref().to_string()).collect();
        if let Some(set) = twice(&sets) {
            return fault(&format!("the set of devices {set} is listed twice"));
        }
        if !SECONDS.contains(&rule.deadline_seconds) {
            let (least, most) = (SECONDS.start(), SECONDS.end());
            return fault(&format!("deadline-seconds is not {least} to {most}"));
        }
    }
    Ok(())
}

fn twice<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter().enumerate().find(|(at, one)| all[..*at].contains(one)).map(|(_, one)| one)
}

/// Refuses sets of devices that no driver of their rule supports.
pub(super) fn devices(file: &File, cells: &[Cell], text: &Text<'_>) -> Result<(), String> {
    for spanned in &file.rule {
        let rule = spanned.get_ref();
        for set in &rule.gpus {
            if !cells.iter().any(|cell| cell.rule == rule.name && cell.gpus == *set.get_ref()) {
                let (set_name, name) = (set.get_ref(), &rule.name);
                let what =
                    format!("no driver of the rule `{name}` supports the devices {set_name}");
                return Err(at_line(text.line(set), &what));
            }
        }
    }
    Ok(())
}

/// Refuses cells that boot a kernel by its name, of which the headers alone are known.
pub(super) fn bootable(cells: &[Cell]) -> Result<(), String> {
    let wrong = cells.iter().find(|cell| cell.kernel.named.is_some() && cell.scenario.boots());
    wrong.map_or(Ok(()), |cell| {
        Err(format!(
            "the rule `{}` boots the kernel {}, which is by name and can only be compiled: leave it out by `only`",
            cell.rule, cell.kernel.id
        ))
    })
}

/// Refuses archives that serve no cell, and cells that boot with packages of one: guests are made from the machine's
/// apt sources alone.
pub(super) fn archives(file: &File, cells: &[Cell], text: &Text<'_>) -> Result<(), String> {
    for spanned in &file.archive {
        let (archive, at) = (spanned.get_ref(), text.line(spanned));
        let serves = |cell: &&Cell| {
            let mut suites = cell.kernel.suites().iter().chain(&cell.driver.suites);
            suites.any(|suite| archive.suites.contains(suite))
        };
        let suites = archive.suites.join(", ");
        if !cells.iter().any(|cell| serves(&cell)) {
            let what = format!("no kernel and no driver is of the archive's suites ({suites})");
            return Err(at_line(at, &what));
        }
        if let Some(cell) = cells.iter().filter(serves).find(|cell| cell.scenario.boots()) {
            let what = format!(
                "the rule `{}` boots {} with packages of this archive ({suites}), which can only be compiled: \
                 leave it out by `only`",
                cell.rule, cell.name
            );
            return Err(at_line(at, &what));
        }
    }
    Ok(())
}

/// Refuses two cells of one name.
pub(super) fn names(cells: &[Cell]) -> Result<(), String> {
    let mut rules = BTreeMap::new();
    for cell in cells {
        if let Some(other) = rules.insert(&cell.name, &cell.rule) {
            return Err(format!(
                "two cells are named `{}`, of the rules `{other}` and `{}`: give one of them a \
                 suffix",
                cell.name, cell.rule
            ));
        }
    }
    Ok(())
}

/// Refuses a file without a cell, and axes, rules and frozen suites that no cell has.
pub(super) fn effects(
    file: &File,
    kernels: &[Kernel],
    drivers: &[Driver],
    cells: &[Cell],
    text: &Text<'_>,
) -> Result<(), String> {
    for spanned in &file.rule {
        let name = &spanned.get_ref().name;
        if !cells.iter().any(|cell| cell.rule == *name) {
            return Err(at_line(text.line(spanned), &format!("the rule `{name}` gives no cell")));
        }
    }
    if cells.is_empty() {
        return Err("there is no cell: kernels, drivers and a rule are needed".to_owned());
    }
    if let Some(kernel) = kernels.iter().find(|k| !cells.iter().any(|cell| cell.kernel == **k)) {
        return Err(format!("the kernel {} is in no cell", kernel.id));
    }
    if let Some(driver) = drivers.iter().find(|d| !cells.iter().any(|cell| cell.driver == **d)) {
        return Err(format!("the driver {} is in no cell", driver.id));
    }
    for spanned in &file.frozen {
        let suite = spanned.get_ref();
        let is_named = kernels.iter().any(|kernel| kernel.suites().contains(suite))
            || drivers.iter().any(|driver| driver.suites.contains(suite));
        if !is_named {
            let what = format!("the frozen suite `{suite}` has neither kernel nor driver");
            return Err(at_line(text.line(spanned), &what));
        }
    }
    Ok(())
}
