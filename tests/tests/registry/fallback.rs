//! Fallback order of the modules' sources when a source fails.

use longshore_tests::module_sets;
use longshore_tests::scene::disk;
use std::fs;

use longshore_modules::sets::SetStore;

use super::*;
use crate::together::{MODULES, archive};
use longshore_tests::packages::KERNEL;
use longshore_tests::scene::{Ended, Scene as Host, finish};

/// A host, an archive to build from, and registries.
struct Places {
    host: Host,
    scene: Scene,
    set: ModuleSet,
}

impl Places {
    fn new() -> Self {
        let (host, scene) = (Host::with(archive(0, false)), Scene::new());
        let set = module_sets::put_of(&scene.store, KERNEL, &MODULES, 0);
        Self { host, scene, set }
    }

    /// Pushes the set to a registry; returns its reference.
    async fn push(&self, hub: &Hub) -> String {
        let reference = format!("http://{}/nvidia/modules", hub.address);
        let repository = reference.parse().expect("a repository");
        let registry = Registry::open_to_push(&repository, Path::new("/"), &|_| None);
        let registry = registry.expect("opens");
        let tag = self.set.key.tag();
        registry.push(&self.set, &tag, &self.scene.store, &Silent).await.expect("pushes");
        reference
    }

    fn fetch(&self, registries: &[&str], more: &[&str]) -> Ended {
        let args = [&["fetch", "--kernel", KERNEL], more].concat();
        let mut command = self.host.agent(&args);
        command.env("LONGSHORE_REGISTRIES", registries.join(","));
        finish(&mut command)
    }

    fn store(&self) -> Store {
        Store::open(&self.host.path("store"), disk()).expect("store")
    }

    /// True if anything was compiled on the host.
    fn compiled(&self) -> bool {
        fs::read_dir(self.store().dir("logs")).expect("logs").next().is_some()
    }

    /// Checks that it got as far as the user-mode packages, which the archive does not have.
    fn assert_has_modules(&self, ended: &Ended, set: Option<&ModuleSet>) {
        ended.assert_failed(12, &["535.261.03".to_owned()]);
        let sets = self.store().sets().expect("sets");
        assert_eq!(sets.len(), 1, "{ended}");
        assert!(set.is_none_or(|set| *set == sets[0]), "{ended}");
        module_sets::assert_sound(&self.store());
    }

    fn module(&self, hub: &Hub) -> std::path::PathBuf {
        hub.blob(&self.set.modules[0].sha256)
    }
}

#[tokio::test]
async fn what_is_fetched_comes_from_the_registry_and_nothing_is_compiled() {
    let places = Places::new();
    let reference = places.push(&places.scene.hub).await;
    let ended = places.fetch(&[&reference], &[]);
    places.assert_has_modules(&ended, Some(&places.set));
    assert!(!places.compiled(), "{ended}");
}

#[tokio::test]
async fn what_a_registry_does_not_give_is_taken_from_the_next() {
    let places = Places::new();
    let second = Hub::start(None);
    let references = [places.push(&places.scene.hub).await, places.push(&second).await];
    fs::remove_file(places.module(&places.scene.hub)).expect("removes");
    let ended = places.fetch(&[&references[0], &references[1]], &[]);
    places.assert_has_modules(&ended, Some(&places.set));
    assert!(ended.err.contains("continuing without the set in http://"), "{ended}");
    assert!(!places.compiled(), "{ended}");
}

#[tokio::test]
async fn what_no_registry_gives_is_compiled_where_that_is_allowed() {
    let places = Places::new();
    let reference = places.push(&places.scene.hub).await;
    let module = places.module(&places.scene.hub);
    fs::remove_file(module).expect("removes");
    let ended = places.fetch(&[&reference], &["--no-compile"]);
    let (url, digest) = (&reference, &places.set.modules[0].sha256);
    ended.assert_failed(12, &[url.replace("/nvidia", "/v2/nvidia"), digest.clone()]);
    assert!(places.store().sets().expect("sets").is_empty());
    let ended = places.fetch(&[&reference], &[]);
    places.assert_has_modules(&ended, None);
    assert!(places.compiled(), "{ended}");
}

#[tokio::test]
async fn what_a_registry_gives_that_is_something_else_ends_it() {
    let places = Places::new();
    let reference = places.push(&places.scene.hub).await;
    let module = places.module(&places.scene.hub);
    let mut bytes = fs::read(&module).expect("reads");
    bytes[100] ^= 1;
    fs::write(&module, bytes).expect("writes");
    let ended = places.fetch(&[&reference], &[]);
    ended.assert_failed(13, &[places.set.modules[0].sha256.clone()]);
    assert!(places.store().sets().expect("sets").is_empty(), "{ended}");
    assert!(!places.compiled(), "{ended}");
    module_sets::assert_sound(&places.store());
}

#[tokio::test]
async fn where_the_registry_cannot_be_written_everybody_compiles() {
    let places = Places::new();
    let away = format!("http://{}/nvidia/modules", hub::free_address());
    let mut command = places.host.agent(&["build", "--kernel", KERNEL]);
    command.env("LONGSHORE_PUBLISH", away);
    let ended = finish(&mut command);
    ended.assert_done();
    assert!(ended.err.contains("building for this host only"), "{ended}");
    assert!(places.compiled(), "{ended}");
}

#[test]
fn the_answer_of_a_build_is_json_alone() {
    let host = Host::with(archive(0, false));
    let layout = host.path("layout");
    let ended = finish(host.agent(&["build", "--kernel", KERNEL]).arg("--out").arg(&layout));
    ended.assert_done();
    let set: ModuleSet = serde_json::from_str(&ended.out).expect("JSON and nothing else");
    let exported = longshore_modules::layout::list(&layout).expect("a layout");
    assert_eq!(exported[0].set, set);
    assert!(ended.err.contains("the image layout is written"), "{ended}");
}
