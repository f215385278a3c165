//! Calls about all nodes of the cluster and DaemonSets, for `longshore fleet` in a pod. Answers are the API's own JSON,
//! as kubectl prints it: the same readers take both.

use std::time::Duration;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use kube::core::params::GetParams;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::text::is_name;

/// Number of objects that one answer may have; half of them where it is larger than the limit.
const PAGE: u32 = 50;
/// Number of objects of one list that are asked for: twice the most nodes that Kubernetes supports.
const MOST_OBJECTS: u32 = 10_000;
/// Number of lists that are begun where the server forgets the place of the next page (410), as etcd's compaction
/// makes it do.
const MOST_LISTS: u32 = 3;

/// Right that a call needs, as a rule of a role has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display("apiGroups: [\"{group}\"], resources: [{resource}], verbs: [{verb}]")]
pub struct Right {
    /// API group; empty for core.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// Verb.
    pub verb: &'static str,
}

const LIST_NODES: &str = "listing the nodes (list nodes)";
const GET_NODE: &str = "reading a node (get nodes)";
const PATCH_NODE: &str = "patching a node (patch nodes)";
const PATCH_STATUS: &str = "patching a node's status (patch nodes/status)";
const LIST_PODS: &str = "listing pods (list pods)";
const GET_SET: &str = "reading a DaemonSet (get daemonsets)";
const DELETE_SET: &str = "deleting a DaemonSet (delete daemonsets)";

/// Right of each call.
const RIGHTS: [(&str, Right); 7] = [
    (LIST_NODES, Right { group: "", resource: "nodes", verb: "list" }),
    (GET_NODE, Right { group: "", resource: "nodes", verb: "get" }),
    (PATCH_NODE, Right { group: "", resource: "nodes", verb: "patch" }),
    (PATCH_STATUS, Right { group: "", resource: "nodes/status", verb: "patch" }),
    (LIST_PODS, Right { group: "", resource: "pods", verb: "list" }),
    (GET_SET, Right { group: "apps", resource: "daemonsets", verb: "get" }),
    (DELETE_SET, Right { group: "apps", resource: "daemonsets", verb: "delete" }),
];

const NODES: &str = "/api/v1/nodes";

