//! Contradictions within a table.

use std::collections::BTreeSet;

use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::pci_id::parse_half;

use crate::fault::wrong;
use crate::gpus::{Gpu, Gpus};
use crate::rows::{Branch, Bulletin, Document, Exclusion, Floor, Provenance};

/// Number of the format that this program reads.
const FORMAT: i64 = 1;

/// Clouds that a host can be told to be in.
const CLOUDS: [&str; 4] = ["aws", "azure", "gcp", "oracle"];

/// Refuses another format than this program's.
pub(crate) fn format(number: i64) -> Result<(), Failure> {
    if number == FORMAT {
        return Ok(());
    }
    let cause = format!(
        "support table: the file is of format {number}; this longshore reads format {FORMAT}"
    );
    let remedy =
        format!("update longshore to a version that reads it, or take a table of format {FORMAT}");
    Err(Failure::new(FailureKind::Usage, cause).remedy(remedy))
}

/// Checks that each row has a source that was read not later than the table's issue.
///
/// # Errors
/// Exit code 2, naming the row.
pub(crate) fn sources(document: &Document) -> Result<(), Failure> {
    let Document { generations, gpus, branches, bulletins, floors, exclusions, .. } = document;
    let generations =
        generations.iter().map(|row| ("generation", row.name.clone(), row.provenance()));
    let gpus = gpus.iter().map(|row| {
        ("gpu", row.id.clone(), Provenance { source: &row.source, checked: row.checked })
    });
    let branches = branches.iter().map(|row| ("branch", row.number.to_string(), row.provenance()));
    let bulletins = bulletins.iter().map(|row| ("bulletin", row.id.clone(), row.provenance()));
    let floors = floors.iter().map(|row| ("floor", row.id.clone(), row.provenance()));
    let exclusions = exclusions.iter().map(|row| ("exclusion", row.id.clone(), row.provenance()));
    let rows = generations.chain(gpus).chain(branches);
    for (kind, key, of) in rows.chain(bulletins).chain(floors).chain(exclusions) {
        if of.source.trim().is_empty() {
            return Err(wrong(format!("{kind} {key}: its source is empty")));
        }
        if of.checked > document.issued {
            return Err(wrong(format!(
                "{kind} {key}: checked on {}, later than {}, the table's issue",
                of.checked, document.issued
            )));
        }
    }
    Ok(())
}

/// Checks a whole table: the rows of `document`, with `gpus`.
///
/// # Errors
/// Exit code 2, naming the row that contradicts itself or another one.
pub(crate) fn table(document: &Document, gpus: &Gpus) -> Result<(), Failure> {
    unique_keys(document)?;
    let Document { generations, branches, bulletins, floors, exclusions, .. } = document;
    let names: BTreeSet<&str> = generations.iter().map(|row| row.name.as_str()).collect();
    for row in generations {
        let order = row.first_branch.zip(row.last_branch);
        if order.is_some_and(|(first, last)| first > last) {
            return Err(wrong(format!("generation {}: first branch after the last", row.name)));
        }
        if row.flavours.is_empty() {
            return Err(wrong(format!("generation {}: no flavour supports it", row.name)));
        }
    }
    for (id, gpu) in gpus {
        if !names.contains(gpu.generation.as_str()) {
            return Err(wrong(format!("gpu {id:04x}: unknown generation {}", gpu.generation)));
        }
    }
    for row in branches {
        if row.last_day < row.first_day {
            return Err(wrong(format!("branch {}: last day before the first", row.number)));
        }
    }
    bulletins.iter().try_for_each(|row| bulletin(row, branches))?;
    floors.iter().try_for_each(|row| floor(row, &names, gpus))?;
    exclusions.iter().try_for_each(|row| exclusion(row, &names, gpus))
}

/// Number of GPUs that a message names.
const NAMED: usize = 3;

/// Refuses the rows of a replacing table that would silently end the judgement of drivers, or drop GPUs of the built-in
/// list. `gpus` are those of that list that the file has no row of.
///
/// # Errors
/// Exit code 2, naming the rows that are missing.
pub(crate) fn replacement(document: &Document, gpus: &Gpus) -> Result<(), Failure> {
    let lacking = |cause: String| {
        Failure::new(FailureKind::Usage, format!("support table: {cause}")).remedy(
            "set `extends = true` so that the rows are added to those of the built-in table, or give these rows, too",
        )
    };
    let generations = &document.generations;
    for (kind, is_empty) in
        [("generation", generations.is_empty()), ("branch", document.branches.is_empty())]
    {
        if is_empty {
            return Err(lacking(format!(
                "it replaces the built-in table, and has no [[{kind}]]: it would judge nothing by it"
            )));
        }
    }
    let is_lost = |gpu: &&Gpu| generations.iter().all(|row| row.name != gpu.generation);
    let lost: Vec<&Gpu> = gpus.values().filter(is_lost).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let missing: BTreeSet<&str> = lost.iter().map(|gpu| gpu.generation.as_str()).collect();
    let missing: Vec<&str> = missing.into_iter().collect();
    let mut named: Vec<String> = lost.iter().take(NAMED).map(|gpu| gpu.name.clone()).collect();
    if lost.len() > NAMED {
        named.push(format!("{} more", lost.len() - NAMED));
    }
    Err(lacking(format!(
        "it replaces the built-in table, and lacks the generations {}, of which {} GPUs are: {}",
        missing.join(", "),
        lost.len(),
        named.join(", ")
    )))
}

/// Refuses two rows of the same key.
pub(crate) fn unique_keys(document: &Document) -> Result<(), Failure> {
    unique("generation", document.generations.iter().map(|row| row.name.clone()))?;
    unique("branch", document.branches.iter().map(|row| row.number.to_string()))?;
    unique("bulletin", document.bulletins.iter().map(|row| row.id.clone()))?;
    unique("floor", document.floors.iter().map(|row| row.id.clone()))?;
    unique("exclusion", document.exclusions.iter().map(|row| row.id.clone()))
}

