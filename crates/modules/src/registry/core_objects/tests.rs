//! Core objects in a registry that keeps them, loses them, or lies.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::artifact::core_objects::{CORE_CONFIG_TYPE, CORE_PATHS, MAX_CORE_OBJECT};
use crate::artifact::image::{Described, Descriptor};
use crate::registry::stand_in::StandIn;
use crate::signature::signature_tag;
use crate::testing::{core_record, set};
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::progress::Silent;

/// A registry, the store that the objects were compiled into, and another one without.
struct Scene {
    _dir: tempfile::TempDir,
    stand_in: StandIn,
    registry: Registry,
    store: Store,
    other: Store,
    core: StoredCore,
}

/// Contents of the objects.
const OBJECTS: [&[u8]; 2] = [b"modeset object", b"the large object"];

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let open = |name| Store::open(&dir.path().join(name), Disk::default()).expect("store");
        let (store, other) = (open("store"), open("other"));
        let mut record = core_record();
        for (object, bytes) in record.objects.values_mut().zip(OBJECTS) {
            *object =
                CoreObject { sha256: store.put(bytes).expect("put"), size: bytes.len() as u64 };
        }
        let stand_in = StandIn::start();
        let registry = stand_in.open();
        let core = StoredCore { record, pulled: None };
        Self { _dir: dir, stand_in, registry, store, other, core }
    }

    async fn push(&self, key: Option<&SecretKey>) -> CorePushed {
        let pushed = self.registry.push_core(&self.core, key, &self.store, &Silent).await;
        pushed.expect("pushes")
    }

    async fn pull(&self, trust: &Trust) -> Result<Option<StoredCore>, Failure> {
        let asked = self.core.record.query();
        self.registry.pull_core(&asked, trust, &self.other, &Silent).await
    }

    fn manifest(&self) -> String {
        format!("manifests/{}", self.core.record.query().tag())
    }

    fn object(&self, index: usize) -> String {
        let object = &self.core.record.objects[CORE_PATHS[index]];
        format!("blobs/sha256:{}", object.sha256)
    }

    /// Puts a record and its manifest under the asked tag, after a change.
    fn put(&self, change: impl FnOnce(&mut Value, &mut Value)) {
        let own = DescribedCore::from_record(&self.core.record).expect("describes");
        let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        let (mut record, mut manifest) = (parse(&own.config), parse(&own.manifest));
        change(&mut record, &mut manifest);
        let config = record.to_string().into_bytes();
        if manifest["config"]["size"] == json!(own.config.len()) {
            let of = manifest["config"]["mediaType"].as_str().expect("a type").to_owned();
            manifest["config"] = json!(Descriptor::for_bytes(&of, &config));
        }
        self.stand_in.put_blob(&config);
        let tag = self.core.record.query().tag();
        self.stand_in.put_manifest(&tag, manifest.to_string().as_bytes());
    }
}

#[tokio::test]
async fn what_is_pushed_is_pulled_and_a_second_push_sends_nothing() {
    let scene = Scene::new();
    assert_eq!(scene.pull(&Trust::default()).await.expect("asks"), None);
    let digest = DescribedCore::from_record(&scene.core.record).expect("describes").digest();
    let there = |sent, was_there| CorePushed::There { digest: digest.clone(), sent, was_there };
    assert_eq!(scene.push(None).await, there(3, false));
    assert_eq!(scene.push(None).await, there(0, true));
    let pulled = scene.pull(&Trust::default()).await.expect("pulls").expect("there");
    assert_eq!(pulled.record, scene.core.record);
    assert_eq!(pulled.input().pulled, Some(digest.clone()));
    for (object, bytes) in pulled.record.objects.values().zip(OBJECTS) {
        assert_eq!(scene.other.read_blob(&object.sha256).expect("there"), bytes);
    }
    // Objects of the store are not fetched again.
    scene.stand_in.requests();
    scene.pull(&Trust::default()).await.expect("pulls").expect("there");
    let blobs = scene.stand_in.requests();
    assert_eq!(blobs.iter().filter(|line| line.contains("blobs/")).count(), 1, "{blobs:?}");
    // A lost blob is sent again, and what was pulled is pushed with the same digest.
    scene.stand_in.remove(&scene.object(1));
    let again = scene.registry.push_core(&pulled, None, &scene.other, &Silent).await;
    assert_eq!(again.expect("pushes"), there(1, true));
}

