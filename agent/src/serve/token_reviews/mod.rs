//! Reviews of the bearer tokens of clients that read metrics, by the cluster, and their outcomes for a minute.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use longshore_cluster::{Account, Cluster, FILES, Limits, TokenVerdict};
use longshore_core::environment::Env;

/// Validity of an outcome.
const FRESH: Duration = Duration::from_secs(60);
/// Outcomes that are kept, of allowed and of other tokens each.
const KEPT: usize = 64;
/// Reviews at a time.
const REVIEWS: usize = 4;
/// Pause after a token that is refused, before another is reviewed in its place: 20 invented tokens are reviewed
/// in a second at most.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit of a review, with the wait for the others: less than the ten seconds that Prometheus gives a scrape.
const LIMIT: Duration = Duration::from_secs(8);
/// Limits of one of its calls.
const LIMITS: Limits = Limits {
    call: Duration::from_secs(3),
    tries: 2,
    first_pause: Duration::from_millis(200),
    longest_pause: Duration::from_secs(1),
    watch: Duration::from_secs(240),
    answer: 1 << 20,
};

/// Access of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    /// It may read.
    Allowed,
    /// It sent no token, or one that is nobody's.
    Unauthenticated,
    /// Its token is of this user, who may not read.
    Forbidden(String),
    /// The cluster did not answer: nobody may read.
    Unknown,
}

impl From<TokenVerdict> for Access {
    fn from(verdict: TokenVerdict) -> Self {
        match verdict {
            TokenVerdict::Allowed(_) => Self::Allowed,
            TokenVerdict::Forbidden(user) => Self::Forbidden(user),
            TokenVerdict::Unauthenticated => Self::Unauthenticated,
        }
    }
}

/// Digest of a token: the token itself is not kept.
type Key = [u8; 32];

/// Outcomes, the oldest first.
#[derive(Debug, Default)]
struct Outcomes(VecDeque<(Key, Instant, Access)>);

impl Outcomes {
    fn find(&self, key: &Key) -> Option<Access> {
        let found = self.0.iter().find(|(of, at, _)| of == key && at.elapsed() < FRESH);
        found.map(|(_, _, access)| access.clone())
    }

    fn keep(&mut self, key: Key, access: Access) {
        self.0.retain(|(of, at, _)| *of != key && at.elapsed() < FRESH);
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((key, Instant::now(), access));
    }
}

/// Makes the client of the API server, where there is a cluster.
type Connect = Box<dyn Fn() -> Result<Option<Cluster>, longshore_cluster::Error> + Send + Sync>;

/// Reviews by the cluster that this process runs in.
pub(super) struct TokenReviews {
    connect: Connect,
    cluster: OnceCell<Cluster>,
    reviewing: Semaphore,
    /// True since a review failed, until one succeeds: it is logged once.
    failing: AtomicBool,
    /// Outcomes of allowed tokens, which invented ones do not displace, and of all others.
    kept: Mutex<[Outcomes; 2]>,
}

impl std::fmt::Debug for TokenReviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReviews").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl TokenReviews {
    /// Returns reviews by the cluster of the pod that this process runs in. Outside of a cluster nobody may read.
    pub(super) fn of_pod() -> Self {
        let env: Env<'_> = &|name: &str| std::env::var(name).ok();
        if !matches!(Account::of_pod(env, Path::new(FILES)), Ok(Some(_))) {
            tracing::warn!(
                "nobody may read the metrics: listen-token-review is set, and there is no service account of a \
                 pod to ask the cluster with"
            );
        }
        Self::by(|| {
            let account =
                Account::of_pod(&|name: &str| std::env::var(name).ok(), Path::new(FILES))?;
            account.map(|account| Cluster::new(account, LIMITS)).transpose()
        })
    }

    /// Returns reviews by the cluster that `connect` returns a client of.
    pub(super) fn by(
        connect: impl Fn() -> Result<Option<Cluster>, longshore_cluster::Error> + Send + Sync + 'static,
    ) -> Self {
        Self {
            connect: Box::new(connect),
            cluster: OnceCell::new(),
            reviewing: Semaphore::new(REVIEWS),
            failing: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    /// Returns the access of a client with these headers to `path`.
    pub(super) async fn access(&self, headers: &HeaderMap, path: &str) -> Access {
        let Some(token) = bearer(headers) else { return Access::Unauthenticated };
        // A token for one path is not kept for another.
        let key: Key = Sha256::new_with_prefix(path)
            .chain_update([0_u8])
            .chain_update(token)
            .finalize()
            .into();
        if let Some(access) = self.kept(&key) {
            return access;
        }
        let reviewed = tokio::time::timeout(LIMIT, self.reviewed(key, token, path)).await;
        reviewed.unwrap_or(Access::Unknown)
    }

    fn kept(&self, key: &Key) -> Option<Access> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find_map(|outcomes| outcomes.find(key))
    }

    async fn reviewed(&self, key: Key, token: &str, path: &str) -> Access {
        let Ok(_permit) = self.reviewing.acquire().await else { return Access::Unknown };
        // Another connection may have had it reviewed meanwhile.
        if let Some(access) = self.kept(&key) {
            return access;
        }
        let cluster = self.cluster.get_or_try_init(async || match (self.connect)() {
            Ok(Some(cluster)) => Ok(cluster),
            Ok(None) => Err(None),
            Err(error) => Err(Some(error)),
        });
        let reviewed = match cluster.await {
            Ok(cluster) => cluster.review_token(token, path).await.map_err(Some),
            Err(error) => Err(error),
        };
        let access = match reviewed {
            Ok(verdict) => Access::from(verdict),
            Err(error) => {
                self.warn(error.as_ref());
                tokio::time::sleep(PAUSE).await;
                return Access::Unknown;
            }
        };
        self.failing.store(false, Ordering::Relaxed);
        let which = usize::from(access != Access::Allowed);
        if let Some(outcomes) =
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).get_mut(which)
        {
            outcomes.keep(key, access.clone());
        }
        if access != Access::Allowed {
            tokio::time::sleep(PAUSE).await;
        }
        access
    }

    fn warn(&self, error: Option<&longshore_cluster::Error>) {
        let Some(error) = error else { return };
        match self.failing.swap(true, Ordering::Relaxed) {
            true => tracing::debug!("reviewing a client's token: {error}"),
            false => tracing::warn!(
                "nobody may read the metrics until the cluster reviews tokens again: {error}; remedy: let the \
                 agent's service account create tokenreviews and subjectaccessreviews (ClusterRole \
                 system:auth-delegator), or unset listen-token-review"
            ),
        }
    }
}

/// Returns the token of `Authorization: Bearer TOKEN` (RFC 6750); None where there is none, or several.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    let fits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && fits).then_some(token)
}

#[cfg(test)]
pub(super) mod tests;