fn unique(kind: &str, keys: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for key in keys {
        if !seen.insert(key.clone()) {
            return Err(wrong(format!("{kind} {key} has two rows")));
        }
    }
    Ok(())
}

/// Checks that a bulletin judges each branch that was supported on its day, up to the newest affected one.
fn bulletin(row: &Bulletin, branches: &[Branch]) -> Result<(), Failure> {
    let wrong = |cause: String| Err(wrong(format!("bulletin {}: {cause}", row.id)));
    let is_cve = |text: &String| {
        let mut parts = text.split('-');
        let digits = |part: Option<&str>, least: usize| {
            part.is_some_and(|p| p.len() >= least && p.bytes().all(|b| b.is_ascii_digit()))
        };
        parts.next() == Some("CVE") && digits(parts.next(), 4) && digits(parts.next(), 4)
    };
    if row.cves.is_empty() || !row.cves.iter().all(is_cve) {
        return wrong("its CVEs have to be names such as CVE-2026-24187".into());
    }
    let mut judged = BTreeSet::new();
    for version in &row.fixed {
        let Some(branch) = DriverVersion::parse(version).and_then(DriverVersion::branch) else {
            return wrong(format!("`{version}` is not a driver version"));
        };
        if branch > row.newest_affected {
            return wrong(format!(
                "fixed version {version} is of a branch newer than {}, the newest that is affected",
                row.newest_affected
            ));
        }
        if !judged.insert(branch) {
            return wrong(format!("branch {branch} has two fixed versions"));
        }
    }
    for branch in &row.no_fix {
        if *branch > row.newest_affected || !judged.insert(*branch) {
            return wrong(format!("branch {branch} in no-fix is fixed, or is not affected"));
        }
    }
    if judged.is_empty() {
        return wrong("it names neither a fixed version nor a branch without a fix".into());
    }
    if !judged.contains(&row.newest_affected) {
        return wrong(format!(
            "branch {}, the newest that is affected, has no fixed version and is not in no-fix",
            row.newest_affected
        ));
    }
    for branch in &row.not_affected {
        if *branch > row.newest_affected || !judged.insert(*branch) {
            return wrong(format!(
                "branch {branch} in not-affected is judged otherwise, or newer than {}",
                row.newest_affected
            ));
        }
    }
    let is_missing = |branch: &&Branch| {
        branch.number <= row.newest_affected
            && (branch.first_day..=branch.last_day).contains(&row.day)
            && !judged.contains(&branch.number)
    };
    match branches.iter().find(is_missing) {
        Some(branch) => wrong(format!(
            "covers half of its range: branch {} was supported on {}, has no fixed version and is neither in no-fix nor in \
             not-affected",
            branch.number, row.day
        )),
        None => Ok(()),
    }
}

fn floor(row: &Floor, names: &BTreeSet<&str>, gpus: &Gpus) -> Result<(), Failure> {
    let at = format!("floor {}", row.id);
    if DriverVersion::parse(&row.version).is_none() {
        return Err(wrong(format!("{at}: `{}` is not a driver version", row.version)));
    }
    if row.gpus.is_empty() && row.generations.is_empty() {
        return Err(wrong(format!("{at}: names no GPU and no generation")));
    }
    known(&at, &row.gpus, &row.generations, names, gpus)
}

fn exclusion(row: &Exclusion, names: &BTreeSet<&str>, gpus: &Gpus) -> Result<(), Failure> {
    let at = format!("exclusion {}", row.id);
    let numbers = [&row.from, &row.below, &row.kernel_from, &row.kernel_below];
    for text in numbers.into_iter().flatten().chain(&row.versions) {
        if !is_version_or_branch(text) {
            return Err(wrong(format!("{at}: `{text}` is not a version or branch")));
        }
    }
    let is_range = row.from.is_some() || row.below.is_some();
    let is_empty = |from: &Option<String>, below: &Option<String>| {
        from.as_deref().zip(below.as_deref()).is_some_and(|(from, below)| {
            DriverVersion::new(from).is_at_least(DriverVersion::new(below))
        })
    };
    if is_empty(&row.from, &row.below) || is_empty(&row.kernel_from, &row.kernel_below) {
        return Err(wrong(format!("{at}: excludes nothing: its range ends before it begins")));
    }
    if is_range != row.versions.is_empty() {
        return Err(wrong(format!(
            "{at}: excludes nothing, or two things: give a range or versions"
        )));
    }
    if let Some(cloud) = row.clouds.iter().find(|cloud| !CLOUDS.contains(&cloud.as_str())) {
        return Err(wrong(format!("{at}: unknown cloud {cloud}")));
    }
    known(&at, &row.gpus, &row.generations, names, gpus)
}

fn is_version_or_branch(text: &str) -> bool {
    let is_number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    text.len() <= 32 && text.split('.').all(is_number)
}

/// Refuses GPUs and generations that the table does not have: such a row would never apply.
fn known(
    at: &str,
    ids: &[String],
    generations: &[String],
    names: &BTreeSet<&str>,
    gpus: &Gpus,
) -> Result<(), Failure> {
    let is_known = |id: &&String| parse_half(id).is_some_and(|id| gpus.contains_key(&id));
    if let Some(id) = ids.iter().find(|id| !is_known(id)) {
        return Err(wrong(format!("{at}: GPU {id} is not in the table")));
    }
    match generations.iter().find(|name| !names.contains(name.as_str())) {
        Some(name) => Err(wrong(format!("{at}: unknown generation {name}"))),
        None => Ok(()),
    }
}
