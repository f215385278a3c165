use super::*;
use rstest::rstest;

fn table() -> &'static SupportTable {
    SupportTable::built_in().unwrap()
}

fn day(text: &str) -> Day {
    text.parse().unwrap()
}

#[rstest]
#[case::last_day("535.309.01", "2026-06-30", None)]
#[case::day_after(
    "535.309.01",
    "2026-07-01",
    Some("support of branch 535 (long-support branch) ended on 2026-06-30")
)]
#[case::supported("580.178.04", "2026-11-28", None)]
#[case::earlier_of_two_sources(
    "580.178.04",
    "2028-07-01",
    Some("support of branch 580 (long-support branch) ended on 2028-06-30")
)]
#[case::never_in_the_table(
    "440.118.02",
    "2019-01-01",
    Some("support of branch 440 has ended: the table lists newer branches, and not this one")
)]
#[case::newer_than_the_table("999.1.1", "2026-11-28", None)]
#[case::no_version("newest", "2026-11-28", None)]
fn ended(#[case] version: &str, #[case] today: &str, #[case] wanted: Option<&str>) {
    let ended = table().ended(version, day(today)).map(|ended| ended.to_string());
    assert_eq!(ended.as_deref(), wanted);
}

/// Open bulletins as `number:fixed version`, `-` for none.
fn open(version: &str) -> Vec<String> {
    let open = table().open_bulletins(version);
    open.iter().map(|o| format!("{}:{}", o.bulletin.id, o.fixed_in.unwrap_or("-"))).collect()
}

#[rstest]
#[case::newest_fixed("580.178.04", &[])]
#[case::between_two_bulletins("580.159.03", &["5861:580.178.04"])]
#[case::one_release_before("580.159.02", &["5861:580.178.04", "5821:580.159.03"])]
#[case::fixed_exactly("595.91.07", &[])]
#[case::ended_branch_with_its_last_fix("535.309.01", &["5861:-"])]
#[case::ended_branch("550.163.01", &["5861:-", "5821:-", "5747:-", "5703:-", "5670:-"])]
#[case::no_fix_for_a_branch_of_its_days("590.48.01", &["5861:-", "5821:-"])]
#[case::branch_newer_than_every_fixed_one("620.70.06", &[])]
#[case::branch_that_no_table_has("625.1.1", &[])]
#[case::newer_than_the_fixed_ones_of_may("610.43.02", &["5861:610.57.04"])]
#[case::oldest("470.256.02", &["5861:-", "5821:-", "5747:-", "5703:-", "5670:-", "5630:-", "5614:-", "5586:-"])]
#[case::no_version("newest", &[])]
fn bulletins(#[case] version: &str, #[case] wanted: &[&str]) {
    assert_eq!(open(version), wanted);
}

#[test]
fn a_branch_that_came_after_a_bulletin_is_not_affected_by_it() {
    // 570 came eleven days after bulletin 5614, and is in it; without its fixed version it would be too new.
    let mut table = table().clone();
    let bulletin = table.bulletins.iter_mut().find(|row| row.id == "5614").unwrap();
    bulletin.fixed.retain(|version| !version.starts_with("570"));
    let is_open = |version| table.open_bulletins(version).iter().any(|o| o.bulletin.id == "5614");
    assert!(!is_open("570.86.10"));
    assert!(is_open("560.35.03"));
}

#[rstest]
#[case::without_a_fix("no-fix", true)]
#[case::not_affected("not-affected", false)]
fn a_branch_older_than_every_fixed_one_is_judged_by_the_key_that_has_it(
    #[case] key: &str,
    #[case] is_open: bool,
) {
    let text = format!(
        "format = 1\nissued = \"2026-11-29\"\nextends = true\n[[bulletin]]\nid = \"5901\"\ntitle = \"t\"\n\
         day = \"2026-11-29\"\ncves = [\"CVE-2026-50001\"]\nseverity = 7.8\nfixed = [\"620.70.07\"]\n\
         newest-affected = 620\n{key} = [580, 595]\nsource = \"s\"\nchecked = \"2026-11-29\"\n"
    );
    let table = table().merged(&text).unwrap();
    let open = table.open_bulletins("580.178.04");
    assert_eq!(open.iter().any(|one| one.bulletin.id == "5901"), is_open);
    assert_eq!(table.lacks_a_fix(580), is_open);
    assert!(!table.lacks_a_fix(620));
    assert!(table.open_bulletins("550.163.01").iter().any(|one| one.bulletin.id == "5901"));
}

