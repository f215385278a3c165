//! A whole archive on loopback, in order and out of it: what is accepted, what is refused with
//! which exit code and words, and that nothing half done stays in the store.

mod host;
mod mini;
mod server;

use std::path::Path;
use std::time::Duration;

use longshore::config::{ArchiveConfig, ArchiveSource};
use longshore::progress::Silent;
use longshore::source::archive::{Archive, Package, Requirement};
use longshore::source::deb;
use longshore::source::http::Policy;
use longshore::store::Store;
use longshore::{ExitCode, Failure};
use pgp::composed::SignedSecretKey;

use mini::Suite;
use server::{Fault, Server};

const IN_RELEASE: &str = "/dists/stable/InRelease";

/// An archive on a server, and a store to fetch into.
struct Scene {
    dir: tempfile::TempDir,
    key: SignedSecretKey,
    suite: Suite,
    server: Server,
    store: Store,
}

/// Waits as short as a loaded test machine allows.
fn hasty() -> Policy {
    Policy {
        connect: Duration::from_secs(5),
        stall: Duration::from_millis(500),
        attempts: 3,
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
        let key = mini::key();
        std::fs::write(dir.path().join("keyring.asc"), mini::certificate(&key)).expect("keyring");
        let server = Server::start(suite.files(&key));
        let store = Store::open(&dir.path().join("store")).expect("store");
        Self { dir, key, suite, server, store }
    }

    fn config(&self) -> ArchiveConfig {
        ArchiveConfig {
            sources: vec![ArchiveSource {
                url: self.server.url(),
                suites: vec![self.suite.name.clone()],
                components: vec!["main".to_owned()],
                keyring: self.dir.path().join("keyring.asc"),
            }],
            use_host_apt: false,
            host_components: Vec::new(),
            host_suites: Vec::new(),
            frozen: false,
        }
    }

    async fn open_with(&self, config: &ArchiveConfig) -> Result<Archive, Failure> {
        Archive::open_with(hasty(), config, Path::new("/"), &self.store, &Silent).await
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

    /// Every blob is what its name says, and nothing is half done.
    fn assert_sound(&self) {
        let list = |dir: &str| std::fs::read_dir(self.store.dir(dir)).expect("list");
        for blob in list("blobs/sha256").flatten() {
            let name = blob.file_name().into_string().expect("name");
            self.store.read_blob(&name).expect("verifies");
        }
        assert_eq!(list("tmp").count(), 0, "something half done is left");
    }

    /// The opening, or the fetching after it, fails like this.
    async fn refuses(&self, code: ExitCode, words: &[&str]) {
        let failure = self.fetch().await.expect_err("refused");
        self.assert_failure(&failure, code, words);
    }

    fn assert_failure(&self, failure: &Failure, code: ExitCode, words: &[&str]) {
        let report = failure.report();
        assert_eq!(failure.code(), code, "{report}");
        for word in words {
            let word = word.replace("URL", &self.server.url());
            assert!(report.contains(&word), "{word:?} is not in:\n{report}");
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
async fn an_unreachable_archive_is_named_with_the_systems_answer() {
    let scene = Scene::new();
    let mut config = scene.config();
    // Bound and closed again: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr();
    config.sources[0].url = format!("http://{}", free.expect("address"));
    let failure = scene.open_with(&config).await.expect_err("refused");
    let url = format!("{}{IN_RELEASE}", config.sources[0].url);
    scene.assert_failure(&failure, ExitCode::Download, &[&url, "Connection refused"]);
}

#[tokio::test]
async fn garbage_for_metadata_is_refused() {
    let scene = Scene::new();
    scene.server.always(IN_RELEASE, Fault::Other(b"<html>log in first</html>".to_vec()));
    scene.refuses(ExitCode::Verification, &["URL/dists/stable/InRelease", "PGP"]).await;
}

#[tokio::test]
async fn metadata_that_was_changed_is_refused() {
    let scene = Scene::new();
    let signed = String::from_utf8(scene.server.remove(IN_RELEASE)).expect("text");
    scene.server.put(IN_RELEASE, signed.replace("Origin: Test", "Origin: Evil").into_bytes());
    scene.refuses(ExitCode::Verification, &["URL/dists/stable/InRelease", "does not match"]).await;
}

#[tokio::test]
async fn text_beside_the_signed_text_is_refused() {
    let scene = Scene::new();
    let signed = scene.server.remove(IN_RELEASE);
    scene.server.put(IN_RELEASE, [signed, b"Origin: Evil\n".to_vec()].concat());
    scene.refuses(ExitCode::Verification, &["URL/dists/stable/InRelease", "follows"]).await;
}

#[tokio::test]
async fn metadata_signed_by_an_unknown_key_is_refused() {
    let scene = Scene::new();
    scene.server.put(IN_RELEASE, mini::sign(&mini::key(), &scene.suite.release()));
    let words = ["URL/dists/stable/InRelease", "not in the keyring"];
    scene.refuses(ExitCode::Verification, &words).await;
}

#[tokio::test]
async fn unsigned_metadata_is_refused() {
    let scene = Scene::new();
    scene.server.remove(IN_RELEASE);
    scene.server.put("/dists/stable/Release", scene.suite.release().into_bytes());
    let words = ["URL/dists/stable/Release", "no OpenPGP signature"];
    scene.refuses(ExitCode::Verification, &words).await;
}

#[tokio::test]
async fn a_signature_apart_will_do() {
    let scene = Scene::new();
    scene.server.remove(IN_RELEASE);
    let release = scene.suite.release();
    let signature = mini::sign_apart(&scene.key, &release);
    scene.server.put("/dists/stable/Release", release.into_bytes());
    scene.server.put("/dists/stable/Release.gpg", signature);
    scene.fetch().await.expect("fetches");
    let other = mini::sign_apart(&mini::key(), &scene.suite.release());
    scene.server.put("/dists/stable/Release.gpg", other);
    scene.refuses(ExitCode::Verification, &["URL/dists/stable/Release.gpg"]).await;
}

#[tokio::test]
async fn old_metadata_is_refused_unless_the_archive_is_frozen() {
    let mut suite = Suite::usual();
    suite.more.push_str("Valid-Until: Sat, 18 Jul 2020 10:16:37 UTC\n");
    let scene = Scene::with(suite);
    let words = ["URL/dists/stable/InRelease", "2020-07-18", "frozen"];
    scene.refuses(ExitCode::Verification, &words).await;
    let frozen = ArchiveConfig { frozen: true, ..scene.config() };
    scene.open_with(&frozen).await.expect("opens");
}

#[tokio::test]
async fn another_suites_metadata_is_refused() {
    let scene = Scene::new();
    let other = Suite { name: "oldstable".to_owned(), ..Suite::usual() };
    scene.server.put(IN_RELEASE, mini::sign(&scene.key, &other.release()));
    scene.refuses(ExitCode::Verification, &["URL/dists/stable/InRelease", "oldstable"]).await;
}

#[tokio::test]
async fn a_suite_that_is_not_there_is_named() {
    let scene = Scene::new();
    let mut config = scene.config();
    config.sources[0].suites = vec!["gone".to_owned()];
    let failure = scene.open_with(&config).await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Download, &["URL/dists/gone/Release", "404"]);
}

#[tokio::test]
async fn a_component_that_is_not_there_is_named_with_those_that_are() {
    let scene = Scene::new();
    let mut config = scene.config();
    config.sources[0].components = vec!["non-free".to_owned()];
    let failure = scene.open_with(&config).await.expect_err("refused");
    let words = ["URL/dists/stable", "non-free", "main"];
    scene.assert_failure(&failure, ExitCode::Download, &words);
}

#[tokio::test]
async fn an_index_with_another_digest_is_refused() {
    let scene = Scene::new();
    let path = scene.suite.by_hash();
    let mut index = scene.server.remove(&path);
    index[20] ^= 1;
    scene.server.put(&path, index);
    scene.refuses(ExitCode::Verification, &[&format!("URL{path}"), "sha256"]).await;
}

#[tokio::test]
async fn an_index_that_is_not_kept_by_digest_is_found_by_name() {
    let scene = Scene::new();
    scene.server.remove(&scene.suite.by_hash());
    scene.fetch().await.expect("fetches");
    assert_eq!(scene.server.requests(&scene.suite.index_path()).len(), 1);
}

#[tokio::test]
async fn an_index_that_unpacks_to_more_than_promised_is_refused() {
    let scene = Scene::new();
    let index = scene.suite.index().len();
    let release = scene.suite.release().replace(&format!(" {index} "), " 100 ");
    scene.server.put(IN_RELEASE, mini::sign(&scene.key, &release));
    scene.refuses(ExitCode::Verification, &["URL", "Packages.gz", "longer"]).await;
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
    // attempt begins anew.
    scene.server.once(&path, Fault::Unmeasured(other[..other.len() / 2].to_vec()));
    scene.fetch().await.expect("fetches");
    assert_eq!(scene.server.requests(&path).len(), 3);
    scene.assert_sound();
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
    let scene = Scene::new();
    let path = scene.suite.pool(0);
    scene.server.always(&path, Fault::Stall);
    let begun = std::time::Instant::now();
    scene.refuses(ExitCode::Download, &[&format!("URL{path}"), "no data for 500ms"]).await;
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
    scene.server.always(&path, Fault::Unmeasured(mini::noise(5_000_000)));
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
async fn a_package_signed_for_but_cut_off_is_refused_by_name() {
    let mut suite = Suite::usual();
    let whole = suite.packages[0].1.clone();
    suite.packages[0].1 = whole[..whole.len() / 2].to_vec();
    let scene = Scene::with(suite);
    let packages = scene.fetch().await.expect("it is what the index says");
    let blob = scene.store.open_blob(&packages[0].sha256).expect("opens");
    let into = scene.dir.path().join("root");
    let failure = deb::unpack("tool", blob, &into, &mut deb::everything).expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["tool", "cut off"]);
}

#[tokio::test]
async fn a_package_that_climbs_out_is_refused_by_name() {
    for path in ["../evil", "usr/../../evil", "/tmp/longshore-archive-test-evil"] {
        let mut suite = Suite::usual();
        suite.packages[0].1 = mini::deb(&[(path, b"evil")]);
        let scene = Scene::with(suite);
        let packages = scene.fetch().await.expect("it is what the index says");
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
    let words = ["lib (>= 1)", "tool (2-1) asks for it", "archives.sources"];
    scene.refuses(ExitCode::Download, &words).await;
}

#[tokio::test]
async fn a_keyring_that_cannot_be_used_is_a_mistake_of_the_configuration() {
    let scene = Scene::new();
    let keyring = scene.dir.path().join("keyring.asc");
    std::fs::write(&keyring, "no key").expect("write");
    let words = [keyring.to_str().expect("path"), "no OpenPGP certificate"];
    scene.refuses(ExitCode::Usage, &words).await;
    std::fs::remove_file(&keyring).expect("remove");
    scene.refuses(ExitCode::Usage, &[words[0], "No such file"]).await;
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
