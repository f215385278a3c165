//! Tables of artifacts whose download is a test's: which counts, and what the store keeps.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rstest::rstest;

use super::super::tests::extending;
use super::*;
use crate::config::{Fragment, SupportTableSource, load};
use longshore_modules::signature::key::SecretKey;

const PLACE: &str = "oci://registry.example.com/gpu/support-table:stable";

/// A host with a key, and a store.
struct Scene {
    dir: tempfile::TempDir,
    key: SecretKey,
}

/// Answer of the registry.
#[derive(Clone, Copy)]
enum Fetched<'a> {
    /// A table of a day that the key of the host has signed.
    Of(&'a str),
    /// One that another key has signed.
    OfOtherKey(&'a str),
    Nothing,
    Never,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().unwrap(), key: SecretKey::generate() };
        fs::write(scene.path("cosign.pub"), scene.key.public_pem().unwrap()).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self, place: &str) -> Config {
        self.config_with(place, "")
    }

    fn config_with(&self, place: &str, more: &str) -> Config {
        let dir = self.dir.path().display();
        let flags: Fragment = toml::from_str(&format!(
            "support-table = \"{place}\"\nsignature-keys = [\"{dir}/cosign.pub\"]\nstore = \"{dir}/store\"\n{more}"
        ))
        .unwrap();
        load(flags, &|_| None, None).unwrap()
    }

    /// Answers as the registry, with what the acceptance makes of its table.
    async fn fetched(
        &self,
        acceptance: &Acceptance<'_>,
        fetched: Fetched<'_>,
    ) -> Result<super::Fetched, Failure> {
        let (issued, key) = match fetched {
            Fetched::Of(issued) => (issued, &self.key),
            Fetched::OfOtherKey(issued) => (issued, &SecretKey::generate()),
            Fetched::Nothing => {
                return Err(Failure::new(FailureKind::Download, "no route to host"));
            }
            Fetched::Never => std::future::pending().await,
        };
        let source = acceptance.config.support.source.as_ref().expect("a place");
        let (place, text) = (source.to_string(), extending(issued));
        let signature = key.sign(text.as_bytes());
        let signed = SignedTable { place, text, signature };
        Ok((acceptance.check(&signed)?, signed))
    }

    /// Returns the day of the table that counts on a day of 2026.
    async fn used(
        &self,
        place: &str,
        fetched: Fetched<'_>,
        keeps: bool,
    ) -> Result<String, Failure> {
        self.used_by(&self.config(place), fetched, keeps).await
    }

    async fn used_by(
        &self,
        config: &Config,
        fetched: Fetched<'_>,
        keeps: bool,
    ) -> Result<String, Failure> {
        let kept_on = keeps.then(|| "2026-12-31".parse().unwrap());
        let acceptance = Acceptance { config, kept_on };
        let fetched = self.fetched(&acceptance, fetched);
        let table = table(&acceptance, reference(config), fetched).await?;
        Ok(table.issued().to_string())
    }

    /// Looks for another table than the one that the agent follows, of [`DAY`].
    async fn has_changed(&self, place: &str, fetched: Fetched<'_>) -> bool {
        let mut config = self.config(place);
        let table = SupportTable::built_in().unwrap().merged(&extending(DAY)).unwrap();
        config.support.table = Arc::new(table);
        let acceptance = Acceptance { config: &config, kept_on: None };
        let fetched = self.fetched(&acceptance, fetched);
        has_changed(&config, reference(&config), fetched).await
    }
}

fn reference(config: &Config) -> &Reference {
    match &config.support.source {
        Some(SupportTableSource::Artifact(reference)) => reference,
        other => panic!("no artifact: {other:?}"),
    }
}

const DAY: &str = "2026-12-02";

#[rstest]
#[case::the_registry_is_away(Fetched::Nothing)]
#[case::it_does_not_answer(Fetched::Never)]
#[case::its_table_is_of_another_key(Fetched::OfOtherKey("2026-12-03"))]
#[case::its_table_is_older(Fetched::Of("2026-12-01"))]
#[tokio::test(start_paused = true)]
async fn the_kept_table_counts_where(#[case] fetched: Fetched<'_>) {
    let scene = Scene::new();
    assert_eq!(scene.used(PLACE, Fetched::Of(DAY), true).await.unwrap(), DAY);
    for keeps in [true, false] {
        assert_eq!(scene.used(PLACE, fetched, keeps).await.unwrap(), DAY);
    }
    assert!(!scene.has_changed(PLACE, fetched).await);
    // A newer one takes its place.
    assert_eq!(scene.used(PLACE, Fetched::Of("2026-12-04"), true).await.unwrap(), "2026-12-04");
    assert_eq!(scene.used(PLACE, Fetched::Nothing, true).await.unwrap(), "2026-12-04");
}

#[rstest]
#[case::the_registry_is_away(Fetched::Nothing, FailureKind::Download, "no route to host")]
#[case::its_table_is_of_another_key(
    Fetched::OfOtherKey(DAY),
    FailureKind::Verification,
    "is not by any of these keys"
)]
#[tokio::test]
async fn without_a_kept_table_nothing_counts_where(
    #[case] fetched: Fetched<'_>,
    #[case] kind: FailureKind,
    #[case] cause: &str,
) {
    let scene = Scene::new();
    // A command that only looks keeps none, and a table of another place is not taken.
    scene.used(PLACE, Fetched::Of(DAY), false).await.unwrap();
    assert!(!scene.path("store").exists());
    let other = "oci://registry.example.com/gpu/support-table:other";
    scene.used(other, Fetched::Of(DAY), true).await.unwrap();
    let failure = scene.used(PLACE, fetched, true).await.unwrap_err();
    assert_eq!(failure.kind(), kind, "{failure}");
    assert!(failure.to_string().contains(cause), "{failure}");
}

