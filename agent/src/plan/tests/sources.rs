//! Plans with the driver's sources in the driver root.

use super::*;
use crate::steps::Bind;
use longshore_core::failure::FailureKind;
use longshore_sources::runfile::{Pin, RunFileSource};

const TREE: &str = "bookworm-t4";
const ROW: &str = "driver sources exposed";

fn wanting(flavour: &str, gds: bool, gdrcopy: bool) -> Config {
    let mut config = config("535.261.03", flavour);
    (config.operator.gds, config.operator.gdrcopy) = (gds, gdrcopy);
    config
}

/// A store with a set and with trees that have these sources.
fn with_trees(facts: &HostFacts, trees: &[Option<Flavour>]) -> Catalog {
    let mut catalog = stocked(facts, Flavour::Open);
    let tree = catalog.userspace.remove(0);
    catalog.userspace = trees
        .iter()
        .map(|sources| {
            let name = sources.map_or("none".to_owned(), |flavour| flavour.to_string());
            let root = format!("/var/lib/longshore/userspace/{name}/root").into();
            AvailableUserspace { root, sources: *sources, ..tree.clone() }
        })
        .collect();
    catalog
}

fn assembles(plan: &Plan) -> Option<Option<Flavour>> {
    plan.acquire.iter().find_map(|item| match item {
        Acquire::AssembleUserspace { sources, .. } => Some(*sources),
        _ => None,
    })
}

fn mounted(plan: &Plan) -> Option<&Path> {
    plan.install.iter().find_map(Bind::from_step).map(|bind| bind.source.as_path())
}

const NONE: Option<Flavour> = None;
const OPEN: Option<Flavour> = Some(Flavour::Open);
const PROPRIETARY: Option<Flavour> = Some(Flavour::Proprietary);

/// Trees of the store, the feature, the mounted tree or the assembled one, and the end of the row.
#[rstest]
#[case::not_asked(&[OPEN, NONE], false, Some("none"), None, "")]
#[case::no_tree_without(&[OPEN], false, None, Some(NONE), "")]
#[case::stored(&[NONE, OPEN], true, Some("open"), None, "(open) from the store, for GPUDirect Storage")]
#[case::of_the_other_flavour(&[NONE, PROPRIETARY], true, None, Some(OPEN), "(open) from nvidia-kernel-source 535.261.03-1, for GPUDirect Storage")]
#[case::none(&[], true, None, Some(OPEN), "(open) from nvidia-kernel-source 535.261.03-1, for GPUDirect Storage")]
fn the_tree_has_the_sources_of_the_modules(
    #[case] trees: &[Option<Flavour>],
    #[case] gds: bool,
    #[case] mounts: Option<&str>,
    #[case] wanted: Option<Option<Flavour>>,
    #[case] row: &str,
) {
    let facts = facts(TREE);
    let plan = plan(&wanting("open", gds, false), &facts, &with_trees(&facts, trees)).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    let tree =
        mounts.map(|name| PathBuf::from(format!("/var/lib/longshore/userspace/{name}/root/usr")));
    assert_eq!(mounted(&plan), tree.as_deref());
    assert_eq!(assembles(&plan), wanted);
    let why = why(&plan, ROW);
    assert_eq!(why.is_empty(), row.is_empty(), "{why}");
    assert!(why.ends_with(row), "{why}");
    if !row.is_empty() {
        assert!(why.contains("usr/src/nvidia-535.261.03"), "{why}");
        assert!(render(&plan, &facts).contains(ROW));
    }
}

#[test]
fn the_plan_names_both_features_and_the_acquisition() {
    let facts = facts(TREE);
    let plan = plan(&wanting("open", true, true), &facts, &stocked(&facts, Flavour::Open)).unwrap();
    let text = render(&plan, &facts);
    assert!(text.contains("for GPUDirect Storage and GDRCopy"), "{text}");
    assert!(text.contains("535.261.03, with the sources of its open modules"), "{text}");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["acquire"][0]["sources"], "open");
}

fn unchanged(_: &mut Catalog) {}

fn unread(catalog: &mut Catalog) {
    catalog.drivers = Probe::Unreadable("no answer".to_owned());
}

fn not_offered(catalog: &mut Catalog) {
    catalog.drivers = Probe::Read(vec![offered("535.261.03", Flavour::Proprietary)]);
}

fn run_files_unread(catalog: &mut Catalog) {
    catalog.run_files = Probe::Unreadable("not there".to_owned());
}

/// The driver itself is in the store or even loaded, and its sources are nowhere.
#[rstest]
#[case::archives_unread("bookworm-t4", false, unread, "the archives could not be read: no answer")]
#[case::not_offered("bookworm-t4", false, not_offered, "no archive has those of 535.261.03 open")]
#[case::run_files("bookworm-t4", true, unchanged, "no configured .run file has 535.261.03 open")]
#[case::run_files_unread(
    "bookworm-t4",
    true,
    run_files_unread,
    "the .run files could not be read: not there"
)]
fn sources_that_nothing_has_are_refused_with_the_reason(
    #[case] tree: &str,
    #[case] run_file: bool,
    #[case] change: fn(&mut Catalog),
    #[case] wanted: &str,
) {
    let facts = facts(tree);
    let mut config = wanting("open", false, true);
    if run_file {
        let pin = Pin::Sha256("1".repeat(64));
        config.run_files.push(RunFileSource { urls: Vec::new(), pin });
    }
    let mut catalog = with_trees(&facts, &[NONE, PROPRIETARY]);
    change(&mut catalog);
    let plan = plan(&config, &facts, &catalog).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["driver-sources-missing"]);
    assert_eq!(plan.refusal().unwrap().code().number(), 15);
    let found = plan.findings.iter().find(|f| f.code == Code::DriverSourcesMissing).unwrap();
    assert!(found.detail.contains("for GDRCopy, are neither"), "{}", found.detail);
    assert!(found.detail.ends_with(wanted), "{}", found.detail);
    assert_eq!(assembles(&plan), None);
}

