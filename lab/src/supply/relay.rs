//! A relay on this machine's loopback through which one guest reaches the archive that the machine
//! itself uses. It forwards GET requests over plain http and nothing else; the guest verifies every
//! file by the archive's signature.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use longshore_debian::apt_sources;

use crate::host::error::{At, Error};

/// Larger than the head of any request that an archive's client sends.
const LARGEST_HEAD: u64 = 16 << 10;
/// Time limit for one read or write; the archive's own clients wait no longer.
const STALL_LIMIT: Duration = Duration::from_secs(120);

/// A running relay. Dropping it ends it.
#[derive(Debug)]
pub struct Relay {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// The archives: suite, and path below the relay's address, with a slash before it.
    pub archives: Vec<(String, String)>,
    ended: Arc<AtomicBool>,
}

impl Relay {
    /// Starts a relay to the first archives of the apt sources below `root` that serve `suites`.
    ///
    /// # Errors
    /// No source serves a suite, its address is not plain http, two are on different hosts, or no port
    /// can be listened on.
    pub fn start(suites: &[&str], root: &Path) -> Result<Self, Error> {
        let (host, archives) = archives(suites, root)?;
        let at = Path::new("127.0.0.1");
        let listener = TcpListener::bind("127.0.0.1:0").at("listen on", at)?;
        let port = listener.local_addr().at("listen on", at)?.port();
        let ended = Arc::new(AtomicBool::new(false));
        thread::spawn({
            let ended = Arc::clone(&ended);
            move || accept(&listener, &host, &ended)
        });
        Ok(Self { port, archives, ended })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The listener checks the flag at each connection; if connecting fails it has ended
        // already.
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        drop(TcpStream::connect_timeout(&address, Duration::from_secs(1)));
    }
}

/// Configuration with the archives that a guest reaches through a relay, and no other: what this
/// machine compiles with it, the guest compiles from the same packages, and so reuses its results.
///
/// # Errors
/// As [`Relay::start`].
pub(crate) fn configuration(suites: &[&str], root: &Path) -> Result<String, Error> {
    let (host, archives) = archives(suites, root)?;
    let mut text = "host-apt = false\n".to_owned();
    for (suite, path) in archives {
        text.push_str(&format!(
            "\n[[archive]]\nurl = \"http://{host}{path}\"\nsuites = [\"{suite}\"]\n\
             components = [\"main\", \"contrib\", \"non-free\", \"non-free-firmware\"]\n\
             keyring = \"/usr/share/keyrings/debian-archive-keyring.gpg\"\n"
        ));
    }
    Ok(text)
}

/// Returns the one host that serves all suites, and each suite with its path there.
fn archives(suites: &[&str], root: &Path) -> Result<(String, Vec<(String, String)>), Error> {
    let mut one = None;
    let mut archives = Vec::new();
    for suite in suites {
        let (host, path) = archive(suite, root)?;
        let first = one.get_or_insert_with(|| host.clone());
        if *first != host {
            let why = "the apt sources have on different hosts";
            return Err(Error::Unexpected(format!("a relay cannot serve {suites:?}, which {why}")));
        }
        archives.push(((*suite).to_owned(), path));
    }
    let host = one.ok_or_else(|| Error::Unexpected("a relay without a suite".into()))?;
    Ok((host, archives))
}

/// Returns host (with its port) and path of the archive that serves `suite`.
fn archive(suite: &str, root: &Path) -> Result<(String, String), Error> {
    let sources = apt_sources::read(root, "amd64").sources;
    let serves = |source: &&apt_sources::AptSource| source.suites.iter().any(|s| s == suite);
    let source = sources.iter().find(serves).ok_or_else(|| {
        Error::Unexpected(format!("no apt source of {} serves {suite}", root.display()))
    })?;
    let url = source.url.as_str();
    let rest = url.strip_prefix("http://").ok_or_else(|| {
        Error::Unexpected(format!("the apt source of {suite} is not plain http: {url}"))
    })?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((host.to_owned(), format!("/{}", path.trim_end_matches('/'))))
}

