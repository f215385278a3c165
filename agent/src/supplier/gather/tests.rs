use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::catalog::{AvailableSet, SetPlace, SourceFailure};
use crate::config::{self, Fragment};
use crate::supplier::missed::LeftOut;
use crate::supplier::test_scene::{DRIVER, Scene};
use crate::telemetry::Telemetry;
use longshore_build::mofed::Mofed;
use longshore_core::failure::{ExitCode, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::source_id::SourceId;
use longshore_modules::sets::SetStore;
use longshore_sources::runfile::{Pin, RunFileSource};

#[tokio::test]
async fn a_host_that_does_not_answer_is_given_up_and_said() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = config::load(Fragment::default(), &|_| None, None).expect("a default");
    config.paths.store = dir.path().join("store");
    config.deadlines.step = Duration::from_millis(20);
    let inventory = Inventory::new(&config);
    let (answers, hangs) = mpsc::channel::<()>();
    let read = move |config: &Config| {
        // Blocks until the disk answers again, which is here the end of the test.
        let _ = hangs.recv();
        read_host(config)
    };
    let failure = inventory.gather_for(read).await.expect_err("it hangs");
    assert_eq!(failure.code(), ExitCode::Preflight);
    let text = failure.report();
    assert!(text.contains("has not come to its end in 0.02 s"), "{text}");
    assert!(text.contains("step-deadline"), "{text}");
    assert!(text.contains(&config.paths.store.display().to_string()), "{text}");
    drop(answers);
}

/// Makes the inputs of a plan whose archives and .run files could not be read.
fn unread(scene: &Scene) -> Gathered {
    let mut catalog = Catalog::without_sources("no answer");
    let mut fails = |source, cause: &str| {
        let failure = Failure::new(FailureKind::Verification, cause).with_source("why");
        catalog.failures.push(SourceFailure::new(source, source.as_str(), failure));
    };
    fails(SourceId::Archives, "the archive is not signed");
    fails(SourceId::RunFiles, "the .run file is another one");
    Gathered { facts: scene.facts(), catalog, plan: None }
}

#[rstest]
#[case::archives("535", false, "the archive is not signed: why")]
#[case::run_files("535", true, "the .run file is another one: why")]
fn a_plan_refused_for_a_source_is_its_failure_each_time(
    #[case] driver: &str,
    #[case] run_file: bool,
    #[case] wanted: &str,
) {
    let mut scene = Scene::new("bookworm-t4");
    let gathered = unread(&scene);
    scene.config.compile = true;
    scene.config.driver.version = Some(driver.to_owned());
    if run_file {
        let pin = Pin::Sha256("1".repeat(64));
        let urls = vec!["https://archive.example.com/driver.run".to_owned()];
        scene.config.run_files.push(RunFileSource { urls, pin });
    }
    // A captured tree has findings of its own, and no sources.
    let captured = Inventory::new(&scene.config).plan(&gathered).expect("a plan");
    assert!(captured.findings.iter().any(|f| f.detail.contains("no answer")), "{captured:?}");
    scene.config.paths.root = "/".into();
    scene.config.paths.host_root = "/".into();
    let inventory = Inventory::new(&scene.config);
    for _ in 0..2 {
        let failure = inventory.plan(&gathered).expect_err("refused");
        assert_eq!((failure.one_line().as_str(), failure.code()), (wanted, ExitCode::Verification));
    }
}

#[tokio::test]
async fn the_same_inputs_give_the_same_plan() {
    let mut scene = Scene::new("bookworm-t4");
    scene.add_layout("layout");
    let inventory = Inventory::new(&scene.config);
    let gathered = inventory.gather().await.expect("gathered");
    let json = |plan: &Plan| serde_json::to_string(plan).expect("JSON");
    let first = inventory.plan(&gathered).expect("a plan");
    let second = inventory.plan(&gathered).expect("a plan");
    assert_eq!(json(&first), json(&second));
    // A plan that was made while gathering is the plan of these inputs.
    let again = plan::plan(&scene.config, &gathered.facts, &gathered.catalog).expect("a plan");
    let made = Gathered { plan: Some(again), ..gathered };
    assert_eq!(json(&first), json(&inventory.plan(&made).expect("a plan")));
}

