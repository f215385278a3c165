//! Client of an agent's server: for `longshore status`, and for probes that run a command.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::Listen;
use crate::endpoint::Address;

/// Size limit of an answer; none is larger.
const MOST_BYTES: u64 = 4 << 20;

/// Answer of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Requests `path` from the agent at `address`, within `limit`.
///
/// # Errors
/// If nothing answers there, not in time, or another program does.
pub fn ask(address: &Address, path: &str, limit: Duration) -> io::Result<Answer> {
    let until = Instant::now() + limit;
    let mut stream = connect(address, limit)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: longshore\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 8 << 10];
    loop {
        stream.wait_until(until)?;
        match stream.read(&mut part)? {
            0 => break,
            n => answer.extend_from_slice(part.get(..n).unwrap_or_default()),
        }
        if answer.len() as u64 > MOST_BYTES {
            return Err(io::Error::other("the answer is too large"));
        }
    }
    parse(&answer, &address.agent)
}

/// Returns the address that an agent with this state directory has written.
pub fn find(state_dir: &Path) -> Option<Address> {
    Address::read(state_dir)
}

trait Stream: Read + Write {
    /// Fails, now or at the next read, if the wait exceeds this limit.
    fn wait_until(&self, until: Instant) -> io::Result<()>;
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Stream for TcpStream {
    fn wait_until(&self, until: Instant) -> io::Result<()> {
        self.set_read_timeout(Some(left(until)?))
    }
}

impl Stream for UnixStream {
    fn wait_until(&self, until: Instant) -> io::Result<()> {
        self.set_read_timeout(Some(left(until)?))
    }
}

fn connect(address: &Address, limit: Duration) -> io::Result<Box<dyn Stream>> {
    match address.place() {
        Some(Listen::Tcp(at)) => {
            let stream = TcpStream::connect_timeout(&reachable(at), limit)?;
            stream.set_write_timeout(Some(limit))?;
            Ok(Box::new(stream))
        }
        Some(Listen::Unix(path)) => {
            let stream = UnixStream::connect(path)?;
            stream.set_write_timeout(Some(limit))?;
            Ok(Box::new(stream))
        }
        Some(Listen::Off) | None => Err(io::Error::other("the address is invalid")),
    }
}

/// Replaces the unspecified address of a listener on all addresses by the loopback address.
fn reachable(at: SocketAddr) -> SocketAddr {
    let ip = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, at.port())
}

fn parse(answer: &[u8], agent: &str) -> io::Result<Answer> {
    let other = || io::Error::other("another program answers there");
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(other)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).ok_or_else(other)?;
    let status = status.get(..3).and_then(|code| code.parse().ok()).ok_or_else(other)?;
    let is_it = |line: &str| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("longshore-agent") && value.trim() == agent
        })
    };
    if !lines.any(is_it) {
        return Err(other());
    }
    Ok(Answer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("HTTP/1.1 200 OK\r\nlongshore-agent: 1-2\r\n\r\nready\n", Some((200, "ready\n")))]
    #[case("HTTP/1.1 503 No\r\na: b\r\nLongshore-Agent:1-2\r\n\r\n", Some((503, "")))]
    #[case("HTTP/1.1 200 OK\r\nlongshore-agent: 1-3\r\n\r\nready\n", None)]
    #[case("HTTP/1.1 200 OK\r\n\r\nlongshore-agent: 1-2\r\n", None)]
    #[case("HTTP/1.1 2", None)]
    #[case("SSH-2.0-OpenSSH\r\n", None)]
    #[case("", None)]
    fn answers(#[case] text: &str, #[case] wanted: Option<(u16, &str)>) {
        let answer = parse(text.as_bytes(), "1-2").ok();
        assert_eq!(answer.as_ref().map(|a| (a.status, a.body.as_str())), wanted);
    }

    #[rstest]
    #[case("0.0.0.0:1", "127.0.0.1:1")]
    #[case("[::]:1", "[::1]:1")]
    #[case("192.0.2.1:1", "192.0.2.1:1")]
    fn every_address_is_asked_on_this_machine(#[case] at: &str, #[case] wanted: &str) {
        assert_eq!(reachable(at.parse().expect("address")).to_string(), wanted);
    }

    #[test]
    fn one_that_says_nothing_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let listen = listener.local_addr().expect("address").to_string();
        let address = Address { listen, agent: "1-2".into() };
        let error = ask(&address, "/readyz", Duration::from_millis(50)).expect_err("silence");
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}
