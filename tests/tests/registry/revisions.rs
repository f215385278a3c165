//! Packaging revisions of one driver: patches that a package leaves to whoever compiles, and the older revision where
//! the newer one does not compile.

use std::fs;

use super::together::{Agent, archive, entries};
use super::*;
use longshore_tests::archive::{ARCH, Suite};
use longshore_tests::packages::{DRIVER, Item, deb};
use longshore_tests::scene::Scene as Host;

const PACKAGE: &str = "nvidia-kernel-source";
const ERROR: &str =
    "nvidia/os-mlock.c:23:12: error: implicit declaration of function 'follow_pfn'\n";
/// Makes the file without which the stand-in for make waits.
const MAKES: &str = "From: A <a@example.com>\nSubject: [PATCH] go\n---\n go | 1 +\n\ndiff --git a/go b/go\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/go\n@@ -0,0 +1 @@\n+go\n-- \n2.39.5\n\n";

/// Adds a revision of the driver with these sources to a suite.
fn add(suite: &mut Suite, revision: &str, files: &[(&str, &[u8])]) {
    let kbuild = format!("ccflags-y += -DNV_VERSION_STRING=\\\"{DRIVER}\\\"\n");
    let below = |path: &str| format!("./usr/src/nvidia/{path}");
    let modules = ["nvidia", "nvidia-uvm", "nvidia-modeset"].map(|name| {
        (
            below(&format!("{name}.ko.in")),
            module_sets::module(name, longshore_tests::packages::KERNEL),
        )
    });
    let named: Vec<(String, &[u8])> = [("Kbuild", kbuild.as_bytes()), ("conftest.sh", b"")]
        .iter()
        .chain(files)
        .map(|(path, bytes)| (below(path), *bytes))
        .chain(modules.iter().map(|(path, image)| (path.clone(), image.as_slice())))
        .collect();
    let items: Vec<Item<'_>> = named.iter().map(|(path, bytes)| Item::File(path, bytes)).collect();
    let version = format!("{DRIVER}-{revision}");
    let stanza = format!("Package: {PACKAGE}\nVersion: {version}\nArchitecture: {ARCH}\n");
    suite.packages.push((stanza, deb(&items)));
}

/// Returns an archive without any revision of the driver.
fn without_driver() -> Suite {
    let mut suite = archive(0, false);
    suite.packages.retain(|(stanza, _)| !stanza.starts_with(&format!("Package: {PACKAGE}\n")));
    suite
}

fn series(patch: &str) -> [(&str, &[u8]); 2] {
    [
        ("debian/patches/series", b"# build\ngo.patch\n"),
        ("debian/patches/go.patch", patch.as_bytes()),
    ]
}

#[test]
fn the_patches_of_a_package_are_applied_and_in_the_key() {
    let mut suite = without_driver();
    add(&mut suite, "1", &series(MAKES));
    let host = Host::with(suite);
    let agent = Agent::with_options(&host, "agent", "store", None, &["--no-patches"]);
    let store = agent.ends_well();
    let [set] = &store.sets().expect("sets")[..] else { panic!("not one set was built") };
    let patches: Vec<&str> = set.key.patches.keys().map(String::as_str).collect();
    assert_eq!(patches, ["packaging-patches"]);
    // The set is known without another compile.
    let logs = host.path("store/logs");
    fs::remove_dir_all(&logs).expect("the logs");
    Agent::with_options(&host, "again", "store", None, &["--no-patches"]).ends_well();
    assert!(entries(&logs).is_empty(), "it compiled again");
}

#[test]
fn a_package_whose_patches_do_not_fit_is_refused_by_their_name() {
    let mut suite = without_driver();
    let misfit = "--- a/Kbuild\n+++ b/Kbuild\n@@ -1 +1 @@\n-no such line\n+another\n";
    add(&mut suite, "1", &series(misfit));
    let host = Host::with(suite);
    let said = Agent::start(&host, "agent", "store", None).ends(13);
    assert!(
        said.contains("debian/patches/go.patch does not fit the sources: Kbuild: hunk 1"),
        "{said}"
    );
}

#[test]
fn an_older_revision_is_compiled_where_the_newest_does_not_compile() {
    let mut suite = without_driver();
    add(&mut suite, "5.1", &[("go", b""), ("error", ERROR.as_bytes())]);
    add(&mut suite, "2", &[("go", b"")]);
    let host = Host::with(suite);
    let agent = Agent::start(&host, "agent", "store", None);
    let store = Store::open(&agent.store, disk()).expect("store");
    let said = agent.ends(0);
    let warned = format!("continuing with {PACKAGE} {DRIVER}-2 (");
    assert!(said.contains(&warned), "{said}");
    assert!(said.contains(&format!("instead of {PACKAGE} {DRIVER}-5.1 (")), "{said}");
    assert_eq!(store.sets().expect("sets").len(), 1);
}

#[test]
fn the_failure_of_the_newest_is_reported_where_none_compiles() {
    let mut suite = without_driver();
    for revision in ["5.1", "2"] {
        add(&mut suite, revision, &[("go", revision.as_bytes()), ("error", ERROR.as_bytes())]);
    }
    let host = Host::with(suite);
    let said = Agent::start(&host, "agent", "store", None).ends(14);
    let last = said.lines().last().expect("an error");
    assert!(last.contains(&format!("does not compile either: {PACKAGE} {DRIVER}-2 (")), "{last}");
    let error: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!((&error["class"], &error["name"]), (&"interface-gone".into(), &"follow_pfn".into()));
}

#[test]
fn a_lack_of_the_host_is_no_reason_for_another_revision() {
    let mut suite = without_driver();
    let memory = b"cc1: out of memory allocating 65536 bytes\n";
    add(&mut suite, "5.1", &[("go", b""), ("error", memory)]);
    add(&mut suite, "2", &[("go", b"")]);
    let host = Host::with(suite);
    let said = Agent::start(&host, "agent", "store", None).ends(14);
    assert!(said.contains("\"class\":\"out-of-memory\"") && !said.contains("continuing"), "{said}");
}
