//! Tests of sets in a real docker-registry on loopback: a pushed set is pulled unchanged, each
//! fault is refused with its exit code and text, and nothing wrong stays in the store. skopeo reads
//! and copies pushed sets, as does oras; openssl and cosign verify and make signatures.
//!
//! Needs Debian's packages docker-registry, skopeo, openssl, apache2-utils and linux-kbuild, and the programs
//! cosign and oras of a later Debian (scripts/setup).

mod any_artifact;
mod attested;
mod behind;
mod build_root;
mod builder;
mod compiled_elsewhere;
mod core_objects;
mod cosign;
mod cut;
mod failing;
mod fallback;
mod faults;
mod freshness;
mod hub;
mod matrix;
mod mofed;
mod other_tools;
mod payloads;
mod pinned_files;
mod policy;
mod realms;
mod revisions;
mod roles;
mod side_by_side;
mod support_table;
mod tls;
mod together;
mod token;
mod transitional;
mod unsigned_headers;

use longshore_tests::module_sets;
use longshore_tests::scene::disk;
use std::path::Path;
use std::time::Duration;

use longshore_core::failure::{ExitCode, Failure};
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_fetch::http::Policy;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::registry::RegistrySource;
use longshore_modules::registry::{Judge, LoginRules, Registry, SetRequest};
use longshore_modules::sets::SetStore;
use longshore_modules::signature::Trust;
use longshore_modules::signature::key::PublicKey;

use hub::Hub;

/// A registry, a store with a set, and another one without.
struct Scene {
    dir: tempfile::TempDir,
    hub: Hub,
    store: Store,
    other: Store,
    set: ModuleSet,
}

fn hasty() -> Policy {
    Policy {
        connect: Duration::from_secs(5),
        stall: Duration::from_secs(5),
        attempts: 2,
        busy: Duration::from_millis(200),
        backoff: Duration::from_millis(1),
        ..Policy::default()
    }
}

/// Accepts every set.
struct Everything;

impl Judge for Everything {
    type Why = ();

    async fn judge(&self, _: &Described) -> Result<(), ()> {
        Ok(())
    }
}

async fn find(registry: &Registry, requested: SetRequest<'_>) -> Result<Vec<Described>, Failure> {
    registry.find(requested, &Everything).await.into_taken()
}

/// Trust in these keys alone.
fn trusting(keys: &[PublicKey]) -> Trust {
    Trust::in_keys(keys.to_vec())
}

impl Scene {
    fn new() -> Self {
        Self::with(Hub::start(None))
    }

    fn with(hub: Hub) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(&dir.path().join("store"), disk()).expect("store");
        let other = Store::open(&dir.path().join("other"), disk()).expect("store");
        let set = module_sets::put(&store, "6.1.0-50-amd64");
        Self { dir, hub, store, other, set }
    }

    fn name(&self) -> String {
        format!("http://{}/nvidia/modules", self.hub.address)
    }

    fn env(&self) -> impl Fn(&str) -> Option<String> + use<> {
        let docker = self.dir.path().join("docker");
        move |name| {
            (name == "DOCKER_CONFIG" && docker.is_dir())
                .then(|| docker.to_str().expect("a path").to_owned())
        }
    }

    fn open(&self, mirrors: &[&str]) -> Registry {
        let parse = |text: &str| text.parse().expect("a repository");
        let source = RegistrySource {
            reference: parse(&self.name()),
            mirrors: mirrors.iter().map(|m| parse(m)).collect(),
        };
        Registry::open_with(hasty(), &source, Path::new("/"), &self.env())
            .expect("opens")
            .with_login_rules(&self.login_rules())
    }

    /// The registry gets its login without TLS.
    fn login_rules(&self) -> LoginRules {
        let insecure = vec![self.hub.address.parse().expect("a host")];
        LoginRules { insecure, realms: Vec::new() }
    }

    async fn push(&self) -> Result<String, Failure> {
        let repository = self.name().parse().expect("a repository");
        let registry = Registry::open_to_push(&repository, Path::new("/"), &self.env())?
            .with_login_rules(&self.login_rules());
        let pushed = registry.push(&self.set, &self.set.key.tag(), &self.store, &Silent).await?;
        Ok(pushed.digest)
    }

    async fn pull(&self, digest: &str) -> Result<ModuleSet, Failure> {
        self.open(&[]).pull(digest, &self.other, &Silent).await
    }

    /// Checks that pulling fails like this, and leaves no set and no blob under a wrong name.
    async fn refuses(&self, digest: &str, code: ExitCode, expected: &str) {
        let failure = self.pull(digest).await.expect_err("refused");
        assert_eq!(failure.code(), code, "{}", failure.report());
        assert!(failure.report().contains(expected), "{expected:?} is not in {}", failure.report());
        assert!(self.other.sets().expect("sets").is_empty());
        module_sets::assert_sound(&self.other);
    }
}

