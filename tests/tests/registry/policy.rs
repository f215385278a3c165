//! Required signatures: the accepted and refused ones, in every place of a set.

use std::fs;

use longshore::catalog::{AvailableSet, Catalog, Lack, SetPlace};
use longshore::config::{self, Config, Fragment};
use longshore::prebuilt::Prebuilt;
use longshore_core::digest::digest_of;
use longshore_host::facts::{Kernel, Probe};
use longshore_modules::layout;
use longshore_modules::sets::SetStore;
use longshore_modules::signature::attestation::Attestation;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::{Evidence, Signature};
use longshore_modules::testing::signed_for_the_kernel;
use serde_json::json;

use super::cosign::run;
use super::*;
use longshore_tests::scene::{finish, longshore as program};

/// A scene whose registry is configured, with a key that signatures are required of.
pub(super) struct Strict {
    pub(super) scene: Scene,
    pub(super) key: SecretKey,
    pub(super) config: Config,
}

impl Strict {
    fn new() -> Self {
        Self::with("")
    }

    /// Makes one with further settings.
    pub(super) fn with(settings: &str) -> Self {
        let scene = Scene::new();
        let key = SecretKey::generate();
        let public = scene.dir.path().join("cosign.pub");
        fs::write(&public, key.public_pem().expect("pem")).expect("writes");
        let file = scene.dir.path().join("config.toml");
        let text = format!(
            "driver = \"535.261.03\"\nrequire-signature = true\nsignature-keys = [\"{}\"]\n\
             {settings}[[registry]]\nreference = \"{}\"\nplain-http = true\n",
            public.display(),
            scene.name().trim_start_matches("http://"),
        );
        fs::write(&file, text).expect("writes");
        let config = config::load(Fragment::default(), &|_| None, Some(&file)).expect("loads");
        Self { scene, key, config }
    }

    fn kernel(&self) -> Kernel {
        let key = &self.scene.set.key;
        Kernel {
            release: key.kernel_release.clone(),
            version: key.kernel_version.clone(),
            arch: key.arch.clone(),
            compiler: None,
            boot_id: None,
        }
    }

    pub(super) async fn sign(&self, digest: &str, key: &SecretKey) {
        let repository = self.scene.name().parse().expect("a repository");
        let registry =
            Registry::open_to_push(&repository, Path::new("/"), &self.scene.env()).expect("opens");
        registry.sign(digest, key).await.expect("signs");
    }

    async fn attest(&self, digest: &str, kind: &str, key: &SecretKey) {
        let repository = self.scene.name().parse().expect("a repository");
        let registry =
            Registry::open_to_push(&repository, Path::new("/"), &self.scene.env()).expect("opens");
        let set = registry.describe(digest).await.expect("describes");
        let (kind, predicate) = (kind.parse().expect("a type"), super::roles::predicate(kind));
        let made = Attestation::make(key, "a", digest, &kind, predicate).expect("attests");
        registry.attest(&set.descriptor(), &[made]).await.expect("attests");
    }

    pub(super) async fn ask(&self) -> Catalog {
        let mut catalog = nothing();
        let prebuilt = Prebuilt::new(&self.config).expect("keys");
        let kernel = self.kernel();
        let offers = prebuilt.ask_registries(&kernel, &self.scene.other).await.expect("asks");
        catalog.add(offers, &kernel);
        catalog
    }

    /// Returns a catalog with the store's set, judged by the policy.
    fn judge(&self, place: SetPlace, store: &Store) -> Catalog {
        let mut catalog = nothing();
        catalog.sets.push(AvailableSet { set: self.scene.set.clone(), place });
        let prebuilt = Prebuilt::new(&self.config).expect("keys");
        prebuilt.judge(&self.kernel(), store, &mut catalog);
        catalog
    }
}

fn nothing() -> Catalog {
    Catalog { run_files: Probe::Read(Vec::new()), ..Catalog::without_sources("not read") }
}

pub(super) fn counts(catalog: &Catalog, why: &str) -> bool {
    if let Some(refused) = catalog.refused.first() {
        assert!(refused.why.contains(why), "{}", refused.why);
    }
    assert_eq!(catalog.sets.len() + catalog.refused.len(), 1);
    catalog.refused.is_empty()
}

