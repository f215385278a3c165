//! The side of longshore: starts the process, asks it, and checks what it answers.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, Once, PoisonError};
use std::time::{Duration, Instant};

use longshore_core::confinement::Confined;
use longshore_core::sanitize;
use nix::errno::Errno;
use reqwest::{Request, Url};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::super::client_error::{Class, ClientError};
use super::super::head::Head;
use super::super::settings::Settings;
use super::SUBCOMMAND;
use super::wire::{
    DATA, END, FAILURE, HeadMessage, MOST_BODY, MOST_MESSAGE, MOST_PIECE, Question, Start, invalid,
    read_message, receive, receive_bytes, send, write_message,
};

/// Time limit for the process to begin: it reads the certificates. A loaded machine takes seconds.
pub(super) const BEGIN: Duration = Duration::from_secs(60);
/// Time limit for the control socket to take a byte; only a process that was taken over needs it.
const CONTROL: Duration = Duration::from_secs(10);
/// Time limit for a process that has closed its sockets to end.
const END_OF_PROCESS: Duration = Duration::from_secs(1);
/// Time for which the process may be later than its own limits.
const LATER: Duration = Duration::from_secs(5);
/// Redirections, with the request itself, whose limits an answer may take together.
const HOPS: u32 = 4;
/// Number of servers whose processes are kept.
const MOST_KEPT: usize = 16;
/// Size of the buffer of received bytes.
const BUFFER: usize = 256 << 10;
/// Maximum length of a cause that the process gives, in characters.
const LONGEST_CAUSE: usize = 1000;

/// Variables that the process gets: places of certificates (rustls-native-certs), and settings of the C library's
/// resolver (resolv.conf(5)).
const VARIABLES: [&str; 4] = ["SSL_CERT_FILE", "SSL_CERT_DIR", "LOCALDOMAIN", "RES_OPTIONS"];

/// Warning about a process that has root's user id.
const KEPT_ROOT: &str = "processes that download keep root's user id without CAP_SETUID and CAP_SETGID: one that a \
                         server takes over could read root's files in this container";
static WARNED: Once = Once::new();
/// Number of processes that were started.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// A process that downloads from one server. It is started for the first request, and anew where it has ended or does not
/// answer as it should.
#[derive(Debug)]
pub(in super::super) struct DownloadProcess {
    program: PathBuf,
    settings: Arc<Settings>,
    running: Mutex<Option<Running>>,
}

/// Processes of a client: one for each server (scheme, host and port), so that none gets the logins of another.
#[derive(Debug)]
pub(in super::super) struct DownloadProcesses {
    program: PathBuf,
    settings: Arc<Settings>,
    /// Those of the last servers, the last one at the end.
    kept: SyncMutex<Vec<(String, Arc<DownloadProcess>)>>,
}

impl DownloadProcesses {
    /// Makes the processes of a client with these settings; none is started yet.
    pub(in super::super) fn new(program: &Path, settings: Arc<Settings>) -> Self {
        Self { program: program.to_path_buf(), settings, kept: SyncMutex::default() }
    }

    /// Returns the process of a URL's server. Of more than [`MOST_KEPT`] servers, the process of the one that was asked
    /// the longest ago ends with its last response.
    pub(in super::super) fn process_for(&self, url: &Url) -> Arc<DownloadProcess> {
        let server = url.origin().ascii_serialization();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().position(|(name, _)| *name == server).map(|at| kept.remove(at).1);
        let make = || Arc::new(DownloadProcess::new(&self.program, self.settings.clone()));
        let process = known.unwrap_or_else(make);
        kept.push((server, process.clone()));
        // Dropped after the lock: the end of a process takes milliseconds.
        let ended = (kept.len() > MOST_KEPT).then(|| kept.remove(0));
        drop(kept);
        drop(ended);
        process
    }
}

/// A started process.
#[derive(Debug)]
struct Running {
    /// Number of the process, which its exchanges know it by.
    number: u64,
    control: BlockingStream,
    /// Dropped after its socket, by whose end it ends where it cannot be killed.
    process: Confined,
}

impl DownloadProcess {
    /// Makes the process of a client with these settings; it is not started yet.
    pub(in super::super) fn new(program: &Path, settings: Arc<Settings>) -> Self {
        Self { program: program.to_path_buf(), settings, running: Mutex::new(None) }
    }

