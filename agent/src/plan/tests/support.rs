//! Plans by the support table: ended and vulnerable drivers, floors, exclusions, auto, and rules by GPU.

use super::*;
use crate::config::Reaction;
use longshore_core::failure::ExitCode;

/// Drivers of several branches as an archive has them, in both flavours where the branch has both.
fn modern() -> Catalog {
    let versions = [
        ("470.256.02", false),
        ("535.309.01", true),
        ("550.163.01", true),
        ("570.124.06", true),
        ("570.211.01", true),
        ("580.126.09", true),
        ("580.178.04", true),
        ("595.91.07", true),
    ];
    let of = |(version, has_open): (&str, bool)| {
        let open = has_open.then(|| offered(version, Flavour::Open));
        open.into_iter().chain([offered(version, Flavour::Proprietary)])
    };
    catalog(versions.into_iter().flat_map(of).collect())
}

/// Findings of the plan by the support table, as `severity code`.
fn judged(plan: &Plan) -> Vec<String> {
    let of = plan.findings.iter().filter(|f| longshore_core::finding::OF_SUPPORT.contains(&f.code));
    of.map(|f| format!("{} {}", f.severity.as_str(), f.code)).collect()
}

fn detail(plan: &Plan, code: Code) -> String {
    let found = plan.findings.iter().find(|finding| finding.code == code);
    found.map(|finding| format!("{}\n{}", finding.detail, finding.remedy)).unwrap_or_default()
}

#[rstest]
#[case::supported("bookworm-t4", "580.178.04", &[])]
#[case::vulnerable("bookworm-t4", "580.126.09", &["warning driver-vulnerable"])]
#[case::ended("bookworm-t4", "535.309.01", &["warning driver-vulnerable", "warning driver-ended"])]
#[case::k80("bookworm-k80", "470.256.02", &["warning driver-vulnerable", "warning driver-ended"])]
#[case::h100("bookworm-h100-nvswitch", "595.91.07", &[])]
#[case::b200("bookworm-b200", "580.178.04", &[])]
#[case::b200_below_its_floor("bookworm-b200", "570.124.06", &["refusal gpu-needs-driver", "warning driver-vulnerable", "warning driver-ended"])]
#[case::unknown_gpu("bookworm-unknown-gpu", "595.91.07", &[])]
fn drivers_on_hosts(#[case] tree: &str, #[case] driver: &str, #[case] wanted: &[&str]) {
    let plan = plan(&judging(driver, "auto"), &facts(tree), &modern()).unwrap();
    assert_eq!(plan.driver_version, driver);
    assert_eq!(judged(&plan), wanted, "{:?}", plan.findings);
    assert_eq!(plan.refusal().is_some(), wanted.iter().any(|one| one.starts_with("refusal")));
}

