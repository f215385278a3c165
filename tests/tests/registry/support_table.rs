//! A support table as an artifact of a real docker-registry: signed by longshore, pushed by the real oras, and used in a
//! plan.

use std::fs;

use longshore_modules::signature::key::SecretKey;
use longshore_tests::packages::DRIVER;
use longshore_tests::scene::{Ended, Scene as Host, finish, fixture};

use super::attested::{command, files};
use super::cosign::must;
use super::*;

/// Reason in the table, which no other has.
const WHY: &str = "this version fails on the hosts of this site";

fn table(issued: &str) -> String {
    format!(
        "format = 1\nissued = \"{issued}\"\nextends = true\n\n[[exclusion]]\nid = \"of-this-site\"\n\
         versions = [\"{DRIVER}\"]\naction = \"refuse\"\nwhy = \"{WHY}\"\nsource = \"a test\"\nchecked = \"{issued}\"\n"
    )
}

/// A host with an archive, and a registry.
struct Tables {
    host: Host,
    registry: Scene,
}

impl Tables {
    /// Pushes the files of the registry's directory under a tag.
    fn push(&self, tag: &str, names: &[&str]) {
        let to = format!("{}/tables:{tag}", self.registry.hub.address);
        let arguments = [&["push", "--plain-http", &to][..], names].concat();
        must("oras", self.registry.dir.path(), &arguments);
    }

    fn plan(&self, tag: &str) -> Ended {
        let dir = self.registry.dir.path();
        let place = format!("oci://http://{}/tables:{tag}", self.registry.hub.address);
        let key = format!("support-table={}", dir.join("cosign.pub").display());
        let root = fixture("bookworm-t4");
        let args = ["plan", "--driver", DRIVER, "--root", &root, "--support-table", &place];
        finish(self.host.agent(&args).args(["--trust", &key]))
    }
}

#[tokio::test]
async fn a_table_of_a_registry_counts_in_a_plan() {
    let tables = Tables { host: Host::new(), registry: Scene::new() };
    let dir = tables.registry.dir.path();
    let (secret, _) = files(&tables.registry, &SecretKey::generate());
    fs::write(dir.join("support.toml"), table("2026-12-01")).expect("writes");
    let path = dir.join("support.toml").to_str().expect("a path").to_owned();
    command(&tables.registry, &["sign", &path, "--sign-key", &secret]).assert_done();
    tables.push("stable", &["support.toml", "support.toml.sig"]);
    let ended = tables.plan("stable");
    assert_eq!(ended.code, Some(15), "{ended}");
    // Lines are as wide as a terminal.
    let said = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(&format!("driver-excluded: driver {DRIVER}: {WHY}")), "{ended}");

    tables.push("unsigned", &["support.toml"]);
    tables.plan("unsigned").assert_failed(13, &["no file support.toml.sig".to_owned()]);
    tables.plan("none").assert_failed(12, &["/tables has no none".to_owned()]);
    // Bytes that the key did not sign.
    fs::write(dir.join("support.toml"), table("2026-12-02")).expect("writes");
    tables.push("changed", &["support.toml", "support.toml.sig"]);
    tables.plan("changed").assert_failed(13, &["is not by any of these keys".to_owned()]);
}
