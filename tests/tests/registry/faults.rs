//! Registries with faults in them, and registries that require a login.

use longshore_tests::module_sets;
use std::fs;

use super::*;

fn corrupt(path: &Path) {
    let mut bytes = fs::read(path).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("writes");
}

#[tokio::test]
async fn a_layer_with_another_digest_is_refused() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    corrupt(&scene.hub.blob(&scene.set.modules[1].sha256));
    scene.refuses(&digest, ExitCode::Verification, "not what was promised").await;
}

#[tokio::test]
async fn a_layer_that_is_cut_off_is_refused() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let path = scene.hub.blob(&scene.set.modules[0].sha256);
    fs::write(&path, &fs::read(&path).expect("reads")[..100]).expect("writes");
    scene.refuses(&digest, ExitCode::Verification, "100 bytes").await;
}

#[tokio::test]
async fn a_layer_that_is_gone_is_named() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    fs::remove_file(scene.hub.blob(&scene.set.modules[0].sha256)).expect("removes");
    let sha256 = scene.set.modules[0].sha256.clone();
    scene.refuses(&digest, ExitCode::Download, &sha256).await;
}

#[tokio::test]
async fn a_manifest_with_another_digest_is_refused() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    // Still JSON, so that the registry itself serves it.
    let path = scene.hub.blob(&digest);
    let text = fs::read_to_string(&path).expect("reads");
    fs::write(&path, text.replace("535.261.03", "535.261.04")).expect("writes");
    scene.refuses(&digest, ExitCode::Verification, "has another digest").await;
}

#[tokio::test]
async fn a_manifest_that_the_registry_itself_cannot_read_is_not_to_be_had() {
    let scene = Scene::new();
    let digest = scene.push().await.expect("pushes");
    let path = scene.hub.blob(&digest);
    let text = fs::read(&path).expect("reads");
    fs::write(&path, &text[..text.len() / 2]).expect("writes");
    scene.refuses(&digest, ExitCode::Download, "the registry says 500").await;
}

#[tokio::test]
async fn a_manifest_of_another_kind_is_refused_and_passed_over() {
    let scene = Scene::new();
    let tag = scene.set.key.tag();
    let image = scene.dir.path().join("image");
    other_tools::empty_image(&image);
    let to = format!("docker://{}/nvidia/modules:{tag}", scene.hub.address);
    other_tools::skopeo(&[
        "copy",
        "--dest-tls-verify=false",
        &format!("oci:{}:latest", image.display()),
        &to,
    ]);
    let failure = scene.open(&[]).describe(&tag).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains("another kind"), "{}", failure.report());
    let requested = SetRequest {
        driver: Some("535.261.03"),
        flavour: None,
        kernel_release: "6.1.0-50-amd64",
        arch: "x86_64",
    };
    assert!(find(&scene.open(&[]), requested).await.expect("finds").is_empty());
    // A set replaces it.
    scene.push().await.expect("pushes");
    assert_eq!(find(&scene.open(&[]), requested).await.expect("finds").len(), 1);
}

#[tokio::test]
async fn a_set_without_its_config_hides_no_other() {
    let scene = Scene::new();
    scene.push().await.expect("pushes");
    let mut older = scene.set.clone();
    older.key.driver_version = "535.216.03".into();
    let repository = scene.name().parse().expect("a repository");
    let registry =
        Registry::open_to_push(&repository, Path::new("/"), &scene.env()).expect("opens");
    let tag = older.key.tag();
    let pushed = registry.push(&older, &tag, &scene.store, &Silent).await.expect("pushes");
    let manifest = fs::read(scene.hub.blob(&pushed.digest)).expect("reads");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let config = manifest["config"]["digest"].as_str().expect("a digest");
    fs::remove_file(scene.hub.blob(config)).expect("removes");
    let requested = SetRequest {
        driver: Some("535"),
        flavour: None,
        kernel_release: "6.1.0-50-amd64",
        arch: "x86_64",
    };
    let found = find(&scene.open(&[]), requested).await.expect("finds");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].set, scene.set);
}

#[tokio::test]
async fn who_may_not_is_told_what_to_do() {
    let scene = Scene::with(Hub::start(Some(("user", "geheim"))));
    let failure = scene.push().await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    let report = failure.report();
    assert!(report.contains("401") && report.contains("DOCKER_CONFIG"), "{report}");
}

#[tokio::test]
async fn a_login_lets_in_and_a_wrong_one_does_not() {
    let scene = Scene::with(Hub::start(Some(("user", "geheim"))));
    let docker = scene.dir.path().join("docker");
    fs::create_dir(&docker).expect("dir");
    let login = |auth: &str| {
        let json = format!(r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#, scene.hub.address);
        fs::write(docker.join("config.json"), json).expect("writes");
    };
    // user:falsch and user:geheim
    login("dXNlcjpmYWxzY2g=");
    let failure = scene.push().await.expect_err("refused");
    assert!(failure.report().contains("check the login"), "{}", failure.report());
    assert!(!failure.report().contains("falsch"));
    login("dXNlcjpnZWhlaW0=");
    let digest = scene.push().await.expect("pushes");
    assert_eq!(scene.pull(&digest).await.expect("pulls"), scene.set);
    module_sets::assert_sound(&scene.other);
}
