//! Cells of the rules: axes multiplied.

use toml::Spanned;

use super::axes::at_line;
use super::{Cell, Driver, GpuSet, Kernel, Rule, RuleScenario, Text};

/// Returns the cells of every rule, before includes and excludes.
///
/// # Errors
/// A rule's name occurs twice, or one of its `only` matches nothing.
pub(super) fn cells(
    rules: &[Spanned<Rule>],
    kernels: &[Kernel],
    drivers: &[Driver],
    text: &Text<'_>,
) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for (index, spanned) in rules.iter().enumerate() {
        let (rule, at) = (spanned.get_ref(), text.line(spanned));
        if let Some(first) = rules[..index].iter().find(|r| r.get_ref().name == rule.name) {
            let what = format!("the rule `{}` is in line {}, too", rule.name, text.line(first));
            return Err(at_line(at, &what));
        }
        for only in &rule.only {
            let selector = only.get_ref();
            if !combinations(kernels, drivers).any(|(k, d)| selector.matches(k, d)) {
                let what =
                    format!("`only` of the rule `{}` matches nothing: {selector}", rule.name);
                return Err(at_line(text.line(only), &what));
            }
        }
        let is_given = |(kernel, driver): &(&Kernel, &Driver)| {
            rule.only.is_empty() || rule.only.iter().any(|o| o.get_ref().matches(kernel, driver))
        };
        let given = combinations(kernels, drivers).filter(is_given);
        cells.extend(given.flat_map(|(kernel, driver)| cells_of(rule, kernel, driver)));
    }
    Ok(cells)
}

/// Returns every kernel with every driver, kernel by kernel.
pub(super) fn combinations<'a>(
    kernels: &'a [Kernel],
    drivers: &'a [Driver],
) -> impl Iterator<Item = (&'a Kernel, &'a Driver)> {
    kernels.iter().flat_map(move |kernel| drivers.iter().map(move |driver| (kernel, driver)))
}

/// Returns a rule's cells for this combination: one for each scenario, and for each set of devices where
/// it boots.
pub(super) fn cells_of(rule: &Rule, kernel: &Kernel, driver: &Driver) -> Vec<Cell> {
    let none = GpuSet::default();
    let mut cells = Vec::new();
    for scenario in &rule.scenarios {
        let sets: Vec<&GpuSet> = match scenario.boots() {
            true => rule.gpus.iter().map(Spanned::get_ref).collect(),
            false => vec![&none],
        };
        cells.extend(sets.into_iter().map(|gpus| cell(rule, kernel, driver, *scenario, gpus)));
    }
    cells
}

fn cell(
    rule: &Rule,
    kernel: &Kernel,
    driver: &Driver,
    scenario: RuleScenario,
    gpus: &GpuSet,
) -> Cell {
    let mut name = format!("{}-{}", kernel.id, driver.id);
    if !rule.suffix.is_empty() {
        name = format!("{name}-{}", rule.suffix);
    }
    if scenario.boots() {
        name = format!("{name}-{scenario}-{gpus}");
    }
    Cell {
        name,
        rule: rule.name.clone(),
        kernel: kernel.clone(),
        driver: driver.clone(),
        scenario,
        gpus: gpus.clone(),
        deadline_seconds: rule.deadline_seconds,
        included: None,
    }
}
