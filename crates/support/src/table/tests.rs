use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;

/// Table of one generation, GPU and branch, with `more` rows after them.
fn small(more: &str) -> String {
    format!(
        r#"
format = 1
issued = "2026-11-28"

[[generation]]
name = "turing"
title = "Turing"
first-branch = 410
flavours = ["open", "proprietary"]
source = "s"
checked = "2026-11-28"

[[gpu]]
id = "1eb8"
generation = "turing"
first = "418.226.00"
name = "Tesla T4"
source = "s"
checked = "2026-11-28"

[[branch]]
number = 580
kind = "long-support"
first-day = "2025-08-04"
last-day = "2028-06-30"
source = "s"
checked = "2026-11-28"
{more}"#
    )
}

const SOURCE: &str = "source = \"s\"\nchecked = \"2026-11-28\"\n";

#[test]
fn the_built_in_table_does_not_contradict_itself() {
    let table = SupportTable::built_in().unwrap();
    assert!(table.gpus.len() > 1400 && table.branches.len() > 15 && table.bulletins.len() >= 8);
    // Every generation has a GPU, and every bulletin is older than the table.
    for generation in &table.generations {
        assert!(table.gpus.values().any(|gpu| gpu.generation == generation.name), "{generation}");
    }
    assert!(table.bulletins.iter().all(|bulletin| bulletin.day <= table.issued));
}

#[rstest]
#[case(0x1db4, "volta", "V100 PCIe")]
#[case(0x102d, "kepler", "K80")]
#[case(0x1024, "kepler", "K40c")]
#[case(0x13f2, "maxwell", "M60")]
#[case(0x17fd, "maxwell", "M40")]
#[case(0x15f8, "pascal", "P100 PCIe")]
#[case(0x1bb3, "pascal", "P4")]
#[case(0x1eb8, "turing", "T4")]
#[case(0x2182, "turing", "GTX 1660 Ti")]
#[case(0x20b0, "ampere", "A100 SXM4")]
#[case(0x20f1, "ampere", "A100 PCIe")]
#[case(0x2236, "ampere", "A10")]
#[case(0x25b6, "ampere", "A16, A2")]
#[case(0x2330, "hopper", "H100 SXM5")]
#[case(0x2335, "hopper", "H200")]
#[case(0x2342, "grace-hopper", "GH200")]
#[case(0x27b8, "ada", "L4")]
#[case(0x26b5, "ada", "L40")]
#[case(0x2901, "blackwell", "B200")]
#[case(0x2941, "blackwell", "GB200")]
#[case(0x3182, "blackwell", "B300")]
#[case(0x31c2, "blackwell", "GB300")]
#[case(0x2bb1, "blackwell", "RTX PRO 6000")]
#[case(0x06d1, "fermi", "C2050")]
#[case(0x0191, "older", "GeForce 8800 GTX")]
fn generations_of_gpus(#[case] device: u16, #[case] wanted: &str, #[case] name: &str) {
    let table = SupportTable::built_in().unwrap();
    assert_eq!(table.generation(device).map(|g| g.name.as_str()), Some(wanted), "{name}");
}

#[rstest]
#[case::newer_than_the_table(0x7fff)]
#[case::nvswitch(0x22a3)]
#[case::audio_function(0x10f8)]
fn ids_that_are_no_gpu_of_the_table(#[case] device: u16) {
    assert_eq!(SupportTable::built_in().unwrap().generation(device), None);
}

