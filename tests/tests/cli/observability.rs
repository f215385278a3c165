//! Telemetry of the real agent while it is busy, and after it has ended.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use longshore_tests::packages;
use longshore_tests::scene::{Scene, finish, fixture, send, start, until, wait};
use longshore_tests::server::Fault;

/// Copies a captured tree and gives it a device list, which is empty.
fn host(scene: &Scene, name: &str) -> String {
    let root = scene.path(name);
    let copied = Command::new("cp").arg("-r").arg(fixture(name)).arg(&root).status();
    assert!(copied.expect("cp").success());
    fs::write(root.join("proc/devices"), "Character devices:\n  1 mem\n").expect("devices");
    root.display().to_string()
}

/// An agent that is acquiring and waits for the archive.
struct Waiting {
    scene: Scene,
    root: String,
    agent: Option<Child>,
    listen: String,
}

impl Waiting {
    /// Starts an agent that listens on a free address.
    fn new(listen: &str) -> Self {
        Self::serving(&["--listen", listen], listen != "off")
    }

    /// Starts an agent with these arguments, whose address of metrics is free or not.
    fn serving(arguments: &[&str], is_free: bool) -> Self {
        let scene = Scene::with(packages::buildable(&[]));
        let headers = scene.suite.pool(0);
        scene.server.always(&headers, Fault::Stall);
        let root = host(&scene, "bookworm-t4");
        let mut command = scene.agent(&["run", "--root", &root]);
        let command = command.args(arguments).env("LONGSHORE_LOG_FORMAT", "json");
        let agent = start(command.env("NODE_NAME", "gpu-1").env("POD_NAME", "longshore-x7k2p"));
        scene.server.await_request(&headers);
        let address = || {
            let serving = fs::read(scene.path("state-dir/serving.json")).ok()?;
            let serving: Value = serde_json::from_slice(&serving).ok()?;
            serving["listen"].as_str().map(str::to_owned)
        };
        if is_free {
            until("it listens", || address().is_some());
        }
        until("it has its socket", || scene.path("state-dir/agent.sock").exists());
        let listen = address().unwrap_or_default();
        Self { scene, root, agent: Some(agent), listen }
    }

    /// Returns status line with headers, and body, by the address of metrics.
    fn get(&self, path: &str, accept: &str) -> (String, String) {
        let stream = TcpStream::connect(&self.listen).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        answer(stream, path, accept)
    }

    /// The same by the agent's socket.
    fn ask(&self, path: &str) -> (String, String) {
        let stream = UnixStream::connect(self.scene.path("state-dir/agent.sock"));
        let stream = stream.expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        answer(stream, path, "*/*")
    }

    fn probe(&self, question: &str) -> (Option<i32>, String) {
        let ended = finish(&mut self.scene.agent(&["status", question]));
        (ended.code, ended.out)
    }