#[tokio::test]
async fn a_set_of_a_registry_counts_once_it_is_signed() {
    let strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    assert!(!counts(&strict.ask().await, "no signature"));
    strict.sign(&digest, &SecretKey::generate()).await;
    assert!(!counts(&strict.ask().await, "another key"));
    strict.sign(&digest, &strict.key).await;
    assert!(counts(&strict.ask().await, ""));
}

#[tokio::test]
async fn a_signed_set_counts_once_it_has_every_required_attestation() {
    let strict = Strict::with("require-attestation = [\"provenance\", \"test-result\"]\n");
    let digest = strict.scene.push().await.expect("pushes");
    assert!(!counts(&strict.ask().await, "no signature"));
    strict.sign(&digest, &strict.key).await;
    let refused = |catalog: Catalog, why: &str| {
        assert!(!counts(&catalog, why), "{why}");
        assert_eq!(catalog.refused[0].lacks, Lack::Attestation);
    };
    refused(strict.ask().await, "it has no attestation, and one of the type provenance");
    strict.attest(&digest, "provenance", &strict.key).await;
    refused(strict.ask().await, "type test-result");
    strict.attest(&digest, "test-result", &SecretKey::generate()).await;
    refused(strict.ask().await, "another key");
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let (registry, other) = (&strict.config.registries[0], &strict.scene.other);
    let failure = prebuilt.pull(registry, &digest, other, &Silent).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains("longshore attest"), "{}", failure.report());
    assert!(other.sets().expect("sets").is_empty());

    strict.attest(&digest, "test-result", &strict.key).await;
    assert!(counts(&strict.ask().await, ""));
    prebuilt.pull(registry, &digest, other, &Silent).await.expect("pulls");
    assert!(counts(&strict.judge(SetPlace::store(), other), ""));
}

#[tokio::test]
async fn an_unsigned_set_is_not_pulled_and_a_signed_one_counts_in_the_store() {
    let strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let other = &strict.scene.other;
    let registry = &strict.config.registries[0];
    let failure = prebuilt.pull(registry, &digest, other, &Silent).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(other.sets().expect("sets").is_empty());

    strict.sign(&digest, &strict.key).await;
    prebuilt.pull(registry, &digest, other, &Silent).await.expect("pulls");
    assert!(counts(&strict.judge(SetPlace::store(), other), ""));
    // The set that was built there and never signed is refused.
    assert!(!counts(&strict.judge(SetPlace::store(), &strict.scene.store), "no signature"));
}

#[tokio::test]
async fn a_denied_set_is_neither_found_nor_pulled_and_does_not_count_in_the_store() {
    let mut strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let registry = strict.config.registries[0].clone();
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    prebuilt.pull(&registry, &digest, &strict.scene.other, &Silent).await.expect("pulls");
    assert!(counts(&strict.judge(SetPlace::store(), &strict.scene.other), ""));

    // With required signatures, and without.
    for required in [true, false] {
        strict.config.signatures.required = required;
        strict.config.signatures.denied = [digest.clone()].into();
        let stores = [&strict.scene.other, &strict.scene.store];
        let asked = strict.ask().await;
        for catalog in
            stores.map(|store| strict.judge(SetPlace::store(), store)).iter().chain([&asked])
        {
            assert!(catalog.sets.is_empty() && catalog.refused.is_empty(), "{required}");
            assert_eq!(catalog.denied.len(), 1);
        }
        let prebuilt = Prebuilt::new(&strict.config).expect("keys");
        let pulled = prebuilt.pull(&registry, &digest, &strict.scene.other, &Silent).await;
        let failure = pulled.expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.report().contains("is denied (denied-sets)"), "{}", failure.report());
        strict.config.signatures.denied = [format!("sha256:{}", "0".repeat(64))].into();
        assert_eq!(strict.ask().await.sets.len(), 1);
    }
}

