//! Safe load: the upgrade controller of NVIDIA's GPU operator is asked to drain this node, and the
//! driver's pod waits until it has.
//!
//! The controller (k8s-operator-libs, pkg/upgrade) takes the annotation's presence as the request, drains
//! the node by its own policy, and removes the annotation.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use serde_json::json;
use tokio::time::timeout;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::client::{Cluster, Pauses};
use crate::error::{Error, Kind};
use crate::text::is_name;

/// Annotation of the node that asks for a safe load.
pub const SAFE_LOAD: &str = "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load";
/// Annotation of the node that the operator sets where its controller upgrades drivers.
pub const UPGRADES_ENABLED: &str = "nvidia.com/gpu-driver-upgrade-enabled";
/// Label of the node with the controller's state.
pub const UPGRADE_STATE: &str = "nvidia.com/gpu-driver-upgrade-state";
/// Label of a node that the controller leaves alone.
const SKIPPED: &str = "nvidia.com/gpu-driver-upgrade.skip";

const READ: &str = "reading the own node (get nodes)";
const ASK: &str = "asking for a safe load (patch nodes)";
const WATCH: &str = "watching the own node (watch nodes)";

/// Number of holders that are named, and length of a name.
const MOST_HOLDERS: usize = 20;
const LONGEST_HOLDER: usize = 120;

/// Outcome of a request for a safe load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SafeLoad {
    /// The controller removed the annotation: the node is drained.
    Granted,
    /// No controller upgrades drivers here; nothing was changed.
    NoController,
    /// The node is exempt from upgrades by its label; nothing was changed.
    NodeSkipped,
    /// An upgrade of this node failed before, so the controller waits for a person. The request was
    /// withdrawn.
    UpgradeFailed,
    /// The cluster refuses the call, or has no such node.
    Refused,
    /// Not granted in time. The request was withdrawn.
    TimedOut,
}

/// Text of the annotation: names of the driver's users, bounded, of harmless characters.
pub fn holders_value(holders: &[String]) -> String {
    let safe = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "._:/-()".contains(c) => c,
        ' ' => ' ',
        _ => '_',
    };
    let name = |name: &String| name.chars().take(LONGEST_HOLDER).map(safe).collect::<String>();
    let mut names: Vec<String> = holders.iter().take(MOST_HOLDERS).map(name).collect();
    if holders.len() > MOST_HOLDERS {
        names.push(format!("and {} more", holders.len() - MOST_HOLDERS));
    }
    match names.is_empty() {
        true => "driver in use".to_owned(),
        false => format!("driver in use by {}", names.join(", ")),
    }
}

/// End of one watch.
enum Watched {
    Outcome(SafeLoad),
    /// The server closed it; true if it had sent anything.
    Closed(bool),
    /// The version to watch from is not known any more.
    Restart,
    Failed(Error),
}

impl Cluster {
    /// Asks for a safe load of the driver on a node, and waits until it is granted, `limit` at most.
    /// Where the caller drops this future, it should call [`Cluster::withdraw_safe_load`].
    ///
    /// # Errors
    /// A name that is none; no answer before the request was made, after all tries.
    pub async fn safe_load(
        &self,
        node: &str,
        holders: &[String],
        limit: Duration,
    ) -> Result<SafeLoad, Error> {
        if !is_name(node) {
            return Err(Error::new(ASK, Kind::Name, format!("`{node}` is no name of a node")));
        }
        let Some(found) = self.unless_refused(self.node(node).await)? else {
            return Ok(SafeLoad::Refused);
        };
        if let Some(outcome) = cannot_ask(&found) {
            return Ok(outcome);
        }
        let value = holders_value(holders);
        let asked = self.annotate(node, Some(&value)).await;
        let Some(asked) = self.unless_refused(asked)? else { return Ok(SafeLoad::Refused) };
        tracing::info!("a safe load of the driver was asked for ({value}); waiting for the drain");
        let version = asked.resource_version.unwrap_or_default();
        let waited = timeout(limit, self.granted(node, version)).await;
        let outcome = waited.unwrap_or(SafeLoad::TimedOut);
        if matches!(outcome, SafeLoad::TimedOut | SafeLoad::UpgradeFailed) {
            self.withdraw_safe_load(node).await?;
        }
        Ok(outcome)
    }

    /// Withdraws a request for a safe load, whichever process made it.
    ///
    /// # Errors
    /// A name that is none; no answer after all tries.
    pub async fn withdraw_safe_load(&self, node: &str) -> Result<(), Error> {
        if !is_name(node) {
            return Err(Error::new(ASK, Kind::Name, format!("`{node}` is no name of a node")));
        }
        self.unless_refused(self.annotate(node, None).await).map(|_| ())
    }

