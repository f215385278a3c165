//! Leases against an API server in memory: versions, conflicts, faults and large objects.

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::Limits;
use crate::lease_testing::{Fault, Leases, NAMESPACE};
use crate::testing::SHORT;

const NAME: &str = "longshore-build-0123456789abcdef";
const OBJECT: &str =
    "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/longshore-build-0123456789abcdef";

fn record(claim: &str) -> LeaseRecord<'_> {
    LeaseRecord {
        claim,
        holder: Some("driver-x7k2p"),
        duration: Duration::from_millis(1500),
        acquired: Timestamp::UNIX_EPOCH,
        transitions: 2,
    }
}

async fn write(
    cluster: &Cluster,
    claim: &str,
    over: Option<&LeaseVersion>,
) -> Option<LeaseVersion> {
    cluster.write_lease(NAMESPACE, NAME, &record(claim), over).await.expect("no failure")
}

async fn claim(cluster: &Cluster) -> Option<String> {
    cluster.read_lease(NAMESPACE, NAME).await.expect("no failure").and_then(|there| there.claim)
}

#[tokio::test]
async fn of_two_who_read_the_same_version_one_writes() {
    let cluster = Leases::default().cluster(SHORT);
    assert_eq!(claim(&cluster).await, None);
    let first = write(&cluster, "a", None).await.expect("made");
    assert_eq!(write(&cluster, "b", None).await, None, "it is there already");
    let second = write(&cluster, "c", Some(&first)).await.expect("replaced");
    assert_ne!(first, second);
    assert_eq!(write(&cluster, "d", Some(&first)).await, None, "it was replaced before");
    assert_eq!(claim(&cluster).await.as_deref(), Some("c"));
    cluster.remove_lease(NAMESPACE, NAME, &first).await.expect("no failure");
    assert_eq!(claim(&cluster).await.as_deref(), Some("c"), "another write is not removed");
    cluster.remove_lease(NAMESPACE, NAME, &second).await.expect("no failure");
    assert_eq!(claim(&cluster).await, None);
    cluster.remove_lease(NAMESPACE, NAME, &second).await.expect("it is gone already");
    assert_eq!(write(&cluster, "e", Some(&second)).await, None, "the object is another one");
}

#[tokio::test]
async fn people_see_holder_and_times() {
    let server = Leases::default();
    write(&server.cluster(SHORT), "{}", None).await.expect("made");
    let object = &server.objects()[NAME];
    let spec = &object["spec"];
    assert_eq!(spec["holderIdentity"], "driver-x7k2p");
    assert_eq!((&spec["leaseDurationSeconds"], &spec["leaseTransitions"]), (&json!(2), &json!(2)));
    assert_eq!(spec["acquireTime"], "1970-01-01T00:00:00.000000Z");
    let renewed: Timestamp = spec["renewTime"].as_str().expect("a time").parse().expect("a time");
    assert!(Timestamp::now().duration_since(renewed).as_secs() < 60);
    assert_eq!(object["metadata"]["annotations"][CLAIM], "{}");
}

/// Faults of the first requests, and whether the write is there and known as this writer's.
#[rstest]
#[case::busy(vec![Fault::Status(429), Fault::Status(503)], true)]
#[case::answer_lost(vec![Fault::LostAnswer], true)]
#[case::answers_lost(vec![Fault::LostAnswer, Fault::LostAnswer], true)]
#[case::conflict(vec![Fault::Status(409)], false)]
#[tokio::test]
async fn a_fault_loses_no_write(#[case] faults: Vec<Fault>, #[case] is_written: bool) {
    for exists in [false, true] {
        let server = Leases::default();
        let cluster = server.cluster(SHORT);
        let over = match exists {
            true => write(&cluster, "before", None).await,
            false => None,
        };
        server.fail(faults.clone());
        let written = write(&cluster, "a", over.as_ref()).await;
        assert_eq!(written.is_some(), is_written, "{exists}");
        let there = cluster.read_lease(NAMESPACE, NAME).await.expect("no failure");
        assert_eq!(there.map(|there| there.version), written.or(over), "{exists}");
    }
}

