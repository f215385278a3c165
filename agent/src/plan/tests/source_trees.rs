//! Drivers of NVIDIA's published sources: candidates, their user mode, and modules alone.

use super::*;
use crate::catalog::SourceFailure;
use crate::steps::Step;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::source_id::SourceId;
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::source_tree::SourceTree;

const VERSION: &str = "580.142";

fn tree(version: &str) -> SourceTree {
    SourceTree {
        version: version.into(),
        sha256: "2".repeat(64),
        urls: vec!["https://user:secret@git.example.com/580.142.tar.gz".into()],
    }
}

/// Archives with drivers up to 570, and a tree of this version.
fn with_tree(version: &str) -> Catalog {
    Catalog { source_trees: vec![tree(version)], ..archives() }
}

/// The same, with a .run file that has its user mode.
fn with_user_mode(version: &str) -> Catalog {
    let file = AvailableRunFile {
        name: format!("NVIDIA-Linux-x86_64-{version}.run"),
        urls: vec!["file:///srv/driver.run".into()],
        sha256: "1".repeat(64),
        version: version.into(),
        flavours: vec![Flavour::Open, Flavour::Proprietary],
        stored: true,
        gpus: None,
    };
    Catalog { run_files: Probe::Read(vec![file]), ..with_tree(version) }
}

