//! Cells put in and taken out, each with a reason.

use super::axes::at_line;
use super::expand::{cells_of, combinations};
use super::{Cell, Driver, Excluded, File, Kernel, Text};

/// Adds the cells of every include.
///
/// # Errors
/// An include names no rule, or gives no cell that the rule does not give itself.
pub(super) fn include(
    file: &File,
    kernels: &[Kernel],
    drivers: &[Driver],
    cells: &mut Vec<Cell>,
    text: &Text<'_>,
) -> Result<(), String> {
    for spanned in &file.include {
        let (include, at) = (spanned.get_ref(), text.line(spanned));
        let mut rules = file.rule.iter().map(|rule| rule.get_ref());
        let Some(rule) = rules.find(|rule| rule.name == include.rule) else {
            return Err(at_line(at, &format!("there is no rule `{}` to include in", include.rule)));
        };
        let mut matched: Vec<Cell> = combinations(kernels, drivers)
            .filter(|(kernel, driver)| include.of.matches(kernel, driver))
            .flat_map(|(kernel, driver)| cells_of(rule, kernel, driver))
            .map(|cell| Cell { included: Some(include.reason.clone()), ..cell })
            .collect();
        if matched.is_empty() {
            return Err(at_line(at, &format!("the include matches nothing: {}", include.of)));
        }
        matched.retain(|new| !cells.iter().any(|c| c.rule == new.rule && c.name == new.name));
        if matched.is_empty() {
            let what = format!("the rule `{}` gives every cell of: {}", rule.name, include.of);
            return Err(at_line(at, &what));
        }
        cells.append(&mut matched);
    }
    Ok(())
}

/// Removes the cells of every exclude, and returns them. A cell that two excludes match counts with
/// the first.
///
/// # Errors
/// An exclude names no rule, matches nothing, or matches an included cell.
pub(super) fn exclude(
    file: &File,
    cells: &mut Vec<Cell>,
    text: &Text<'_>,
) -> Result<Vec<Excluded>, String> {
    let all = cells.clone();
    let mut excluded = Vec::new();
    for spanned in &file.exclude {
        let (exclude, at) = (spanned.get_ref(), text.line(spanned));
        if let Some(name) = &exclude.rule
            && !file.rule.iter().any(|rule| rule.get_ref().name == *name)
        {
            return Err(at_line(at, &format!("there is no rule `{name}` to exclude from")));
        }
        let is_met = |cell: &Cell| {
            exclude.rule.as_ref().is_none_or(|rule| *rule == cell.rule)
                && exclude.of.matches(&cell.kernel, &cell.driver)
        };
        if !all.iter().any(is_met) {
            return Err(at_line(at, &format!("the exclude matches nothing: {}", exclude.of)));
        }
        if let Some(cell) = all.iter().find(|cell| is_met(cell) && cell.included.is_some()) {
            let what = format!("the exclude contradicts the include that gives {}", cell.name);
            return Err(at_line(at, &what));
        }
        let (out, kept) = std::mem::take(cells).into_iter().partition(is_met);
        *cells = kept;
        excluded.push(Excluded {
            of: exclude.of.conditions(),
            reason: exclude.reason.clone(),
            cells: Vec::into_iter(out).map(|cell: Cell| cell.name).collect(),
        });
    }
    Ok(excluded)
}
