//! Answers to the requests for health, readiness, metrics and status, and their limits.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::connections;
use super::host_sampler::HostSampler;
use super::liveness::LivenessProbe;
use super::token_reviews::{Access, TokenReviews};
use crate::status;
use crate::telemetry::exposition::{self, Format};
use crate::telemetry::{Live, Telemetry, metrics};
use longshore_core::bounded_call::{self, NoResult};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_host::facts::process_files::Looker;

/// Time limit for an answer of the agent's own task.
pub(super) const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// Inspections at a time. One more waits, and is given up if none of them returns.
const LOOKS: usize = 4;
/// Upper limit of threads for all inspections of a listener's clients, including the one for readiness.
pub(super) const MOST_THREADS: usize = LOOKS + 1;

/// Requests other than health that are answered at a time: what they inspect can hang, and health
/// is requested over the remaining connections.
const OTHERS: usize = connections::MOST - 4;
/// Time limit for one more of them to wait. A flood of them is refused at this pace, four at a time,
/// and health waits behind it: for less than the second that a probe gives by default.
const BUSY: Duration = Duration::from_millis(100);

const METRICS: &str = "/metrics";

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Answer to a request for anything else where metrics alone are served.
const METRICS_ALONE: &str = "only /metrics is served here; health, readiness and status are answered by \
    `longshore status --alive`, `--ready` and `--json`, over agent.sock in the state directory\n";

/// The agent that requests are about.
#[derive(Debug)]
pub struct Subject {
    /// Its reports.
    pub telemetry: Telemetry,
    /// Its liveness.
    pub liveness: LivenessProbe,
    /// Its directories.
    pub paths: Paths,
    /// Identifies this agent among all others.
    pub(super) instance: String,
    sampler: Arc<HostSampler>,
}

/// Paths that a listener serves.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has two")]
pub(super) enum Served {
    /// All of them, on the agent's own socket: the caller is root.
    All,
    /// `/metrics` on an address, to clients that the reviews allow.
    Metrics(Option<TokenReviews>),
}

/// Answers of one listener, with limits of its own.
#[derive(Debug)]
pub(super) struct Answers {
    subject: Arc<Subject>,
    served: Served,
    /// Limits requests other than health.
    others: Semaphore,
    /// Limits inspections, which can hang on a mount.
    looks: Arc<Semaphore>,
    /// Limits the inspection for readiness, which no other one is to delay.
    ready: Arc<Semaphore>,
}

/// An answer in its parts.
struct PlainAnswer {
    status: StatusCode,
    kind: &'static str,
    body: String,
}

fn text(status: StatusCode, body: impl Into<String>) -> PlainAnswer {
    PlainAnswer { status, kind: TEXT, body: body.into() }
}

impl Subject {
    /// Returns a subject for an agent that begins now; `holders` finds the processes that hold the
    /// driver.
    pub fn new(
        telemetry: Telemetry,
        liveness: LivenessProbe,
        paths: Paths,
        holders: Looker,
    ) -> Self {
        let instance = format!("{}-{}", std::process::id(), jiff::Timestamp::now().as_nanosecond());
        let sampler = Arc::new(HostSampler::new(&paths.root, &paths.store, holders));
        Self { telemetry, liveness, paths, instance, sampler }
    }
}

impl Answers {
    pub(super) fn new(subject: Arc<Subject>, served: Served) -> Self {
        let (looks, ready) = (Arc::new(Semaphore::new(LOOKS)), Arc::new(Semaphore::new(1)));
        Self { subject, served, others: Semaphore::new(OTHERS), looks, ready }
    }

