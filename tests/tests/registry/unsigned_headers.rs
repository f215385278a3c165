//! Modules compiled with unsigned headers are for this host only, unless configured otherwise.

use std::fs;

use super::together::{Agent, archive, let_go, tag, tags};
use super::*;
use longshore_tests::packages::{COMPILER, KERNEL};
use longshore_tests::scene::{Scene as Host, until};

/// Makes headers in a directory of the host, without any record of their digests.
fn headers(host: &Host) -> String {
    let dir = host.path("headers");
    put_headers(&dir);
    dir.to_str().expect("a path").to_owned()
}

/// Writes a kernel's build tree.
pub(crate) fn put_headers(dir: &Path) {
    let release = format!("#define UTS_RELEASE \"{KERNEL}\"\n");
    let compiler = format!("CONFIG_CC_VERSION_TEXT={COMPILER}\n");
    let files = [
        ("Makefile", "# a kernel's\n"),
        ("Module.symvers", ""),
        ("include/generated/autoconf.h", ""),
        ("include/generated/compile.h", "#define UTS_VERSION \"#1 SMP Test 6.1.176-1\"\n"),
        ("include/generated/utsrelease.h", &release),
        ("include/config/auto.conf", &compiler),
        ("scripts/mod/modpost", ""),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("dirs");
        fs::write(path, text).expect("writes");
    }
}

/// Returns the annotations of the set's manifest in a registry.
fn annotations(hub: &Hub) -> serde_json::Value {
    let from = format!("docker://{}/nvidia/modules:{}", hub.address, tag());
    let raw = other_tools::skopeo(&["inspect", "--raw", "--tls-verify=false", &from]);
    let manifest: serde_json::Value = serde_json::from_slice(&raw).expect("JSON");
    manifest["annotations"].clone()
}

fn builds(host: &Host, name: &str, reference: &str, more: &[&str]) -> String {
    let agent = Agent::with_options(host, name, name, Some(reference), more);
    until("it compiles", || agent.work().is_some());
    let_go(&agent.work().expect("it compiles"));
    agent.ends(0)
}

#[test]
fn what_is_compiled_with_them_is_pushed_only_where_that_is_said() {
    let hub = Hub::that_deletes();
    let host = Host::with(archive(0, true));
    let reference = format!("http://{}/nvidia/modules", hub.address);
    let own = ["--headers", &headers(&host)];

    let said = builds(&host, "one", &reference, &own);
    assert!(said.contains("building for this host only: the headers"), "{said}");
    assert!(hub.is_untouched());

    // `push` pushes it explicitly, and its annotation records the origin of its headers.
    let push = ["push", &reference, "--kernel", KERNEL];
    let mut by_hand = host.agent(&push);
    let pushed = by_hand.env("LONGSHORE_STORE", host.path("one")).output().expect("runs");
    let said = String::from_utf8_lossy(&pushed.stdout).into_owned();
    assert!(said.contains("headers from a configured place"), "{said} {pushed:?}");
    let wanted = "a configured place of the host that compiled it";
    assert_eq!(annotations(&hub)["longshore.headers"], wanted);

    let hub = Hub::that_deletes();
    let reference = format!("http://{}/nvidia/modules", hub.address);
    let all = [&own[..], &["--publish-unsigned-headers"]].concat();
    builds(&host, "two", &reference, &all);
    assert_eq!(tags(&hub), [tag()]);
    assert_eq!(annotations(&hub)["longshore.headers"], wanted);

    // An agent with signed headers uses it, like any other available set.
    let other = Agent::with_options(&host, "three", "three", Some(&reference), &[]);
    assert!(other.ends(0).contains("the modules are "));
}

#[test]
fn what_is_compiled_with_an_archives_headers_says_nothing_of_them() {
    let hub = Hub::that_deletes();
    let host = Host::with(archive(0, true));
    let reference = format!("http://{}/nvidia/modules", hub.address);
    builds(&host, "one", &reference, &[]);
    assert_eq!(annotations(&hub)["longshore.headers"], serde_json::Value::Null);
}
