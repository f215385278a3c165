//! Metrics for the network: by TLS, and to those that the cluster allows.

use std::path::Path;
use std::process::Command;

use http_body_util::BodyExt;
use hyper::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use hyper::{Request, StatusCode};

use super::*;
use crate::serve::token_reviews::tests as reviews;
use longshore_cluster::testing::Api;

/// Makes a certificate of loopback and its key.
pub(in crate::serve) fn certificate(dir: &Path, name: &str) -> TlsFiles {
    let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
    let (subject, mut made) = (format!("/CN={name}"), Command::new("openssl"));
    made.args(["req", "-x509", "-days", "2", "-newkey", "ec", "-nodes", "-subj", &subject])
        .args([
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    let out = made.output().expect("openssl runs: scripts/setup installs it");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    TlsFiles { certificate, key }
}

/// Reads a path as a client that trusts the certificate.
fn read(scene: &Scene, files: &TlsFiles, path: &str) -> Result<String, String> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--cacert"]);
    curl.arg(&files.certificate).arg(format!("https://{}{path}", scene.listen()));
    let out = curl.output().expect("curl runs: scripts/setup installs it");
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

#[test]
fn metrics_by_tls_are_read_by_curl_and_by_nobody_in_clear_text() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = certificate(dir.path(), "first");
    let scene = Scene::new(&ServingConfig { tls: Some(files.clone()), ..on("127.0.0.1:0") });
    let metrics = read(&scene, &files, "/metrics").expect("an answer");
    assert!(metrics.contains("\nlongshore_ready 0\n"), "{metrics}");
    assert!(read(&scene, &files, "/readyz").expect("an answer").contains("only /metrics"));
    let clear = scene.raw(Over::Tcp, METRICS);
    assert!(!clear.contains("HTTP/1.1"), "{clear}");
    // The agent's own socket needs none.
    assert_eq!(scene.ask("/readyz").status, 503);
}

/// As a Secret's volume gets them in time, or never.
#[test]
fn without_its_files_metrics_are_not_served_and_health_is() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let files = certificate(dir.path(), "first");
    fs::remove_file(&files.key).expect("removed");
    let mut scene = Scene::new(&ServingConfig { tls: Some(files), ..on("127.0.0.1:0") });
    let _running = running(&mut scene);
    assert_eq!(scene.ask("/healthz").status, 200);
    assert_eq!(Serving::read(&scene.state()).expect("read").expect("written").listen, None);
}

#[tokio::test]
async fn a_token_without_the_right_gets_403_none_401_and_a_silent_cluster_503() {
    let api = std::sync::Arc::new(Api::by(reviews::answer));
    let silent = std::sync::Arc::new(Api::with([]));
    let dir = tempfile::tempdir().expect("temporary directory");
    let (probe, _responder) = LivenessProbe::new();
    let paths = Paths::below(dir.path());
    let subject = Subject::new(Telemetry::default(), probe, paths, Looker::default());
    let subject = Arc::new(subject);
    for (api, token, status, body) in [
        (&api, "Bearer reader", StatusCode::OK, "longshore_ready 0"),
        (
            &api,
            "Bearer other",
            StatusCode::FORBIDDEN,
            "other may not get the nonResourceURL /metrics",
        ),
        (&api, "Bearer invented", StatusCode::UNAUTHORIZED, "a bearer token"),
        (&api, "", StatusCode::UNAUTHORIZED, "a bearer token"),
        (&silent, "Bearer reader", StatusCode::SERVICE_UNAVAILABLE, "did not review"),
    ] {
        let served = Served::Metrics(Some(reviews::reviews(api)));
        let answers = Answers::new(Arc::clone(&subject), served);
        let request = Request::get("/metrics").header(AUTHORIZATION, token).body(()).expect("one");
        let response = answers.answer(&request).await;
        assert_eq!(response.status(), status, "{token}");
        let asks = response.headers().contains_key(WWW_AUTHENTICATE);
        assert_eq!(asks, status == StatusCode::UNAUTHORIZED);
        let text = response.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains(body), "{text}");
        // Health needs no token on the agent's own socket.
        let socket = Answers::new(Arc::clone(&subject), Served::All);
        let request = Request::get("/metrics").body(()).expect("one");
        assert_eq!(socket.answer(&request).await.status(), StatusCode::OK);
    }
}
