use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use rstest::rstest;

use super::connections::MOST as MOST_CONNECTIONS;
use super::*;
use crate::journal::phase::Phase;
use crate::telemetry::{DriverInfo, Telemetry};
use longshore_core::paths::Paths;
use longshore_host::look::Looker;

/// A server of an agent with a given state, and with a running task.
struct Scene {
    server: Option<Server>,
    dir: tempfile::TempDir,
    telemetry: Telemetry,
    /// None: the agent's task has ended.
    responder: Option<Responder>,
}

impl Scene {
    fn new(listen: &Listen) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let telemetry = Telemetry::default();
        let (probe, responder) = LivenessProbe::new();
        let subject =
            Subject::new(telemetry.clone(), probe, Paths::below(dir.path()), Looker::default());
        let server = Server::begin(listen, subject);
        Self { server, dir, telemetry, responder: Some(responder) }
    }

    fn tcp() -> Self {
        Self::new(&"127.0.0.1:0".parse().expect("address"))
    }

    fn address(&self) -> Address {
        publish(self.server.as_ref(), self.dir.path(), Disk::default());
        let since = Instant::now();
        loop {
            if let Some(address) = crate::endpoint::client::find(self.dir.path()) {
                return address;
            }
            assert!(since.elapsed() < HEAD, "it does not listen");
            thread::yield_now();
        }
    }

    fn ask(&self, path: &str) -> crate::endpoint::client::Answer {
        crate::endpoint::client::ask(&self.address(), path, WHOLE).expect("an answer")
    }

    /// Sends bytes and returns the whole answer.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address().listen).expect("connects");
        stream.set_read_timeout(Some(2 * HEAD)).expect("timeout");
        stream
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
#[test]
fn a_look_that_hangs_keeps_no_other_question_waiting() {
    let scene = Scene::tcp();
    let hangs = scene.dir.path().join("proc/sys/kernel/random/boot_id");
    fs::create_dir_all(hangs.parent().expect("a directory")).expect("directory");
    nix::unistd::mkfifo(&hangs, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    scene.ready();
    scene.module("535.1");
    let asking: Vec<TcpStream> = (0..2 * answer::MOST_THREADS)
        .map(|_| {
            let mut stream = scene.connect();
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n").expect("asks");
            stream
        })
        .collect();
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
    assert_eq!(
        scene.ask("/healthz"),
        crate::endpoint::client::Answer { status: 200, body: "ok\n".into() }
    );
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

/// The kubelet takes an agent for dead after three answers other than 200, and kills it.
#[test]
fn many_that_ask_for_health_without_pause_do_not_make_it_fail_for_another() {
    let mut scene = Scene::tcp();
    let _running = running(&mut scene);
    let address = scene.address();
    let done = std::sync::atomic::AtomicBool::new(false);
    let answered = std::sync::atomic::AtomicUsize::new(0);
    let hammer = || {
        while !done.load(Ordering::Relaxed) {
            let mut stream = TcpStream::connect(&address.listen).expect("connects");
            stream.set_read_timeout(Some(2 * HEAD)).expect("timeout");
            let mut answer = String::new();
            let asked = stream.write_all(HEALTH);
            match asked.and_then(|()| stream.read_to_string(&mut answer)) {
                Ok(_) if answer.starts_with("HTTP/1.1 200 ") => {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                // It makes room for another where it is interrupted before it asks.
                Ok(_) => assert_eq!(answer, ""),
                Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no answer"),
            }
        }
    };
    thread::scope(|scope| {
        let hammering: Vec<_> = (0..64).map(|_| scope.spawn(hammer)).collect();
        let ask = |_| crate::endpoint::client::ask(&address, "/healthz", WHOLE);
        let answers: Vec<_> = (0..50).map(ask).collect();
        // Before any of it can fail: the others end only then.
        done.store(true, Ordering::Relaxed);
        for answer in answers {
            assert_eq!(
                answer.expect("an answer"),
                crate::endpoint::client::Answer { status: 200, body: "ok\n".into() }
            );
        }
        for one in hammering {
            one.join().expect("answered or cut off");
        }
    });
    assert!(answered.into_inner() > 0);
}

#[test]
fn many_connections_at_once_do_not_cut_off_one_that_has_asked() {
    let mut scene = Scene::tcp();
    // The agent's task is busy for a moment.
    let mut earlier = scene.connect();
    earlier.write_all(HEALTH).expect("asks");
    let burst: Vec<TcpStream> = (0..128).map(|_| scene.connect()).collect();
    // Accepted after all of them.
    assert_eq!(scene.ask("/readyz").status, 503);
    let _running = running(&mut scene);
    let mut answer = String::new();
    earlier.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(burst);
}

/// The other requests hang, and there are as many as connections.
#[test]
fn what_hangs_for_others_does_not_make_health_fail() {
    let mut scene = Scene::tcp();
    let _running = running(&mut scene);
    let hangs = scene.dir.path().join("proc/sys/kernel/random/boot_id");
    fs::create_dir_all(hangs.parent().expect("a directory")).expect("directory");
    nix::unistd::mkfifo(&hangs, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let asking: Vec<TcpStream> = (0..2 * MOST_CONNECTIONS)
        .map(|_| {
            let mut stream = scene.connect();
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n").expect("asks");
            stream
        })
        .collect();
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

#[test]
fn metrics_are_given_in_the_format_that_is_asked_for() {
    let scene = Scene::tcp();
    let plain = scene.raw(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(plain.contains("content-type: text/plain; version=0.0.4"), "{plain}");
    assert!(plain.contains("\nlongshore_ready 0\n") && !plain.contains("# EOF"), "{plain}");
    let open = scene.raw(
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    );
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("\n# EOF\n"), "{open}");
}

#[rstest]
#[case(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 ")]
#[case(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 ")]
#[case(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 ")]
#[case(b"DELETE /status HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405 ")]
#[case(b"HEAD /readyz HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 503 ")]
#[case(b"GET /readyz?verbose HTTP/1.0\r\n\r\n", "HTTP/1.0 503 ")]
#[case(b"\x16\x03\x01\x02\x00\x01", "HTTP/1.1 400 ")]
#[case(b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", "HTTP/1.1 400 ")]
fn who_asks_badly_is_told_so(#[case] request: &[u8], #[case] begins: &str) {
    let answer = Scene::tcp().raw(request);
    assert!(answer.starts_with(begins), "{answer}");
    assert!(!begins.contains("405") || answer.contains("allow: GET, HEAD"), "{answer}");
}

#[rstest]
#[case::bytes(1, 64 << 10)]
#[case::lines(500, 1)]
fn a_head_without_end_is_refused(#[case] lines: usize, #[case] bytes: usize) {
    let line = format!("a: {}\r\n", "b".repeat(bytes));
    let request = format!("GET /readyz HTTP/1.1\r\nHost: a\r\n{}\r\n", line.repeat(lines));
    let answer = Scene::tcp().raw(request.as_bytes());
    // The kernel may reset the connection because of unread bytes before the answer is read.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn who_is_slow_is_dropped_and_those_who_come_in_numbers_do_not_keep_others_out() {
    let scene = Scene::tcp();
    let mut slow: Vec<TcpStream> = (0..3 * MOST_CONNECTIONS).map(|_| scene.connect()).collect();
    for stream in &mut slow {
        // The oldest may be dropped by now.
        let _ = stream.write_all(b"GET /readyz HTTP/1.1\r\n");
    }
    let since = Instant::now();
    assert_eq!(scene.ask("/readyz").status, 503);
    assert!(since.elapsed() < HEAD, "it waited for those who are slow");
    // The last of them is dropped at its time limit.
    let mut answer = Vec::new();
    let _ = slow.last_mut().expect("one").read_to_end(&mut answer);
    assert!(since.elapsed() < 2 * HEAD, "{:?}", since.elapsed());
}

#[test]
fn a_busy_address_is_no_failure_and_is_told_by_nobody() {
    let first = Scene::tcp();
    let listen = first.address().listen.parse().expect("address");
    let second = Scene::new(&listen);
    publish(second.server.as_ref(), second.dir.path(), Disk::default());
    assert_eq!(crate::endpoint::client::find(second.dir.path()), None);
    assert_eq!(first.ask("/readyz").status, 503);
}

#[test]
fn a_socket_is_its_owners_and_one_that_nobody_listens_on_is_no_obstacle() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("http");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket that is left behind"));
    let scene = Scene::new(&Listen::Unix(path.clone()));
    assert_eq!(scene.ask("/readyz").status, 503);
    let mode = fs::metadata(&path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(scene);
    assert!(!path.exists(), "its name goes with it");
}

#[test]
fn a_socket_that_another_agent_made_in_its_place_stays() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("http");
    let scene = Scene::new(&Listen::Unix(path.clone()));
    assert_eq!(scene.ask("/readyz").status, 503);
    // Prevents that another file gets its inode number.
    fs::rename(&path, dir.path().join("moved")).expect("renamed");
    let _next = std::os::unix::net::UnixListener::bind(&path).expect("another one");
    drop(scene);
    assert!(path.exists());
}

#[test]
fn nothing_listens_where_it_is_off_and_nothing_says_so() {
    let scene = Scene::tcp();
    // As if it was killed: its address stays.
    let _left = scene.address();
    assert!(Scene::new(&Listen::Off).server.is_none());
    publish(None, scene.dir.path(), Disk::default());
    assert_eq!(crate::endpoint::client::find(scene.dir.path()), None);
}

#[test]
fn another_agent_at_the_same_address_is_not_taken_for_this_one() {
    let scene = Scene::tcp();
    let another = Address { agent: "1-1".into(), ..scene.address() };
    crate::endpoint::client::ask(&another, "/readyz", WHOLE).expect_err("another agent");
}
