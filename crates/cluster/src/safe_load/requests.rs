//! Reconciler of the node's request: it reads the node, decides, writes where something differs, and watches for what
//! changes the decision.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::decision::{Action, Pace, Past, Standing};
use super::holders_value;
use super::node::{Request, SafeLoadOnNode, Version};
use crate::client::{Cluster, Pauses};
use crate::error::{ApiErrorKind, Error};
use crate::reconcile::{Desired, Handle, Next, Reconcile, Then};
use crate::text::is_name;

/// Requests for a safe load of the driver on one node.
#[derive(Debug)]
pub struct Requests(Handle<Desired<String>>);

impl Requests {
    /// Begins without a desired request; makes no call yet. `report` is called with each state that differs from the
    /// last one. It needs a tokio runtime.
    ///
    /// # Errors
    /// A name that is none.
    pub fn begin(
        cluster: Cluster,
        node: String,
        pace: Pace,
        report: impl Fn(Standing) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        if !is_name(&node) {
            let why = format!("`{node}` is no name of a node");
            return Err(Error::new("asking for a safe load", ApiErrorKind::Name, why));
        }
        let reconciler = SafeLoadReconciler {
            pauses: cluster.limits.pauses(),
            cluster,
            node,
            pace,
            report: Box::new(report),
            past: Past::default(),
            last: None,
            due: None,
        };
        Ok(Self(Handle::begin(Desired::Unknown, |_| reconciler)))
    }

    /// Desires a request with the names of these users; the same names change nothing.
    pub fn want(&self, holders: &[String]) {
        self.0.want(holders_value(holders));
    }

    /// Desires no request, be it one that an earlier agent left.
    pub fn withdraw(&self) {
        self.0.withdraw();
    }

    /// Waits until no request of longshore's is left, `limit` at most; false if one may be left.
    pub async fn withdrawn(&self, limit: Duration) -> bool {
        self.0.withdrawn(limit).await
    }

    /// True if anything was desired.
    pub fn are_begun(&self) -> bool {
        self.0.current().0 > 0
    }
}

/// Reconciler of the request on one node.
struct SafeLoadReconciler {
    cluster: Cluster,
    node: String,
    pace: Pace,
    report: Box<dyn Fn(Standing) + Send + Sync>,
    past: Past,
    pauses: Pauses,
    /// The node with its version, where they are known.
    last: Option<(SafeLoadOnNode, Version)>,
    /// Time of the next decision about it.
    due: Option<Instant>,
}

impl Reconcile for SafeLoadReconciler {
    type Desired = Desired<String>;

    async fn reconcile(&mut self, desired: &Self::Desired) -> Result<Next, Error> {
        if *desired == Desired::Unknown {
            return Ok(Then::Changed.into());
        }
        let (seen, version) = match self.last.take() {
            Some(last) => last,
            None => self.cluster.node(&self.node).await?,
        };
        let now = Instant::now();
        self.past.sees(&seen, now);
        match self.past.decide(desired, &seen, &self.pace, now) {
            Action::Set(value) => self.write(&version, Some(value)).await,
            Action::Remove => self.write(&version, None).await,
            Action::Stay(Standing::NoRequest, _) => {
                self.past.granted = None;
                self.pauses.reset();
                self.reports(Standing::NoRequest);
                Ok(Next { settled: Some(true), ..Then::Changed.into() })
            }
            Action::Stay(standing, due) => {
                self.reports(standing);
                (self.last, self.due) = (Some((seen, version)), due);
                Ok(Then::Wait.into())
            }
        }
    }

    /// Watches the node until it changes, or the time comes.
    async fn wait(&mut self, _: &Self::Desired) -> Result<Next, Error> {
        let Self { cluster, node, last, due, .. } = self;
        let Some((seen, version)) = last else { return Ok(Then::Now.into()) };
        let (began, due) = (Instant::now(), *due);
        let until = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            () = until => return Ok(Then::Now.into()),
            ended = cluster.watch(node, seen, version) => ended,
        };
        // Also after a change: a server that ends each watch at once is not asked without pauses.
        if began.elapsed() >= cluster.limits.longest_pause {
            self.pauses.reset();
        }
        match ended {
            Ok(Some(now)) => *seen = now,
            Ok(None) => {}
            Err(error) => {
                self.last = None;
                self.resumes(&error);
                if error.kind.is_refusal() {
                    return Ok(Then::after(self.pace.refused).into());
                }
            }
        }
        Ok(Then::Backoff.into())
    }

    fn fails(&mut self, desired: &Self::Desired, error: Error) -> Next {
        if error.kind == ApiErrorKind::Status(409) {
            tracing::debug!("{error}; another program changed the node, which is read again");
            return Then::Backoff.into();
        }
        if !error.kind.is_refusal() {
            self.reports_failure(Standing::Unreachable, desired, &error);
            return Then::Backoff.into();
        }
        self.reports_failure(Standing::Refused, desired, &error);
        let settled = (*desired == Desired::Nothing).then_some(true);
        Next { settled, ..Then::after(self.pace.refused).into() }
    }

    fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }
}

impl SafeLoadReconciler {
    async fn write(&mut self, version: &Version, value: Option<String>) -> Result<Next, Error> {
        if value.is_none() {
            self.past.removes();
        }
        let now = self.cluster.annotate(&self.node, version, value.as_deref()).await?;
        let is_own = matches!(now.0.request, Request::Own(_));
        self.last = Some(now);
        match value {
            Some(value) => {
                self.past.wrote(Instant::now());
                tracing::info!("a safe load of the driver is asked for: {value}");
            }
            None if is_own => {
                tracing::debug!("the cluster kept the request, which is removed again");
                return Ok(Then::Backoff.into());
            }
            None => tracing::info!("the request for a safe load is withdrawn"),
        }
        Ok(Then::Now.into())
    }

    /// Reports a broken watch, and reads a refused token again.
    fn resumes(&self, error: &Error) {
        match error.kind.is_refusal() {
            true => self.cluster.report_once(error),
            false => tracing::debug!("{error}; it is resumed"),
        }
        self.cluster.renew_after(error);
    }

    fn reports(&mut self, standing: Standing) {
        if self.past.reported.replace(standing) != Some(standing) {
            (self.report)(standing);
        }
    }

    /// Reports a state with its failure, where the state is new and a request is wanted: otherwise
    /// nothing waits for the cluster.
    fn reports_failure(&mut self, standing: Standing, desired: &Desired<String>, error: &Error) {
        if !matches!(desired, Desired::Wanted(_)) {
            return tracing::debug!("{error}; an earlier agent's request is looked for again");
        }
        if self.past.reported != Some(standing) {
            tracing::warn!("{error}");
        }
        self.reports(standing);
    }
}
