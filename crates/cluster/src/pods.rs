//! Pods of one node, of which only the metadata is read.

use derive_more::Display;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use serde::{Deserialize, Serialize};

use crate::client::Cluster;
use crate::error::Error;
use crate::text::is_name;

const LIST: &str = "listing the pods of the node (list pods)";

/// Annotations of a static pod's mirror object; the second has the uid that its cgroups have.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
pub(crate) const STATIC_UID: &str = "kubernetes.io/config.hash";
/// Number of pods in one answer, and of answers: a node has some hundreds at most.
const PAGE: u32 = 250;
const MOST_PAGES: usize = 8;
/// Length of the longest uid.
const LONGEST_UID: usize = 64;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Display, Serialize, Deserialize)]
#[display("{namespace}/{name}")]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
}

/// A node, and the pod of the program that acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActingPod {
    /// Name of the node.
    pub node: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod, which is never evicted.
    pub pod: String,
}

/// A pod of the node.
#[derive(Debug, Clone)]
pub(crate) struct NodePod {
    pub(crate) id: PodRef,
    /// Uid that a static pod's cgroups have, by its mirror object.
    pub(crate) static_uid: Option<String>,
    pub(crate) meta: ObjectMeta,
}

impl NodePod {
    /// Takes a pod by its metadata; None where its names are none. Anybody who makes a pod may write the hash
    /// of a static pod: without the mirror's annotation it says nothing.
    pub(crate) fn from_meta(meta: ObjectMeta) -> Option<Self> {
        let (namespace, name, uid) =
            (meta.namespace.clone()?, meta.name.clone()?, meta.uid.clone()?);
        if !is_name(&namespace) || !is_name(&name) || uid.len() > LONGEST_UID {
            return None;
        }
        let annotation = |name: &str| meta.annotations.as_ref()?.get(name);
        let hash = annotation(MIRROR).and(annotation(STATIC_UID));
        let static_uid = hash.filter(|hash| hash.len() <= LONGEST_UID).cloned();
        Some(Self { id: PodRef { namespace, name, uid }, static_uid, meta })
    }
}

impl Cluster {
    /// Lists the pods of this node, 2000 at most.
    pub(crate) async fn node_pods(&self, node: &str) -> Result<Vec<NodePod>, Error> {
        let mut found = Vec::new();
        let mut only = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
        for _ in 0..MOST_PAGES {
            let params = &only;
            let listed = self.call(LIST, |client| {
                let pods: Api<Pod> = Api::all(client);
                async move { pods.list_metadata(params).await }
            });
            let listed = listed.await?;
            found.extend(
                listed.items.into_iter().filter_map(|pod| NodePod::from_meta(pod.metadata)),
            );
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => only = only.continue_token(&next),
                None => break,
            }
        }
        Ok(found)
    }
}
