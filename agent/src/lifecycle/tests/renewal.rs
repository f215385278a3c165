//! SIGHUP: reading the configuration again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;

use super::*;
use crate::engine::image::{Images, ModuleFile};
use crate::plan::Plan;
use longshore_core::deadlines::Deadlines;

/// Returns a configuration that differs from the scene's in something no plan here depends on.
fn another(scene: &Scene) -> Config {
    Config { jobs: Some(7), ..config(&scene.paths) }
}

/// Runs an agent that is Ready with 535, has to read `next`, and then a wrong configuration, which
/// proves that it finished the first; calls `meanwhile`, then stops the agent.
async fn renewed(
    scene: &Scene,
    at: At,
    plans: Vec<Plan>,
    next: Result<Config, FailureKind>,
    meanwhile: impl FnOnce(&Scene),
) -> Result<ExitCode, Failure> {
    scene.configs.lock().unwrap().extend([next, Err(FailureKind::Usage)]);
    let asking = async {
        scene.until_ready().await;
        for left in [1, 0] {
            scene.renewal.ask();
            while scene.configs.lock().unwrap().len() > left {
                tokio::task::yield_now().await;
            }
            scene.until_ready().await;
        }
        meanwhile(scene);
        scene.stop.set();
    };
    let plans = std::iter::once(plan("535")).chain(plans).map(Ok).collect();
    tokio::join!(scene.live(at, plans), asking).0
}