    /// Lets the process send a request; returns its head, and the body that is to follow, when
    /// its headers are there.
    ///
    /// # Errors
    /// The client's error, one of the process, or one of the host where it cannot be started.
    pub(in super::super) async fn send(
        self: Arc<Self>,
        request: Request,
    ) -> Result<(Head, ReceivedBody), ClientError> {
        let (socket, number) = self.open().await?;
        let mut socket = buffered(socket);
        let reach = self.settings.reach();
        let body = request.body().map(|body| body.as_bytes().unwrap_or_default());
        let known = reach.and_then(|reach| reach.resolves_to_loopback());
        let question = Question::new(&request, body.map(<[u8]>::len), known);
        if body.is_some_and(|body| body.len() > MOST_BODY) {
            return Err(ClientError::new(Class::Request, "its body has more than 2 GiB"));
        }
        let answer = async {
            send(&mut socket, &question).await?;
            socket.write_all(body.unwrap_or_default()).await?;
            receive::<HeadMessage>(&mut socket).await
        };
        // The process has the same limits for each of a few redirections.
        let limit = LATER + HOPS * (self.settings.connect + self.settings.stall);
        let answer = match timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.broken(number, &error).await),
            Err(_) => return Err(self.silent(number, limit).await),
        };
        if let Some(reach) = reach {
            reach.learn(answer.resolves_to_loopback);
        }
        match answer.into_head() {
            Ok(Ok(head)) => {
                let stall = LATER + self.settings.stall;
                let process = Some((self, number));
                Ok((head, ReceivedBody { socket, stall, process }))
            }
            Ok(Err(error)) => Err(believed(error)),
            Err(cause) => Err(self.broken(number, &invalid(&cause)).await),
        }
    }

    /// Starts the process if there is none.
    ///
    /// # Errors
    /// One of the host where it cannot be started, or one that may be over soon.
    pub(in super::super) async fn begin(&self) -> Result<(), ClientError> {
        self.open().await.map(drop)
    }

    /// Opens the socket of an exchange, and starts the process if there is none. Also returns the process's number.
    async fn open(&self) -> Result<(UnixStream, u64), ClientError> {
        let mut running = self.running.lock().await;
        if let Some(process) = &*running {
            match process.open() {
                Ok(socket) => return Ok((socket, process.number)),
                // This process lacks files, and the other one goes on.
                Err(error) if is_lack(&error) => return Err(broken(&error, None)),
                Err(error) => {
                    tracing::debug!("the process that downloads is started anew: {error}");
                    *running = None;
                }
            }
        }
        let (program, settings) = (self.program.clone(), self.settings.clone());
        let started = tokio::task::spawn_blocking(move || Running::start(&program, &settings));
        let process = match started.await {
            Ok(process) => process?,
            Err(error) => return Err(not_started(&io::Error::other(error))),
        };
        let opened = process.open().map_err(|e| broken(&e, None));
        let number = process.number;
        *running = Some(process);
        opened.map(|socket| (socket, number))
    }

    /// Returns the error of an exchange with the process of this number, whose socket failed. One that sends nonsense is
    /// given up.
    async fn broken(&self, number: u64, error: &io::Error) -> ClientError {
        let mut running = self.running.lock().await;
        let mut signal = None;
        if let Some(process) = running.as_mut().filter(|process| process.number == number) {
            match is_closed(error) {
                true => signal = process.signal().await,
                false => *running = None,
            }
        }
        broken(error, signal)
    }

    /// Gives up the process of this number, which has not answered for longer than its own limits, and returns the
    /// exchange's error. Its other exchanges are repeated.
    async fn silent(&self, number: u64, limit: Duration) -> ClientError {
        let mut running = self.running.lock().await;
        if running.as_ref().is_some_and(|process| process.number == number) {
            *running = None;
        }
        let cause = format!("the process that downloads says nothing for {limit:?}");
        ClientError::new(Class::Silent, cause)
    }
}

impl Running {
    /// Starts the process: `program` with [`SUBCOMMAND`], and next to no environment.
    fn start(program: &Path, settings: &Settings) -> Result<Self, ClientError> {
        let (control, theirs) = BlockingStream::pair().map_err(|e| not_started(&e))?;
        let mut command = Command::new(program);
        command.arg0("longshore").arg(SUBCOMMAND).env_clear();
        let set = VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.envs(set);
        // Signals typed at a terminal are meant for the agent alone.
        command.process_group(0);
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Confined(command.spawn().map_err(|e| not_started(&e))?);
        // The command holds the other end of the socket.
        drop(command);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let process = Self { number, control, process };
        let start = process.begin(settings).map_err(|e| not_begun(&e))?;
        match start {
            Start::Ready { is_root } => {
                if is_root {
                    WARNED.call_once(|| tracing::warn!("{KEPT_ROOT}"));
                }
                Ok(process)
            }
            Start::Unusable(cause) => Err(believed(ClientError::new(Class::Request, cause))),
            Start::Unconfined(cause) => {
                let cause =
                    format!("a process that downloads could not give up its rights: {cause}");
                Err(believed(ClientError::new(Class::Host, cause)))
            }
        }
    }

