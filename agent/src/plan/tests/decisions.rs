//! Driver and flavour selected for each host, with the reasons.

use super::*;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::finding::Verdict;

#[rstest]
#[case::t4_newest(
    "bookworm-t4",
    "newest",
    "auto",
    "570.133.20",
    Flavour::Open,
    "recommends open from branch 560"
)]
#[case::t4_535(
    "bookworm-t4",
    "535",
    "auto",
    "535.261.03",
    Flavour::Proprietary,
    "recommends proprietary before branch 560"
)]
#[case::t4_open("bookworm-t4", "535", "open", "535.261.03", Flavour::Open, "asked for")]
#[case::v100_newest(
    "bookworm-v100",
    "newest",
    "auto",
    "570.133.20",
    Flavour::Proprietary,
    "no GPU System Processor"
)]
#[case::k80_newest(
    "bookworm-k80",
    "newest",
    "auto",
    "470.256.02",
    Flavour::Proprietary,
    "no GPU System Processor"
)]
#[case::h100(
    "bookworm-h100-nvswitch",
    "550",
    "auto",
    "550.163.01",
    Flavour::Proprietary,
    "before branch 560"
)]
#[case::h100_open(
    "bookworm-h100-nvswitch",
    "550",
    "open",
    "550.163.01",
    Flavour::Open,
    "asked for"
)]
#[case::cloud(
    "bookworm-cloud-t4",
    "535.261.03",
    "auto",
    "535.261.03",
    Flavour::Proprietary,
    "before branch 560"
)]
fn version_and_flavour(
    #[case] tree: &str,
    #[case] driver: &str,
    #[case] flavour: &str,
    #[case] version: &str,
    #[case] chosen: Flavour,
    #[case] reason: &str,
) {
    let plan = plan(&config(driver, flavour), &facts(tree), &archives()).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, chosen));
    assert!(why(&plan, "flavour").contains(reason), "{}", why(&plan, "flavour"));
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(!plan.exact);
}

/// A GPU that no table has is newer than this longshore: open modules, and of these the newest.
#[rstest]
#[case::newest("newest", "auto", Some(("570.133.20", Flavour::Open)))]
#[case::branch("535", "auto", Some(("535.261.03", Flavour::Open)))]
#[case::without_open_modules("470", "auto", None)]
#[case::flavour_asked_for("470", "proprietary", Some(("470.256.02", Flavour::Proprietary)))]
fn an_unknown_gpu_gets_open_modules(
    #[case] driver: &str,
    #[case] flavour: &str,
    #[case] chosen: Option<(&str, Flavour)>,
) {
    let mut facts = facts("bookworm-t4");
    facts.devices[0].device = 0x3456;
    let plan = plan(&config(driver, flavour), &facts, &archives()).unwrap();
    assert!(codes(&plan, Severity::Warning).contains(&"gpu-unknown"), "{:?}", plan.findings);
    let Some(chosen) = chosen else {
        let refusal = plan.refusal().unwrap();
        assert_eq!(refusal.code(), ExitCode::Preflight);
        assert!(refusal.to_string().contains("10de:3456): is newer than"), "{refusal}");
        return;
    };
    assert_eq!((plan.driver_version.as_str(), plan.flavour), chosen);
    let is_said = why(&plan, "flavour").contains("is newer than longshore's table");
    assert_eq!(is_said, flavour == "auto", "{}", why(&plan, "flavour"));
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
}

#[test]
fn a_loaded_proprietary_driver_of_an_unknown_gpu_is_kept() {
    let mut facts = facts("bookworm-t4");
    facts.devices[0].device = 0x3456;
    let (version, flavour) = ("535.261.03".to_owned(), Some(Flavour::Proprietary));
    facts.live_driver = Some(longshore_host::facts::LiveDriver { version, flavour });
    let plan = plan(&config("newest", "auto"), &facts, &archives()).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), ("535.261.03", Flavour::Proprietary));
}

