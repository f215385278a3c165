//! Attestations: with the real cosign on ours and with longshore on cosign's, as referrers that the
//! real oras lists, required by the policy in every place of a set, and against registries that fail
//! or lie.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use longshore::bundle::{self, Contents};
use longshore_modules::artifact::{BuildRecord, InputPackage};
use longshore_modules::layout;
use longshore_modules::signature::attestation::Attestation;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::statement::PredicateType;
use longshore_tests::scene::{Ended, disk, finish, longshore};
use serde_json::{Value, json};
use std::process::Command;

use super::cosign::{PASSWORD, must, pushed, run};
use super::other_tools::{empty_image, skopeo};
use super::roles::predicate;
use super::*;

pub(super) const TEST_RESULT: &str = "https://in-toto.io/attestation/test-result/v0.1";

fn kind(text: &str) -> PredicateType {
    text.parse().expect("a type")
}

fn requiring(key: &SecretKey, types: &[&str]) -> Trust {
    trusting(&[key.public()]).requiring(types.iter().map(|text| kind(text)).collect())
}

/// Records the scene's set as compiled into its store.
fn compiled(scene: &Scene) {
    record_compiled(scene, &scene.set);
}

/// Records a set as compiled into the scene's store.
pub(super) fn record_compiled(scene: &Scene, set: &ModuleSet) {
    let record = BuildRecord {
        modules: set.modules.iter().map(|module| module.sha256.clone()).collect(),
        driver: "nvidia-open-kernel-source 535.261.03-1".into(),
        compiler: "gcc-12".into(),
        packages: vec![InputPackage {
            name: "gcc-12".into(),
            version: "12.2.0-14".into(),
            arch: "amd64".into(),
            sha256: "2".repeat(64),
        }],
        core: None,
        longshore: "0.1.0".into(),
        started: "2026-11-20T14:03:05Z".into(),
        finished: "2026-11-20T14:04:11Z".into(),
    };
    scene.store.put_build_record(set, &record).expect("records");
}

/// Writes the key pair as files, and returns their paths.
pub(super) fn files(scene: &Scene, key: &SecretKey) -> (String, String) {
    let path = |name: &str| scene.dir.path().join(name).to_str().expect("a path").to_owned();
    let (secret, public) = (path("cosign.key"), path("cosign.pub"));
    fs::write(&secret, key.to_encrypted_pem(PASSWORD).expect("pem")).expect("writes");
    fs::write(&public, key.public_pem().expect("pem")).expect("writes");
    (secret, public)
}

/// Runs longshore with the scene's store.
pub(super) fn command(scene: &Scene, arguments: &[&str]) -> Ended {
    let mut command = Command::new(longshore());
    let store = scene.dir.path().join("store");
    command.env_clear().env("LONGSHORE_STORE", store).env("COSIGN_PASSWORD", PASSWORD);
    finish(command.args(arguments))
}

pub(super) fn verify_attestation(
    scene: &Scene,
    image: &str,
    key: &str,
    kind: &str,
) -> Option<Value> {
    let options = ["--insecure-ignore-tlog=true", "--allow-http-registry", "--type", kind, image];
    let arguments = [&["verify-attestation", "--key", key][..], &options].concat();
    let out = run("cosign", scene.dir.path(), &arguments);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    out.status
        .success()
        .then(|| serde_json::from_str(text.lines().next().expect("one")).expect("JSON"))
}

/// Returns the statement in an envelope.
pub(super) fn statement(dir: &Path, envelope: &Value) -> Value {
    fs::write(dir.join("payload"), envelope["payload"].as_str().expect("base64")).expect("writes");
    let decoded = other_tools::openssl(&[
        "base64",
        "-d",
        "-A",
        "-in",
        dir.join("payload").to_str().expect("a path"),
    ]);
    serde_json::from_slice(&decoded).expect("a statement")
}

