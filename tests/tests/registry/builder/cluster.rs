//! A builder for the kernels of a cluster's nodes, and its record there.

use std::sync::{Arc, Mutex};

use longshore_cluster::testing::{Api, Request, ScriptedAnswer, refused};
use longshore_modules::signature::index_minimums::IndexMinimums;
use serde_json::{Value, json};

use super::*;

/// Returns a node of the API that runs this kernel.
fn api_node(name: &str, kernel: &str) -> Value {
    json!({
        "metadata": { "name": name, "resourceVersion": "1" },
        "status": { "nodeInfo": {
            "architecture": longshore_tests::archive::ARCH, "operatingSystem": "linux", "kernelVersion": kernel,
        } },
    })
}

#[test]
fn kernels_of_a_clusters_nodes_are_built_for_with_the_right_to_read_nodes_alone() {
    let fleet = Fleet::new(false);
    let nodes = [api_node("a", KERNEL), api_node("b", KERNEL), api_node("c", "../../etc/shadow")];
    let api = Api::by(move |asked| match asked.line.contains("watch=true") {
        true => ScriptedAnswer::Open(Vec::new()),
        false => ScriptedAnswer::Body(
            200,
            json!({ "kind": "NodeList", "metadata": { "resourceVersion": "1" }, "items": nodes })
                .to_string(),
        ),
    });
    let files = api.files.path().display().to_string();
    let args = ["--once", "--cluster", "--selector", "gpu=true", "--service-account", &files];
    let mut builder = fleet.builder(&args);
    for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        builder.env(name, api.variable(name).expect("a variable"));
    }
    let ended: Ended = finish(&mut builder);
    ended.assert_done();
    assert!(ended.err.contains("`../../etc/shadow`, of node c"), "{ended}");
    assert!(ended.err.contains("\"asked_by\":\"a b\""), "{ended}");
    let node = finish(&mut fleet.node("node", KERNEL, "0s"));
    fleet.assert_served("node", KERNEL, node.code, &node.to_string());
    let mut lines = api.lines();
    lines.sort();
    lines.dedup();
    assert_eq!(lines, ["GET /api/v1/nodes"]);
    assert!(api.requests().iter().all(|asked| asked.line.contains("labelSelector=gpu%3Dtrue")));
}

/// Answers as an API server with these nodes, and with a ConfigMap that has this text and was written this often; None
/// where somebody has deleted it.
fn api_with_record(
    asked: &Request,
    nodes: &[Value],
    map: &mut Option<(String, u64)>,
) -> ScriptedAnswer {
    if asked.line.contains("watch=true") {
        return ScriptedAnswer::Open(Vec::new());
    }
    if !asked.line.contains("/configmaps/index") {
        let metadata = json!({ "resourceVersion": "1" });
        let list = json!({ "kind": "NodeList", "metadata": metadata, "items": nodes });
        return ScriptedAnswer::Body(200, list.to_string());
    }
    let Some((text, writes)) = map else { return refused(404) };
    if asked.line.starts_with("PATCH ") {
        let patch: Value = serde_json::from_str(&asked.body).expect("JSON");
        assert_eq!(patch["metadata"]["resourceVersion"], json!(writes.to_string()));
        *text = patch["data"]["index-minimum"].as_str().expect("a text").to_owned();
        *writes += 1;
    }
    let metadata = json!({ "name": "index", "resourceVersion": writes.to_string() });
    let data = json!({ "index-minimum": text });
    let map =
        json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data });
    ScriptedAnswer::Body(200, map.to_string())
}

#[test]
fn the_highest_index_is_recorded_in_the_cluster_and_a_deleted_record_is_a_warning() {
    let fleet = Fleet::new(false);
    let nodes = [api_node("a", KERNEL)];
    let map = Arc::new(Mutex::new(Some((String::new(), 1))));
    let served = map.clone();
    let api =
        Api::by(move |asked| api_with_record(asked, &nodes, &mut served.lock().expect("the map")));
    let files = api.files.path().display().to_string();
    let args = ["--once", "--cluster", "--service-account", &files, "--index-record", "index"];
    let run = || -> Ended {
        let mut builder = fleet.builder(&args);
        for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            builder.env(name, api.variable(name).expect("a variable"));
        }
        finish(&mut builder)
    };
    let recorded = || -> Option<u64> {
        let map = map.lock().expect("the map");
        let minimums = IndexMinimums::parse(&map.as_ref()?.0).expect("a record");
        minimums.minimum(fleet.reference().trim_start_matches("http://"))
    };
    let ended = run();
    ended.assert_done();
    assert!(!ended.err.contains("was not recorded"), "{ended}");
    let first = recorded().expect("a version");
    run().assert_done();
    assert!(recorded() > Some(first));

    *map.lock().expect("the map") = None;
    let ended = run();
    ended.assert_done();
    assert!(ended.err.contains("was not recorded in the ConfigMap"), "{ended}");
}
