//! An archive's metadata: signatures, dates, names, digests.

use std::time::{Duration, UNIX_EPOCH};

use longshore_core::failure::ExitCode;
use longshore_debian::settings::ArchiveConfig;

use super::{IN_RELEASE, Scene};
use longshore_tests::archive::{self, Suite};
use longshore_tests::server::Fault;

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
    scene.server.put(IN_RELEASE, archive::sign(&archive::key(), &scene.suite.release()));
    let expected = ["URL/dists/stable/InRelease", "not in the keyring"];
    scene.refuses(ExitCode::Verification, &expected).await;
}

#[tokio::test]
async fn unsigned_metadata_is_refused() {
    let scene = Scene::new();
    scene.server.remove(IN_RELEASE);
    scene.server.put("/dists/stable/Release", scene.suite.release().into_bytes());
    let expected = ["URL/dists/stable/Release", "no OpenPGP signature"];
    scene.refuses(ExitCode::Verification, &expected).await;
}

#[tokio::test]
async fn a_signature_apart_will_do() {
    let scene = Scene::new();
    scene.server.remove(IN_RELEASE);
    let release = scene.suite.release();
    let signature = archive::sign_apart(&scene.key, &release);
    scene.server.put("/dists/stable/Release", release.into_bytes());
    scene.server.put("/dists/stable/Release.gpg", signature);
    scene.fetch().await.expect("fetches");
    let other = archive::sign_apart(&archive::key(), &scene.suite.release());
    scene.server.put("/dists/stable/Release.gpg", other);
    scene.refuses(ExitCode::Verification, &["URL/dists/stable/Release.gpg"]).await;
}

#[tokio::test]
async fn old_metadata_is_refused_unless_the_archive_is_frozen() {
    let mut suite = Suite::usual();
    suite.more.push_str("Valid-Until: Sat, 18 Jul 2020 10:16:37 UTC\n");
    let scene = Scene::with(suite);
    let expected = ["URL/dists/stable/InRelease", "2020-07-18", "frozen"];
    scene.refuses(ExitCode::Verification, &expected).await;
    let frozen = ArchiveConfig { frozen: true, ..scene.config() };
    scene.open_with(&frozen).await.expect("opens");
}

#[tokio::test]
async fn metadata_older_than_a_limit_is_refused_with_indexes_in_the_store_too() {
    let scene = Scene::new();
    scene.fetch().await.expect("fetches");
    // The Date of the usual suite.
    let date = UNIX_EPOCH + Duration::from_secs(1_783_764_997);
    let days = date.elapsed().expect("a clock after it").as_secs() / 86_400;
    let limited = |own: Option<u64>, all: Option<u64>| {
        let limit = |days: u64| format!("{days}d").parse().expect("a limit");
        let mut config = scene.config();
        config.sources[0].max_age = own.map(limit);
        ArchiveConfig { max_age: all.map(limit).unwrap_or_default(), ..config }
    };
    for (own, all, setting) in
        [(Some(days), None, "max-age"), (None, Some(days), "archive-max-age")]
    {
        let config = limited(own, all);
        let failure = scene.open_with(&config).await.expect_err("refused");
        let limit = format!("{setting} is {days}d");
        let expected = ["URL/dists/stable", "2026-07-11T10:16:37Z", &limit, setting];
        scene.assert_failure(&failure, ExitCode::Verification, &expected);
        scene.open_with(&ArchiveConfig { frozen: true, ..config }).await.expect("frozen");
    }
    for config in [limited(Some(days + 2), Some(days)), limited(None, Some(days + 2))] {
        scene.open_with(&config).await.expect("young enough");
    }
    // A Valid-Until that is earlier counts.
    let mut suite = Suite::usual();
    suite.more.push_str("Valid-Until: Sat, 18 Jul 2026 10:16:37 UTC\n");
    scene.server.put(IN_RELEASE, archive::sign(&scene.key, &suite.release()));
    let failure = scene.open_with(&limited(Some(days + 2), None)).await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["valid until 2026-07-18"]);
}

#[tokio::test]
async fn another_suites_metadata_is_refused() {
    let scene = Scene::new();
    let other = Suite { name: "oldstable".to_owned(), ..Suite::usual() };
    scene.server.put(IN_RELEASE, archive::sign(&scene.key, &other.release()));
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
    let expected = ["URL/dists/stable", "non-free", "main"];
    scene.assert_failure(&failure, ExitCode::Download, &expected);
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
    scene.server.put(IN_RELEASE, archive::sign(&scene.key, &release));
    scene.refuses(ExitCode::Verification, &["URL", "Packages.gz", "longer"]).await;
}

#[tokio::test]
async fn a_keyring_that_cannot_be_used_is_a_mistake_of_the_configuration() {
    let scene = Scene::new();
    let keyring = scene.dir.path().join("keyring.asc");
    std::fs::write(&keyring, "no key").expect("write");
    let expected = [keyring.to_str().expect("path"), "no OpenPGP certificate"];
    scene.refuses(ExitCode::Usage, &expected).await;
    std::fs::remove_file(&keyring).expect("remove");
    scene.refuses(ExitCode::Usage, &[expected[0], "No such file"]).await;
}