#[test]
fn findings_name_day_fix_source_and_what_to_select() {
    let ended = plan(&judging("535.309.01", "auto"), &facts("bookworm-t4"), &modern()).unwrap();
    let said = detail(&ended, Code::DriverEnded);
    for part in [
        "driver 535.309.01: support of branch 535 (long-support branch) ended on 2026-06-30",
        "source: NVIDIA Supported Drivers",
        "580 (long-support branch, until 2028-06-30)",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let vulnerable =
        plan(&judging("580.126.09", "auto"), &facts("bookworm-t4"), &modern()).unwrap();
    let said = detail(&vulnerable, Code::DriverVulnerable);
    for part in [
        "bulletin 5861 of 2026-09-30",
        "fixed in 580.178.04; bulletin 5821",
        "source: NVIDIA/product-security 2026/5861, read on ",
        "\nselect driver 580.178.04 or a newer one of its branch",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[rstest]
#[case::others_have_fixes("bookworm-t4", &["595 (production branch", "620 (long-support branch"])]
#[case::no_other_has_the_gpu("bookworm-v100", &["no supported branch that has every GPU of this host has the fixes yet"])]
fn a_branch_without_a_fix_is_not_recommended(#[case] tree: &str, #[case] wanted: &[&str]) {
    let mut config = judging("580.178.04", "auto");
    config.support.vulnerable = Reaction::Refuse;
    let table = config.support.table.merged(
        "format = 1\nissued = \"2026-11-29\"\nextends = true\n[[bulletin]]\nid = \"5901\"\ntitle = \"t\"\n\
         day = \"2026-11-29\"\ncves = [\"CVE-2026-50001\"]\nseverity = 7.8\nfixed = [\"620.70.07\"]\n\
         newest-affected = 620\nno-fix = [580]\nnot-affected = [595]\nsource = \"s\"\n\
         checked = \"2026-11-29\"\n",
    );
    config.support.table = std::sync::Arc::new(table.unwrap());
    let plan = plan(&config, &facts(tree), &modern()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["driver-vulnerable"]);
    let said = detail(&plan, Code::DriverVulnerable);
    assert!(wanted.iter().all(|part| said.contains(part)), "{said}");
    assert!(!said.contains("580 (long-support"), "{said}");
}

#[rstest]
#[case::vulnerable("580.126.09", Reaction::Refuse, Reaction::Warn, &["driver-vulnerable"])]
#[case::ended("535.309.01", Reaction::Warn, Reaction::Refuse, &["driver-ended"])]
#[case::both("535.309.01", Reaction::Refuse, Reaction::Refuse, &["driver-vulnerable", "driver-ended"])]
#[case::neither("580.178.04", Reaction::Refuse, Reaction::Refuse, &[])]
fn policies_refuse(
    #[case] driver: &str,
    #[case] vulnerable: Reaction,
    #[case] ended: Reaction,
    #[case] wanted: &[&str],
) {
    let mut config = judging(driver, "auto");
    (config.support.vulnerable, config.support.ended) = (vulnerable, ended);
    let plan = plan(&config, &facts("bookworm-t4"), &modern()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), wanted);
    let code = plan.refusal().map(|refusal| refusal.code());
    assert_eq!(code, (!wanted.is_empty()).then_some(ExitCode::Verification));
}

#[test]
fn a_loaded_driver_is_warned_of_and_not_refused_for_it() {
    let facts = facts("bookworm-t4-live");
    let mut config = judging("535.261.03", "auto");
    (config.support.vulnerable, config.support.ended) = (Reaction::Refuse, Reaction::Refuse);
    let plan = plan(&config, &facts, &catalog(Vec::new())).unwrap();
    assert_eq!(judged(&plan), ["warning driver-vulnerable", "warning driver-ended"]);
}

#[test]
fn on_a_host_whose_clock_does_not_count_no_branch_has_ended() {
    let facts = HostFacts { today: None, ..facts("bookworm-t4") };
    let plan = plan(&judging("535.309.01", "auto"), &facts, &modern()).unwrap();
    assert_eq!(judged(&plan), ["warning driver-vulnerable"]);
}

#[test]
fn a_gpu_that_the_branch_does_not_support_is_told_once() {
    let plan = plan(&judging("550", "auto"), &facts("bookworm-b200"), &modern()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["gpu-unsupported"]);
}

#[test]
fn an_excluded_combination_is_refused_with_its_source() {
    let mut facts = facts("bookworm-b200");
    facts.devices[0].device = 0x2941;
    facts.network_cards.insert("1d0f:efa2".parse().unwrap());
    let refused = plan(&judging("595.91.07", "auto"), &facts, &modern()).unwrap();
    assert_eq!(judged(&refused), ["refusal driver-excluded"]);
    let said = detail(&refused, Code::DriverExcluded);
    for part in ["R595 breaks GPUDirect RDMA", "NVIDIA/aicr #2459", "row r595-gb200-efa"] {
        assert!(said.contains(part), "{said}");
    }
    // The newest that is not excluded is chosen where none is named.
    let chosen = plan(&judging("newest", "auto"), &facts, &modern()).unwrap();
    assert_eq!(chosen.driver_version, "580.178.04");
    facts.network_cards.clear();
    let chosen = plan(&judging("newest", "auto"), &facts, &modern()).unwrap();
    assert_eq!(chosen.driver_version, "595.91.07");
}

#[test]
fn a_row_that_only_warns_lets_the_driver_be_installed() {
    let facts = HostFacts { cloud: Some("aws".into()), ..facts("bookworm-t4") };
    let plan = plan(&judging("580.178.04", "open"), &facts, &modern()).unwrap();
    assert_eq!(judged(&plan), ["warning driver-excluded"]);
    assert!(plan.refusal().is_none());
}

#[test]
fn a_gpu_that_lists_have_from_a_newer_branch_on_is_warned_of() {
    let mut facts = facts("bookworm-b200");
    facts.devices[0].device = 0x3182;
    let plan = plan(&judging("570.211.01", "auto"), &facts, &modern()).unwrap();
    assert!(judged(&plan).contains(&"warning gpu-needs-driver".to_owned()), "{:?}", judged(&plan));
    let said = detail(&plan, Code::GpuNeedsDriver);
    assert!(said.contains("B300 SXM6 AC is in the list of driver 580.82.07"), "{said}");
}

#[rstest]
#[case::t4("bookworm-t4", "580.178.04", Flavour::Open, "long-support branch 580 until 2028-06-30")]
#[case::h100("bookworm-h100-nvswitch", "580.178.04", Flavour::Open, "no open security bulletin")]
#[case::b200("bookworm-b200", "580.178.04", Flavour::Open, "595.91.07 is newer: production branch")]
#[case::v100("bookworm-v100", "580.178.04", Flavour::Proprietary, "support table of 2026-11-28")]
#[case::k80("bookworm-k80", "470.256.02", Flavour::Proprietary, "ended on 2024-07-20")]
#[case::unknown("bookworm-unknown-gpu", "595.91.07", Flavour::Open, "no driver for GPU 10de:3fff")]
fn auto_chooses_by_the_table(
    #[case] tree: &str,
    #[case] version: &str,
    #[case] flavour: Flavour,
    #[case] reason: &str,
) {
    let plan = plan(&judging("auto", "auto"), &facts(tree), &modern()).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, flavour));
    let why = why(&plan, "driver");
    assert!(why.contains(reason), "{why}");
}

