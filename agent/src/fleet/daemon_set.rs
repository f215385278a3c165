//! A DaemonSet of agents: its place, and the state of its rollout.

use std::str::FromStr;

use serde::Deserialize;

use longshore_cluster::is_name;

/// Place of a DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{namespace}/{name}")]
pub struct DaemonSetRef {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Length of a pod's generated name before its random part, and of that part (k8s.io/apiserver/pkg/storage/names).
const GENERATED: usize = 58;
const RANDOM: usize = 5;

impl DaemonSetRef {
    /// True if this DaemonSet made the pod of this place, `NAMESPACE/NAME`, by the name alone: another DaemonSet, whose
    /// name begins alike, makes longer ones.
    pub(super) fn makes(&self, place: &str) -> bool {
        let Some((namespace, pod)) = place.split_once('/') else { return false };
        let base = format!("{}-", self.name);
        let base = base.get(..GENERATED).unwrap_or(&base);
        let random = pod.strip_prefix(base);
        namespace == self.namespace && random.is_some_and(|random| random.len() == RANDOM)
    }
}

impl FromStr for DaemonSetRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("a DaemonSet is NAMESPACE/NAME".to_owned()),
        }
    }
}

/// The part of a DaemonSet's object that is read.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct DaemonSetState {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Clone, Deserialize)]
struct Metadata {
    uid: String,
    #[serde(default)]
    generation: i64,
}

/// Numbers of nodes, but for the generation (k8s.io/api/apps/v1, DaemonSetStatus).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: i64,
    desired_number_scheduled: i64,
    updated_number_scheduled: i64,
    number_ready: i64,
    number_available: i64,
}

impl DaemonSetState {
    /// Reads a DaemonSet in JSON.
    ///
    /// # Errors
    /// The reason for which it is none.
    pub(super) fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Returns its uid, which no other DaemonSet of that name has.
    pub(super) fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// Returns numbers of nodes: that should have a pod, that have one of the present version, a Ready one, and an available one.
    pub(super) fn counts(&self) -> [i64; 4] {
        let status = &self.status;
        [
            status.desired_number_scheduled,
            status.updated_number_scheduled,
            status.number_ready,
            status.number_available,
        ]
    }

    /// Returns the reason for which the rollout is not complete: as `kubectl rollout status`, and each node's pod is
    /// Ready.
    pub(super) fn not_ready(&self) -> Option<String> {
        let (generation, status) = (self.metadata.generation, &self.status);
        let desired = status.desired_number_scheduled;
        if status.observed_generation < generation {
            return Some(format!("its controller has not seen its generation {generation} yet"));
        }
        let counts = [
            (status.updated_number_scheduled, "have a pod of the present version"),
            (status.number_ready, "have a Ready pod"),
            (status.number_available, "have a pod that was Ready for minReadySeconds"),
        ];
        let (count, what) = counts.into_iter().find(|(count, _)| *count < desired)?;
        Some(format!("{count} of {desired} nodes {what}"))
    }
}
