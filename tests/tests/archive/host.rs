//! A host's own apt sources, below a captured root.

use std::fs;
use std::path::Path;

use longshore_core::failure::ExitCode;
use longshore_core::progress::Silent;
use longshore_debian::archive::Archive;
use longshore_debian::max_age::MaxAge;
use longshore_debian::settings::ArchiveConfig;

use super::{Scene, hasty};
use longshore_tests::archive::{self, Suite};
use longshore_tests::server::{Closed, Server};

/// Makes a host of the distribution `test`, release `stable`, with these apt files.
pub(super) fn host(scene: &Scene, files: &[(&str, String)]) {
    let root = scene.dir.path().join("host");
    let os = "ID=test\nVERSION_CODENAME=stable\n".to_owned();
    let key = String::from_utf8(archive::certificate(&scene.key)).expect("text");
    let fixed = [("etc/os-release", os), ("usr/share/keyrings/test-archive-keyring.asc", key)];
    for (path, text) in fixed.iter().chain(files) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("dir");
        fs::write(path, text).expect("write");
    }
}

pub(super) async fn open(
    scene: &Scene,
    components: &[&str],
    suites: &[&str],
) -> Result<Archive, longshore_core::failure::Failure> {
    let owned = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    let config = ArchiveConfig {
        sources: Vec::new(),
        use_host_apt: true,
        host_components: owned(components),
        host_suites: owned(suites),
        container_lists: None,
        frozen: false,
        max_age: MaxAge::default(),
    };
    let root = scene.dir.path().join("host");
    Archive::open_with(hasty(), &config, &root, &scene.store, &Silent).await
}

pub(super) fn line(server: &Server, suite: &str) -> String {
    format!(
        "deb [signed-by=/usr/share/keyrings/test-archive-keyring.asc] {} {suite} main\n",
        server.url()
    )
}

#[tokio::test]
async fn the_hosts_sources_are_read_with_their_keys() {
    let scene = Scene::new();
    host(&scene, &[("etc/apt/sources.list", line(&scene.server, "stable"))]);
    let archive = open(&scene, &["non-free"], &[]).await.expect("opens");
    assert_eq!(archive.packages("tool").len(), 1);
    assert!(archive.unread().is_empty());
}

#[tokio::test]
async fn components_beyond_those_the_host_names_are_looked_for() {
    let scene = Scene::with(Suite { component: "non-free".to_owned(), ..Suite::usual() });
    host(&scene, &[("etc/apt/sources.list", line(&scene.server, "stable"))]);
    let archive = open(&scene, &["contrib", "non-free"], &[]).await.expect("opens");
    assert_eq!(archive.packages("tool").len(), 1);
    assert!(archive.unread().is_empty());
}

#[tokio::test]
async fn a_mirror_that_lists_more_than_it_keeps_serves_what_the_host_names() {
    let scene = Scene::new();
    let partial =
        Suite { name: "stable-updates".into(), component: "non-free".into(), ..Suite::usual() };
    let mut kept = partial.files(&scene.key);
    kept.retain(|path, _| path.ends_with("InRelease"));
    for (path, bytes) in kept {
        scene.server.put(&path, bytes);
    }
    let sources = line(&scene.server, "stable") + &line(&scene.server, "stable-updates");
    host(&scene, &[("etc/apt/sources.list", sources.clone())]);
    let archive = open(&scene, &["non-free"], &[]).await.expect("opens");
    assert!(archive.unread().is_empty(), "{:?}", archive.unread());

    let named = sources.replace("updates main", "updates main non-free");
    host(&scene, &[("etc/apt/sources.list", named)]);
    let archive = open(&scene, &[], &[]).await.expect("opens");
    assert!(
        archive.unread().join("\n").contains("stable-updates/non-free"),
        "{:?}",
        archive.unread()
    );
}

#[tokio::test]
async fn a_key_may_stand_in_the_source_itself() {
    let scene = Scene::new();
    let key = String::from_utf8(archive::certificate(&scene.key)).expect("text");
    let key: String = key
        .lines()
        .map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
        .collect();
    let source = format!(
        "Types: deb\nURIs: {}\nSuites: stable\nComponents: main\nSigned-By:\n{key}",
        scene.server.url()
    );
    host(&scene, &[("etc/apt/sources.list.d/test.sources", source)]);
    open(&scene, &[], &[]).await.expect("opens");
}

