//! Results of a run over the rules, of its lock and its cells' results.

use std::collections::BTreeMap;

use crate::results::{
    CellResult, Digest, DriverAxis, Exclusion, KernelAxis, KernelState, Line, Part, PlannedCell,
    Results, Revision, Run, Verdict,
};
use crate::rules::lock::{Lock, LockedKernel};
use crate::rules::{Cell, Driver, Excluded, Kernel, Rules};

/// Returns the results of `run`, which selected `planned` of all shards, and has `cells` so far.
pub fn results(
    rules: &Rules,
    lock: &Lock,
    run: Run,
    planned: &[&Cell],
    cells: Vec<CellResult>,
) -> Results {
    // A row or column without a planned cell says nothing.
    let kernels = rules.kernels.iter();
    let kernels = kernels.filter(|kernel| planned.iter().any(|cell| cell.kernel.id == kernel.id));
    let drivers = rules.drivers.iter();
    let drivers = drivers.filter(|driver| planned.iter().any(|cell| cell.driver.id == driver.id));
    Results {
        kernels: kernels.map(|kernel| kernel_axis(kernel, lock)).collect(),
        drivers: drivers.map(|driver| driver_axis(driver, lock)).collect(),
        excluded: rules.excluded.iter().map(exclusion).collect(),
        planned: planned.iter().map(|cell| planned_cell(cell)).collect(),
        cells,
        ..Results::new(run)
    }
}

fn kernel_axis(kernel: &Kernel, lock: &Lock) -> KernelAxis {
    let locked = lock.kernel(&kernel.id);
    let image = locked.and_then(|locked| locked.image.as_ref());
    KernelAxis {
        id: Line::new(&kernel.id),
        suite: Line::new(&kernel.suite),
        line: kernel.line.as_deref().map(Line::new),
        flavour: Line::new(&kernel.flavour.to_string()),
        release: Line::new(locked.map_or("", |locked| &locked.release)),
        version: Line::new(image.map_or("", |image| &image.version)),
        state: locked.map_or(KernelState::Gone, state),
    }
}

fn state(kernel: &LockedKernel) -> KernelState {
    match kernel.unavailable.as_ref().map(|missing| missing.part) {
        None => KernelState::Available,
        Some(Part::Headers) => KernelState::HeadersMissing,
        Some(_) => KernelState::Gone,
    }
}

fn driver_axis(driver: &Driver, lock: &Lock) -> DriverAxis {
    let revisions = lock.driver(&driver.id).map_or(&[][..], |locked| &locked.revisions);
    DriverAxis {
        id: Line::new(&driver.id),
        branch: Line::new(&driver.branch),
        flavour: Line::new(&driver.flavour.to_string()),
        revisions: revisions
            .iter()
            .map(|of| Revision {
                package: Line::new(&of.package),
                version: Line::new(&of.version),
                suite: Line::new(&of.suite),
                sha256: Digest::try_from(of.sha256.clone()).ok(),
            })
            .collect(),
    }
}

fn exclusion(excluded: &Excluded) -> Exclusion {
    let lines = |(key, of): (&String, &String)| (Line::new(key), Line::new(of));
    Exclusion {
        condition: excluded.of.iter().map(lines).collect(),
        reason: Line::new(&excluded.reason),
        count: u32::try_from(excluded.cells.len()).unwrap_or(u32::MAX),
    }
}

fn planned_cell(cell: &Cell) -> PlannedCell {
    let included = cell.included.as_ref().map(|reason| format!("{}: {reason}", cell.rule));
    PlannedCell {
        name: Line::new(&cell.name),
        set: Line::new("product"),
        rule: Line::new(&included.unwrap_or_else(|| cell.rule.clone())),
        scenario: Line::new(&cell.scenario.to_string()),
        kernel: Line::new(&cell.kernel.id),
        driver: Line::new(&cell.driver.id),
        gpus: cell.gpus.devices().iter().map(|gpu| Line::new(&gpu.to_string())).collect(),
    }
}