#[test]
fn a_tree_is_compiled_and_a_run_file_of_its_version_has_the_user_mode() {
    let catalog = with_user_mode(VERSION);
    let plan = plan(&config(VERSION, "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (VERSION, Flavour::Open));
    let [Acquire::Fetch(Item::SourceTree(fetched)), Acquire::BuildSet(build), assembled] =
        plan.acquire.as_slice()
    else {
        panic!("{:?}", plan.acquire)
    };
    assert_eq!(*fetched, tree(VERSION));
    let compiled = build.driver.as_ref().map(|driver| driver.sha256.clone());
    assert_eq!(compiled, Some(fetched.sha256.clone()));
    let Acquire::AssembleUserspace { run_file: Some(file), .. } = assembled else {
        panic!("{assembled:?}")
    };
    assert_eq!(file.version, VERSION);
    let driver = why(&plan, "driver");
    assert!(driver.contains("published sources at") && !driver.contains("secret"), "{driver}");
    assert!(why(&plan, "core objects").contains("compiled once"));
}

/// Compilers of the core objects in the store, and registries; with the texts of the reason.
#[rstest]
#[case::nothing(&[], &[], &["kernel: they are compiled once"])]
#[case::store(&["gcc-12 12.2.0"], &[], &["the store has those by gcc-12 12.2.0; else they are compiled once"])]
#[case::registries(&[], &["a.example.com/m", "b.example.com/m"], &["those are pulled where a.example.com/m or b.example.com/m has them; else"])]
#[case::both(&["gcc-13 13.1", "gcc-12 12.2.0"], &["a.example.com/m"], &["those by gcc-12 12.2.0; gcc-13 13.1", "others are pulled where a.example.com/m has"])]
fn the_origin_of_core_objects_is_told(
    #[case] compilers: &[&str],
    #[case] registries: &[&str],
    #[case] expected: &[&str],
) {
    let mut catalog = with_user_mode(VERSION);
    catalog.core_objects = compilers
        .iter()
        .map(|compiler| {
            let mut core = longshore_modules::testing::core_record();
            core.tree = tree(VERSION).sha256;
            (*compiler).clone_into(&mut core.compiler);
            core
        })
        .collect();
    // Those of another tree.
    catalog.core_objects.push(longshore_modules::testing::core_record());
    let mut config = config(VERSION, "auto");
    config.registries = registries.iter().map(|one| one.parse().expect("a registry")).collect();
    let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
    let reason = why(&plan, "core objects");
    for text in expected {
        assert!(reason.contains(text), "{text}: {reason}");
    }
    assert!(!reason.contains("gcc-14"), "{reason}");
}

#[rstest]
#[case::newest_of_all("newest", VERSION, VERSION)]
#[case::older_than_the_archives("newest", "565.57.01", "570.133.20")]
#[case::by_branch("565", "565.57.01", "565.57.01")]
#[case::the_same_version("570.133.20", "570.133.20", "570.133.20")]
fn a_tree_stands_beside_the_archives(
    #[case] asked: &str,
    #[case] of_tree: &str,
    #[case] chosen: &str,
) {
    let catalog = in_store(of_tree, with_tree(of_tree));
    let plan = plan(&config(asked, "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    assert_eq!(plan.driver_version, chosen);
    let is_fetched = plan.acquire.iter().any(|a| matches!(a, Acquire::Fetch(Item::SourceTree(_))));
    assert_eq!(is_fetched, of_tree == chosen, "{:?}", plan.acquire);
}

/// The catalog, with the user-mode files of a version in the store.
fn in_store(version: &str, mut catalog: Catalog) -> Catalog {
    catalog.userspace.push(AvailableUserspace {
        driver_version: version.into(),
        arch: "x86_64".into(),
        root: "/var/lib/longshore/userspace/x/root".into(),
        sources: None,
        tools: Vec::new(),
    });
    catalog
}

/// A .run file of 570.133.20, and a tree of a newer version.
fn beside_a_file() -> Catalog {
    Catalog { source_trees: vec![tree(VERSION)], ..with_user_mode("570.133.20") }
}

/// Without user mode of the tree's version the other driver is chosen, and the plan says why.
#[rstest]
#[case::archives(with_tree(VERSION), false, "570.133.20")]
#[case::archives_modules_only(with_tree(VERSION), true, VERSION)]
#[case::archives_and_store(in_store(VERSION, with_tree(VERSION)), false, VERSION)]
#[case::archives_and_run_file(with_user_mode(VERSION), false, VERSION)]
#[case::run_file(beside_a_file(), false, "570.133.20")]
#[case::run_file_modules_only(beside_a_file(), true, VERSION)]
#[case::run_file_and_store(in_store(VERSION, beside_a_file()), false, VERSION)]
fn newest_and_auto_take_a_tree_where_its_user_mode_is_offered(
    #[case] catalog: Catalog,
    #[case] modules_only: bool,
    #[case] chosen: &str,
) {
    for asked in ["newest", "auto"] {
        let mut config = config(asked, "auto");
        config.modules_only = modules_only;
        let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
        assert_eq!(plan.driver_version, chosen, "{asked}");
        assert!(plan.refusal().is_none(), "{asked}: {:?}", plan.findings);
        let driver = why(&plan, "driver");
        let is_said = driver.contains("no source has the user-mode files of 580.142 (NVIDIA's");
        assert_eq!(is_said, chosen != VERSION, "{driver}");
    }
}

#[rstest]
#[case::archives(with_tree(VERSION), "no archive or configured .run file")]
#[case::run_file(beside_a_file(), "none of the configured .run files")]
#[case::tree_alone(Catalog { source_trees: vec![tree(VERSION)], ..catalog(Vec::new()) }, "no archive")]
fn a_tree_by_version_or_alone_is_refused_without_user_mode(
    #[case] catalog: Catalog,
    #[case] seen: &str,
) {
    let is_alone = catalog.drivers == Probe::Read(Vec::new());
    let asked = if is_alone { "newest" } else { VERSION };
    let plan = plan(&config(asked, "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    assert_eq!(plan.driver_version, VERSION);
    let found = plan.findings.iter().find(|f| f.code == Code::UserspaceNotOffered).unwrap();
    assert_eq!(found.severity, Severity::Refusal);
    assert!(found.detail.contains(seen), "{}", found.detail);
}

#[test]
fn a_build_needs_no_user_mode() {
    for catalog in [with_tree(VERSION), beside_a_file()] {
        let config = config("newest", "auto");
        let chosen = super::super::choose_driver(&config, &facts("bookworm-t4"), &catalog);
        assert_eq!(chosen.unwrap(), (VERSION.to_owned(), Flavour::Open));
    }
}

#[test]
fn run_files_that_were_not_read_may_have_the_user_mode() {
    let mut config = config(VERSION, "auto");
    config.run_files = vec![longshore_sources::runfile::RunFileSource {
        urls: vec!["https://archive.example.com/driver.run".into()],
        pin: longshore_sources::runfile::Pin::Sha256("1".repeat(64)),
    }];
    let run_files = Probe::Unreadable("no connection".into());
    let catalog = Catalog { run_files, ..with_tree(VERSION) };
    let plan = plan(&config, &facts("bookworm-t4"), &catalog).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(codes(&plan, Severity::Warning).contains(&"userspace-not-offered"));
}

#[test]
fn a_tree_has_no_proprietary_modules() {
    let plan = plan(&config(VERSION, "proprietary"), &facts("bookworm-t4"), &with_tree(VERSION));
    let plan = plan.unwrap();
    let refusal = plan.refusal().expect("refused");
    assert_eq!(refusal.code(), ExitCode::Download);
    let remedy = refusal.remedy_or_default();
    assert!(remedy.contains("[[source-tree]]) have the open modules alone"), "{remedy}");
}

#[test]
fn a_tree_without_user_mode_is_refused_before_anything_is_compiled() {
    let plan = plan(&config(VERSION, "auto"), &facts("bookworm-t4"), &with_tree(VERSION)).unwrap();
    let refusal = plan.refusal().expect("refused");
    assert_eq!(refusal.code(), ExitCode::Download);
    assert!(codes(&plan, Severity::Refusal).contains(&"userspace-not-offered"));
    assert!(refusal.remedy_or_default().contains("modules-only"), "{refusal}");
    let nothing = Catalog { source_trees: vec![tree(VERSION)], ..catalog(Vec::new()) };
    let plan = super::super::plan(&config(VERSION, "auto"), &facts("bookworm-t4"), &nothing);
    assert!(plan.unwrap().refusal().is_some(), "no archive has any driver");
}

#[test]
fn archives_that_were_not_read_may_have_the_user_mode() {
    let failure = Failure::new(FailureKind::Download, "no connection");
    let failures = vec![SourceFailure::new(SourceId::Archives, "archives", failure)];
    let drivers = Probe::Unreadable("no connection".into());
    let catalog = Catalog { failures, drivers, ..with_tree(VERSION) };
    let plan = plan(&config(VERSION, "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(codes(&plan, Severity::Warning).contains(&"userspace-not-offered"));
}

#[test]
fn modules_alone_make_neither_driver_root_nor_spec_nor_daemon() {
    let mut config = config(VERSION, "auto");
    config.modules_only = true;
    let plan = plan(&config, &facts("bookworm-t4"), &with_tree(VERSION)).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert_eq!(plan.acquire.len(), 2, "the tree and the compile: {:?}", plan.acquire);
    let is_of_root = |step: &&Step| {
        matches!(
            step,
            Step::MountRoot(_)
                | Step::Bind(_)
                | Step::MountSysfs(_)
                | Step::MountTmpfs(_)
                | Step::WriteParameter(_)
                | Step::PublishSpec(_)
                | Step::StartDaemon(_)
        )
    };
    assert_eq!(plan.install.iter().find(is_of_root), None);
    let nodes = plan.install.iter().find_map(|step| match step {
        Step::MakeNodes(nodes) => Some(nodes.dirs.clone()),
        _ => None,
    });
    assert_eq!(nodes.expect("nodes"), [Path::new("/dev")]);
    assert!(why(&plan, "user mode the host's").contains("modules-only"));
}

/// Libraries of the host, and the finding about a driver of 580.142.
#[rstest]
#[case::same(&["libcuda.so.1", "libcuda.so.580.142"], false, None, "the host has its own, of the same version")]
#[case::one_of_two(&["libcuda.so.535.261.03", "libnvidia-ml.so.580.142"], false, None, "of the same version")]
#[case::another(
    &["libcuda.so.1", "libcuda.so.535.261.03"],
    false,
    Some(Severity::Refusal),
    "the host has its own, of another version (535.261.03)"
)]
#[case::another_of_a_loaded_driver(
    &["libcuda.so.535.261.03"],
    true,
    Some(Severity::Warning),
    "of another version (535.261.03)"
)]
#[case::unknown(&["libcuda.so.1"], false, None, "the host has to have its own, of the same version")]
#[case::none(&[], false, None, "the host has to have its own, of the same version")]
fn modules_alone_need_libraries_of_their_version(
    #[case] libraries: &[&str],
    #[case] is_loaded: bool,
    #[case] severity: Option<Severity>,
    #[case] reason: &str,
) {
    let mut config = config(VERSION, "auto");
    config.modules_only = true;
    let mut facts = facts("bookworm-t4");
    facts.installed.libraries =
        libraries.iter().map(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name)).collect();
    if is_loaded {
        facts.live_driver = super::facts("bookworm-t4-live").live_driver;
        facts.live_driver.as_mut().expect("a driver").version = VERSION.into();
    }
    let plan = plan(&config, &facts, &with_tree(VERSION)).unwrap();
    let found = plan.findings.iter().find(|f| f.code == Code::UserModeDiffers);
    assert_eq!(found.map(|finding| finding.severity), severity);
    let user_mode = why(&plan, "user mode the host's");
    assert!(user_mode.contains(reason), "{user_mode}");
    if let Some(found) = found {
        assert!(found.remedy.contains("libraries (535.261.03)"), "{}", found.remedy);
    }
    let code = plan.refusal().map(|refusal| refusal.code());
    assert_eq!(code, severity.filter(|_| !is_loaded).map(|_| ExitCode::Preflight));
}
