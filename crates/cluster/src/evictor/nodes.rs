//! List and watch of all nodes, of which only the metadata is read.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, WatchEvent};
use kube::core::PartialObjectMeta;
use tokio::time::{Instant, timeout};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::Health;
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::evict::annotated::DrainNode;

const LIST: &str = "listing the nodes (list nodes)";
const WATCH: &str = "watching the nodes (watch nodes)";

/// Number of nodes in one answer; half of them where it is larger than the limit.
const PAGE: u32 = 50;
/// Number of nodes that are asked for: twice the most that Kubernetes supports.
const MOST_NODES: u32 = 10_000;
/// Longest time between two signs of a watch in which nothing happens.
const SIGN: Duration = Duration::from_secs(10);

/// A node that is another than it was, or that is gone.
#[derive(Debug)]
pub(super) enum Heard {
    Is(DrainNode),
    Gone(String),
    /// Nothing has happened for a while.
    Nothing,
}

impl Cluster {
    /// Lists the nodes, and the version to watch from.
    pub(super) async fn list_drain_nodes(
        &self,
        health: &Health,
    ) -> Result<(Vec<DrainNode>, String), Error> {
        let (mut found, mut page) = (Vec::new(), ListParams::default());
        let (mut size, mut asked) = (PAGE, 0);
        while asked < MOST_NODES {
            page = page.limit(size);
            let params = &page;
            let listed = self.call(LIST, |client| {
                let nodes: Api<Node> = Api::all(client);
                async move { nodes.list_metadata(params).await }
            });
            let listed = match listed.await {
                Err(error) if error.kind == ApiErrorKind::TooLarge && size > 1 => {
                    size /= 2;
                    continue;
                }
                listed => listed?,
            };
            health.beat();
            asked += size;
            found.extend(
                listed.items.iter().filter_map(|node| DrainNode::from_meta(&node.metadata)),
            );
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => {
                    let none =
                        || Error::new(LIST, ApiErrorKind::Garbled, "a list without a version");
                    let version = listed.metadata.resource_version.ok_or_else(none)?;
                    return Ok((found, version));
                }
            }
        }
        let why = format!("the list has not ended after {MOST_NODES} nodes");
        Err(Error::new(LIST, ApiErrorKind::Garbled, why))
    }

    /// Watches the nodes from this version until the server closes the watch: the next one goes on from there. After
    /// an error events may have been missed.
    pub(super) async fn watch_drain_nodes(
        &self,
        version: &mut String,
        hear: &mut impl FnMut(Heard),
    ) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let all = self.limits.watch_params();
        let events = self.once(WATCH, nodes.watch_metadata(&all, version)).await?;
        let events = events.map_err(|error| Error::from_kube(WATCH, &error));
        pin_mut!(events);
        let until = Instant::now() + self.limits.watch + self.limits.call;
        loop {
            let next = events.next().with_subscriber(NoSubscriber::new());
            match timeout(SIGN, next).await {
                Ok(Some(Ok(event))) => hear(heard(event, version)?),
                // A connection that broke, or grew beyond the size limit, is resumed from the last version.
                Ok(Some(Err(error))) if error.kind != ApiErrorKind::Garbled => {
                    tracing::debug!("{error}; it is resumed");
                    return Ok(());
                }
                Ok(Some(Err(error))) => return Err(error),
                Ok(None) => return Ok(()),
                Err(_) if Instant::now() < until => hear(Heard::Nothing),
                Err(_) => return Err(Error::late(WATCH, self.limits.watch)),
            }
        }
    }
}

/// Takes an event, and its version.
fn heard(event: WatchEvent<PartialObjectMeta<Node>>, version: &mut String) -> Result<Heard, Error> {
    let garbled =
        || Error::new(WATCH, ApiErrorKind::Garbled, "an event without a node or a version");
    match event {
        WatchEvent::Added(node) | WatchEvent::Modified(node) => {
            *version = node.metadata.resource_version.clone().ok_or_else(garbled)?;
            DrainNode::from_meta(&node.metadata).map(Heard::Is).ok_or_else(garbled)
        }
        WatchEvent::Deleted(node) => {
            *version = node.metadata.resource_version.ok_or_else(garbled)?;
            node.metadata.name.map(Heard::Gone).ok_or_else(garbled)
        }
        WatchEvent::Bookmark(mark) => {
            version.clone_from(&mark.metadata.resource_version);
            Ok(Heard::Nothing)
        }
        WatchEvent::Error(status) => Err(Error::from_status(WATCH, &status)),
    }
}
