//! The own node: its request for a safe load, read and written.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::{SAFE_LOAD, SKIPPED, UPGRADE_STATE, UPGRADES_ENABLED, is_own_request};
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::text::is_version;

const READ: &str = "reading the own node (get nodes)";
const ASK: &str = "asking for a safe load (patch nodes)";

/// Request on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    None,
    /// One of longshore's, with its value.
    Own(String),
    /// One that another program made.
    Foreign,
}

/// The own node, as far as it is about a safe load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SafeLoadOnNode {
    pub(super) request: Request,
    /// A controller upgrades drivers here.
    pub(super) upgrades: bool,
    /// The node is exempt from upgrades.
    pub(super) skipped: bool,
    /// An upgrade of the node failed before.
    pub(super) failed: bool,
}

/// Version of a node, to watch from and to change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version(pub(super) String);

impl Version {
    /// Takes a version of bounded length, of an API server's characters.
    pub(super) fn parse(text: &str) -> Option<Self> {
        is_version(text).then(|| Self(text.to_owned()))
    }
}

impl SafeLoadOnNode {
    fn from_node(node: &ObjectMeta) -> Self {
        let annotation = |name| node.annotations.as_ref()?.get(name).map(String::as_str);
        let label = |name| node.labels.as_ref()?.get(name).map(String::as_str);
        let request = match annotation(SAFE_LOAD) {
            None => Request::None,
            Some(value) if is_own_request(value) => Request::Own(value.to_owned()),
            Some(_) => Request::Foreign,
        };
        Self {
            request,
            upgrades: annotation(UPGRADES_ENABLED) == Some("true"),
            skipped: label(SKIPPED) == Some("true"),
            failed: label(UPGRADE_STATE) == Some("upgrade-failed"),
        }
    }
}

/// Reads the metadata of an answer or event; None where it is another node's, or has no version.
pub(super) fn seen(name: &str, node: &ObjectMeta) -> Option<(SafeLoadOnNode, Version)> {
    let version = Version::parse(node.resource_version.as_deref()?)?;
    (node.name.as_deref() == Some(name)).then(|| (SafeLoadOnNode::from_node(node), version))
}

pub(super) fn garbled(call: &'static str) -> Error {
    Error::new(call, ApiErrorKind::Garbled, "an answer about another node, or without a version")
}

impl Cluster {
    /// Reads the node.
    pub(super) async fn node(&self, name: &str) -> Result<(SafeLoadOnNode, Version), Error> {
        let read = self.call(READ, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.get_metadata(name).await }
        });
        seen(name, &read.await?.metadata).ok_or_else(|| garbled(READ))
    }

    /// Sets or removes the request on a node of this version: after any other change of the node the
    /// server answers 409, so that no other program's request is lost.
    pub(super) async fn annotate(
        &self,
        name: &str,
        version: &Version,
        value: Option<&str>,
    ) -> Result<(SafeLoadOnNode, Version), Error> {
        let annotations = json!({ SAFE_LOAD: value });
        let metadata = json!({ "annotations": annotations, "resourceVersion": version.0 });
        let patch = &Patch::Merge(json!({ "metadata": metadata }));
        let asked = self.call(ASK, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.patch_metadata(name, &PatchParams::default(), patch).await }
        });
        seen(name, &asked.await?.metadata).ok_or_else(|| garbled(ASK))
    }
}
