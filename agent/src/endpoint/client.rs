//! Client of an agent's own socket: for `longshore status`, and for probes that run a command.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Serving, socket};
use crate::journal::private_dir::PrivateDir;

/// Size limit of an answer; none is larger.
const MOST_BYTES: u64 = 4 << 20;

/// Answer of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentResponse {
    /// Status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Reason that no agent answered.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// No agent serves in that directory: it is about to begin, or of a version that had no socket.
    #[error("it has no socket in its state directory")]
    NotServed,
    /// An agent serves there, or may serve there, and its answer did not come or is not its own.
    #[error("{0}")]
    Failed(io::Error),
}

impl From<io::Error> for Unanswered {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotServed,
            _ => Self::Failed(error),
        }
    }
}

/// Requests `path` from the agent that serves in `state_dir`, within `limit`.
///
/// Believed is only a socket in a directory that is root's (or the caller's own) alone, on which root (or the
/// caller's own user) listens, and an answer of the agent that `serving.json` there names.
///
/// # Errors
/// If nothing answers there, not in time, or another program does.
pub fn ask(state_dir: &Path, path: &str, limit: Duration) -> Result<AgentResponse, Unanswered> {
    let until = Instant::now() + limit;
    let dir = PrivateDir::open(state_dir)?;
    let serving = Serving::read_in(&dir)?.ok_or(Unanswered::NotServed)?;
    let mut stream = socket::connect(&dir, limit)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: longshore\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(Unanswered::Failed)?;
    let answer = read(&mut stream, until).map_err(Unanswered::Failed)?;
    parse(&answer, &serving.agent).map_err(Unanswered::Failed)
}

/// Reads to the end, until then at most.
fn read(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 8 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(answer),
            n => answer.extend_from_slice(part.get(..n).unwrap_or_default()),
        }
        if answer.len() as u64 > MOST_BYTES {
            return Err(io::Error::other("the answer is too large"));
        }
    }
}

fn parse(answer: &[u8], agent: &str) -> io::Result<AgentResponse> {
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
    Ok(AgentResponse { status, body: body.to_owned() })
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
}
