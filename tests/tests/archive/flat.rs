//! Flat archives: Release and Packages beside each other, without suites and components.

use std::collections::BTreeMap;

use longshore_core::failure::{ExitCode, Failure};
use longshore_core::progress::Silent;
use longshore_debian::archive::{Archive, Requirement};
use longshore_debian::settings::{ArchiveConfig, ArchiveSource};

use super::Scene;
use super::host::{host, open};
use longshore_tests::archive::{self, Suite, digest, gzip};
use longshore_tests::server::{Fault, Server};

/// Returns the text of a flat archive's Release, in the form of NVIDIA's archives.
fn release(suite: &Suite) -> String {
    let index = suite.index();
    let gz = gzip(index.as_bytes());
    let files = [("./Packages", index.as_bytes()), ("./Packages.gz", &gz)];
    let files = files.map(|(name, bytes)| format!(" {} {} {name}\n", digest(bytes), bytes.len()));
    let (origin, date) = (&suite.origin, &suite.date);
    let names = match origin.as_str() {
        "" => String::new(),
        origin => format!("Origin: {origin}\nLabel: {origin} CUDA\n"),
    };
    format!("{names}Date: {date}\nSHA256:\n{}", files.concat())
}

/// Returns the files of a flat archive at `/cuda/`.
fn files(scene: &Scene, suite: &Suite) -> BTreeMap<String, Vec<u8>> {
    let debs = suite.packages.iter().enumerate();
    let debs = debs.map(|(at, (_, deb))| (format!("/cuda{}", suite.pool(at)), deb.clone()));
    let meta = [
        ("/cuda/InRelease".to_owned(), archive::sign(&scene.key, &release(suite))),
        ("/cuda/Packages.gz".to_owned(), gzip(suite.index().as_bytes())),
    ];
    debs.chain(meta).collect()
}

fn suite_of(origin: &str) -> Suite {
    Suite { origin: origin.to_owned(), ..Suite::usual() }
}

async fn open_configured(scene: &Scene, server: &Server, suite: &str) -> Result<Archive, Failure> {
    let source = ArchiveSource {
        url: format!("{}/cuda/", server.url()),
        suites: vec![suite.to_owned()],
        components: Vec::new(),
        keyring: scene.dir.path().join("keyring.asc"),
        max_age: None,
    };
    let config = ArchiveConfig { sources: vec![source], ..scene.config() };
    scene.open_with(&config).await
}

fn line(server: &Server) -> String {
    format!(
        "deb [signed-by=/usr/share/keyrings/test-archive-keyring.asc] {}/cuda/ /\n",
        server.url()
    )
}

#[tokio::test]
async fn a_flat_archive_of_the_configuration_is_read() {
    for suite in ["/", "./"] {
        let scene = Scene::new();
        let server = Server::start(files(&scene, &suite_of("Somebody")));
        let archive = open_configured(&scene, &server, suite).await.expect("opens");
        let packages = archive.closure(&[Requirement::any("tool")]).expect("resolves");
        archive.fetch(&packages, &scene.store, &Silent).await.expect("fetches");
        assert!(packages.iter().all(|package| !package.origin.is_added), "{packages:?}");
        let place = (packages[0].origin.text.as_str(), packages[0].component.as_str());
        assert_eq!(place, (format!("{}/cuda", server.url()).as_str(), "flat"));
        scene.assert_sound();
    }
}

#[tokio::test]
async fn a_flat_archive_without_a_release_is_refused_as_an_unsigned_one() {
    let scene = Scene::new();
    let server = Server::start(files(&scene, &suite_of("Somebody")));
    server.remove("/cuda/InRelease");
    let failure = open_configured(&scene, &server, "/").await.expect_err("refused");
    let said = format!("{}/cuda/ has neither InRelease nor Release", server.url());
    scene.assert_failure(&failure, ExitCode::Verification, &[&said]);
}

#[tokio::test]
async fn an_index_that_is_too_large_is_refused_before_it_is_fetched() {
    let scene = Scene::new();
    let suite = suite_of("Somebody");
    let server = Server::start(files(&scene, &suite));
    let size = format!("{} ./Packages\n", suite.index().len());
    let stated = release(&suite).replace(&size, "3221225472 ./Packages\n");
    server.put("/cuda/InRelease", archive::sign(&scene.key, &stated));
    let failure = open_configured(&scene, &server, "/").await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["has 3072 MiB; at most 1024 MiB"]);
    assert!(server.requests("Packages").is_empty());
}

#[tokio::test]
async fn a_flat_archive_that_another_key_signed_is_refused() {
    let scene = Scene::new();
    let server = Server::start(files(&scene, &suite_of("Somebody")));
    let signed = archive::sign(&archive::key(), &release(&suite_of("Somebody")));
    server.put("/cuda/InRelease", signed);
    let failure = open_configured(&scene, &server, "/").await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["not in the keyring"]);
}

