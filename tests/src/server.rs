//! A small HTTP server on loopback with faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::archive::digest;

/// Address on loopback on which nobody listens: connections to it are refused. Its port stays bound, so that no test
/// beside gets it.
#[derive(Debug)]
pub struct Closed(tokio::net::TcpSocket);

impl Closed {
    /// Binds a free port.
    ///
    /// # Panics
    /// The system has none.
    #[expect(clippy::new_without_default, reason = "it takes a port")]
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("bind");
        Self(socket)
    }

    /// Returns its URL.
    ///
    /// # Panics
    /// The system does not know its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("address"))
    }
}

/// Fault of an answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Closes the connection after half of the declared length.
    Cut,
    /// Closes it after this many hundredths.
    CutAt(usize),
    /// Sends a byte now and then, until the client disconnects.
    Trickle,
    /// Answers with a status and a Retry-After header.
    Busy(u16, &'static str),
    /// Answers 503 without Retry-After, until this long after the first request.
    BusyFor(Duration),
    /// Sends this many hundredths, runs the hook, and sends the rest.
    Meanwhile(usize, Hook),
    /// Sends half and then nothing, until the client disconnects.
    Stall,
    /// Answers with a status and no body.
    Status(u16),
    /// Redirects the client.
    Redirect(String),
    /// Ignores ranges.
    NoRange,
    /// Sends half of these bytes, an earlier version of the file, with their ETag.
    CutEarlier(Vec<u8>),
    /// Sends the file's ETag and honours If-Range, without any fault.
    Tagged,
    /// Sends the file's ETag and honours ranges, but ignores If-Range.
    NoIfRange,
    /// Sends other bytes than the file's.
    Other(Vec<u8>),
    /// Sends other bytes without a declared length.
    Unmeasured(Vec<u8>),
}

/// Action of a server in the middle of an answer.
#[derive(Clone)]
pub struct Hook(Arc<dyn Fn() + Send + Sync>);

impl Hook {
    /// Makes a hook of a function.
    pub fn new(act: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(act))
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Faults for the next requests of a path, one each.
    once: BTreeMap<String, VecDeque<Fault>>,
    /// Faults for every request of a path.
    always: BTreeMap<String, Fault>,
    /// Time of the first request for each path.
    asked: BTreeMap<String, Instant>,
    log: Vec<String>,
}

/// State of a server, and its changes.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified after each request that is logged.
    requested: Condvar,
}

/// A connection, plain or wrapped.
pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// The server; it ends when dropped.
pub struct Server {
    scheme: &'static str,
    address: SocketAddr,
    shared: Arc<Shared>,
    ended: Arc<AtomicBool>,
    listening: Option<thread::JoinHandle<()>>,
}

/// Maximum wait for a request.
const AMPLE: Duration = Duration::from_secs(180);

impl Server {
    /// Starts a server without TLS that has these files, by path.
    pub fn start(files: BTreeMap<String, Vec<u8>>) -> Self {
        Self::behind("http", files, |stream| Ok(Box::new(stream)))
    }

    /// Starts a server whose connections `wrap` wraps.
    pub fn behind(
        scheme: &'static str,
        files: BTreeMap<String, Vec<u8>>,
        wrap: impl Fn(TcpStream) -> std::io::Result<Box<dyn Stream>> + Send + Sync + 'static,
    ) -> Self {
        let wrap = Arc::new(wrap);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let state = Mutex::new(State { files, ..State::default() });
        let shared = Arc::new(Shared { state, requested: Condvar::new() });
        let ended = Arc::new(AtomicBool::new(false));
        let (served, end) = (shared.clone(), ended.clone());
        let listening = thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, wrap) = (served.clone(), wrap.clone());
                // A client that disconnects is no fault of the server's.
                thread::spawn(move || {
                    let stream = stream.and_then(|stream| wrap(stream));
                    stream.and_then(|mut stream| serve(&mut *stream, &shared))
                });
            }
        });
        Self { scheme, address, shared, ended, listening: Some(listening) }
    }

    /// Returns its URL, without a path.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Adds a fault for one of the next requests of `path`.
    pub fn once(&self, path: &str, fault: Fault) {
        let mut state = self.shared.state.lock().expect("state");
        state.once.entry(path.to_owned()).or_default().push_back(fault);
    }

    /// Sets the fault of every request of `path`.
    pub fn always(&self, path: &str, fault: Fault) {
        self.shared.state.lock().expect("state").always.insert(path.to_owned(), fault);
    }

    /// Removes a file, and returns its content; panics if there is none.
    pub fn remove(&self, path: &str) -> Vec<u8> {
        let removed = self.shared.state.lock().expect("state").files.remove(path);
        removed.unwrap_or_else(|| panic!("{path} was never there"))
    }

    /// Returns all files, by path.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.shared.state.lock().expect("state").files.clone()
    }

    /// Removes a file, and returns its content if there was one.
    pub fn remove_if_there(&self, path: &str) -> Option<Vec<u8>> {
        self.shared.state.lock().expect("state").files.remove(path)
    }

    /// Adds or replaces a file.
    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        self.shared.state.lock().expect("state").files.insert(path.to_owned(), bytes);
    }

    /// Waits until a path that contains `part` is requested.
    pub fn await_request(&self, part: &str) {
        let state = self.shared.state.lock().expect("state");
        let none = |state: &mut State| !state.log.iter().any(|line| line.contains(part));
        let waited = self.shared.requested.wait_timeout_while(state, AMPLE, none);
        let (_state, timeout) = waited.expect("state");
        assert!(!timeout.timed_out(), "{part} is not requested within {AMPLE:?}");
    }

    /// Returns the requests: the path, and the range and the If-Range if there were any.
    pub fn requests(&self, part: &str) -> Vec<String> {
        let state = self.shared.state.lock().expect("state");
        state.log.iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// Headers of a request that select a part of the file.
#[derive(Default)]
struct Part {
    /// First byte.
    start: Option<usize>,
    /// ETag of the file that it is a part of.
    if_range: Option<String>,
}

impl Part {
    /// Reads the headers of a request.
    fn read(reader: &mut impl BufRead) -> std::io::Result<Self> {
        let mut part = Self::default();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                return Ok(part);
            }
            if let Some(value) = header.strip_prefix("range: bytes=") {
                part.start = value.trim_end_matches('-').parse().ok();
            }
            if let Some(value) = header.strip_prefix("if-range: ") {
                part.if_range = Some(value.to_owned());
            }
        }
    }

    /// Returns the line of the log.
    fn logged(&self, path: &str) -> String {
        let from = self.start.map(|start| format!(" from {start}")).unwrap_or_default();
        let of = self.if_range.as_ref().map(|etag| format!(" of {etag}")).unwrap_or_default();
        format!("{path}{from}{of}")
    }

    /// Returns the first byte to send, where a part of `body` is sent.
    fn first_byte(&self, body: &[u8], fault: Option<&Fault>) -> Option<usize> {
        let is_other = || self.if_range.as_ref().is_some_and(|tag| *tag != etag(body));
        match fault {
            Some(Fault::NoRange) => None,
            Some(Fault::Tagged) if is_other() => None,
            _ => self.start,
        }
    }
}