#[tokio::test]
async fn what_is_pushed_is_found_and_pulled() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    assert_eq!(scene.push().await.expect("pushes again"), digest);
    let registry = scene.open(&[]);
    for (driver, count) in [(Some("535.261.03"), 1), (Some("535"), 1), (None, 1), (Some("550"), 0)]
    {
        let requested =
            SetRequest { driver, flavour: None, kernel_release: "6.1.0-50-amd64", arch: "x86_64" };
        let found = find(&registry, requested).await.expect("finds");
        assert_eq!(found.len(), count, "{driver:?}");
        assert!(found.iter().all(|f| f.set == scene.set && f.digest() == digest));
    }
    assert_eq!(scene.pull(&digest).await.expect("pulls"), scene.set);
    assert_eq!(scene.other.find_set(&scene.set.key).expect("find"), Some(scene.set.clone()));
    module_sets::assert_sound(&scene.other);
}

#[tokio::test]
async fn a_second_push_sends_nothing() {
    let scene = Scene::new();
    let repository = scene.name().parse().expect("a repository");
    let registry =
        Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    let push =
        async || registry.push(&scene.set, "t", &scene.store, &Silent).await.expect("pushes");
    let first = push().await;
    assert_eq!((first.sent, first.was_there), (3, false));
    let second = push().await;
    assert_eq!((second.sent, second.was_there), (0, true));
    assert_eq!(first.digest, second.digest);
}

#[tokio::test]
async fn an_empty_registry_has_nothing() {
    let scene = Scene::new();
    let requested = SetRequest { driver: None, flavour: None, kernel_release: "x", arch: "x86_64" };
    assert!(find(&scene.open(&[]), requested).await.expect("finds").is_empty());
    let absent = format!("sha256:{}", "0".repeat(64));
    scene.refuses(&absent, ExitCode::Download, "has no sha256:0000").await;
}

#[tokio::test]
async fn a_mirror_that_is_away_is_passed_over() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let away = format!("http://{}/nvidia/modules", hub::free_address());
    let registry = scene.open(&[&away]);
    registry.pull(&digest, &scene.other, &Silent).await.expect("pulls");
    module_sets::assert_sound(&scene.other);
}

#[tokio::test]
async fn a_mirror_is_asked_first() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let gone = format!("http://{}/gone/modules", hub::free_address());
    let source = RegistrySource {
        reference: gone.parse().expect("a repository"),
        mirrors: vec![scene.name().parse().expect("a repository")],
    };
    let registry =
        Registry::open_with(hasty(), &source, Path::new("/"), &scene.env()).expect("opens");
    registry.pull(&digest, &scene.other, &Silent).await.expect("pulls from the mirror");
}

#[tokio::test]
async fn a_registry_that_is_away_is_told_by_its_url() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let Scene { dir, hub, store, other, set } = scene;
    let address = hub.address.clone();
    drop(hub);
    let hub = Hub::gone(address.clone());
    let scene = Scene { dir, hub, store, other, set };
    let expected = format!("http://{address}/v2/nvidia/modules");
    scene.refuses(&digest, ExitCode::Download, &expected).await;
}
