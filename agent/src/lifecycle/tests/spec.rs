//! The CDI spec of a Ready driver.

use std::fs;

use nix::errno::Errno;

use super::*;
use crate::config::DriverCapability::{self, Compute, Utility};
use crate::steps::PublishSpec;
use longshore_host::facts::gpus::{Gpu, Taken};

const SPEC: &str = "/var/run/cdi/longshore-nvidia.com-gpu.json";

/// Returns a scene with a GPU, and a driver root with a library of each part.
fn scene() -> Scene {
    let scene = Scene::new();
    let root = scene.paths.root.clone();
    let triplet = longshore_core::machine::Machine::this().unwrap().triplet;
    let library = |name: &str| format!("run/driver/usr/lib/{triplet}/{name}.so.535.1.2");
    let information = "proc/driver/nvidia/gpus/0000:01:00.0/information".to_owned();
    for (path, text) in [
        (library("libcuda"), ""),
        (library("libnvidia-ml"), ""),
        (information, "Device Minor: \t 0\n"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let node = Node { major: 195, minor: 0, mode: 0o666, owner: Owner::default() };
    scene.host.teach("nvidia", |module| module.nodes.push(("nvidia0".into(), node)));
    scene.host.change(|state| {
        state.dirs.extend(["/var".into(), "/var/run".into()]);
        state.gpus.push(Gpu {
            address: "0000:01:00.0".to_owned(),
            device: 0x1eb8,
            taken: Taken::Driver,
            kernel_message: None,
        });
    });
    Scene { host: Arc::new(scene.host.share().with_files_below(&root)), ..scene }
}

fn publishing(part: DriverCapability) -> Plan {
    let mut plan = plan("535");
    plan.install.push(Step::PublishSpec(PublishSpec {
        host_root: "/".into(),
        driver_root: "/run/driver".into(),
        capabilities: vec![part],
    }));
    plan
}

/// Returns the libraries that the published spec names.
fn published(scene: &Scene) -> Option<Vec<&'static str>> {
    let text = scene.host.state().published.get(Path::new(SPEC)).cloned()?;
    let text = String::from_utf8(text).unwrap();
    Some(["libcuda.so", "libnvidia-ml.so"].into_iter().filter(|n| text.contains(n)).collect())
}

async fn until(scene: &Scene, holds: impl Fn() -> bool) {
    while !(holds() && scene.telemetry.live().ready) {
        tokio::task::yield_now().await;
    }
}

fn codes(scene: &Scene) -> Vec<Code> {
    scene.telemetry.live().findings.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn a_spec_that_cannot_be_published_is_a_finding_of_a_ready_driver_until_it_can() {
    let scene = scene();
    let before = scene.host.state();
    scene.host.publishes_nothing(Some(Errno::EROFS));
    let act = async {
        until(&scene, || codes(&scene) == [Code::CdiUnpublished]).await;
        assert_eq!(published(&scene), None);
        scene.host.publishes_nothing(None);
        scene.again.ask();
        until(&scene, || codes(&scene).is_empty() && published(&scene).is_some()).await;
        // Removed behind its back.
        scene.host.change(|state| state.published.clear());
        scene.again.ask();
        until(&scene, || published(&scene).is_some()).await;
        until(&scene, || scene.state().whole).await;
        let phases = scene.telemetry.live().phase_seconds;
        assert!(!phases.contains_key("changing"), "{phases:?}");
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(publishing(Compute))]), act);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn other_capabilities_rewrite_the_spec_and_touch_no_module() {
    let scene = scene();
    let before = scene.host.state();
    let next = Config { jobs: Some(7), ..config(&scene.paths) };
    scene.configs.lock().unwrap().push_back(Ok(next));
    let act = async {
        until(&scene, || published(&scene) == Some(vec!["libcuda.so"])).await;
        let verbs = scene.module_verbs();
        scene.renewal.ask();
        until(&scene, || published(&scene) == Some(vec!["libnvidia-ml.so"])).await;
        assert_eq!(scene.module_verbs(), verbs);
        let log = scene.host.log();
        assert!(!log.iter().any(|line| line.starts_with("withdraw")), "{log:?}");
        scene.until_ready().await;
        scene.stop.set();
    };
    let plans = vec![Ok(publishing(Compute)), Ok(publishing(Utility))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), act);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}

/// Mounts and nodes have a budget of repairs of their own.
#[tokio::test]
async fn a_program_that_removes_the_spec_again_and_again_stops_no_repair_of_a_mount() {
    let scene = scene();
    let act = async {
        until(&scene, || published(&scene).is_some()).await;
        // Each repair is followed by the next removal, until none is left.
        for left in (0..=8).rev() {
            scene.host.change(|state| state.published.clear());
            scene.again.ask();
            // The check after the repair has ended, too.
            let is_right = || published(&scene).is_some() && codes(&scene).is_empty();
            until(&scene, || left == 0 || is_right()).await;
        }
        until(&scene, || codes(&scene) == [Code::CdiUnpublished]).await;
        for _ in 0..3 {
            let mounts = scene.host.state().mounts;
            scene.host.change(|state| drop(state.mounts.pop()));
            scene.again.ask();
            until(&scene, || scene.host.state().mounts == mounts).await;
        }
        assert_eq!(published(&scene), None);
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(publishing(Compute))]), act);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}