/// The plan of a loaded driver is made once where no remote source is queried, and not kept where
/// one is: the catalog may have changed.
#[rstest]
#[case::nothing_loaded("bookworm-t4", true, false)]
#[case::loaded_and_stored("bookworm-t4-live", true, true)]
#[case::tree_not_stored("bookworm-t4-live", false, false)]
#[tokio::test]
async fn a_plan_is_kept_where_nothing_else_was_queried(
    #[case] tree: &str,
    #[case] stored: bool,
    #[case] kept: bool,
) {
    let mut scene = Scene::new(tree);
    scene.add_layout("layout");
    if stored {
        scene.put_tree();
    }
    let gathered = Inventory::new(&scene.config).gather().await.expect("gathered");
    assert_eq!(gathered.plan.is_some(), kept, "{:?}", gathered.catalog);
}

/// MOFED's container may become ready while the plan is carried out, which has to be the same plan then.
#[tokio::test]
async fn headers_of_mofed_that_appear_later_are_for_the_next_agent() {
    let mut scene = Scene::new("bookworm-t4");
    let (facts, host) = (scene.facts(), tempfile::tempdir().expect("temporary directory"));
    scene.config.paths.host_root = host.path().into();
    (scene.config.operator.rdma, scene.config.operator.host_mofed) = (true, true);
    let gathered = async |inventory: &Inventory<'_>| {
        let facts = facts.clone();
        inventory.gather_for(move |_: &Config| Ok(facts)).await.expect("gathered").catalog.mofed
    };
    let has_headers =
        async |inventory: &Inventory<'_>| matches!(gathered(inventory).await, Probe::Read(Some(_)));
    let inventory = Inventory::new(&scene.config);
    assert!(!has_headers(&inventory).await);
    let tree = host.path().join("usr/src/ofa_kernel").join(&facts.kernel.release);
    std::fs::create_dir_all(tree.join("include")).expect("directories");
    std::fs::write(tree.join("Module.symvers"), "").expect("write");
    assert!(!has_headers(&inventory).await);
    let next = Inventory::new(&scene.config);
    assert!(has_headers(&next).await);
    // Headers of another kernel stay usable.
    for (release, usable) in [("other", true), (facts.kernel.release.as_str(), false)] {
        let source = LeftOut::Mofed { release: release.into(), place: "/mofed".into() };
        next.leave_out(&source, &Failure::new(FailureKind::Compile, "no such type"));
        assert_eq!(has_headers(&next).await, usable, "{release}");
    }
    let wanted = "a compile with those in /mofed failed: no such type".to_owned();
    assert_eq!(gathered(&next).await, Probe::Unreadable(wanted));
}

/// A set of this host that lacks MOFED's headers does not suffice, so that the archives are queried.
#[rstest]
#[case::none(false, true)]
#[case::headers(true, false)]
fn a_set_that_gives_way_does_not_suffice(#[case] headers: bool, #[case] wanted: bool) {
    let (mut scene, host) = (Scene::new("bookworm-t4"), tempfile::tempdir().expect("directory"));
    scene.config.compile = true;
    let set = scene.set_in(&scene.store());
    scene.store().put_set(&set).expect("stored");
    scene.put_tree();
    let (facts, inventory) = (scene.facts(), Inventory::new(&scene.config));
    let mut catalog = look(&scene.config, &facts, &scene.store()).expect("catalog");
    let release = &facts.kernel.release;
    let tree = host.path().join("usr/src/ofa_kernel").join(release);
    std::fs::create_dir_all(tree.join("include")).expect("directories");
    std::fs::write(tree.join("Module.symvers"), "").expect("write");
    let found = Mofed::find(host.path(), release, "x86_64").expect("usable");
    catalog.mofed = Probe::Read(found.filter(|_| headers));
    assert_eq!(inventory.suffices(&facts.kernel, &catalog), wanted);
}

