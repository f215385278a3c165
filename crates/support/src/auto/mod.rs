//! Choice of a driver by the table, among those that are offered.

use std::cmp::Reverse;

use longshore_core::day::Day;
use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;

use crate::rows::{Action, BranchKind};
use crate::standing::{Standing, Traits};
use crate::table::SupportTable;

/// Driver that `auto` chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen<'a> {
    /// Version.
    pub version: &'a str,
    /// Reason.
    pub reason: String,
}

/// Chooses among versions that are offered, each with a flavour of its modules: of those that support every GPU and are
/// not excluded, one whose branch has not ended, then with the fewest open bulletins, then without a warning of the
/// table, then of a long-support branch before a production and a new-feature branch, then the newest.
///
/// A GPU that the table does not have, or has no driver for, gets the newest version, of the open modules where any are
/// offered. None where no version supports every GPU.
pub fn choose<'a>(
    table: &SupportTable,
    offered: &[(&'a str, Flavour)],
    traits: Traits<'_>,
    today: Day,
) -> Option<Chosen<'a>> {
    let fits =
        |(version, flavour): &&(&'a str, Flavour)| supports(table, version, *flavour, traits);
    let fitting: Vec<&(&'a str, Flavour)> = offered.iter().filter(fits).collect();
    if let Some(gpu) = traits.gpus.iter().find(|gpu| is_unknown(table, **gpu)) {
        return newest_open(&fitting, *gpu);
    }
    let judged = fitting
        .iter()
        .map(|(version, flavour)| (*version, table.standing(version, *flavour, traits, today)));
    let rank = |(version, standing): &(&'a str, Standing<'_>)| {
        (
            // Bulletins that are open in an ended branch stay open.
            standing.ended.is_some(),
            standing.open.len(),
            standing.exclusions.len() + standing.unlisted.len(),
            rank_of_kind(table, version),
            Reverse(numbers(version)),
        )
    };
    let mut judged: Vec<(&'a str, Standing<'_>)> = judged.collect();
    judged.sort_by_cached_key(rank);
    let (version, standing) = judged.first()?;
    let newest = judged.iter().max_by_key(|(version, _)| DriverVersion::new(version));
    let passed = newest
        .filter(|(newest, _)| newest != version)
        .map(|(newest, other)| format!("; {newest} is newer: {}", against(table, newest, other)));
    let reason = format!(
        "auto, by the support table of {}: {}{}",
        table.issued(),
        against(table, version, standing),
        passed.unwrap_or_default()
    );
    Some(Chosen { version, reason })
}

/// True if a version and flavour support every GPU that the table has, and nothing excludes it.
fn supports(table: &SupportTable, version: &str, flavour: Flavour, traits: Traits<'_>) -> bool {
    let Some(branch) = DriverVersion::new(version).branch() else { return false };
    let mut generations = traits.gpus.iter().filter_map(|gpu| table.generation(*gpu));
    let is_excluded =
        table.exclusions(version, flavour, traits).iter().any(|row| row.action == Action::Refuse);
    generations.all(|generation| generation.is_supported_by(branch) && generation.takes(flavour))
        && table.floors(version, traits.gpus).is_empty()
        && !is_excluded
}

/// True for a GPU that is newer than the table: it is not there, or no driver that was examined lists it and no branch
/// is known to support it.
fn is_unknown(table: &SupportTable, gpu: u16) -> bool {
    let Some(generation) = table.generation(gpu) else { return true };
    generation.first_branch.is_none()
        && generation.last_branch.is_none()
        && table.gpu(gpu).is_some_and(|gpu| gpu.first.is_none())
}

fn newest_open<'a>(fitting: &[&(&'a str, Flavour)], gpu: u16) -> Option<Chosen<'a>> {
    let newest = |flavour: Option<Flavour>| {
        let of = fitting.iter().filter(|one| flavour.is_none_or(|flavour| one.1 == flavour));
        of.map(|one| one.0).max_by_key(|version| DriverVersion::new(version))
    };
    let version = newest(Some(Flavour::Open)).or_else(|| newest(None))?;
    let reason =
        format!("auto: the newest, because the support table has no driver for GPU 10de:{gpu:04x}");
    Some(Chosen { version, reason })
}

/// Returns the rank of a version's branch by its kind; a branch that is not in the table comes last.
fn rank_of_kind(table: &SupportTable, version: &str) -> u8 {
    let branch = DriverVersion::new(version).branch().and_then(|number| table.branch(number));
    match branch.map(|branch| branch.kind) {
        Some(BranchKind::LongSupport) => 0,
        Some(BranchKind::Production) => 1,
        Some(BranchKind::NewFeature) => 2,
        None => 3,
    }
}

fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

/// Formats a version's branch, and what the table has against it.
fn against(table: &SupportTable, version: &str, standing: &Standing<'_>) -> String {
    let branch = DriverVersion::new(version).branch().and_then(|number| table.branch(number));
    let mut parts = vec![match (&standing.ended, branch) {
        (Some(ended), _) => ended.to_string(),
        (None, Some(branch)) => {
            format!("{} {} until {}", branch.kind, branch.number, branch.last_day)
        }
        (None, None) => "a branch that the table does not have".to_owned(),
    }];
    parts.push(match standing.open.len() {
        0 => "no open security bulletin".to_owned(),
        1 => "1 open security bulletin".to_owned(),
        n => format!("{n} open security bulletins"),
    });
    parts.extend(standing.exclusions.iter().map(|row| row.why.clone()));
    parts.join(", ")
}

#[cfg(test)]
mod tests;
