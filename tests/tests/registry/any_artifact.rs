//! Signatures and attestations of artifacts that are no module sets, and of files: made by longshore, verified by the
//! real cosign, carried by the real oras.

use std::fs;
use std::path::Path;

use longshore_modules::signature::key::SecretKey;

use super::attested::{command, files, statement, verify_attestation};
use super::cosign::{must, run};
use super::*;

/// A layout with an artifact of one file, as oras makes it; returns the artifact's digest.
fn artifact(dir: &Path, layout: &str) -> String {
    fs::write(dir.join("notes.txt"), "no module\n").expect("writes");
    let target = format!("{layout}:1.0.0");
    let kind = ["--artifact-type", "application/vnd.example.notes.v1"];
    must("oras", dir, &[&["push", "--oci-layout", &target][..], &kind, &["notes.txt"]].concat());
    must("oras", dir, &["resolve", "--oci-layout", &target]).trim().to_owned()
}

/// Writes a predicate; returns its path.
fn predicate(dir: &Path) -> String {
    let path = dir.join("predicate.json");
    let mut predicate = super::roles::predicate("provenance");
    predicate["made"] = "here".into();
    fs::write(&path, predicate.to_string()).expect("writes");
    path.to_str().expect("a path").to_owned()
}

fn verifies(dir: &Path, key: &str, image: &str) -> bool {
    let ignoring = ["--insecure-ignore-tlog=true", "--allow-http-registry", image];
    run("cosign", dir, &[&["verify", "--key", key][..], &ignoring].concat()).status.success()
}

#[test]
fn cosign_verifies_an_artifact_that_was_signed_and_attested_in_a_layout() {
    let scene = Scene::new();
    let dir = scene.dir.path();
    let (secret, public) = files(&scene, &SecretKey::generate());
    let digest = artifact(dir, "notes");
    let what = format!("{}@{digest}", dir.join("notes").display());
    let (predicate, name) = (predicate(dir), format!("{}/docs/notes", scene.hub.address));
    let sign = ["sign", &what, "--sign-key", &secret, "--identity", &name];
    let attest = ["attest", &what, "--type", "provenance", "--predicate", &predicate];
    let attest = [&attest[..], &["--sign-key", &secret]].concat();
    for (said, words) in [
        (command(&scene, &sign), ": signed"),
        (command(&scene, &sign), "was signed already"),
        (command(&scene, &attest), "provenance attested"),
        (command(&scene, &attest), "was attested already"),
    ] {
        said.assert_done();
        assert!(said.out.contains(words), "{}", said.out);
    }
    // A second key's signature stands beside the first.
    let other = SecretKey::generate();
    let (second, second_public) = (dir.join("second.key"), dir.join("second.pub"));
    fs::write(&second, other.to_encrypted_pem(super::cosign::PASSWORD).expect("pem"))
        .expect("writes");
    fs::write(&second_public, other.public_pem().expect("pem")).expect("writes");
    let second = second.to_str().expect("a path");
    command(&scene, &["sign", &what, "--sign-key", second]).assert_done();

    let hex = digest.replace(':', "-");
    for tag in ["1.0.0".to_owned(), format!("{hex}.sig"), format!("{hex}.att")] {
        let (from, to) = (format!("notes:{tag}"), format!("{name}:{tag}"));
        must("oras", dir, &["cp", "--from-oci-layout", "--to-plain-http", &from, &to]);
    }
    let image = format!("{name}@{digest}");
    for key in [&*public, second_public.to_str().expect("a path")] {
        assert!(verifies(dir, key, &image), "{key}");
    }
    let envelope = verify_attestation(&scene, &image, &public, "slsaprovenance1");
    let said = statement(dir, &envelope.expect("cosign accepts the provenance"));
    assert_eq!(said["predicate"]["made"], "here");
    assert!(verify_attestation(&scene, &image, &public, "spdxjson").is_none());
}

#[test]
fn an_artifact_in_a_registry_is_signed_and_attested_by_its_digest_alone() {
    let scene = Scene::new();
    let dir = scene.dir.path();
    let (secret, public) = files(&scene, &SecretKey::generate());
    let digest = artifact(dir, "notes");
    let (name, reference) = (format!("{}/docs/notes", scene.hub.address), scene.name());
    let place = reference.replace("nvidia/modules", "docs/notes");
    let to = format!("{name}:1.0.0");
    must("oras", dir, &["cp", "--from-oci-layout", "--to-plain-http", "notes:1.0.0", &to]);
    let by_digest = format!("{place}@{digest}");
    let predicate = predicate(dir);
    let attest = |what: &str| {
        let what = ["attest", what, "--type", "provenance", "--predicate", &predicate];
        command(&scene, &[&what[..], &["--sign-key", &secret]].concat())
    };
    let sign = |what: &str| command(&scene, &["sign", what, "--sign-key", &secret]);

    // A tag is moved by everybody who can write to the registry.
    sign(&format!("{place}:1.0.0")).assert_failed(2, &["by its digest".into()]);
    attest(&format!("{place}:1.0.0")).assert_failed(13, &["not a set of modules".into()]);
    let absent = format!("{place}@sha256:{}", "0".repeat(64));
    sign(&absent).assert_failed(12, &["has no sha256:0000".into()]);
    attest(&absent).assert_failed(12, &["has no sha256:0000".into()]);
    let image = format!("{name}@{digest}");
    assert!(!verifies(dir, &public, &image), "nothing was signed");

    sign(&by_digest).assert_done();
    attest(&by_digest).assert_done();
    assert!(verifies(dir, &public, &image));
    verify_attestation(&scene, &image, &public, "slsaprovenance1").expect("cosign accepts it");
}

#[test]
fn cosign_verifies_a_signed_file() {
    let scene = Scene::new();
    let dir = scene.dir.path();
    let (secret, public) = files(&scene, &SecretKey::generate());
    let file = dir.join("SHA256SUMS");
    fs::write(&file, "0123  file\n").expect("writes");
    let path = file.to_str().expect("a path");
    let said = command(&scene, &["sign", path, "--sign-key", &secret]);
    said.assert_done();
    assert!(said.out.contains("SHA256SUMS.sig: signed"), "{}", said.out);
    let verifies = || {
        let options =
            ["--insecure-ignore-tlog=true", "--signature", "SHA256SUMS.sig", "SHA256SUMS"];
        let words = [&["verify-blob", "--key", &public][..], &options].concat();
        run("cosign", dir, &words).status.success()
    };
    assert!(verifies());
    fs::write(&file, "0124  file\n").expect("writes");
    assert!(!verifies(), "the file is another one now");
    // Neither a file nor a layout nor a reference; a layout without a digest.
    let absent = dir.join("absent");
    let absent = absent.to_str().expect("a path");
    command(&scene, &["sign", absent, "--sign-key", &secret]).assert_failed(2, &[]);
    artifact(dir, "notes");
    let layout = dir.join("notes");
    let layout = layout.to_str().expect("a path");
    command(&scene, &["sign", layout, "--sign-key", &secret])
        .assert_failed(2, &["by its digest".into()]);
}
