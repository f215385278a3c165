use super::*;
use crate::config::{Fragment, load};
use longshore_modules::signature::key::SecretKey;
use rstest::rstest;
use std::fs;

/// Directory with a store, a key, and a table that another part of the test signs.
struct Scene {
    dir: tempfile::TempDir,
    key: SecretKey,
}

/// Row of a branch that the built-in table does not have.
const BRANCH: &str = "[[branch]]\nnumber = 625\nkind = \"new-feature\"\nfirst-day = \"2026-12-01\"\n\
                      last-day = \"2027-03-01\"\nsource = \"s\"\nchecked = \"2026-12-01\"\n";

pub(super) fn extending(issued: &str) -> String {
    format!("format = 1\nissued = \"{issued}\"\nextends = true\n{BRANCH}")
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

    /// Writes a table with the signature of a key.
    fn put(&self, text: &str, key: &SecretKey) {
        fs::write(self.path("support.toml"), text).unwrap();
        fs::write(self.path("support.toml.sig"), key.sign(text.as_bytes())).unwrap();
    }

    fn config(&self, more: &str) -> Config {
        let dir = self.dir.path().display();
        let flags: Fragment = toml::from_str(&format!(
            "support-table = \"{dir}/support.toml\"\nsignature-keys = [\"{dir}/cosign.pub\"]\n\
             store = \"{dir}/store\"\n{more}"
        ))
        .unwrap();
        load(flags, &|_| None, None).unwrap()
    }

    async fn settled(&self, remembers: bool) -> Result<Config, Failure> {
        self.settled_on("2026-12-31", remembers).await
    }

    async fn settled_on(&self, today: &str, remembers: bool) -> Result<Config, Failure> {
        settled_on(today.parse().unwrap(), self.config(""), remembers).await
    }
}

#[tokio::test]
async fn a_signed_table_extends_the_built_in_one() {
    let scene = Scene::new();
    scene.put(&extending("2026-12-01"), &scene.key);
    let config = scene.settled(true).await.unwrap();
    assert!(config.support.table.branch(625).is_some());
    assert!(config.support.table.branch(580).is_some());
    assert_eq!(config.support.table.issued().to_string(), "2026-12-01");
}

/// Configuration and table of the page for users, with the files in the scene.
#[tokio::test]
async fn the_configuration_and_the_table_of_the_page_work_on_a_host_that_compiles() {
    let page = include_str!("../../../docs/reference/support-table.md");
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).collect();
    let block = |part: &str| {
        let found =
            blocks.iter().find_map(|block| block.split("```").next().filter(|b| b.contains(part)));
        found.expect("a block of the page")
    };
    let scene = Scene::new();
    scene.put(block("extends = true"), &scene.key);
    let dir = scene.dir.path().display().to_string();
    let text = block("support-table = ").replace("/etc/longshore", &dir);
    let flags: Fragment = toml::from_str(&format!("store = \"{dir}/store\"\n{text}")).unwrap();
    let config = load(flags, &|_| None, None).unwrap();
    assert!(config.compile && !config.signatures.required);
    let config = settled_on("2026-12-31".parse().unwrap(), config, true).await.unwrap();
    assert_eq!(config.support.table.issued().to_string(), "2026-12-01");
    assert_eq!(config.support.vulnerable, crate::config::Reaction::Refuse);
    // The same key signs nothing else: a table of another key is refused.
    scene.put(block("extends = true"), &SecretKey::generate());
    let flags: Fragment = toml::from_str(&text).unwrap();
    let failure = settled(load(flags, &|_| None, None).unwrap(), false).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Verification);
}

#[tokio::test]
async fn without_a_file_the_built_in_table_counts() {
    let config = settled(load(Fragment::default(), &|_| None, None).unwrap(), false).await.unwrap();
    assert_eq!(config.support.table.as_ref(), SupportTable::built_in().unwrap());
}

#[rstest]
#[case::unsigned(None, FailureKind::Verification, "has no signature")]
#[case::of_another_key(Some(true), FailureKind::Verification, "by any of these keys")]
#[tokio::test]
async fn signatures(
    #[case] by_other: Option<bool>,
    #[case] kind: FailureKind,
    #[case] cause: &str,
) {
    let scene = Scene::new();
    scene.put(&extending("2026-12-01"), &SecretKey::generate());
    if by_other.is_none() {
        fs::remove_file(scene.path("support.toml.sig")).unwrap();
    }
    let failure = scene.settled(true).await.unwrap_err();
    assert_eq!(failure.kind(), kind);
    assert!(failure.to_string().contains(cause), "{failure}");
    assert!(failure.remedy_text().unwrap().contains("longshore sign "), "{failure:?}");
}