    async fn node(&self, node: &str) -> Result<ObjectMeta, Error> {
        let read = self.call(READ, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.get_metadata(node).await }
        });
        read.await.map(|found| found.metadata)
    }

    async fn annotate(&self, node: &str, value: Option<&str>) -> Result<ObjectMeta, Error> {
        let patch = json!({ "metadata": { "annotations": { SAFE_LOAD: value } } });
        let patch = &Patch::Merge(patch);
        let asked = self.call(ASK, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.patch_metadata(node, &PatchParams::default(), patch).await }
        });
        asked.await.map(|found| found.metadata)
    }

    /// Watches the node until the request has an outcome; broken watches are resumed.
    async fn granted(&self, node: &str, mut version: String) -> SafeLoad {
        let mut pauses = self.limits.pauses();
        loop {
            match self.watch(node, &mut version, &mut pauses).await {
                Watched::Outcome(outcome) => return outcome,
                // A server that closes each watch at once is not asked without pauses.
                Watched::Closed(true) => continue,
                Watched::Closed(false) => pauses.pause().await,
                Watched::Failed(error) if self.is_refused(&error) => return SafeLoad::Refused,
                Watched::Failed(error) => {
                    tracing::debug!("{error}; it is resumed");
                    let renewed =
                        if error.kind == Kind::Unauthorized { self.renew() } else { Ok(()) };
                    if let Err(error) = renewed {
                        tracing::debug!("{error}");
                    }
                    pauses.pause().await;
                    // An unreadable event may have been the one that is waited for.
                    if error.kind == Kind::Garbled
                        && let Some(outcome) = self.read_again(node, &mut version).await
                    {
                        return outcome;
                    }
                }
                Watched::Restart => {
                    pauses.pause().await;
                    if let Some(outcome) = self.read_again(node, &mut version).await {
                        return outcome;
                    }
                }
            }
        }
    }

    /// True for a refusal, which is logged once.
    fn is_refused(&self, error: &Error) -> bool {
        let copy = Error::new(error.call, error.kind, error);
        error.kind.is_refusal() && self.unless_refused::<()>(Err(copy)).is_ok()
    }

    /// Reads the node where events may have been missed.
    async fn read_again(&self, node: &str, version: &mut String) -> Option<SafeLoad> {
        match self.node(node).await {
            Ok(found) => {
                *version = found.resource_version.clone().unwrap_or_default();
                outcome(&found)
            }
            Err(error) => self.is_refused(&error).then_some(SafeLoad::Refused),
        }
    }

    async fn watch(&self, node: &str, version: &mut String, pauses: &mut Pauses) -> Watched {
        let nodes: Api<Node> = Api::all(self.client());
        let seconds = u32::try_from(self.limits.watch.as_secs()).unwrap_or(u32::MAX).clamp(1, 290);
        let only = WatchParams::default().fields(&format!("metadata.name={node}")).timeout(seconds);
        let events = match self.once(WATCH, nodes.watch_metadata(&only, version)).await {
            Ok(events) => events.map_err(|error| Error::of(WATCH, &error)),
            Err(error) => return failed(error),
        };
        pin_mut!(events);
        let limit = self.limits.watch + self.limits.call;
        let mut heard = false;
        loop {
            let next = events.next().with_subscriber(NoSubscriber::new());
            let event = match timeout(limit, next).await {
                Ok(Some(Ok(event))) => event,
                Ok(Some(Err(error))) => return failed(error),
                Ok(None) => return Watched::Closed(heard),
                Err(_) => return Watched::Failed(Error::late(WATCH, limit)),
            };
            if let Some(end) = heard_of(event, version) {
                return end;
            }
            heard = true;
            pauses.reset();
        }
    }
}

fn failed(error: Error) -> Watched {
    match error.kind {
        Kind::Gone => Watched::Restart,
        _ => Watched::Failed(error),
    }
}

/// Takes an event: its version, and the end of the watch where it is one.
fn heard_of(event: WatchEvent<PartialObjectMeta<Node>>, version: &mut String) -> Option<Watched> {
    match event {
        WatchEvent::Added(node) | WatchEvent::Modified(node) => {
            if let Some(newer) = &node.metadata.resource_version {
                version.clone_from(newer);
            }
            outcome(&node.metadata).map(Watched::Outcome)
        }
        WatchEvent::Bookmark(mark) => {
            *version = mark.metadata.resource_version;
            None
        }
        WatchEvent::Deleted(_) => Some(Watched::Outcome(SafeLoad::Refused)),
        WatchEvent::Error(status) => Some(failed(Error::of_status(WATCH, &status))),
    }
}

fn annotation<'a>(node: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    node.annotations.as_ref()?.get(name).map(String::as_str)
}

fn label<'a>(node: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    node.labels.as_ref()?.get(name).map(String::as_str)
}

/// Reason why a request would not be heard.
fn cannot_ask(node: &ObjectMeta) -> Option<SafeLoad> {
    if annotation(node, UPGRADES_ENABLED) != Some("true") {
        return Some(SafeLoad::NoController);
    }
    (label(node, SKIPPED) == Some("true")).then_some(SafeLoad::NodeSkipped)
}

/// Outcome that a node with a request shows; None while it is open.
fn outcome(node: &ObjectMeta) -> Option<SafeLoad> {
    if annotation(node, SAFE_LOAD).is_none() {
        return Some(SafeLoad::Granted);
    }
    (label(node, UPGRADE_STATE) == Some("upgrade-failed")).then_some(SafeLoad::UpgradeFailed)
}

#[cfg(test)]
mod tests;
