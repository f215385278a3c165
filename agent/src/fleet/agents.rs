//! Agents that run, by the pods of the namespaces that the nodes' statuses name.

use std::collections::BTreeSet;

use super::Nodes;
use super::backend::Backend;
use super::pods::Pod;
use longshore_cluster::{PodsOf, is_name};

/// Namespaces that are listed, at most: agents have one, or one for each release of a chart.
const MOST_NAMESPACES: usize = 16;

/// Consequence of pods that are not listed.
const UNTOLD: &str = "agents that have ended are not marked as such";

impl Nodes {
    /// Records of each node with a status if an agent runs on it: a pod that has not ended, and that the status
    /// names or that has an agent's container. Nodes of a namespace whose pods cannot be listed are left as they
    /// are, with a warning.
    pub async fn look_for_agents(&mut self, cluster: &Backend) {
        let places = self.0.iter().filter_map(|node| node.place());
        let namespaces = places.filter_map(|place| Some(place.split_once('/')?.0.to_owned()));
        let namespaces: BTreeSet<String> = namespaces.filter(|name| is_name(name)).collect();
        for namespace in namespaces.iter().skip(MOST_NAMESPACES) {
            tracing::warn!("{namespace} is one namespace too many: {UNTOLD}");
        }
        for namespace in namespaces.iter().take(MOST_NAMESPACES) {
            match cluster.pods(PodsOf::Namespace(namespace)).await {
                Ok(pods) => self.compare(namespace, &pods),
                Err(failure) => {
                    let why = failure.one_line();
                    tracing::warn!("the pods of {namespace} are not listed: {why}: {UNTOLD}");
                }
            }
        }
    }

    /// Compares nodes whose status names a pod of this namespace with its pods.
    fn compare(&mut self, namespace: &str, pods: &[Pod]) {
        for node in &mut self.0 {
            let Some(place) = node.place().map(str::to_owned) else { continue };
            if place.split_once('/').is_none_or(|(of, _)| of != namespace) {
                continue;
            }
            let is_agent = |pod: &Pod| pod.is_agent_on(&node.name, Some(&place), None);
            node.has_agent = Some(pods.iter().any(is_agent));
        }
    }
}