#[tokio::test]
async fn a_push_without_a_key_carries_the_signature_that_a_set_came_with() {
    let strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let (registry, other) = (&strict.config.registries[0], &strict.scene.other);
    prebuilt.pull(registry, &digest, other, &Silent).await.expect("pulls");

    let inside = Hub::start(None);
    let repository = format!("{}/nvidia/modules", inside.address);
    let push = |store: &str| {
        let to = format!("http://{repository}");
        let key = strict.scene.set.key.digest();
        let mut command = std::process::Command::new(program());
        command.env_clear().env("LONGSHORE_STORE", strict.scene.dir.path().join(store));
        finish(command.args(["push", &to, "--kernel", "6.1.0-50-amd64", "--set", &key]))
    };
    let image = format!("{repository}@{digest}");
    let verify = || {
        let key = ["verify", "--key", "cosign.pub", "--insecure-ignore-tlog=true"];
        let arguments = [&key[..], &["--allow-http-registry", &image]].concat();
        run("cosign", strict.scene.dir.path(), &arguments).status.success()
    };
    // The store in which the set was made has no signature of it.
    let unsigned = push("store");
    unsigned.assert_done();
    assert!(!unsigned.out.contains("signature"), "{unsigned}");
    assert!(!verify());
    for said in ["was there already, with the signature that it came with", "signature"] {
        let signed = push("other");
        signed.assert_done();
        assert!(signed.out.contains(&digest) && signed.out.contains(said), "{signed}");
        assert!(verify());
    }
}

#[tokio::test]
async fn a_new_signature_is_never_of_a_description_with_fields_that_nothing_verifies() {
    let scene = Scene::new();
    let own = Described::from_set(&scene.set).expect("describes");
    // As another tool would write it, or an attacker: with one more annotation.
    let mut manifest: serde_json::Value = serde_json::from_slice(&own.manifest).expect("JSON");
    manifest["annotations"]["com.example.note"] = json!("run this");
    let manifest = serde_json::to_vec(&manifest).expect("JSON");
    let foreign = SecretKey::generate();
    let digest = format!("sha256:{}", digest_of(&*manifest).expect("digest"));
    let signature = Signature::make(&foreign, "bundle", &digest).expect("signs");
    let evidence = Evidence::new(manifest, own.config.clone(), vec![signature]).expect("evidence");
    scene.store.put_evidence(&scene.set, &evidence).expect("kept");
    let key = scene.dir.path().join("cosign.key");
    fs::write(&key, SecretKey::generate().to_encrypted_pem("").expect("pem")).expect("writes");

    let push = |more: &[&str]| {
        let mut command = std::process::Command::new(program());
        let store = scene.dir.path().join("store");
        command.env_clear().env("LONGSHORE_STORE", store).env("COSIGN_PASSWORD", "");
        command.args(["push", &scene.name(), "--kernel", "6.1.0-50-amd64"]).args(more);
        let ended = finish(&mut command);
        ended.assert_done();
        ended.out
    };
    let signed = push(&["--sign-key", key.to_str().expect("a path")]);
    assert!(signed.contains(&own.digest()) && !signed.contains("came with"), "{signed}");
    let kept = push(&[]);
    assert!(kept.contains(&digest) && kept.contains("came with"), "{kept}");
}

#[tokio::test]
async fn what_is_signed_for_the_kernel_counts_as_what_it_was_made_of() {
    let mut strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let registry = &strict.config.registries[0];
    let store = strict.scene.other.clone();
    prebuilt.pull(registry, &digest, &store, &Silent).await.expect("pulls");
    let pulled = strict.scene.set.clone();
    let stored = |more: &[u8], store: &Store| {
        let signed = signed_for_the_kernel(&pulled, more, store);
        store.put_set(&signed).expect("put_set");
        signed
    };
    strict.scene.set = stored(b"", &store);
    assert!(counts(&strict.judge(SetPlace::store(), &store), ""));
    strict.scene.set = stored(b"changed", &store);
    assert!(!counts(&strict.judge(SetPlace::store(), &store), "no signature"));
    // Signing its modules does not make up for a set that was never signed for a registry.
    let built = strict.scene.store.clone();
    strict.scene.set = stored(b"", &built);
    assert!(!counts(&strict.judge(SetPlace::store(), &built), "no signature"));
}

#[tokio::test]
async fn a_mirror_with_another_signature_does_not_hide_the_registrys() {
    let mut strict = Strict::new();
    let mirror = Hub::start(None);
    let name = format!("http://{}/nvidia/modules", mirror.address);
    let to_mirror = name.parse().expect("a repository");
    let digest = strict.scene.push().await.expect("pushes");
    let registry = Registry::open_to_push(&to_mirror, Path::new("/"), &|_| None).expect("opens");
    let (set, store) = (&strict.scene.set, &strict.scene.store);
    registry.push(set, &set.key.tag(), store, &Silent).await.expect("pushes");
    registry.sign(&digest, &SecretKey::generate()).await.expect("signs");
    strict.config.registries[0].mirrors.push(to_mirror);
    assert!(!counts(&strict.ask().await, "another key"));
    strict.sign(&digest, &strict.key).await;
    assert!(counts(&strict.ask().await, ""));
}

