//! Controller of evictions: cordons the nodes whose agents request it, evicts the pods that use their drivers, and
//! uncordons. It alone needs the rights for that; an agent writes an annotation of its own node.
//!
//! [`Evictor`] lists and watches the nodes, and keeps one [`Worker`](worker::Worker) for each with a request or the
//! record of a cordon. All state that matters after a restart is on the nodes.

mod health;
mod nodes;
mod slots;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tokio::time::{Instant, sleep};

pub use health::Health;
pub use slots::Share;

use crate::client::{Cluster, Pauses};
use crate::error::{ApiErrorKind, Error};
use crate::evict::annotated::DrainNode;
use crate::evict::rate::Rate;
use crate::evict::{EvictPace, EvictRequest};
use nodes::Heard;
use slots::Slots;
pub use worker::NodePace;
use worker::{Own, Worker};

/// Conduct of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictorOptions {
    /// Number of nodes that are drained at a time.
    pub most_nodes: Share,
    /// Number of evictions in a minute, of all nodes together.
    pub most_evictions: usize,
    /// Pauses of the drain of one node. Its time limit is the request's, up to this one.
    pub pace: EvictPace,
    /// Pauses of one node's changes.
    pub of_node: NodePace,
}

impl EvictorOptions {
    /// Number of evictions in a minute by default: of ten nodes with some pods each.
    pub const MOST_EVICTIONS: usize = 60;
}

impl Default for EvictorOptions {
    fn default() -> Self {
        let hour = std::time::Duration::from_secs(3600);
        Self {
            most_nodes: Share::default(),
            most_evictions: Self::MOST_EVICTIONS,
            pace: EvictPace { deadline: hour, ..EvictPace::default() },
            of_node: NodePace::default(),
        }
    }
}

/// The controller.
pub struct Evictor {
    own: Arc<Own>,
    health: Arc<Health>,
    most_nodes: Share,
    /// Tasks of the nodes with something of a drain.
    workers: BTreeMap<String, Worker>,
    /// Nodes with an agent, of which a share is drained at a time.
    agents: BTreeSet<String>,
    /// Hashes of the texts that were refused, by node: each is reported once.
    refused: BTreeMap<String, u64>,
}

impl Evictor {
    /// Takes a client, and the namespace and name of the own pod, which is never evicted. It needs a tokio runtime.
    pub fn new(
        cluster: Cluster,
        pod: (String, String),
        options: EvictorOptions,
        health: Arc<Health>,
    ) -> Self {
        let EvictorOptions { most_nodes, most_evictions, pace, of_node } = options;
        let own = Own {
            cluster: Arc::new(cluster),
            pod,
            slots: Arc::new(Slots::new(most_nodes.count_for(0))),
            rate: Arc::new(Rate::new(most_evictions)),
            pace,
            of_node,
        };
        Self {
            own: Arc::new(own),
            health,
            most_nodes,
            workers: BTreeMap::new(),
            agents: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Follows the nodes for ever: a server that does not answer is asked again.
    pub async fn run(mut self) -> Infallible {
        let mut pauses = self.own.cluster.limits.pauses();
        loop {
            let error = match self.list_and_watch(&mut pauses).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            self.fails(&error);
            self.health.beat();
            sleep(pauses.next_pause()).await;
        }
    }

    async fn list_and_watch(&mut self, pauses: &mut Pauses) -> Result<Infallible, Error> {
        let cluster = Arc::clone(&self.own.cluster);
        let (nodes, mut version) = cluster.list_drain_nodes(&self.health).await?;
        self.take_all(nodes);
        self.health.set_ready(true);
        loop {
            let begun = Instant::now();
            let health = Arc::clone(&self.health);
            let mut hear = |heard| {
                health.beat();
                self.hear(heard);
            };
            cluster.watch_drain_nodes(&mut version, &mut hear).await?;
            self.health.beat();
            if begun.elapsed() >= cluster.limits.longest_pause {
                pauses.reset();
            }
            // A server that ends each watch at once is not asked without pauses.
            sleep(pauses.next_pause()).await;
        }
    }

    /// Reports a failure of the list or the watch; a watch that has to begin anew is none.
    fn fails(&mut self, error: &Error) {
        match error.kind {
            ApiErrorKind::Gone | ApiErrorKind::Garbled | ApiErrorKind::TooLarge => {
                tracing::debug!("{error}; the nodes are listed again")
            }
            _ => {
                self.health.set_ready(false);
                if error.kind.is_refusal() {
                    self.own.cluster.report_once(error);
                } else {
                    tracing::warn!("{error}; the nodes are listed again");
                }
            }
        }
        self.own.cluster.renew_after(error);
    }

    /// Takes a list of all nodes. Those that were cordoned before have their places first.
    fn take_all(&mut self, mut nodes: Vec<DrainNode>) {
        let names: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
        self.workers.retain(|name, _| names.contains(name));
        self.agents.retain(|name| names.contains(name));
        self.refused.retain(|name, _| names.contains(name));
        nodes.sort_by_key(|node| !node.has_record);
        self.agents
            .extend(nodes.iter().filter(|node| node.has_agent).map(|node| node.name.clone()));
        self.limit();
        nodes.into_iter().for_each(|node| self.take(node));
    }

    /// Limits the places to the share of the nodes that have an agent now; wakes nobody
    /// where that is no more than before.
    fn limit(&self) {
        self.own.slots.limit(self.most_nodes.count_for(self.agents.len()));
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Is(node) => {
                match node.has_agent {
                    true => self.agents.insert(node.name.clone()),
                    false => self.agents.remove(&node.name),
                };
                self.limit();
                self.take(node);
            }
            Heard::Gone(name) => {
                self.workers.remove(&name);
                self.refused.remove(&name);
                self.agents.remove(&name);
                self.limit();
            }
            Heard::Nothing => {}
        }
    }

    /// Takes a node as it is now.
    fn take(&mut self, node: DrainNode) {
        let request = self.request_of(&node);
        // An invalid request alone is nothing to act on.
        if request.is_none() && node.status.is_none() && !node.has_record {
            self.workers.remove(&node.name);
            return;
        }
        match self.workers.get(&node.name) {
            Some(worker) => worker.take(request, node.has_record),
            None => {
                let worker = Worker::begin(Arc::clone(&self.own), &node, request);
                self.workers.insert(node.name, worker);
            }
        }
    }

    /// Reads the request of a node; one that no agent writes counts as none.
    fn request_of(&mut self, node: &DrainNode) -> Option<EvictRequest> {
        let text = node.request.as_deref()?;
        match EvictRequest::of_annotation(text) {
            Ok(request) => {
                self.refused.remove(&node.name);
                Some(request)
            }
            Err(error) => {
                let mut hasher = DefaultHasher::new();
                text.hash(&mut hasher);
                let hash = hasher.finish();
                if self.refused.insert(node.name.clone(), hash) != Some(hash) {
                    tracing::warn!(
                        "node {}: the request for evictions is refused: {error}",
                        node.name
                    );
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
