//! Modules that only some installations have: nvidia_peermem, which may be refused, and nvidia_drm.

use nix::errno::Errno;
use rstest::rstest;

use super::stay::codes;
use super::*;
use longshore_host::fake::Fault;

const PEERMEM: &str = "nvidia_peermem";
const DRM: &str = "nvidia_drm";
const NETWORK: &str = "mlx5_core";

/// Returns the plan of a driver with one more module.
fn with(module: &str) -> Plan {
    let mut plan = plan("535");
    let uvm = plan.install.iter().position(|step| step.subject() == "nvidia_uvm").unwrap();
    plan.install.insert(uvm + 1, load(module, "535"));
    plan
}

fn knows(scene: &Scene, module: &str, refused: Option<Errno>) {
    let depends = vec!["nvidia".to_owned()];
    scene.host.knows(module, FakeModule { depends, refused, ..FakeModule::default() });
}

fn is_loaded(scene: &Scene, module: &str) -> bool {
    scene.host.state().loaded.contains_key(module)
}

#[rstest]
#[case::of_nvidia("mlx5_core")]
#[case::of_another_vendor("ib_core")]
#[tokio::test]
async fn a_refused_peermem_is_a_finding_and_is_loaded_after_the_network_driver(
    #[case] network: &str,
) {
    let scene = Scene::new();
    let before = scene.host.state();
    knows(&scene, PEERMEM, Some(Errno::ENOENT));
    let tries = |scene: &Scene| {
        let line = format!("init_module {PEERMEM}");
        scene.host.log().iter().filter(|entry| **entry == line).count()
    };
    let agent = scene.live(At::Never, vec![Ok(with(PEERMEM))]);
    let watch = async {
        scene.until(|live| live.ready && codes(live) == [Code::PeermemMissing]).await;
        assert!(scene.state().whole);
        let next = Config { jobs: Some(7), ..scene.config() };
        scene.configs.lock().unwrap().extend([Ok(next), Err(FailureKind::Usage)]);
        for left in [1, 0] {
            scene.renewal.ask();
            while scene.configs.lock().unwrap().len() > left {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(tries(&scene), 1, "not again without the network driver");
        scene.host.teach(PEERMEM, |module| module.refused = None);
        scene.behind_its_back(|state| drop(state.loaded.insert(network.to_owned(), String::new())));
        scene.until(|live| live.ready && codes(live).is_empty()).await;
        assert!(is_loaded(&scene, PEERMEM));
        assert!(scene.state().whole);
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(!is_loaded(&scene, PEERMEM));
    scene.host.change(|state| state.loaded.remove(network));
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_peermem_that_another_program_unloads_is_no_other_driver() {
    let scene = Scene::new();
    knows(&scene, PEERMEM, None);
    let agent = scene.live(At::Never, vec![Ok(with(PEERMEM))]);
    let watch = async {
        scene.until_looked().await;
        scene.behind_its_back(|state| drop(state.loaded.remove(PEERMEM)));
        scene.until(|live| live.ready && codes(live) == [Code::PeermemMissing]).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}

#[tokio::test]
async fn at_the_end_references_to_nvidia_drm_alone_keep_the_driver_and_are_named() {
    let scene = Scene::new();
    knows(&scene, DRM, None);
    let (ended, there) = tokio::join!(scene.live(At::Never, vec![Ok(with(DRM))]), async {
        scene.until_ready().await;
        scene.host.change(|state| state.references.insert(DRM.to_owned(), 1));
        scene.stop.set();
        scene.host.state()
    });
    let failure = ended.unwrap_err();
    assert_eq!(failure.code(), ExitCode::InUse);
    assert!(failure.to_string().contains("nvidia_drm is held by 1 references"), "{failure}");
    assert_eq!(scene.host.state(), there, "nothing of it was unloaded");
    scene.host.change(|state| state.references.clear());
    scene.uninstall().await;
}

/// Returns a scene with the network driver and a driver with nvidia_peermem, for which an agent died.
async fn with_network() -> Scene {
    let scene = Scene::new();
    knows(&scene, PEERMEM, None);
    scene.host.change(|state| state.loaded.insert(NETWORK.to_owned(), String::new()));
    scene
}

/// Runs an agent that loads nvidia_peermem while it is Ready, until then or until it dies of the fault.
async fn repairs(scene: &Scene, fault: Option<Fault>) -> bool {
    scene.host.teach(PEERMEM, |module| module.refused = Some(Errno::ENOENT));
    let watch = async {
        scene.until(|live| live.ready && codes(live) == [Code::PeermemMissing]).await;
        scene.host.fails(fault);
        scene.host.teach(PEERMEM, |module| module.refused = None);
        // With a fault the agent's death ends this.
        while fault.is_some() || !scene.state().whole || !is_loaded(scene, PEERMEM) {
            scene.again.ask();
            tokio::task::yield_now().await;
        }
    };
    let died = tokio::select! {
        biased;
        ended = scene.live(At::Never, vec![Ok(with(PEERMEM))]) => {
            assert_eq!(ended.unwrap_err().code(), ExitCode::Bug);
            true
        }
        () = watch => false,
    };
    scene.host.fails(None);
    died
}

#[tokio::test]
async fn an_agent_that_dies_while_it_loads_it_leaves_the_driver_whole() {
    let scene = with_network().await;
    assert!(!repairs(&scene, None).await);
    for fault in [Fault::DieBefore(0), Fault::DieAfter(0)] {
        for refused in [refusing(with(PEERMEM)), plan("refused")] {
            let scene = with_network().await;
            assert!(repairs(&scene, Some(fault)).await, "{fault:?}");
            assert!(scene.state().whole, "{fault:?}");
            scene.live(At::Never, vec![Ok(refused)]).await.unwrap_err();
            assert_eq!(scene.live_driver().as_deref(), Some("535"), "{fault:?}");
            assert!(scene.state().whole, "{fault:?}");
            scene.die_when_ready(with(PEERMEM)).await;
            assert!(is_loaded(&scene, PEERMEM), "{fault:?}");
            scene.uninstall().await;
            assert!(!is_loaded(&scene, PEERMEM), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn one_that_another_program_unloads_is_loaded_once_the_network_driver_is_loaded_anew() {
    let scene = with_network().await;
    let agent = scene.live(At::Never, vec![Ok(with(PEERMEM))]);
    let watch = async {
        scene.until_looked().await;
        let entries = scene.state().entries.len();
        let all: [fn(&mut FakeState); 3] = [
            |state| drop(state.loaded.remove(PEERMEM)),
            |state| drop(state.loaded.remove(NETWORK)),
            |state| drop(state.loaded.insert(NETWORK.to_owned(), String::new())),
        ];
        for _ in 0..3 {
            let loads = scene.module_verbs().len();
            for change in &all {
                assert_eq!(scene.module_verbs().len(), loads, "left to the other program");
                scene.behind_its_back(change);
                scene.until_checked().await;
            }
            scene.until(|live| live.ready && codes(live).is_empty()).await;
            assert!(is_loaded(&scene, PEERMEM));
            assert!(scene.state().entries.len() <= entries + 1, "{:?}", scene.state().entries);
        }
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(!is_loaded(&scene, PEERMEM));
}