    pub(super) async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        let answer = match (request.uri().path(), &self.served) {
            (path, Served::Metrics(_)) if path != METRICS => {
                text(StatusCode::NOT_FOUND, METRICS_ALONE)
            }
            ("/healthz" | "/readyz" | METRICS | "/status", _) if !is_get => {
                text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n")
            }
            ("/healthz", _) => self.health().await,
            (path @ ("/readyz" | METRICS | "/status"), _) => {
                match tokio::time::timeout(BUSY, self.others.acquire()).await {
                    Ok(_permit) => self.other(path, request).await,
                    Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once\n"),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "there are /healthz, /readyz, /metrics and /status\n"),
        };
        self.respond(answer)
    }

    async fn other<B>(&self, path: &str, request: &Request<B>) -> PlainAnswer {
        match path {
            "/readyz" => self.readiness().await,
            METRICS => match self.refused(request).await {
                Some(refused) => refused,
                None => {
                    let accept =
                        request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
                    self.metrics(Format::accepted(accept.unwrap_or_default())).await
                }
            },
            _ => self.status().await,
        }
    }

    /// Returns the answer to a client that may not read the metrics; None where it may.
    async fn refused<B>(&self, request: &Request<B>) -> Option<PlainAnswer> {
        let Served::Metrics(Some(reviews)) = &self.served else { return None };
        Some(match reviews.access(request.headers(), METRICS).await {
            Access::Allowed => return None,
            Access::Unauthenticated => {
                text(StatusCode::UNAUTHORIZED, "a bearer token of this cluster is needed\n")
            }
            Access::Forbidden(user) => {
                let why = format!("{user} may not get the nonResourceURL {METRICS}\n");
                text(StatusCode::FORBIDDEN, why)
            }
            Access::Unknown => {
                text(StatusCode::SERVICE_UNAVAILABLE, "the cluster did not review the token\n")
            }
        })
    }

    fn respond(&self, answer: PlainAnswer) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(answer.body));
        *response.status_mut() = answer.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match answer.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        // Digits and a hyphen are always a valid header value.
        if let Ok(agent) = HeaderValue::from_str(&self.subject.instance) {
            headers.insert("longshore-agent", agent);
        }
        response
    }

    async fn health(&self) -> PlainAnswer {
        if self.subject.liveness.answers(HEALTH_LIMIT).await {
            return text(StatusCode::OK, "ok\n");
        }
        let body =
            format!("the agent's own task has not answered for {} s\n", HEALTH_LIMIT.as_secs());
        text(StatusCode::SERVICE_UNAVAILABLE, body)
    }

    async fn readiness(&self) -> PlainAnswer {
        let live = self.live().await;
        if live.ready {
            return text(StatusCode::OK, "ready\n");
        }
        text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", live.not_ready.join("; ")))
    }

    /// Returns the agent's report, corrected by the host's state: another program may have unloaded
    /// the driver.
    async fn live(&self) -> Live {
        let mut live = self.subject.telemetry.live();
        if live.ready
            && let Some(driver) = &live.driver
        {
            let sampler = Arc::clone(&self.subject.sampler);
            let there = in_time(&self.ready, move || Ok(sampler.driver_version())).await;
            let why = match there {
                Ok(Some(there)) if there == driver.version => return live,
                Ok(Some(there)) => format!("driver {there} is loaded in its place"),
                Ok(None) => format!("driver {} is no longer loaded", driver.version),
                Err(failure) => failure.one_line(),
            };
            live.ready = false;
            live.not_ready.push(why);
        }
        live
    }

    async fn metrics(&self, format: Format) -> PlainAnswer {
        let live = self.live().await;
        let sampler = Arc::clone(&self.subject.sampler);
        let looked = in_time(&self.looks, move || Ok(sampler.look())).await;
        let seen = looked.unwrap_or_else(|failure| {
            tracing::debug!("{}", failure.one_line());
            metrics::HostSample::default()
        });
        let body = exposition::write(&metrics::families(&live, &seen), format);
        PlainAnswer { status: StatusCode::OK, kind: format.content_type(), body }
    }

    async fn status(&self) -> PlainAnswer {
        let live = self.live().await;
        let paths = self.subject.paths.clone();
        let report = in_time(&self.looks, move || status::of_agent(&paths, live)).await;
        let body = report.and_then(|report| {
            serde_json::to_string_pretty(&report).or_fail(FailureKind::Bug, || "writing the status")
        });
        match body {
            Ok(body) => PlainAnswer { status: StatusCode::OK, kind: JSON, body: body + "\n" },
            Err(failure) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", failure.one_line()))
            }
        }
    }
}

/// Inspects on a thread that may block, within a time limit. An inspection that does not return
/// keeps its permit and its thread.
async fn in_time<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    look: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let until = Instant::now() + status::LOOK;
    let permit = tokio::time::timeout_at(until, Arc::clone(permits).acquire_owned()).await;
    let Ok(permit) = permit else { return Err(status::hangs()) };
    let work = move || {
        let _until_it_is_back = permit;
        look()
    };
    match bounded_call::off_runtime(until.saturating_duration_since(Instant::now()), work).await {
        Err(NoResult::Late) => Err(status::hangs()),
        looked => looked.or_fail(FailureKind::Bug, || "looking at the host")?,
    }
}