#[test]
fn k80_says_which_newer_driver_it_passed_over_and_why() {
    let plan = plan(&config("newest", "auto"), &facts("bookworm-k80"), &archives()).unwrap();
    let why = why(&plan, "driver");
    assert!(
        why.contains("570.133.20 does not: 0000:04:00.0 (10de:102d): Kepler needs branch 470"),
        "{why}"
    );
}

/// A flat source that the host's apt reads beside the distribution's archives decides only where it is asked for,
/// or alone.
#[rstest]
#[case::unnamed("newest", "570.133.20", true)]
#[case::its_branch("590", "590.48.01", false)]
#[case::its_version("590.48.01", "590.48.01", false)]
#[case::of_both("570", "570.211.01", false)]
fn a_flat_source_of_the_host_gives_way_where_no_version_is_named(
    #[case] wanted: &str,
    #[case] chosen: &str,
    #[case] named: bool,
) {
    let Probe::Read(mut drivers) = archives().drivers else { panic!("read") };
    drivers.push(in_host_flat("590.48.01", Flavour::Open));
    drivers.push(in_host_flat("570.211.01", Flavour::Open));
    let plan = plan(&config(wanted, "auto"), &facts("bookworm-t4"), &catalog(drivers)).unwrap();
    let why = why(&plan, "driver");
    assert_eq!(plan.driver_version, chosen, "{why}");
    let said = "590.48.01 is in a flat source of the host (nvidia-kernel-source-open \
                590.48.01-1ubuntu1 in https://archive.example.com/cuda)";
    assert_eq!(why.contains(said), named, "{why}");
}

#[rstest]
#[case::alone(&[], "590.48.01")]
#[case::beside_one_that_does_not_fit(&[("470.256.02", Flavour::Proprietary)], "590.48.01")]
#[case::beside_one_that_fits(&[("550.163.01", Flavour::Open)], "550.163.01")]
fn a_flat_source_of_the_host_is_used_where_no_other_has_a_driver(
    #[case] others: &[(&str, Flavour)],
    #[case] chosen: &str,
) {
    let mut drivers = vec![in_host_flat("590.48.01", Flavour::Open)];
    drivers.extend(others.iter().map(|(version, flavour)| offered(version, *flavour)));
    let plan = plan(&config("newest", "open"), &facts("bookworm-t4"), &catalog(drivers)).unwrap();
    assert_eq!(plan.driver_version, chosen, "{:?}", plan.reasons);
}

/// The distribution's archive is away for a while, and the host has the driver that came from it.
#[rstest]
#[case::all_read(&[], "590.48.01")]
#[case::one_unread(&["https://archive.example.com/debian: timed out"], "535.261.03")]
fn an_outage_does_not_change_to_the_driver_of_a_flat_source(
    #[case] unread: &[&str],
    #[case] chosen: &str,
) {
    let facts = facts("bookworm-t4");
    let mut catalog = stocked(&facts, Flavour::Open);
    catalog.drivers = Probe::Read(vec![in_host_flat("590.48.01", Flavour::Open)]);
    catalog.apt.unread = unread.iter().map(|text| (*text).to_owned()).collect();
    let plan = plan(&config("newest", "open"), &facts, &catalog).unwrap();
    assert_eq!(plan.driver_version, chosen, "{:?}", plan.reasons);
}

#[rstest]
#[case::k80_535("bookworm-k80", "535", "auto", "gpu-unsupported", "needs branch 470")]
#[case::v100_open("bookworm-v100", "535", "open", "gpu-unsupported", "GPU System Processor")]
#[case::no_such(
    "bookworm-t4",
    "999",
    "auto",
    "driver-not-offered",
    "they offer 470.256.02 proprietary"
)]
#[case::t4_470_open(
    "bookworm-t4",
    "470",
    "open",
    "gpu-unsupported",
    "branch 470 has no open modules"
)]
fn what_cannot_be_is_refused(
    #[case] tree: &str,
    #[case] driver: &str,
    #[case] flavour: &str,
    #[case] code: &str,
    #[case] seen: &str,
) {
    let plan = plan(&config(driver, flavour), &facts(tree), &archives()).unwrap();
    let finding = plan.findings.iter().find(|f| f.code.as_str() == code).expect(code);
    assert_eq!(finding.severity, Severity::Refusal);
    assert!(finding.detail.contains(seen), "{}", finding.detail);
    assert!(plan.refusal().is_some());
}

