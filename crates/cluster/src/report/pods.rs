//! Pods of the own node, by their uids.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};

use crate::client::Cluster;
use crate::error::Error;
use crate::text::is_name;

const LIST: &str = "listing the pods of the own node (list pods)";

/// Annotations of a static pod's mirror object; the second has the uid that its cgroup has.
const MIRROR: &str = "kubernetes.io/config.mirror";
const STATIC_UID: &str = "kubernetes.io/config.hash";
/// Number of pods in one answer, and of answers: a node has some hundreds at most.
const PAGE: u32 = 250;
const MOST_PAGES: usize = 8;
/// Length of the longest uid.
const LONGEST_UID: usize = 64;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Cluster {
    /// Lists the pods of this node, of which only the metadata is read. A pod has the key that its cgroups
    /// have: its uid, or the hash of a static pod. Anybody who makes a pod may write a hash, which
    /// therefore takes the place of no uid.
    pub(super) async fn pods_of(&self, node: &str) -> Result<BTreeMap<String, PodRef>, Error> {
        let (mut found, mut hashes) = (BTreeMap::new(), BTreeMap::new());
        let mut only = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
        for _ in 0..MOST_PAGES {
            let params = &only;
            let listed = self.call(LIST, |client| {
                let pods: Api<Pod> = Api::all(client);
                async move { pods.list_metadata(params).await }
            });
            let listed = listed.await?;
            for pod in listed.items {
                let meta = pod.metadata;
                let (Some(namespace), Some(name), Some(uid)) =
                    (meta.namespace, meta.name, meta.uid)
                else {
                    continue;
                };
                if !is_name(&namespace) || !is_name(&name) || uid.len() > LONGEST_UID {
                    continue;
                }
                let mut annotations = meta.annotations.unwrap_or_default();
                let hash = annotations.remove(MIRROR).and(annotations.remove(STATIC_UID));
                let pod = PodRef { namespace, name, uid: uid.clone() };
                if let Some(hash) = hash.filter(|hash| hash.len() <= LONGEST_UID) {
                    hashes.insert(hash, pod.clone());
                }
                found.insert(uid, pod);
            }
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => only = only.continue_token(&next),
                None => break,
            }
        }
        hashes.append(&mut found);
        Ok(hashes)
    }
}