#[tokio::test]
async fn another_artifact_under_the_tag_is_left_and_not_signed() {
    let scene = Scene::new();
    scene.put(|record, _| record["packages"] = json!([]));
    for bytes in OBJECTS {
        scene.stand_in.put_blob(bytes);
    }
    let key = SecretKey::generate();
    let CorePushed::Other(digest) = scene.push(Some(&key)).await else { panic!("replaced") };
    assert!(!scene.stand_in.has(&format!("manifests/{}", signature_tag(&digest))));
    let trust = Trust::in_keys([key.public()]);
    let refused = scene.pull(&trust).await.expect_err("unsigned");
    assert!(refused.one_line().contains("it has no signature"), "{}", refused.one_line());
    let unsigned = scene.pull(&Trust::default()).await.expect("pulls").expect("there");
    assert_eq!(unsigned.input().pulled, Some(digest));
}

/// Lies of a registry, with the text that they are refused by.
#[rstest]
#[case::other_key(|r: &mut Value, _: &mut Value| r["key"] = json!("0".repeat(64)), "its key is")]
#[case::other_tree(|r: &mut Value, _: &mut Value| r["tree"] = json!("0".repeat(64)), "its source tree is")]
#[case::other_version(|r: &mut Value, _: &mut Value| r["version"] = json!("580.143"), "its driver version is")]
#[case::further_object(|r: &mut Value, _: &mut Value| r["objects"]["nvidia/a.o"] = r["objects"][CORE_PATHS[0]].clone(), "not exactly")]
#[case::path_above(|r: &mut Value, _: &mut Value| r["objects"] = json!({"../a": r["objects"][CORE_PATHS[0]], CORE_PATHS[1]: r["objects"][CORE_PATHS[1]]}), "not exactly")]
#[case::oversized(|r: &mut Value, m: &mut Value| { r["objects"][CORE_PATHS[1]]["size"] = json!(MAX_CORE_OBJECT + 1); m["layers"][1]["size"] = json!(MAX_CORE_OBJECT + 1); }, "bytes")]
#[case::layer_of_another_digest(|_: &mut Value, m: &mut Value| m["layers"][0]["digest"] = json!(digest(b"other")), "layers are not")]
#[case::layer_of_another_size(|_: &mut Value, m: &mut Value| m["layers"][0]["size"] = json!(1), "layers are not")]
#[case::missing_layer(|_: &mut Value, m: &mut Value| drop(m["layers"].as_array_mut().map(Vec::pop)), "layers are not")]
#[case::wrong_type(|_: &mut Value, m: &mut Value| m["artifactType"] = json!("text/plain"), "another kind")]
#[case::size_that_both_lie_about(|r: &mut Value, m: &mut Value| { r["objects"][CORE_PATHS[0]]["size"] = json!(1); m["layers"][0]["size"] = json!(1); }, "sha256")]
#[case::large_config(|_: &mut Value, m: &mut Value| m["config"]["size"] = json!(2 << 20), "too large")]
#[tokio::test]
async fn a_lie_is_refused_and_leaves_nothing(
    #[case] change: fn(&mut Value, &mut Value),
    #[case] expected: &str,
) {
    let scene = Scene::new();
    scene.push(None).await;
    scene.put(change);
    let refused = scene.pull(&Trust::default()).await.expect_err("refused");
    assert_eq!(refused.code(), ExitCode::Verification, "{}", refused.report());
    assert!(refused.report().contains(expected), "{expected}: {}", refused.report());
    let blobs = std::fs::read_dir(scene.other.dir("blobs/sha256")).expect("blobs").count();
    assert!(blobs <= 1, "at most the object about which it did not lie");
}

/// Objects and descriptions that a registry serves otherwise, or has lost.
#[rstest]
#[case::truncated(Some(b"the lar".as_slice()), ExitCode::Verification)]
#[case::other_bytes(Some(b"the lorge object".as_slice()), ExitCode::Verification)]
#[case::lost(None, ExitCode::Download)]
#[tokio::test]
async fn an_object_of_other_bytes_is_not_kept(
    #[case] served: Option<&[u8]>,
    #[case] code: ExitCode,
) {
    let scene = Scene::new();
    scene.push(None).await;
    scene.stand_in.replace(&scene.object(1), served);
    let refused = scene.pull(&Trust::default()).await.expect_err("refused");
    assert_eq!(refused.code(), code, "{}", refused.report());
    let sha256 = &scene.core.record.objects[CORE_PATHS[1]].sha256;
    assert!(!scene.other.has_blob(sha256));
}

