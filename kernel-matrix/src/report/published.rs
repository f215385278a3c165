//! The page that docs publish is the report on the published results.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;
use longshore_core::day::Day;

use super::booted::Booted;
use super::{Options, booted, report};
use longshore_lab::run::matrix::Matrix;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PAGE: &str = "docs/reference/combinations.html";
const BOOTED: &str = "kernel-matrix/measured/booted.jsonl";
const VERDICTS: &str = "kernel-matrix/measured/verdicts.txt";
/// The command that makes the page, in the top directory of a checkout; combinations.md and ci/matrix name it, and the page
/// with the day for which it judged.
const COMMAND: &str = "kernel-matrix report kernel-matrix/measured/compiled.json --beside \
    kernel-matrix/measured/source-trees.json --booted kernel-matrix/measured/booted.jsonl \
    --link longshore=../../README.md \
    --link results=../../kernel-matrix/measured/compiled.json \
    --link lock=../../kernel-matrix/measured/compiled.lock --link provenance=combinations.md \
    --link cells=../internals/proofs.md --verdicts kernel-matrix/measured/verdicts.txt \
    --html docs/reference/combinations.html";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn words() -> impl Iterator<Item = &'static str> {
    COMMAND.split_whitespace()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(TOP).join(path)).unwrap()
}

/// Returns the cells that only start and end the agent, whose last run passed with a driver.
fn booted_cells() -> Vec<Booted> {
    let files = ["lab/matrix.toml", "lab/source-trees.toml"];
    let matrices = files.map(|file| Matrix::read(&Path::new(TOP).join(file)).unwrap());
    let is_boot = |name: &str| {
        let mut cells = matrices.iter().flat_map(|matrix| &matrix.cells);
        let boots = ["round-trip", "modules-only"];
        cells.any(|cell| cell.name == name && boots.contains(&&*cell.scenario) && cell.exit == 0)
    };
    let mut found = BTreeMap::new();
    for line in read("docs/internals/proofs.jsonl").lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let detail = text("detail");
        let [kernel, driver, flavour] = detail.split(' ').collect::<Vec<_>>()[..] else { continue };
        let [kernel, driver, flavour] = [kernel, driver, flavour].map(str::to_owned);
        if text("kind") != "cell" || text("outcome") != "passed" || driver.is_empty() {
            continue;
        }
        let (cell, date, commit) = (text("name"), text("date"), text("commit"));
        if is_boot(&cell) {
            let key = (kernel.clone(), driver.clone(), flavour.clone());
            found.entry(key).or_insert(Booted { cell, kernel, driver, flavour, date, commit });
        }
    }
    found.into_values().collect()
}

/// Returns the day for which the page judged the drivers; today, where it is to be written.
fn day() -> Day {
    if std::env::var_os("WRITE_DOCS").is_some() {
        return Day::today();
    }
    let page = read(PAGE);
    let (_, day) = page.rsplit_once("--day ").expect("the page names its day");
    day[.."2026-11-29".len()].parse().unwrap()
}

#[test]
fn the_published_page_is_the_report_on_the_published_results() {
    if std::env::var_os("WRITE_DOCS").is_some() {
        let json = |booted| serde_json::to_string(&booted).unwrap() + "\n";
        let lines: String = booted_cells().into_iter().map(json).collect();
        std::fs::write(Path::new(TOP).join(BOOTED), lines).unwrap();
    }
    let mut options = Line::try_parse_from(words().skip(1)).unwrap().options;
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("page.html");
    options.results = options.results.iter().map(|path| Path::new(TOP).join(path)).collect();
    options.beside = options.beside.iter().map(|path| Path::new(TOP).join(path)).collect();
    options.booted = options.booted.map(|path| Path::new(TOP).join(path));
    options.html = Some(made.clone());
    let verdicts = dir.path().join("verdicts.txt");
    options.verdicts = Some(verdicts.clone());
    options.day = Some(day());
    report(&options, None).unwrap();
    let page = std::fs::read_to_string(made).unwrap();
    // Paths as the command has them.
    let page = page.replace(&format!("{TOP}/"), "").replace(dir.path().to_str().unwrap(), "D");
    let page = page.replace("--html D/page.html", &format!("--html {PAGE}"));
    let page = page.replace("--verdicts D/verdicts.txt", &format!("--verdicts {VERDICTS}"));
    let verdicts = std::fs::read_to_string(verdicts).unwrap();
    assert!(page.contains(&words().collect::<Vec<_>>().join(" ")), "the page names its command");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(Path::new(TOP).join(PAGE), &page).unwrap();
        std::fs::write(Path::new(TOP).join(VERDICTS), &verdicts).unwrap();
    }
    let command = "WRITE_DOCS=1 cargo test -p kernel-matrix --lib published_page";
    assert!(page == read(PAGE), "{PAGE} is not of these results: {command} renews it");
    assert!(verdicts == read(VERDICTS), "{VERDICTS} is not of these results: {command} renews it");
    // ci/matrix calls it by a function.
    let words: String = words().collect();
    for (place, words) in [
        ("docs/reference/combinations.md", words.as_str()),
        ("ci/matrix", words.trim_start_matches("kernel-")),
    ] {
        let text: String = read(place).split_whitespace().collect();
        assert!(text.replace('\\', "").contains(words), "{place} names the command");
    }
}

#[test]
fn what_booted_is_of_cells_that_passed() {
    let cells = booted_cells();
    assert!(cells.len() > 5, "{cells:?}");
    let published = booted::read(&Path::new(TOP).join(BOOTED)).unwrap();
    assert!(published.len() > 5, "{published:?}");
}
