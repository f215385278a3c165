//! Servers that do not answer: they cost little time, and only once.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longshore_core::failure::{ExitCode, Failure};
use longshore_core::progress::Silent;
use longshore_fetch::http::{Fetcher, Policy};
use longshore_modules::registry::Registry;
use longshore_modules::registry::RegistrySource;
use longshore_sources::runfile::{self, Looked};
use longshore_sources::runfile::{Pin, RunFileSource};
use longshore_sources::testing::without_registries;
use nix::sys::socket::{Backlog, listen};

use crate::scene::{Scene, Source, hasty};
use longshore_tests::run_file;

/// An address whose packets are dropped: its queue is full.
struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        listen(&listener, Backlog::new(1).expect("a length")).expect("a shorter queue");
        let queued = std::iter::from_fn(|| {
            TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()
        });
        let queued: Vec<_> = queued.take(16).collect();
        assert!(queued.len() < 16, "the queue is never full");
        Self { address, _listener: listener, _queued: queued }
    }
}

/// Starts a server that accepts connections and sends nothing; counts them.
fn mute() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            // Until the client disconnects.
            std::thread::spawn(move || while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {});
        }
    });
    (address, count)
}

/// Policy that allows two attempts: the first is silent for a second, or somewhat more on a busy
/// machine, and the time is over after the second.
fn policy() -> Policy {
    let (connect, stall) = (Duration::from_millis(700), Duration::from_secs(1));
    Policy { connect, stall, silence: Duration::from_millis(1950), ..hasty() }
}

const BOUND: Duration = Duration::from_secs(20);

async fn look_and_fetch(scene: &Scene, first: SocketAddr) -> Result<(), Failure> {
    let pin = Pin::Sha256(longshore_tests::archive::digest(&run_file::run_file()));
    let urls = [format!("http://{first}"), scene.server.url()];
    let urls = urls.map(|url| format!("{url}{}", run_file::PATH)).to_vec();
    let fetcher = Fetcher::new(policy(), Path::new("/"))?;
    let source = RunFileSource { urls, pin };
    let looked = runfile::look(&source, without_registries(&fetcher), &scene.store).await?;
    let Looked::Known(found) = looked else { panic!("the form of it is known") };
    runfile::fetch(&found, without_registries(&fetcher), &scene.store, &Silent).await.map(drop)
}

#[tokio::test]
async fn a_mirror_behind_a_black_hole_is_left_for_the_next() {
    let (scene, hole) = (Scene::new(Source::RunFile), BlackHole::new());
    let since = Instant::now();
    let fetched = look_and_fetch(&scene, hole.address).await;
    fetched.unwrap_or_else(|failure| panic!("{}", failure.report()));
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    scene.assert_fetched("from the second mirror");
}

#[tokio::test]
async fn a_mirror_that_says_nothing_is_not_asked_again() {
    let (scene, (address, asked)) = (Scene::new(Source::RunFile), mute());
    let since = Instant::now();
    let fetched = look_and_fetch(&scene, address).await;
    fetched.unwrap_or_else(|failure| panic!("{}", failure.report()));
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    assert_eq!(asked.load(Ordering::SeqCst), 2, "twice for the header, never for the file");
    scene.assert_fetched("from the second mirror");
}

#[tokio::test]
async fn a_registrys_mirror_that_says_nothing_is_not_asked_again() {
    let (scene, (address, asked)) = (Scene::new(Source::Module), mute());
    let parse = |url: String| format!("{url}/nvidia/modules").parse().expect("a repository");
    let source = RegistrySource {
        reference: parse(scene.server.url()),
        mirrors: vec![parse(format!("http://{address}"))],
    };
    let registry =
        Registry::open_with(policy(), &source, Path::new("/"), &|_| None).expect("opens");
    let digest = scene.digest();
    for _ in 0..2 {
        registry.describe(digest).await.expect("described");
    }
    registry.pull(digest, &scene.store, &Silent).await.expect("pulled");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "once, and once again");
    scene.assert_fetched("from the registry itself");
}

#[tokio::test]
async fn the_only_server_that_says_nothing_is_named_with_what_was_seen() {
    let hole = BlackHole::new();
    let fetcher = Fetcher::new(policy(), Path::new("/")).expect("a fetcher");
    let url = |path: &str| format!("http://{}/{path}", hole.address);
    let failures = [
        Failure::from(fetcher.bytes(&url("a"), 100).await.expect_err("refused")),
        Failure::from(fetcher.bytes(&url("b"), 100).await.expect_err("refused")),
    ];
    for (failure, path) in failures.iter().zip(["a", "b"]) {
        assert_eq!(failure.code(), ExitCode::Download);
        let report = failure.report();
        assert!(report.contains(&url(path)) && report.contains("no connection within"), "{report}");
    }
    assert!(failures[1].report().contains("not asked again"), "{}", failures[1].report());
}
