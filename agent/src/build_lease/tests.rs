//! Tests with agents and a backend in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rstest::rstest;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::election::REPORTED_DELAY;
use super::*;
use longshore_build::testing::known;
use longshore_core::failure::FailureKind;
use longshore_core::progress::Silent;

/// Short, but long compared with the delays of a busy machine.
const LEASE: Duration = Duration::from_millis(1500);
const TIMES: Times = Times { lease: LEASE, wait: Duration::from_secs(60) };

#[derive(Default)]
struct Memory {
    stored: Mutex<Option<StoredClaim>>,
    writes: AtomicUsize,
    /// True if it does not support removal.
    keeps: bool,
    /// True if it is unreachable.
    away: AtomicBool,
    /// Number of claims it refuses before it accepts one.
    refuses: AtomicUsize,
}

impl Memory {
    fn check(&self) -> Result<(), Failure> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(Failure::new(FailureKind::Download, "the backend is unreachable")),
            false => Ok(()),
        }
    }

    async fn put(&self, claim: Claim) {
        let mark = self.writes.fetch_add(1, Ordering::SeqCst).to_string();
        *self.stored.lock().await = Some(StoredClaim { mark, claim });
    }
}

impl LeaseBackend for Memory {
    const COMPARES: bool = false;

    async fn prepare(&self) -> Result<(), Failure> {
        self.check()
    }

    async fn read(&self) -> Result<Option<StoredClaim>, Failure> {
        self.check()?;
        Ok(self.stored.lock().await.clone())
    }

    async fn write(&self, claim: &Claim, _: Option<&str>) -> Result<Option<String>, Failure> {
        self.check()?;
        let less = |n: usize| n.checked_sub(1);
        if self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Err(Failure::new(FailureKind::Download, "the backend refuses the claim"));
        }
        self.put(claim.clone()).await;
        Ok(self.stored.lock().await.as_ref().map(|p| p.mark.clone()))
    }

    async fn withdraw(&self, mark: &str) -> Result<bool, Failure> {
        let mut stored = self.stored.lock().await;
        if !self.keeps && stored.as_ref().is_some_and(|p| p.mark == mark) {
            *stored = None;
        }
        Ok(!self.keeps)
    }
}

/// The built product: set when it exists.
#[derive(Default)]
struct FakeProduct {
    there: AtomicBool,
    builds: AtomicUsize,
    /// Inputs of its build.
    inputs: Option<char>,
    /// True if its build fails on every host.
    fails: bool,
    /// True if it is built despite a known failure.
    retries: bool,
}

impl FakeProduct {
    fn failing(inputs: char) -> Arc<Self> {
        Arc::new(Self { inputs: Some(inputs), fails: true, ..Self::default() })
    }
}

impl Search for FakeProduct {
    type Product = ();

    async fn look(&self) -> Result<Option<()>, Failure> {
        Ok(self.there.load(Ordering::SeqCst).then_some(()))
    }

    async fn judge(&self, reported: Vec<KnownFailure>) -> Forecast {
        let ours = self.inputs.map(|inputs| known(inputs).inputs);
        if self.retries {
            return Forecast::Open(Vec::new());
        }
        match reported.iter().find(|known| Some(&known.inputs) == ours.as_ref()) {
            Some(known) => {
                let failure = Failure::new(FailureKind::Compile, known.cause.clone());
                Forecast::Fails(failure, reported)
            }
            None => Forecast::Open(reported),
        }
    }
}

/// Runs one agent; its build takes `long` and creates the product, if `well`.
async fn agent(
    backend: Arc<Memory>,
    product: Arc<FakeProduct>,
    long: Duration,
    well: bool,
) -> &'static str {
    agent_within(TIMES, backend, product, long, well).await
}

/// The same with other time limits.
async fn agent_within(
    times: Times,
    backend: Arc<Memory>,
    product: Arc<FakeProduct>,
    long: Duration,
    well: bool,
) -> &'static str {
    let me = Builder::here("modules");
    let round = Election { backend, me, times, claims: &Claims::default(), progress: &Silent };
    match round.elect(&*product).await {
        Outcome::Found(()) => "found",
        Outcome::Mine(held) => {
            product.builds.fetch_add(1, Ordering::SeqCst);
            sleep(long).await;
            if let Some(inputs) = product.inputs.filter(|_| product.fails) {
                held.fail(known(inputs)).await;
                return "failed";
            }
            product.there.fetch_or(well, Ordering::SeqCst);
            held.release().await;
            "built"
        }
        Outcome::Alone(Alone::NoBackend(_)) => "no backend",
        Outcome::Alone(Alone::InVain(_)) => "in vain",
    }
}

/// Another agent's claim, at `stage`.
fn other(stage: Stage) -> Claim {
    Claim { stage, ..Claim::new(Builder::here("modules"), &TIMES, Vec::new()) }
}

