use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use rstest::rstest;

use super::connections::MOST as MOST_CONNECTIONS;
use super::*;
use crate::config::TlsFiles;
use crate::endpoint::Serving;
use crate::endpoint::client::{self, AgentResponse, Unanswered};
use crate::journal::phase::Phase;
use crate::journal::private_dir::PrivateDir;
use crate::telemetry::{DriverInfo, Telemetry};
use longshore_core::paths::Paths;
use longshore_host::facts::process_files::Looker;

/// A server of an agent with a given state, and with a running task.
struct Scene {
    server: Option<Server>,
    dir: tempfile::TempDir,
    telemetry: Telemetry,
    /// None: the agent's task has ended.
    responder: Option<Responder>,
}

/// Listener of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Socket,
    Tcp,
}

/// A client's connection.
trait Connection: Read + Write + Send {}

impl<T: Read + Write + Send> Connection for T {}

fn on(listen: &str) -> ServingConfig {
    ServingConfig { listen: listen.parse().expect("address"), ..ServingConfig::default() }
}

impl Scene {
    fn new(config: &ServingConfig) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let telemetry = Telemetry::default();
        let (probe, responder) = LivenessProbe::new();
        let paths = Paths::below(dir.path());
        PrivateDir::make(&paths.state).expect("state directory");
        let subject = Subject::new(telemetry.clone(), probe, paths, Looker::default());
        let server = Server::begin(config, subject);
        let scene = Self { server, dir, telemetry, responder: Some(responder) };
        publish(scene.server.as_ref(), &scene.state(), Disk::default());
        scene
    }

    fn tcp() -> Self {
        Self::new(&on("127.0.0.1:0"))
    }

    fn state(&self) -> PathBuf {
        Paths::below(self.dir.path()).state
    }

    /// Returns the address of the metrics, once it listens.
    fn listen(&self) -> String {
        let since = Instant::now();
        loop {
            let serving = Serving::read(&self.state()).expect("its own directory");
            if let Some(listen) = serving.and_then(|serving| serving.listen) {
                return listen;
            }
            assert!(since.elapsed() < HEAD, "it does not listen");
            thread::yield_now();
        }
    }

    /// Asks over the agent's socket, once it is there.
    fn ask(&self, path: &str) -> AgentResponse {
        let since = Instant::now();
        loop {
            match client::ask(&self.state(), path, WHOLE) {
                Err(Unanswered::NotServed) if since.elapsed() < HEAD => thread::yield_now(),
                answer => return answer.expect("an answer"),
            }
        }
    }

    /// Sends bytes and returns the whole answer.
    fn raw(&self, over: Over, bytes: &[u8]) -> String {
        let mut stream = self.connect(over);
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn connect(&self, over: Over) -> Box<dyn Connection> {
        let limit = Some(2 * HEAD);
        match over {
            Over::Socket => {
                let path = self.state().join(SOCKET);
                let since = Instant::now();
                while !path.exists() {
                    assert!(since.elapsed() < HEAD, "it has no socket");
                    thread::yield_now();
                }
                let stream = UnixStream::connect(path).expect("connects");
                stream.set_read_timeout(limit).expect("timeout");
                Box::new(stream)
            }
            Over::Tcp => {
                let stream = TcpStream::connect(self.listen()).expect("connects");
                stream.set_read_timeout(limit).expect("timeout");
                Box::new(stream)
            }
        }
    }

    /// Makes a read of this file hang until the returned file is opened.
    fn hang(&self, path: &str) -> PathBuf {
        let hangs = self.dir.path().join(path);
        fs::create_dir_all(hangs.parent().expect("a directory")).expect("directory");
        nix::unistd::mkfifo(&hangs, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        hangs
    }

    /// Sends this many requests, without reading an answer.
    fn begin(&self, over: Over, path: &str, number: usize) -> Vec<Box<dyn Connection>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let begun = (0..number).map(|_| {
            let mut stream = self.connect(over);
            stream.write_all(request.as_bytes()).expect("asks");
            stream
        });
        begun.collect()
    }

    fn module(&self, version: &str) {
        let dir = self.dir.path().join("sys/module/nvidia");
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join("version"), format!("{version}\n")).expect("write");
    }

    fn ready(&self) {
        self.telemetry.driver(DriverInfo {
            version: "535.1".into(),
            flavour: "open".into(),
            kernel: "6.1".into(),
            module_digest: None,
            origin: None,
        });
        self.telemetry.enter(Phase::Ready);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.end();
        }
    }
}

