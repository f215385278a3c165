//! One watch of the own node.

use futures_util::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, WatchEvent};
use kube::core::PartialObjectMeta;
use tokio::time::timeout;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::node::{SafeLoadOnNode, Version, garbled, seen};
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};

const WATCH: &str = "watching the own node (watch nodes)";

impl Cluster {
    /// Watches the node from this version until it differs from `last`; None where the server closed the watch: the
    /// next one goes on from there. After an error events may have been missed.
    pub(super) async fn watch(
        &self,
        name: &str,
        last: &SafeLoadOnNode,
        version: &mut Version,
    ) -> Result<Option<SafeLoadOnNode>, Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let only = self.limits.watch_params().fields(&format!("metadata.name={name}"));
        let events = self.once(WATCH, nodes.watch_metadata(&only, &version.0)).await?;
        let events = events.map_err(|error| Error::from_kube(WATCH, &error));
        pin_mut!(events);
        let limit = self.limits.watch + self.limits.call;
        loop {
            let next = events.next().with_subscriber(NoSubscriber::new());
            match timeout(limit, next).await {
                Ok(Some(event)) => {
                    let now = heard(event?, name, version)?;
                    if now.as_ref().is_some_and(|now| now != last) {
                        return Ok(now);
                    }
                }
                Ok(None) => return Ok(None),
                Err(_) => return Err(Error::late(WATCH, limit)),
            }
        }
    }
}

/// Takes an event: the node it is about, and its version.
fn heard(
    event: WatchEvent<PartialObjectMeta<Node>>,
    name: &str,
    version: &mut Version,
) -> Result<Option<SafeLoadOnNode>, Error> {
    match event {
        WatchEvent::Added(node) | WatchEvent::Modified(node) => {
            let (now, newer) = seen(name, &node.metadata).ok_or_else(|| garbled(WATCH))?;
            *version = newer;
            Ok(Some(now))
        }
        WatchEvent::Bookmark(mark) => {
            let newer = Version::parse(&mark.metadata.resource_version);
            *version = newer.ok_or_else(|| garbled(WATCH))?;
            Ok(None)
        }
        WatchEvent::Deleted(_) => {
            Err(Error::new(WATCH, ApiErrorKind::Missing, "the node was removed from the cluster"))
        }
        WatchEvent::Error(status) => Err(Error::from_status(WATCH, &status)),
    }
}
