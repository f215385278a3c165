//! Builders that end without a set: stopped, or because of a compile error on this host or on every
//! host.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::together::{Agent, archive, assert_same, entries, let_go, tags, together};
use super::*;
use longshore_tests::scene::{Scene as Host, await_exit, send, until};

/// Ends make with this output as a failure; with success if it is empty.
fn let_fail(work: &Path, output: &str) {
    // It must not be seen half written.
    fs::write(work.join("going"), output).expect("write");
    fs::rename(work.join("going"), work.join("go")).expect("rename");
}

/// Returns the annotations of the only claim in a registry without a set.
fn claim(hub: &Hub) -> serde_json::Value {
    let tags = tags(hub);
    assert!(tags.len() == 1 && tags[0].starts_with("claim-"), "{tags:?}");
    let from = format!("docker://{}/nvidia/modules:{}", hub.address, tags[0]);
    let manifest = other_tools::skopeo(&["inspect", "--raw", "--tls-verify=false", &from]);
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let claim = manifest["annotations"]["longshore.claim"].as_str().expect("a claim");
    serde_json::from_str(claim).expect("JSON")
}

#[test]
fn the_claim_of_a_builder_that_was_stopped_is_done() {
    let hub = Hub::start(None);
    let host = Host::with(archive(0, true));
    let reference = format!("http://{}/nvidia/modules", hub.address);
    let agent = Agent::start(&host, "agent", "store", Some(&reference));
    until("it compiles", || agent.work().is_some());
    send(&agent.child, Signal::SIGTERM);
    await_exit(&agent.child);
    assert_eq!(claim(&hub)["stage"], "done");
}

/// Compiler message for a kernel that the driver does not support.
const CHANGED: &str =
    "nvidia/nv-pci.c:201:9: error: too few arguments to function 'pci_resize_resource'\n";

/// Log of an agent that read the failure in the claim.
const REPORTED: &str = "another host reported that this build fails";

#[test]
fn what_fails_on_every_host_delays_the_others_until_a_set_is_there_and_ends_none() {
    for deletes in [true, false] {
        let hub = if deletes { Hub::that_deletes() } else { Hub::start(None) };
        let host = Host::with(archive(0, true));
        let reference = format!("http://{}/nvidia/modules", hub.address);
        let (builder, others) = together(&host, &hub);
        let_fail(&builder.work().expect("it compiles"), CHANGED);
        let said = builder.ends(14);
        assert!(said.contains("the kernel has another pci_resize_resource"), "{said}");
        let reported = claim(&hub);
        assert_eq!(
            (&reported["stage"], &reported["failures"][0]["class"]),
            (&"done".into(), &"interface-changed".into())
        );
        // Those that waited, and one that comes later.
        let late = Agent::start(&host, "late", "late", Some(&reference));
        let delayed: Vec<Agent> = others.into_iter().chain([late]).collect();
        for agent in &delayed {
            until("it reads the failure", || agent.says(REPORTED));
            assert!(agent.says("the kernel has another pci_resize_resource"));
            assert!(entries(&agent.store.join("logs")).is_empty(), "it compiled");
        }
        // One whose longest wait ends: it fails by its own compile, and then remembers that.
        let options = ["--publish-wait", "1s"];
        let own = Agent::with_options(&host, "own", "own", Some(&reference), &options);
        until("it compiles", || own.work().is_some());
        let_fail(&own.work().expect("it compiles"), CHANGED);
        let said = own.ends(14);
        assert!(!said.contains("failed before, at "), "{said}");
        let again = Agent::with_options(&host, "again", "own", Some(&reference), &options);
        assert!(again.ends(14).contains("failed before, at "));
        let again = Agent::with_options(&host, "retries", "own", Some(&reference), &["--retry"]);
        until("it compiles", || again.work().is_some());
        let_go(&again.work().expect("it compiles"));
        let mut stores = vec![again.ends_well()];
        stores.extend(delayed.into_iter().map(Agent::ends_well));
        assert_same(&stores, &hub, usize::from(!deletes));
    }
}

#[test]
fn what_fails_of_a_host_is_compiled_by_the_next() {
    let hub = Hub::start(None);
    let host = Host::with(archive(0, true));
    let (builder, mut others) = together(&host, &hub);
    let_fail(&builder.work().expect("it compiles"), "cc1: out of memory allocating 65536 bytes\n");
    let said = builder.ends(14);
    assert!(said.contains("out of memory"), "{said}");
    let mut second = None;
    until("another compiles", || {
        second = others.iter().position(|agent| agent.work().is_some());
        second.is_some()
    });
    assert_eq!(claim(&hub)["failures"], serde_json::Value::Null);
    let second = others.remove(second.expect("somebody"));
    let_go(&second.work().expect("it compiles"));
    let mut stores = vec![second.ends_well()];
    stores.extend(others.into_iter().map(Agent::ends_well));
    assert_same(&stores, &hub, 1);
}