/// Patch of a node.
#[derive(Debug, Clone, Copy)]
pub enum NodePatch<'a> {
    /// Merge patch of the object.
    Merge(&'a Value),
    /// Strategic patch of its status.
    Status(&'a Value),
}

/// Pods of a list.
#[derive(Debug, Clone, Copy)]
pub enum PodsOf<'a> {
    /// Those of a node, in all namespaces.
    Node(&'a str),
    /// Those of a namespace.
    Namespace(&'a str),
}

/// Cluster whose nodes are all asked.
#[derive(Debug)]
pub struct Fleet {
    cluster: Cluster,
    until: Instant,
}

impl Fleet {
    /// Size limit of an answer for which no object is too large: one has at most 1.5 MiB in the cluster's store, and six
    /// times as many in JSON, where each of its bytes is escaped.
    pub const ANSWER: usize = 16 << 20;

    /// Takes a client. A server that does not answer is asked again until `patience` is over, and at least as often as
    /// the client's limits say.
    pub fn new(cluster: Cluster, patience: Duration) -> Self {
        Self { cluster, until: Instant::now() + patience }
    }

    /// Returns the right that a refused call needs; None for other failures.
    pub fn missing_right(error: &Error) -> Option<Right> {
        let found = RIGHTS.iter().find(|(call, _)| *call == error.call);
        found.filter(|_| error.kind == ApiErrorKind::Forbidden).map(|(_, right)| *right)
    }

    /// Lists the nodes; `read` takes the items of each page, which is a list in JSON.
    ///
    /// # Errors
    /// A call that failed, or an answer that is no list of nodes.
    pub async fn nodes<T>(
        &self,
        read: impl Fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
    ) -> Result<Vec<T>, Error> {
        self.list(LIST_NODES, NODES, ListParams::default(), read).await
    }

    /// Lists pods; as [`Fleet::nodes`].
    ///
    /// # Errors
    /// As [`Fleet::nodes`].
    pub async fn pods<T>(
        &self,
        of: PodsOf<'_>,
        read: impl Fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
    ) -> Result<Vec<T>, Error> {
        let (path, only) = match of {
            PodsOf::Node(node) => {
                named(LIST_PODS, node)?;
                let only = ListParams::default().fields(&format!("spec.nodeName={node}"));
                ("/api/v1/pods".to_owned(), only)
            }
            PodsOf::Namespace(namespace) => {
                named(LIST_PODS, namespace)?;
                (format!("/api/v1/namespaces/{namespace}/pods"), ListParams::default())
            }
        };
        self.list(LIST_PODS, &path, only, read).await
    }

    /// Reads a node.
    ///
    /// # Errors
    /// A call that failed, or a name that is none.
    pub async fn node(&self, name: &str) -> Result<String, Error> {
        named(GET_NODE, name)?;
        self.ask(GET_NODE, || Request::new(NODES).get(name, &GetParams::default())).await
    }

    /// Patches a node, and returns what became of it; None where the server answers that another program changed it.
    ///
    /// # Errors
    /// A call that failed, or a name that is none.
    pub async fn patch_node(
        &self,
        name: &str,
        patch: NodePatch<'_>,
    ) -> Result<Option<String>, Error> {
        let call = match patch {
            NodePatch::Merge(_) => PATCH_NODE,
            NodePatch::Status(_) => PATCH_STATUS,
        };
        named(call, name)?;
        let (request, params) = (Request::new(NODES), PatchParams::default());
        let asked = self.ask(call, || match patch {
            NodePatch::Merge(patch) => request.patch(name, &params, &Patch::Merge(patch)),
            NodePatch::Status(patch) => {
                request.patch_subresource("status", name, &params, &Patch::Strategic(patch))
            }
        });
        unless(ApiErrorKind::Status(409), asked.await)
    }

    /// Reads a DaemonSet; None where there is none of that name.
    ///
    /// # Errors
    /// A call that failed, or a name that is none.
    pub async fn daemon_set(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let path = sets(GET_SET, namespace, name)?;
        let asked = self.ask(GET_SET, || Request::new(&path).get(name, &GetParams::default()));
        unless(ApiErrorKind::Missing, asked.await)
    }

    /// Deletes the DaemonSet with this uid, which stays until its pods are gone. One that is gone, or has been made
    /// anew, is left as it is.
    ///
    /// # Errors
    /// A call that failed, or a name that is none.
    pub async fn delete_daemon_set(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), Error> {
        let path = sets(DELETE_SET, namespace, name)?;
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams::foreground().preconditions(only);
        match self.ask(DELETE_SET, || Request::new(&path).delete(name, &params)).await {
            // The server answers 409 where the precondition does not hold.
            Err(error)
                if !matches!(error.kind, ApiErrorKind::Missing | ApiErrorKind::Status(409)) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Lists in pages, smaller ones where an answer is too large: whoever may make objects decides on their size.
    async fn list<T>(
        &self,
        call: &'static str,
        path: &str,
        only: ListParams,
        read: impl Fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
    ) -> Result<Vec<T>, Error> {
        let mut lists = 1;
        loop {
            match self.list_once(call, path, only.clone(), &read).await {
                Err(error) if error.kind == ApiErrorKind::Gone && lists < MOST_LISTS => lists += 1,
                ended => return ended,
            }
        }
    }

    async fn list_once<T>(
        &self,
        call: &'static str,
        path: &str,
        mut page: ListParams,
        read: &impl Fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
    ) -> Result<Vec<T>, Error> {
        let mut found = Vec::new();
        let garbled = |why: String| Error::new(call, ApiErrorKind::Garbled, why);
        let (mut size, mut asked) = (PAGE, 0);
        while asked < MOST_OBJECTS {
            page = page.limit(size);
            let text = match self.ask(call, || Request::new(path).list(&page)).await {
                Err(error) if error.kind == ApiErrorKind::TooLarge && size > 1 => {
                    size /= 2;
                    continue;
                }
                answer => answer?,
            };
            asked += size;
            let next: List = serde_json::from_str(&text).map_err(|e| garbled(not_a_list(&e)))?;
            found.extend(read(text.as_bytes()).map_err(|e| garbled(not_a_list(&e)))?);
            match next.metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => return Ok(found),
            }
        }
        Err(garbled(format!("the list has not ended after {MOST_OBJECTS} objects")))
    }

    /// Sends a request, again where it may succeed later.
    async fn ask(
        &self,
        call: &'static str,
        request: impl Fn() -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String, Error> {
        let asked = self.cluster.call_until(call, Some(self.until), |client| {
            let request = request().map_err(kube::Error::BuildRequest);
            async move { client.request_text(request?).await }
        });
        asked.await
    }
}

/// The part of a list that tells of its next page.
#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

fn not_a_list(error: &serde_json::Error) -> String {
    format!("an answer that is not the list: {error}")
}

/// Refuses a name that is no part of a path.
fn named(call: &'static str, name: &str) -> Result<(), Error> {
    match is_name(name) {
        true => Ok(()),
        false => {
            Err(Error::new(call, ApiErrorKind::Name, format!("`{name}` is no name of an object")))
        }
    }
}

/// Returns the path of a namespace's DaemonSets.
fn sets(call: &'static str, namespace: &str, name: &str) -> Result<String, Error> {
    named(call, namespace)?;
    named(call, name)?;
    Ok(format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"))
}

/// Takes a failure of this kind for an answer without an object.
fn unless<T>(kind: ApiErrorKind, asked: Result<T, Error>) -> Result<Option<T>, Error> {
    match asked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind == kind => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
