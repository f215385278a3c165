//! Pods of the own node, by the uids that cgroups have.

use std::collections::BTreeMap;

use crate::client::Cluster;
use crate::error::Error;
use crate::pods::PodRef;

impl Cluster {
    /// Lists the pods of this node by the uid of their cgroups: their own, or that of a static pod, which takes
    /// the place of no other pod's.
    pub(super) async fn pods_of(&self, node: &str) -> Result<BTreeMap<String, PodRef>, Error> {
        let (mut found, mut by_hash) = (BTreeMap::new(), BTreeMap::new());
        for pod in self.node_pods(node).await? {
            if let Some(hash) = pod.static_uid {
                by_hash.insert(hash, pod.id.clone());
            }
            found.insert(pod.id.uid.clone(), pod.id);
        }
        by_hash.append(&mut found);
        Ok(by_hash)
    }
}
