//! A cell of the rules as a cell of matrix.toml.

use longshore_debian::archive::upstream;
use toml::{Table, Value};

use crate::build_run::suites;
use crate::rules::lock::{Lock, LockedDriver};
use crate::rules::{Cell, RuleScenario};
use longshore_lab::cell;
use longshore_lab::host::error::Error;

/// Returns the cell that is prepared, booted and judged.
///
/// # Errors
/// It is no cell of matrix.toml's form.
pub(super) fn cell(cell: &Cell, driver: &LockedDriver, lock: &Lock) -> Result<cell::Cell, Error> {
    let version = driver.revisions.first().map_or("", |newest| upstream(&newest.version));
    let suites = suites(cell, driver);
    let keys = Table::from_iter([
        ("name".to_owned(), cell.name.as_str().into()),
        ("scenario".to_owned(), scenario(cell.scenario).into()),
        (
            "kernel".to_owned(),
            table([
                ("suite", cell.kernel.suite.as_str().into()),
                ("package", cell.kernel.package.as_str().into()),
            ]),
        ),
        (
            "driver".to_owned(),
            table([
                ("branch", version.into()),
                ("flavour", cell.driver.flavour.to_string().into()),
                ("archive-frozen", lock.is_frozen(&suites).into()),
            ]),
        ),
    ]);
    let wanted = cell::Cell::with_defaults(keys)?;
    Ok(cell::Cell {
        gpus: cell.gpus.devices(),
        deadline_seconds: cell.deadline_seconds,
        further_suites: suites,
        ..wanted
    })
}

fn table<const N: usize>(keys: [(&str, Value); N]) -> Value {
    Value::Table(keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Returns the scenario by whose rules the guest is judged; one that checks the harness never comes to it.
fn scenario(of: RuleScenario) -> String {
    match of {
        RuleScenario::Compile => "build".to_owned(),
        RuleScenario::GuestPanic | RuleScenario::GuestHang | RuleScenario::GuestFullDisk => {
            RuleScenario::RoundTrip.to_string()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;
    use crate::rules::lock::{LockedPackage, LockedSuite};

    const RULES: &str = "format = 1\nfrozen = ['sid']\n[[kernels]]\ndistribution = 'debian'\n\
        suites = ['bookworm-security']\nflavours = ['rt']\narchitecture = 'amd64'\n\
        [[drivers]]\nbranches = ['535']\nflavours = ['open']\nsuites = ['sid']\n\
        [[rule]]\nname = 'a'\ngpus = [['2xT4']]\ndeadline-seconds = 60\nscenarios = [";

    fn wanted(scenario: &str) -> cell::Cell {
        let rules = Rules::parse(&format!("{RULES}'{scenario}']")).unwrap();
        let revision = LockedPackage {
            package: "nvidia-open-kernel-source".into(),
            version: "535.261.03-1".into(),
            suite: "sid".into(),
            sha256: "00".into(),
        };
        let id = "535-open".to_owned();
        let driver = LockedDriver { id, unavailable: None, revisions: vec![revision] };
        let frozen = LockedSuite { suite: "sid".into(), frozen: true, unavailable: None };
        let lock = Lock::new(vec![frozen], Vec::new(), Vec::new());
        cell(&rules.cells[0], &driver, &lock).unwrap()
    }

    #[test]
    fn a_cell_has_the_locked_version_and_the_suites_of_its_packages() {
        let wanted = wanted("in-use");
        assert_eq!(wanted.scenario, "in-use");
        assert_eq!(wanted.driver.branch, "535.261.03");
        assert_eq!(wanted.kernel.package, "linux-image-rt-amd64");
        assert_eq!(wanted.suites(), ["bookworm-security", "bookworm", "sid"]);
        assert!(wanted.driver.archive_frozen && wanted.deadline_seconds == 60);
        assert_eq!(wanted.gpus.len(), 2);
    }

    #[test]
    fn every_scenario_that_boots_is_judged_by_one_of_matrix_toml() {
        for (scenario, judged) in [
            ("round-trip", "round-trip"),
            ("restored", "restored"),
            ("interrupted", "interrupted"),
            ("guest-panic", "round-trip"),
            ("guest-hang", "round-trip"),
            ("guest-full-disk", "round-trip"),
        ] {
            assert_eq!(wanted(scenario).scenario, judged);
            assert!(longshore_lab::scenarios::named(judged).is_some());
        }
    }
}