#[tokio::test]
async fn another_configuration_is_followed_in_place() {
    let scene = Scene::new();
    let before = scene.host.state();
    let plans = vec![wanting(plan("550")), plan("550")];
    let next = Ok(another(&scene));
    let ended = renewed(&scene, At::Never, plans, next, |scene| {
        assert_eq!(scene.live_driver().as_deref(), Some("550"));
        assert!(scene.state().whole);
        assert_eq!(scene.state().plan.unwrap().driver_version, "550");
        assert_eq!(scene.installed.lock().unwrap().len(), 2);
    });
    assert_eq!(ended.await.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn what_changes_nothing_on_the_host_touches_nothing() {
    for unchanged in [true, false] {
        let scene = Scene::new();
        let next = if unchanged { config(&scene.paths) } else { another(&scene) };
        let ended = renewed(&scene, At::Never, vec![plan("535")], Ok(next), |scene| {
            assert_eq!(scene.module_verbs().len(), 2);
            assert_eq!(scene.installed.lock().unwrap().len(), 1);
        });
        assert_eq!(ended.await.unwrap(), ExitCode::Done);
    }
}

/// A store that records the phase in which each tree was first checked, and the disks that it was
/// put on.
struct Looked {
    paths: Paths,
    at: Mutex<BTreeMap<PathBuf, Phase>>,
    disks: Mutex<Vec<Disk>>,
}

impl Looked {
    fn in_place_of(scene: &Scene) -> Arc<Self> {
        let (at, disks) = (Mutex::default(), Mutex::default());
        Arc::new(Self { paths: scene.paths.clone(), at, disks })
    }
}

impl Images for Looked {
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        FakeImages.image(name, origin)
    }

    fn file(&self, name: &str, origin: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        FakeImages.file(name, origin)
    }

    fn check_tree(&self, tree: &Path) -> Result<(), Failure> {
        let phase = journal::read_state(&self.paths).unwrap().unwrap().phase;
        self.at.lock().unwrap().entry(tree.to_path_buf()).or_insert(phase);
        Ok(())
    }

    fn on(&self, disk: Disk) -> Option<Arc<dyn Images>> {
        self.disks.lock().unwrap().push(disk);
        None
    }
}

#[tokio::test]
async fn what_is_wanted_is_looked_at_while_the_driver_before_is_ready() {
    let scene = Scene::new();
    let looked = Looked::in_place_of(&scene);
    let images: Arc<dyn Images> = Arc::<Looked>::clone(&looked);
    let scene = Scene { images, ..scene };
    let next = Ok(another(&scene));
    let ended = renewed(&scene, At::Never, vec![plan("550")], next, |scene| {
        assert_eq!(scene.live_driver().as_deref(), Some("550"));
    });
    assert_eq!(ended.await.unwrap(), ExitCode::Done);
    let at = looked.at.lock().unwrap();
    assert_eq!(at[Path::new("/store/535")], Phase::Installing);
    assert_eq!(at[Path::new("/store/550")], Phase::Ready);
}

#[tokio::test]
async fn the_store_of_the_images_follows_another_disk_deadline() {
    let scene = Scene::new();
    let looked = Looked::in_place_of(&scene);
    let images: Arc<dyn Images> = Arc::<Looked>::clone(&looked);
    let scene = Scene { images, ..scene };
    let mut next = another(&scene);
    next.deadlines.disk += Duration::from_secs(1);
    let disk = next.disk();
    let ended = renewed(&scene, At::Never, vec![plan("535")], Ok(next), |_| {});
    assert_eq!(ended.await.unwrap(), ExitCode::Done);
    assert_eq!(*looked.disks.lock().unwrap(), [disk]);
}

#[tokio::test]
async fn a_configuration_that_cannot_be_followed_leaves_the_running_one() {
    let refused = || vec![plan("refused")];
    let elsewhere = |scene: &Scene| {
        let paths = Paths { driver_root: "/elsewhere".into(), ..scene.paths.clone() };
        Ok(Config { paths, ..another(scene) })
    };
    type Next = dyn Fn(&Scene) -> Result<Config, FailureKind>;
    let changed: &Next = &|scene| Ok(another(scene));
    let cases: [(&str, Vec<Plan>, &Next, At, bool); 6] = [
        ("wrong", vec![], &|_| Err(FailureKind::Usage), At::Never, false),
        ("other paths", vec![], &elsewhere, At::Never, false),
        ("refused by preflight", vec![refusing(plan("550"))], changed, At::Never, false),
        ("not to be had", vec![wanting(plan("550"))], changed, At::AcquireFails, false),
        ("refused by the kernel", refused(), changed, At::Never, false),
        ("in use", vec![plan("550")], changed, At::Never, true),
    ];
    for (what, plans, next, at, used) in cases {
        let scene = Scene::new();
        let before = scene.host.state();
        let stop = scene.stop.clone();
        if used {
            scene.host.on_look(move |state, _| {
                let held = if stop.is_set() { 0 } else { 1 };
                state.references.insert("nvidia".to_owned(), held);
            });
        }
        let next = next(&scene);
        let ended = renewed(&scene, at, plans, next, |scene| {
            assert_eq!(scene.live_driver().as_deref(), Some("535"), "{what}");
            assert!(scene.state().whole, "{what}");
            assert_eq!(scene.state().plan.unwrap().driver_version, "535", "{what}");
        });
        assert_eq!(ended.await.unwrap(), ExitCode::Done, "{what}");
        scene.host.change(|state| state.references.clear());
        assert_eq!(scene.host.state(), before, "{what}");
    }
}

#[tokio::test]
async fn a_stop_while_a_new_configuration_is_followed_is_heard() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.configs.lock().unwrap().push_back(Ok(another(&scene)));
    let plans = vec![Ok(plan("535")), Ok(wanting(plan("550")))];
    let asking = async {
        scene.until_ready().await;
        scene.renewal.ask();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Acquire, plans), asking);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn what_is_waited_for_has_the_time_that_the_new_configuration_gives_it() {
    let scene = Scene::new();
    let mut next = another(&scene);
    let (none, short) = (Duration::ZERO, Duration::from_millis(50));
    next.deadlines = Deadlines {
        users: none,
        unload: none,
        load: none,
        disk: none,
        step: short,
        ..next.deadlines
    };
    next.daemons.deadline = none;
    let (answers, hangs) = mpsc::channel::<()>();
    let hangs = Mutex::new(hangs);
    let ended = renewed(&scene, At::Never, vec![plan("535")], Ok(next), |scene| {
        // Blocks until the disk answers again, here when the test ends.
        scene.host.at_point(move |_| {
            let _ = hangs.lock().unwrap().recv();
        });
    });
    // With the limit that it began with it would be ten minutes.
    let failure = tokio::time::timeout(Duration::from_secs(120), ended).await.unwrap().unwrap_err();
    assert_eq!(failure.code(), ExitCode::RolledBack);
    assert!(failure.report().contains("has not come to its end"), "{}", failure.report());
    drop(answers);
}