#[tokio::test]
async fn a_flat_source_of_the_host_is_read_where_it_is_the_makers() {
    for (origin, count) in [("NVIDIA", 2), ("Test", 2), ("Somebody", 1), ("", 1)] {
        let scene = Scene::new();
        let mut suite = suite_of(origin);
        suite.packages[0].0 = suite.packages[0].0.replace("2-1", "3-1");
        let flat = Server::start(files(&scene, &suite));
        let lists = [
            ("etc/apt/sources.list", super::host::line(&scene.server, "stable")),
            ("etc/apt/sources.list.d/cuda.list", line(&flat)),
        ];
        host(&scene, &lists);
        let archive = open(&scene, &["non-free"], &[]).await.expect("opens");
        let found: Vec<bool> = archive.packages("tool").iter().map(|p| p.origin.is_added).collect();
        assert_eq!(found, [true, false][2 - count..], "{origin}");
        assert!(archive.unread().is_empty(), "{:?}", archive.unread());
    }
}

/// A host's source that does not answer is retried as any other, and then passed over and named, be it flat or
/// not.
#[tokio::test]
async fn a_source_of_the_host_that_does_not_answer_is_retried_and_named() {
    for path in ["/cuda/InRelease", "/dists/stable-updates/InRelease"] {
        let scene = Scene::new();
        let other = Server::start(files(&scene, &suite_of("NVIDIA")));
        other.always(path, Fault::Status(503));
        let source = match path.starts_with("/cuda") {
            true => line(&other),
            false => super::host::line(&other, "stable-updates"),
        };
        let lists = [
            ("etc/apt/sources.list", super::host::line(&scene.server, "stable")),
            ("etc/apt/sources.list.d/other.list", source),
        ];
        host(&scene, &lists);
        let archive = open(&scene, &[], &[]).await.expect("opens");
        assert_eq!(archive.packages("tool").len(), 1);
        let unread = archive.unread().join("\n");
        assert!(unread.contains(path) && unread.contains("503"), "{unread}");
        assert!(other.requests(path).len() > 1, "{:?}", other.requests(path));
        let absent = archive.closure(&[Requirement::any("absent")]).expect_err("none has it");
        assert!(absent.remedy.contains(path), "{}", absent.remedy);
    }
}

#[tokio::test]
async fn a_flat_source_of_the_host_that_recovers_is_read() {
    let scene = Scene::new();
    let flat = Server::start(files(&scene, &suite_of("NVIDIA")));
    flat.once("/cuda/InRelease", Fault::Status(503));
    let lists = [
        ("etc/apt/sources.list", super::host::line(&scene.server, "stable")),
        ("etc/apt/sources.list.d/cuda.list", line(&flat)),
    ];
    host(&scene, &lists);
    let archive = open(&scene, &[], &[]).await.expect("opens");
    assert!(archive.unread().is_empty(), "{:?}", archive.unread());
}

#[tokio::test]
async fn a_flat_source_of_the_host_without_a_release_is_named_and_asked_once() {
    let scene = Scene::new();
    let flat = Server::start(files(&scene, &suite_of("NVIDIA")));
    flat.remove("/cuda/InRelease");
    let lists = [
        ("etc/apt/sources.list", super::host::line(&scene.server, "stable")),
        ("etc/apt/sources.list.d/cuda.list", line(&flat)),
    ];
    host(&scene, &lists);
    let archive = open(&scene, &[], &[]).await.expect("opens");
    let unread = archive.unread().join("\n");
    assert!(unread.contains("/cuda/ has neither InRelease nor Release"), "{unread}");
    assert_eq!(flat.requests("/cuda/").len(), 2, "{:?}", flat.requests("/cuda/"));
}

/// Answers requests with 404, and returns the headers of the first.
fn first_headers(listener: std::net::TcpListener) -> String {
    use std::io::{Read, Write};
    let mut first = String::new();
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().expect("accepts");
        let mut asked = vec![0; 4096];
        let size = stream.read(&mut asked).expect("reads");
        if first.is_empty() {
            first = String::from_utf8_lossy(&asked[..size]).to_lowercase();
        }
        let _ = stream
            .write_all(b"HTTP/1.1 404 None\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    first
}

#[tokio::test]
async fn a_login_of_the_hosts_apt_is_sent_as_it_is_stated() {
    for (protocol, sent) in [("http://", true), ("", false)] {
        let asked = asked_with(protocol).await;
        let login = "authorization: basic dxnlcjpwyxnzd29yza==";
        assert_eq!(asked.contains(login), sent, "{asked}");
    }
}

/// Reads an archive over http whose login is stated for `protocol`, and returns the request.
async fn asked_with(protocol: &str) -> String {
    let scene = Scene::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let keyring = "signed-by=/usr/share/keyrings/test-archive-keyring.asc";
    let files = [
        ("etc/apt/sources.list", format!("deb [{keyring}] http://{address} stable main\n")),
        (
            "etc/apt/auth.conf.d/90site",
            format!("machine {protocol}{address} login user password password\n"),
        ),
    ];
    host(&scene, &files);
    let asked = std::thread::spawn(move || first_headers(listener));
    let failure = open(&scene, &[], &[]).await.expect_err("it has nothing");
    assert!(!failure.report().contains("password"), "{}", failure.report());
    asked.join().expect("ends")
}
