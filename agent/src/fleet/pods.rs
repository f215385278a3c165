//! Pods of a cluster, as `kubectl get pods --output=json` prints them.

use serde::Deserialize;

use crate::cluster::CONTAINERS;

/// A list of pods.
#[derive(Deserialize)]
pub(super) struct PodList {
    pub(super) items: Vec<Pod>,
}

/// The part of a pod's object that is read.
#[derive(Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    metadata: Metadata,
    pub(super) spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) node_name: String,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

impl Pod {
    /// Returns its place, `NAMESPACE/NAME`.
    pub(super) fn place(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// True for a pod whose containers have ended for good.
    fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// True for an agent's pod that runs on this node: one that the node's status names, or with an agent's container,
    /// or the given one.
    pub(super) fn is_agent_on(
        &self,
        node: &str,
        place: Option<&str>,
        container: Option<&str>,
    ) -> bool {
        let is_there = self.spec.node_name == node && !self.has_ended();
        is_there && (self.is_agents(container) || place == Some(&self.place()))
    }

    /// True if one of its containers has the given name, or one of an agent's.
    fn is_agents(&self, given: Option<&str>) -> bool {
        self.spec.containers().any(|name| match given {
            Some(given) => name == given,
            None => CONTAINERS.contains(&name),
        })
    }
}

impl Spec {
    /// Names of the containers.
    pub(super) fn containers(&self) -> impl Iterator<Item = &str> {
        self.containers.iter().map(|container| container.name.as_str())
    }
}
