//! The process that downloads: its rights, its end, and the end of longshore.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use longshore_fetch::http::SUBCOMMAND;
use longshore_tests::packages;
use longshore_tests::processes::{
    ChildProcess, assert_limits_of_zero, assert_without_rights, children,
};
use longshore_tests::scene::{Scene, names, send, start, until, wait};

/// User and group of the process.
const USER: &str = "2104104105";

/// A server that answers when the test wants it to.
struct Held(TcpListener);

impl Held {
    fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("bind"))
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("an address").port()
    }

    /// Waits for a request, which stays without an answer.
    fn asked(&self) -> TcpStream {
        let (stream, _) = self.0.accept().expect("a connection");
        let lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        assert!(lines.first().is_some_and(|line| line.starts_with("GET /")), "{lines:?}");
        stream
    }

    /// Answers this request and all further ones: there is no such file.
    fn has_nothing(self, first: TcpStream) {
        let answer = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        std::thread::spawn(move || {
            let mut streams = vec![first];
            loop {
                while let Some(mut stream) = streams.pop() {
                    // The other side may be gone.
                    let _ = stream.write_all(answer.as_bytes());
                }
                streams.push(self.asked());
            }
        });
    }
}

/// Starts an agent whose archive is at this server, named `host`.
fn asking(
    scene: &Scene,
    host: &str,
    port: u16,
    with: impl Fn(&Scene, &[&str]) -> Command,
) -> Child {
    scene.configure(&scene.archive_at(&format!("http://{host}:{port}")));
    start(&mut with(scene, &["fetch", "--kernel", packages::KERNEL]))
}

/// Returns the children of `parent` that download and have not ended.
fn downloading(parent: u32) -> Vec<u32> {
    let is_it = |child: &ChildProcess| child.words.iter().any(|word| word == SUBCOMMAND);
    children(parent).into_iter().filter(is_it).map(|child| child.pid).collect()
}

/// Returns the only child of `parent` that downloads.
fn only(parent: u32) -> u32 {
    match downloading(parent)[..] {
        [pid] => pid,
        ref pids => panic!("not one process: {pids:?}"),
    }
}

/// Returns the user of the connection that comes from this port (proc_net_tcp(5)).
fn user_of(port: u16) -> String {
    let table = fs::read_to_string("/proc/net/tcp").expect("the table");
    let local = format!("0100007F:{port:04X}");
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local));
    let user = line.and_then(|line| line.split_whitespace().nth(7));
    user.unwrap_or_else(|| panic!("no connection from {port}: {table}")).to_owned()
}

#[test]
fn the_process_has_no_rights_and_the_connection_is_its_own() {
    let (scene, server) = (Scene::new(), Held::start());
    let with = |scene: &Scene, args: &[&str]| {
        let mut command = scene.agent(args);
        command.env("LONGSHORE_SECRET_OF_A_TEST", "secret").env("RES_OPTIONS", "attempts:1");
        command
    };
    let agent = asking(&scene, "127.0.0.1", server.port(), with);
    let stream = server.asked();
    assert_eq!(user_of(stream.peer_addr().expect("an address").port()), USER);
    let pid = only(agent.id());
    let dir = format!("/proc/{pid}");
    assert_without_rights(pid, USER);
    for file in names(Path::new(&format!("{dir}/fd"))) {
        let what = fs::read_link(format!("{dir}/fd/{file}")).expect("an open file");
        let what = what.to_str().expect("text");
        let of_its_own =
            ["socket:[", "anon_inode:[event"].iter().any(|kind| what.starts_with(kind));
        assert!(of_its_own || what == "/dev/null", "{file}: {what}");
    }
    assert_eq!(fs::read(format!("{dir}/environ")).expect("there"), b"RES_OPTIONS=attempts:1\0");
    assert_limits_of_zero(pid, &["Max file size", "Max core file size", "Max locked memory"]);
    server.has_nothing(stream);
    wait(agent).assert_failed(12, &["127.0.0.1".to_owned()]);
    until("the process is gone", || !Path::new(&dir).exists());
}

#[test]
fn a_lower_limit_of_the_agents_stays() {
    let (scene, server) = (Scene::new(), Held::start());
    let with = |scene: &Scene, args: &[&str]| {
        let agent = scene.agent(args);
        let mut command = Command::new("/usr/bin/prlimit");
        command.env_clear().args(["--nofile=256:256", "--as=3000000000:3000000000", "--"]);
        command.arg(agent.get_program()).args(agent.get_args());
        command.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let agent = asking(&scene, "127.0.0.1", server.port(), with);
    let stream = server.asked();
    let limits = fs::read_to_string(format!("/proc/{}/limits", only(agent.id()))).expect("limits");
    for (name, most) in [("Max open files", "256"), ("Max address space", "3000000000")] {
        let line = limits.lines().find(|line| line.starts_with(name)).expect(name);
        assert_eq!(line[name.len()..].split_whitespace().nth(1), Some(most), "{line}");
    }
    server.has_nothing(stream);
    wait(agent).assert_failed(12, &["127.0.0.1".to_owned()]);
}

#[test]
fn a_killed_process_is_replaced_and_the_request_repeated() {
    let (scene, server) = (Scene::new(), Held::start());
    let agent = asking(&scene, "127.0.0.1", server.port(), Scene::agent);
    let first = server.asked();
    let killed = only(agent.id());
    kill(Pid::from_raw(killed.try_into().expect("an id")), Signal::SIGKILL).expect("killed");
    let again = server.asked();
    assert_ne!(only(agent.id()), killed);
    drop(first);
    server.has_nothing(again);
    let ended = wait(agent);
    ended.assert_failed(12, &["127.0.0.1".to_owned()]);
    let reported = "retrying the download: signal 9 ended the process that downloads";
    assert!(ended.log().iter().any(|line| line["message"] == reported), "{ended}");
}

#[test]
fn a_process_ends_with_its_agent() {
    let (scene, server) = (Scene::new(), Held::start());
    let agent = asking(&scene, "127.0.0.1", server.port(), Scene::agent);
    let _stream = server.asked();
    let dir = format!("/proc/{}", only(agent.id()));
    send(&agent, Signal::SIGKILL);
    wait(agent);
    until("its process is gone", || {
        fs::read_to_string(format!("{dir}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
}

/// Answers each query of a name server with 127.0.0.1, and those for IPv6 addresses with none (RFC 1035, 4).
fn serve_names(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let end = 12 + query[12..length].iter().position(|byte| *byte == 0).expect("a name") + 1;
        let wants_4 = query[end..end + 2] == [0, 1];
        let mut answer = query[..end + 4].to_vec();
        // A response, recursive, without an error; one question and at most one answer.
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(wants_4), 0, 0, 0, 0]);
        if wants_4 {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        socket.send_to(&answer, from).expect("answered");
    }
}

#[test]
fn names_are_resolved_by_the_name_server_of_the_process() {
    let (scene, server) = (Scene::new(), Held::start());
    // Name servers have one port.
    let names = UdpSocket::bind("127.53.27.94:53").expect("root may bind it");
    std::thread::spawn(move || serve_names(&names));
    let settings = scene.path("resolv.conf");
    fs::write(&settings, "nameserver 127.53.27.94\n").expect("written");
    let settings = settings.to_str().expect("text").to_owned();
    let with = |scene: &Scene, args: &[&str]| {
        scene.confined(&["--bind", &settings, "/etc/resolv.conf"], args)
    };
    let agent = asking(&scene, "archive.example.com", server.port(), with);
    let stream = server.asked();
    server.has_nothing(stream);
    wait(agent).assert_failed(12, &["404 Not Found".to_owned()]);
}
