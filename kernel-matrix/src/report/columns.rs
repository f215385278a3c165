//! Columns of the pages: their order, their state, and ended branches apart.

use longshore_support::SupportTable;
use rstest::rstest;

use super::absent::Axes;
use super::merge::{Merged, Source};
use super::support::Judge;
use super::{html, markdown, verdicts};
use crate::results::sample::{self, HOSTILE};
use crate::results::{Authenticity, DriverAxis, Line};

/// Table with one long-support branch, 580, and one production branch, 595; 5900 is open in 580.142.
fn table(bulletin: &str) -> SupportTable {
    let row = |number: u64, kind: &str, last: &str| {
        format!(
            "[[branch]]\nnumber = {number}\nkind = \"{kind}\"\nfirst-day = \"2025-08-04\"\n\
             last-day = \"{last}\"\nsource = \"s\"\nchecked = \"2026-11-01\"\n"
        )
    };
    let id = toml::Value::from(bulletin).to_string();
    let text = format!(
        "format = 1\nissued = \"2026-11-01\"\n{}{}[[bulletin]]\nid = {id}\ntitle = \"t\"\n\
         day = \"2026-09-30\"\ncves = [\"CVE-2026-0001\"]\nseverity = 7.8\n\
         fixed = [\"580.178.04\", \"595.91.07\"]\nnewest-affected = 595\nsource = \"s\"\n\
         checked = \"2026-11-01\"\n",
        row(580, "long-support", "2028-06-30"),
        row(595, "production", "2027-03-31"),
    );
    SupportTable::parse(&text).unwrap()
}

/// Returns the sample with drivers of these branches, a cell of each for each kernel.
fn merged(branches: &[&str], day: &str) -> Merged {
    let mut results = sample::results();
    let (planned, cells) = (results.planned.split_off(4), results.cells.split_off(4));
    let template = results.drivers.swap_remove(1);
    (results.drivers, results.planned, results.cells) = Default::default();
    for branch in branches {
        let is_tree = branch.contains('.');
        let mut driver = DriverAxis { branch: Line::new(branch), ..template.clone() };
        driver.id = Line::new(&format!("{branch}-open"));
        if is_tree {
            driver.revisions[0].suite = Line::default();
        }
        for (planned, cell) in planned.iter().zip(&cells) {
            let (mut planned, mut cell) = (planned.clone(), cell.clone());
            planned.driver = driver.id.clone();
            planned.name = Line::new(&format!("{}-{branch}-open", planned.kernel));
            cell.name = planned.name.clone();
            let version = if is_tree { (*branch).to_owned() } else { format!("{branch}.163.01") };
            cell.resolved.as_mut().unwrap().driver_version = Line::new(&version);
            results.planned.push(planned);
            results.cells.push(cell);
        }
        results.drivers.push(driver);
    }
    let source = Source { file: "a".into(), results, authenticity: Authenticity::Sealed };
    let mut merged = Merged::merge(vec![source]).unwrap();
    merged.judge = Some(Judge { table: table("5900"), day: day.parse().unwrap() });
    merged
}

fn branches<'a>(drivers: &[&'a DriverAxis]) -> Vec<&'a str> {
    drivers.iter().map(|driver| driver.branch.as_str()).collect()
}

#[rstest]
#[case::today("2026-11-29", &["580.142", "595", "620"], &["550", "470"])]
#[case::production_branch_ended("2027-04-01", &["580.142", "620"], &["595", "550", "470"])]
#[case::both_ended("2028-07-01", &["620"], &["595", "580.142", "550", "470"])]
fn ended_branches_are_apart(#[case] day: &str, #[case] today: &[&str], #[case] ended: &[&str]) {
    let merged = merged(&["470", "550", "620", "580.142", "595"], day);
    let axes = Axes::new(&merged);
    assert_eq!(branches(&axes.drivers), today);
    assert_eq!(branches(&axes.ended), ended);
}

/// Returns the part of the page before the folded branches, and these.
fn parts(page: &str) -> (&str, &str) {
    let (before, rest) = page.split_once("<details class=\"ended\"").expect("folded branches");
    (before, rest.split_once("</details>").expect("an end").0)
}

#[test]
fn the_page_has_supported_branches_first_and_ended_ones_folded() {
    let page = html::render(&merged(&["550", "580.142"], "2026-11-29"), None, &[]);
    let (today, ended) = parts(&page);
    assert!(ended.starts_with('>'), "closed: {}", &ended[..40]);
    for text in ["supported until 2028-06-30 (long-support)", "open, from NVIDIA's sources"] {
        assert!(today.contains(text) && !ended.contains(text), "{text}");
    }
    for part in [today, ended] {
        assert!(part.contains("CVEs of open bulletins: 1, up to 7.8 (bulletin 5900)"), "{part}");
    }
    assert!(ended.contains("Ended branches: 550 open"), "{ended}");
    assert!(ended.contains("ended: the table has newer branches alone"), "{ended}");
    for part in [today, ended] {
        assert_eq!(part.matches("<table role=\"table\"").count(), 1);
        assert_eq!(part.matches("data-driver=").count(), 4);
    }
    assert!(page.contains("Drivers by the support table of 2026-11-01, on 2026-11-29"));
}

