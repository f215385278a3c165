//! Roles of keys: a statement counts by a key that has its role, and for the builder that it is trusted for.

use std::fs;
use std::process::Command;
use std::time::Duration;

use longshore_modules::layout;
use longshore_modules::signature::key::SecretKey;
pub(super) use longshore_modules::testing::predicate;
use longshore_tests::scene::{Ended, finish, longshore};
use serde_json::{Value, json};

use super::attested::record_compiled;
use super::cosign::PASSWORD;
use super::*;

/// A layout with one set, signed with the key `release`, and the keys of others.
struct Layout {
    scene: Scene,
    digest: String,
}

impl Layout {
    fn new() -> Self {
        let scene = Scene::new();
        record_compiled(&scene, &scene.set);
        let dir = scene.dir.path().join("layout");
        let wait = Duration::from_secs(60);
        let digest = layout::export(&scene.set, &scene.store, &dir, wait).expect("exports");
        let key = SecretKey::generate();
        let made = Self { scene, digest };
        layout::sign(&dir, &made.digest, "a", &key, wait, disk()).expect("signs");
        made.write("release", &key);
        for name in ["ci", "qa"] {
            made.write(name, &SecretKey::generate());
        }
        made
    }

    fn write(&self, name: &str, key: &SecretKey) {
        let pem = key.to_encrypted_pem(PASSWORD).expect("pem");
        fs::write(self.file(&format!("{name}.key")), pem).expect("writes");
        let public = key.public_pem().expect("pem");
        fs::write(self.file(&format!("{name}.pub")), public).expect("writes");
    }

    fn file(&self, name: &str) -> String {
        self.scene.dir.path().join(name).to_str().expect("a path").to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(longshore());
        command.env_clear().env("COSIGN_PASSWORD", PASSWORD).current_dir(self.scene.dir.path());
        finish(command.env("LONGSHORE_STORE", self.file("store")).args(arguments))
    }

    fn attest(&self, by: &str, kind: &str, predicate: &Value) -> Ended {
        let file = self.file("predicate.json");
        fs::write(&file, predicate.to_string()).expect("writes");
        let what = format!("layout@{}", self.digest);
        let key = format!("{by}.key");
        self.run(&["attest", &what, "--type", kind, "--predicate", &file, "--sign-key", &key])
    }

    /// Verifies the set by the key `release`, with these entries of trust.
    fn verify(&self, kind: &str, entries: &[&str]) -> Ended {
        let trust: Vec<_> = entries.iter().flat_map(|entry| ["--trust", *entry]).collect();
        let verify = ["verify", "layout", "--signature-key", "release.pub", "--attestation", kind];
        self.run(&[&verify[..], &trust].concat())
    }
}

#[test]
fn a_test_result_counts_by_a_key_with_that_role_alone() {
    let layout = Layout::new();
    layout.attest("ci", "test-result", &predicate("test-result")).assert_done();
    let said = layout.verify("test-result", &["test-result=ci.pub"]);
    said.assert_done();
    assert!(said.out.contains("test-result attested by"), "{}", said.out);
    let roles = ["provenance+spdx=ci.pub", "test-result=qa.pub"];
    layout
        .verify("test-result", &roles)
        .assert_failed(13, &["has not the role test-result".into()]);
    let of_modules = layout.verify("test-result", &["provenance=ci.pub"]);
    of_modules.assert_failed(2, &["no key has that role".into()]);
    // Without entries, the short form has every role; the statement is by another key.
    layout.verify("test-result", &[]).assert_failed(13, &["another key".into()]);
    layout.attest("release", "test-result", &predicate("test-result")).assert_done();
    layout.verify("test-result", &[]).assert_done();
    layout
        .verify("test-result", &["test-result=qa.pub"])
        .assert_failed(13, &["not the role".into()]);
}

#[test]
fn provenance_counts_for_the_builder_that_its_key_is_trusted_for() {
    let layout = Layout::new();
    layout.attest("ci", "provenance", &predicate("provenance")).assert_done();
    layout.verify("provenance", &["provenance=ci.pub"]).assert_done();
    layout.verify("provenance", &["provenance=ci.pub=https://example.com/builder"]).assert_done();
    let other = layout.verify("provenance", &["provenance=ci.pub=https://example.com/other"]);
    other.assert_failed(
        13,
        &["its builder is \"https://example.com/builder\"".into(), "other alone".into()],
    );
}

#[test]
fn a_predicate_without_the_fields_of_its_type_is_not_signed() {
    let layout = Layout::new();
    let empty = json!({});
    for kind in ["provenance", "spdx", "test-result", "https://example.com/type"] {
        layout.attest("ci", kind, &empty).assert_failed(2, &["it is empty".into()]);
    }
    let foreign = layout.attest("ci", "provenance", &predicate("spdx"));
    foreign.assert_failed(2, &["lacks buildDefinition.buildType".into()]);
}