#[test]
fn ready_is_what_is_told_and_what_is_on_the_host() {
    let scene = Scene::tcp();
    let answer = scene.ask("/readyz");
    assert_eq!((answer.status, answer.body.as_str()), (503, "not ready: the agent is starting\n"));
    scene.ready();
    let answer = scene.ask("/readyz");
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (503, "not ready: driver 535.1 is no longer loaded\n")
    );
    scene.module("550.1");
    assert_eq!(scene.ask("/readyz").body, "not ready: driver 550.1 is loaded in its place\n");
    scene.module("535.1");
    let answer = scene.ask("/readyz");
    assert_eq!((answer.status, answer.body.as_str()), (200, "ready\n"));
}

/// For example if the driver root is on a file system that is gone.
#[rstest]
#[case::status(Over::Socket, "/status", "proc/sys/kernel/random/boot_id")]
#[case::metrics(Over::Tcp, "/metrics", "sys/module/nvidia/refcnt")]
fn a_look_that_hangs_keeps_no_other_question_waiting(
    #[case] over: Over,
    #[case] path: &str,
    #[case] file: &str,
) {
    let scene = Scene::tcp();
    let hangs = scene.hang(file);
    scene.ready();
    scene.module("535.1");
    let asking = scene.begin(over, path, 2 * answer::MOST_THREADS);
    let since = Instant::now();
    for _ in 0..3 {
        assert_eq!(scene.ask("/readyz").body, "ready\n");
    }
    assert!(since.elapsed() < HEAD, "{:?}", since.elapsed());
    drop(asking);
    // Unblocks the thread that waits in the kernel.
    let _writer = fs::OpenOptions::new().read(true).write(true).open(&hangs).expect("opens");
    drop(scene);
}

#[test]
fn an_agent_whose_task_runs_is_healthy_and_one_whose_task_does_not_is_not() {
    let mut scene = Scene::tcp();
    let responder = scene.responder.take().expect("a responder");
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let (end, ended) = oneshot::channel::<()>();
    let task = runtime.spawn(responder.drive(ended));
    assert_eq!(scene.ask("/healthz"), AgentResponse { status: 200, body: "ok\n".into() });
    drop(end);
    let _ = runtime.block_on(task);
    let answer = scene.ask("/healthz");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("has not answered"), "{}", answer.body);
}

/// Keeps an agent's task running until it is dropped.
type Running = (tokio::runtime::Runtime, oneshot::Sender<()>);