/// The driver may be in a source that did not answer.
#[rstest]
#[case::others(archives())]
#[case::none(catalog(Vec::new()))]
fn a_driver_that_is_not_offered_names_the_sources_that_were_not_read(#[case] mut catalog: Catalog) {
    catalog.apt.unread = vec!["https://archive.example.com/cuda: timed out".to_owned()];
    let plan = plan(&config("999", "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    let refusal = plan.refusal().expect("refused");
    let said = "these sources could not be read: https://archive.example.com/cuda: timed out";
    assert!(refusal.to_string().contains(said), "{refusal}");
    assert_eq!(refusal.code(), ExitCode::Download);
}

#[test]
fn auto_takes_the_only_available_flavour_and_says_so() {
    let only = catalog(vec![offered("535.261.03", Flavour::Open)]);
    let plan = plan(&config("535", "auto"), &facts("bookworm-t4"), &only).unwrap();
    assert_eq!(plan.flavour, Flavour::Open);
    assert!(why(&plan, "flavour").contains("only open is available (proprietary preferred"));
}

#[test]
fn auto_takes_the_flavour_that_is_built_already() {
    let facts = facts("bookworm-t4");
    let plan = plan(&config("535", "auto"), &facts, &stocked(&facts, Flavour::Open)).unwrap();
    assert_eq!(plan.flavour, Flavour::Open);
    assert!(why(&plan, "flavour").contains("built for this kernel already"));
}

#[test]
fn blackwell_takes_only_the_open_modules_and_a_branch_that_has_it() {
    let mut facts = facts("bookworm-t4");
    facts.devices[0].device = 0x2901;
    let chosen = plan(&config("newest", "auto"), &facts, &archives()).unwrap();
    assert_eq!((chosen.driver_version.as_str(), chosen.flavour), ("570.133.20", Flavour::Open));
    let refused = plan(&config("550", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&refused, Severity::Refusal), ["gpu-unsupported"]);
}

#[test]
fn missing_headers_end_with_exit_code_11_and_the_nearest() {
    let mut catalog = archives();
    let (nearest, passed_over) = (vec!["6.1.0-56-amd64".into()], Vec::new());
    catalog.headers = Probe::Read(AvailableHeaders::Missing { nearest, passed_over });
    let plan = plan(&config("535", "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    let refusal = plan.refusal().unwrap();
    assert_eq!(refusal.code(), ExitCode::Toolchain);
    assert!(refusal.to_string().contains("nearest: 6.1.0-56-amd64"), "{refusal}");
}

#[rstest]
#[case::not_unpacked(None, "with the compiler in it")]
#[case::unpacked(Some("gcc (GCC) 11.4.1"), "with gcc (GCC) 11.4.1")]
fn a_build_root_is_named_with_its_digest(#[case] compiler: Option<&str>, #[case] said: &str) {
    let place = "oci://registry.example.com/el9@sha256:1".to_owned();
    let (digest, compiler) = ("1".repeat(64), compiler.map(str::to_owned));
    let headers = Probe::Read(AvailableHeaders::BuildRoot { place, digest, compiler });
    let catalog = Catalog { headers, ..archives() };
    let plan = plan(&config("535", "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    let reason = plan.reasons.iter().find(|r| r.heading() == "modules compiled").expect("a reason");
    for text in ["oci://registry.example.com/el9", "(sha256 111111111111)", said] {
        assert!(reason.reason.contains(text), "{}", reason.reason);
    }
    assert!(plan.refusal().is_none());
}

#[test]
fn a_build_root_for_another_kernel_is_refused_in_its_own_words() {
    let mut config = config("535", "auto");
    config.build_root = Some("/srv/root".parse().unwrap());
    let passed_over = vec!["the build root /srv/root does not fit".to_owned()];
    let headers = AvailableHeaders::Missing { nearest: Vec::new(), passed_over };
    let catalog = Catalog { headers: Probe::Read(headers), ..archives() };
    let refusal = plan(&config, &facts("bookworm-t4"), &catalog).unwrap().refusal().unwrap();
    assert_eq!(refusal.code(), ExitCode::Toolchain);
    assert!(refusal.to_string().contains("the build root /srv/root does not fit"), "{refusal}");
}

#[test]
fn the_compiler_is_the_kernels_own_where_no_dependency_names_it() {
    let mut catalog = archives();
    catalog.headers = Probe::Read(AvailableHeaders::Archive {
        package: "linux-headers-6.8.0-142-generic".into(),
        version: "6.8.0-142.142".into(),
        compiler: None,
        passed_over: Vec::new(),
    });
    let plan = plan(&config("535", "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    let text = &plan.reasons.iter().find(|r| r.heading() == "modules compiled").unwrap().reason;
    let wanted = "linux-headers-6.8.0-142-generic 6.8.0-142.142 is in the archive; the compiler is \
                  the kernel's own, stated in the headers";
    assert!(text.ends_with(wanted), "{text}");
}

#[test]
fn without_compiling_and_without_a_set_nothing_can_be_had() {
    let mut config = config("535.261.03", "auto");
    config.compile = false;
    let plan = plan(&config, &facts("bookworm-t4"), &archives()).unwrap();
    assert_eq!(plan.refusal().map(|f| f.code()), Some(ExitCode::Download));
    assert_eq!(codes(&plan, Severity::Refusal), ["nothing-built"]);
}

#[test]
fn without_an_archive_the_flavour_is_still_decided() {
    let mut catalog = archives();
    catalog.drivers = Probe::Unreadable("no archive is configured".into());
    catalog.headers = Probe::Unreadable("no archive is configured".into());
    let plan = plan(&config("535.261.03", "auto"), &facts("bookworm-v100"), &catalog).unwrap();
    assert_eq!(plan.flavour, Flavour::Proprietary);
    assert_eq!(codes(&plan, Severity::Refusal), ["archives-unread"]);
    assert!(plan.acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. })));
}

#[rstest]
#[case::k80("bookworm-k80", "470", Flavour::Proprietary)]
#[case::v100("bookworm-v100", "580", Flavour::Proprietary)]
#[case::t4("bookworm-t4", "newest", Flavour::Open)]
fn of_a_captured_tree_without_any_source_branch_and_flavour_are_decided(
    #[case] tree: &str,
    #[case] version: &str,
    #[case] flavour: Flavour,
) {
    let unknown = || "no archive is configured".to_owned();
    let mut catalog = archives();
    (catalog.drivers, catalog.headers) =
        (Probe::Unreadable(unknown()), Probe::Unreadable(unknown()));
    let failure = Failure::new(FailureKind::Download, unknown());
    catalog.failures.push(SourceFailure::new(SourceId::Archives, "archives", failure));
    let mut config = config("newest", "auto");
    config.paths.root = PathBuf::from("/captured");
    config.paths.host_root = PathBuf::from("/captured");
    let plan = plan(&config, &facts(tree), &catalog).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, flavour));
    // One cause, told once.
    assert_eq!(codes(&plan, Severity::Warning), ["archives-unread"]);
    assert!(plan.refusal().is_none());
    assert_eq!((plan.verdict(), plan.exit_code()), (Verdict::Undecided, ExitCode::Download));
}
