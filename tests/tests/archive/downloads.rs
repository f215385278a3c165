//! Downloads over servers and connections that fail.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use longshore_core::failure::ExitCode;
use longshore_core::progress::Silent;
use longshore_debian::archive::Requirement;
use longshore_fetch::http::{Fetcher, Policy};

use super::{IN_RELEASE, Scene};
use longshore_tests::archive;
use longshore_tests::server::{self, Closed, Fault, Server};

#[tokio::test]
async fn an_unreachable_archive_is_named_with_the_systems_answer() {
    let scene = Scene::new();
    let mut config = scene.config();
    let closed = Closed::new();
    config.sources[0].url = closed.url();
    let failure = scene.open_with(&config).await.expect_err("refused");
    let url = format!("{}{IN_RELEASE}", config.sources[0].url);
    scene.assert_failure(&failure, ExitCode::Download, &[&url, "Connection refused"]);
}

#[tokio::test]
async fn a_download_that_is_cut_goes_on_where_it_stopped() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.once(&path, Fault::Cut);
    scene.server.once(&path, Fault::Cut);
    scene.fetch().await.expect("fetches");
    let requests = scene.server.requests(&path);
    assert_eq!(requests.len(), 3, "{requests:?}");
    assert!(requests[1..].iter().all(|request| request.contains("from")), "{requests:?}");
    scene.assert_sound();
}

#[tokio::test]
async fn a_server_without_ranges_begins_anew() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.once(&path, Fault::Cut);
    scene.server.once(&path, Fault::NoRange);
    scene.fetch().await.expect("fetches");
    assert_eq!(scene.server.requests(&path).len(), 2);
    scene.assert_sound();
}

#[tokio::test]
async fn pieces_of_different_files_are_told_apart() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    let good = scene.server.remove(&path);
    let mut other = good.clone();
    other[100] ^= 1;
    scene.server.put(&path, good);
    // Half of another version first; then the rest of the right one does not fit, and the third
    // attempt begins from the start.
    scene.server.once(&path, Fault::Unmeasured(other[..other.len() / 2].to_vec()));
    scene.fetch().await.expect("fetches");
    assert_eq!(scene.server.requests(&path).len(), 3);
    scene.assert_sound();
}

/// Without a digest, nothing later would tell them apart.
#[tokio::test]
async fn pieces_of_a_file_without_digest_are_of_one_version() {
    let (old, new) = (vec![b'o'; 1000], vec![b'n'; 1000]);
    let cases = [
        ("unchanged", &new, Fault::Tagged, 2),
        ("changed", &old, Fault::Tagged, 2),
        ("changed, and If-Range ignored", &old, Fault::NoIfRange, 3),
    ];
    for (case, first, then, requests) in cases {
        let server = Server::start(BTreeMap::from([("/file".to_owned(), new.clone())]));
        server.once("/file", Fault::CutEarlier(first.clone()));
        server.once("/file", then);
        let policy = Policy { backoff: Duration::from_millis(1), ..Policy::default() };
        let fetcher = Fetcher::new(policy, Path::new("/")).expect("a fetcher");
        let fetched = fetcher.bytes(&format!("{}/file", server.url()), 2000).await;
        assert!(fetched.expect("fetches") == new, "{case}: not the new file alone");
        let rest = format!("/file from 500 of {}", server::etag(first));
        let expected = ["/file", &rest, "/file"].map(str::to_owned);
        assert_eq!(server.requests("/file"), expected[..requests], "{case}");
    }
}

#[tokio::test]
async fn a_download_that_is_cut_again_and_again_fails() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.always(&path, Fault::Cut);
    scene.refuses(ExitCode::Download, &[&format!("URL{path}")]).await;
    assert_eq!(scene.server.requests(&path).len(), 3);
}