/// T4 in AWS: the table warns of open modules there. With `newest` and by version as well.
#[rstest]
#[case::auto(
    "auto",
    "auto",
    Some("aws"),
    Flavour::Proprietary,
    "row aws-g4dn-g5-open (open preferred"
)]
#[case::newest("newest", "auto", Some("aws"), Flavour::Proprietary, "row aws-g4dn-g5-open")]
#[case::version("580.178.04", "auto", Some("aws"), Flavour::Proprietary, "row aws-g4dn-g5-open")]
#[case::asked_for("auto", "open", Some("aws"), Flavour::Open, "asked for")]
#[case::elsewhere("auto", "auto", Some("azure"), Flavour::Open, "every GPU supports it")]
fn a_flavour_that_the_table_warns_of_is_not_chosen(
    #[case] driver: &str,
    #[case] asked: &str,
    #[case] cloud: Option<&str>,
    #[case] flavour: Flavour,
    #[case] reason: &str,
) {
    let facts = HostFacts { cloud: cloud.map(str::to_owned), ..facts("bookworm-t4") };
    let plan = plan(&judging(driver, asked), &facts, &modern()).unwrap();
    assert_eq!(plan.flavour, flavour);
    let is_warned = judged(&plan).contains(&"warning driver-excluded".to_owned());
    assert_eq!(is_warned, asked == "open", "{:?}", plan.findings);
    let why = why(&plan, "flavour");
    assert!(why.contains(reason), "{why}");
}

#[test]
fn the_only_flavour_is_chosen_with_its_warning() {
    let facts = HostFacts { cloud: Some("aws".into()), ..facts("bookworm-t4") };
    let catalog = catalog(vec![offered("580.178.04", Flavour::Open)]);
    let plan = plan(&judging("auto", "auto"), &facts, &catalog).unwrap();
    assert_eq!(plan.flavour, Flavour::Open);
    assert_eq!(judged(&plan), ["warning driver-excluded"]);
}

/// Drivers up to 550, of which none suits a B200: with proprietary modules no branch will.
#[rstest]
#[case::proprietary(
    "proprietary",
    "no branch supports it with proprietary modules",
    "newer, and flavour open or auto"
)]
#[case::auto("auto", "needs branch 570 or newer", "select driver 570 or newer")]
fn a_flavour_that_never_fits_is_told_beside_the_branch(
    #[case] flavour: &str,
    #[case] seen: &str,
    #[case] remedy: &str,
) {
    let versions = ["535.309.01", "550.163.01"];
    let both = versions.map(|v| [offered(v, Flavour::Open), offered(v, Flavour::Proprietary)]);
    let catalog = catalog(both.into_iter().flatten().collect());
    let plan = plan(&judging("auto", flavour), &facts("bookworm-b200"), &catalog).unwrap();
    let said = detail(&plan, Code::GpuUnsupported);
    assert!(said.contains(seen) && said.ends_with(remedy), "{said}");
    let why = why(&plan, "driver");
    assert!(why.contains("no available one suits this host") && !why.contains("unknown"), "{why}");
}

#[test]
fn the_versions_are_known_where_an_exclusion_refuses_all_of_them() {
    let mut facts = facts("bookworm-b200");
    facts.devices[0].device = 0x2941;
    let catalog = catalog(vec![offered("575.64.05", Flavour::Open)]);
    let plan = plan(&judging("auto", "auto"), &facts, &catalog).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["driver-excluded"]);
    let why = why(&plan, "driver");
    assert!(why.contains("no available one suits this host") && !why.contains("unknown"), "{why}");
}

