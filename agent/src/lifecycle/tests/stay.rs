//! Changes to a Ready driver by other programs.

use super::*;
use crate::telemetry::{GpuCount, Live};
use longshore_host::facts::gpus::{Gpu, Taken};
use longshore_host::fake::Fault;

type Damage = fn(&mut FakeState);

/// Damages that can be repaired.
const DAMAGES: [(&str, Damage); 5] = [
    ("a node", |state| state.nodes.clear()),
    ("another device's node", |state| {
        state.nodes.insert(
            "/dev/nvidiactl".into(),
            Node {
                major: 1,
                minor: 3,
                mode: 0o600,
                owner: longshore_host::values::Owner::default(),
            },
        );
    }),
    ("the tmpfs", |state| state.mounts.truncate(1)),
    ("all mounts", |state| state.mounts.clear()),
    ("the firmware path", |state| {
        state.parameters.insert(FIRMWARE.into(), "/elsewhere".to_owned());
    }),
];

impl Scene {
    pub(super) async fn until(&self, holds: impl Fn(&Live) -> bool) {
        while !holds(&self.telemetry.live()) {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the first check is done: the GPUs are counted then.
    pub(super) async fn until_looked(&self) {
        self.until(|live| live.ready && live.gpus.is_some()).await;
    }

    /// Has the driver checked several times: what a check finds is acted on before the next one.
    pub(super) async fn until_checked(&self) {
        let checks = self.host.counts().gpus;
        while self.host.counts().gpus < checks + 3 {
            self.again.ask();
            tokio::task::yield_now().await;
        }
    }

    /// Changes the host as another program does, with the kernel's event.
    pub(super) fn behind_its_back(&self, damage: impl FnOnce(&mut FakeState)) {
        self.host.change(damage);
        self.again.ask();
    }

    /// Runs an agent that is Ready, calls `act`, and stops the agent.
    async fn while_ready(&self, act: impl Future<Output = ()>) {
        let act = async {
            self.until_looked().await;
            act.await;
            self.stop.set();
        };
        let (ended, ()) = tokio::join!(self.live(At::Never, vec![Ok(plan("535"))]), act);
        assert_eq!(ended.unwrap(), ExitCode::Done);
    }
}

pub(super) fn codes(live: &Live) -> Vec<Code> {
    live.findings.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn what_vanishes_is_put_right_and_taken_off_in_the_end() {
    for (what, damage) in DAMAGES {
        let scene = Scene::new();
        let before = scene.host.state();
        scene
            .while_ready(async {
                let ready = scene.host.state();
                let loads = scene.module_verbs();
                scene.behind_its_back(damage);
                scene.until(|live| live.phase_seconds.contains_key("changing")).await;
                scene.until(|live| live.ready && live.findings.is_empty()).await;
                assert_eq!(scene.host.state(), ready, "{what}");
                assert_eq!(scene.module_verbs(), loads, "{what}");
                assert!(scene.state().whole && scene.phase() == Some(Phase::Ready), "{what}");
            })
            .await;
        let mut after = scene.host.state();
        match what {
            // It was changed after us, and its value before that is not known.
            "the firmware path" => after.parameters = before.parameters.clone(),
            "another device's node" => after.nodes.clear(),
            _ => {}
        }
        assert_eq!(after, before, "{what}");
        assert_eq!(scene.phase(), Some(Phase::Removed));
    }
}

#[tokio::test]
async fn it_is_not_ready_with_a_finding_until_it_is_put_right() {
    let scene = Scene::new();
    scene
        .while_ready(async {
            scene.host.fails(Some(Fault::Refuse(0, nix::errno::Errno::EBUSY)));
            scene.behind_its_back(|state| state.detach(ROOT.as_ref()).unwrap());
            scene.until(|live| !live.ready && live.phase == Some(Phase::Ready)).await;
            let live = scene.telemetry.live();
            assert_eq!(codes(&live), [Code::ExposureLost; 4]);
            assert!(live.not_ready[0].contains("on /run/driver is no longer mounted"), "{live:?}");
            // Without a further event.
            scene.until(|live| live.ready).await;
            assert_eq!(scene.host.state().mounts.len(), 4);
        })
        .await;
}

#[tokio::test]
async fn a_module_that_is_gone_is_not_put_right_and_is_ready_where_it_is_back() {
    let scene = Scene::new();
    scene
        .while_ready(async {
            let (ready, verbs) = (scene.host.state(), scene.host.log().len());
            scene.behind_its_back(|state| drop(state.loaded.remove("nvidia_uvm")));
            scene.until(|live| !live.ready).await;
            let live = scene.telemetry.live();
            assert_eq!(codes(&live), [Code::ModuleReplaced]);
            assert_eq!(live.not_ready, ["module-replaced: nvidia_uvm is no longer loaded"]);
            assert!(live.findings[0].remedy.contains("restart the agent"));
            scene.behind_its_back(|state| *state = ready);
            scene.until(|live| live.ready).await;
            assert_eq!(scene.host.log().len(), verbs, "nothing was tried");
        })
        .await;
}

#[tokio::test]
async fn a_module_that_was_loaded_anew_is_another() {
    let scene = Scene::new();
    scene
        .while_ready(async {
            let ready = scene.host.state();
            scene.host.reload("nvidia_uvm");
            scene.again.ask();
            scene.until(|live| !live.ready).await;
            assert_eq!(codes(&scene.telemetry.live()), [Code::ModuleReplaced]);
            assert!(scene.phase() == Some(Phase::Ready));
            // The very same loading: it is ours to uninstall, as before.
            scene.behind_its_back(|state| *state = ready);
            scene.until(|live| live.ready).await;
        })
        .await;
}

#[tokio::test]
async fn a_mount_in_the_place_of_ours_is_not_covered() {
    let scene = Scene::new();
    scene
        .while_ready(async {
            let verbs = scene.host.log().len();
            let theirs = ("/store/550/usr".to_owned(), "/run/driver/usr".into());
            scene.behind_its_back(|state| state.mounts[1] = theirs);
            scene.until(|live| !live.ready).await;
            let live = scene.telemetry.live();
            assert!(live.not_ready[0].contains("something else is mounted on"), "{live:?}");
            assert_eq!(scene.host.log().len(), verbs, "nothing was tried");
            let ours = ("/store/535/usr".to_owned(), "/run/driver/usr".into());
            scene.behind_its_back(|state| state.mounts[1] = ours);
            scene.until(|live| live.ready).await;
        })
        .await;
}

const MESSAGE: &str = "NVRM: GPU 0000:02:00.0 has fallen off the bus.";

fn gpu(bus: u8, taken: Taken) -> Gpu {
    let kernel_message = (taken == Taken::Nobody).then(|| MESSAGE.to_owned());
    Gpu { address: format!("0000:0{bus}:00.0"), device: 0x1eb8, taken, kernel_message }
}

fn one_of_two() -> Vec<Gpu> {
    vec![gpu(1, Taken::Driver), gpu(2, Taken::Nobody), gpu(3, Taken::Other)]
}

#[tokio::test]
async fn a_gpu_that_the_driver_did_not_take_is_said_and_no_more() {
    let scene = Scene::new();
    scene.host.change(|state| state.gpus = one_of_two());
    scene
        .while_ready(async {
            let live = scene.telemetry.live();
            assert_eq!(live.gpus, Some(GpuCount { expected: 2, bound: 1 }));
            assert_eq!(codes(&live), [Code::GpuMissing]);
            let seen = &live.findings[0].detail;
            assert!(seen.contains("0000:02:00.0") && seen.contains(MESSAGE), "{seen}");
        })
        .await;
}

#[tokio::test]
async fn a_missing_gpu_that_is_refused_has_the_installation_rolled_back() {
    let scene = Scene { missing_gpus: Reaction::Refuse, ..Scene::new() };
    scene.host.change(|state| state.gpus = one_of_two());
    let before = scene.host.state();
    let failure = scene.live(At::Never, vec![Ok(plan("535"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::NoDevice);
    assert!(failure.to_string().contains(MESSAGE), "{failure}");
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Failed));
}

#[tokio::test]
async fn another_driver_that_does_not_take_a_gpu_makes_room_for_the_one_before() {
    let scene = Scene { missing_gpus: Reaction::Refuse, ..Scene::new() };
    scene.die_when_ready(plan("535")).await;
    scene.host.change(|state| state.gpus = one_of_two());
    let failure = scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::NoDevice);
    assert!(failure.to_string().ends_with("535, which was live before, is back"), "{failure}");
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    assert!(scene.state().whole);
}

#[tokio::test]
async fn a_gpu_that_leaves_the_bus_later_is_said_and_refused_makes_not_ready() {
    for (policy, ready) in [(Reaction::Warn, true), (Reaction::Refuse, false)] {
        let scene = Scene { missing_gpus: policy, ..Scene::new() };
        let both = vec![gpu(1, Taken::Driver), gpu(2, Taken::Driver)];
        scene.host.change(|state| state.gpus = both.clone());
        scene
            .while_ready(async {
                scene.behind_its_back(|state| drop(state.gpus.pop()));
                scene.until(|live| !live.findings.is_empty()).await;
                let live = scene.telemetry.live();
                assert_eq!(live.gpus, Some(GpuCount { expected: 2, bound: 1 }));
                assert_eq!((codes(&live), live.ready), (vec![Code::GpuMissing], ready));
                let seen = &live.findings[0].detail;
                assert!(seen.contains("0000:02:00.0") && seen.contains("no longer on"), "{seen}");
                scene.behind_its_back(|state| state.gpus = both.clone());
                scene.until(|live| live.ready && live.findings.is_empty()).await;
            })
            .await;
    }
}