#[rstest]
#[case::well("", None)]
#[case::unknown_key("[[branch]]\nnumer = 1", Some("unknown field `numer`"))]
#[case::unknown_section("[[branches]]", Some("unknown field `branches`"))]
#[case::no_source(
    "[[branch]]\nnumber = 1\nkind = \"production\"\nfirst-day = \"2025-01-01\"\nlast-day = \"2025-01-01\"",
    Some("missing field `source`")
)]
#[case::gpu_without_a_source(
    "[[gpu]]\nid = \"1db4\"\ngeneration = \"turing\"\nname = \"V100\"",
    Some("missing field `source`")
)]
#[case::gpu_with_a_source(
    "[[gpu]]\nid = \"1db4\"\ngeneration = \"turing\"\nname = \"V100\"\n@",
    None
)]
#[case::empty_source(
    "[[gpu]]\nid = \"1db4\"\ngeneration = \"turing\"\nname = \"V100\"\nsource = \" \"\nchecked = \"2026-11-28\"",
    Some("gpu 1db4: its source is empty")
)]
#[case::checked_after_the_issue(
    "[[floor]]\nid = \"x\"\ngpus = [\"1eb8\"]\nversion = \"580.1.1\"\nwhy = \"w\"\nsource = \"s\"\nchecked = \"2026-11-29\"",
    Some("floor x: checked on 2026-11-29, later than 2026-11-28, the table's issue")
)]
#[case::two_rows(
    "[[branch]]\nnumber = 580\nkind = \"production\"\nfirst-day = \"2025-01-01\"\nlast-day = \"2025-01-01\"\n@",
    Some("branch 580 has two rows")
)]
#[case::ends_before_it_begins(
    "[[branch]]\nnumber = 1\nkind = \"production\"\nfirst-day = \"2025-01-02\"\nlast-day = \"2025-01-01\"\n@",
    Some("branch 1: last day before the first")
)]
#[case::unknown_kind(
    "[[branch]]\nnumber = 1\nkind = \"beta\"\nfirst-day = \"2025-01-01\"\nlast-day = \"2025-01-01\"\n@",
    Some("unknown variant `beta`")
)]
#[case::no_day(
    "[[branch]]\nnumber = 1\nkind = \"production\"\nfirst-day = \"2025-02-30\"\nlast-day = \"2025-03-01\"\n@",
    Some("`2025-02-30` is not a day")
)]
#[case::id_in_two_generations(
    "[[generation]]\nname = \"volta\"\ntitle = \"Volta\"\nflavours = [\"proprietary\"]\n@[[gpu]]\nid = \"1eb8\"\ngeneration = \"volta\"\nname = \"x\"\n@",
    Some("id 1eb8 is there in two generations")
)]
#[case::unknown_generation(
    "[[gpu]]\nid = \"1db4\"\ngeneration = \"volta\"\nname = \"V100\"\n@",
    Some("gpu 1db4: unknown generation volta")
)]
#[case::no_id(
    "[[gpu]]\nid = \"1eb\"\ngeneration = \"turing\"\nname = \"x\"\n@",
    Some("is not a PCI device id")
)]
#[case::unsupported(
    "[[generation]]\nname = \"x\"\ntitle = \"X\"\nflavours = []\n@",
    Some("no flavour supports it")
)]
#[case::branches_in_reverse(
    "[[generation]]\nname = \"x\"\ntitle = \"X\"\nfirst-branch = 2\nlast-branch = 1\nflavours = [\"open\"]\n@",
    Some("first branch after the last")
)]
#[case::fixed_beyond_its_claims(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"580.159.03\", \"595.71.05\"]\nnewest-affected = 580\n@",
    Some("fixed version 595.71.05 is of a branch newer than 580")
)]
#[case::newest_not_covered(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"580.159.03\"]\nnewest-affected = 595\n@",
    Some("branch 595, the newest that is affected, has no fixed version")
)]
#[case::half_of_a_range(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"535.309.01\", \"595.71.05\"]\nnewest-affected = 595\n@",
    Some("covers half of its range: branch 580 was supported on 2026-05-19")
)]
#[case::nothing_of_an_older_branch(
    "[[branch]]\nnumber = 595\nkind = \"production\"\nfirst-day = \"2026-03-05\"\nlast-day = \"2027-03-31\"\n@[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"595.71.05\"]\nnewest-affected = 595\n@",
    Some("covers half of its range: branch 580 was supported on 2026-05-19")
)]
#[case::older_branch_not_affected(
    "[[branch]]\nnumber = 595\nkind = \"production\"\nfirst-day = \"2026-03-05\"\nlast-day = \"2027-03-31\"\n@[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"595.71.05\"]\nnot-affected = [580]\nnewest-affected = 595\n@",
    None
)]
#[case::fixed_and_not_affected(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"580.1.1\"]\nnot-affected = [580]\nnewest-affected = 580\n@",
    Some("branch 580 in not-affected is judged otherwise")
)]
#[case::newest_is_not_affected(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"580.1.1\"]\nnot-affected = [595]\nnewest-affected = 595\n@",
    Some("branch 595, the newest that is affected, has no fixed version")
)]
#[case::two_fixed_versions(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"580.1.1\", \"580.1.2\"]\nnewest-affected = 580\n@",
    Some("branch 580 has two fixed versions")
)]
#[case::fixed_and_not(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 8.8\nfixed = [\"580.1.1\"]\nno-fix = [580]\nnewest-affected = 580\n@",
    Some("branch 580 in no-fix is fixed, or is not affected")
)]
#[case::no_cve(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"24187\"]\nseverity = 8.8\nfixed = [\"580.1.1\"]\nnewest-affected = 580\n@",
    Some("its CVEs have to be names such as")
)]
#[case::score_beyond_ten(
    "[[bulletin]]\nid = \"1\"\ntitle = \"t\"\nday = \"2026-05-19\"\ncves = [\"CVE-2026-24187\"]\nseverity = 88\nfixed = [\"580.1.1\"]\nnewest-affected = 580\n@",
    Some("CVSS base score")
)]
#[case::excludes_nothing(
    "[[exclusion]]\nid = \"x\"\nfrom = \"590\"\nbelow = \"580\"\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("exclusion x: excludes nothing")
)]
#[case::no_version(
    "[[exclusion]]\nid = \"x\"\ngpus = [\"1eb8\"]\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("exclusion x: excludes nothing")
)]
#[case::kernels_in_reverse(
    "[[exclusion]]\nid = \"x\"\nfrom = \"580\"\nkernel-from = \"6.19\"\nkernel-below = \"6.9\"\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("exclusion x: excludes nothing")
)]
#[case::excluded_gpu_unknown(
    "[[exclusion]]\nid = \"x\"\nfrom = \"580\"\ngpus = [\"2941\"]\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("exclusion x: GPU 2941 is not in the table")
)]
#[case::excluded_generation_unknown(
    "[[exclusion]]\nid = \"x\"\nfrom = \"580\"\ngenerations = [\"tesla\"]\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("exclusion x: unknown generation tesla")
)]
#[case::unknown_cloud(
    "[[exclusion]]\nid = \"x\"\nfrom = \"580\"\nclouds = [\"amazon\"]\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("exclusion x: unknown cloud amazon")
)]
#[case::no_network_card(
    "[[exclusion]]\nid = \"x\"\nfrom = \"580\"\nnics = [\"efa\"]\naction = \"warn\"\nwhy = \"w\"\n@",
    Some("`efa` is not a PCI vendor and device id")
)]
#[case::floor_of_nothing(
    "[[floor]]\nid = \"x\"\nversion = \"580.1.1\"\nwhy = \"w\"\n@",
    Some("floor x: names no GPU and no generation")
)]
#[case::floor_is_a_branch(
    "[[floor]]\nid = \"x\"\ngpus = [\"1eb8\"]\nversion = \"580\"\nwhy = \"w\"\n@",
    Some("floor x: `580` is not a driver version")
)]
fn tables(#[case] more: &str, #[case] cause: Option<&str>) {
    match (SupportTable::parse(&small(&more.replace('@', SOURCE))), cause) {
        (Ok(_), None) => {}
        (Err(failure), Some(cause)) => {
            assert!(failure.to_string().contains(cause), "{failure}");
            assert_eq!(failure.code(), ExitCode::Usage);
        }
        (Ok(_), Some(cause)) => panic!("accepted, and not `{cause}`"),
        (Err(failure), None) => panic!("{failure}"),
    }
}

