//! Health, readiness, metrics and status over HTTP: all of them on the agent's own socket, for probes and
//! `longshore status`, and the metrics alone on the address of `listen`, for Prometheus.
//!
//! The server has a thread and a runtime of its own: it answers, and reports the fault, even when
//! the agent's own runtime does not. It sleeps while there is no request. A connection that is
//! slow, sends too much or is one of many is dropped in favour of a proper one. The two listeners share neither
//! connections nor limits: none that comes over the network keeps a probe waiting.

mod answer;
mod connections;
mod host_sampler;
mod listener;
mod liveness;
mod process_sampler;
mod store_sampler;
mod tls;
mod token_reviews;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};

pub use answer::Subject;
pub use liveness::{LivenessProbe, Responder};

use answer::{Answers, Served};
use connections::{Answering, Connections};
use listener::Listener;
use tls::Tls;
use token_reviews::TokenReviews;

use crate::config::{Listen, SOCKET, ServingConfig};
use crate::endpoint;
use longshore_core::disk::Disk;
use longshore_core::small_stacks;

/// Time limit for the head of a request: a client on this host takes microseconds.
const HEAD: Duration = Duration::from_secs(5);
/// Time limit of a connection.
const WHOLE: Duration = Duration::from_secs(30);
/// Upper limits of a request's head: bytes, and number of header lines.
const HEAD_BYTES: usize = 8 << 10;
const HEAD_LINES: usize = 64;
/// Interval of retrying a socket or an address that could not be bound.
const AGAIN: Duration = Duration::from_secs(30);

/// The server of an agent.
#[derive(Debug)]
pub struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    published: Arc<endpoint::Publication>,
    /// State directory, once it is this agent's.
    dir: watch::Sender<Option<PathBuf>>,
}

impl Server {
    /// Serves the metrics of `subject` by `config`, and all of it on the socket in the state directory once that is
    /// known; None if no thread can be started. A socket or an address that cannot be bound is a warning, and is
    /// retried until it can: no driver waits for it.
    pub fn begin(config: &ServingConfig, subject: Subject) -> Option<Self> {
        let published = Arc::new(endpoint::Publication::new(subject.instance.clone()));
        let (stop, stopped) = oneshot::channel();
        let (dir, of_agent) = watch::channel(None);
        let own = Own { subject: Arc::new(subject), published: Arc::clone(&published) };
        let config = config.clone();
        let work = move || serve(&config, &own, of_agent, stopped);
        match small_stacks::named("serve").spawn(work) {
            Ok(thread) => Some(Self { stop, thread, published, dir }),
            Err(error) => {
                tracing::warn!("not serving health, metrics and status: {error}");
                None
            }
        }
    }

    /// Stops the server, then removes what it served on.
    pub fn end(self) {
        // If its thread has ended, there is nothing to stop.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        self.published.withdraw();
    }
}

/// Lets `server` make its socket in the state directory, which belongs to this agent alone: it holds the lock.
/// Without a server removes what an agent that was killed may have left.
pub fn publish(server: Option<&Server>, state_dir: &Path, disk: Disk) {
    let Some(server) = server else { return endpoint::forget(state_dir) };
    server.published.publish(state_dir, disk);
    // Its thread has ended where nothing receives this: there is nothing to serve then.
    let _ = server.dir.send(Some(state_dir.to_path_buf()));
}

/// The agent that is served, and the publication of its places.
struct Own {
    subject: Arc<Subject>,
    published: Arc<endpoint::Publication>,
}

fn serve(
    config: &ServingConfig,
    own: &Own,
    dir: watch::Receiver<Option<PathBuf>>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(2 * answer::MOST_THREADS + tls::MOST_THREADS)
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
            _ = async { tokio::join!(socket(own, dir), metrics(config, own)) } => {}
        }
    });
    // An inspection of the host for a client may be blocked in the kernel.
    runtime.shutdown_background();
}

/// Serves everything on the agent's own socket, once the state directory is this agent's.
async fn socket(own: &Own, mut dir: watch::Receiver<Option<PathBuf>>) {
    let Ok(Some(dir)) = dir.wait_for(Option::is_some).await.map(|dir| dir.clone()) else { return };
    let path = dir.join(SOCKET);
    let what = format!("health, readiness, status and metrics on {}", path.display());
    let bind = async || Listener::private(own.published.bind(&dir)?);
    let listener = bound(&what, "make the state directory writable for root alone", bind).await;
    tracing::debug!("serving {what}");
    let answers = Answers::new(Arc::clone(&own.subject), Served::All);
    accept(&listener, &Arc::new(answers), None).await;
}

/// Serves metrics alone on the address of `listen`.
async fn metrics(config: &ServingConfig, own: &Own) {
    let listen = &config.listen;
    if *listen == Listen::Off {
        return;
    }
    let tls = config.tls.clone().map(|files| Arc::new(Tls::new(files)));
    let what = format!("metrics on {listen}");
    let bind = async || {
        // Nothing is served in clear text in its place.
        if let Some(tls) = &tls {
            tls.acceptor().await?;
        }
        Listener::bind(listen).await
    };
    let remedy = "free that address or set another one (listen), or repair listen-certificate and listen-key";
    let listener = bound(&what, remedy, bind).await;
    match listener.address() {
        Ok(at) => {
            tracing::info!(listen = %at, "serving metrics on {at}");
            own.published.listening(&at);
        }
        Err(error) => tracing::warn!("serving {what}, but its address is unknown: {error}"),
    }
    let reviews = config.token_review.then(TokenReviews::of_pod);
    let answers = Answers::new(Arc::clone(&own.subject), Served::Metrics(reviews));
    accept(&listener, &Arc::new(answers), tls.as_ref()).await;
}

/// Binds a listener of `what`; if that fails, warns once and retries.
async fn bound(what: &str, remedy: &str, bind: impl AsyncFn() -> io::Result<Listener>) -> Listener {
    let mut warned = false;
    loop {
        match bind().await {
            Ok(listener) => return listener,
            Err(error) if warned => tracing::debug!("serving {what}: {error}"),
            Err(error) => {
                let again = AGAIN.as_secs();
                tracing::warn!(
                    "not serving {what}: {error}; remedy: {remedy}; retrying every {again} s"
                );
                warned = true;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Answers each connection, by TLS where there is one.
async fn accept(listener: &Listener, answers: &Arc<Answers>, tls: Option<&Arc<Tls>>) {
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (answers, tls) = (Arc::clone(answers), tls.cloned());
                let answer = |answering| async move {
                    match tls {
                        None => answer_one(stream, answers, answering).await,
                        Some(tls) => match tls.accepted(stream, HEAD).await {
                            Ok(stream) => answer_one(stream, answers, answering).await,
                            Err(error) => tracing::debug!("a connection: {error}"),
                        },
                    }
                };
                connections.add(peer, answer).await;
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

async fn answer_one(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answers: Arc<Answers>,
    answering: Answering,
) {
    let service = service_fn(move |request| {
        let (answers, answering) = (Arc::clone(&answers), Arc::clone(&answering));
        async move {
            answering.store(true, Ordering::Relaxed);
            let answer = answers.answer(&request).await;
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
