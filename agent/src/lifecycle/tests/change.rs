//! Replacement of the installed driver by another one.

use std::path::PathBuf;

use super::*;
use crate::engine::image::{Images, ModuleFile};
use longshore_core::failure::FailureKind;

#[tokio::test]
async fn all_is_acquired_before_anything_goes_and_then_one_takes_the_place_of_the_other() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(plan("535")).await;
    let there = scene.host.state();
    let failure = scene.live(At::AcquireFails, vec![Ok(wanting(plan("550")))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::Compile);
    assert_eq!(scene.host.state(), there);
    assert!(scene.state().whole);
    let plans = vec![Ok(wanting(plan("550"))), Ok(plan("550"))];
    let changed = async {
        while scene.live_driver().as_deref() != Some("550") {
            tokio::task::yield_now().await;
        }
        scene.stop_at_ready().await;
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), changed);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    let verbs = scene.module_verbs();
    assert_eq!(
        verbs,
        [
            "init_module nvidia",
            "init_module nvidia_uvm",
            "delete_module nvidia_uvm",
            "delete_module nvidia",
            "init_module nvidia",
            "init_module nvidia_uvm",
            "delete_module nvidia_uvm",
            "delete_module nvidia",
        ]
    );
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_driver_that_the_kernel_refuses_makes_room_for_the_one_before() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(plan("535")).await;
    let mut there = scene.host.state();
    there.mounts.sort();
    let failure = scene.live(At::Never, vec![Ok(plan("refused"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::KernelRefused);
    assert!(
        failure.to_string().ends_with("driver 535, which was live before, is back"),
        "{failure}"
    );
    let mut now = scene.host.state();
    now.mounts.sort();
    assert_eq!(now.whichever_loading(), there.whichever_loading());
    assert_eq!(scene.phase(), Some(Phase::Failed));
    let state = scene.state();
    assert!(state.whole && state.previous.is_empty());
    assert_eq!(state.plan.unwrap().driver_version, "535");
    // It is not retried at every start, because the installed one would have to be unloaded each
    // time.
    let verbs = scene.host.log().len();
    let again = scene.live(At::Never, vec![Ok(plan("refused"))]).await.unwrap_err();
    assert_eq!(again.code(), ExitCode::KernelRefused);
    assert!(again.to_string().contains("refused failed before and is not tried again"), "{again}");
    assert_eq!(scene.host.log().len(), verbs);
    assert_eq!(scene.phase(), Some(Phase::Failed));
    // Another driver is tried.
    scene.die_when_ready(plan("550")).await;
    assert_eq!(scene.state().refused, None);
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn where_neither_loads_it_is_said_with_a_code_of_its_own() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    let depends = vec!["nvidia".to_owned()];
    let refused = Some(nix::errno::Errno::EIO);
    scene.host.knows("nvidia_uvm", FakeModule { depends, refused, ..FakeModule::default() });
    let failure = scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::RolledBack);
    assert!(
        failure.to_string().contains("driver 535, which was live before, could not be"),
        "{failure}"
    );
    assert!(scene.live_driver().is_none());
}

#[tokio::test]
async fn a_driver_in_use_stays_and_so_does_everything_else() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let there = scene.host.state();
    let verbs = scene.host.log().len();
    let failure = scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::InUse);
    assert!(failure.to_string().contains("nvidia is held by 1 references"), "{failure}");
    assert_eq!(scene.host.state(), there);
    assert_eq!(scene.host.log().len(), verbs, "nothing was tried");
    assert_eq!(scene.phase(), Some(Phase::InUse));
    assert!(scene.state().whole && scene.state().previous.is_empty());
}

/// A store that has lost one driver.
struct Lost;

impl Images for Lost {
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        FakeImages.image(name, origin)
    }

    fn file(&self, name: &str, origin: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        FakeImages.file(name, origin)
    }

    fn check_tree(&self, tree: &Path) -> Result<(), Failure> {
        match tree == Path::new("/store/550") {
            true => Err(Failure::new(FailureKind::Verification, "libcuda.so.1 differs")),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn what_is_damaged_in_the_store_is_seen_before_anything_goes() {
    let scene = Scene { images: Arc::new(Lost), ..Scene::new() };
    scene.die_when_ready(plan("535")).await;
    let verbs = scene.host.log().len();
    let failure = scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::Verification);
    assert_eq!(scene.host.log().len(), verbs);
    assert!(scene.state().whole);
}

#[tokio::test]
async fn only_the_module_that_is_wanted_otherwise_is_loaded_anew() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    // The driver is in use, but not that module.
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let (loads, nodes) = (scene.module_verbs().len(), scene.host.state().nodes);
    let mut tuned = plan("535");
    tuned.install[3] = load("nvidia_uvm", "tuned");
    scene.die_when_ready(tuned).await;
    assert_eq!(
        scene.module_verbs()[loads..],
        ["delete_module nvidia_uvm", "init_module nvidia_uvm"]
    );
    assert_eq!(scene.host.state().nodes, nodes);
    assert!(!scene.host.log().contains(&"unlink /dev/nvidiactl".to_owned()));
}

/// A tree with the driver's sources takes the place of one without, and back.
#[tokio::test]
async fn another_tree_of_a_driver_in_use_is_mounted_without_touching_its_modules() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    scene.host.change(|state| state.references.insert("nvidia_uvm".to_owned(), 1));
    let loads = scene.module_verbs();
    for tree in ["550", "535"] {
        let mut other = plan("535");
        let at = other.install.iter().position(|step| *step == show("535")).unwrap();
        other.install[at] = show(tree);
        scene.die_when_ready(other).await;
        assert_eq!(scene.module_verbs(), loads, "{tree}");
        let shown = (format!("/store/{tree}/usr"), PathBuf::from("/run/driver/usr"));
        let mounts = scene.host.state().mounts;
        assert_eq!(mounts.iter().filter(|mount| mount.1 == shown.1).collect::<Vec<_>>(), [&shown]);
    }
}

#[tokio::test]
async fn a_stop_in_the_midst_of_a_change_takes_everything_off() {
    for gone in ["nvidia_uvm", "nvidia"] {
        let scene = Scene::new();
        let before = scene.host.state();
        scene.die_when_ready(plan("535")).await;
        let stop = scene.stop.clone();
        scene.host.on_look(move |state, _| {
            if !state.loaded.contains_key(gone) {
                stop.set();
            }
        });
        assert_eq!(scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap(), ExitCode::Done);
        assert_eq!(scene.host.state(), before);
        assert_eq!(scene.phase(), Some(Phase::Removed));
    }
}
