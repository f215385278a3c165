//! Health, readiness, metrics and status over HTTP, for probes, Prometheus and `longshore status`.
//!
//! The server has a thread and a runtime of its own: it answers, and reports the fault, even when
//! the agent's own runtime does not. It sleeps while there is no request. A connection that is
//! slow, sends too much or is one of many is dropped in favour of a proper one.

mod answer;
mod connections;
mod host_sampler;
mod liveness;
mod process_sampler;
mod store_sampler;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::oneshot;

pub use answer::Subject;
pub use liveness::{LivenessProbe, Responder};

use connections::{Answering, Connections, Peer};

use crate::config::Listen;
use crate::endpoint::{self, Address};
use longshore_core::disk::Disk;
use longshore_core::small_stacks;

/// Time limit for the head of a request: a client on this host takes microseconds.
const HEAD: Duration = Duration::from_secs(5);
/// Time limit of a connection.
const WHOLE: Duration = Duration::from_secs(30);
/// Upper limits of a request's head: bytes, and number of header lines.
const HEAD_BYTES: usize = 8 << 10;
const HEAD_LINES: usize = 64;
/// Interval of retrying an address that could not be bound.
const AGAIN: Duration = Duration::from_secs(30);

/// The server of an agent.
#[derive(Debug)]
pub struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    address: Arc<endpoint::Publication>,
}

impl Server {
    /// Serves `subject` on the address of `listen`; None if that is off, or no thread can be
    /// started. An address that cannot be bound is a warning, and is retried until it can: no
    /// driver waits for it.
    pub fn begin(listen: &Listen, subject: Subject) -> Option<Self> {
        if *listen == Listen::Off {
            return None;
        }
        let address = Arc::new(endpoint::Publication::new(subject.instance.clone()));
        let (stop, stopped) = oneshot::channel();
        let (listen, published) = (listen.clone(), Arc::clone(&address));
        let work = move || serve(&listen, Arc::new(subject), &published, stopped);
        match small_stacks::named("serve").spawn(work) {
            Ok(thread) => Some(Self { stop, thread, address }),
            Err(error) => {
                tracing::warn!("not serving health, metrics and status: {error}");
                None
            }
        }
    }

    /// Writes the address into the state directory, which belongs to this agent alone, for
    /// `longshore status` to find.
    fn publish(&self, state_dir: &Path, disk: Disk) {
        self.address.publish(state_dir, disk);
    }

    /// Stops the server.
    pub fn end(self) {
        self.address.withdraw();
        // If its thread has ended, there is nothing to stop.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// Writes the address of `server` into the state directory for `longshore status`; without a server
/// removes the file, which an agent that was killed may have left.
pub fn publish(server: Option<&Server>, state_dir: &Path, disk: Disk) {
    match server {
        Some(server) => server.publish(state_dir, disk),
        None => Address::forget(state_dir),
    }
}

fn serve(
    listen: &Listen,
    subject: Arc<Subject>,
    address: &endpoint::Publication,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(answer::MOST_THREADS)
        .thread_keep_alive(Duration::from_secs(1))
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::warn!("not serving health, metrics and status: {error}");
            return;
        }
    };
    runtime.block_on(async {
        tokio::select! {
            _ = stopped => {}
            () = listen_and_answer(listen, subject, address) => {}
        }
    });
    // An inspection of the host for a client may be blocked in the kernel.
    runtime.shutdown_background();
}

async fn listen_and_answer(
    listen: &Listen,
    subject: Arc<Subject>,
    address: &endpoint::Publication,
) {
    let listener = bound(listen).await;
    match listener.address() {
        Ok(at) => {
            tracing::info!(listen = %at, "serving health, metrics and status on {at}");
            address.bound(&at);
        }
        Err(error) => tracing::warn!("serving on {listen}, but its address is unknown: {error}"),
    }
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let subject = Arc::clone(&subject);
                connections.add(peer, |answering| answer_one(stream, subject, answering)).await;
            }
            Err(error) => {
                // Most likely too many open files: that passes, or the kernel returns it again at
                // once.
                tracing::debug!("accepting a connection: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Listens; if that fails, warns once and retries.
async fn bound(listen: &Listen) -> Listener {
    let mut warned = false;
    loop {
        match Listener::bind(listen).await {
            Ok(listener) => return listener,
            Err(error) if warned => tracing::debug!("listening on {listen}: {error}"),
            Err(error) => {
                tracing::warn!(
                    "not serving health, metrics and status: listening on {listen}: {error}; \
                     remedy: free that address or set another one (listen); retrying every \
                     {} s",
                    AGAIN.as_secs()
                );
                warned = true;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Listen),
}

impl Listener {
    async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Off => Err(io::ErrorKind::Unsupported.into()),
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => {
                clear(path).await?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, listen.clone()))
            }
        }
    }

    fn address(&self) -> io::Result<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(_, listen) => Ok(listen.clone()),
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                (Box::new(stream), Some(peer.ip()))
            }
            Self::Unix(listener, _) => (Box::new(listener.accept().await?.0), None),
        })
    }
}

/// Removes a socket that has no listener any more; any other file stays, and listening fails.
async fn clear(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket
        && let Err(error) = UnixStream::connect(path).await
        && error.kind() == io::ErrorKind::ConnectionRefused
    {
        fs::remove_file(path)?;
    }
    Ok(())
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn answer_one(stream: Box<dyn Stream>, subject: Arc<Subject>, answering: Answering) {
    let service = service_fn(move |request| {
        let (subject, answering) = (Arc::clone(&subject), Arc::clone(&answering));
        async move {
            answering.store(true, Ordering::Relaxed);
            let answer = subject.answer(&request).await;
            answering.store(false, Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(WHOLE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection: {error}"),
        Err(_) => tracing::debug!("a connection took more than {} s", WHOLE.as_secs()),
    }
}

#[cfg(test)]
mod tests;
