use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::socket::Backlog;
use rstest::rstest;

use super::client::{Unanswered, ask};
use super::*;

const LIMIT: Duration = Duration::from_secs(10);

/// A state directory.
fn state() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("state");
    PrivateDir::make(&path).expect("made");
    (dir, path)
}

fn listen(port: u16) -> Listen {
    format!("127.0.0.1:{port}").parse().expect("an address")
}

fn read(dir: &Path) -> Option<Serving> {
    Serving::read(dir).expect("read")
}

/// Answers one request as the agent `1-2`.
fn serve(listener: UnixListener) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let mut request = [0; 1024];
        let _ = stream.read(&mut request);
        let answer = "HTTP/1.1 200 OK\r\nlongshore-agent: 1-2\r\nconnection: close\r\n\r\nready\n";
        stream.write_all(answer.as_bytes()).expect("writes");
    })
}

#[test]
fn what_is_served_is_written_once_the_directory_is_known_and_gone_in_the_end() {
    for address_first in [false, true] {
        let (_dir, path) = state();
        let publication = Publication::new("1-2".into());
        if address_first {
            publication.listening(&listen(1));
            assert_eq!(read(&path), None);
            publication.publish(&path, Disk::default());
        } else {
            publication.publish(&path, Disk::default());
            assert_eq!(read(&path), Some(Serving { agent: "1-2".into(), listen: None }));
            publication.listening(&listen(1));
        }
        let serving = read(&path).expect("written");
        assert_eq!(
            (serving.agent.as_str(), serving.listen.as_deref()),
            ("1-2", Some("127.0.0.1:1"))
        );
        let socket = publication.bind(&path).expect("made");
        assert!(path.join(SOCKET).exists());
        publication.withdraw();
        assert_eq!(read(&path), None);
        assert!(!path.join(SOCKET).exists());
        drop(socket);
    }
}

#[test]
fn the_socket_is_roots_alone_in_a_long_directory_too_and_answers() {
    let (_dir, path) = state();
    let path = path.join("a".repeat(200));
    PrivateDir::make(&path).expect("made");
    let publication = Publication::new("1-2".into());
    publication.publish(&path, Disk::default());
    let served = serve(publication.bind(&path).expect("made"));
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join(SOCKET))), (0o700, 0o600));
    let answer = ask(&path, "/readyz", LIMIT).expect("an answer");
    assert_eq!((answer.status, answer.body.as_str()), (200, "ready\n"));
    served.join().expect("served");
    let names = fs::read_dir(&path).expect("list").count();
    assert_eq!(names, 2, "nothing unfinished is left");
}

/// An agent that was killed leaves its files, and perhaps half of a socket.
#[test]
fn what_a_killed_agent_left_is_replaced_and_what_the_next_one_made_stays() {
    let (_dir, path) = state();
    let of = |agent: &str| Publication::new(agent.into());
    let (killed, ending, next) = (of("1-1"), of("1-2"), of("1-3"));
    killed.publish(&path, Disk::default());
    drop(killed.bind(&path).expect("made"));
    drop(UnixListener::bind(path.join("agent.sock.new")).expect("an unfinished one"));
    let refused = ask(&path, "/readyz", LIMIT).expect_err("it is dead");
    assert!(matches!(refused, Unanswered::Failed(_)), "{refused}");

    ending.publish(&path, Disk::default());
    assert!(matches!(ask(&path, "/", LIMIT), Err(Unanswered::NotServed)), "not yet");
    let _ending = ending.bind(&path).expect("made in its place");
    ending.listening(&listen(2));

    // The lock is the next one's.
    let lock = Lock::take(&path).expect("taken").expect("free");
    next.publish(&path, Disk::default());
    let _next = next.bind(&path).expect("made in its place");
    ending.withdraw();
    assert_eq!(read(&path).map(|serving| serving.agent).as_deref(), Some("1-3"));
    assert!(path.join(SOCKET).exists());
    drop(lock);
    // Also where the next one has ended: what is there is its own.
    ending.publish(&path.join("gone"), Disk::default());
    ending.withdraw();
    assert!(path.join(SOCKET).exists());
    forget(&path);
    assert!(read(&path).is_none() && !path.join(SOCKET).exists());
}