#[tokio::test]
async fn other_peoples_sources_neither_break_nor_are_used() {
    let scene = Scene::new();
    let foreign = Suite { origin: "Somebody Else".to_owned(), ..Suite::usual() };
    let other = Server::start(foreign.files(&scene.key));
    let closed = Closed::new();
    let nobody = closed.url();
    host(
        &scene,
        &[
            ("etc/apt/sources.list", line(&scene.server, "stable")),
            ("etc/apt/sources.list.d/a.list", format!("deb {nobody} stable main\n")),
            ("etc/apt/sources.list.d/b.list", line(&other, "stable")),
            ("etc/apt/sources.list.d/c.list", format!("deb {nobody} cloud-sdk main\n")),
            ("etc/apt/sources.list.d/d.list", "deb nonsense\n".to_owned()),
            (
                "etc/apt/sources.list.d/e.list",
                format!("deb [signed-by=/missing.gpg] {nobody} stable main\n"),
            ),
        ],
    );
    let archive = open(&scene, &[], &[]).await.expect("opens");
    assert_eq!(archive.packages("tool").len(), 1);
    let url = archive.packages("tool")[0].url();
    assert!(url.starts_with(&scene.server.url()), "{url}");
    let unread = archive.unread().join("\n");
    for word in [&nobody, "Somebody Else", "d.list, line 1", "e.list, line 1"] {
        assert!(unread.contains(word), "{word} is not in:\n{unread}");
    }
    assert!(!unread.contains("cloud-sdk"), "{unread}");
    scene.assert_sound();
}

#[tokio::test]
async fn a_suite_the_host_lacks_comes_from_the_archive_that_has_its_like() {
    let scene = Scene::new();
    let suite = |name: &str| Suite {
        name: name.to_owned(),
        origin: "Test Backports".to_owned(),
        ..Suite::usual()
    };
    let security = Server::start(suite("stable-security").files(&scene.key));
    for (server, name) in [(&security, "next-security"), (&scene.server, "next")] {
        for (path, bytes) in suite(name).files(&scene.key) {
            server.put(&path, bytes);
        }
    }
    let sources = line(&scene.server, "stable") + &line(&security, "stable-security");
    host(&scene, &[("etc/apt/sources.list", sources)]);
    let archive = open(&scene, &[], &["next", "next-security"]).await.expect("opens");
    let mut found: Vec<_> =
        archive.packages("tool").into_iter().map(|p| (p.origin.text.clone(), p.url())).collect();
    found.sort();
    let from = |at: usize, server: &Server, suite: &str| {
        assert!(found[at].0 == suite && found[at].1.starts_with(&server.url()), "{found:?}");
    };
    from(0, &scene.server, "next");
    from(1, &security, "next-security");
    assert!(scene.server.requests("next-security").is_empty());
}

#[tokio::test]
async fn a_package_of_two_suites_is_found_in_each_of_them() {
    let scene = Scene::new();
    let security = Suite { name: "stable-security".to_owned(), ..Suite::usual() };
    for (path, bytes) in security.files(&scene.key) {
        scene.server.put(&path, bytes);
    }
    let sources = line(&scene.server, "stable") + &line(&scene.server, "stable-security");
    host(&scene, &[("etc/apt/sources.list", sources)]);
    let archive = open(&scene, &[], &[]).await.expect("opens");
    let versions: Vec<_> = archive.packages("lib").into_iter().map(|lib| lib.version).collect();
    assert_eq!(versions, ["1-2", "1-1"]);
    for (suite, wanted) in [("stable", true), ("stable-security", true), ("next", false)] {
        let found = archive.newest_in(suite, "lib").map(|lib| (lib.origin.text, lib.version));
        assert_eq!(found, wanted.then(|| (suite.to_owned(), "1-2".to_owned())));
    }
}

#[tokio::test]
async fn a_suite_that_was_asked_for_and_is_nowhere_is_an_error() {
    let scene = Scene::new();
    host(&scene, &[("etc/apt/sources.list", line(&scene.server, "stable"))]);
    let failure = open(&scene, &[], &["gone"]).await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Download, &["URL/dists/gone/Release", "404"]);
}

#[tokio::test]
async fn a_host_whose_only_source_fails_is_told_why() {
    let scene = Scene::new();
    let stranger = format!("deb [signed-by=/stranger.asc] {} stable main\n", scene.server.url());
    let key = String::from_utf8(archive::certificate(&archive::key())).expect("text");
    host(&scene, &[("etc/apt/sources.list", stranger), ("stranger.asc", key)]);
    let failure = open(&scene, &[], &[]).await.expect_err("refused");
    let expected = ["URL/dists/stable/InRelease", "not in the keyring"];
    scene.assert_failure(&failure, ExitCode::Verification, &expected);
    assert!(!Path::new("/stranger.asc").exists());
}