/// Returns the ETag of a file.
pub fn etag(body: &[u8]) -> String {
    format!("\"{}\"", digest(body))
}

fn serve(stream: &mut dyn Stream, shared: &Shared) -> std::io::Result<()> {
    // Nothing follows a request before its answer.
    let mut reader = BufReader::new(&mut *stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split_whitespace().nth(1).unwrap_or("/").to_owned();
    let part = Part::read(&mut reader)?;
    let (body, fault) = {
        let mut state = shared.state.lock().expect("state");
        state.log.push(part.logged(&path));
        shared.requested.notify_all();
        let once = state.once.get_mut(&path).and_then(VecDeque::pop_front);
        let first = *state.asked.entry(path.clone()).or_insert_with(Instant::now);
        let fault = match once.or_else(|| state.always.get(&path).cloned()) {
            Some(Fault::BusyFor(time)) if first.elapsed() < time => Some(Fault::Status(503)),
            Some(Fault::BusyFor(_)) => None,
            other => other,
        };
        (state.files.get(&path).cloned(), fault)
    };
    answer(stream, body, &part, fault)?;
    stream.flush()
}

fn answer(
    stream: &mut dyn Stream,
    body: Option<Vec<u8>>,
    part: &Part,
    fault: Option<Fault>,
) -> std::io::Result<()> {
    match fault {
        Some(Fault::Status(status)) => return head(stream, status, "Content-Length: 0\r\n"),
        Some(Fault::Busy(status, again)) => {
            return head(stream, status, &format!("Retry-After: {again}\r\nContent-Length: 0\r\n"));
        }
        Some(Fault::Redirect(to)) => {
            return head(stream, 302, &format!("Location: {to}\r\nContent-Length: 0\r\n"));
        }
        Some(Fault::Other(bytes)) => return whole(stream, &bytes),
        Some(Fault::Unmeasured(bytes)) => {
            head(stream, 200, "")?;
            return stream.write_all(&bytes);
        }
        _ => {}
    }
    let Some(body) = body else { return head(stream, 404, "Content-Length: 0\r\n") };
    let body = if let Some(Fault::CutEarlier(earlier)) = &fault { earlier } else { &body };
    let (start, status) = match part.first_byte(body, fault.as_ref()) {
        Some(start) => (start, 206),
        None => (0, 200),
    };
    let rest = &body[start..];
    let tag = match &fault {
        Some(Fault::CutEarlier(_) | Fault::Tagged | Fault::NoIfRange) => {
            format!("ETag: {}\r\n", etag(body))
        }
        _ => String::new(),
    };
    let headers = format!(
        "{tag}Content-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n",
        rest.len(),
        body.len().saturating_sub(1),
        body.len()
    );
    head(stream, status, &headers)?;
    send(stream, rest, fault.as_ref())
}

/// Sends the body of an answer, with its fault.
fn send(stream: &mut dyn Stream, rest: &[u8], fault: Option<&Fault>) -> std::io::Result<()> {
    match fault {
        Some(Fault::Cut | Fault::CutEarlier(_)) => stream.write_all(&rest[..rest.len() / 2]),
        Some(Fault::CutAt(hundredths)) => stream.write_all(&rest[..rest.len() * hundredths / 100]),
        Some(Fault::Meanwhile(hundredths, hook)) => {
            let (first, last) = rest.split_at(rest.len() * hundredths / 100);
            stream.write_all(first)?;
            stream.flush()?;
            (hook.0)();
            stream.write_all(last)
        }
        Some(Fault::Trickle) => {
            for byte in rest.chunks(1).cycle() {
                stream.write_all(byte)?;
                stream.flush()?;
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        }
        Some(Fault::Stall) => {
            stream.write_all(&rest[..rest.len() / 2])?;
            stream.flush()?;
            stream.read(&mut [0]).map(drop)
        }
        _ => stream.write_all(rest),
    }
}

fn head(stream: &mut dyn Stream, status: u16, headers: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} status\r\nConnection: close\r\n{headers}\r\n")
}

fn whole(stream: &mut dyn Stream, bytes: &[u8]) -> std::io::Result<()> {
    head(stream, 200, &format!("Content-Length: {}\r\n", bytes.len()))?;
    stream.write_all(bytes)
}
