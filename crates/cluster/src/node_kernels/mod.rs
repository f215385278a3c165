//! Kernels of many nodes, for `longshore builder`: one list of the nodes and a watch of them, which need the rights
//! list and watch.
//!
//! A node's running kernel is in its status, as the kubelet writes it; the one of its next boot is in the annotation of
//! longshore's agent. Whoever takes a node writes both: texts are escaped and cut, and of one node there are two at most.

use std::collections::BTreeMap;

use futures_util::{StreamExt, pin_mut};
use kube::api::{ListParams, WatchEvent};
use kube::core::Request;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::client::{Cluster, Limits};
use crate::error::{ApiErrorKind, Error};
use crate::names;
use crate::report::NodeStatus;
use crate::text::{in_line, is_name};

const LIST: &str = "listing the nodes (list nodes)";
const WATCH: &str = "watching the nodes (watch nodes)";
const NODES: &str = "/api/v1/nodes";

/// Number of nodes that one answer may have; half of them where it is larger than the limit.
const PAGE: u32 = 50;
/// Number of nodes that are followed: twice the most that Kubernetes supports.
const MOST_NODES: usize = 10_000;
/// Length at which a text is cut; a release has at most 64 characters (uname(2)).
const SHOWN: usize = 80;

/// Kernels of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelsOfNode {
    /// Architecture, as the kubelet spells it (`amd64`).
    pub arch: String,
    /// Release of the running kernel, and of the one of the next boot where that is another. They are the node's own
    /// texts: escaped and cut, and not checked.
    pub releases: Vec<String>,
}

/// State of the nodes as it was reported last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FollowedNodes {
    /// The nodes by name; None before the first list.
    pub nodes: Option<BTreeMap<String, KernelsOfNode>>,
    /// Failure of the last call; None while the nodes are followed.
    pub failure: Option<String>,
}

/// A task that follows the nodes, until this is dropped.
#[derive(Debug)]
pub struct NodeKernels {
    reported: watch::Receiver<FollowedNodes>,
    task: JoinHandle<()>,
}

impl NodeKernels {
    /// Size limit of an answer: as for [`Fleet`](crate::Fleet).
    pub const ANSWER: usize = crate::Fleet::ANSWER;

    /// Begins to follow the nodes that a label selector chooses, or all. An API server that does not answer is asked
    /// again, with growing pauses.
    pub fn follow(cluster: Cluster, selector: Option<String>) -> Self {
        let (report, reported) = watch::channel(FollowedNodes::default());
        let task = tokio::spawn(async move {
            let mut following = Following { cluster, selector, report, nodes: BTreeMap::new() };
            following.run().await;
        });
        Self { reported, task }
    }

    /// Returns the nodes as they are reported, and each change of them.
    pub fn reported(&self) -> watch::Receiver<FollowedNodes> {
        self.reported.clone()
    }
}

impl Drop for NodeKernels {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Following {
    cluster: Cluster,
    selector: Option<String>,
    report: watch::Sender<FollowedNodes>,
    nodes: BTreeMap<String, KernelsOfNode>,
}

impl Following {
    async fn run(&mut self) {
        let mut pauses = self.cluster.limits.pauses();
        loop {
            match self.list().await {
                Ok(version) => {
                    self.report_nodes();
                    pauses.reset();
                    let failed = self.watch_from(version).await;
                    // The list that follows a version which is too old needs no pause.
                    if failed.kind == ApiErrorKind::Gone {
                        continue;
                    }
                    self.report_failure(&failed);
                }
                Err(failed) => self.report_failure(&failed),
            }
            pauses.pause().await;
        }
    }

    /// Lists all nodes; returns the version to watch from.
    async fn list(&mut self) -> Result<String, Error> {
        let (mut nodes, mut size) = (BTreeMap::new(), PAGE);
        let mut params = self.params();
        loop {
            params = params.limit(size);
            let asked = self.cluster.call(LIST, |client| {
                let request = Request::new(NODES).list(&params).map_err(kube::Error::BuildRequest);
                async move { client.request_text(request?).await }
            });
            let text = match asked.await {
                Err(error) if error.kind == ApiErrorKind::TooLarge && size > 1 => {
                    size /= 2;
                    continue;
                }
                answer => answer?,
            };
            let page: Page = serde_json::from_str(&text).map_err(|e| garbled(LIST, &e))?;
            nodes.extend(page.items.into_iter().filter_map(Node::kernels));
            if nodes.len() > MOST_NODES {
                let why = format!("there are more than {MOST_NODES} nodes");
                return Err(Error::new(LIST, ApiErrorKind::Garbled, why));
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => {
                    self.nodes = nodes;
                    return Ok(page.metadata.resource_version.unwrap_or_default());
                }
            }
        }
    }

    fn params(&self) -> ListParams {
        let params = ListParams::default();
        self.selector.iter().fold(params, |params, selector| params.labels(selector))
    }

