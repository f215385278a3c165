//! Calls with time limits, pauses and one report of each refusal.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Limited;
use kube::api::WatchParams;
use kube::client::ClientBuilder;
use tokio::time::{Instant, sleep, timeout};
use tower_http::map_response_body::MapResponseBodyLayer;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::account::Account;
use crate::error::{ApiErrorKind, Error};

/// Limits of time and size, and the pauses between tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time limit of one call.
    pub call: Duration,
    /// Number of tries of one call.
    pub tries: u32,
    /// Pause after the first try; each further one is twice as long.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
    /// Duration of one watch, in whole seconds: the server ends it then, and it is resumed.
    pub watch: Duration,
    /// Size limit of an answer, in bytes.
    pub answer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call: Duration::from_secs(10),
            tries: 4,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            watch: Duration::from_secs(240),
            answer: Self::ANSWER,
        }
    }
}

impl Limits {
    /// Default size limit of an answer: an object has at most 1.5 MiB in the cluster's store (etcd's limit of a
    /// request). A watch that grows longer begins anew.
    pub const ANSWER: usize = 3 << 20;

    /// Parameters of a watch that the server ends after its duration.
    pub(crate) fn watch_params(&self) -> WatchParams {
        let seconds = u32::try_from(self.watch.as_secs()).unwrap_or(u32::MAX).clamp(1, 290);
        WatchParams::default().timeout(seconds)
    }

    pub(crate) fn pauses(&self) -> Pauses {
        Pauses { next: self.first_pause, limits: *self }
    }
}

/// Growing pauses between tries.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    limits: Limits,
}

impl Pauses {
    /// Sleeps for the next pause: half of it to all of it, so that the nodes of a cluster do not ask
    /// at the same moment.
    pub(crate) async fn pause(&mut self) {
        sleep(self.next_pause()).await;
    }

    /// Returns the duration of the next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let all = self.next.min(self.limits.longest_pause);
        self.next = all.saturating_mul(2);
        all.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.limits.first_pause;
    }
}

/// Client of the API server.
pub struct Cluster {
    account: Account,
    pub(crate) limits: Limits,
    client: Mutex<kube::Client>,
    /// Refused calls that were reported.
    reported: Mutex<BTreeSet<(&'static str, ApiErrorKind)>>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Makes a client; connects to nothing yet.
    ///
    /// # Errors
    /// Token or certificates that cannot be read. It needs a tokio runtime.
    pub fn new(account: Account, limits: Limits) -> Result<Self, Error> {
        let client = Mutex::new(connect(&account, limits.answer)?);
        Ok(Self { account, limits, client, reported: Mutex::default() })
    }

    /// Returns a client that asks `client`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn asking(account: Account, limits: Limits, client: kube::Client) -> Self {
        Self { account, limits, client: Mutex::new(client), reported: Mutex::default() }
    }

    /// Namespace of the pod.
    pub fn namespace(&self) -> Option<&str> {
        self.account.namespace.as_deref()
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the token again at once: the one in use was refused.
    pub(crate) fn renew(&self) -> Result<(), Error> {
        let client = connect(&self.account, self.limits.answer)?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
        Ok(())
    }

    /// Reads the token again after a call that failed because it was refused.
    pub(crate) fn renew_after(&self, failed: &Error) {
        if failed.kind == ApiErrorKind::Unauthorized
            && let Err(error) = self.renew()
        {
            tracing::debug!("{error}");
        }
    }

    /// Makes one call, repeated where it may succeed later.
    pub(crate) async fn call<T, F: Future<Output = kube::Result<T>>>(
        &self,
        name: &'static str,
        act: impl Fn(kube::Client) -> F,
    ) -> Result<T, Error> {
        self.call_until(name, None, act).await
    }

    /// As [`Cluster::call`]; before `until` a server that does not answer is asked again more often than the limits
    /// say, which is logged once.
    pub(crate) async fn call_until<T, F: Future<Output = kube::Result<T>>>(
        &self,
        name: &'static str,
        until: Option<Instant>,
        act: impl Fn(kube::Client) -> F,
    ) -> Result<T, Error> {
        let mut pauses = self.limits.pauses();
        let mut tries = 1;
        loop {
            let error = match self.once(name, act(self.client())).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            // A refused token is refused the next time, too.
            let is_patient = error.kind != ApiErrorKind::Unauthorized
                && until.is_some_and(|until| Instant::now() < until);
            if !error.kind.may_pass() || tries >= self.limits.tries && !is_patient {
                return Err(error);
            }
            if tries == self.limits.tries {
                tracing::warn!("{error}; it is repeated until the time limit");
            }
            tracing::debug!("{error}; it is repeated");
            if error.kind == ApiErrorKind::Unauthorized {
                self.renew()?;
            }
            tries += 1;
            pauses.pause().await;
        }
    }

    /// Waits for an answer, with the time limit of a call. kube logs failures as errors, and answers
    /// that it cannot parse in full: nothing of it is logged.
    pub(crate) async fn once<T>(
        &self,
        name: &'static str,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        let limit = self.limits.call;
        match timeout(limit, answer.with_subscriber(NoSubscriber::new())).await {
            Ok(answer) => answer.map_err(|error| Error::from_kube(name, &error)),
            Err(_) => Err(Error::late(name, limit)),
        }
    }

    /// Logs a refusal where the same one was not logged before.
    pub(crate) fn report_once(&self, error: &Error) {
        if self.is_new(error) {
            tracing::warn!("{error}; continued without it (reported once)");
        }
    }

    fn is_new(&self, error: &Error) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.insert((error.call, error.kind))
    }
}

fn connect(account: &Account, largest: usize) -> Result<kube::Client, Error> {
    const CALL: &str = "preparing the connection to the API server";
    let builder = ClientBuilder::try_from(account.config()?);
    let builder = builder.map_err(|e| Error::new(CALL, ApiErrorKind::Account, e))?;
    let limited = MapResponseBodyLayer::new(move |body| Limited::new(body, largest));
    Ok(builder.with_layer(&limited).build())
}
