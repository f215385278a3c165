//! Tests of a .run file from servers with faults: the results, and that the store never has
//! anything but the whole driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longshore_build::BuildUser;
use longshore_build::extract::Workshop;
use longshore_core::digest::hex;
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_fetch::http::{Fetcher, Policy};
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::runfile::{self, Foreign, Looked, StoredRunFile};
use longshore_sources::runfile::{Pin, RunFileSource};
use longshore_sources::testing::without_registries;
use sha2::{Digest, Sha256};

use longshore_tests::run_file::{PATH, files, run_file};
use longshore_tests::scene::disk;
use longshore_tests::server::{Fault, Server};

struct Scene {
    server: Server,
    dir: tempfile::TempDir,
    store: Store,
    fetcher: Fetcher,
    source: RunFileSource,
}

impl Scene {
    fn new() -> Self {
        let bytes = run_file();
        let pin = Pin::Sha256(hex(&Sha256::digest(&bytes)));
        let server = Server::start(BTreeMap::from([(PATH.to_owned(), bytes)]));
        let source = RunFileSource { urls: vec![format!("{}{PATH}", server.url())], pin };
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), disk()).expect("store");
        let policy = Policy {
            stall: Duration::from_millis(500),
            attempts: 3,
            busy: Duration::from_millis(200),
            backoff: Duration::from_millis(1),
            ..Policy::default()
        };
        let fetcher = Fetcher::new(policy, Path::new("/")).expect("fetcher");
        Self { server, dir, store, fetcher, source }
    }

    async fn look(&self) -> AvailableRunFile {
        match runfile::look(&self.source, without_registries(&self.fetcher), &self.store)
            .await
            .expect("looked")
        {
            Looked::Known(file) => file,
            Looked::Foreign(file) => panic!("{} is of a known form", file.name),
        }
    }

    /// Reads the file's header from the intact server, and fetches after `change`.
    async fn fetch_after(&self, change: impl FnOnce(&Server)) -> Result<StoredRunFile, Failure> {
        let found = self.look().await;
        change(&self.server);
        runfile::fetch(&found, without_registries(&self.fetcher), &self.store, &Silent).await
    }

    fn count(&self, dir: &str) -> usize {
        fs::read_dir(self.store.dir(dir)).expect("listed").count()
    }

    fn assert_whole(&self, fetched: Result<StoredRunFile, Failure>) {
        let stored = fetched.unwrap_or_else(|failure| panic!("{}", failure.report()));
        stored.verify().expect("as it was written");
        let built = self.dir.path().join("build");
        fs::create_dir(&built).expect("made");
        let sources = stored.copy_sources(longshore_core::flavour::Flavour::Open, &built);
        assert!(sources.expect("copied").join("noise").is_file());
        assert_eq!(
            [self.count("drivers"), self.count("tmp"), self.count("blobs/sha256")],
            [1, 0, 0]
        );
    }

    fn assert_refused(&self, fetched: Result<StoredRunFile, Failure>, code: ExitCode, said: &str) {
        let failure = fetched.expect_err("refused");
        assert_eq!(failure.code(), code, "{}", failure.report());
        assert!(failure.report().contains(said), "{}", failure.report());
        assert!(failure.remedy_text().is_some(), "{}", failure.report());
        assert_eq!(
            [self.count("drivers"), self.count("tmp"), self.count("blobs/sha256")],
            [0, 0, 0]
        );
    }
}