#[rstest]
#[case::same_keys("")]
#[case::new_keys("[[branch]]\nnumber = \"R580\"\nstate = \"new\"\n[[firmware]]\nid = 1\n")]
fn another_format_is_refused_before_its_keys_are_read(#[case] more: &str) {
    let text = small(more).replace("format = 1", "format = 2");
    let failure = SupportTable::parse(&text).unwrap_err();
    assert!(failure.to_string().contains("format 2; this longshore reads format 1"), "{failure}");
    assert!(failure.remedy_text().unwrap().contains("update longshore"), "{failure:?}");
    let of_head = TableHead::read(&text).unwrap_err();
    assert_eq!(of_head.to_string(), failure.to_string());
}

#[rstest]
#[case::none("", "missing field `format`")]
#[case::text("format = \"1\"", "invalid type: string")]
fn a_file_without_a_number_of_its_format_is_refused(#[case] line: &str, #[case] cause: &str) {
    let failure = SupportTable::parse(&small("").replace("format = 1", line)).unwrap_err();
    assert!(failure.to_string().contains(cause), "{failure}");
}

/// Rows of all generations of the built-in table but `without`.
fn generations(without: &[&str]) -> String {
    let row = |name: &str| {
        format!(
            "[[generation]]\nname = \"{name}\"\ntitle = \"T\"\nflavours = [\"open\"]\n{SOURCE}\n"
        )
    };
    let names = SupportTable::built_in().unwrap().generation_names();
    names.filter(|name| !without.contains(name)).map(row).collect()
}

/// Row of a branch.
fn branch() -> String {
    format!(
        "[[branch]]\nnumber = 580\nkind = \"long-support\"\nfirst-day = \"2025-08-04\"\nlast-day = \"2027-01-31\"\n{SOURCE}"
    )
}

