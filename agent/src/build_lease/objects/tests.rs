//! Elections by Lease objects, against an API server in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use longshore_build::KnownFailure;
use longshore_build::builder::Builder;
use longshore_build::testing::known;
use longshore_cluster::lease_testing::{Fault, Leases, NAMESPACE};
use longshore_cluster::names::CLAIM;
use longshore_core::progress::Silent;
use rstest::rstest;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::build_lease::{Alone, Claims, Election, Forecast, Outcome, Search, Times};

const LEASE: Duration = Duration::from_millis(1500);
const TIMES: Times = Times { lease: LEASE, wait: Duration::from_secs(60) };
const KEY: &str = "registry.example.com/a:claim-535.261.03-open-6.1.0-50-amd64";

/// Limits with so many tries that no call fails by a fault in every third answer.
const QUICK: Limits = Limits {
    call: Duration::from_secs(5),
    tries: 9,
    first_pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(4),
    watch: Duration::from_secs(30),
    answer: Limits::ANSWER,
};

/// Registry to which can be published, or not.
struct Publishes(bool);

impl LeaseBackend for Publishes {
    const COMPARES: bool = false;

    async fn prepare(&self) -> Result<(), Failure> {
        match self.0 {
            true => Ok(()),
            false => Err(Failure::new(FailureKind::Download, "the registry is read-only")),
        }
    }

    async fn read(&self) -> Result<Option<StoredClaim>, Failure> {
        Err(Failure::new(FailureKind::Bug, "the registry's claim is read"))
    }

    async fn write(&self, _: &Claim, _: Option<&str>) -> Result<Option<String>, Failure> {
        Err(Failure::new(FailureKind::Bug, "the registry's claim is written"))
    }

    async fn withdraw(&self, _: &str) -> Result<bool, Failure> {
        Err(Failure::new(FailureKind::Bug, "the registry's claim is removed"))
    }
}

fn backend(cluster: Cluster) -> ClaimObject<Publishes> {
    ClaimObject::new(cluster, NAMESPACE.to_owned(), KEY, Publishes(true))
}

/// The product: set when it is built.
#[derive(Default)]
struct FakeProduct {
    there: AtomicBool,
    building: AtomicUsize,
    most: AtomicUsize,
    fails: bool,
}

impl Search for FakeProduct {
    type Product = ();

    async fn look(&self) -> Result<Option<()>, Failure> {
        Ok(self.there.load(Ordering::SeqCst).then_some(()))
    }

    async fn judge(&self, reported: Vec<KnownFailure>) -> Forecast {
        match reported.first() {
            Some(known) => {
                let failure = Failure::new(FailureKind::Compile, known.cause.clone());
                Forecast::Fails(failure, reported)
            }
            None => Forecast::Open(Vec::new()),
        }
    }
}

/// Runs one agent; its build takes `long`, and creates the product or fails on every host.
async fn agent(
    claim: ClaimObject<Publishes>,
    product: &FakeProduct,
    times: Times,
    long: Duration,
) -> &'static str {
    let claims = Claims::default();
    let me = Builder::here("modules");
    let election =
        Election { backend: Arc::new(claim), me, times, claims: &claims, progress: &Silent };
    match election.elect(product).await {
        Outcome::Found(()) => "found",
        Outcome::Mine(held) => {
            let building = product.building.fetch_add(1, Ordering::SeqCst) + 1;
            product.most.fetch_max(building, Ordering::SeqCst);
            sleep(long).await;
            product.building.fetch_sub(1, Ordering::SeqCst);
            if product.fails {
                held.fail(known('a')).await;
                return "failed";
            }
            product.there.store(true, Ordering::SeqCst);
            held.release().await;
            "built"
        }
        Outcome::Alone(Alone::NoBackend(_)) => "no backend",
        Outcome::Alone(Alone::InVain(_)) => "in vain",
    }
}