#[test]
fn a_loaded_driver_is_adopted_with_them_and_without() {
    let facts = facts("bookworm-t4-live");
    let live = facts.live_driver.as_ref().unwrap();
    let flavour = live.flavour.unwrap();
    let mut catalog = with_trees(&facts, &[NONE, Some(flavour)]);
    for tree in &mut catalog.userspace {
        tree.driver_version.clone_from(&live.version);
    }
    for (gds, tree) in [(false, "none".to_owned()), (true, flavour.to_string())] {
        let mut config = wanting("auto", gds, false);
        config.driver.version = Some(live.version.clone());
        let plan = plan(&config, &facts, &catalog).unwrap();
        assert!(plan.replaces.is_empty() && plan.acquire.is_empty(), "{:?}", plan.acquire);
        assert!(
            mounted(&plan).unwrap().starts_with(format!("/var/lib/longshore/userspace/{tree}"))
        );
        assert!(adopts(&config, &facts, &plan), "{gds}: {:?}", plan.findings);
    }
}

#[rstest]
#[case::held_back(Some(30), "apt installs it on 30 % of the hosts so far")]
#[case::for_all(None, "")]
fn a_phased_update_is_named(#[case] phased: Option<u8>, #[case] said: &str) {
    let mut driver = offered("535.261.03", Flavour::Open);
    driver.origin = DriverOrigin::Package {
        name: "nvidia-kernel-source-535-open".into(),
        version: "535.261.03-0ubuntu1".into(),
        origin: PackageOrigin { percentage: phased, ..PackageOrigin::named("noble-updates") },
    };
    let plan = plan(&wanting("open", false, false), &facts(TREE), &catalog(vec![driver])).unwrap();
    let row = why(&plan, "phased update");
    assert_eq!(row.is_empty(), said.is_empty(), "{row}");
    assert!(row.contains(said), "{row}");
    assert!(said.is_empty() || row.contains("noble-updates"), "{row}");
}

#[rstest]
#[case::several(
    &["5.1 sid", "4~bpo13+1 trixie-backports", "2 trixie"],
    "packaging revision: nvidia-kernel-source 550.163.01-5.1 in sid: the newest of 550.163.01; tried next if it \
     does not compile for this kernel: nvidia-kernel-source 550.163.01-4~bpo13+1 (trixie-backports), \
     nvidia-kernel-source 550.163.01-2 (trixie)"
)]
#[case::one(&["2 trixie"], "")]
fn the_plan_names_the_packaging_revision_and_the_others(
    #[case] revisions: &[&str],
    #[case] said: &str,
) {
    let drivers = revisions.iter().map(|text| {
        let (revision, suite) = text.split_once(' ').expect("a revision and a suite");
        let origin = DriverOrigin::Package {
            name: "nvidia-kernel-source".into(),
            version: format!("550.163.01-{revision}"),
            origin: PackageOrigin::named(suite),
        };
        let sha256 = revision.to_owned();
        AvailableDriver { origin, sha256, ..offered("550.163.01", Flavour::Proprietary) }
    });
    let catalog = catalog(drivers.collect());
    let plan = plan(&config("550", "proprietary"), &facts(TREE), &catalog).unwrap();
    assert_eq!(why(&plan, "packaging revision"), said);
    let first = revisions[0].split(' ').next().expect("a revision");
    assert!(why(&plan, "driver").contains(&format!("nvidia-kernel-source 550.163.01-{first} in ")));
}

#[test]
fn a_tree_is_assembled_from_the_source_that_the_plan_names() {
    let plan = plan(&wanting("open", false, false), &facts(TREE), &archives()).unwrap();
    let row = why(&plan, "user mode assembled");
    assert!(row.contains("from the archives' packages"), "{row}");
}

#[rstest]
#[case::without_a_source(FailureKind::NoSource, Severity::Refusal)]
#[case::unreachable(FailureKind::Download, Severity::Warning)]
fn a_host_without_an_archive_is_told_where_its_user_mode_files_can_come_from(
    #[case] kind: FailureKind,
    #[case] severity: Severity,
) {
    let facts = facts(TREE);
    let mut catalog = stocked(&facts, Flavour::Open);
    catalog.userspace.clear();
    catalog.drivers = Probe::Unreadable("no archive is configured".into());
    let failure = Failure::new(kind, "no archive is configured");
    catalog.failures.push(SourceFailure::new(SourceId::Archives, "archives", failure));
    let plan = plan(&wanting("open", false, false), &facts, &catalog).unwrap();
    let found = plan.findings.iter().find(|f| f.code == Code::UserspaceNotOffered).unwrap();
    assert_eq!(found.severity, severity);
    assert!(found.remedy.contains("bundle") && found.detail.contains(".run"), "{found:?}");
}