#[rstest]
#[case::by_version("535.309.01", "`driver = \"auto\"` chooses among those")]
#[case::auto("auto", "add a source of a supported branch, 580")]
fn the_remedy_of_an_ended_branch_is_one_that_is_not_taken_yet(
    #[case] driver: &str,
    #[case] remedy: &str,
) {
    let catalog = catalog(vec![offered("535.309.01", Flavour::Open)]);
    let plan = plan(&judging(driver, "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    let said = detail(&plan, Code::DriverEnded);
    assert!(said.contains(remedy), "{said}");
    assert_eq!(said.contains("`driver = \"auto\"`"), driver != "auto", "{said}");
}

/// A branch of which no version is known has ended all the same.
#[rstest]
#[case::ended("535", Reaction::Refuse, Some(ExitCode::Verification))]
#[case::ended_and_warned("535", Reaction::Warn, None)]
#[case::supported("580", Reaction::Refuse, None)]
#[case::newest("newest", Reaction::Refuse, None)]
fn a_branch_is_judged_without_its_versions(
    #[case] driver: &str,
    #[case] ended: Reaction,
    #[case] wanted: Option<ExitCode>,
) {
    let mut config = judging(driver, "auto");
    config.support.ended = ended;
    config.paths.root = "/captured".into();
    let catalog = Catalog { drivers: Probe::Unreadable("not asked".into()), ..modern() };
    let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
    assert_eq!(plan.refusal().map(|refusal| refusal.code()), wanted, "{:?}", plan.findings);
    assert_eq!(!detail(&plan, Code::DriverEnded).is_empty(), driver == "535");
}

#[test]
fn auto_also_chooses_among_the_drivers_of_flat_sources() {
    let mut catalog = modern();
    catalog.drivers = Probe::Read(vec![
        offered("550.163.01", Flavour::Open),
        in_host_flat("580.178.04", Flavour::Open),
    ]);
    let chosen = |driver: &str| {
        let plan = plan(&judging(driver, "auto"), &facts("bookworm-t4"), &catalog).unwrap();
        plan.driver_version
    };
    assert_eq!(chosen("auto"), "580.178.04");
    assert_eq!(chosen("newest"), "550.163.01");
}

/// Configuration whose file has driver 595 and these rules, under flags.
fn with_rules(flags: &str, rules: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, format!("driver = \"595\"\n{rules}")).unwrap();
    let mut config = config::load(toml::from_str(flags).unwrap(), &|_| None, Some(&file)).unwrap();
    config.paths.root = PathBuf::from("/");
    config.paths.host_root = PathBuf::from("/");
    config
}

const RULES: &str = "[[driver-for]]\ngpu = \"hopper\"\ndriver = \"580\"\nflavour = \"proprietary\"\n\
                     [[driver-for]]\ngpu = \"kepler\"\ndriver = \"470\"\n";

#[rstest]
#[case::t4("bookworm-t4", "595.91.07", Flavour::Open, "newest available within 595; ")]
#[case::h100("bookworm-h100-nvswitch", "580.178.04", Flavour::Proprietary, "(rule for hopper)")]
#[case::k80("bookworm-k80", "470.256.02", Flavour::Proprietary, "(rule for kepler)")]
fn one_configuration_serves_hosts_with_different_gpus(
    #[case] tree: &str,
    #[case] version: &str,
    #[case] flavour: Flavour,
    #[case] reason: &str,
) {
    let plan = plan(&with_rules("", RULES), &facts(tree), &modern()).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, flavour));
    let why = why(&plan, "driver");
    assert!(why.contains(reason), "{why}");
}

#[rstest]
#[case::driver(
    "driver = \"595\"",
    "595.91.07",
    Flavour::Proprietary,
    "; --driver counts before the rule for hopper"
)]
#[case::flavour("flavour = \"open\"", "580.178.04", Flavour::Open, "(rule for hopper)")]
#[case::both(
    "driver = \"595\"\nflavour = \"open\"",
    "595.91.07",
    Flavour::Open,
    "; --driver counts before"
)]
fn a_flag_counts_before_a_rule_and_the_plan_says_so(
    #[case] flags: &str,
    #[case] version: &str,
    #[case] flavour: Flavour,
    #[case] reason: &str,
) {
    let facts = facts("bookworm-h100-nvswitch");
    let plan = plan(&with_rules(flags, RULES), &facts, &modern()).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, flavour));
    let why = why(&plan, "driver");
    assert!(why.contains(reason), "{why}");
}

#[test]
fn rules_that_contradict_each_other_on_a_host_are_refused() {
    let mut facts = facts("bookworm-k80");
    facts.devices[1].device = 0x2330;
    let plan = plan(&with_rules("", RULES), &facts, &modern()).unwrap();
    assert!(codes(&plan, Severity::Refusal).contains(&"driver-rules-conflict"));
    assert_eq!(plan.refusal().map(|refusal| refusal.code()), Some(ExitCode::Preflight));
}
