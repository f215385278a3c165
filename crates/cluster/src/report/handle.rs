//! The desired report of an agent, which a task writes.

use std::time::Duration;

use tokio::sync::mpsc;

use super::options::Options;
use super::reconciler::{DesiredReport, ReportReconciler};
use super::{Event, Report};
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::reconcile::Handle;
use crate::text::{in_line, is_name};

const CALL: &str = "reporting the driver on the own node";

/// Number of events that wait to be written beside the reports.
const MOST_QUEUED: usize = 64;

/// Reports of a driver on one node.
#[derive(Debug)]
pub struct Reporter {
    node: String,
    desired: Handle<DesiredReport>,
    queue: mpsc::Sender<Event>,
}

impl Reporter {
    /// Begins without a report; makes no call yet. It needs a tokio runtime.
    ///
    /// # Errors
    /// A name that is none.
    pub fn begin(cluster: Cluster, node: String, options: Options) -> Result<Self, Error> {
        if !is_name(&node) {
            let why = format!("`{}` is no name of a node", in_line(&node, 260));
            return Err(Error::new(CALL, ApiErrorKind::Name, why));
        }
        let (queue, queued) = mpsc::channel(MOST_QUEUED);
        let desired = Handle::begin(DesiredReport::default(), |states| {
            ReportReconciler::new(cluster, node.clone(), options, states.clone(), queued)
        });
        Ok(Self { node, desired, queue })
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Takes a report; the same one changes nothing.
    pub fn report(&self, report: Report) {
        self.take(Some(report), false);
    }

    /// Writes the annotation again, for a node that was cordoned or uncordoned.
    pub fn again(&self) {
        self.desired.modify(|number, state| {
            *number += 1;
            state.again += 1;
            true
        });
    }

    /// Writes an event beside those of the reports; nothing waits for it. It is left out where 64 others
    /// wait to be written.
    pub fn event(&self, event: Event) {
        if let Err(error) = self.queue.try_send(event) {
            tracing::debug!("an event is left out: {error}");
        }
        self.desired.modify(|number, _| {
            *number += 1;
            true
        });
    }

    /// Writes the last report, and waits for it `limit` at most; false if it may be missing.
    pub async fn finish(&self, last: Option<Report>, limit: Duration) -> bool {
        self.take(last, true);
        if self.desired.current().1.report.is_none() {
            return true;
        }
        self.desired.settled(limit).await
    }

    fn take(&self, report: Option<Report>, last: bool) {
        self.desired.modify(|number, state| {
            let differs = report.is_some() && state.report != report;
            if differs {
                state.report = report;
                *number += 1;
            }
            let ends = last && !state.last;
            state.last |= last;
            differs || ends
        });
    }
}