#[rstest]
#[case(Fault::Status(403), ApiErrorKind::Forbidden)]
#[case(Fault::Status(404), ApiErrorKind::Missing)]
#[case(Fault::Status(500), ApiErrorKind::Status(500))]
#[case(Fault::Silence, ApiErrorKind::Late)]
#[tokio::test]
async fn a_failure_ends_every_call(#[case] fault: Fault, #[case] kind: ApiErrorKind) {
    let server = Leases::default();
    let limits = Limits { call: Duration::from_millis(100), ..SHORT };
    let cluster = server.cluster(limits);
    let made = write(&cluster, "a", None).await.expect("made");
    server.fail_by(move |_| Some(fault.clone()));
    let read = cluster.read_lease(NAMESPACE, NAME).await;
    let write = cluster.write_lease(NAMESPACE, NAME, &record("b"), None).await;
    let remove = cluster.remove_lease(NAMESPACE, NAME, &made).await;
    let is_missing = kind == ApiErrorKind::Missing;
    assert_eq!(read.map_err(|e| e.kind), if is_missing { Ok(None) } else { Err(kind) });
    assert_eq!(write.map_err(|e| e.kind), Err(kind));
    assert_eq!(remove.map_err(|e| e.kind), if is_missing { Ok(()) } else { Err(kind) });
    assert_eq!(server.objects()[NAME]["metadata"]["annotations"][CLAIM], "a");
}

#[tokio::test]
async fn an_object_of_a_megabyte_is_read_and_its_claim_is_bounded() {
    let server = Leases::default();
    let cluster = server.cluster(SHORT);
    let large = "x".repeat(1 << 20);
    let other = json!({"metadata": {"annotations": {"example.com/other": large, CLAIM: "a"}}});
    server.put(NAME, other);
    assert_eq!(claim(&cluster).await.as_deref(), Some("a"));
    server.put(NAME, json!({"metadata": {"annotations": {CLAIM: large}}}));
    let there = cluster.read_lease(NAMESPACE, NAME).await.expect("read").expect("there");
    assert_eq!((there.claim, there.transitions), (None, 0));
    assert!(write(&cluster, "b", Some(&there.version)).await.is_some(), "it is replaced");
}

#[tokio::test]
async fn an_object_without_a_version_is_not_of_the_api() {
    for body in [json!({}), json!({"uid": "a"}), json!({"uid": "a/b", "resourceVersion": "1"})] {
        let answer =
            || crate::testing::ScriptedAnswer::Body(200, json!({"metadata": body}).to_string());
        let api = crate::testing::Api::with([answer()]);
        let error = api.cluster(SHORT).read_lease(NAMESPACE, NAME).await.expect_err("refused");
        assert_eq!(error.kind, ApiErrorKind::Garbled);
        assert_eq!(api.lines(), [format!("GET {OBJECT}")]);
    }
}

#[tokio::test]
async fn a_name_that_is_none_is_never_sent() {
    let server = Leases::default();
    let cluster = server.cluster(SHORT);
    for (namespace, name) in [("a/b", NAME), (NAMESPACE, "../x"), ("", NAME), (NAMESPACE, "c?x")] {
        let error = cluster.read_lease(namespace, name).await.expect_err("refused");
        assert_eq!(error.kind, ApiErrorKind::Name);
    }
    assert!(server.requests().is_empty());
}

#[test]
fn a_mark_is_read_as_it_was_made() {
    let version = LeaseVersion { uid: "a-1".to_owned(), resource_version: "77".to_owned() };
    assert_eq!(LeaseVersion::from_mark(&version.mark()), Some(version));
    let long = format!("{}/1", "u".repeat(65));
    for wrong in ["", "a", "/", "a/", "/1", "a/b/c", "a /1", &long] {
        assert_eq!(LeaseVersion::from_mark(wrong), None, "{wrong}");
    }
}