    /// Watches the nodes from this version until a watch fails; returns that failure.
    async fn watch_from(&mut self, mut version: String) -> Error {
        let mut pauses = self.cluster.limits.pauses();
        loop {
            let before = version.clone();
            match self.watch(&mut version).await {
                Err(error) if error.kind.may_pass() => {
                    self.report_failure(&error);
                    pauses.pause().await;
                }
                Err(error) => return error,
                // A watch without any event is closed by the server after minutes; one that is closed at once is
                // repeated with pauses.
                Ok(()) if version == before => pauses.pause().await,
                Ok(()) => pauses.reset(),
            }
        }
    }

    /// Watches the nodes until the server closes the watch, or it grew too long: the next one goes on from there.
    /// After an error events may have been missed.
    async fn watch(&mut self, version: &mut String) -> Result<(), Error> {
        let Limits { watch, call, .. } = self.cluster.limits;
        let mut params = self.cluster.limits.watch_params();
        if let Some(selector) = &self.selector {
            params = params.labels(selector);
        }
        let request = Request::new(NODES).watch(&params, version);
        let request =
            request.map_err(|e| Error::from_kube(WATCH, &kube::Error::BuildRequest(e)))?;
        let client = self.cluster.client();
        let events = match self.cluster.once(WATCH, client.request_events::<Node>(request)).await {
            Ok(events) => {
                events.map(|event| event.map_err(|error| Error::from_kube(WATCH, &error)))
            }
            Err(error) if error.kind == ApiErrorKind::Unauthorized => return self.cluster.renew(),
            Err(error) => return Err(error),
        };
        // It is followed again.
        self.report_nodes();
        pin_mut!(events);
        loop {
            let next = events.next().with_subscriber(NoSubscriber::new());
            match timeout(watch + call, next).await {
                Ok(Some(Ok(event))) => self.hear(event, version)?,
                Ok(Some(Err(error))) if error.kind == ApiErrorKind::TooLarge => return Ok(()),
                Ok(Some(Err(error))) => return Err(error),
                Ok(None) => return Ok(()),
                Err(_) => return Err(Error::late(WATCH, watch + call)),
            }
        }
    }

    fn hear(&mut self, event: WatchEvent<Node>, version: &mut String) -> Result<(), Error> {
        match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                if let Some(newer) = &node.metadata.resource_version {
                    version.clone_from(newer);
                }
                let Some((name, kernels)) = node.kernels() else { return Ok(()) };
                let has_room = self.nodes.len() < MOST_NODES || self.nodes.contains_key(&name);
                if has_room && self.nodes.get(&name) != Some(&kernels) {
                    self.nodes.insert(name, kernels);
                    self.report_nodes();
                }
            }
            WatchEvent::Deleted(node) => {
                if let Some(newer) = &node.metadata.resource_version {
                    version.clone_from(newer);
                }
                if self.nodes.remove(&node.metadata.name).is_some() {
                    self.report_nodes();
                }
            }
            WatchEvent::Bookmark(mark) => version.clone_from(&mark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(Error::from_status(WATCH, &status)),
        }
        Ok(())
    }

    fn report_nodes(&self) {
        let now = FollowedNodes { nodes: Some(self.nodes.clone()), failure: None };
        self.report.send_if_modified(|reported| {
            let is_new = *reported != now;
            *reported = now;
            is_new
        });
    }

    fn report_failure(&self, error: &Error) {
        let failure = Some(error.to_string());
        self.report.send_if_modified(|reported| {
            let is_new = reported.failure != failure;
            reported.failure = failure;
            is_new
        });
    }
}

fn garbled(call: &'static str, error: &serde_json::Error) -> Error {
    Error::new(call, ApiErrorKind::Garbled, format!("an answer that is no list of nodes: {error}"))
}

/// The parts of a list of nodes that are read.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<Node>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// The parts of a node that are read.
#[derive(Debug, Clone, Deserialize)]
struct Node {
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: Option<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    node_info: Option<NodeInfo>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    operating_system: String,
    #[serde(default)]
    kernel_version: String,
}

impl Node {
    /// Returns the name and the kernels of a node; None where it has no name of a node, or is not of Linux.
    fn kernels(self) -> Option<(String, KernelsOfNode)> {
        let Meta { name, annotations, .. } = self.metadata;
        let info = self.status.node_info?;
        if !is_name(&name) || info.operating_system != "linux" {
            return None;
        }
        let status = annotations.and_then(|mut all| all.remove(names::STATUS));
        let status = status.and_then(|text| NodeStatus::of_annotation(&text).ok());
        let next = status.and_then(|status| status.next_kernel).map(|next| next.release);
        let shown = |text: String| in_line(&text, SHOWN);
        let mut releases: Vec<String> =
            [Some(info.kernel_version), next].into_iter().flatten().map(shown).collect();
        // A kubelet that has not yet written its status gives none.
        releases.retain(|release| !release.is_empty());
        releases.dedup();
        Some((name, KernelsOfNode { arch: in_line(&info.architecture, SHOWN), releases }))
    }
}

#[cfg(test)]
mod tests;