    /// Stops the agent, and returns its log.
    fn stop(mut self) -> String {
        let agent = self.agent.take().expect("it runs");
        send(&agent, Signal::SIGTERM);
        let ended = wait(agent);
        ended.assert_done();
        for name in ["serving.json", "agent.sock"] {
            assert!(!self.scene.path("state-dir").join(name).exists(), "it no longer serves");
        }
        ended.err
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn answer(mut stream: impl Read + Write, path: &str, accept: &str) -> (String, String) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("asks");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// Returns promtool, as scripts/setup installs it.
fn promtool() -> Command {
    let cache = std::env::var_os("LONGSHORE_CACHE").map(PathBuf::from).or_else(|| {
        let own = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        own.or(home).map(|dir| dir.join("longshore"))
    });
    let tool = cache.map(|dir| dir.join("tools/bin/promtool")).filter(|path| path.exists());
    Command::new(tool.unwrap_or_else(|| "promtool".into()))
}

#[test]
fn an_agent_at_work_is_alive_and_not_ready_and_says_what_it_is_at() {
    let agent = Waiting::new("127.0.0.1:0");
    for path in ["/healthz", "/readyz", "/status"] {
        let (head, body) = agent.get(path, "*/*");
        assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("status --alive"), "{head}");
    }
    assert_eq!(agent.probe("--alive"), (Some(0), "ok\n".to_owned()));
    let (code, why) = agent.probe("--ready");
    assert!(code == Some(30) && why.starts_with("not ready: phase acquiring"), "{code:?} {why}");

    let (head, body) = agent.ask("/status");
    assert!(head.contains("content-type: application/json"), "{head}");
    let served: Value = serde_json::from_str(&body).expect("JSON");
    let shown = finish(&mut agent.scene.agent(&["status", "--json", "--root", &agent.root]));
    shown.assert_done();
    let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
    for key in ["phase", "agent", "driver_version", "modules", "mounts", "nodes", "entries"] {
        assert_eq!(served[key], shown[key], "{key}");
    }
    for status in [&served, &shown] {
        assert_eq!(status["live"]["phase"], "acquiring");
        assert_eq!(status["live"]["ready"], false);
        assert_eq!(status["live"]["starts"], 1);
        assert!(status["live"]["fetched_bytes"].as_u64() > Some(0), "{status}");
        assert_eq!(status["last_failure"], Value::Null);
    }
    let text = finish(&mut agent.scene.agent(&["status", "--root", &agent.root]));
    assert!(text.out.contains("\nready     no: phase acquiring for "), "{text}");

    let log = agent.stop();
    let lines: Vec<Value> = log.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let entered = |phase: &str| {
        lines.iter().any(|line| line["phase"] == phase && line["seconds"].is_number())
    };
    assert!(entered("acquiring") && entered("removed"), "{log}");
    for line in &lines {
        assert_eq!(
            (&line["node"], &line["pod"]),
            (&"gpu-1".into(), &"longshore-x7k2p".into()),
            "{line}"
        );
        assert!(line["version"].is_string() && line["kernel"].is_string(), "{line}");
    }
    let after_the_plan = lines.iter().skip_while(|line| line["phase"] != "acquiring");
    assert!(after_the_plan.clone().count() > 1, "{log}");
    assert!(after_the_plan.clone().all(|line| line["driver"].is_string()), "{log}");
}

#[test]
fn promtool_finds_nothing_amiss_in_either_format() {
    let agent = Waiting::new("127.0.0.1:0");
    let (head, plain) = agent.get("/metrics", "text/plain");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(plain.contains("\nlongshore_phase{phase=\"acquiring\"} 1\n"), "{plain}");
    for name in ["longshore_wanted_driver_info", "longshore_store_limit_bytes", "process_open_fds"]
    {
        assert!(plain.lines().any(|line| line.starts_with(name)), "no {name} in\n{plain}");
    }
    let mut check = promtool();
    let mut check = check
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts (scripts/setup brings it)");
    check.stdin.take().expect("a pipe").write_all(plain.as_bytes()).expect("writes");
    let checked = check.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}\n{plain}");

    // promtool lints only the older format; it reads OpenMetrics to store it, which requires
    // timestamps of the samples.
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let (head, open) = agent.get("/metrics", accept);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    let dated: Vec<String> = open
        .lines()
        .map(
            |line| {
                if line.starts_with('#') { line.to_owned() } else { format!("{line} 1700000000") }
            },
        )
        .collect();
    let (file, out) = (agent.scene.path("metrics"), agent.scene.path("blocks"));
    fs::write(&file, dated.join("\n") + "\n").expect("writes");
    let read = promtool()
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&file, &out])
        .output()
        .expect("promtool starts");
    let said = String::from_utf8_lossy(&[read.stdout, read.stderr].concat()).into_owned();
    assert!(read.status.success(), "{said}\n{open}");
    agent.stop();
}

#[test]
fn where_metrics_are_off_probes_are_answered_all_the_same() {
    let agent = Waiting::new("off");
    assert_eq!(agent.probe("--alive"), (Some(0), "ok\n".to_owned()));
    let (code, why) = agent.probe("--ready");
    assert!(code == Some(30) && why.starts_with("not ready: phase acquiring"), "{code:?} {why}");
    let status = finish(&mut agent.scene.agent(&["status", "--root", &agent.root]));
    assert!(status.out.contains("\nready     no: phase acquiring for "), "{status}");
    agent.stop();
}

