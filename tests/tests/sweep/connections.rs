//! https connections: no downgrade to http where the connection alone authenticates a file.

use std::collections::BTreeMap;

use longshore_core::failure::ExitCode;

use crate::scene::{Scene, Source};
use longshore_tests::server::{Fault, Server};

/// Makes a source whose file an https server redirects to http.
fn led_to_http(source: Source) -> (Scene, Server) {
    let mut scene = Scene::new(source);
    let files = scene.files();
    let http = Server::start(files.clone());
    scene.server = longshore_tests::tls::server(files);
    scene.server.always(&scene.path, Fault::Redirect(format!("{}{}", http.url(), scene.path)));
    (scene, http)
}

#[tokio::test]
async fn who_vouches_for_a_file_does_not_lead_to_http() {
    for source in [Source::Checksum, Source::Manifest] {
        let (scene, http) = led_to_http(source);
        let failure = scene.fetch().await.expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Download, "{source:?}: {}", failure.report());
        assert!(http.requests("").is_empty(), "{source:?}: {:?}", http.requests(""));
        scene.assert_nothing(&format!("{source:?}"));
    }
}

#[tokio::test]
async fn what_a_digest_vouches_for_may_come_from_anywhere() {
    let (scene, http) = led_to_http(Source::RunFile);
    scene.fetch().await.unwrap_or_else(|failure| panic!("{}", failure.report()));
    scene.assert_fetched("a .run file");
    assert!(!http.requests("").is_empty());
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_not_asked_twice() {
    let scene = Scene::new(Source::Checksum);
    let stranger = longshore_tests::tls::of_a_stranger(BTreeMap::new());
    let url = format!("{}{}", stranger.url(), scene.path);
    let failure = scene.fetch_pinned_by(&url).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download, "{}", failure.report());
    let remedy = failure.remedy_text().unwrap_or_default();
    assert!(remedy.contains("certificate"), "{}", failure.report());
}
