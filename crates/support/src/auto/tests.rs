use super::*;
use rstest::rstest;

use Flavour::{Open, Proprietary};

/// Offers both flavours of each version.
fn both<'a>(versions: &[&'a str]) -> Vec<(&'a str, Flavour)> {
    versions.iter().flat_map(|version| [(*version, Open), (*version, Proprietary)]).collect()
}

const ALL: [&str; 8] = [
    "470.256.02",
    "535.309.01",
    "550.163.01",
    "570.211.01",
    "580.178.04",
    "590.48.01",
    "595.91.07",
    "620.70.06",
];

#[rstest]
#[case::newest_long_support(0x1eb8, &ALL, Some("620.70.06"))]
#[case::long_support_before_production(0x2330, &ALL[..7], Some("580.178.04"))]
#[case::last_of_volta(0x1db4, &ALL, Some("580.178.04"))]
#[case::last_of_kepler(0x102d, &ALL, Some("470.256.02"))]
#[case::no_driver_of_kepler(0x102d, &ALL[1..], None)]
#[case::b200(0x2901, &ALL[..5], Some("580.178.04"))]
#[case::floor(0x2bb5, &["570.211.01"], None)]
#[case::only_vulnerable_ones(0x1eb8, &ALL[..3], Some("535.309.01"))]
#[case::fixed_production_before_vulnerable_long_support(
    0x1eb8,
    &["580.126.09", "595.91.07"],
    Some("595.91.07")
)]
#[case::supported_before_ended_with_fewer_bulletins(
    0x1eb8,
    &["535.309.01", "580.142"],
    Some("580.142")
)]
#[case::nothing_offered(0x1eb8, &[], None)]
fn choices(#[case] gpu: u16, #[case] versions: &[&str], #[case] wanted: Option<&str>) {
    let table = SupportTable::built_in().unwrap();
    let (gpus, offered) = ([gpu], both(versions));
    let traits = Traits { gpus: &gpus, kernel: "6.12.0", ..Traits::default() };
    let chosen = choose(table, &offered, traits, "2026-11-28".parse().unwrap());
    assert_eq!(chosen.map(|chosen| chosen.version), wanted);
}

#[rstest]
#[case::not_in_the_table(0x7fff)]
#[case::in_no_list_of_a_driver(0x3002)]
fn a_gpu_that_no_driver_lists_gets_the_newest_open_modules(#[case] gpu: u16) {
    let table = SupportTable::built_in().unwrap();
    let offered = [("580.178.04", Open), ("595.91.07", Open), ("620.70.06", Proprietary)];
    let gpus = [0x1eb8, gpu];
    let traits = Traits { gpus: &gpus, ..Traits::default() };
    let chosen = choose(table, &offered, traits, "2026-11-28".parse().unwrap()).unwrap();
    assert_eq!(chosen.version, "595.91.07");
    assert!(chosen.reason.contains(&format!("10de:{gpu:04x}")), "{}", chosen.reason);
}

#[test]
fn an_excluded_version_is_passed_over() {
    let table = SupportTable::built_in().unwrap();
    let nics = ["1d0f:efa2".parse().unwrap()];
    let traits = Traits { gpus: &[0x2941], nics: &nics, ..Traits::default() };
    let offered = both(&["580.126.09", "595.91.07"]);
    let chosen = choose(table, &offered, traits, "2026-11-28".parse().unwrap()).unwrap();
    assert_eq!(chosen.version, "580.126.09");
}

#[rstest]
#[case(
    &["580.178.04", "595.91.07"],
    "2026-11-28",
    "auto, by the support table of 2026-11-28: long-support branch 580 until 2028-06-30, no open security \
     bulletin; 595.91.07 is newer: production branch 595 until 2027-03-31, no open security bulletin"
)]
#[case(
    &["535.309.01"],
    "2026-11-28",
    "auto, by the support table of 2026-11-28: support of branch 535 (long-support branch) ended on \
     2026-06-30, 1 open security bulletin"
)]
fn reasons(#[case] versions: &[&str], #[case] today: &str, #[case] wanted: &str) {
    let table = SupportTable::built_in().unwrap();
    let offered = both(versions);
    let traits = Traits { gpus: &[0x1eb8], ..Traits::default() };
    let chosen = choose(table, &offered, traits, today.parse().unwrap()).unwrap();
    assert_eq!(chosen.reason, wanted);
}
