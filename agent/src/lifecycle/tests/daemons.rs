//! The driver's daemons during the replacement of a driver.

use super::*;
use crate::plan::Plan;
use crate::steps::{MakeDir, MountTmpfs, Share, StartDaemon};
use longshore_host::daemon::Daemon;

const NAME: &str = "nvidia-persistenced";
const ROOT_RUN: &str = "/run/driver/run";

/// Returns the same driver, with a daemon whose socket is exposed in the driver root.
pub(super) fn with_daemon(mut plan: Plan) -> Plan {
    let daemon = Daemon {
        name: NAME.to_owned(),
        program: "/run/driver/usr/bin/daemon".into(),
        arguments: Vec::new(),
        libraries: "/run/driver/usr/lib".into(),
        socket: "/run/daemon/socket".into(),
        settings: None,
        capabilities: Vec::new(),
        required: true,
        ready_within: 0,
    };
    let (source, target) = ("/run/driver/run/daemon".into(), "/run/daemon".into());
    plan.install.extend([
        Step::MountTmpfs(MountTmpfs { target: ROOT_RUN.into(), label: None }),
        Step::MakeDir(MakeDir { path: "/run/driver/run/daemon".into() }),
        Step::MakeDir(MakeDir { path: "/run/daemon".into() }),
        Step::Share(Share { source, target }),
        Step::StartDaemon(StartDaemon { daemon }),
    ]);
    plan
}

pub(super) fn scene() -> Scene {
    let scene = Scene::new();
    scene.host.change(|state| state.dirs.insert(ROOT_RUN.into()));
    scene
}

/// Returns the verbs on the daemon and on its mounts, from number `from` on.
pub(super) fn verbs(scene: &Scene, from: usize) -> Vec<String> {
    let of_daemon = |verb: &String| {
        let verbs = ["start", "end", "bind", "umount", "tmpfs", "root", "sysfs"];
        verbs.contains(&verb.split(' ').next().unwrap_or(""))
    };
    scene.host.log().into_iter().skip(from).filter(of_daemon).collect()
}

#[tokio::test]
async fn daemons_are_brought_back_where_a_change_is_put_off() {
    let scene = scene();
    let before = scene.host.state();
    scene.die_when_ready(with_daemon(plan("535"))).await;
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let (there, from) = (scene.host.state(), scene.host.log().len());
    let failure = scene.live(At::Never, vec![Ok(with_daemon(plan("550")))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::InUse);
    assert_eq!(verbs(&scene, from), [format!("end {NAME}"), format!("start {NAME}")]);
    assert_eq!(scene.host.state().whichever_loading(), there.whichever_loading());
    let state = scene.state();
    assert!(state.whole && state.previous.is_empty());
    assert_eq!(scene.phase(), Some(Phase::InUse));
    scene.host.change(|state| state.references.clear());
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn daemons_go_on_where_another_module_holds_the_driver() {
    let scene = scene();
    scene.die_when_ready(with_daemon(plan("535"))).await;
    let depends = vec!["nvidia".to_owned()];
    scene.host.knows("nvidia_fs", FakeModule { depends, ..FakeModule::default() });
    scene.host.change(|state| state.loaded.insert("nvidia_fs".to_owned(), String::new()));
    let (there, from) = (scene.host.state(), scene.host.log().len());
    let failure = scene.live(At::Never, vec![Ok(with_daemon(plan("550")))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::InUse);
    assert!(failure.to_string().contains("nvidia_fs"), "{failure}");
    assert_eq!(verbs(&scene, from), [""; 0]);
    assert_eq!(scene.host.state(), there);
}

#[tokio::test]
async fn what_is_shown_elsewhere_goes_before_where_it_lies_and_comes_after_it() {
    let scene = scene();
    let before = scene.host.state();
    // The root itself is another one.
    scene.die_when_ready(with_daemon(plan_of_format_3("535"))).await;
    let from = scene.host.log().len();
    scene.die_when_ready(with_daemon(plan("550"))).await;
    assert_eq!(
        verbs(&scene, from),
        [
            "end nvidia-persistenced",
            "umount /run/daemon",
            "umount /run/driver/run",
            "umount /run/driver/dev",
            "umount /run/driver",
            "root /run/driver",
            "bind /run/driver/usr",
            "tmpfs /run/driver/dev",
            "sysfs /run/driver/sys",
            "tmpfs /run/driver/run",
            "bind /run/daemon",
            "start nvidia-persistenced",
        ]
    );
    let from = scene.host.log().len();
    scene.die_when_ready(with_daemon(plan("535"))).await;
    let of_another_tree = [
        "end nvidia-persistenced",
        "umount /run/driver/usr",
        "bind /run/driver/usr",
        "start nvidia-persistenced",
    ];
    assert_eq!(verbs(&scene, from), of_another_tree);
    assert_eq!(scene.host.state().daemons.len(), 1);
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}