fn running(scene: &mut Scene) -> Running {
    let (end, ended) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.spawn(scene.responder.take().expect("a responder").drive(ended));
    (runtime, end)
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

/// The kubelet takes an agent for dead after three probes that fail, and kills it.
#[rstest]
#[case(Over::Socket, HEALTH)]
#[case(Over::Tcp, METRICS)]
fn many_that_ask_without_pause_do_not_make_health_fail_for_another(
    #[case] over: Over,
    #[case] request: &[u8],
) {
    let mut scene = Scene::tcp();
    let _running = running(&mut scene);
    scene.ask("/healthz");
    let done = std::sync::atomic::AtomicBool::new(false);
    let answered = std::sync::atomic::AtomicUsize::new(0);
    let scene = &scene;
    let hammer = || {
        while !done.load(Ordering::Relaxed) {
            let mut stream = scene.connect(over);
            let mut answer = String::new();
            let asked = stream.write_all(request);
            match asked.and_then(|()| stream.read_to_string(&mut answer)) {
                Ok(_) if answer.starts_with("HTTP/1.1 200 ") => {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                // It makes room for another where it is interrupted before it asks; of metrics, 12 are answered
                // at a time.
                Ok(_) => assert!(answer.is_empty() || over == Over::Tcp, "{answer}"),
                Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no answer"),
            }
        }
    };
    thread::scope(|scope| {
        let hammering: Vec<_> = (0..64).map(|_| scope.spawn(hammer)).collect();
        let ask = |_| client::ask(&scene.state(), "/healthz", WHOLE);
        let answers: Vec<_> = (0..50).map(ask).collect();
        // Before any of it can fail: the others end only then.
        done.store(true, Ordering::Relaxed);
        for answer in answers {
            assert_eq!(
                answer.expect("an answer"),
                AgentResponse { status: 200, body: "ok\n".into() }
            );
        }
        for one in hammering {
            one.join().expect("answered or cut off");
        }
    });
    assert!(answered.into_inner() > 0);
}

#[rstest]
fn many_connections_at_once_do_not_cut_off_one_that_has_asked(
    #[values(Over::Socket, Over::Tcp)] over: Over,
) {
    let mut scene = Scene::tcp();
    // The agent's task is busy for a moment.
    let mut earlier = scene.connect(Over::Socket);
    earlier.write_all(HEALTH).expect("asks");
    let burst: Vec<_> = (0..128).map(|_| scene.connect(over)).collect();
    // Accepted after all of them.
    assert_eq!(scene.ask("/readyz").status, 503);
    let _running = running(&mut scene);
    let mut answer = String::new();
    earlier.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(burst);
}

/// The other requests hang, and there are as many as connections.
#[rstest]
#[case(Over::Socket, "/status", "proc/sys/kernel/random/boot_id")]
#[case(Over::Tcp, "/metrics", "sys/module/nvidia/refcnt")]
fn what_hangs_for_others_does_not_make_health_fail(
    #[case] over: Over,
    #[case] path: &str,
    #[case] file: &str,
) {
    let mut scene = Scene::tcp();
    let _running = running(&mut scene);
    let hangs = scene.hang(file);
    let asking = scene.begin(over, path, 2 * MOST_CONNECTIONS);
    let since = Instant::now();
    assert_eq!(scene.ask("/healthz").status, 200);
    assert!(since.elapsed() < HEAD, "{:?}", since.elapsed());
    drop(asking);
    // Unblocks the thread that waits in the kernel.
    let _writer = fs::OpenOptions::new().read(true).write(true).open(&hangs).expect("opens");
    drop(scene);
}

#[test]
fn the_page_has_the_time_for_an_answer_about_health() {
    longshore_core::testing::assert_in_page("An answer to `/healthz`", answer::HEALTH_LIMIT);
}

#[rstest]
fn metrics_are_given_in_the_format_that_is_asked_for(
    #[values(Over::Socket, Over::Tcp)] over: Over,
) {
    let scene = Scene::tcp();
    let plain = scene.raw(over, METRICS);
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains("\nlongshore_ready 0\n") && !plain.contains("# EOF"), "{plain}");
    let open = scene.raw(
        over,
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    );
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("\n# EOF\n"), "{open}");
}

#[rstest]
#[case(Over::Socket, b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 ")]
#[case(Over::Socket, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 ")]
#[case(Over::Socket, b"DELETE /status HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405 ")]
#[case(Over::Socket, b"HEAD /readyz HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 503 ")]
#[case(Over::Socket, b"GET /readyz?verbose HTTP/1.0\r\n\r\n", "HTTP/1.0 503 ")]
#[case(Over::Socket, b"\x16\x03\x01\x02\x00\x01", "HTTP/1.1 400 ")]
#[case(
    Over::Tcp,
    b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.1 405 "
)]
#[case(Over::Tcp, b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", "HTTP/1.1 400 ")]
#[case(Over::Tcp, b"\x16\x03\x01\x02\x00\x01", "HTTP/1.1 400 ")]
fn who_asks_badly_is_told_so(#[case] over: Over, #[case] request: &[u8], #[case] begins: &str) {
    let answer = Scene::tcp().raw(over, request);
    assert!(answer.starts_with(begins), "{answer}");
    assert!(!begins.contains("405") || answer.contains("allow: GET, HEAD"), "{answer}");
}

#[rstest]
fn metrics_alone_are_served_to_the_network(
    #[values("/healthz", "/readyz", "/status", "/", "/metricsx", "/x/metrics")] path: &str,
) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = Scene::tcp().raw(Over::Tcp, request.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(body.contains("`longshore status --alive`") && body.lines().count() == 1, "{body}");
}