#[tokio::test]
async fn cosign_verifies_what_push_and_attest_state_and_oras_lists_it() {
    let scene = Scene::new();
    compiled(&scene);
    let key = SecretKey::generate();
    let (secret, public) = files(&scene, &key);
    let push =
        ["push", &scene.name(), "--kernel", "6.1.0-50-amd64", "--sign-key", &secret, "--attest"];
    let push = [&push[..], &["--builder-id", "https://example.com/builder"]].concat();
    let said = command(&scene, &push);
    said.assert_done();
    assert!(said.out.contains(" pushed, signed, attested"), "{}", said.out);
    let again = command(&scene, &push);
    assert!(again.out.contains("was signed already, was attested already"), "{}", again.out);

    let found = scene.open(&[]).describe(&scene.set.key.tag()).await.expect("describes");
    let image = format!("{}/nvidia/modules@{}", scene.hub.address, found.digest());
    let verify = |key: &str, kind: &str| verify_attestation(&scene, &image, key, kind);
    let envelope = verify(&public, "slsaprovenance1").expect("cosign accepts the provenance");
    let provenance = statement(scene.dir.path(), &envelope);
    let hex = found.digest().replace("sha256:", "");
    assert_eq!(provenance["subject"][0]["digest"]["sha256"], hex);
    let predicate = &provenance["predicate"];
    assert_eq!(predicate["runDetails"]["builder"]["id"], "https://example.com/builder");
    let inputs = &predicate["buildDefinition"]["resolvedDependencies"];
    assert_eq!(
        (&inputs[1]["name"], &inputs[1]["digest"]["sha256"]),
        (&json!("gcc-12"), &json!("2".repeat(64)))
    );
    verify(&public, "spdxjson").expect("cosign accepts the bill of materials");
    assert!(verify(&public, TEST_RESULT).is_none(), "it has none yet");

    let predicate = scene.dir.path().join("passed.json");
    fs::write(&predicate, r#"{"result": "PASSED", "configuration": []}"#).expect("writes");
    let predicate = predicate.to_str().expect("a path");
    let target = format!("{}@{}", scene.name(), found.digest());
    let attest = ["attest", &target, "--type", "test-result", "--predicate", predicate];
    let attest = [&attest[..], &["--sign-key", &secret]].concat();
    command(&scene, &attest).assert_done();
    assert!(command(&scene, &attest).out.contains("test-result was attested already"));
    verify(&public, TEST_RESULT).expect("cosign accepts the result");
    verify(&public, "slsaprovenance1").expect("and the provenance still");
    let other = scene.dir.path().join("other.pub");
    fs::write(&other, SecretKey::generate().public_pem().expect("pem")).expect("writes");
    assert!(verify(other.to_str().expect("a path"), TEST_RESULT).is_none());

    let listed =
        must("oras", scene.dir.path(), &["discover", "--plain-http", "--format", "json", &image]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let found = listed["manifests"].as_array().or(listed["referrers"].as_array()).expect("a list");
    assert_eq!(found.len(), 1, "{listed}");
    assert_eq!(found[0]["artifactType"], "application/vnd.dev.cosign.artifact.att.v1+json");

    let all =
        ["--attestation", "provenance", "--attestation", "spdx", "--attestation", "test-result"];
    let said = command(&scene, &[&["verify", &target, "--key", &public][..], &all].concat());
    said.assert_done();
    assert!(said.out.contains("provenance attested by "), "{}", said.out);
    let other = ["verify", &target, "--key", &public, "--attestation", "https://example.com/a"];
    command(&scene, &other)
        .assert_failed(13, &["https://example.com/a".into(), "none of its 3".into()]);
}

#[tokio::test]
async fn a_set_of_unknown_origin_is_not_attested_and_nothing_is_pushed() {
    let scene = Scene::new();
    let (secret, _) = files(&scene, &SecretKey::generate());
    let push =
        ["push", &scene.name(), "--kernel", "6.1.0-50-amd64", "--sign-key", &secret, "--attest"];
    command(&scene, &push).assert_failed(2, &["its origin is not known".into()]);
    assert!(scene.hub.is_untouched());
}

#[tokio::test]
async fn a_set_under_a_tag_is_attested_only_where_the_same_key_signed_it() {
    let (scene, digest, _) = pushed().await;
    let key = SecretKey::generate();
    let (secret, _) = files(&scene, &key);
    let predicate = scene.dir.path().join("passed.json");
    fs::write(&predicate, r#"{"result": "PASSED", "configuration": []}"#).expect("writes");
    let predicate = predicate.to_str().expect("a path");
    let attest = |what: &str| {
        let attest = ["attest", what, "--type", "test-result", "--predicate", predicate];
        command(&scene, &[&attest[..], &["--sign-key", &secret]].concat())
    };
    let repository = scene.name().parse().expect("a repository");
    let writing = Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    let tagged = format!("{}:{}", scene.name(), scene.set.key.tag());
    attest(&tagged).assert_failed(13, &["no signature".into(), digest.clone()]);
    writing.sign(&digest, &SecretKey::generate()).await.expect("signs");
    attest(&tagged).assert_failed(13, &["another key".into()]);
    let said = attest(&format!("{}@{digest}", scene.name()));
    said.assert_done();
    assert!(said.out.contains(&format!("@{digest}: test-result attested")), "{}", said.out);
    writing.sign(&digest, &key).await.expect("signs");
    let said = attest(&tagged);
    assert!(said.out.contains(&format!("@{digest}: test-result was attested")), "{}", said.out);
}

#[tokio::test]
async fn we_accept_what_cosign_attests_beside_our_own() {
    let (scene, digest, image) = pushed().await;
    let dir = scene.dir.path();
    must("cosign", dir, &["generate-key-pair"]);
    let key = SecretKey::read(&dir.join("cosign.key"), Some(PASSWORD)).expect("reads");
    let repository = scene.name().parse().expect("a repository");
    let writing = Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    writing.sign(&digest, &key).await.expect("signs");
    let registry = scene.open(&[]);
    let set = registry.describe(&digest).await.expect("describes");
    let trust = requiring(&key, &["test-result", "provenance"]);
    let why = async || {
        let evidence = registry.evidence(&set, &trust).await.expect("asks");
        evidence.meets(&set.set, &trust).map_err(|why| why.to_string())
    };
    assert!(why().await.expect_err("nothing yet").contains("no attestation"));

    let attest = |kind: &str, predicate: &str| {
        fs::write(dir.join("predicate.json"), predicate).expect("writes");
        let quietly = ["--tlog-upload=false", "--allow-http-registry", "--yes", &image];
        let what =
            ["attest", "--key", "cosign.key", "--predicate", "predicate.json", "--type", kind];
        must("cosign", dir, &[&what[..], &quietly].concat());
    };
    attest(TEST_RESULT, r#"{"result": "FAILED"}"#);
    assert!(why().await.expect_err("the tests failed").contains("\"FAILED\""));
    attest(TEST_RESULT, r#"{"result": "PASSED", "configuration": []}"#);
    assert!(why().await.expect_err("no provenance").contains("type provenance"));
    attest("https://slsa.dev/provenance/v1", "{}");
    assert!(why().await.expect_err("states nothing").contains("it is empty"));
    let own = Attestation::make(&key, "a", &digest, &kind("provenance"), predicate("provenance"))
        .expect("attests");
    writing.attest(&set.descriptor(), &[own]).await.expect("attests");
    why().await.expect("both");
    // cosign keeps ours when it adds another.
    attest("https://example.com/a", "{}");
    why().await.expect("both still");
    for kind in [TEST_RESULT, "slsaprovenance1", "https://example.com/a"] {
        assert!(verify_attestation(&scene, &image, "cosign.pub", kind).is_some(), "{kind}");
    }
}

#[tokio::test]
async fn an_attestation_that_oras_attached_counts() {
    let (scene, digest, image) = pushed().await;
    let dir = scene.dir.path();
    let key = SecretKey::generate();
    let repository = scene.name().parse().expect("a repository");
    let writing = Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    writing.sign(&digest, &key).await.expect("signs");
    let own = Attestation::make(&key, "a", &digest, &kind("provenance"), predicate("provenance"))
        .expect("attests");
    // An attestation is stored as the text of its envelope.
    let envelope = serde_json::to_value(&own).expect("JSON");
    fs::write(dir.join("a.json"), envelope.as_str().expect("text")).expect("writes");
    let envelope_type = "application/vnd.dsse.envelope.v1+json";
    let file = format!("a.json:{envelope_type}");
    must("oras", dir, &["attach", "--plain-http", "--artifact-type", envelope_type, &image, &file]);
    let registry = scene.open(&[]);
    let set = registry.describe(&digest).await.expect("describes");
    let trust = requiring(&key, &["provenance"]);
    let evidence = registry.evidence(&set, &trust).await.expect("asks");
    evidence.meets(&set.set, &trust).expect("counts");
    // The list keeps what another tool has put into it.
    let more =
        Attestation::make(&key, "a", &digest, &kind("spdx"), predicate("spdx")).expect("attests");
    writing.attest(&set.descriptor(), &[more]).await.expect("attests");
    let trust = requiring(&key, &["provenance", "spdx"]);
    let evidence = registry.evidence(&set, &trust).await.expect("asks");
    evidence.meets(&set.set, &trust).expect("both");
}

#[tokio::test]
async fn something_else_in_place_of_the_list_of_referrers_is_reported() {
    let (scene, digest, _) = pushed().await;
    let layout = scene.dir.path().join("image");
    empty_image(&layout);
    let to = format!("docker://{}/nvidia/modules:{}", scene.hub.address, digest.replace(':', "-"));
    let from = format!("oci:{}:latest", layout.display());
    skopeo(&["copy", "--dest-tls-verify=false", &from, &to]);
    let key = SecretKey::generate();
    let repository = scene.name().parse().expect("a repository");
    let writing = Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    let set = writing.describe(&digest).await.expect("describes");
    let own =
        Attestation::make(&key, "a", &digest, &kind("spdx"), predicate("spdx")).expect("attests");
    let failure = writing.attest(&set.descriptor(), &[own]).await.expect_err("no list");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains("remove the tag sha256-"), "{}", failure.report());
}

#[tokio::test]
async fn a_layout_and_a_bundle_take_attestations_along() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    let (secret, public) = files(&scene, &key);
    let dir = scene.dir.path().join("layout");
    let wait = Duration::from_secs(60);
    let digest = layout::export(&scene.set, &scene.store, &dir, wait).expect("exports");
    let predicate = scene.dir.path().join("passed.json");
    fs::write(&predicate, r#"{"result": "PASSED", "configuration": []}"#).expect("writes");
    let (target, predicate) = (dir.to_str().expect("a path"), predicate.to_str().expect("a path"));
    let attest = |target: &str| {
        let attest = ["attest", target, "--type", "test-result", "--predicate", predicate];
        command(&scene, &[&attest[..], &["--sign-key", &secret]].concat())
    };
    attest(target).assert_failed(13, &["not given by its digest".into(), "no signature".into()]);
    let other = format!("{target}@sha256:{}", "0".repeat(64));
    attest(&other).assert_failed(12, &["has no sha256:0000".into()]);
    let said = attest(&format!("{target}@{digest}"));
    said.assert_done();
    assert!(said.out.contains(&digest), "{}", said.out);
    let trust = requiring(&key, &["test-result"]);
    let verify = ["verify", target, "--key", &public, "--attestation", "test-result"];
    command(&scene, &verify).assert_failed(13, &["it has no signature".into()]);

    // The set with its evidence, as an agent has it in its store.
    assert!(layout::sign(&dir, &digest, "a", &key, wait, disk()).expect("signs"));
    command(&scene, &verify).assert_done();
    let said = attest(target);
    assert!(said.out.contains("was attested already"), "its own signature suffices: {}", said.out);
    let unsure = layout::evidence(&dir, &digest, &Trust::default()).expect("reads");
    assert!(unsure.attestations().is_empty(), "none is required");
    let evidence = layout::evidence(&dir, &digest, &trust).expect("reads");
    scene.store.put_evidence(&scene.set, &evidence).expect("keeps");
    let out = scene.dir.path().join("bundle.tar");
    let sets = std::slice::from_ref(&scene.set);
    let contents = Contents::collect(sets, &[], None, &scene.store).expect("contents");
    bundle::write(&contents, &out, disk(), &Silent).expect("written");
    let import = |trust: &Trust| {
        let mut file = fs::File::open(&out).expect("opens");
        let trusts = std::slice::from_ref(trust);
        bundle::import(&mut file, "bundle", &scene.other, trusts, &Silent)
    };
    let failure = import(&requiring(&key, &["provenance"])).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains("type provenance"), "{}", failure.report());
    assert!(scene.other.sets().expect("sets").is_empty());
    import(&trust).expect("imports");
    let kept = scene.other.evidence(&scene.set).expect("kept");
    kept.meets(&scene.set, &trust).expect("signed and attested");
}

/// Reaction to a request.
enum Reaction {
    /// It is passed on.
    Forward,
    /// It is answered with this.
    Answer(String),
    /// The connection is closed.
    Cut,
}

/// Forwards connections to `target`, except for requests that `react` takes, by their first line.
fn before(target: String, react: impl Fn(&str) -> Reaction + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let react = Arc::new(react);
    // The threads end with the test's process.
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(&target) else { return };
            let (Ok(mut from), Ok(mut to)) = (far.try_clone(), near.try_clone()) else { return };
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let react = Arc::clone(&react);
            std::thread::spawn(move || pass(near, far, react.as_ref()));
        }
    });
    address
}

