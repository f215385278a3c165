//! Stand-in of an API server: TLS, and one prepared answer after the other, or those of a function.

mod clock;
mod node;
mod tls;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::{Account, Cluster, Limits};

pub use clock::pass;
pub use node::AnnotatedNode;

/// An answer to one request.
#[derive(Debug)]
pub enum ScriptedAnswer {
    /// Status and body.
    Body(u16, String),
    /// Status 200, these lines, and the end.
    Lines(Vec<String>),
    /// Status 200 and these lines; the connection stays open.
    Open(Vec<String>),
    /// The connection is closed in the middle of the body.
    Cut(Vec<String>),
    /// No answer; the connection stays open.
    Silence,
}

/// A request as the server got it.
#[derive(Debug, Clone)]
pub struct Request {
    /// Method and path.
    pub line: String,
    /// Header `authorization`.
    pub authorization: String,
    /// Body.
    pub body: String,
}

/// Answers a request.
type Handler = Box<dyn Fn(&Request) -> ScriptedAnswer + Send + Sync>;

struct Shared {
    handler: Handler,
    requests: Mutex<Vec<Request>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("requests", &self.requests).finish_non_exhaustive()
    }
}

/// The server, with the files of a service account for it.
#[derive(Debug)]
pub struct Api {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Directory with the service account's files.
    pub files: tempfile::TempDir,
    /// Closed when this is dropped, which ends open connections.
    _open: mpsc::Sender<()>,
}

/// Limits under which a test ends soon.
pub const SHORT: Limits = Limits {
    call: Duration::from_secs(5),
    tries: 3,
    first_pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(4),
    watch: Duration::from_secs(30),
    answer: Limits::ANSWER,
};

impl Api {
    /// Starts a server with these answers.
    ///
    /// # Panics
    /// If nothing can be bound or written.
    pub fn with(answers: impl IntoIterator<Item = ScriptedAnswer>) -> Self {
        let answers: Mutex<VecDeque<ScriptedAnswer>> = Mutex::new(answers.into_iter().collect());
        Self::by(move |_| {
            let answer = answers.lock().expect("answers").pop_front();
            answer.unwrap_or_else(|| ScriptedAnswer::Body(500, "no answer is prepared".to_owned()))
        })
    }

    /// Starts a server that answers by this function.
    ///
    /// # Panics
    /// If nothing can be bound or written.
    pub fn by(handler: impl Fn(&Request) -> ScriptedAnswer + Send + Sync + 'static) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let config = tls::signed(files.path(), "ca.crt");
        for (name, text) in [("token", "first"), ("namespace", "gpu-operator")] {
            fs::write(files.path().join(name), text).expect("written");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared { handler: Box::new(handler), requests: Mutex::default() });
        let (open, closed) = mpsc::channel();
        let (served, closed) = (shared.clone(), Arc::new(Mutex::new(closed)));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, closed, config) = (served.clone(), closed.clone(), config.clone());
                thread::spawn(move || serve(stream, config, &shared, &closed));
            }
        });
        Self { address, shared, files, _open: open }
    }

    /// Returns the value that a variable has in a pod of this cluster.
    pub fn variable(&self, name: &str) -> Option<String> {
        variable(name, &self.address.port().to_string())
    }

    /// Returns a client of it.
    pub fn cluster(&self, limits: Limits) -> Cluster {
        cluster_at(&self.address.port().to_string(), self.files.path(), limits)
    }

    /// Returns the requests so far.
    ///
    /// # Panics
    /// If a thread of the server did.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("requests").clone()
    }

    /// Methods and paths of the requests, without their queries.
    pub fn lines(&self) -> Vec<String> {
        let path = |line: &str| line.split('?').next().unwrap_or_default().to_owned();
        self.requests().iter().map(|request| path(&request.line)).collect()
    }
}

/// Client of the server on this port of loopback.
///
/// # Panics
/// If the files are no service account's.
pub fn cluster_at(port: &str, files: &Path, limits: Limits) -> Cluster {
    let env = |name: &str| variable(name, port);
    let account = Account::of_pod(&env, files).expect("an account").expect("in a cluster");
    Cluster::new(account, limits).expect("a client")
}

fn variable(name: &str, port: &str) -> Option<String> {
    match name {
        "KUBERNETES_SERVICE_HOST" => Some("127.0.0.1".to_owned()),
        "KUBERNETES_SERVICE_PORT" => Some(port.to_owned()),
        _ => None,
    }
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    shared: &Shared,
    closed: &Mutex<mpsc::Receiver<()>>,
) -> Option<()> {
    let connection = ServerConnection::new(config).ok()?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let request = read(&mut stream)?;
    shared.requests.lock().expect("requests").push(request.clone());
    let answer = (shared.handler)(&request);
    let stream = stream.get_mut();
    let stay = || drop(closed.lock().map(|closed| closed.recv()));
    match answer {
        ScriptedAnswer::Body(status, body) => {
            let length = body.len();
            write!(stream, "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}").ok()?;
        }
        ScriptedAnswer::Lines(lines) => {
            chunks(stream, &lines)?;
            write!(stream, "0\r\n\r\n").ok()?;
        }
        ScriptedAnswer::Open(lines) => {
            chunks(stream, &lines)?;
            stream.flush().ok()?;
            stay();
        }
        ScriptedAnswer::Cut(lines) => chunks(stream, &lines)?,
        ScriptedAnswer::Silence => stay(),
    }
    stream.flush().ok()?;
    stream.conn.send_close_notify();
    stream.flush().ok()
}

fn chunks(stream: &mut impl Write, lines: &[String]) -> Option<()> {
    write!(stream, "HTTP/1.1 200 x\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n").ok()?;
    for line in lines {
        write!(stream, "{:x}\r\n{line}\n\r\n", line.len() + 1).ok()?;
    }
    Some(())
}

fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    // A client that gave up closes its connection before it sends a request.
    stream.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let (mut authorization, mut length) = (String::new(), 0);
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => authorization = value.trim().to_owned(),
            "content-length" => length = value.trim().parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
    Some(Request { line, authorization, body: String::from_utf8_lossy(&body).into_owned() })
}

/// Status of a failure, as an API server sends it.
pub fn status(code: u16, message: &str) -> String {
    serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Test", "code": code,
    })
    .to_string()
}

/// Answer with the status of a failure.
pub fn refused(code: u16) -> ScriptedAnswer {
    ScriptedAnswer::Body(code, status(code, "the test\n\u{1b}[2Jsays so"))
}
