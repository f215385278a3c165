//! Modules compiled with MOFED's headers, beside those of the same host without them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use longshore_tests::packages::KERNEL;
use longshore_tests::scene::Scene as Host;
use serde_json::Value;

use super::together::archive;

const PLACE: &str = "usr/src/ofa_kernel";

/// Returns a command with GPUDirect RDMA on a host with MOFED.
fn agent(host: &Host, command: &str, rdma: &str) -> Command {
    let mut agent = host.agent(&[command, "--kernel", KERNEL, "--extra-module", "nvidia-peermem"]);
    agent.env("LONGSHORE_STORE", host.path("store")).env("USE_HOST_MOFED", "true");
    agent.env("LONGSHORE_HOST_ROOT", host.path("mofed")).env("GPU_DIRECT_RDMA_ENABLED", rdma);
    agent
}

/// Builds, and returns the sets in the store.
fn build(host: &Host, rdma: &str) -> Vec<Value> {
    let output = agent(host, "build", rdma).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    sets(host)
}

fn sets(host: &Host) -> Vec<Value> {
    let sets = fs::read_dir(host.path("store/sets")).expect("sets");
    let paths = sets.map(|entry| entry.expect("an entry").path());
    let json = paths.filter(|path| path.extension().is_some_and(|e| e == "json"));
    json.map(|path| serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON")).collect()
}

/// Digest of MOFED's headers in a set's key.
fn mofed_in(set: &Value) -> Option<&str> {
    set["key"]["headers"].get(format!("/{PLACE}/{KERNEL}"))?.as_str()
}

/// Returns a host, and its tree of MOFED's headers.
fn host() -> (Host, PathBuf) {
    let host = Host::with(archive(0, false));
    let tree = host.path("mofed").join(PLACE).join(std::env::consts::ARCH).join(KERNEL);
    fs::create_dir_all(tree.join("include")).expect("directories");
    fs::write(tree.join("Module.symvers"), "0x1\tib_register_peer_memory_client\n").expect("write");
    (host, tree)
}

#[test]
fn sets_with_and_without_its_headers_are_two() {
    let (host, tree) = host();
    let without = build(&host, "false");
    assert_eq!(without.iter().filter_map(mofed_in).count(), 0);
    let both = build(&host, "true");
    assert_eq!((both.len(), both.iter().filter_map(mofed_in).count()), (2, 1));
    let with = both.iter().find(|set| mofed_in(set).is_some()).expect("one");
    assert_eq!(with["headers_from"], "host");
    // The same headers give the same set, and others another.
    assert_eq!(build(&host, "true").len(), 2);
    fs::write(tree.join("Module.symvers"), "0x2\tib_register_peer_memory_client\n").expect("write");
    assert_eq!(build(&host, "true").iter().filter_map(mofed_in).count(), 2);
}

/// The archive has no user-mode packages, for which it ends at last.
#[test]
fn headers_with_which_a_compile_fails_are_left_out() {
    let (host, tree) = host();
    fs::write(tree.join("include/error"), "peer_mem.h:1:1: error: unknown type name\n")
        .expect("write");
    for _ in 0..2 {
        let output = agent(&host, "fetch", "true").output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(12), "{said}");
        let place = tree.display().to_string();
        assert!(
            said.contains("continuing without MOFED's headers in") && said.contains(&place),
            "{said}"
        );
        let sets = sets(&host);
        assert_eq!((sets.len(), sets.iter().filter_map(mofed_in).count()), (1, 0), "{said}");
    }
}
