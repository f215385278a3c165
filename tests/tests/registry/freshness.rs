//! Index of a repository's sets, and the age of attestations: what is listed and current counts, and what is replayed,
//! outdated or expired does not.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use jiff::Timestamp;
use longshore::catalog::Lack;
use longshore::prebuilt::Prebuilt;
use longshore_modules::registry::manifests::{manifest, overwrite_manifest};
use longshore_modules::registry::set_index::IndexSummary;
use longshore_modules::signature::attestation::Attestation;
use longshore_modules::signature::index_minimums::IndexMinimums;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::set_index::INDEX_TAG;

use super::attested::{command, files};
use super::policy::{Strict, counts};
use super::roles::predicate;
use super::*;

const WEEK: Duration = Duration::from_secs(7 * 86_400);
const REQUIRED: &str = "require-index = true\n";

fn writer(scene: &Scene, repository: &str) -> Registry {
    let repository = repository.parse().expect("a repository");
    Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens")
}

async fn put(registry: &Registry, key: &SecretKey, sets: &[&str]) -> IndexSummary {
    let sets: BTreeSet<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    registry.put_index(key, sets, WEEK).await.expect("writes")
}

async fn kept(registry: &Registry) -> Vec<u8> {
    let session = registry.only().expect("a session");
    manifest(session, INDEX_TAG).await.expect("asks").expect("an index")
}

async fn restore(registry: &Registry, index: &[u8]) {
    let session = registry.only().expect("a session");
    overwrite_manifest(session, INDEX_TAG, index).await.expect("writes");
}

async fn assert_unlisted(strict: &Strict, why: &str) {
    let catalog = strict.ask().await;
    assert!(!counts(&catalog, why), "{why}");
    assert_eq!(catalog.refused[0].lacks, Lack::Listing);
}

fn absent() -> String {
    format!("sha256:{}", "0".repeat(64))
}

#[tokio::test]
async fn a_set_is_taken_once_an_index_lists_it() {
    let strict = Strict::with(REQUIRED);
    let registry = writer(&strict.scene, &strict.scene.name());
    put(&registry, &strict.key, &[&absent()]).await;
    // Pushed after the index.
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    assert_unlisted(&strict, "does not list it").await;
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let (source, other) = (&strict.config.registries[0], &strict.scene.other);
    let failure = prebuilt.pull(source, &digest, other, &Silent).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains("longshore index"), "{}", failure.report());
    assert!(other.sets().expect("sets").is_empty());

    put(&registry, &strict.key, &[&absent(), &digest]).await;
    assert!(counts(&strict.ask().await, ""));
    prebuilt.pull(source, &digest, other, &Silent).await.expect("pulls");
    // By nobody who is trusted.
    put(&registry, &SecretKey::generate(), &[&digest]).await;
    assert_unlisted(&strict, "not signed by a key with the role index").await;
}

#[tokio::test]
async fn a_replayed_index_is_refused_and_the_next_one_counts() {
    let strict = Strict::with(REQUIRED);
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    assert_unlisted(&strict, "has no index").await;
    let registry = writer(&strict.scene, &strict.scene.name());
    let first = put(&registry, &strict.key, &[&digest]).await;
    assert!(counts(&strict.ask().await, ""));
    let old = kept(&registry).await;
    // The set is taken back.
    let second = put(&registry, &strict.key, &[]).await;
    assert!(second.version > first.version);
    assert_unlisted(&strict, "does not list it").await;
    restore(&registry, &old).await;
    let (version, seen) = (first.version, second.version);
    let why = format!("has the version {version}, and this store has seen {seen}");
    assert_unlisted(&strict, &why).await;

    put(&registry, &strict.key, &[&digest]).await;
    assert!(counts(&strict.ask().await, ""));
}

#[tokio::test]
async fn a_new_store_takes_no_index_below_the_minimum() {
    let mut strict = Strict::with(REQUIRED);
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let registry = writer(&strict.scene, &strict.scene.name());
    let made = put(&registry, &strict.key, &[&digest]).await;
    strict.config.signatures.index_minimum = Some(made.version + 1);
    assert_unlisted(&strict, "and index-minimum is").await;
    strict.config.signatures.index_minimum = Some(made.version);
    assert!(counts(&strict.ask().await, ""));
}

/// Settings with a file of lowest versions, and the file.
fn with_file() -> (tempfile::TempDir, PathBuf, Strict) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("index-minimum");
    let strict = Strict::with(&format!("{REQUIRED}index-minimum-file = '{}'\n", file.display()));
    (dir, file, strict)
}

#[tokio::test]
async fn an_empty_store_takes_no_replayed_index_that_is_below_the_file() {
    let (_dir, file, strict) = with_file();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let registry = writer(&strict.scene, &strict.scene.name());
    let first = put(&registry, &strict.key, &[&digest]).await;
    let old = kept(&registry).await;
    let second = put(&registry, &strict.key, &[&digest]).await;
    assert_eq!((first.replaced, second.replaced), (None, Some(first.version)));
    restore(&registry, &old).await;
    // The builder's record, which reaches a new node before its first look.
    let name = strict.config.registries[0].reference.name();
    let mut minimums = IndexMinimums::default();
    minimums.raise("other.example.com/gpu/modules", second.version + 10);
    minimums.raise(&name, second.version);
    fs::write(&file, minimums.to_string()).expect("writes");
    let why =
        format!("has the version {}, and index-minimum-file has {}", first.version, second.version);
    assert_unlisted(&strict, &why).await;
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let (source, other) = (&strict.config.registries[0], &strict.scene.other);
    let failure = prebuilt.pull(source, &digest, other, &Silent).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(other.sets().expect("sets").is_empty());

    put(&registry, &strict.key, &[&digest]).await;
    assert!(counts(&strict.ask().await, ""));
}

