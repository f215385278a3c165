//! Tests of a whole archive on loopback, intact and faulty: the accepted metadata and files, the
//! exit code and text of each refusal, and that no unfinished file stays in the store.

mod downloads;
mod flat;
mod host;
mod kernel_sources;
mod kernels;
mod metadata;

use std::path::Path;
use std::time::Duration;

use longshore_core::failure::{ExitCode, Failure};
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package, Requirement};
use longshore_debian::deb;
use longshore_debian::settings::ArchiveConfig;
use longshore_fetch::http::Policy;
use pgp::composed::SignedSecretKey;

use longshore_tests::archive::{self, Suite};
use longshore_tests::scene::disk;
use longshore_tests::server::Server;

const IN_RELEASE: &str = "/dists/stable/InRelease";

/// An archive on a server, and a store to fetch into.
struct Scene {
    dir: tempfile::TempDir,
    key: SignedSecretKey,
    suite: Suite,
    server: Server,
    store: Store,
    policy: Policy,
}

/// Policy with short pauses. The time limit for a silent server suits a machine that is ten times
/// overloaded; the test of that limit shortens it.
fn hasty() -> Policy {
    Policy {
        connect: Duration::from_secs(5),
        stall: Duration::from_secs(20),
        attempts: 3,
        busy: Duration::from_millis(200),
        backoff: Duration::from_millis(1),
        ..Policy::default()
    }
}

impl Scene {
    fn new() -> Self {
        Self::with(Suite::usual())
    }

    fn with(suite: Suite) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let key = archive::key();
        std::fs::write(dir.path().join("keyring.asc"), archive::certificate(&key))
            .expect("keyring");
        let server = Server::start(suite.files(&key));
        let store = Store::open(&dir.path().join("store"), disk()).expect("store");
        Self { dir, key, suite, server, store, policy: hasty() }
    }

    fn config(&self) -> ArchiveConfig {
        let keyring = self.dir.path().join("keyring.asc");
        archive::config(&self.server.url(), &self.suite.name, "main", &keyring)
    }

    async fn open_with(&self, config: &ArchiveConfig) -> Result<Archive, Failure> {
        Archive::open_with(self.policy.clone(), config, Path::new("/"), &self.store, &Silent).await
    }

    async fn open(&self) -> Result<Archive, Failure> {
        self.open_with(&self.config()).await
    }

    async fn tool(&self) -> (Archive, Vec<Package>) {
        let archive = self.open().await.expect("opens");
        let packages = archive.closure(&[Requirement::any("tool")]).expect("resolves");
        (archive, packages)
    }

    /// Opens, resolves and fetches.
    async fn fetch(&self) -> Result<Vec<Package>, Failure> {
        let archive = self.open().await?;
        let packages = archive.closure(&[Requirement::any("tool")])?;
        archive.fetch(&packages, &self.store, &Silent).await?;
        Ok(packages)
    }

    /// Checks that every blob matches the digest in its name, and that nothing is unfinished.
    fn assert_sound(&self) {
        let list = |dir: &str| std::fs::read_dir(self.store.dir(dir)).expect("list");
        for blob in list("blobs/sha256").flatten() {
            let name = blob.file_name().into_string().expect("name");
            self.store.read_blob(&name).expect("verifies");
        }
        assert_eq!(list("tmp").count(), 0, "an unfinished file is left");
    }

    /// Checks that opening, or the fetching after it, fails like this.
    async fn refuses(&self, code: ExitCode, expected: &[&str]) {
        let failure = self.fetch().await.expect_err("refused");
        self.assert_failure(&failure, code, expected);
    }

    fn assert_failure(&self, failure: &Failure, code: ExitCode, expected: &[&str]) {
        let report = failure.report();
        assert_eq!(failure.code(), code, "{report}");
        for part in expected {
            let part = part.replace("URL", &self.server.url());
            assert!(report.contains(&part), "{part:?} is not in:\n{report}");
        }
        assert!(failure.remedy_text().is_some(), "no remedy in:\n{report}");
        self.assert_sound();
    }
}

