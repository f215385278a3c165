//! Tests with skopeo and openssl on our pushes and signatures, and with longshore on theirs.
//! (Verifying such signatures is switched off in Debian's skopeo.)

use longshore_tests::module_sets;
use longshore_tests::scene::disk;
use std::fs;
use std::process::{Command, Output};

use longshore::bundle::{self, Contents};
use longshore_modules::signature::key::{PublicKey, SecretKey};
use sha2::{Digest, Sha256};

use super::*;

fn run(arguments: &[&str]) -> Output {
    Command::new("skopeo")
        .args(arguments)
        .output()
        .expect("skopeo runs (scripts/setup installs it)")
}

/// Runs skopeo, which must succeed.
pub(crate) fn skopeo(arguments: &[&str]) -> Vec<u8> {
    let out = run(arguments);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "skopeo {arguments:?}: {errors}");
    out.stdout
}

/// Makes an image layout with an image of no layers.
pub(crate) fn empty_image(dir: &Path) {
    image_of(dir, None);
}

/// Makes an image layout with an image of at most one layer, with its annotation.
fn image_of(dir: &Path, layer: Option<(&str, &str)>) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("dirs");
    let put = |bytes: &str| {
        let hex = longshore_core::digest::hex(&Sha256::digest(bytes));
        fs::write(blobs.join(&hex), bytes).expect("writes");
        format!(r#""digest":"sha256:{hex}","size":{}"#, bytes.len())
    };
    let layer = layer.map_or_else(String::new, |(bytes, annotation)| {
        let described = put(bytes);
        format!(
            r#"{{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json",{described},"annotations":{{{annotation}}}}}"#
        )
    });
    let config =
        put(r#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#);
    let manifest = put(&format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json",{config}}},"layers":[{layer}]}}"#
    ));
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json",{manifest},"annotations":{{"org.opencontainers.image.ref.name":"latest"}}}}]}}"#
    );
    fs::write(dir.join("index.json"), index).expect("writes");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("writes");
}

#[tokio::test]
async fn skopeo_reads_and_copies_what_was_pushed() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let tag = scene.set.key.tag();
    let from = format!("docker://{}/nvidia/modules:{tag}", scene.hub.address);
    let raw = skopeo(&["inspect", "--raw", "--tls-verify=false", &from]);
    assert_eq!(format!("sha256:{}", longshore_core::digest::hex(&Sha256::digest(&raw))), digest);

    let layout = scene.dir.path().join("layout");
    let to = format!("oci:{}:{tag}", layout.display());
    skopeo(&["copy", "--src-tls-verify=false", &from, &to]);
    let listed = longshore_modules::layout::list(&layout).expect("lists");
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].manifest, &listed[0].set), (&digest, &scene.set));

    // And back, from the layout into another repository.
    let to = format!("docker://{}/copied/modules:{tag}", scene.hub.address);
    let from = format!("oci:{}:{tag}", layout.display());
    skopeo(&["copy", "--dest-tls-verify=false", &from, &to]);
    let source = format!("http://{}/copied/modules", scene.hub.address);
    let registry = Registry::open_with(
        hasty(),
        &source.parse().expect("a registry"),
        Path::new("/"),
        &scene.env(),
    )
    .expect("opens");
    registry.pull(&digest, &scene.other, &Silent).await.expect("pulls");
    module_sets::assert_sound(&scene.other);
}

pub(crate) fn openssl(arguments: &[&str]) -> Vec<u8> {
    let out = Command::new("openssl").args(arguments).output().expect("openssl runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "openssl {arguments:?}: {errors}");
    out.stdout
}

#[tokio::test]
async fn openssl_verifies_what_skopeo_finds_under_cosigns_tag() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let key = SecretKey::generate();
    let repository = scene.name().parse().expect("a repository");
    let registry =
        Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    assert!(registry.sign(&digest, &key).await.expect("signs"));
    assert!(!registry.sign(&digest, &key).await.expect("signs again"), "signed twice");

    let copied = scene.dir.path().join("signature");
    let tag = format!("{}.sig", digest.replace(':', "-"));
    let from = format!("docker://{}/nvidia/modules:{tag}", scene.hub.address);
    let to = format!("dir:{}", copied.display());
    skopeo(&["copy", "--src-tls-verify=false", &from, &to]);
    let manifest = fs::read(copied.join("manifest.json")).expect("reads");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let layer = &manifest["layers"][0];
    assert_eq!(layer["mediaType"], "application/vnd.dev.cosign.simplesigning.v1+json");
    let text = |v: &serde_json::Value| v.as_str().expect("text").to_owned();
    let payload = copied.join(text(&layer["digest"]).trim_start_matches("sha256:"));
    let signed = format!(
        r#"{{"critical":{{"identity":{{"docker-reference":"{}/nvidia/modules"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#,
        scene.hub.address
    );
    assert_eq!(fs::read_to_string(&payload).expect("reads"), signed);

    let path = |name: &str| scene.dir.path().join(name).to_str().expect("a path").to_owned();
    fs::write(path("s"), text(&layer["annotations"]["dev.cosignproject.cosign/signature"]))
        .expect("writes");
    fs::write(path("cosign.pub"), key.public_pem().expect("pem")).expect("writes");
    openssl(&["base64", "-d", "-A", "-in", &path("s"), "-out", &path("der")]);
    let payload = payload.to_str().expect("a path");
    openssl(&[
        "dgst",
        "-sha256",
        "-verify",
        &path("cosign.pub"),
        "-signature",
        &path("der"),
        payload,
    ]);
}