#[test]
fn a_table_with_room_has_the_patches_and_reasons_of_each_cell() {
    let note = "<span class=\"note\">";
    let of = |branches: &[&str]| html::render(&merged(branches, "2026-11-29"), None, &[]);
    let page = of(&["550", "580.142"]);
    let (today, ended) = parts(&page);
    for part in [today, ended] {
        assert!(part.contains(" data-roomy>"), "{part}");
        assert!(part.contains(&format!("{note}strncpy-gone</span>")), "with a patch: {part}");
        assert!(part.contains(&format!("{note}the run ended before it</span>")), "{part}");
        assert_eq!(part.matches(note).count(), 3, "none for the cell that compiled as it is");
    }
    let page = of(&["580.142", "580.82", "580.95", "580.105", "580.119"]);
    assert!(!page.contains(note) && !page.contains(" data-roomy>"));
}

#[rstest]
#[case::of_supported_ones(&["580.142", "470", "510", "515", "525", "535", "545", "550", "560"], "(max-width: 881px)")]
#[case::of_ended_ones_alone(&["470", "510", "515", "525", "535", "545", "550", "560"], "(max-width: 1057px)")]
fn cards_take_the_place_of_the_table_that_is_shown(#[case] branches: &[&str], #[case] width: &str) {
    let page = html::render(&merged(branches, "2026-11-29"), None, &[]);
    assert!(page.contains(width));
}

#[test]
fn where_no_branch_is_supported_the_ended_ones_are_open() {
    let page = html::render(&merged(&["550", "470"], "2026-11-29"), None, &[]);
    let (today, ended) = parts(&page);
    assert!(ended.starts_with(" open>"), "{}", &ended[..40]);
    assert!(today.contains("No driver here is of a branch that is supported"));
    assert!(!today.contains("<table role=\"table\""));
}

#[test]
fn where_no_branch_has_ended_nothing_is_folded() {
    let merged = merged(&["580.142", "620"], "2026-11-29");
    let page = html::render(&merged, None, &[]);
    assert!(!page.contains("<details class=\"ended\""));
    assert!(page.contains("support unknown: the table does not have this branch"));
    assert!(!markdown::render(&merged, None).contains("### Ended branches"));
}

#[test]
fn markdown_has_ended_branches_in_a_section_after_the_others() {
    let text = markdown::render(&merged(&["550", "580.142"], "2026-11-29"), None);
    let (today, ended) = text.split_once("### Ended branches\n").expect("a section");
    let head = "| `580.142` `open, from NVIDIA's sources`<br>`580.142`\
                <br>supported until 2028-06-30 (long-support)\
                <br>CVEs of open bulletins: 1, up to 7.8 (bulletin `5900`) |";
    assert!(today.contains(head), "{today}");
    assert!(!today.contains("`550`"), "{today}");
    assert!(ended.contains("`550` `open`<br>`550.163.01`<br>ended: "), "{ended}");
}

#[test]
fn verdicts_change_by_the_state_of_a_driver_and_not_by_the_day() {
    let of = |day| verdicts::render(&merged(&["550", "580.142", "595"], day));
    assert_eq!(of("2026-11-29"), of("2027-03-31"));
    let (before, after) = (of("2027-03-31"), of("2027-04-01"));
    assert!(
        before.contains("driver 595 open; supported until 2027-03-31 (production)"),
        "{before}"
    );
    assert!(after.contains("driver 595 open; ended 2027-03-31"), "{after}");
}

#[test]
fn hostile_texts_of_a_table_have_no_effect() {
    let mut merged = merged(&["580.142"], "2026-11-29");
    merged.judge = merged.judge.map(|judge| Judge { table: table(HOSTILE), ..judge });
    let page = html::render(&merged, None, &[]);
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("<!--").count() + page.matches("<img").count(), 0);
    assert!(!page.contains(['\x1b', '\u{202e}']));
    let text = markdown::render(&merged, None);
    let state = text.lines().find(|line| line.contains("CVEs of open bulletins")).expect("a state");
    let outside: String = state.split('`').step_by(2).collect();
    assert!(!outside.contains("script") && !outside.contains("<img"), "{state}");
    assert!(!verdicts::render(&merged).contains(['\x1b', '\u{202e}']));
}
