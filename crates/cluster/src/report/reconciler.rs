//! Reconciler of the node with the last report.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::calls::{Condition, NodeMarks};
use super::labels::labels;
use super::options::Options;
use super::part::{Part, RefusedNamespaces};
use super::{Event, Events, Holder, HolderStatus, NodeStatus, PodRef, Reason, Regarding, Report};
use crate::client::{Cluster, Pauses};
use crate::error::{ApiErrorKind, Error};
use crate::names::STATUS;
use crate::reconcile::{Next, Numbered, Reconcile, Then};
use crate::text::in_line;

/// Length of the longest message of a condition.
const LONGEST_MESSAGE: usize = 500;
/// Number of holders whose pods get events, and of pods that are remembered.
const MOST_HOLDERS: usize = 32;

/// Desired report.
#[derive(Debug, Clone, Default)]
pub(super) struct DesiredReport {
    pub(super) report: Option<Report>,
    /// Number of requests to write the metadata again.
    pub(super) again: u64,
    /// The agent ends: a call in progress is given up for this report.
    pub(super) last: bool,
}

/// Reconciler of the report on one node.
pub(super) struct ReportReconciler {
    cluster: Cluster,
    node: String,
    options: Options,
    /// The desired reports: for the last one a call in progress is given up.
    states: watch::Receiver<Numbered<DesiredReport>>,
    pauses: Pauses,
    events: Events,
    /// Events beside the reports.
    queued: mpsc::Receiver<Event>,
    /// The next one of them, until it is written: a call may be given up.
    next_queued: Option<Event>,
    /// The node as it was when the task began.
    seen: Option<NodeMarks>,
    look: Part,
    metadata: Part,
    condition: Part,
    taint: Part,
    event: Part,
    refused_namespaces: RefusedNamespaces,
    /// Holders whose pods had an event, with the time of the next one.
    reported: BTreeMap<(PodRef, String), Instant>,
    again: u64,
    is_unreachable: bool,
}

impl Reconcile for ReportReconciler {
    type Desired = DesiredReport;

    /// Writes what differs.
    async fn reconcile(&mut self, desired: &Self::Desired) -> Result<Next, Error> {
        let Some(report) = &desired.report else { return Ok(Then::Changed.into()) };
        if std::mem::replace(&mut self.again, desired.again) != desired.again {
            self.metadata.written = None;
        }
        let mut states = self.states.clone();
        let ending = async { states.wait_for(|(_, state)| state.last).await.map(drop) };
        tokio::select! {
            biased;
            Ok(()) = ending, if !desired.last => return Ok(Then::Now.into()),
            written = self.write(report) => written?,
        }
        self.pauses.reset();
        self.answers();
        Ok(Next { settled: Some(true), ..Then::At(self.next_call()).into() })
    }

    fn fails(&mut self, _: &Self::Desired, error: Error) -> Next {
        match std::mem::replace(&mut self.is_unreachable, true) {
            false => {
                tracing::warn!("{error}; the report of the driver is repeated until it is taken")
            }
            true => tracing::debug!("{error}"),
        }
        Then::after(self.pauses.next_pause()).into()
    }

    fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }
}

impl ReportReconciler {
    pub(super) fn new(
        cluster: Cluster,
        node: String,
        options: Options,
        states: watch::Receiver<Numbered<DesiredReport>>,
        queued: mpsc::Receiver<Event>,
    ) -> Self {
        let events = Events::new(options.pod.as_deref().unwrap_or(&node));
        Self {
            pauses: cluster.limits.pauses(),
            cluster,
            node,
            options,
            states,
            events,
            queued,
            next_queued: None,
            seen: None,
            look: Part::default(),
            metadata: Part::default(),
            condition: Part::default(),
            taint: Part::default(),
            event: Part::default(),
            refused_namespaces: RefusedNamespaces::default(),
            reported: BTreeMap::new(),
            again: 0,
            is_unreachable: false,
        }
    }

    /// Writes each part that differs, or whose time has come. A refused part is left out for a while.
    async fn write(&mut self, report: &Report) -> Result<(), Error> {
        self.see().await?;
        // The condition first: it is small, and others wait for it.
        self.write_condition(report).await?;
        self.write_taint(report).await?;
        self.write_metadata(report).await?;
        self.write_events(report).await
    }