#[tokio::test]
async fn packages_are_resolved_fetched_and_unpacked() {
    let scene = Scene::new();
    let packages = scene.fetch().await.expect("fetches");
    let names: Vec<_> = packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
    assert_eq!(names, ["tool 2-1", "lib 1-2"]);
    scene.assert_sound();
    let into = scene.dir.path().join("root");
    for package in &packages {
        let blob = scene.store.open_blob(&package.sha256).expect("opens");
        deb::unpack(&package.name, blob, &into, &mut deb::everything).expect("unpacks");
    }
    assert_eq!(std::fs::read(into.join("usr/lib/lib")).expect("reads"), b"2");
    let archive = scene.open().await.expect("opens");
    assert_eq!(archive.packages("lib").len(), 2);
    assert_eq!(archive.packages("lib")[0].version, "1-2");
    assert_eq!(archive.names_matching(&|name| name.starts_with('l')), ["lib"]);
}

#[tokio::test]
async fn what_is_in_the_store_is_not_fetched_again() {
    let scene = Scene::new();
    scene.fetch().await.expect("fetches");
    let before = (scene.server.requests("by-hash").len(), scene.server.requests("/pool").len());
    assert_eq!(before, (1, 2));
    scene.fetch().await.expect("fetches");
    let after = (scene.server.requests("by-hash").len(), scene.server.requests("/pool").len());
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_blob_that_was_changed_is_fetched_again() {
    let scene = Scene::new();
    let packages = scene.fetch().await.expect("fetches");
    for package in &packages {
        std::fs::write(scene.store.blob_path(&package.sha256), "changed").expect("write");
    }
    scene.fetch().await.expect("fetches");
    assert_eq!(scene.server.requests("/pool").len(), 4);
    scene.assert_sound();
}

#[tokio::test]
async fn a_package_signed_for_but_cut_off_is_refused_by_name() {
    let mut suite = Suite::usual();
    let whole = suite.packages[0].1.clone();
    suite.packages[0].1 = whole[..whole.len() / 2].to_vec();
    let scene = Scene::with(suite);
    let packages = scene.fetch().await.expect("it matches the index");
    let blob = scene.store.open_blob(&packages[0].sha256).expect("opens");
    let into = scene.dir.path().join("root");
    let failure = deb::unpack("tool", blob, &into, &mut deb::everything).expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["tool", "cut off"]);
}

#[tokio::test]
async fn a_package_that_climbs_out_is_refused_by_name() {
    for path in ["../evil", "usr/../../evil", "/tmp/longshore-archive-test-evil"] {
        let mut suite = Suite::usual();
        suite.packages[0].1 = archive::deb(&[(path, b"evil")]);
        let scene = Scene::with(suite);
        let packages = scene.fetch().await.expect("it matches the index");
        let blob = scene.store.open_blob(&packages[0].sha256).expect("opens");
        let into = scene.dir.path().join("root");
        let failure = deb::unpack("tool", blob, &into, &mut deb::everything).expect_err("refused");
        scene.assert_failure(&failure, ExitCode::Verification, &["tool", "evil"]);
        assert!(!scene.dir.path().join("evil").exists() && !Path::new(path).exists());
    }
}

#[tokio::test]
async fn what_no_archive_has_is_named_with_who_asks_for_it() {
    let mut suite = Suite::usual();
    suite.packages.truncate(1);
    let scene = Scene::with(suite);
    let expected = ["lib (>= 1)", "tool (2-1) needs it", "[[archive]]"];
    scene.refuses(ExitCode::Download, &expected).await;
}

#[tokio::test]
async fn a_store_that_cannot_be_written_is_named() {
    let scene = Scene::new();
    let (archive, packages) = scene.tool().await;
    let tmp = scene.store.dir("tmp");
    std::fs::remove_dir(&tmp).expect("remove");
    std::fs::write(&tmp, "in the way").expect("write");
    let failure = archive.fetch(&packages, &scene.store, &Silent).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Preflight, "{}", failure.report());
    assert!(failure.report().contains(tmp.to_str().expect("path")), "{}", failure.report());
}