#[test]
fn a_table_replaces_the_rows_and_keeps_the_gpus() {
    let base = SupportTable::built_in().unwrap();
    let gpu = format!("[[gpu]]\nid = \"7fff\"\ngeneration = \"rubin\"\nname = \"R200\"\n{SOURCE}");
    let rows = format!("{}{}{gpu}", generations(&[]), branch());
    let table = base.merged(&format!("format = 1\nissued = \"2026-11-28\"\n{rows}")).unwrap();
    assert_eq!(table.branches.len(), 1);
    assert!(table.bulletins.is_empty() && table.exclusions.is_empty());
    assert!(table.generation(0x1e30).is_some_and(|g| g.name == "turing"));
    assert_eq!(table.gpus.len(), base.gpus.len() + 1);
    assert_eq!(table.open_recommended_branch(), base.open_recommended_branch());
}

#[rstest]
#[case::nothing(String::new(), "has no [[generation]]")]
#[case::branches_alone(branch(), "has no [[generation]]")]
#[case::generations_alone(generations(&[]), "has no [[branch]]")]
#[case::lost_gpus(
    generations(&["hopper", "rubin"]) + &branch(),
    "lacks the generations hopper, rubin, of which "
)]
fn a_replacing_table_that_judges_nothing_or_loses_gpus_is_refused(
    #[case] rows: String,
    #[case] cause: &str,
) {
    let base = SupportTable::built_in().unwrap();
    let text = |head: &str| format!("format = 1\nissued = \"{head}\"\n{rows}");
    let failure = base.merged(&text("2026-11-28")).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Usage);
    assert!(failure.to_string().contains(cause), "{failure}");
    assert!(failure.remedy_text().unwrap().contains("`extends = true`"), "{failure:?}");
    // Rows that are added lose nothing.
    base.merged(&text("2026-11-28\"\nextends = true\n#\"")).unwrap();
}

#[test]
fn a_replacing_table_that_is_older_gives_way_and_may_lack_newer_generations() {
    let base = SupportTable::built_in().unwrap();
    let text = |issued: &str| {
        let rows = format!("{}{}", generations(&["rubin"]), branch());
        format!("format = 1\nissued = \"{issued}\"\n{}", rows.replace("2026-11-28", issued))
    };
    assert_eq!(&base.merged(&text("2026-11-27")).unwrap(), base);
    let wrong = text("2026-11-27").replace("2027-01-31", "2020-01-31");
    let failure = base.merged(&wrong).unwrap_err();
    assert!(failure.to_string().contains("last day before the first"), "{failure}");
}

#[test]
fn an_extending_table_adds_rows_and_takes_the_place_of_those_with_its_keys() {
    let base = SupportTable::built_in().unwrap();
    let text = format!(
        "format = 1\nissued = \"2026-12-01\"\nextends = true\n\n\
         [[branch]]\nnumber = 580\nkind = \"long-support\"\nfirst-day = \"2025-08-04\"\n\
         last-day = \"2028-08-31\"\n{SOURCE}\n\
         [[branch]]\nnumber = 625\nkind = \"new-feature\"\nfirst-day = \"2026-12-01\"\n\
         last-day = \"2027-12-01\"\n{SOURCE}\n\
         [[gpu]]\nid = \"7fff\"\ngeneration = \"rubin\"\nname = \"R200\"\n{SOURCE}"
    );
    let table = base.merged(&text).unwrap();
    assert_eq!(table.branches.len(), base.branches.len() + 1);
    assert_eq!(table.branch(580).unwrap().last_day.to_string(), "2028-08-31");
    assert_eq!(table.generation(0x7fff).unwrap().name, "rubin");
    assert_eq!(table.bulletins, base.bulletins);
    assert_eq!(table.issued().to_string(), "2026-12-01");
}

#[test]
fn an_older_extending_table_does_not_make_the_result_older() {
    let base = SupportTable::built_in().unwrap();
    let table = base.merged("format = 1\nissued = \"2025-01-01\"\nextends = true\n").unwrap();
    assert_eq!(&table, base);
}

#[test]
fn two_rows_of_a_file_are_refused_before_they_are_merged() {
    let base = SupportTable::built_in().unwrap();
    let row = format!(
        "[[branch]]\nnumber = 580\nkind = \"production\"\nfirst-day = \"2025-01-01\"\nlast-day = \"2025-01-01\"\n{SOURCE}"
    );
    let text = format!("format = 1\nissued = \"2026-12-01\"\nextends = true\n{row}\n{row}");
    let failure = base.merged(&text).unwrap_err();
    assert!(failure.to_string().contains("branch 580 has two rows"), "{failure}");
}
