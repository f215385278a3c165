//! Tests of the declared cells.

use longshore_core::flavour::Flavour;

use super::*;
use crate::cell::DriverWanted;

const OWN: &str = include_str!("../../../matrix.toml");
/// Cells with drivers that whoever runs them gives.
const GIVEN: &str = include_str!("../../../source-trees.toml");
const CELL: &str = "[guest]\nsuite = 's'\npackages = []\n[[cell]]\nname = 'a'\n\
    scenario = 'refused'\nkernel = { suite = 's', package = 'p' }\n\
    driver = { branch = '535', flavour = 'open' }\n";
const NEXT: &str = "next-driver = { branch = '550', flavour = 'open', suite = 't' }\n";
const NEXT_KERNEL: &str = "next-kernel = { suite = 's-security', package = 'p' }\n";

#[test]
fn the_next_kernel_has_a_cell_of_its_own() {
    let cell = CELL.replace("'refused'", "'next-kernel'\nfrom = 'compile'");
    let cell = Matrix::parse(&format!("{cell}{NEXT_KERNEL}")).unwrap().cells.remove(0);
    assert_eq!(cell.kernel_suites(), ["s", "s-security"]);
    assert_eq!(cell.suites(), ["s", "s-security"]);
    assert_eq!(cell.on_next_kernel().unwrap().kernel.suite, "s-security");
}

#[test]
fn the_next_driver_has_a_cell_of_its_own() {
    let text = format!("{}{NEXT}", CELL.replace("'refused'", "'upgrade'"));
    let cell = Matrix::parse(&text).unwrap().cells.remove(0);
    let next = cell.next().unwrap();
    assert_eq!((next.driver.branch.as_str(), next.suites().join(" ")), ("550", "s t".into()));
    assert!(next.next().is_none());
}

#[test]
fn the_own_matrix_is_good() {
    let matrix = Matrix::parse(OWN).unwrap();
    assert_eq!(matrix.select(&[]).unwrap().len(), matrix.cells.len());
    let one = matrix.select(&["bookworm-535-open".into()]).unwrap();
    assert_eq!(one[0].gpus[0].to_string(), "t4");
}

#[test]
fn cells_of_given_drivers_are_good_and_load_modules_alone() {
    let matrix = Matrix::parse(GIVEN).unwrap();
    for cell in matrix.select(&[]).unwrap() {
        assert_eq!((cell.scenario.as_str(), cell.from), ("modules-only", Supply::SourceTree));
        assert!(!cell.core && cell.driver.branch.contains('.'), "{}", cell.name);
    }
}

#[test]
fn the_core_set_has_every_scenario_in_a_vm_but_those_on_demand() {
    let matrix = Matrix::parse(OWN).unwrap();
    let core = matrix.core();
    assert!(core.len() < matrix.cells.len());
    let in_a_vm = SCENARIOS.iter().filter(|scenario| scenario.script().is_some());
    for scenario in in_a_vm {
        let has = |cells: &[&Cell]| cells.iter().any(|cell| cell.scenario == scenario.name());
        let given = Matrix::parse(GIVEN).unwrap();
        let is_there = has(&matrix.select(&[]).unwrap()) || has(&given.select(&[]).unwrap());
        assert!(is_there, "no cell has {scenario:?}");
        assert!(has(&core) || scenario.is_on_demand(), "no cell of the core set has {scenario:?}");
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_name() {
    let cases = [
        (CELL.replace("'a'", "'A b'"), "kebab-case"),
        (CELL.replace("scenario =", "scenari ="), "scenari"),
        (CELL.replace("'refused'", "'refuse'"), "a: no scenario `refuse`; there are: attacked, "),
        (format!("{CELL}gpus = ['t5']"), "t5"),
        (format!("{CELL}gpu = []"), "gpu"),
        (
            format!("{CELL}gpus = ['t4','t4','t4','t4','t4','t4','t4','t4','t4']"),
            "a: at most 8 GPUs",
        ),
        (CELL.replace("'open'", "'closed'"), "closed"),
        (format!("{CELL}from = 'nowhere'"), "nowhere"),
        (format!("{}from = 'registry'", CELL.replace("'refused'", "'build'")), "no guest"),
        (format!("{CELL}by-digest = true"), "from a registry"),
        (CELL.replace("'refused'", "'upgrade'"), "next-driver"),
        (format!("{CELL}{NEXT}"), "next-driver"),
        (CELL.replace("'refused'", "'next-kernel'"), "has a next-kernel"),
        (format!("{CELL}{NEXT_KERNEL}"), "has a next-kernel"),
        (
            format!("{}{NEXT_KERNEL}", CELL.replace("'refused'", "'next-kernel'")),
            "compiled for in the guest",
        ),
        (CELL.replace("'refused'", "'peermem'"), "nvidia-peermem of the archive"),
        (CELL.replace("'refused'", "'cluster'"), "in a cluster only"),
        (format!("{CELL}engine = 'kubelet'"), "in a cluster only"),
        (
            format!(
                "{}engine = 'kubelet'\nfrom = 'bundle'",
                CELL.replace("'refused'", "'cluster'")
            ),
            "nothing but its cluster",
        ),
        (
            format!("{}{NEXT}from = 'bundle'", CELL.replace("'refused'", "'upgrade'")),
            "archive only",
        ),
    ];
    for (text, expected) in cases {
        let error = Matrix::parse(&text).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn the_suite_below_an_update_is_a_cells_too() {
    let of = |kernel: &str, driver: &str| {
        let text = CELL.replace("suite = 's', package", &format!("suite = '{kernel}', package"));
        let text = text.replace("'open'", &format!("'open', suite = '{driver}'"));
        Matrix::parse(&text).unwrap().cells.remove(0).suites().join(" ")
    };
    assert_eq!(of("trixie-security", "bookworm"), "trixie-security trixie bookworm");
    assert_eq!(of("trixie-security", "trixie"), "trixie-security trixie");
    assert_eq!(of("bookworm", "bookworm"), "bookworm");
}

#[test]
fn two_cells_of_one_name_are_refused() {
    let second = CELL.split_once("[[cell]]").map_or("", |(_, cell)| cell);
    let error = Matrix::parse(&format!("{CELL}[[cell]]{second}")).unwrap_err();
    assert!(error.contains("`a`"), "{error}");
}

#[test]
fn an_unknown_cell_is_an_error_that_lists_the_known() {
    let error = Matrix::parse(OWN).unwrap().select(&["nope".into()]).unwrap_err().to_string();
    assert!(error.contains("nope") && error.contains("bookworm-535-open"), "{error}");
}

#[test]
fn a_branch_is_met_by_its_versions_only() {
    let wanted = DriverWanted {
        branch: "535".into(),
        flavour: Flavour::Open,
        suite: None,
        no_patches: Vec::new(),
        archive_frozen: false,
    };
    assert!(wanted.is_met_by("535.261.03") && wanted.is_met_by("535"));
    assert!(!wanted.is_met_by("5351.1"));
}