#[rstest]
#[case::damaged("{\"format\"", "\"format\"")]
#[case::of_another_format("\"format\":1", "\"format\":2")]
#[tokio::test]
async fn a_kept_table_that_cannot_be_read_does_not_count(#[case] from: &str, #[case] to: &str) {
    let scene = Scene::new();
    scene.used(PLACE, Fetched::Of(DAY), true).await.unwrap();
    let path = scene.path("store").join(KEPT);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replace(from, to)).unwrap();
    assert!(scene.used(PLACE, Fetched::Nothing, true).await.is_err());
    assert_eq!(scene.used(PLACE, Fetched::Of(DAY), true).await.unwrap(), DAY);
}

/// A table that the rules do not fit takes the place of none.
#[tokio::test]
async fn a_table_without_the_gpus_of_a_rule_leaves_the_kept_one() {
    let scene = Scene::new();
    scene.used(PLACE, Fetched::Of(DAY), true).await.unwrap();
    let rule = "[[driver-for]]\ngpu = \"hoper\"\ndriver = \"580\"\n";
    let config = scene.config_with(PLACE, rule);
    let failure = scene.used_by(&config, Fetched::Of("2026-12-03"), true).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Usage, "{failure}");
    assert_eq!(scene.used(PLACE, Fetched::Nothing, true).await.unwrap(), DAY);
}

#[tokio::test]
async fn a_kept_table_that_was_changed_does_not_count() {
    let scene = Scene::new();
    scene.used(PLACE, Fetched::Of(DAY), true).await.unwrap();
    let path = scene.path("store").join(KEPT);
    let text = fs::read_to_string(&path).unwrap();
    let changed = text.replace("2027-03-01", "2037-03-01");
    assert_ne!(changed, text);
    fs::write(&path, changed).unwrap();
    let failure = scene.used(PLACE, Fetched::Nothing, true).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Download);
}

#[rstest]
#[case::the_same(PLACE, DAY, false)]
#[case::a_newer_one(PLACE, "2026-12-03", true)]
#[case::of_a_digest(
    "oci://registry.example.com/t@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "2026-12-03",
    false
)]
#[tokio::test]
async fn another_table_is_a_change(#[case] place: &str, #[case] issued: &str, #[case] is: bool) {
    let scene = Scene::new();
    // The kept table may have been followed or not.
    for kept in [DAY, issued] {
        scene.used(place, Fetched::Of(kept), true).await.unwrap();
        assert_eq!(scene.has_changed(place, Fetched::Of(issued)).await, is, "kept {kept}");
    }
}

fn files(names: &[&str]) -> Files {
    names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect()
}

#[test]
fn an_artifact_has_a_table_and_its_signature() {
    let files = files(&["notes.md", "support.toml", "support.toml.sig"]);
    let table = of_files(PLACE, &files).unwrap();
    assert_eq!((&*table.text, &*table.signature), ("support.toml", "support.toml.sig"));
}

#[rstest]
#[case::without_files(&[], "not exactly one of its files is named NAME.toml", "oras push")]
#[case::two_tables(&["a.toml", "b.toml"], "not exactly one of its files", "oras push")]
#[case::unsigned(&["a.toml", "b.toml.sig"], "no file a.toml.sig", "longshore sign support.toml")]
fn no_table(#[case] names: &[&str], #[case] cause: &str, #[case] remedy: &str) {
    let failure = of_files(PLACE, &files(names)).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Verification);
    assert!(failure.to_string().contains(cause), "{failure}");
    assert!(failure.to_string().contains(PLACE), "{failure}");
    assert!(failure.remedy_text().unwrap().contains(remedy), "{failure:?}");
}

#[test]
fn bytes_that_are_no_text_are_no_table() {
    let mut files = files(&["support.toml.sig"]);
    files.insert("support.toml".to_owned(), vec![0xff]);
    let failure = of_files(PLACE, &files).unwrap_err();
    assert!(failure.to_string().contains("\"support.toml\" is no text"), "{failure}");
}

#[test]
fn a_long_signature_is_none() {
    let mut files = files(&["support.toml"]);
    files.insert("support.toml.sig".to_owned(), vec![b'\n'; LONGEST_SIGNATURE + 1]);
    let failure = of_files(PLACE, &files).unwrap_err();
    assert!(failure.to_string().contains("has 1025 bytes, more than 1024"), "{failure}");
}

/// Whatever the registry has: it is not asked.
#[tokio::test]
async fn a_place_without_a_key_is_wrong() {
    let flags: Fragment = toml::from_str(&format!("support-table = \"{PLACE}\"\n")).unwrap();
    let config = load(flags, &|_| None, None).unwrap();
    let acceptance = Acceptance { config: &config, kept_on: None };
    let Err(failure) = fetch(&acceptance, reference(&config)).await else { panic!("no key") };
    assert_eq!(failure.kind(), FailureKind::Usage, "{failure}");
    assert!(failure.to_string().contains("no key may sign it"), "{failure}");
}