/// A user of the host.
const STRANGER: u32 = 65534;

/// A program of a stranger that listens on a port, and says what would have the kubelet kill the agent, and take the node
/// for ready.
struct Stranger {
    program: Child,
    listen: String,
}

impl Stranger {
    fn new() -> Self {
        let script = r#"use Socket; my $s;
            socket($s, PF_INET, SOCK_STREAM, 0) && bind($s, sockaddr_in(0, INADDR_LOOPBACK)) && listen($s, 5)
                or die "bind: $!\n";
            $| = 1; my ($port) = sockaddr_in(getsockname($s)); print "127.0.0.1:$port\n";
            while (accept(my $c, $s)) {
                sysread($c, my $request, 1024);
                my $status = $request =~ m{^GET /healthz } ? "503 Service Unavailable" : "200 OK";
                syswrite($c, "HTTP/1.1 $status\r\nConnection: close\r\n\r\nready\n");
                close($c);
            }"#;
        let mut command = Command::new("/usr/bin/perl");
        command.args(["-e", script]).uid(STRANGER).gid(STRANGER).stdout(Stdio::piped());
        let mut program = command.spawn().expect("perl runs as another user: run the test as root");
        let mut listen = String::new();
        let said = program.stdout.take().expect("a pipe");
        std::io::BufReader::new(said).read_line(&mut listen).expect("it listens");
        Self { program, listen: listen.trim().to_owned() }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Regression: the kubelet's probes believed whoever answered on the port.
#[test]
fn a_stranger_on_the_port_changes_no_probe() {
    let stranger = Stranger::new();
    let agent = Waiting::serving(&["--listen", &stranger.listen], false);
    for (path, status) in [("/healthz", "503"), ("/readyz", "200")] {
        let stream = TcpStream::connect(&stranger.listen).expect("connects");
        let (head, _) = answer(stream, path, "*/*");
        assert!(head.contains(status), "the stranger answers {head}");
    }
    assert_eq!(agent.probe("--alive"), (Some(0), "ok\n".to_owned()));
    let (code, why) = agent.probe("--ready");
    assert!(code == Some(30) && why.starts_with("not ready: phase acquiring"), "{code:?} {why}");
    let shown = finish(&mut agent.scene.agent(&["status", "--json", "--root", &agent.root]));
    let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
    assert_eq!(
        (&shown["live"]["phase"], &shown["agent_error"]),
        (&"acquiring".into(), &Value::Null)
    );
    drop(stranger);
    agent.stop();
}

#[test]
fn a_failure_is_left_as_a_message_and_shown_after_the_agent_has_ended() {
    let scene = Scene::new();
    let message = scene.path("termination-log");
    let root = host(&scene, "bookworm-no-gpu");
    let run = |scene: &Scene| {
        let mut command = scene.agent(&["run", "--root", &root]);
        finish(command.arg("--termination-message").arg(&message))
    };
    let ended = run(&scene);
    assert_eq!(ended.code, Some(17), "{ended}");
    let text = fs::read_to_string(&message).expect("a message");
    assert!(text.starts_with("exit code 17: ") && text.contains("; remedy: "), "{text}");
    let status = |root: &str| {
        let shown = finish(&mut scene.agent(&["status", "--json", "--root", root]));
        shown.assert_done();
        serde_json::from_str::<Value>(&shown.out).expect("JSON")["last_failure"].clone()
    };
    let last = status(&root);
    assert_eq!((&last["code"], &last["before_this_boot"]), (&17.into(), &false.into()), "{last}");
    assert_eq!(last["phase"], "planning", "{last}");
    // Another host root, another boot: as after a reboot.
    fs::remove_dir_all(scene.path("state-dir")).expect("removed");
    let last = status("/");
    assert_eq!((&last["code"], &last["before_this_boot"]), (&17.into(), &true.into()), "{last}");
    let text = finish(&mut scene.agent(&["status"]));
    assert!(text.out.contains(", exit code 17, before this boot\ncause     "), "{text}");
}

#[test]
fn a_configuration_that_is_wrong_is_a_message_too() {
    let scene = Scene::new();
    let message = scene.path("termination-log");
    scene.configure("listen = \"somewhere\"\n");
    let mut command = scene.agent(&["run"]);
    command.env_remove("LONGSHORE_LISTEN").env("LONGSHORE_TERMINATION_MESSAGE", &message);
    let ended = finish(&mut command);
    assert_eq!(ended.code, Some(2), "{ended}");
    let text = fs::read_to_string(&message).expect("a message");
    assert!(text.starts_with("exit code 2: ") && text.contains("key listen"), "{text}");
}

#[test]
fn an_agent_that_was_killed_is_told_of_by_the_next() {
    let mut agent = Waiting::new("127.0.0.1:0");
    let child = agent.agent.take().expect("it runs");
    send(&child, Signal::SIGKILL);
    assert_eq!(wait(child).signal, Some(Signal::SIGKILL as i32));
    assert!(agent.scene.path("state-dir/agent.sock").exists());
    // The files that it left must not count as an answer.
    assert_eq!(agent.probe("--alive"), (Some(30), "no agent runs\n".to_owned()));
    let next = finish(&mut agent.scene.agent(&["run", "--root", &fixture("bookworm-no-gpu")]));
    let cause = "ended without a report in phase acquiring";
    assert!(next.code == Some(17) && next.err.contains(cause), "{next}");
}

#[test]
fn what_a_killed_agent_served_is_not_the_next_ones_that_serves_nowhere() {
    let mut agent = Waiting::new("127.0.0.1:0");
    let child = agent.agent.take().expect("it runs");
    send(&child, Signal::SIGKILL);
    wait(child);
    agent.agent = Some(start(&mut agent.scene.agent(&["run", "--root", &agent.root])));
    // In the place of the socket on which nobody listens any more.
    until("the next one is alive", || agent.probe("--alive") == (Some(0), "ok\n".to_owned()));
    agent.stop();
}

#[test]
fn a_busy_address_keeps_no_driver_from_a_host() {
    let agent = Waiting::new("127.0.0.1:0");
    let scene = Scene::new();
    let mut command = scene.agent(&["run", "--root", &fixture("bookworm-no-gpu")]);
    let ended = finish(command.args(["--listen", &agent.listen]));
    assert_eq!(ended.code, Some(17), "{ended}");
    agent.stop();
}

/// A wait ends at its limit where no agent comes, and at once with one that is ready.
#[test]
fn readiness_is_waited_for() {
    let scene = Scene::new();
    let since = Instant::now();
    let ended = finish(&mut scene.agent(&["status", "--ready", "--wait", "2s"]));
    assert_eq!((ended.code, ended.out.as_str()), (Some(30), "no agent runs\n"), "{ended}");
    assert!(since.elapsed() >= Duration::from_secs(2), "{:?}", since.elapsed());
    let ended = finish(&mut scene.agent(&["status", "--wait", "2s"]));
    assert_eq!(ended.code, Some(2), "{ended}");
}

/// A service manager's socket gets READY=1 once the agent is ready, here without a GPU, and STOPPING=1 at its end.
#[test]
fn a_service_manager_is_notified() {
    let scene = Scene::new();
    let path = scene.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("socket");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("time limit");
    let mut agent =
        scene.agent(&["run", "--root", &fixture("bookworm-no-gpu"), "--no-gpu", "wait"]);
    let agent = start(agent.env("NOTIFY_SOCKET", &path));
    let mut received = String::new();
    let mut until = |wanted: &str| {
        let mut message = [0; 512];
        while !received.lines().any(|line| line == wanted) {
            let length = socket.recv(&mut message).unwrap_or_else(|e| panic!("{e}: {received}"));
            received.push_str(std::str::from_utf8(&message[..length]).expect("text"));
        }
    };
    until("READY=1");
    until("STATUS=idle");
    send(&agent, Signal::SIGTERM);
    until("STOPPING=1");
    assert_eq!(wait(agent).code, Some(0));
}