/// Returns a verdict in one line.
pub fn one_line(verdict: &Verdict) -> String {
    let with = |patches: &[Line]| match patches {
        [] => String::new(),
        patches => format!(" with patches {}", Line::list(patches, ", ")),
    };
    match verdict {
        Verdict::Works {} => "works".to_owned(),
        Verdict::WorksPatched { patches } => format!("works{}", with(patches)),
        Verdict::Compiled { patches } => format!("compiled{}", with(patches)),
        Verdict::Refused { code, reason, .. } => format!("refused ({code}): {reason}"),
        Verdict::DoesNotCompile { class, line, .. } => {
            format!("does not compile ({class}): {line}")
        }
        Verdict::Unavailable { part, why } => format!("unavailable ({part}): {why}"),
        Verdict::Faulty { why } => format!("FAULTY: {}", Line::list(why, "; ")),
        Verdict::GuestEnded { class, why } => {
            format!("GUEST {}: {}", class.to_string().to_uppercase(), Line::list(why, "; "))
        }
        Verdict::NotRun { why } => format!("NOT RUN: {why}"),
    }
}

/// Returns the number of cells by verdict, in one line.
pub fn summary(cells: &[CellResult]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for cell in cells {
        *counts.entry(kind(&cell.verdict)).or_default() += 1;
    }
    let counts: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    format!("{} cells: {}", cells.len(), counts.join(", "))
}

fn kind(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Works {} => "works",
        Verdict::WorksPatched { .. } => "works patched",
        Verdict::Compiled { .. } => "compiled",
        Verdict::Refused { .. } => "refused",
        Verdict::DoesNotCompile { .. } => "do not compile",
        Verdict::Unavailable { .. } => "unavailable",
        Verdict::Faulty { .. } => "faulty",
        Verdict::GuestEnded { .. } => "ended without a verdict",
        Verdict::NotRun { .. } => "not run",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;
    use crate::rules::lock::Missing;

    const RULES: &str = "format = 1\n[[kernels]]\ndistribution = 'debian'\nsuites = ['a', 'b', 'c']\n\
        flavours = ['generic']\narchitecture = 'amd64'\n[[drivers]]\nbranches = ['550']\n\
        flavours = ['open']\nsuites = ['a']\n[[rule]]\nname = 'all'\nonly = [{ suite = ['a', 'c'] }]\n\
        [[include]]\nmatch = { suite = 'b' }\nrule = 'all'\nreason = 'r'\n";

    #[test]
    fn results_have_all_axes_and_agree_with_themselves() {
        let rules = Rules::parse(RULES).unwrap();
        let kernel = |id: &str, part: Option<Part>| LockedKernel {
            id: id.into(),
            release: "6.1".into(),
            unavailable: part.map(|part| Missing { part, why: "404".into() }),
            build_root: None,
            image: None,
            headers: Vec::new(),
        };
        let kernels = vec![kernel("a", None), kernel("b", Some(Part::Headers))];
        let lock = Lock::new(Vec::new(), kernels, Vec::new());
        let planned: Vec<&Cell> = rules.cells.iter().collect();
        let made = results(&rules, &lock, sample::results().run, &planned, Vec::new());
        made.check().unwrap();
        let states: Vec<KernelState> = made.kernels.iter().map(|kernel| kernel.state).collect();
        assert_eq!(
            states,
            [KernelState::Available, KernelState::HeadersMissing, KernelState::Gone]
        );
        assert_eq!(made.planned[2].rule.as_str(), "all: r");
        let one = results(&rules, &lock, sample::results().run, &planned[..1], Vec::new());
        one.check().unwrap();
        let ids = |made: &Results| made.kernels.iter().map(|of| of.id.clone()).collect::<Vec<_>>();
        assert_eq!(
            (ids(&one), one.drivers.len()),
            (vec![Line::new("a")], 1),
            "of planned cells alone"
        );
    }

    #[test]
    fn verdicts_are_counted_by_kind() {
        let cells = sample::results().cells;
        let text = summary(&cells);
        assert!(text.starts_with("8 cells: ") && text.contains("1 unavailable"), "{text}");
        assert!(cells.iter().all(|cell| !one_line(&cell.verdict).is_empty()));
    }
}