    /// Reads the node as it was before the first report. A missing one may be there later; one that may not be
    /// read counts as one without a report.
    async fn see(&mut self) -> Result<(), Error> {
        if self.seen.is_some() || !self.look.is_due(&Value::Null, Instant::now()) {
            return Ok(());
        }
        match self.cluster.seen_node(&self.node).await {
            Ok(seen) => (self.seen, self.look) = (Some(seen), Part::default()),
            Err(error) => match self.refusal(error)? {
                ApiErrorKind::Missing => self.look.refuse(ApiErrorKind::Missing, &self.options),
                _ => (self.seen, self.look) = (Some(NodeMarks::default()), Part::default()),
            },
        }
        Ok(())
    }

    async fn write_condition(&mut self, report: &Report) -> Result<(), Error> {
        let condition = Condition {
            ready: report.ready,
            reason: report.reason,
            message: in_line(&report.message, LONGEST_MESSAGE),
        };
        let wanted = json!([condition.ready, condition.reason.to_string(), condition.message]);
        if !self.condition.is_due(&wanted, Instant::now()) {
            return Ok(());
        }
        let before = match &self.condition.written {
            Some(written) => written[0].as_bool(),
            None => self.seen.as_ref().and_then(|seen| seen.ready),
        };
        let turned = before != Some(condition.ready);
        let written = self.cluster.write_condition(&self.node, &condition, turned).await;
        self.settle(written, wanted, |all| &mut all.condition)
    }

    async fn write_taint(&mut self, report: &Report) -> Result<(), Error> {
        let wanted = self.options.taint && !report.ready;
        let is_there = match &self.taint.written {
            Some(written) => written.as_bool(),
            None => self.seen.as_ref().map(|seen| seen.tainted),
        };
        // A node that was never tainted is not read again with each heartbeat.
        if !wanted && is_there == Some(false) {
            self.taint.next = None;
            return Ok(());
        }
        if !self.taint.is_due(&json!(wanted), Instant::now()) {
            return Ok(());
        }
        let written = self.cluster.write_taint(&self.node, wanted).await;
        self.settle(written, json!(wanted), |all| &mut all.taint)
    }

    async fn write_metadata(&mut self, report: &Report) -> Result<(), Error> {
        // Once more where the answer shows that the node was cordoned or uncordoned.
        for _ in 0..2 {
            let status = NodeStatus {
                holders: report.holders.iter().map(HolderStatus::from_holder).collect(),
                cordoned: self.seen.as_ref().is_some_and(|seen| seen.cordoned),
                ..report.status.clone()
            };
            let labels = labels(&status);
            let annotations = json!({ STATUS: status.to_annotation() });
            let wanted = json!([labels, annotations]);
            if !self.metadata.is_due(&wanted, Instant::now()) {
                return Ok(());
            }
            let written = self.cluster.write_metadata(&self.node, &labels, &annotations).await;
            if let (Ok(cordoned), Some(seen)) = (&written, &mut self.seen) {
                seen.cordoned = *cordoned;
            }
            self.settle(written.map(drop), wanted, |all| &mut all.metadata)?;
        }
        Ok(())
    }

    /// Writes an event about the node where the reason or message is another one, those beside the report,
    /// and one about each pod that holds the driver.
    async fn write_events(&mut self, report: &Report) -> Result<(), Error> {
        let wanted = json!([report.reason.to_string(), report.message]);
        if !self.event.is_left_out() && self.event.written.as_ref() != Some(&wanted) {
            let event = Event {
                regarding: Regarding::Node(self.node.clone()),
                reason: report.reason,
                action: "Report",
                note: report.message.clone(),
            };
            let recorded = self.events.record(&self.cluster, event).await;
            self.settle(recorded, wanted, |all| &mut all.event)?;
        }
        self.write_queued_events().await?;
        self.write_pod_events(report).await
    }