fn counted(ends: &[&'static str]) -> BTreeMap<&'static str, usize> {
    ends.iter().fold(BTreeMap::new(), |mut counts, end| {
        *counts.entry(*end).or_default() += 1;
        counts
    })
}

/// Agents that all begin at the same moment.
async fn together(
    server: &Leases,
    product: &FakeProduct,
    times: Times,
    count: usize,
) -> BTreeMap<&'static str, usize> {
    let long = times.lease.min(2 * LEASE);
    let agents = (0..count).map(|_| agent(backend(server.cluster(QUICK)), product, times, long));
    counted(&futures_util::future::join_all(agents).await)
}

#[tokio::test]
async fn of_a_thousand_one_builds_and_nothing_is_left() {
    let (server, product) = (Leases::default(), FakeProduct::default());
    // A busy machine serves a thousand reads well within a lease.
    let times = Times { lease: 14 * LEASE, wait: Duration::from_secs(120) };
    let ends = together(&server, &product, times, 1000).await;
    assert_eq!(ends, BTreeMap::from([("built", 1), ("found", 999)]));
    assert_eq!(server.objects(), BTreeMap::new());
}

#[rstest]
#[case::conflicts(Fault::Status(409))]
#[case::lost_answers(Fault::LostAnswer)]
#[case::busy(Fault::Status(429))]
#[tokio::test]
async fn faults_in_every_third_answer_do_not_make_two_build(#[case] fault: Fault) {
    let (server, product) = (Leases::default(), FakeProduct::default());
    let mut count = 0;
    server.fail_by(move |method| {
        count += 1;
        // A read never conflicts.
        let applies = method != "GET" || fault != Fault::Status(409);
        (count % 3 == 0 && applies).then(|| fault.clone())
    });
    let ends = together(&server, &product, TIMES, 40).await;
    assert_eq!(ends, BTreeMap::from([("built", 1), ("found", 39)]));
    assert_eq!(product.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn conflicts_without_end_are_waited_for_no_longer_than_was_said() {
    let (server, product) = (Leases::default(), FakeProduct::default());
    server.fail_by(|method| (method == "POST").then_some(Fault::Status(409)));
    let times = Times { wait: LEASE, ..TIMES };
    let ends = agent(backend(server.cluster(QUICK)), &product, times, LEASE);
    assert_eq!(timeout(20 * LEASE, ends).await, Ok("in vain"));
    let requests = server.requests().len();
    assert!(requests < 500, "{requests} requests: it pauses between the tries");
}

#[rstest]
#[case::forbidden(Fault::Status(403))]
#[case::no_api(Fault::Status(500))]
#[case::hangs(Fault::Silence)]
#[tokio::test]
async fn a_server_that_refuses_or_hangs_is_no_backend(#[case] fault: Fault) {
    let (server, product) = (Leases::default(), FakeProduct::default());
    server.fail_by(move |_| Some(fault.clone()));
    let limits = Limits { call: Duration::from_millis(100), tries: 2, ..QUICK };
    let begun = Instant::now();
    let end = agent(backend(server.cluster(limits)), &product, TIMES, LEASE).await;
    assert_eq!(end, "no backend");
    assert!(begun.elapsed() < 2 * LEASE, "{:?}", begun.elapsed());
}

/// Registry's claim in memory, as the last writer left it.
#[derive(Default)]
struct Registry(tokio::sync::Mutex<Option<StoredClaim>>, AtomicUsize);

impl LeaseBackend for Registry {
    const COMPARES: bool = false;

    async fn prepare(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn read(&self) -> Result<Option<StoredClaim>, Failure> {
        Ok(self.0.lock().await.clone())
    }

    async fn write(&self, claim: &Claim, _: Option<&str>) -> Result<Option<String>, Failure> {
        let mark = self.1.fetch_add(1, Ordering::SeqCst).to_string();
        let stored = StoredClaim { mark: mark.clone(), claim: claim.clone() };
        *self.0.lock().await = Some(stored);
        Ok(Some(mark))
    }

    async fn withdraw(&self, mark: &str) -> Result<bool, Failure> {
        let mut stored = self.0.lock().await;
        if stored.as_ref().is_some_and(|stored| stored.mark == mark) {
            *stored = None;
        }
        Ok(true)
    }
}

#[rstest]
#[case::reads(None, 0)]
#[case::writes(Some("POST"), 0)]
#[case::hangs(None, 1)]
#[tokio::test]
async fn agents_that_a_cluster_refuses_agree_by_the_registry(
    #[case] method: Option<&'static str>,
    #[case] hangs: usize,
) {
    let (server, registry) = (Leases::default(), Arc::new(Registry::default()));
    let product = FakeProduct::default();
    let fault = if hangs > 0 { Fault::Silence } else { Fault::Status(403) };
    server.fail_by(move |asked| method.is_none_or(|m| m == asked).then(|| fault.clone()));
    let limits = Limits { call: Duration::from_millis(100), tries: 2, ..QUICK };
    let agents = (0..5).map(|_| async {
        let (claims, me) = (Claims::default(), Builder::here("modules"));
        let backend = Arc::new(backend(server.cluster(limits)));
        let election = Election { backend, me, times: TIMES, claims: &claims, progress: &Silent };
        match election.elect_or(Arc::clone(&registry), &product).await {
            Outcome::Found(()) => "found",
            Outcome::Mine(held) => {
                sleep(LEASE).await;
                product.there.store(true, Ordering::SeqCst);
                held.release().await;
                "built"
            }
            _ => "neither",
        }
    });
    let ends = counted(&futures_util::future::join_all(agents).await);
    assert_eq!(ends, BTreeMap::from([("built", 1), ("found", 4)]));
    assert!(registry.0.lock().await.is_none(), "it was released");
    assert!(registry.1.load(Ordering::SeqCst) >= 2, "asking and building");
}

#[tokio::test]
async fn who_cannot_publish_claims_nothing() {
    let (server, product) = (Leases::default(), FakeProduct::default());
    let cluster = server.cluster(QUICK);
    let claim = ClaimObject::new(cluster, NAMESPACE.to_owned(), KEY, Publishes(false));
    assert_eq!(agent(claim, &product, TIMES, LEASE).await, "no backend");
    assert!(server.requests().iter().all(|line| line.starts_with("GET ")));
}

/// Another agent's claim at `stage`, in an object that says that it was renewed long ago or will be
/// in years.
fn of_another(stage: Stage, renewed: &str) -> serde_json::Value {
    let claim = Claim { stage, ..Claim::new(Builder::here("modules"), &TIMES, Vec::new()) };
    let text = serde_json::to_string(&claim).expect("json");
    let spec = json!({
        "holderIdentity": "other", "leaseDurationSeconds": 1, "leaseTransitions": 4,
        "acquireTime": renewed, "renewTime": renewed,
    });
    json!({"metadata": {"annotations": {CLAIM: text}}, "spec": spec})
}

#[rstest]
#[case("1999-01-01T00:00:00.000000Z")]
#[case("2199-01-01T00:00:00.000000Z")]
#[tokio::test]
async fn a_claim_runs_out_by_the_reader_s_own_clock(#[case] renewed: &str) {
    let (server, product) = (Leases::default(), FakeProduct::default());
    let name = name_of(KEY);
    server.put(&name, of_another(Stage::Building, renewed));
    let begun = Instant::now();
    let builds = agent(backend(server.cluster(QUICK)), &product, TIMES, Duration::ZERO);
    assert_eq!(builds.await, "built");
    assert!(begun.elapsed() >= LEASE, "{:?}", begun.elapsed());
    assert!(begun.elapsed() < 4 * LEASE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn people_see_who_builds_and_the_number_of_holders() {
    let (server, product) = (Leases::default(), FakeProduct::default());
    let name = name_of(KEY);
    server.put(&name, of_another(Stage::Done, "2026-01-01T00:00:00.000000Z"));
    let builds = agent(backend(server.cluster(QUICK)), &product, TIMES, 2 * LEASE);
    let sees = async {
        let ours = || server.objects()[&name]["spec"]["leaseTransitions"] == 5;
        while !ours() {
            sleep(LEASE / 50).await;
        }
        let spec = |server: &Leases| server.objects()[&name]["spec"].clone();
        let first = spec(&server);
        assert_eq!(first["holderIdentity"], Builder::here("").host);
        assert_eq!(first["leaseDurationSeconds"], 2);
        while spec(&server)["renewTime"] == first["renewTime"] {
            sleep(LEASE / 50).await;
        }
        let renewed = spec(&server);
        assert_eq!(renewed["acquireTime"], first["acquireTime"]);
        assert_eq!(renewed["leaseTransitions"], 5);
    };
    let (end, ()) = tokio::join!(builds, sees);
    assert_eq!(end, "built");
}

#[rstest]
#[case::no_claim(json!({"metadata": {}}))]
#[case::no_json(json!({"metadata": {"annotations": {CLAIM: "\u{1b}[2J"}}}))]
#[case::a_megabyte(json!({"metadata": {"annotations": {CLAIM: "x".repeat(1 << 20)}}}))]
#[tokio::test]
async fn an_object_without_a_valid_claim_is_overwritten(#[case] object: serde_json::Value) {
    let (server, product) = (Leases::default(), FakeProduct::default());
    server.put(&name_of(KEY), object);
    let ends = together(&server, &product, TIMES, 10).await;
    assert_eq!(ends, BTreeMap::from([("built", 1), ("found", 9)]));
    assert_eq!(server.objects(), BTreeMap::new());
}

#[tokio::test]
async fn a_failure_of_every_host_is_kept_for_those_who_come_and_delays_them() {
    let (server, product) =
        (Leases::default(), FakeProduct { fails: true, ..FakeProduct::default() });
    let claim = || backend(server.cluster(QUICK));
    assert_eq!(agent(claim(), &product, TIMES, Duration::ZERO).await, "failed");
    let object = &server.objects()[&name_of(KEY)];
    assert!(object["spec"].get("holderIdentity").is_none(), "nobody holds it: {object}");
    let (times, since) = (Times { wait: 4 * LEASE, ..TIMES }, Instant::now());
    assert_eq!(agent(claim(), &product, times, Duration::ZERO).await, "failed", "it tries itself");
    assert!(since.elapsed() >= times.wait, "{:?}", since.elapsed());
}

#[tokio::test]
async fn an_account_that_may_not_delete_leaves_an_ended_claim() {
    let (server, product) = (Leases::default(), FakeProduct::default());
    server.fail_by(|method| (method == "DELETE").then_some(Fault::Status(403)));
    let ends = together(&server, &product, TIMES, 5).await;
    assert_eq!(ends, BTreeMap::from([("built", 1), ("found", 4)]));
    let text = server.objects()[&name_of(KEY)]["metadata"]["annotations"][CLAIM].clone();
    let claim: Claim = serde_json::from_str(text.as_str().expect("text")).expect("a claim");
    assert_eq!(claim.stage, Stage::Done);
    product.there.store(false, Ordering::SeqCst);
    let next = agent(backend(server.cluster(QUICK)), &product, TIMES, Duration::ZERO).await;
    assert_eq!(next, "built", "the ended claim is free");
}

#[tokio::test]
async fn a_claim_that_somebody_deletes_is_written_anew() {
    let (server, product) = (Leases::default(), FakeProduct::default());
    let builds = agent(backend(server.cluster(QUICK)), &product, TIMES, 2 * LEASE);
    let deletes = async {
        while server.objects().is_empty() {
            sleep(LEASE / 50).await;
        }
        let cluster = server.cluster(QUICK);
        let there = cluster.read_lease(NAMESPACE, &name_of(KEY)).await.expect("read");
        let version = there.expect("there").version;
        cluster.remove_lease(NAMESPACE, &name_of(KEY), &version).await.expect("removed");
        while server.objects().is_empty() {
            sleep(LEASE / 50).await;
        }
    };
    let (end, ()) = tokio::join!(builds, deletes);
    assert_eq!(end, "built");
    assert_eq!(server.objects(), BTreeMap::new());
}

#[test]
fn a_key_is_the_name_of_an_object() {
    let name = name_of(KEY);
    assert_eq!(name.len(), "longshore-build-".len() + 16);
    assert_ne!(name, name_of("registry.example.org/a:claim"));
    assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
}

#[tokio::test]
async fn a_process_outside_of_a_cluster_has_no_such_claim() {
    let found = ClaimObject::of_pod(&|_| None, KEY, Publishes(true)).expect("no failure");
    assert!(found.is_none());
}
