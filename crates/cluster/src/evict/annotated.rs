//! Annotations of a node that are about its drain, read and written.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::names::{CORDONED, EVICT_REQUEST, EVICTIONS, STATUS};
use crate::text::is_name;

const READ: &str = "reading the own node (get nodes)";

/// Writing an annotation of a node, by its name in errors.
pub(crate) type Call = &'static str;

/// A node, as far as it is about its drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DrainNode {
    pub(crate) name: String,
    /// Text of the request.
    pub(crate) request: Option<String>,
    /// Text of the drain's state.
    pub(crate) status: Option<String>,
    /// It has the record of a cordon of longshore's.
    pub(crate) has_record: bool,
    /// An agent has reported on it.
    pub(crate) has_agent: bool,
}

impl DrainNode {
    /// Takes the metadata of a node; None where its name is none.
    pub(crate) fn from_meta(meta: &ObjectMeta) -> Option<Self> {
        let name = meta.name.clone().filter(|name| is_name(name))?;
        let annotation = |key| meta.annotations.as_ref()?.get(key);
        Some(Self {
            name,
            request: annotation(EVICT_REQUEST).cloned(),
            status: annotation(EVICTIONS).cloned(),
            has_record: annotation(CORDONED).is_some(),
            has_agent: annotation(STATUS).is_some(),
        })
    }
}

fn of_node(call: Call, name: &str, meta: &ObjectMeta) -> Result<DrainNode, Error> {
    let node = DrainNode::from_meta(meta).filter(|node| node.name == name);
    node.ok_or_else(|| Error::new(call, ApiErrorKind::Garbled, "an answer about another node"))
}

impl Cluster {
    /// Reads the node.
    pub(super) async fn drain_node(&self, name: &str) -> Result<DrainNode, Error> {
        let read = self.call(READ, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.get_metadata(name).await }
        });
        of_node(READ, name, &read.await?.metadata)
    }

    /// Writes an annotation of a node, or removes it; other keys stay as they are.
    pub(crate) async fn annotate_node(
        &self,
        call: Call,
        name: &str,
        key: &str,
        value: Option<&str>,
    ) -> Result<DrainNode, Error> {
        let patch = &Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        let written = self.call(call, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.patch_metadata(name, &PatchParams::default(), patch).await }
        });
        of_node(call, name, &written.await?.metadata)
    }
}