fn accept(listener: &TcpListener, host: &str, ended: &AtomicBool) {
    for client in listener.incoming() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        let (Ok(client), host) = (client, host.to_owned()) else { continue };
        thread::spawn(move || {
            // The guest's agent sees a broken connection, and tries again.
            if let Err(error) = forward(client, &host) {
                complain(&error);
            }
        });
    }
}

#[allow(clippy::print_stderr)]
fn complain(error: &io::Error) {
    eprintln!("kernel-matrix: relaying a request of a guest: {error}");
}

/// Forwards the one request of a connection and its answer.
fn forward(mut client: TcpStream, host: &str) -> io::Result<()> {
    for how in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        how(&client, Some(STALL_LIMIT))?;
    }
    let head = rewritten(BufReader::new(client.try_clone()?).take(LARGEST_HEAD), host)?;
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut server = TcpStream::connect(address)?;
    server.set_read_timeout(Some(STALL_LIMIT))?;
    server.write_all(head.as_bytes())?;
    io::copy(&mut server, &mut client).map(drop)
}

/// Rewrites the head of a GET request: to `host`, for one answer.
fn rewritten(mut request: impl BufRead, host: &str) -> io::Result<String> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut head = String::new();
    let mut line = String::new();
    loop {
        line.clear();
        if request.read_line(&mut line)? == 0 {
            return Err(bad("the request ended before its head did"));
        }
        let text = line.trim_end_matches(['\r', '\n']);
        if head.is_empty() && !text.starts_with("GET /") {
            return Err(bad("not a GET request"));
        }
        if text.is_empty() {
            head.push_str(&format!("Host: {host}\r\nConnection: close\r\n\r\n"));
            return Ok(head);
        }
        let name = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if head.is_empty() || !["host", "connection"].contains(&name.as_str()) {
            head.push_str(&format!("{text}\r\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_on_to_the_archives_host() {
        let request = "GET /debian/a HTTP/1.1\r\nHost: 10.0.2.100:5000\r\nRange: bytes=5-\r\n\
            connection: keep-alive\r\n\r\n";
        let head = rewritten(request.as_bytes(), "archive.example.com").unwrap();
        assert_eq!(
            head,
            "GET /debian/a HTTP/1.1\r\nRange: bytes=5-\r\nHost: archive.example.com\r\n\
             Connection: close\r\n\r\n"
        );
    }

    #[test]
    fn what_is_no_whole_get_request_is_refused() {
        for bad in ["POST /a HTTP/1.1\r\n\r\n", "GET /a HTTP/1.1\r\nHost: a\r\n", ""] {
            assert!(rewritten(bad.as_bytes(), "h").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_answer_comes_back_through_it() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = server.local_addr().unwrap().to_string();
        let root = tempfile::tempdir().unwrap();
        let parts = root.path().join("etc/apt/sources.list.d");
        std::fs::create_dir_all(&parts).unwrap();
        let stanza = |suite: &str, url: &str| {
            format!("Types: deb\nURIs: http://{url}\nSuites: {suite}\nComponents: main\n\n")
        };
        let stanza = [
            stanza("s", &format!("{host}/debian")),
            stanza("u", &format!("{host}/debian-u")),
            stanza("t", "archive.example.com/debian"),
        ]
        .concat();
        std::fs::write(parts.join("a.sources"), stanza).unwrap();
        let served = thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let mut first = String::new();
            BufReader::new(connection.try_clone().unwrap()).read_line(&mut first).unwrap();
            connection.write_all(b"HTTP/1.1 200 OK\r\n\r\nbody").unwrap();
            first
        });
        let relay = Relay::start(&["s", "u"], root.path()).unwrap();
        let archives: Vec<_> = relay.archives.iter().map(|(s, p)| format!("{s} {p}")).collect();
        assert_eq!(archives, ["s /debian", "u /debian-u"]);
        let mut client = TcpStream::connect(("127.0.0.1", relay.port)).unwrap();
        client.write_all(b"GET /debian/x HTTP/1.1\r\nHost: g\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("body"), "{answer}");
        assert_eq!(served.join().unwrap().trim_end(), "GET /debian/x HTTP/1.1");
        for (suites, why) in [(["other", "s"], "no apt source"), (["s", "t"], "different hosts")] {
            let error = Relay::start(&suites, root.path()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