#[tokio::test]
async fn we_accept_a_signature_that_others_made() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let path = |name: &str| scene.dir.path().join(name).to_str().expect("a path").to_owned();
    openssl(&["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", &path("key")]);
    openssl(&["ec", "-in", &path("key"), "-pubout", "-out", &path("pub")]);
    let payload = format!(
        r#"{{"critical":{{"identity":{{"docker-reference":"elsewhere.example.com/a"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":{{"by":"x"}}}}"#
    );
    fs::write(path("payload"), &payload).expect("writes");
    openssl(&["dgst", "-sha256", "-sign", &path("key"), "-out", &path("der"), &path("payload")]);
    let signature = openssl(&["base64", "-A", "-in", &path("der")]);
    let signature = String::from_utf8(signature).expect("text");

    let image = scene.dir.path().join("signature");
    let annotation = format!(r#""dev.cosignproject.cosign/signature":"{}""#, signature.trim());
    image_of(&image, Some((&payload, &annotation)));
    let tag = format!("{}.sig", digest.replace(':', "-"));
    let to = format!("docker://{}/nvidia/modules:{tag}", scene.hub.address);
    let from = format!("oci:{}:latest", image.display());
    skopeo(&["copy", "--dest-tls-verify=false", &from, &to]);

    let registry = scene.open(&[]);
    let set = registry.describe(&digest).await.expect("describes");
    let key = PublicKey::read(Path::new(&path("pub"))).expect("reads");
    let keys = [key];
    let evidence = registry.evidence(&set, &trusting(&keys)).await.expect("asks");
    assert!(evidence.verify(&set.set, &[SecretKey::generate().public()]).is_err());
    evidence.verify(&set.set, &keys).expect("accepted");
}

/// Tests that skopeo reads a bundle as an `oci-archive`, and copies a set of it to a registry,
/// where it is the same set.
#[tokio::test]
async fn skopeo_reads_a_bundle_and_copies_it_to_a_registry() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    let out = scene.dir.path().join("bundle.tar");
    let sets = std::slice::from_ref(&scene.set);
    let contents = Contents::collect(sets, &[], Some(&key), &scene.store).expect("contents");
    bundle::write(&contents, &out, disk(), &Silent).expect("written");
    let tag = scene.set.key.tag();
    let (_, digest) = contents.entries().next().expect("a set");
    let from = format!("oci-archive:{}:{tag}", out.display());
    let manifest = skopeo(&["inspect", "--raw", &from]);
    assert_eq!(
        format!("sha256:{}", longshore_core::digest::hex(&Sha256::digest(manifest))),
        digest
    );
    let to = format!("docker://{}/nvidia/modules:{tag}", scene.hub.address);
    skopeo(&["copy", "--dest-tls-verify=false", "--preserve-digests", &from, &to]);
    assert_eq!(scene.pull(digest).await.expect("pulls"), scene.set);
    // And back: skopeo's archive is a bundle to longshore.
    let again = scene.dir.path().join("again.tar");
    let to_file = format!("oci-archive:{}:{tag}", again.display());
    skopeo(&["copy", "--src-tls-verify=false", "--preserve-digests", &to, &to_file]);
    let empty = Store::open(&scene.dir.path().join("empty"), disk()).expect("store");
    let mut file = fs::File::open(&again).expect("opened");
    let imported = bundle::import(&mut file, "again.tar", &empty, &[], &Silent).expect("imported");
    assert_eq!(imported.sets, sets);
    module_sets::assert_sound(&empty);
}