#[tokio::test(start_paused = true)]
async fn a_board_that_refuses_a_claim_is_asked_twice_more() {
    // A refusal counts as slow, and is not retried, after a twentieth of the lease.
    let times = Times { lease: Duration::from_secs(40), ..TIMES };
    for (refuses, wanted, builds) in [(2, "built", 1), (3, "no backend", 0)] {
        let (backend, product) = (Arc::new(Memory::default()), Arc::new(FakeProduct::default()));
        backend.refuses.store(refuses, Ordering::SeqCst);
        let how = agent_within(times, backend, product.clone(), Duration::ZERO, true).await;
        assert_eq!((how, product.builds.load(Ordering::SeqCst)), (wanted, builds), "{refuses}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_that_start_together_build_once() {
    for keeps in [false, true] {
        let backend = Arc::new(Memory { keeps, ..Memory::default() });
        let product = Arc::new(FakeProduct::default());
        let agents = (0..20).map(|_| agent(backend.clone(), product.clone(), 2 * LEASE, true));
        let ends = futures_util::future::join_all(agents).await;
        assert_eq!(ends.iter().filter(|end| **end == "built").count(), 1, "{ends:?}");
        assert_eq!(ends.iter().filter(|end| **end == "found").count(), 19, "{ends:?}");
        let left = backend.stored.lock().await.take();
        assert_eq!(left.map(|p| p.claim.stage), keeps.then_some(Stage::Done));
    }
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_dead_builder_runs_out_and_one_takes_over() {
    let backend = Arc::new(Memory::default());
    backend.put(other(Stage::Building)).await;
    let product = Arc::new(FakeProduct::default());
    let since = Instant::now();
    let agents = (0..8).map(|_| agent(backend.clone(), product.clone(), LEASE / 10, true));
    let ends = futures_util::future::join_all(agents).await;
    assert!(since.elapsed() >= LEASE, "{:?}", since.elapsed());
    assert_eq!(ends.iter().filter(|end| **end == "built").count(), 1, "{ends:?}");
    assert_eq!(product.builds.load(Ordering::SeqCst), 1);
}

/// A claim of this process on an empty backend, not renewed for minutes.
async fn held(backend: &Arc<Memory>, claims: &Claims, claim: Claim) -> Lease {
    let times = Times { lease: 20 * LEASE, wait: LEASE };
    let held = Lease::ask(backend.clone(), claim, Instant::now(), None, times, claims).await;
    held.expect("writes").expect("nobody else")
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_builder_that_is_dropped_is_given_back() {
    for keeps in [false, true] {
        let backend = Arc::new(Memory { keeps, ..Memory::default() });
        let claims = Claims::default();
        claims.all_released(Duration::ZERO).await;
        let held = held(&backend, &claims, other(Stage::Asking)).await;
        let builds = async {
            let _held = held;
            std::future::pending::<()>().await;
        };
        tokio::time::timeout(Duration::ZERO, builds).await.expect_err("it was stopped");
        claims.all_released(LEASE).await;
        let left = backend.stored.lock().await.take();
        assert_eq!(left.map(|p| p.claim.stage), keeps.then_some(Stage::Done));
    }
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_one_who_is_dropped_while_it_asks_is_given_back() {
    for keeps in [false, true] {
        let backend = Arc::new(Memory { keeps, ..Memory::default() });
        let claims = Claims::default();
        let times = Times { lease: Duration::from_secs(3600), wait: LEASE };
        let asks =
            Lease::ask(backend.clone(), other(Stage::Asking), Instant::now(), None, times, &claims);
        tokio::time::timeout(LEASE / 4, asks).await.err().expect("it was stopped");
        assert_eq!(backend.writes.load(Ordering::SeqCst), 1, "it asked");
        claims.all_released(LEASE).await;
        let left = backend.stored.lock().await.take();
        assert_eq!(left.map(|p| p.claim.stage), keeps.then_some(Stage::Done));
    }
}

/// Times with a wait that is longer than any delay by a report.
const PATIENT: Times = Times { lease: LEASE, wait: Duration::from_secs(3600) };

/// True for a time of a delay by a report, with the duration of the builds and polls after it.
fn is_delayed(took: Duration) -> bool {
    (REPORTED_DELAY..2 * REPORTED_DELAY + 20 * LEASE).contains(&took)
}

#[tokio::test(start_paused = true)]
async fn what_fails_on_every_host_delays_those_who_wait_and_come_and_ends_none() {
    for keeps in [false, true] {
        let backend = Arc::new(Memory { keeps, ..Memory::default() });
        let product = FakeProduct::failing('a');
        let agents = (0..20).map(async |_| {
            let since = Instant::now();
            let (backend, product) = (backend.clone(), product.clone());
            let end = agent_within(PATIENT, backend, product, 2 * LEASE, true).await;
            (end, since.elapsed())
        });
        let ends = futures_util::future::join_all(agents).await;
        let tries = |(end, _): &&(&str, Duration)| matches!(*end, "failed" | "in vain");
        assert_eq!(ends.iter().filter(tries).count(), 20, "each of them tries: {ends:?}");
        let at_once = ends.iter().filter(|(_, took)| *took < REPORTED_DELAY).count();
        assert_eq!(at_once, 1, "{ends:?}");
        let delayed = ends.iter().filter(|(_, took)| is_delayed(*took)).count();
        assert_eq!(delayed, 19, "{ends:?}");
    }
}

/// Claims with a failure that no host had, by a writer that has no set: one that writes it once, and one that does
/// so again and again.
#[rstest]
#[case::once(None)]
#[case::anew_each_minute(Some(Duration::from_secs(60)))]
#[tokio::test(start_paused = true)]
async fn an_unsigned_failure_of_another_host_only_delays(#[case] anew: Option<Duration>) {
    let backend = Arc::new(Memory::default());
    let forged = async |n: u32| {
        let mut failure = known('a');
        failure.at += jiff::SignedDuration::from_secs(i64::from(n));
        failure.cause = format!("forged {n}");
        backend.put(Claim { failures: vec![failure], ..other(Stage::Done) }).await;
    };
    forged(0).await;
    let product = Arc::new(FakeProduct { inputs: Some('a'), ..FakeProduct::default() });
    let since = Instant::now();
    let agent = agent_within(PATIENT, backend.clone(), product.clone(), LEASE, true);
    let forges = async {
        let Some(anew) = anew else { return std::future::pending().await };
        for n in 1.. {
            sleep(anew).await;
            forged(n).await;
        }
    };
    let end = tokio::select! { end = agent => end, () = forges => unreachable!() };
    assert_eq!((end, product.builds.load(Ordering::SeqCst)), ("built", 1));
    assert!(is_delayed(since.elapsed()), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reported_failure_delays_for_the_longest_wait_at_most_and_until_a_set_is_there() {
    for (appears, wanted) in [(false, "built"), (true, "found")] {
        let backend = Arc::new(Memory::default());
        backend.put(Claim { failures: vec![known('a')], ..other(Stage::Done) }).await;
        let product = Arc::new(FakeProduct { inputs: Some('a'), ..FakeProduct::default() });
        let since = Instant::now();
        let agent = agent_within(TIMES, backend, product.clone(), LEASE, true);
        let happens = async {
            sleep(TIMES.wait / 2).await;
            product.there.fetch_or(appears, Ordering::SeqCst);
        };
        let (end, ()) = tokio::join!(agent, happens);
        assert_eq!(end, wanted);
        assert!(since.elapsed() < TIMES.wait + 5 * LEASE, "{:?}", since.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_other_inputs_keeps_nobody_from_building_and_is_told_on() {
    let backend = Arc::new(Memory::default());
    let since = Instant::now();
    for inputs in ['a', 'b'] {
        let product = FakeProduct::failing(inputs);
        assert_eq!(agent(backend.clone(), product, Duration::ZERO, true).await, "failed");
    }
    assert!(since.elapsed() < 10 * LEASE, "{:?}", since.elapsed());
    let reported = backend.stored.lock().await.as_ref().map(|p| p.claim.failures.clone());
    let inputs: Vec<_> = reported.expect("a claim").into_iter().map(|known| known.inputs).collect();
    assert_eq!(inputs, [known('a').inputs, known('b').inputs]);
    // Also while another agent builds.
    let claims = Claims::default();
    let lease = u64::try_from((20 * LEASE).as_millis()).expect("some seconds");
    let claim = Claim { failures: vec![known('a')], lease, ..other(Stage::Asking) };
    let held = held(&backend, &claims, claim).await;
    let (product, since) = (FakeProduct::failing('a'), Instant::now());
    assert_eq!(agent(backend.clone(), product, LEASE, true).await, "in vain");
    assert!(since.elapsed() >= TIMES.wait);
    held.release().await;
    let left = backend.stored.lock().await.take().expect("it still tells").claim;
    assert_eq!((left.stage, left.failures.len()), (Stage::Done, 1));
}

#[tokio::test(start_paused = true)]
async fn who_tries_again_builds_at_once_and_takes_the_failure_off() {
    for (fails, end) in [(false, "built"), (true, "failed")] {
        let backend = Arc::new(Memory::default());
        agent(backend.clone(), FakeProduct::failing('a'), Duration::ZERO, true).await;
        let inputs = Some('a');
        let again =
            Arc::new(FakeProduct { inputs, fails, retries: true, ..FakeProduct::default() });
        let since = Instant::now();
        assert_eq!(agent(backend.clone(), again, Duration::ZERO, true).await, end);
        assert!(since.elapsed() < 10 * LEASE, "{:?}", since.elapsed());
        let left = backend.stored.lock().await.take().map(|p| p.claim.failures.len());
        assert_eq!(left, fails.then_some(1));
    }
}

#[test]
fn the_page_about_deadlines_has_the_delay() {
    let row = "A build of which another host reported that it fails";
    longshore_core::testing::assert_in_page(row, REPORTED_DELAY);
}

#[test]
fn a_claim_tells_no_more_than_is_understood_and_bounded() {
    let claim = Claim { failures: vec![known('a')], ..other(Stage::Done) };
    let mut json = serde_json::to_value(&claim).expect("serializes");
    assert_eq!(serde_json::from_value::<Claim>(json.clone()).expect("reads"), claim);
    let reported = json["failures"].as_array_mut().expect("failures");
    reported.insert(0, serde_json::json!({"inputs": 1, "of": "another longshore"}));
    assert_eq!(serde_json::from_value::<Claim>(json.clone()).expect("reads"), claim);
    let reported = json["failures"].as_array_mut().expect("failures");
    *reported = vec![reported[1].clone(); MOST_FAILURES + 1];
    let read: Claim = serde_json::from_value(json.clone()).expect("reads");
    assert_eq!(read.failures.len(), MOST_FAILURES);
    // As earlier versions of longshore wrote it.
    json.as_object_mut().expect("an object").remove("failures");
    assert!(serde_json::from_value::<Claim>(json).expect("reads").failures.is_empty());
}

#[tokio::test(start_paused = true)]
async fn builders_that_give_up_are_followed_by_so_many_and_then_by_all() {
    let backend = Arc::new(Memory::default());
    let product = Arc::new(FakeProduct::default());
    let agents = (0..6).map(|_| agent(backend.clone(), product.clone(), LEASE / 2, false));
    let ends = futures_util::future::join_all(agents).await;
    let built = ends.iter().filter(|end| **end == "built").count();
    assert!((3..=4).contains(&built), "{ends:?}");
    assert_eq!(ends.iter().filter(|end| **end == "in vain").count(), 6 - built, "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_was_said() {
    let backend = Arc::new(Memory::default());
    backend.put(other(Stage::Building)).await;
    let me = Builder::here("modules");
    let times = Times { lease: Duration::from_secs(3600), wait: Duration::ZERO };
    let round = Election { backend, me, times, claims: &Claims::default(), progress: &Silent };
    let outcome = round.elect(&FakeProduct::default()).await;
    assert!(matches!(outcome, Outcome::Alone(Alone::InVain(_))));
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_board_everybody_builds() {
    let backend = Arc::new(Memory::default());
    backend.away.store(true, Ordering::SeqCst);
    let end = agent(backend, Arc::default(), LEASE, true).await;
    assert_eq!(end, "no backend");
}

#[tokio::test(start_paused = true)]
async fn a_board_that_is_away_for_a_moment_is_no_reason_to_build() {
    let backend = Arc::new(Memory::default());
    backend.put(other(Stage::Building)).await;
    let product = Arc::new(FakeProduct::default());
    let waits = agent(backend.clone(), product.clone(), LEASE, true);
    let happens = async {
        sleep(LEASE / 4).await;
        backend.away.store(true, Ordering::SeqCst);
        sleep(LEASE / 4).await;
        backend.away.store(false, Ordering::SeqCst);
        product.there.store(true, Ordering::SeqCst);
        *backend.stored.lock().await = None;
    };
    let (end, ()) = tokio::join!(waits, happens);
    assert_eq!(end, "found");
}

#[tokio::test(start_paused = true)]
async fn a_builder_writes_over_who_only_asks_and_leaves_who_builds_too() {
    let backend = Arc::new(Memory::default());
    let claim = other(Stage::Asking);
    let claims = Claims::default();
    let asked = Lease::ask(backend.clone(), claim.clone(), Instant::now(), None, TIMES, &claims);
    let held = asked.await.expect("writes").expect("nobody else");
    let nonce = async || backend.stored.lock().await.as_ref().map(|p| p.claim.nonce.clone());
    backend.put(other(Stage::Asking)).await;
    let since = Instant::now();
    while nonce().await.as_ref() != Some(&claim.nonce) {
        assert!(since.elapsed() < 20 * LEASE, "it does not write anew");
        sleep(LEASE / 50).await;
    }
    let second = other(Stage::Building);
    backend.put(second.clone()).await;
    sleep(LEASE).await;
    assert_eq!(nonce().await, Some(second.nonce.clone()));
    held.release().await;
    assert_eq!(nonce().await, Some(second.nonce));
}