#[tokio::test]
async fn a_tag_that_points_at_a_set_or_an_index_is_refused() {
    let scene = Scene::new();
    let Described { manifest, config, .. } = Described::from_set(&set()).expect("describes");
    scene.stand_in.put_blob(&config);
    let index = br#"{"schemaVersion":2,"manifests":[]}"#.to_vec();
    for bytes in [manifest, index, b"<html>".to_vec()] {
        scene.stand_in.put_manifest(&scene.core.record.query().tag(), &bytes);
        let refused = scene.pull(&Trust::default()).await.expect_err("refused");
        assert_eq!(refused.code(), ExitCode::Verification);
        assert!(refused.one_line().contains("core objects"), "{}", refused.one_line());
        assert_eq!(scene.push(None).await, CorePushed::Other(digest(&bytes)));
        assert!(scene.stand_in.has(&scene.manifest()));
    }
}

#[tokio::test]
async fn where_signatures_are_required_they_count_for_these_objects_alone() {
    let scene = Scene::new();
    let (key, other) = (SecretKey::generate(), SecretKey::generate());
    let trust = Trust::in_keys([key.public()]);
    scene.push(None).await;
    let said = |failure: Failure| failure.one_line();
    assert!(said(scene.pull(&trust).await.expect_err("unsigned")).contains("has no signature"));
    scene.push(Some(&other)).await;
    assert!(said(scene.pull(&trust).await.expect_err("by others")).contains("another key"));
    // A signature of a set by the right key, put in the place of theirs.
    let of_set = Described::from_set(&set()).expect("describes").digest();
    scene.registry.sign(&of_set, &key).await.expect("signs");
    let own = DescribedCore::from_record(&scene.core.record).expect("describes").digest();
    scene.stand_in.copy_manifest(&signature_tag(&of_set), &signature_tag(&own));
    let refused = said(scene.pull(&trust).await.expect_err("of a set"));
    assert!(refused.contains(&format!("it is for {of_set}")), "{refused}");

    scene.stand_in.remove(&format!("manifests/{}", signature_tag(&own)));
    scene.push(Some(&key)).await;
    let pulled = scene.pull(&trust).await.expect("pulls").expect("there");
    let evidence = pulled.pulled.as_ref().expect("pulled");
    assert_eq!(evidence.signatures().len(), 1);
    evidence.core_meets(&pulled.record, &trust).expect("counts in the store, too");
    let denying = trust.denying(BTreeSet::from([own]));
    assert!(said(scene.pull(&denying).await.expect_err("denied")).contains("is denied"));
}

#[tokio::test]
async fn the_artifact_of_another_key_does_not_count_under_this_tag() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    scene.push(Some(&key)).await;
    let mut asked = scene.core.record.query();
    let signed = asked.tag();
    asked.key = "0".repeat(64);
    scene.stand_in.copy_manifest(&signed, &asked.tag());
    let trust = Trust::in_keys([key.public()]);
    let pulled = scene.registry.pull_core(&asked, &trust, &scene.other, &Silent).await;
    let refused = pulled.expect_err("refused");
    assert!(refused.report().contains("its key is"), "{}", refused.report());
}

#[tokio::test]
async fn tags_of_core_objects_are_no_sets() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    scene.push(Some(&key)).await;
    scene.stand_in.requests();
    let found = scene.registry.sets_signed_by(&[key.public()]).await.expect("lists");
    assert!(found.signed.is_empty() && found.others.is_empty(), "{found:?}");
    let asked = scene.stand_in.requests();
    assert_eq!(asked.len(), 1, "nothing but the list is read: {asked:?}");
    assert_eq!(
        parse_core_manifest(&scene.stand_in.get(&scene.manifest()), "a")
            .map(|m| m.config.media_type)
            .ok()
            .as_deref(),
        Some(CORE_CONFIG_TYPE)
    );
}
