//! Size of the record after restarts of the pod and refused changes.

use super::*;

/// Returns the plan with a directory in the driver root, as daemons have one.
fn with_directory(version: &str) -> Plan {
    let mut plan = announced(version);
    let nodes = plan.install.iter().position(|step| matches!(step, Step::MakeNodes(_))).unwrap();
    let path = "/run/driver/run/daemon".into();
    plan.install.insert(nodes, Step::MakeDir(MakeDir { path }));
    plan
}

#[tokio::test]
async fn a_restart_under_the_same_digest_adopts_and_loads_nothing() {
    let scene = scene();
    let before = scene.host.state();
    scene.die_when_ready(with_directory("535")).await;
    let loads = scene.module_verbs();
    let mut entries = None;
    for round in 0..10 {
        used(&scene, true);
        scene.host.change(|state| {
            unmounts(state);
            state.dirs.remove(Path::new("/run/driver/run/daemon"));
        });
        scene.die_when_ready(with_directory("535")).await;
        assert_eq!(scene.module_verbs(), loads, "round {round}");
        let now = scene.state().entries;
        let most = entries.get_or_insert(now.len());
        assert_eq!(now.len(), *most, "round {round}: {now:?}");
    }
    used(&scene, false);
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn changes_that_are_refused_add_nothing_and_announce_nothing_else() {
    let scene = scene();
    scene.die_when_ready(announced("535")).await;
    let entries = scene.state().entries.len();
    used(&scene, true);
    let plans = vec![Ok(announced("535")), Ok(announced("550"))];
    let agent = scene.live(At::Never, plans);
    let watch = async {
        scene.until_ready().await;
        scene.host.at_point(|host| {
            let status = host.state().statuses.get(&daemons_file()).cloned();
            assert_ne!(status.as_deref(), Some("NotReady"));
        });
        for jobs in 1..6 {
            let next = Config { jobs: Some(jobs), ..scene.config() };
            sighup(&scene, next).await;
            assert_eq!(scene.live_driver().as_deref(), Some("535"));
            assert_eq!(scene.state().entries.len(), entries, "after {jobs}");
        }
        scene.host.at_point(|_| {});
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}