    async fn write_queued_events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.next_queued.take().or_else(|| self.queued.try_recv().ok()) {
            let is_left_out = match &event.regarding {
                Regarding::Node(_) => self.event.is_left_out(),
                Regarding::Pod(pod) => self.refused_namespaces.is_left_out(&pod.namespace),
            };
            if is_left_out {
                continue;
            }
            self.next_queued = Some(event.clone());
            let regarding = event.regarding.clone();
            let recorded = self.events.record(&self.cluster, event).await;
            match regarding {
                Regarding::Node(_) => {
                    let written = self.event.written.clone().unwrap_or_default();
                    self.settle(recorded, written, |all| &mut all.event)?;
                }
                Regarding::Pod(pod) => self.settle_pod_event(recorded, &pod.namespace)?,
            }
            self.next_queued = None;
        }
        Ok(())
    }

    async fn write_pod_events(&mut self, report: &Report) -> Result<(), Error> {
        let key = |holder: &Holder| Some((holder.pod.clone()?, holder.program.clone()));
        let keys: BTreeSet<_> = report.holders.iter().filter_map(key).collect();
        self.reported.retain(|key, _| keys.contains(key));
        for holder in report.holders.iter().take(MOST_HOLDERS) {
            let Some(key) = key(holder) else { continue };
            let (now, pod) = (Instant::now(), key.0.clone());
            let is_left_out = self.refused_namespaces.is_left_out(&pod.namespace);
            if is_left_out || self.reported.get(&key).is_some_and(|next| now < *next) {
                continue;
            }
            let namespace = pod.namespace.clone();
            let event = Event {
                regarding: Regarding::Pod(pod),
                reason: Reason::HoldsDriver,
                action: "Hold",
                note: holder.note(&report.status),
            };
            let recorded = self.events.record(&self.cluster, event).await;
            self.settle_pod_event(recorded, &namespace)?;
            self.reported.insert(key, now + 6 * self.options.heartbeat);
        }
        Ok(())
    }

    /// Keeps the outcome of a call: a refusal is logged once, and the part is left out for a while.
    fn settle(
        &mut self,
        written: Result<(), Error>,
        value: Value,
        part: fn(&mut Self) -> &mut Part,
    ) -> Result<(), Error> {
        let heartbeat = Instant::now() + self.options.heartbeat;
        match written {
            Ok(()) => part(self).wrote(value, heartbeat),
            Err(error) => {
                let (kind, options) = (self.refusal(error)?, self.options.clone());
                part(self).refuse(kind, &options);
            }
        }
        Ok(())
    }

    /// Keeps the outcome of an event about a pod: a refusal holds for its namespace alone.
    fn settle_pod_event(
        &mut self,
        recorded: Result<(), Error>,
        namespace: &str,
    ) -> Result<(), Error> {
        match recorded {
            Ok(()) => self.refused_namespaces.accept(namespace),
            Err(error) => {
                let kind = self.refusal(error)?;
                tracing::debug!(
                    "events about pods in namespace {namespace} are left out for a while"
                );
                self.refused_namespaces.refuse(namespace, kind, &self.options);
            }
        }
        Ok(())
    }

    /// Returns the kind of a refusal, which is logged once; other failures are returned.
    fn refusal(&self, error: Error) -> Result<ApiErrorKind, Error> {
        if !is_final(&error) {
            return Err(error);
        }
        self.cluster.report_once(&error);
        Ok(error.kind)
    }

    /// Returns the time of the next call without a report.
    fn next_call(&self) -> Instant {
        let parts = [&self.look, &self.metadata, &self.condition, &self.taint];
        let next = parts.iter().filter_map(|part| part.next).min();
        next.unwrap_or_else(|| Instant::now() + self.options.heartbeat)
    }

    fn answers(&mut self) {
        if std::mem::replace(&mut self.is_unreachable, false) {
            tracing::info!("the driver is reported to the cluster again");
        }
    }
}

/// True where the same call is refused again.
fn is_final(error: &Error) -> bool {
    match error.kind {
        // Another program changes the node all the time.
        ApiErrorKind::Status(409) => false,
        // A value that this version of the API does not accept.
        ApiErrorKind::Status(code) => (400..500).contains(&code) && code != 429,
        kind => kind.is_refusal() || kind == ApiErrorKind::Name,
    }
}
