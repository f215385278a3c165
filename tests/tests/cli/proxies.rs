//! Archives behind proxies that the environment names.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use longshore_tests::packages::{self, KERNEL};
use longshore_tests::scene::{Scene, finish, fixture};
use longshore_tests::server::Closed;
use longshore_tests::tls;

/// Command that ends with "no such kernel" once it has read the archive.
const ASKED: [&str; 3] = ["build", "--kernel", "6.1.0-99-amd64"];

/// A proxy on loopback: plain requests and CONNECT, all of them forwarded to one address, for any
/// host. Ends with the process.
struct Proxy {
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(to: SocketAddr, refuses: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let log = Arc::new(Mutex::new(Vec::new()));
        let shared = log.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let log = shared.clone();
                // A client that disconnects is no fault of the proxy's.
                thread::spawn(move || pass(stream, to, refuses, &log));
            }
        });
        Self { address, log }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the first lines of the requests.
    fn asked(&self) -> Vec<String> {
        self.log.lock().expect("log").clone()
    }
}

fn pass(
    mut client: TcpStream,
    to: SocketAddr,
    refuses: bool,
    log: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let is_last = line.trim().is_empty();
        head.push(line);
        if is_last {
            break;
        }
    }
    let first = head[0].trim().to_owned();
    log.lock().expect("log").push(first.clone());
    if refuses {
        return client.write_all(
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\
              Proxy-Authenticate: Basic realm=\"x\"\r\nConnection: close\r\n\r\n",
        );
    }
    let mut server = TcpStream::connect(to)?;
    if first.starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 established\r\n\r\n")?;
    } else {
        // GET http://host/path HTTP/1.1
        let url = first.split(' ').nth(1).unwrap_or_default();
        let path = url.splitn(4, '/').nth(3).unwrap_or_default();
        head[0] = format!("GET /{path} HTTP/1.1\r\n");
        server.write_all(head.concat().as_bytes())?;
    }
    let mut up = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || io::copy(&mut up.0, &mut up.1));
    let copied = io::copy(&mut server, &mut client).map(drop);
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    copied
}

fn address_of(url: &str) -> SocketAddr {
    url.split("://").nth(1).and_then(|a| a.parse().ok()).expect("an address")
}

fn behind(url: &str) -> Scene {
    let scene = Scene::with(packages::buildable(&[]));
    scene.configure(&scene.archive_at(url));
    scene
}

#[test]
fn a_proxy_is_asked_for_an_archive_that_only_it_reaches() {
    let scene = behind("http://archive.invalid");
    let proxy = Proxy::start(address_of(&scene.server.url()), false);
    let mut command = scene.agent(&ASKED);
    command.env("http_proxy", proxy.url());
    scene.refuses(command, 11, &[KERNEL]);
    let asked = proxy.asked();
    let first = "GET http://archive.invalid/dists/stable/InRelease HTTP/1.1";
    assert!(asked.iter().any(|line| line == first), "{asked:?}");
}

#[test]
fn a_host_that_needs_no_proxy_is_asked_itself() {
    let scene = Scene::with(packages::buildable(&[]));
    let proxy = Proxy::start(address_of(&scene.server.url()), true);
    let mut command = scene.agent(&ASKED);
    command.env("http_proxy", proxy.url()).env("no_proxy", "example.com,127.0.0.1");
    scene.refuses(command, 11, &[KERNEL]);
    assert!(proxy.asked().is_empty(), "{:?}", proxy.asked());
}

#[test]
fn an_https_archive_is_reached_through_connect() {
    let scene = Scene::with(packages::buildable(&[]));
    let server = tls::server(scene.suite.files(&scene.key));
    scene.configure(&scene.archive_at(&server.url()));
    let proxy = Proxy::start(address_of(&server.url()), false);
    let mut command = scene.agent(&ASKED);
    command.env("https_proxy", proxy.url()).env("SSL_CERT_FILE", tls::bundle());
    scene.refuses(command, 11, &[KERNEL]);
    let asked = proxy.asked();
    assert!(!asked.is_empty() && asked.iter().all(|l| l.starts_with("CONNECT 127.0.0.1:")));
}

#[test]
fn a_proxy_that_is_away_or_wants_a_login_is_named_with_its_variable() {
    let scene = behind("http://archive.invalid");
    let closed = Closed::new();
    let mut command = scene.agent(&ASKED);
    command.env("http_proxy", closed.url());
    scene.refuses(command, 12, &["http://archive.invalid/", "Connection refused", "http_proxy"]);
    let proxy = Proxy::start(address_of(&scene.server.url()), true);
    let mut command = scene.agent(&ASKED);
    command.env("http_proxy", proxy.url());
    scene.refuses(command, 12, &["http://archive.invalid/", "407", "http_proxy"]);
    assert_eq!(proxy.asked().len(), 1, "it is not asked again");
}

#[test]
fn a_variable_that_is_no_proxy_is_refused_without_its_secret() {
    let scene = behind("http://archive.invalid");
    let proxy = Proxy::start(address_of(&scene.server.url()), false);
    let address = proxy.url().replace("http://", "");
    for value in [
        format!("http://user:p@ssw0rd@{address}"),
        format!("\"http://{address}\""),
        format!(" http://{address}"),
        format!("htp://{address}"),
        format!("http//{address}"),
        format!("http://{address}:2"),
        format!("http://user:p@ssw0rd#1@{address}"),
    ] {
        let mut command = scene.agent(&ASKED);
        command.env("http_proxy", &value);
        let ended = scene.refuses(command, 2, &["http_proxy", "no usable proxy", "%40"]);
        assert!(!ended.to_string().contains("ssw0rd"), "{ended}");
    }
    assert!(proxy.asked().is_empty(), "{:?}", proxy.asked());
    let mut command = scene.agent(&ASKED);
    command.env("http_proxy", format!("http://DOM\\user:p%40ss@{address}"));
    scene.refuses(command, 11, &[KERNEL]);
    assert!(!proxy.asked().is_empty());
}

#[test]
fn the_proxy_of_the_host_s_apt_is_asked_for_its_sources_and_named() {
    let scene = Scene::new();
    let proxy = Proxy::start(address_of(&scene.server.url()), true);
    let root = scene.path("root");
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg("-r").arg(fixture("bookworm-t4")).arg(&root).status();
    assert!(copied.expect("cp").success());
    let write = |path: &str, text: String| {
        let path = root.join("etc/apt").join(path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directories");
        std::fs::write(path, text).expect("written");
    };
    write("sources.list", "deb http://archive.invalid/debian bookworm main\n".to_owned());
    let key = std::fs::read_to_string(scene.path("keyring.asc")).expect("keyring");
    write("trusted.gpg.d/scene.asc", key);
    let set = proxy.url().replace("http://", "http://u:hidden@");
    write("apt.conf.d/01proxy", format!("Acquire::HTTP::Proxy \"{set}\";\n"));
    scene.configure("");
    let root = root.display().to_string();
    let mut command = scene.agent(&["plan", "--root", &root]);
    // apt's own setting comes before the variable.
    command.env("http_proxy", "http://127.0.0.1:1").env("LONGSHORE_HOST_APT", "true");
    let ended = finish(&mut command);
    let text = ended.to_string();
    assert!(
        text.contains("of /etc/apt/apt.conf.d/01proxy is used for the host's apt sources"),
        "{text}"
    );
    assert!(!text.contains("hidden"), "{text}");
    let asked = proxy.asked();
    assert!(
        asked.iter().any(|line| line.starts_with("GET http://archive.invalid/debian/dists/")),
        "{asked:?}"
    );
}