#[rstest]
#[case::bytes(1, 64 << 10)]
#[case::lines(500, 1)]
fn a_head_without_end_is_refused(
    #[values(Over::Socket, Over::Tcp)] over: Over,
    #[case] lines: usize,
    #[case] bytes: usize,
) {
    let line = format!("a: {}\r\n", "b".repeat(bytes));
    let request = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{}\r\n", line.repeat(lines));
    let answer = Scene::tcp().raw(over, request.as_bytes());
    // The kernel may reset the connection because of unread bytes before the answer is read.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[rstest]
fn who_is_slow_is_dropped_and_those_who_come_in_numbers_do_not_keep_others_out(
    #[values(Over::Socket, Over::Tcp)] over: Over,
) {
    let scene = Scene::tcp();
    let mut slow: Vec<_> = (0..3 * MOST_CONNECTIONS).map(|_| scene.connect(over)).collect();
    for stream in &mut slow {
        // The oldest may be dropped by now.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    let since = Instant::now();
    assert_eq!(scene.ask("/readyz").status, 503);
    assert!(scene.raw(Over::Tcp, METRICS).starts_with("HTTP/1.1 200 "));
    assert!(since.elapsed() < HEAD, "it waited for those who are slow");
    // The last of them is dropped at its time limit.
    let mut answer = Vec::new();
    let _ = slow.last_mut().expect("one").read_to_end(&mut answer);
    assert!(since.elapsed() < 2 * HEAD, "{:?}", since.elapsed());
}

/// Regression: a stranger on the port had the kubelet kill the agent, or take a node without a driver for ready.
#[test]
fn a_busy_address_changes_neither_health_nor_readiness() {
    let first = Scene::tcp();
    let mut second = Scene::new(&on(&first.listen()));
    let _running = running(&mut second);
    assert_eq!(second.ask("/healthz").status, 200);
    assert_eq!(second.ask("/readyz").body, "not ready: the agent is starting\n");
    second.ready();
    second.module("535.1");
    assert_eq!(second.ask("/readyz").body, "ready\n");
    let serving = Serving::read(&second.state()).expect("read").expect("written");
    assert_eq!(serving.listen, None, "it does not have that address");
    assert!(first.raw(Over::Tcp, METRICS).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_further_socket_serves_metrics_alone_and_one_that_nobody_listens_on_is_no_obstacle() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("http");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket that is left behind"));
    let scene = Scene::new(&on(&format!("unix:{}", path.display())));
    assert_eq!(scene.listen(), format!("unix:{}", path.display()));
    for (request, begins) in [(METRICS, "HTTP/1.1 200 "), (HEALTH, "HTTP/1.1 404 ")] {
        let mut stream = UnixStream::connect(&path).expect("connects");
        stream.write_all(request).expect("asks");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with(begins), "{answer}");
    }
    let mode = fs::metadata(&path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(scene);
    assert!(!path.exists(), "its name goes with it");
}

#[test]
fn a_socket_that_another_agent_made_in_its_place_stays() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("http");
    let scene = Scene::new(&on(&format!("unix:{}", path.display())));
    scene.listen();
    // Prevents that another file gets its inode number.
    fs::rename(&path, dir.path().join("moved")).expect("renamed");
    let _next = std::os::unix::net::UnixListener::bind(&path).expect("another one");
    drop(scene);
    assert!(path.exists());
}

#[test]
fn where_it_is_off_only_the_agents_own_socket_is_served() {
    let mut scene = Scene::new(&on("off"));
    assert_eq!(scene.ask("/readyz").status, 503);
    assert!(scene.ask("/metrics").body.contains("\nlongshore_ready 0\n"));
    assert_eq!(Serving::read(&scene.state()).expect("read").expect("written").listen, None);
    let state = scene.state();
    let names = || fs::read_dir(&state).expect("list").map(|entry| entry.expect("one").file_name());
    assert!(names().any(|name| name == SOCKET));
    // An agent keeps its lock; what it served with goes.
    scene.server.take().expect("a server").end();
    assert_eq!(names().filter(|name| name != "lock").count(), 0);
}

#[test]
fn another_agent_in_the_same_place_is_not_taken_for_this_one() {
    let scene = Scene::tcp();
    scene.ask("/readyz");
    let another = Serving { agent: "1-1".into(), listen: None };
    let text = serde_json::to_vec(&another).expect("JSON");
    fs::write(scene.state().join("serving.json"), text).expect("write");
    let refused = client::ask(&scene.state(), "/readyz", WHOLE).expect_err("another agent");
    assert_eq!(refused.to_string(), "another program answers there");
}

pub(super) mod network;