/// Passes on requests; each begins in a read of its own, because the client awaits each answer.
fn pass(mut near: TcpStream, mut far: TcpStream, react: &dyn Fn(&str) -> Reaction) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = near.read(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..n]);
        let line = text.lines().next().unwrap_or_default();
        let done = match react(if line.ends_with(" HTTP/1.1") { line } else { "" }) {
            Reaction::Forward => far.write_all(&buffer[..n]),
            Reaction::Answer(answer) => near.write_all(answer.as_bytes()),
            Reaction::Cut => break,
        };
        if done.is_err() {
            break;
        }
    }
    let _ = near.shutdown(Shutdown::Both);
    let _ = far.shutdown(Shutdown::Both);
}

fn answer(body: &str) -> Reaction {
    let (kind, length) = ("application/vnd.oci.image.index.v1+json", body.len());
    Reaction::Answer(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

#[tokio::test]
async fn a_registry_that_fails_before_the_attestations_has_no_set_and_the_next_push_adds_all() {
    let scene = Scene::new();
    compiled(&scene);
    let key = SecretKey::generate();
    let (secret, _) = files(&scene, &key);
    let is_last = |line: &str| line.starts_with("PUT ") && line.contains(".att ");
    let address = before(scene.hub.address.clone(), move |line| match is_last(line) {
        true => Reaction::Cut,
        false => Reaction::Forward,
    });
    let broken = format!("http://{address}/nvidia/modules");
    let push = |to: &str| {
        let push = ["push", to, "--kernel", "6.1.0-50-amd64", "--sign-key", &secret, "--attest"];
        command(&scene, &[&push[..], &["--download-busy", "1s"]].concat())
    };
    let ended = push(&broken);
    assert_eq!(ended.code, Some(12), "{ended}");
    let failure = ended.failure().expect("a failure");
    let message = failure["message"].as_str().expect("text");
    assert!(message.contains(".att failed"), "{ended}");
    let registry = scene.open(&[]);
    let tag = scene.set.key.tag();
    let failure = registry.describe(&tag).await.expect_err("no host finds the set yet");
    assert_eq!(failure.code(), ExitCode::Download, "{}", failure.report());

    push(&scene.name()).assert_done();
    let set = registry.describe(&tag).await.expect("the set is there");
    let trust = requiring(&key, &["provenance", "spdx"]);
    let evidence = registry.evidence(&set, &trust).await.expect("asks");
    evidence.meets(&set.set, &trust).expect("attested");
}

#[tokio::test]
async fn a_registry_with_the_api_of_referrers_gets_no_list_and_is_asked_for_its_own() {
    let scene = Scene::new();
    let asked = Arc::new(Mutex::new(Vec::<String>::new()));
    let index = Arc::new(Mutex::new(json!({"schemaVersion": 2, "manifests": []})));
    let (seen, served) = (Arc::clone(&asked), Arc::clone(&index));
    let address = before(scene.hub.address.clone(), move |line| {
        if !line.is_empty() {
            seen.lock().expect("lock").push(line.to_owned());
        }
        match line.contains("/referrers/sha256:") {
            true => answer(&served.lock().expect("lock").to_string()),
            false => Reaction::Forward,
        }
    });
    let repository = format!("http://{address}/nvidia/modules").parse().expect("a repository");
    let writing = Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    let pushed = writing.push(&scene.set, &scene.set.key.tag(), &scene.store, &Silent).await;
    let digest = pushed.expect("pushes").digest;
    let key = SecretKey::generate();
    writing.sign(&digest, &key).await.expect("signs");
    let set = writing.describe(&digest).await.expect("describes");
    let own =
        Attestation::make(&key, "a", &digest, &kind("spdx"), predicate("spdx")).expect("attests");
    writing.attest(&set.descriptor(), &[own]).await.expect("attests");
    let list = format!("manifests/{} ", digest.replace(':', "-"));
    let lines = asked.lock().expect("lock").clone();
    assert!(lines.iter().any(|line| line.contains(&format!("/referrers/{digest}"))), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains(&list)), "{lines:?}");

    // Referrers are read if the tag does not suffice, whatever the registry lists.
    let trust = requiring(&key, &["provenance"]);
    let gone = format!("sha256:{}", "0".repeat(64));
    let entry = |artifact: &str, digest: &str| {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": artifact, "digest": digest, "size": 1,
        })
    };
    let kinds = "application/vnd.dsse.envelope.v1+json";
    for (listed, refused) in [
        (json!([entry(kinds, &digest), entry(kinds, &gone), entry("text/plain", "x")]), None),
        (json!([entry(kinds, "../../x")]), None),
        (json!("none"), Some("no index")),
        (json!(vec![entry(kinds, &gone); 1001]), Some("more than 1000")),
    ] {
        index.lock().expect("lock")["manifests"] = listed;
        let evidence = writing.evidence(&set, &trust).await;
        match (evidence, refused) {
            (Ok(evidence), None) => assert!(evidence.meets(&set.set, &trust).is_err()),
            (Err(failure), Some(why)) => {
                assert_eq!(failure.code(), ExitCode::Verification);
                assert!(failure.report().contains(why), "{}", failure.report());
            }
            (found, _) => panic!("{refused:?}: {found:?}"),
        }
    }
}