/// Makes a file with the program makeself, which scripts/setup installs.
fn made_by_makeself(dir: &Path, compression: &str) -> Vec<u8> {
    let (tree, out) = (dir.join("NVIDIA-Linux-x86_64-535.1.2"), dir.join("out.run"));
    for (path, bytes) in files() {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    let made = Command::new("makeself")
        .args(["--quiet", compression, "--notemp"])
        .args([&tree, &out])
        .args(["NVIDIA Accelerated Graphics Driver for Linux-x86_64 535.1.2", "./nvidia-installer"])
        .output()
        .expect("makeself runs: scripts/setup installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read(out).expect("read")
}

#[tokio::test]
async fn what_makeself_makes_is_read() {
    for compression in ["--gzip", "--xz", "--zstd", "--nocomp"] {
        let mut scene = Scene::new();
        let bytes = made_by_makeself(scene.dir.path(), compression);
        scene.source.pin = Pin::Sha256(hex(&Sha256::digest(&bytes)));
        scene.server.put(PATH, bytes);
        let fetched = scene.fetch_after(|_| {}).await;
        assert_eq!(
            fetched.as_ref().map(|f| f.written.version.as_str()).ok(),
            Some("535.1.2"),
            "{compression}"
        );
        scene.assert_whole(fetched);
    }
}

#[tokio::test]
async fn a_cut_connection_is_gone_on_with() {
    let scene = Scene::new();
    let fetched = scene.fetch_after(|server| server.once(PATH, Fault::Cut)).await;
    scene.assert_whole(fetched);
    assert!(scene.server.requests(PATH).iter().any(|r| r.contains("from")), "resumed");
}

#[tokio::test]
async fn a_server_without_ranges_is_asked_for_the_whole_again() {
    let scene = Scene::new();
    let fetched = scene.fetch_after(|server| {
        server.once(PATH, Fault::Cut);
        server.once(PATH, Fault::NoRange);
    });
    scene.assert_whole(fetched.await);
}

#[tokio::test]
async fn a_server_that_stalls_or_is_busy_is_asked_again() {
    let scene = Scene::new();
    let fetched = scene.fetch_after(|server| {
        server.once(PATH, Fault::Status(503));
        server.once(PATH, Fault::Stall);
    });
    scene.assert_whole(fetched.await);
}

#[tokio::test]
async fn a_file_that_is_gone_says_so() {
    let scene = Scene::new();
    let fetched = scene.fetch_after(|server| drop(server.remove(PATH))).await;
    scene.assert_refused(fetched, ExitCode::Download, "404");
}

#[tokio::test]
async fn a_server_that_always_fails_is_given_up() {
    let scene = Scene::new();
    let fetched = scene.fetch_after(|server| server.always(PATH, Fault::Status(500))).await;
    scene.assert_refused(fetched, ExitCode::Download, "500");
}

#[tokio::test]
async fn who_answers_with_a_page_is_not_believed() {
    let scene = Scene::new();
    let page = b"<html>log in first</html>".to_vec();
    let fetched = scene.fetch_after(|server| server.always(PATH, Fault::Other(page))).await;
    scene.assert_refused(fetched, ExitCode::Verification, "digest differs");
}

#[tokio::test]
async fn one_changed_byte_at_the_end_is_found() {
    let scene = Scene::new();
    let mut bytes = run_file();
    bytes.push(b'x');
    let fetched = scene.fetch_after(|server| server.put(PATH, bytes)).await;
    scene.assert_refused(fetched, ExitCode::Verification, "digest differs");
}

#[tokio::test]
async fn a_redirect_loop_ends() {
    let scene = Scene::new();
    let to = Fault::Redirect(PATH.to_owned());
    let fetched = scene.fetch_after(|server| server.always(PATH, to)).await;
    scene.assert_refused(fetched, ExitCode::Download, "redirect");
}

#[tokio::test]
async fn a_fetch_that_is_given_up_leaves_nothing() {
    let scene = Scene::new();
    let found = scene.look().await;
    scene.server.always(PATH, Fault::Stall);
    let fetch = runfile::fetch(&found, without_registries(&scene.fetcher), &scene.store, &Silent);
    tokio::time::timeout(Duration::from_millis(200), fetch).await.expect_err("it stalls");
    // The thread that unpacks ends once it receives nothing more; the next one may not begin
    // before.
    let gone = async {
        while scene.count("tmp") > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("nothing is left");
    assert_eq!(scene.count("drivers"), 0);
}

const HELPER: &str = env!("CARGO_BIN_EXE_sandbox-stages");

/// Changes makeself's own header so that only a shell can find the payload.
fn of_unknown_form(dir: &Path) -> Vec<u8> {
    let bytes = made_by_makeself(dir, "--gzip");
    let at = |text: &str| {
        let found = bytes.windows(text.len()).position(|w| w == text.as_bytes());
        found.unwrap_or_else(|| panic!("makeself writes {text}"))
    };
    let begin = at("skip=\"");
    let digits = bytes[begin + 6..].iter().take_while(|b| b.is_ascii_digit()).count();
    let number = String::from_utf8_lossy(&bytes[begin + 6..begin + 6 + digits]).into_owned();
    let new = format!("skip=`expr {number} + 0`");
    [&bytes[..begin], new.as_bytes(), &bytes[begin + 6 + digits + 1..]].concat()
}

/// Makes a root of busybox alone, which scripts/setup installs.
fn root(dir: &Path) -> std::path::PathBuf {
    let root = dir.join("root");
    for made in ["bin", "proc", "dev", "tmp", "build", "usr"] {
        fs::create_dir_all(root.join(made)).expect("made");
    }
    std::os::unix::fs::symlink("../bin", root.join("usr/bin")).expect("link");
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("scripts/setup installs busybox");
    let list = Command::new("/bin/busybox").arg("--list").output().expect("busybox runs");
    for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|a| *a != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).expect("link");
    }
    root
}

impl Scene {
    /// Looks at a file that must unpack itself, and makes it do so after `change`.
    async fn extract_after(
        &mut self,
        bytes: Vec<u8>,
        change: impl FnOnce(&Server),
    ) -> Result<StoredRunFile, Failure> {
        self.source.pin = Pin::Sha256(hex(&Sha256::digest(&bytes)));
        self.server.put(PATH, bytes);
        let looked = runfile::look(&self.source, without_registries(&self.fetcher), &self.store)
            .await
            .expect("looked");
        let Looked::Foreign(file) = looked else { panic!("known: {looked:?}") };
        change(&self.server);
        self.extract(&file).await
    }

    async fn extract(&self, file: &Foreign) -> Result<StoredRunFile, Failure> {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = root(dir.path());
        let (helper, limit) = (Path::new(HELPER), longshore_build::LIMIT);
        let user = BuildUser::default();
        let workshop =
            Workshop { root, helper, fetcher: without_registries(&self.fetcher), limit, user };
        workshop.extract(file, &self.store, &Silent).await
    }
}

#[tokio::test]
async fn a_file_of_an_unknown_form_unpacks_itself() {
    let mut scene = Scene::new();
    let bytes = of_unknown_form(scene.dir.path());
    let extracted = scene.extract_after(bytes, |_| {}).await;
    scene.assert_whole(extracted);
    assert!(scene.look().await.stored, "it is known now");
}

#[tokio::test]
async fn what_does_not_unpack_itself_is_refused() {
    let nothing = "#!/bin/sh\necho what do you want; exit 1\n";
    let silent = "#!/bin/sh\n:\n";
    let writes_outside =
        "#!/bin/sh\necho evil > /evil; echo evil > \"$3/../tmp/evil\"; mkdir -p $3/a\n";
    let links = "#!/bin/sh\nmkdir -p $3/kernel-open; ln -s /etc/passwd $3/.manifest\n";
    let elsewhere = "#!/bin/sh\nmkdir -p tmp/kernel-open; rmdir $3; ln -s tmp $3\n";
    for (script, said) in [
        (elsewhere, "what it left: "),
        (nothing, "what do you want"),
        (silent, "does not unpack itself"),
        (writes_outside, "no .manifest"),
        (links, "no .manifest"),
    ] {
        let mut scene = Scene::new();
        let extracted = scene.extract_after(script.into(), |_| {}).await;
        scene.assert_refused(extracted, ExitCode::Verification, said);
    }
}

#[tokio::test]
async fn a_script_with_another_digest_is_not_run() {
    let mut scene = Scene::new();
    let bytes = of_unknown_form(scene.dir.path());
    let other = b"#!/bin/sh\nmkdir -p $3; echo evil > $3/.manifest\n".to_vec();
    let extracted = scene.extract_after(bytes, |server| server.put(PATH, other)).await;
    scene.assert_refused(extracted, ExitCode::Verification, "digest differs");
}