    fn begin(&self, settings: &Settings) -> io::Result<Start> {
        self.control.set_read_timeout(Some(BEGIN))?;
        self.control.set_write_timeout(Some(BEGIN))?;
        write_message(&self.control, settings)?;
        let start = read_message(&self.control, MOST_MESSAGE)?;
        self.control.set_write_timeout(Some(CONTROL))?;
        Ok(start)
    }

    /// Opens the socket of an exchange.
    fn open(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = BlockingStream::pair()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets = [theirs.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&sockets)) {
            return Err(io::Error::other("a socket has no place in its message"));
        }
        sendmsg(&self.control, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        ours.set_nonblocking(true)?;
        UnixStream::from_std(ours)
    }

    /// Returns the signal that ended the process; waits a moment for its end.
    async fn signal(&mut self) -> Option<i32> {
        let since = Instant::now();
        while since.elapsed() < END_OF_PROCESS {
            match self.process.0.try_wait() {
                Ok(Some(status)) => return status.signal(),
                Ok(None) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(_) => return None,
            }
        }
        None
    }
}

/// Body of a response, as the process passes it on.
pub(in super::super) struct ReceivedBody {
    socket: BufReader<UnixStream>,
    /// Time limit of the next bytes.
    stall: Duration,
    /// The process, which goes on for as long as one of its responses is read, and its number.
    process: Option<(Arc<DownloadProcess>, u64)>,
}

/// Gives a socket a buffer: pieces are received in fewer calls.
fn buffered(socket: UnixStream) -> BufReader<UnixStream> {
    BufReader::with_capacity(BUFFER, socket)
}

impl ReceivedBody {
    /// Returns the body that arrives from a socket.
    #[cfg(test)]
    pub(super) fn new(socket: UnixStream, stall: Duration) -> Self {
        Self { socket: buffered(socket), stall, process: None }
    }

    /// Returns the next bytes; None at the end.
    ///
    /// # Errors
    /// The client's error, or one of the process.
    pub(in super::super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let (limit, process) = (self.stall, self.process.clone());
        match (timeout(limit, self.piece()).await, process) {
            (Ok(Ok(piece)), _) => piece,
            (Ok(Err(error)), Some((process, number))) => Err(process.broken(number, &error).await),
            (Ok(Err(error)), None) => Err(broken(&error, None)),
            (Err(_), Some((process, number))) => Err(process.silent(number, limit).await),
            (Err(_), None) => Err(ClientError::new(Class::Silent, "no data")),
        }
    }

    async fn piece(&mut self) -> io::Result<Result<Option<Vec<u8>>, ClientError>> {
        match self.socket.read_u8().await? {
            DATA => Ok(Ok(Some(receive_bytes(&mut self.socket, MOST_PIECE).await?))),
            END => Ok(Ok(None)),
            FAILURE => Ok(Err(believed(receive(&mut self.socket).await?))),
            _ => Err(invalid("a piece of no known kind")),
        }
    }
}

/// True for the error of a socket whose other end is closed.
fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Returns the error of an exchange that the process did not carry on.
fn broken(error: &io::Error, signal: Option<i32>) -> ClientError {
    let cause = match signal {
        Some(signal) => format!("signal {signal} ended the process that downloads"),
        None if is_closed(error) => "the process that downloads has ended".to_owned(),
        None => format!("the process that downloads does not answer as it should: {error}"),
    };
    believed(ClientError::new(Class::Broken, cause))
}

/// True for a lack of processes, files or memory, which may be over soon.
fn is_lack(error: &io::Error) -> bool {
    const LACKS: [Errno; 4] = [Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE];
    error.raw_os_error().map(Errno::from_raw).is_some_and(|errno| LACKS.contains(&errno))
}

/// Returns the error of a process that was not started: for anything but a lack it is the host's.
fn not_started(error: &io::Error) -> ClientError {
    let class = if is_lack(error) { Class::Broken } else { Class::Host };
    believed(ClientError::new(class, format!("starting a process that downloads: {error}")))
}

/// Returns the error of a process that did not begin.
fn not_begun(error: &io::Error) -> ClientError {
    match error.kind() {
        // The time limit of the socket.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let cause = format!("a process that downloads does not begin within {BEGIN:?}");
            ClientError::new(Class::Silent, cause)
        }
        // The kernel may have killed it for lack of memory.
        _ if is_closed(error) => {
            ClientError::new(Class::Broken, "a process that downloads ended before it began")
        }
        _ => not_started(error),
    }
}

/// Returns an error of the process with its text cut and escaped: it may write anything.
fn believed(error: ClientError) -> ClientError {
    let cause: String = error.cause.chars().take(LONGEST_CAUSE).collect();
    ClientError { cause: sanitize::in_line(&cause).into_owned(), ..error }
}