#[test]
fn an_open_bulletin_names_number_day_cves_and_fix() {
    let of = |version| table().open_bulletins(version)[0].to_string();
    assert_eq!(of("590.48.01").split(" (").next(), Some("bulletin 5861 of 2026-09-30"));
    let may = table().open_bulletins("580.126.09")[1].to_string();
    assert_eq!(
        may,
        "bulletin 5821 of 2026-05-19 (CVE-2025-33221 and 10 more, up to 8.8), fixed in 580.159.03"
    );
    assert!(of("550.163.01").ends_with("no fix for this branch"));
}

#[rstest]
#[case("570.124.06", 0x2901, &["hgx-b200"])]
#[case("570.133.20", 0x2901, &[])]
#[case("570.124.06", 0x2330, &[])]
#[case("570.211.01", 0x2bb5, &["rtx-pro-6000-server"])]
#[case("575.57.08", 0x2bb5, &[])]
fn floors(#[case] version: &str, #[case] gpu: u16, #[case] wanted: &[&str]) {
    let floors = table().floors(version, &[0x1eb8, gpu]);
    assert_eq!(floors.iter().map(|(_, row)| row.id.as_str()).collect::<Vec<_>>(), wanted);
    assert!(floors.iter().all(|(of, _)| *of == gpu));
}

#[rstest]
#[case::listed_from_580_on("570.211.01", 0x3182, true)]
#[case::same_branch("580.65.06", 0x3182, false)]
#[case::unknown("570.211.01", 0x7fff, false)]
fn unlisted(#[case] version: &str, #[case] gpu: u16, #[case] is_unlisted: bool) {
    assert_eq!(!table().unlisted(version, &[gpu, gpu]).is_empty(), is_unlisted);
}

#[rstest]
#[case::gb200_with_efa("595.91.07", 0x2941, "1d0f:efa2", "6.12.0", None, &["r595-gb200-efa"])]
#[case::gb200_with_another_card("595.91.07", 0x2941, "15b3:1021", "6.12.0", None, &[])]
#[case::h100_with_efa("595.91.07", 0x2330, "1d0f:efa2", "6.12.0", None, &[])]
#[case::gb200_with_efa_and_580("580.178.04", 0x2941, "1d0f:efa2", "6.12.0", None, &[])]
#[case::gb200_with_575("575.57.08", 0x2941, "15b3:1021", "6.12.0", None, &["r575-gb200"])]
#[case::new_kernel("590.48.01", 0x1eb8, "15b3:1021", "6.19.2-1-generic", None, &["r590-kernel-6.19"])]
#[case::old_kernel("590.48.01", 0x1eb8, "15b3:1021", "6.9.0", None, &[])]
#[case::kernel_without_a_number("590.48.01", 0x1eb8, "15b3:1021", "custom", None, &[])]
#[case::t4_in_a_cloud("580.178.04", 0x1eb8, "15b3:1021", "6.12.0", Some("aws"), &["aws-g4dn-g5-open"])]
#[case::t4g_in_a_cloud("580.178.04", 0x1eb4, "15b3:1021", "6.12.0", Some("aws"), &["aws-g4dn-g5-open"])]
#[case::t4_in_another("580.178.04", 0x1eb8, "15b3:1021", "6.12.0", Some("gcp"), &[])]
fn exclusions(
    #[case] version: &str,
    #[case] gpu: u16,
    #[case] nic: &str,
    #[case] kernel: &str,
    #[case] cloud: Option<&str>,
    #[case] wanted: &[&str],
) {
    let (gpus, nics) = ([gpu], [nic.parse().unwrap()]);
    let traits = Traits { gpus: &gpus, nics: &nics, kernel, cloud };
    let rows = table().exclusions(version, Flavour::Open, traits);
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), wanted);
}

#[test]
fn an_exclusion_of_a_flavour_leaves_the_other() {
    let traits = Traits { gpus: &[0x1eb8], cloud: Some("aws"), ..Traits::default() };
    assert!(table().exclusions("580.178.04", Flavour::Proprietary, traits).is_empty());
}

#[test]
fn a_version_with_a_floor_or_an_exclusion_that_refuses_is_refused() {
    let refused = |version, gpus: &[u16], cloud| {
        let traits = Traits { gpus, cloud, ..Traits::default() };
        table().standing(version, Flavour::Open, traits, day("2026-11-28")).is_refused()
    };
    assert!(refused("570.124.06", &[0x2901], None));
    assert!(refused("575.57.08", &[0x2941], None));
    assert!(!refused("580.178.04", &[0x1eb8], Some("aws")));
}