#[tokio::test]
async fn without_the_file_any_index_counts_and_with_a_damaged_one_none() {
    let (_dir, file, strict) = with_file();
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let registry = writer(&strict.scene, &strict.scene.name());
    put(&registry, &strict.key, &[&digest]).await;
    assert!(counts(&strict.ask().await, ""));
    fs::write(&file, "\n").expect("writes");
    assert!(counts(&strict.ask().await, ""));

    fs::write(&file, "garbage").expect("writes");
    let prebuilt = Prebuilt::new(&strict.config).expect("keys");
    let (source, other) = (&strict.config.registries[0], &strict.scene.other);
    let failure = prebuilt.pull(source, &digest, other, &Silent).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Usage, "{}", failure.report());
    assert!(failure.report().contains("index-minimum"), "{}", failure.report());
    assert!(other.sets().expect("sets").is_empty());
}

#[tokio::test]
async fn a_mirror_with_an_outdated_index_is_passed_over() {
    let mut strict = Strict::with(REQUIRED);
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let name = format!("http://{}/mirror/modules", strict.scene.hub.address);
    let (registry, mirror) =
        (writer(&strict.scene, &strict.scene.name()), writer(&strict.scene, &name));
    let set = &strict.scene.set;
    mirror.push(set, &set.key.tag(), &strict.scene.store, &Silent).await.expect("pushes");
    put(&mirror, &strict.key, &[&digest]).await;
    // Later than the mirror's.
    put(&registry, &strict.key, &[]).await;
    put(&registry, &strict.key, &[&digest]).await;
    assert!(counts(&strict.ask().await, ""));
    strict.config.registries[0].mirrors = vec![name.parse().expect("a repository")];
    assert!(counts(&strict.ask().await, ""));
    // The mirror still lists it.
    put(&registry, &strict.key, &[]).await;
    assert_unlisted(&strict, "does not list it").await;
}

#[tokio::test]
async fn the_command_lists_what_is_signed_and_shows_who_signed_the_list() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    let (secret, public) = files(&scene, &key);
    let digest = scene.push().await.expect("pushes");
    let name = scene.name();
    let write = ["index", &name, "--sign-key", &secret];
    command(&scene, &write).assert_failed(13, &["no set that the key signed".into()]);
    writer(&scene, &name).sign(&digest, &key).await.expect("signs");
    let written = command(&scene, &[&write[..], &["--expires", "1d"]].concat());
    written.assert_done();
    assert!(written.out.contains(", 1 set\n"), "{written}");

    let show = ["index", &name, "--show"];
    command(&scene, &show).assert_failed(2, &["no key to verify the index with".into()]);
    let of_key = [&show[..], &["--signature-key", &public]].concat();
    let shown = command(&scene, &of_key);
    shown.assert_done();
    assert!(shown.out.contains(&digest) && shown.out.contains("signed by"), "{shown}");
    let role = format!("modules+provenance={public}");
    let other = [&show[..], &["--trust", &role]].concat();
    command(&scene, &other).assert_failed(13, &["has not that role".into()]);

    let without = [&write[..], &["--without", &digest]].concat();
    let written = command(&scene, &without);
    written.assert_done();
    assert!(written.out.contains(", 0 sets\n"), "{written}");
    for span in ["59m", "2y"] {
        let wrong = [&write[..], &["--expires", span]].concat();
        assert_eq!(command(&scene, &wrong).code, Some(2), "{span}");
    }
    // Something else under the tag is not replaced.
    let set = scene.open(&[]).describe(&digest).await.expect("describes");
    restore(&writer(&scene, &name), &set.manifest).await;
    command(&scene, &write).assert_failed(13, &["has no index".into()]);
}

#[tokio::test]
async fn an_attestation_counts_until_it_is_too_old() {
    let settings = "require-attestation = [\"spdx\"]\nattestation-max-age = \"1h\"\n";
    let strict = Strict::with(settings);
    let digest = strict.scene.push().await.expect("pushes");
    strict.sign(&digest, &strict.key).await;
    let registry = writer(&strict.scene, &strict.scene.name());
    let set = registry.describe(&digest).await.expect("describes");
    let hours_ago =
        |hours: i64| Timestamp::from_second(Timestamp::now().as_second() - hours * 3600);
    for (hours, why) in [(2, "attestation-max-age permits none before"), (-1, "in the future")] {
        attest(&strict, &registry, &set, hours_ago(hours).expect("a time")).await;
        let catalog = strict.ask().await;
        assert!(!counts(&catalog, why), "{why}");
        assert_eq!(catalog.refused[0].lacks, Lack::Attestation);
    }
    attest(&strict, &registry, &set, Timestamp::now()).await;
    assert!(counts(&strict.ask().await, ""));
}

async fn attest(strict: &Strict, registry: &Registry, set: &Described, created: Timestamp) {
    let mut predicate = predicate("spdx");
    predicate["creationInfo"]["created"] = created.to_string().into();
    let kind = "spdx".parse().expect("a type");
    let made = Attestation::make(&strict.key, "a", &set.digest(), &kind, predicate);
    registry.attest(&set.descriptor(), &[made.expect("attests")]).await.expect("attests");
}
