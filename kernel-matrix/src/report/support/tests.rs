use std::path::PathBuf;

use longshore_modules::signature::key::SecretKey;
use rstest::rstest;

use super::*;

/// Table with a branch of each kind; 5900 has a fix in 580 alone, and 6000 is later than the others.
const TABLE: &str = r#"
format = 1
issued = "2026-11-01"

[[branch]]
number = 535
kind = "long-support"
first-day = "2023-06-14"
last-day = "2026-06-30"
source = "s"
checked = "2026-11-01"

[[branch]]
number = 580
kind = "long-support"
first-day = "2025-08-04"
last-day = "2028-06-30"
source = "s"
checked = "2026-11-01"

[[branch]]
number = 595
kind = "production"
first-day = "2026-03-05"
last-day = "2027-03-31"
source = "s"
checked = "2026-11-01"

[[bulletin]]
id = "5900"
title = "t"
day = "2026-05-19"
cves = ["CVE-2026-0001", "CVE-2026-0002"]
severity = 8.8
fixed = ["580.159.03", "595.71.05"]
no-fix = [535]
newest-affected = 595
source = "s"
checked = "2026-11-01"

[[bulletin]]
id = "6000"
title = "t"
day = "2026-09-30"
cves = ["CVE-2026-0002", "CVE-2026-0003"]
severity = 7.8
fixed = ["580.178.04", "595.91.07"]
newest-affected = 595
source = "s"
checked = "2026-11-01"
"#;

fn judge(day: &str) -> Judge {
    Judge { table: SupportTable::parse(TABLE).unwrap(), day: day.parse().unwrap() }
}

fn cves(day: &str, versions: &[&str]) -> Vec<String> {
    let versions: Vec<String> = versions.iter().map(|version| (*version).to_owned()).collect();
    judge(day).state("580", &versions).cves(|id| format!("<{id}>"))
}

#[rstest]
#[case::before_the_end("535", "2026-06-29", "supported until 2026-06-30 (long-support)")]
#[case::last_day("535", "2026-06-30", "supported until 2026-06-30 (long-support)")]
#[case::after_the_end("535", "2026-07-01", "ended 2026-06-30")]
#[case::production("595", "2026-11-29", "supported until 2027-03-31 (production)")]
#[case::tree("580.142", "2026-11-29", "supported until 2028-06-30 (long-support)")]
#[case::newer("700", "2026-11-29", "support unknown: the table does not have this branch")]
#[case::no_number("next", "2026-11-29", "support unknown: the table does not have this branch")]
#[case::older("455", "2026-11-29", "ended: the table has newer branches alone")]
fn support_of_a_branch(#[case] branch: &str, #[case] day: &str, #[case] text: &str) {
    assert_eq!(judge(day).state(branch, &[]).support.text(), text);
}

#[rstest]
#[case::fixed("2026-11-29", &["580.178.04"], &["no known CVE open"])]
#[case::one("2026-11-29", &["580.159.03"], &["CVEs of open bulletins: 2, up to 7.8 (bulletin <6000>)"])]
#[case::two_with_a_cve_in_both("2026-11-29", &["580.142"], &["CVEs of open bulletins: 3, up to 8.8 (bulletins <6000>, <5900>)"])]
#[case::published_later("2026-09-29", &["580.159.03"], &["no known CVE open"])]
#[case::on_its_day("2026-09-30", &["580.159.03"], &["CVEs of open bulletins: 2, up to 7.8 (bulletin <6000>)"])]
#[case::alike("2026-11-29", &["580.178.05", "580.178.04"], &["no known CVE open"])]
#[case::different("2026-11-29", &["580.178.04", "580.159.03"],
    &["no known CVE open in 580.178.04", "CVEs of bulletins open in 580.159.03: 2, up to 7.8 (bulletin <6000>)"])]
#[case::no_fix_for_the_branch("2026-06-01", &["535.309.01"], &["CVEs of open bulletins: 2, up to 8.8 (bulletin <5900>)"])]
#[case::no_version("2026-11-29", &[], &[])]
fn open_cves(#[case] day: &str, #[case] versions: &[&str], #[case] texts: &[&str]) {
    assert_eq!(cves(day, versions), texts);
}

#[test]
fn a_state_names_some_bulletins_and_counts_the_others() {
    let bulletins = (1..=5).map(|id| id.to_string()).collect();
    let open = OpenCves { count: 9, highest: "9.8".into(), bulletins };
    let state = DriverState { support: Support::Unknown, open: vec![(vec!["1.2".into()], open)] };
    let texts = state.cves(str::to_owned);
    assert_eq!(texts, ["CVEs of open bulletins: 9, up to 9.8 (bulletins 1, 2, 3, 2 more)"]);
}

#[rstest]
#[case("2026-06-30", &["580.159.03", "580.142", "580", "535", "595", "700", "470"])]
#[case("2026-07-01", &["580.159.03", "580.142", "580", "595", "700", "535", "470"])]
#[case("2027-04-01", &["580.159.03", "580.142", "580", "700", "595", "535", "470"])]
fn supported_branches_come_first_then_unknown_ones(#[case] day: &str, #[case] order: &[&str]) {
    let judge = judge(day);
    let mut branches = order.to_vec();
    branches.sort_unstable();
    branches.sort_by_key(|branch| judge.state(branch, &[]).support.place(branch));
    assert_eq!(branches, order);
}

/// Rows of the built-in table.
const BUILT_IN: &str = include_str!("../../../../crates/support/data/support.toml");

/// Writes a table that makes the end of 580 earlier, signed; returns directory, table and key.
fn signed(
    by_other: bool,
    issued: &str,
    extends: bool,
) -> (tempfile::TempDir, PathBuf, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let key = SecretKey::generate();
    let [file, public] = ["support.toml", "key.pub"].map(|name| dir.path().join(name));
    let text = BUILT_IN
        .replace("\"2026-11-28\"", &format!("\"{issued}\""))
        .replace("format = 1\n", &format!("format = 1\nextends = {extends}\n"))
        .replace("last-day = \"2028-06-30\"", "last-day = \"2027-01-31\"");
    std::fs::write(&file, &text).unwrap();
    std::fs::write(&public, key.public_pem().unwrap()).unwrap();
    let signer = if by_other { SecretKey::generate() } else { key };
    std::fs::write(dir.path().join("support.toml.sig"), signer.sign(text.as_bytes())).unwrap();
    (dir, file, vec![public])
}

#[rstest]
#[case::extends("2099-12-01", true, "2027-01-31")]
#[case::replaces("2099-12-01", false, "2027-01-31")]
#[case::older_than_the_built_in_one("2020-12-01", false, "2028-06-30")]
fn a_signed_table_counts(#[case] issued: &str, #[case] extends: bool, #[case] last_day: &str) {
    let (_dir, file, keys) = signed(false, issued, extends);
    let table = table::of_file(&file, &keys).unwrap();
    assert_eq!(table.branch(580).unwrap().last_day.to_string(), last_day);
}

#[test]
fn a_table_that_no_key_signed_is_refused() {
    let (_dir, file, keys) = signed(true, "2099-12-01", false);
    let failure = table::of_file(&file, &keys).unwrap_err();
    assert_eq!(failure.kind(), longshore_core::failure::FailureKind::Verification);
    assert!(failure.to_string().contains("by any of these keys"), "{failure}");
}