#[tokio::test]
async fn a_table_that_was_changed_after_it_was_signed_is_refused() {
    let scene = Scene::new();
    scene.put(&extending("2026-12-01"), &scene.key);
    let text = extending("2026-12-01").replace("2027-03-01", "2037-03-01");
    fs::write(scene.path("support.toml"), text).unwrap();
    assert_eq!(scene.settled(true).await.unwrap_err().kind(), FailureKind::Verification);
}

#[tokio::test]
async fn a_key_without_the_role_does_not_count() {
    let scene = Scene::new();
    scene.put(&extending("2026-12-01"), &scene.key);
    let dir = scene.dir.path().display().to_string();
    let of = async |role: &str| {
        let entry =
            format!("[[trust]]\nkey = \"{dir}/cosign.pub\"\nroles = [\"modules\", \"{role}\"]\n");
        settled(scene.config(&entry), true).await
    };
    let failure = of("index").await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Usage);
    assert!(failure.to_string().contains("no key may sign it"), "{failure}");
    of("support-table").await.unwrap();
}

#[tokio::test]
async fn a_table_older_than_one_that_was_used_is_refused() {
    let scene = Scene::new();
    scene.put(&extending("2026-12-02"), &scene.key);
    scene.settled(true).await.unwrap();
    scene.put(&extending("2026-12-01"), &scene.key);
    for remembers in [true, false] {
        let failure = scene.settled(remembers).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Verification);
        assert!(failure.to_string().contains("is older than one that was used before (20261202)"));
    }
    scene.put(&extending("2026-12-02"), &scene.key);
    scene.settled(true).await.unwrap();
}

/// The day in a signed table may be a slip of the pen.
#[tokio::test]
async fn a_table_of_a_later_day_does_not_shut_out_those_after_it() {
    let scene = Scene::new();
    scene.put(&extending("2062-12-01"), &scene.key);
    scene.settled_on("2026-12-02", true).await.unwrap();
    scene.put(&extending("2026-12-01"), &scene.key);
    let failure = scene.settled_on("2026-12-02", true).await.unwrap_err();
    assert!(failure.to_string().contains("is older than one that was used before (20261202)"));
    scene.put(&extending("2026-12-03"), &scene.key);
    scene.settled_on("2026-12-03", true).await.unwrap();
}

#[tokio::test]
async fn a_command_that_only_looks_remembers_nothing() {
    let scene = Scene::new();
    scene.put(&extending("2026-12-02"), &scene.key);
    scene.settled(false).await.unwrap();
    assert!(!scene.path("store").exists());
}

#[rstest]
#[case::unknown_key(
    "format = 1\nissued = \"2026-12-01\"\nbranches = 1\n",
    "unknown field `branches`"
)]
#[case::other_format("format = 2\nissued = \"2026-12-01\"\n", "format 2")]
#[case::contradiction(
    "format = 1\nissued = \"2026-12-01\"\nextends = true\n[[gpu]]\nid = \"7fff\"\ngeneration = \"x\"\nname = \"n\"\nsource = \"s\"\nchecked = \"2026-12-01\"\n",
    "unknown generation x"
)]
#[tokio::test]
async fn wrong_tables(#[case] text: &str, #[case] cause: &str) {
    let scene = Scene::new();
    scene.put(text, &scene.key);
    let failure = scene.settled(true).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Usage);
    let said = failure.to_string();
    assert!(said.contains(cause) && said.contains("support.toml"), "{said}");
}

#[tokio::test]
async fn a_replacing_table_that_is_older_than_the_program_gives_way() {
    let scene = Scene::new();
    scene.put("format = 1\nissued = \"2020-01-01\"\n", &scene.key);
    let config = scene.settled(true).await.unwrap();
    assert_eq!(config.support.table.as_ref(), SupportTable::built_in().unwrap());
}

#[tokio::test]
async fn rules_are_checked_by_the_table_of_the_file() {
    let scene = Scene::new();
    scene.put(&extending("2026-12-01"), &scene.key);
    let rule = |gpu: &str| format!("[[driver-for]]\ngpu = \"{gpu}\"\ndriver = \"580\"\n");
    settled(scene.config(&rule("hopper")), true).await.unwrap();
    let failure = settled(scene.config(&rule("hoper")), true).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Usage);
}
