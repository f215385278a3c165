//! Payloads of signatures that a registry makes large, or says to be small, in a server of the tests' own.

use std::collections::BTreeMap;

use longshore_modules::artifact::image::{Descriptor, digest};
use longshore_modules::signature::image::MAX_PAYLOAD;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::{Signature, SignatureImage, signature_tag};
use longshore_tests::server::Server;
use serde_json::{Value, json};

use super::*;

/// Number of signatures of a set that are read.
const MOST: usize = 64;

/// A registry with one set and these layers as its signatures; the descriptors need not be true.
struct Attacked {
    server: Server,
    key: SecretKey,
    described: Described,
    store: Store,
    _dir: tempfile::TempDir,
}

impl Attacked {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), disk()).expect("store");
        let set = module_sets::put(&store, "6.1.0-50-amd64");
        let described = Described::from_set(&set).expect("describes");
        let server = Server::start(BTreeMap::new());
        server.put(&format!("/v2/a/manifests/{}", described.digest()), described.manifest.clone());
        Self { server, key: SecretKey::generate(), described, store, _dir: dir }
    }

    fn put_blob(&self, bytes: &[u8]) {
        self.server.put(&format!("/v2/a/blobs/{}", digest(bytes)), bytes.to_vec());
    }

    /// Returns a layer of cosign's with a payload of this size, which nobody signed.
    fn layer(&self, number: usize, size: u64) -> Value {
        let mut layer: Value = serde_json::from_slice(&self.good().manifest).expect("JSON");
        let mut layer = layer["layers"][0].take();
        layer["digest"] = format!("sha256:{number:064}").into();
        layer["size"] = size.into();
        layer
    }

    /// Returns the image of a signature by the key.
    fn good(&self) -> SignatureImage {
        let signature = Signature::make(&self.key, "a", &self.described.digest()).expect("signs");
        let image = SignatureImage::with(None, &signature).expect("makes").expect("an image");
        self.put_blob(&image.blobs[1]);
        image
    }

    /// Serves these layers in front of the good one.
    fn serve(&self, layers: Vec<Value>) {
        let mut manifest: Value = serde_json::from_slice(&self.good().manifest).expect("JSON");
        let good = manifest["layers"][0].take();
        manifest["layers"] = layers.into_iter().chain([good]).collect();
        let tag = signature_tag(&self.described.digest());
        let bytes = manifest.to_string().into_bytes();
        self.server.put(&format!("/v2/a/manifests/{tag}"), bytes);
    }

    async fn evidence(&self) -> Result<longshore_modules::signature::Evidence, Failure> {
        let source = format!("{}/a", self.server.url()).parse().expect("a registry");
        let registry =
            Registry::open_with(hasty(), &source, Path::new("/"), &|_| None).expect("opens");
        registry.evidence(&self.described, &trusting(&[self.key.public()])).await
    }
}

#[tokio::test]
async fn large_payloads_are_not_fetched_and_what_is_kept_is_read_again() {
    let attacked = Attacked::new();
    attacked.serve((1..MOST).map(|n| attacked.layer(n, 4 << 20)).collect());
    let evidence = attacked.evidence().await.expect("asks");
    assert_eq!(attacked.server.requests("/blobs/").len(), 1, "the good one alone");
    let trust = trusting(&[attacked.key.public()]);
    evidence.meets(&attacked.described.set, &trust).expect("counts by the good one");
    let set = &attacked.described.set;
    attacked.store.put_evidence(set, &evidence).expect("keeps");
    let kept = attacked.store.evidence(set).expect("is read again");
    kept.meets(set, &trust).expect("counts still");
}

#[tokio::test]
async fn only_large_payloads_are_no_signature_and_the_message_says_why() {
    let attacked = Attacked::new();
    attacked.serve((0..MOST).map(|n| attacked.layer(n, 4 << 20)).collect());
    let evidence = attacked.evidence().await.expect("asks");
    assert!(attacked.server.requests("/blobs/").is_empty());
    let trust = trusting(&[attacked.key.public()]);
    let why = evidence.meets(&attacked.described.set, &trust).expect_err("refused").to_string();
    assert!(why.contains("none of its 64 signatures") && why.contains("64 KiB"), "{why}");
}

#[tokio::test]
async fn a_payload_that_is_longer_than_its_descriptor_is_cut_off() {
    let attacked = Attacked::new();
    let lying = attacked.layer(7, 250);
    let path = format!("/v2/a/blobs/{}", lying["digest"].as_str().expect("text"));
    attacked.server.put(&path, vec![b' '; 4 << 20]);
    attacked.serve(vec![lying]);
    let failure = attacked.evidence().await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains("more than 65536 bytes"), "{}", failure.report());
}

#[tokio::test]
async fn signatures_of_strangers_are_read_and_not_kept() {
    let attacked = Attacked::new();
    // Quotes are escaped in the store's file: this is the largest payload that is accepted.
    let payloads = (1..MOST).map(|n| format!("{n:03}{}", "\"".repeat(MAX_PAYLOAD as usize - 3)));
    let layers = payloads.map(|payload| {
        attacked.put_blob(payload.as_bytes());
        let layer = attacked.layer(0, MAX_PAYLOAD);
        let digest = Descriptor::for_bytes("", payload.as_bytes()).digest;
        json!({"mediaType": layer["mediaType"], "digest": digest, "size": MAX_PAYLOAD,
               "annotations": layer["annotations"]})
    });
    attacked.serve(layers.collect());
    let evidence = attacked.evidence().await.expect("asks");
    assert_eq!(evidence.signatures().len(), MOST);
    let (set, key) = (&attacked.described.set, attacked.key.public());
    attacked.store.put_evidence(set, &evidence).expect("keeps");
    assert_eq!(attacked.store.evidence(set).as_ref(), Some(&evidence), "all of it");
    let kept = evidence.keeping(std::slice::from_ref(&key));
    assert_eq!(kept.signatures().len(), 1);
    kept.meets(set, &trusting(&[key])).expect("counts");
}