#[tokio::test]
async fn a_download_that_stalls_fails_in_time() {
    let mut scene = Scene::new();
    (scene.policy.stall, scene.policy.attempts) = (Duration::from_secs(2), 2);
    let path = scene.suite.pool(0);
    scene.server.always(&path, Fault::Stall);
    let begun = std::time::Instant::now();
    scene.refuses(ExitCode::Download, &[&format!("URL{path}"), "no data for 2s"]).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_again() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.once(&path, Fault::Status(503));
    scene.server.once(IN_RELEASE, Fault::Status(500));
    scene.server.once(IN_RELEASE, Fault::Cut);
    scene.fetch().await.expect("fetches");
    scene.server.always(IN_RELEASE, Fault::Status(503));
    scene.refuses(ExitCode::Download, &["URL/dists/stable/InRelease", "503"]).await;
    scene.server.always(IN_RELEASE, Fault::Status(403));
    scene.refuses(ExitCode::Download, &["URL/dists/stable/InRelease", "403"]).await;
}

#[tokio::test]
async fn a_package_that_is_gone_is_named() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.remove(&path);
    scene.refuses(ExitCode::Download, &[&format!("URL{path}"), "404"]).await;
    assert_eq!(scene.server.requests(&path).len(), 1, "it is not asked for again");
}

#[tokio::test]
async fn a_package_with_other_content_is_refused() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    let mut other = scene.server.remove(&path);
    other[1000] ^= 1;
    scene.server.put(&path, other);
    scene.refuses(ExitCode::Verification, &[&format!("URL{path}"), "sha256"]).await;
}

#[tokio::test]
async fn a_package_of_another_size_is_refused() {
    for longer in [false, true] {
        let scene = Scene::new();
        let path = scene.suite.pool(0);
        let good = scene.server.remove(&path);
        let other = if longer { [good, b"more".to_vec()].concat() } else { good[..1000].to_vec() };
        scene.server.always(&path, Fault::Other(other));
        scene.refuses(ExitCode::Verification, &[&format!("URL{path}"), "bytes"]).await;
    }
}

#[tokio::test]
async fn a_package_without_end_is_refused_before_it_fills_the_disk() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.always(&path, Fault::Unmeasured(archive::noise(5_000_000)));
    scene.refuses(ExitCode::Verification, &[&format!("URL{path}"), "more than"]).await;
}

#[tokio::test]
async fn redirects_are_followed_but_not_for_ever() {
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    let moved = scene.server.remove(&path);
    scene.server.put("/elsewhere", moved);
    scene.server.always(&path, Fault::Redirect("/elsewhere".to_owned()));
    scene.fetch().await.expect("fetches");
    scene.server.always(IN_RELEASE, Fault::Redirect(IN_RELEASE.to_owned()));
    scene.refuses(ExitCode::Download, &["URL/dists/stable/InRelease", "redirect"]).await;
}

#[tokio::test]
async fn an_archive_may_be_a_directory() {
    let scene = Scene::new();
    let mirror = scene.dir.path().join("a mirror");
    for (path, bytes) in scene.suite.files(&scene.key) {
        let path = mirror.join(&path[1..]);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("dir");
        std::fs::write(path, bytes).expect("write");
    }
    let mut config = scene.config();
    config.sources[0].url = format!("file://{}", mirror.display());
    let archive = scene.open_with(&config).await.expect("opens");
    let packages = archive.closure(&[Requirement::any("tool")]).expect("resolves");
    let deb = mirror.join(&scene.suite.pool(0)[1..]);
    let good = std::fs::read(&deb).expect("reads");
    std::fs::write(&deb, &good[..1000]).expect("write");
    let failure = archive.fetch(&packages, &scene.store, &Silent).await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["stable-0.deb", "1000 bytes"]);
    std::fs::remove_file(&deb).expect("remove");
    let failure = archive.fetch(&packages, &scene.store, &Silent).await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Download, &["stable-0.deb", "No such file"]);
    std::fs::write(&deb, good).expect("write");
    archive.fetch(&packages, &scene.store, &Silent).await.expect("fetches");
}