#[test]
fn garbage_names_no_agent() {
    let (_dir, path) = state();
    for text in ["", "{", "[1]", "{\"agent\":1}"] {
        fs::write(path.join(NAME), text).expect("write");
        assert_eq!(read(&path), None, "{text}");
    }
    // As an earlier version wrote it.
    fs::write(path.join(NAME), r#"{"listen":"127.0.0.1:1","agent":"1-2"}"#).expect("write");
    assert!(matches!(ask(&path, "/", LIMIT), Err(Unanswered::NotServed)));
}

/// A user of the host.
const STRANGER: u32 = 65534;

/// Listens on a path as a stranger, and answers as the agent `1-2` for ever.
struct Stranger(std::process::Child);

impl Stranger {
    fn on(path: &Path) -> Self {
        let script = r#"use Socket; my $path = shift; my $s;
            socket($s, PF_UNIX, SOCK_STREAM, 0) && bind($s, sockaddr_un($path)) && listen($s, 5) or die "bind: $!\n";
            $| = 1; print "listens\n";
            while (accept(my $c, $s)) {
                sysread($c, my $request, 1024);
                syswrite($c, "HTTP/1.1 200 OK\r\nlongshore-agent: 1-2\r\n\r\nready\n");
                close($c);
            }"#;
        let mut command = Command::new("/usr/bin/perl");
        command.args(["-e", script]).arg(path).uid(STRANGER).gid(STRANGER).stdout(Stdio::piped());
        let mut child = command.spawn().expect("perl runs as root's child of another user");
        let mut said = [0; 8];
        child.stdout.take().expect("a pipe").read_exact(&mut said).expect("it listens");
        Self(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Wherever it comes from: put there by root, or in a directory that others can write to.
#[rstest]
#[case::in_its_place(0o700, 0, "user 65534 listens there, and not root")]
#[case::directory_of_another(0o700, STRANGER, "it belongs to user 65534")]
#[case::directory_for_all(0o1777, 0, "others can write to it (mode 1777)")]
fn a_strangers_socket_is_not_believed(#[case] mode: u32, #[case] owner: u32, #[case] why: &str) {
    let (_dir, path) = state();
    Publication::new("1-2".into()).publish(&path, Disk::default());
    let theirs = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(theirs.path(), fs::Permissions::from_mode(0o777)).expect("for all");
    let _stranger = Stranger::on(&theirs.path().join("socket"));
    fs::rename(theirs.path().join("socket"), path.join(SOCKET)).expect("moved");
    fs::set_permissions(path.join(SOCKET), fs::Permissions::from_mode(0o777)).expect("for all");
    std::os::unix::fs::chown(&path, Some(owner), None).expect("given");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
    let refused = ask(&path, "/readyz", LIMIT).expect_err("a stranger");
    assert_eq!(refused.to_string(), why);
    assert!(matches!(refused, Unanswered::Failed(_)));
}

#[test]
fn a_link_to_another_directory_is_not_followed() {
    let (dir, path) = state();
    let publication = Publication::new("1-2".into());
    publication.publish(&path, Disk::default());
    let _socket = publication.bind(&path).expect("made");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    let refused = ask(&link, "/readyz", LIMIT).expect_err("a link");
    assert_eq!(refused.to_string(), "it is a symbolic link");
}

/// For example one whose server hangs: it accepts nothing, and in the end its queue is full.
#[test]
fn an_agent_that_accepts_nothing_is_given_up() {
    let (_dir, path) = state();
    let publication = Publication::new("1-2".into());
    publication.publish(&path, Disk::default());
    let socket = publication.bind(&path).expect("made");
    nix::sys::socket::listen(&socket, Backlog::new(1).expect("one")).expect("listens");
    let short = Duration::from_millis(50);
    let gave_up = |ask: Result<client::AgentResponse, Unanswered>| match ask.expect_err("silence") {
        Unanswered::Failed(error) => {
            let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        Unanswered::NotServed => panic!("it is there"),
    };
    gave_up(ask(&path, "/readyz", short));
    let dir = PrivateDir::open(&path).expect("opened");
    let waiting: Vec<_> = (0..10).map_while(|_| socket::connect(&dir, short).ok()).collect();
    assert!(waiting.len() < 10, "its queue is full");
    gave_up(ask(&path, "/readyz", short));
}