/// Puts a set under the tag of the scene's into a mirror, which is then used first.
async fn mirror_of(strict: &mut Strict, change: impl FnOnce(&mut ModuleSet)) -> Hub {
    let mirror = Hub::start(None);
    let name = format!("http://{}/nvidia/modules", mirror.address);
    let to_mirror = name.parse().expect("a repository");
    let registry = Registry::open_to_push(&to_mirror, Path::new("/"), &|_| None).expect("opens");
    let mut stale = strict.scene.set.clone();
    change(&mut stale);
    let store = &strict.scene.store;
    registry.push(&stale, &stale.key.tag(), store, &Silent).await.expect("pushes");
    strict.config.registries[0].mirrors.push(to_mirror);
    mirror
}

#[tokio::test]
async fn a_mirror_with_a_set_for_another_build_of_the_kernel_does_not_hide_the_registrys() {
    let mut strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let _mirror = mirror_of(&mut strict, |set| set.key.kernel_version = "#1 older".into()).await;
    assert!(counts(&strict.ask().await, ""));
}

#[tokio::test]
async fn a_mirror_with_an_unsigned_set_does_not_hide_the_registrys() {
    let mut strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let _mirror = mirror_of(&mut strict, |set| set.key.compiler = "another".into()).await;
    let catalog = strict.ask().await;
    let [set] = &catalog.sets[..] else { panic!("one set: {:?}", catalog.sets) };
    assert_eq!(set.set, strict.scene.set);
    // The reason for refusing the mirror's set is reported.
    assert_eq!(catalog.refused.len(), 1);
}

#[tokio::test]
async fn a_set_put_in_place_of_a_signed_one_does_not_count() {
    let mut strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let registry = &strict.config.registries[0];
    prebuilt.pull(registry, &digest, &strict.scene.other, &Silent).await.expect("pulls");
    strict.scene.set.modules[0].sha256 = strict.scene.set.modules[1].sha256.clone();
    assert!(!counts(
        &strict.judge(SetPlace::store(), &strict.scene.other),
        "what was signed is not this: it has other modules"
    ));
}

#[tokio::test]
async fn a_layout_counts_once_it_is_signed_and_takes_the_signature_along() {
    let strict = Strict::new();
    let dir = strict.scene.dir.path().join("layout");
    let digest =
        layout::export(&strict.scene.set, &strict.scene.store, &dir, strict.config.deadlines.lock)
            .expect("exports");
    let place = || SetPlace::layout(&dir, &digest);
    let other = &strict.scene.other;
    assert!(!counts(&strict.judge(place(), other), "no signature"));
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let failure = prebuilt.import(&dir, &digest, other).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(other.sets().expect("sets").is_empty());

    let (config, key) = (&strict.config, &strict.key);
    let (wait, disk) = (config.deadlines.lock, config.disk());
    assert!(layout::sign(&dir, &digest, "layout", key, wait, disk).expect("signs"));
    assert_eq!(layout::list(&dir).expect("lists").len(), 1);
    assert!(counts(&strict.judge(place(), other), ""));
    prebuilt.import(&dir, &digest, other).await.expect("imports");
    assert!(counts(&strict.judge(SetPlace::store(), other), ""));
}

#[tokio::test]
async fn a_set_for_another_build_of_the_kernel_is_not_taken() {
    let strict = Strict::new();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let mut kernel = strict.kernel();
    kernel.version = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.177-1 (2026-11-01)".into();
    let mut catalog = nothing();
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let offers = prebuilt.ask_registries(&kernel, &strict.scene.other).await.expect("asks");
    catalog.add(offers, &kernel);
    assert!(catalog.sets.is_empty() && catalog.refused.is_empty() && catalog.failures.is_empty());
}

#[tokio::test]
async fn a_registry_that_is_away_is_noted_and_nothing_fails() {
    let strict = Strict::new();
    let Strict { scene, key, config } = strict;
    let Scene { dir, hub, store, other, set } = scene;
    let address = hub.address.clone();
    drop(hub);
    let scene = Scene { dir, hub: Hub::gone(address.clone()), store, other, set };
    let catalog = Strict { scene, key, config }.ask().await;
    assert!(catalog.sets.is_empty());
    assert_eq!(catalog.failures.len(), 1);
    let why = catalog.failures[0].failure.one_line();
    assert!(why.contains(&address), "{why}");
}
