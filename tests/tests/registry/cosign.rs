//! Tests with the real cosign on our signatures, with longshore on cosign's, and with the real oras
//! on our pushes.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use longshore_modules::signature::key::{PublicKey, SecretKey};

use super::*;

pub(crate) const PASSWORD: &str = "geheim";

/// Returns a program that scripts/setup has installed beside the other tools, or that is installed.
pub(crate) fn program(name: &str) -> PathBuf {
    let cache = std::env::var_os("LONGSHORE_CACHE").map(PathBuf::from).or_else(|| {
        let own = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        own.or(home).map(|dir| dir.join("longshore"))
    });
    let tool = cache.map(|dir| dir.join("tools/bin").join(name));
    tool.filter(|path| path.exists()).unwrap_or_else(|| name.into())
}

pub(crate) fn run(name: &str, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program(name));
    command.current_dir(dir).args(arguments).env("COSIGN_PASSWORD", PASSWORD).env("HOME", dir);
    command.output().unwrap_or_else(|e| panic!("{name}: {e} (scripts/setup brings it)"))
}

/// Runs it; it must succeed.
pub(crate) fn must(name: &str, dir: &Path, arguments: &[&str]) -> String {
    let out = run(name, dir, arguments);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{name} {arguments:?}: {errors}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Makes a scene with a set in its registry, by digest.
pub(crate) async fn pushed() -> (Scene, String, String) {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let image = format!("{}/nvidia/modules@{digest}", scene.hub.address);
    (scene, digest, image)
}

#[tokio::test]
async fn cosign_verifies_what_we_sign_with_our_key() {
    let (scene, digest, image) = pushed().await;
    let dir = scene.dir.path();
    let key = SecretKey::generate();
    fs::write(dir.join("cosign.pub"), key.public_pem().expect("pem")).expect("writes");
    let other = SecretKey::generate().public_pem().expect("pem");
    fs::write(dir.join("other.pub"), other).expect("writes");
    let verify = |key: &str| {
        let ignoring = ["--insecure-ignore-tlog=true", "--allow-http-registry", &image];
        run("cosign", dir, &[&["verify", "--key", key][..], &ignoring].concat())
    };
    assert!(!verify("cosign.pub").status.success(), "it is not signed yet");
    let repository = scene.name().parse().expect("a repository");
    let registry = Registry::open_to_push(&repository, Path::new("/"), &scene.env());
    registry.expect("opens").sign(&digest, &key).await.expect("signs");
    let verified = verify("cosign.pub");
    let said = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    assert!(said.contains(&digest), "{said}");
    assert!(!verify("other.pub").status.success());
}

#[tokio::test]
async fn we_accept_what_cosign_signs_with_its_key_and_sign_with_that() {
    let (scene, digest, image) = pushed().await;
    let dir = scene.dir.path();
    must("cosign", dir, &["generate-key-pair"]);
    let keys = [PublicKey::read(&dir.join("cosign.pub")).expect("reads")];
    let registry = scene.open(&[]);
    let set = registry.describe(&digest).await.expect("describes");
    let evidence = registry.evidence(&set, &trusting(&keys)).await.expect("asks");
    assert!(evidence.verify(&set.set, &keys).is_err(), "it is not signed yet");
    let quietly = ["--tlog-upload=false", "--allow-http-registry", "--yes", &image];
    must("cosign", dir, &[&["sign", "--key", "cosign.key"][..], &quietly].concat());
    let evidence = registry.evidence(&set, &trusting(&keys)).await.expect("asks");
    evidence.verify(&set.set, &keys).expect("accepted");
    assert!(evidence.verify(&set.set, &[SecretKey::generate().public()]).is_err());

    // longshore signs with cosign's encrypted secret key, too.
    let key = SecretKey::read(&dir.join("cosign.key"), Some(PASSWORD)).expect("reads");
    assert_eq!(
        key.public_pem().expect("pem").trim(),
        fs::read_to_string(dir.join("cosign.pub")).expect("reads").trim()
    );
}

#[tokio::test]
async fn cosign_signs_with_a_key_pair_of_ours() {
    let (scene, digest, image) = pushed().await;
    let dir = scene.dir.path();
    let key = SecretKey::generate();
    let pem = key.to_encrypted_pem(PASSWORD).expect("encrypts");
    fs::write(dir.join("cosign.key"), pem.as_bytes()).expect("writes");
    let quietly = ["--tlog-upload=false", "--allow-http-registry", "--yes", &image];
    must("cosign", dir, &[&["sign", "--key", "cosign.key"][..], &quietly].concat());
    let registry = scene.open(&[]);
    let set = registry.describe(&digest).await.expect("describes");
    let keys = [key.public()];
    let evidence = registry.evidence(&set, &trusting(&keys)).await.expect("asks");
    evidence.verify(&set.set, &keys).expect("accepted");
}

#[tokio::test]
async fn oras_pulls_the_modules_by_their_names_and_copies_the_set() {
    let (scene, digest, image) = pushed().await;
    let dir = scene.dir.path();
    let files = dir.join("files");
    let to = files.to_str().expect("a path");
    must("oras", dir, &["pull", "--plain-http", "--output", to, &image]);
    for module in &scene.set.modules {
        let bytes = fs::read(files.join(&module.file)).expect("a module");
        assert_eq!(longshore_core::digest::digest_of(&bytes[..]).expect("hashes"), module.sha256);
    }
    let copy = format!("{}/copied/modules:{}", scene.hub.address, scene.set.key.tag());
    must("oras", dir, &["copy", "--from-plain-http", "--to-plain-http", &image, &copy]);
    let source = format!("http://{}/copied/modules", scene.hub.address);
    let source = source.parse().expect("a registry");
    let registry =
        Registry::open_with(hasty(), &source, Path::new("/"), &scene.env()).expect("opens");
    let found = registry.describe(&scene.set.key.tag()).await.expect("finds");
    assert_eq!((found.digest(), &found.set), (digest, &scene.set));
}