#[test]
fn what_could_not_be_acquired_is_left_out_from_then_on() {
    let scene = Scene::new("bookworm-t4");
    let set = scene.set_in(&scene.store());
    let place = |number: u8| SetPlace::layout(Path::new("/a"), &number.to_string());
    let inventory = Inventory::new(&scene.config);
    let failure = Failure::new(FailureKind::Download, "gone");
    inventory.leave_out(&LeftOut::Set(place(1)), &failure);
    let mut catalog = Catalog::without_sources("");
    catalog.sets = [0, 1, 2].map(|n| AvailableSet { set: set.clone(), place: place(n) }).into();
    for _ in 0..2 {
        inventory.leave_out_excluded(&mut catalog);
        let left: Vec<SetPlace> = catalog.sets.iter().map(|set| set.place.clone()).collect();
        assert_eq!(left, [place(0), place(2)]);
    }
}

/// The set is of open modules; no source is queried where the store has all that is wanted.
#[rstest]
#[case::no_sources_wanted(false, None, true)]
#[case::sources(true, Some(Flavour::Open), true)]
#[case::no_sources(true, None, false)]
#[case::sources_of_the_other_flavour(true, Some(Flavour::Proprietary), false)]
#[case::unwanted_sources(false, Some(Flavour::Open), false)]
fn a_tree_without_the_wanted_sources_does_not_suffice(
    #[case] gdrcopy: bool,
    #[case] sources: Option<Flavour>,
    #[case] wanted: bool,
) {
    let mut scene = Scene::new("bookworm-t4");
    scene.config.operator.gdrcopy = gdrcopy;
    let mut set = scene.set_in(&scene.store());
    set.key.flavour = Flavour::Open;
    scene.store().put_set(&set).expect("stored");
    scene.put_tree_with("tree", sources);
    let (facts, inventory) = (scene.facts(), Inventory::new(&scene.config));
    let catalog = look(&scene.config, &facts, &scene.store()).expect("catalog");
    assert!(inventory.has_set(DRIVER, &facts.kernel, &catalog));
    assert_eq!(inventory.suffices(&facts.kernel, &catalog), wanted);
    let any = gdrcopy == sources.is_some();
    assert_eq!(inventory.has_some(&facts.kernel, &catalog), any);
}

#[tokio::test]
async fn a_source_that_is_left_out_or_cannot_be_read_is_counted() {
    let mut scene = Scene::new("bookworm-t4");
    let telemetry = Telemetry::default();
    let counted = || {
        let errors = telemetry.live().source_errors;
        errors.iter().map(|e| (e.source, e.code, e.count)).collect::<Vec<_>>()
    };
    let inventory = Inventory::new(&scene.config).counting(&telemetry);
    let failure = |kind| Failure::new(kind, "no answer");
    let layout = SetPlace::layout(Path::new("/sets"), "sha256:1");
    for _ in 0..2 {
        inventory.leave_out(&LeftOut::Set(layout.clone()), &failure(FailureKind::Download));
    }
    let mofed = LeftOut::Mofed { release: "6.1".into(), place: "/usr/src".into() };
    inventory.leave_out(&mofed, &failure(FailureKind::Compile));
    inventory.leave_out(&LeftOut::Set(SetPlace::store()), &failure(FailureKind::Verification));
    drop(inventory);
    assert_eq!(counted(), [(SourceId::Layout, 12, 2)]);
    // Neither an archive nor a set: there is no source.
    scene.config.compile = true;
    let inventory = Inventory::new(&scene.config).counting(&telemetry);
    inventory.gather().await.expect("inputs");
    assert_eq!(counted(), [(SourceId::Archives, 12, 1), (SourceId::Layout, 12, 2)]);
}
