//! Adoption of a driver that is loaded already.

use super::*;
use crate::plan::Plan;
use crate::steps::LoadModule;
use longshore_core::disk::Disk;

/// Damage done to the host while no agent ran, and the number of repairs it needs.
type Damage = (&'static str, fn(&mut FakeState));

const DAMAGES: [Damage; 6] = [
    ("nothing", |_| {}),
    ("a node", |state| state.nodes.clear()),
    ("another device's node", |state| {
        state.nodes.insert(
            "/dev/nvidiactl".into(),
            Node { major: 1, minor: 3, mode: 0o600, owner: Owner::default() },
        );
    }),
    ("the tmpfs", |state| state.mounts.truncate(1)),
    ("all mounts", |state| state.mounts.clear()),
    ("the firmware path", |state| {
        state.parameters.insert(FIRMWARE.into(), "/elsewhere".to_owned());
    }),
];

#[tokio::test]
async fn what_is_missing_is_put_right_and_no_module_is_touched() {
    for (what, damage) in DAMAGES {
        let scene = Scene::new();
        let before = scene.host.state();
        scene.die_when_ready(plan("535")).await;
        let ready = scene.host.state();
        // The driver is in use all the while.
        scene.host.change(|state| state.references.insert("nvidia_uvm".to_owned(), 1));
        scene.host.change(damage);
        let loads = scene.module_verbs();
        scene.die_when_ready(plan("535")).await;
        scene.host.change(|state| state.references.clear());
        assert_eq!(scene.module_verbs(), loads, "{what}");
        assert_eq!(scene.host.state(), ready, "{what}");
        assert!(scene.state().whole && scene.phase() == Some(Phase::Ready), "{what}");
        scene.uninstall().await;
        let wanted = match what {
            // It was changed after us, and its value before that is not known.
            "the firmware path" => "/elsewhere",
            _ => "/theirs",
        };
        assert_eq!(scene.host.state().parameters[Path::new(FIRMWARE)], wanted, "{what}");
        scene.host.change(|state| state.parameters = before.parameters.clone());
        if what != "another device's node" {
            assert_eq!(scene.host.state(), before, "{what}");
        }
    }
}

#[tokio::test]
async fn the_same_build_from_elsewhere_is_the_same_driver() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(plan("535")).await;
    let loads = scene.module_verbs();
    let mut again = plan("535");
    for step in &mut again.install {
        if let Step::LoadModule(LoadModule { origin, parameters, .. }) = step {
            *origin = ModuleOrigin::Driver { sha256: "1".repeat(64) };
            assert_eq!(parameters, "driver=535");
        }
    }
    scene.die_when_ready(again).await;
    assert_eq!(scene.module_verbs(), loads);
    let loaded =
        scene.state().entries.iter().filter(|e| LoadModule::recorded(&e.step).is_some()).count();
    assert_eq!(loaded, 2, "each module once");
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn modules_that_the_plan_need_not_name_stay_ours() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(plan("535")).await;
    let loads = scene.module_verbs();
    // Without an available set, while all wanted modules are loaded.
    let mut unnamed = plan("535");
    unnamed.install.retain(|step| !matches!(step, Step::LoadModule(_)));
    let script = adopting(&scene, unnamed);
    let (ended, ()) = tokio::join!(script, scene.stop_at_ready());
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.module_verbs()[..loads.len()], loads, "nothing was loaded anew");
    assert_eq!(scene.host.state(), before);
}

/// Runs an agent with a plan that replaces nothing, whatever the host has.
async fn adopting(scene: &Scene, plan: Plan) -> Result<ExitCode, Failure> {
    let script = Script {
        images: Arc::clone(&scene.images_of_pod),
        plans: Arc::new(Mutex::new([Ok(plan)].into())),
        configs: Arc::default(),
        // A host on which nothing is loaded.
        host: Arc::new(FakeHost::default()),
        stop: scene.stop.clone(),
        at: At::Never,
        installed: Arc::default(),
        gathered: Arc::default(),
        offers: Arc::default(),
        tables: Arc::default(),
    };
    let journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let (stop, renewal) = (scene.stop.clone(), scene.renewal.clone());
    let agent = Agent::new(scene.context(), journal, stop, renewal, Instant::now());
    agent.live(config(&scene.paths), &script).await
}

#[tokio::test]
async fn another_tree_is_shown_without_touching_a_module() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(plan("535")).await;
    let loads = scene.module_verbs();
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 3));
    let mut rebuilt = plan("535");
    let shown = rebuilt.install.iter_mut().find(|step| **step == show("535"));
    *shown.unwrap() = show("550");
    scene.die_when_ready(rebuilt).await;
    assert_eq!(scene.module_verbs(), loads);
    let mounts = scene.host.state().mounts;
    let mounts: Vec<_> =
        mounts.iter().map(|(from, on)| (from.as_str(), on.to_str().unwrap())).collect();
    let expected = [
        ("longshore", ROOT),
        ("longshore", "/run/driver/dev"),
        ("longshore", "/run/driver/sys"),
        ("/store/550/usr", "/run/driver/usr"),
    ];
    assert_eq!(mounts, expected);
    scene.host.change(|state| state.references.clear());
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_driver_of_which_no_journal_tells_is_adopted_and_stays_when_the_agent_ends() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    let there = scene.host.state();
    let loads = scene.module_verbs();
    std::fs::remove_file(scene.paths.state.join("state.json")).unwrap();
    let (ended, ()) =
        tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), scene.stop_at_ready());
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.module_verbs(), loads);
    assert_eq!(
        scene.host.state(),
        there,
        "nothing of it is ours, and nothing was put on top of it"
    );
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

#[tokio::test]
async fn what_is_missing_of_somebody_elses_driver_is_ours_alone() {
    let scene = Scene::new();
    scene.host.change(|state| {
        for name in ["nvidia", "nvidia_uvm"] {
            state.loaded.insert(name.to_owned(), "driver=535".to_owned());
        }
    });
    let before = scene.host.state();
    let ready = async {
        while scene.phase() != Some(Phase::Ready) {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.host.state().mounts.len(), 4);
        assert!(scene.host.state().nodes.contains_key(Path::new("/dev/nvidiactl")));
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), ready);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
    assert!(scene.module_verbs().is_empty());
}

#[tokio::test]
async fn a_refused_plan_leaves_a_whole_driver_and_takes_off_one_that_is_not() {
    for whole in [true, false] {
        let scene = Scene::new();
        let before = scene.host.state();
        scene.die_when_ready(plan("535")).await;
        if !whole {
            // As left by an agent that died before it was Ready.
            let path = scene.paths.state.join("state.json");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(path, text.replace("\"whole\": true,", "")).unwrap();
        }
        let there = scene.host.state();
        let failure = scene.live(At::Never, vec![Ok(refusing(plan("535")))]).await.unwrap_err();
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert_eq!(scene.host.state(), if whole { there } else { before });
        assert_eq!(scene.phase(), Some(Phase::Failed));
    }
}
