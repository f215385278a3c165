//! Refusal of rules that are without effect, contradict one another, or give no reason.

use std::collections::BTreeMap;

use super::axes::at_line;
use super::{Cell, Driver, File, Kernel, Text};

/// Refuses includes and excludes without a reason.
pub(super) fn reasons(file: &File, text: &Text<'_>) -> Result<(), String> {
    let excludes = file.exclude.iter().map(|e| (text.line(e), e.get_ref().reason.as_str()));
    let includes = file.include.iter().map(|i| (text.line(i), i.get_ref().reason.as_str()));
    match excludes.chain(includes).find(|(_, reason)| reason.trim().is_empty()) {
        Some((at, _)) => Err(at_line(at, "the reason is empty")),
        None => Ok(()),
    }
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
        let is_named = kernels.iter().any(|kernel| kernel.suite == *suite)
            || drivers.iter().any(|driver| driver.suites.contains(suite));
        if !is_named {
            let what = format!("the frozen suite `{suite}` has neither kernel nor driver");
            return Err(at_line(text.line(spanned), &what));
        }
    }
    Ok(())
}
