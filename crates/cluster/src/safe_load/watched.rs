//! One watch of the own node.

use futures_util::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use tokio::time::timeout;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::node::{Seen, Version, garbled, seen};
use crate::client::Cluster;
use crate::error::{Error, Kind};

const WATCH: &str = "watching the own node (watch nodes)";

/// End of one watch.
#[derive(Debug)]
pub(super) enum Watched {
    /// The node is another than it was.
    Changed(Seen),
    /// The server closed it: the next one goes on from there.
    Closed,
    /// Events may have been missed.
    Failed(Error),
}

impl Cluster {
    /// Watches the node from this version until it differs from `last`, or the watch ends.
    pub(super) async fn watch(&self, name: &str, last: &Seen, version: &mut Version) -> Watched {
        let nodes: Api<Node> = Api::all(self.client());
        let seconds = u32::try_from(self.limits.watch.as_secs()).unwrap_or(u32::MAX).clamp(1, 290);
        let only = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(seconds);
        let events = match self.once(WATCH, nodes.watch_metadata(&only, &version.0)).await {
            Ok(events) => events.map_err(|error| Error::of(WATCH, &error)),
            Err(error) => return Watched::Failed(error),
        };
        pin_mut!(events);
        let limit = self.limits.watch + self.limits.call;
        loop {
            let next = events.next().with_subscriber(NoSubscriber::new());
            match timeout(limit, next).await {
                Ok(Some(Ok(event))) => match heard(event, name, version) {
                    Ok(Some(now)) if now != *last => return Watched::Changed(now),
                    Ok(_) => {}
                    Err(error) => return Watched::Failed(error),
                },
                Ok(Some(Err(error))) => return Watched::Failed(error),
                Ok(None) => return Watched::Closed,
                Err(_) => return Watched::Failed(Error::late(WATCH, limit)),
            }
        }
    }
}

/// Takes an event: the node it is about, and its version.
fn heard(
    event: WatchEvent<PartialObjectMeta<Node>>,
    name: &str,
    version: &mut Version,
) -> Result<Option<Seen>, Error> {
    match event {
        WatchEvent::Added(node) | WatchEvent::Modified(node) => {
            let (now, newer) = seen(name, &node.metadata).ok_or_else(|| garbled(WATCH))?;
            *version = newer;
            Ok(Some(now))
        }
        WatchEvent::Bookmark(mark) => {
            let newer = Version::of(&mark.metadata.resource_version);
            *version = newer.ok_or_else(|| garbled(WATCH))?;
            Ok(None)
        }
        WatchEvent::Deleted(_) => {
            Err(Error::new(WATCH, Kind::Missing, "the node was removed from the cluster"))
        }
        WatchEvent::Error(status) => Err(Error::of_status(WATCH, &status)),
    }
}
