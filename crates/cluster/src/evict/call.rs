//! One eviction by the Eviction API: policy/v1, since Kubernetes 1.22, or policy/v1beta1, until 1.25.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde::de::IgnoredAny;
use serde_json::json;

use super::pods::Hindrance;
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::pods::PodRef;

const EVICT: &str = "evicting a pod (create pods/eviction)";

/// Versions of the Eviction API that the server may know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum EvictionApi {
    /// Not known yet: the newer one, else the older one.
    #[default]
    Either,
    V1,
    V1Beta1,
}

/// Result of one eviction.
#[derive(Debug)]
pub(super) enum Evicted {
    Accepted,
    /// The pod is gone already.
    Gone,
    /// It is not evicted for this reason.
    Not(Hindrance),
    /// The server does not answer as it should: no other pod is tried now.
    Unanswered(Error),
}

impl Cluster {
    /// Asks for the eviction of a pod, once with each version of the API that the server may know.
    pub(super) async fn evict(&self, pod: &PodRef, api: &mut EvictionApi) -> Evicted {
        let result = match *api {
            EvictionApi::Either => {
                let newer = self.evict_by("policy/v1", pod).await;
                if newer.as_ref().is_err_and(may_be_unknown) {
                    let older = self.evict_by("policy/v1beta1", pod).await;
                    match (newer, older) {
                        // The server does not know the older version.
                        (newer, Err(older)) if older.kind == ApiErrorKind::Status(400) => newer,
                        // It is the pod that the server does not know, of either version.
                        (Err(newer), Err(older)) if (newer.kind, older.kind) == GONE => Err(older),
                        (_, older) => {
                            *api = EvictionApi::V1Beta1;
                            older
                        }
                    }
                } else {
                    if newer.as_ref().err().is_none_or(is_of_pod) {
                        *api = EvictionApi::V1;
                    }
                    newer
                }
            }
            EvictionApi::V1 => self.evict_by("policy/v1", pod).await,
            EvictionApi::V1Beta1 => self.evict_by("policy/v1beta1", pod).await,
        };
        match result {
            Ok(()) => Evicted::Accepted,
            Err(error) => sorted(error),
        }
    }

    async fn evict_by(&self, version: &str, pod: &PodRef) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client(), &pod.namespace);
        let eviction = json!({
            "apiVersion": version,
            "kind": "Eviction",
            "metadata": { "name": pod.name, "namespace": pod.namespace },
            // Not another pod that has its name by now.
            "deleteOptions": { "preconditions": { "uid": pod.uid } },
        });
        let params = PostParams::default();
        let asked = pods.create_subresource("eviction", &pod.name, &params, &eviction);
        self.once(EVICT, asked).await.map(|IgnoredAny| ())
    }
}

/// Answers with each version of the API about a pod that is gone, where the versions are not told apart.
const GONE: (ApiErrorKind, ApiErrorKind) = (ApiErrorKind::Missing, ApiErrorKind::Missing);

/// True for an answer of a server that may not know this version of the API: 400 of Kubernetes 1.20, which
/// cannot decode it.
fn may_be_unknown(error: &Error) -> bool {
    matches!(error.kind, ApiErrorKind::Missing | ApiErrorKind::Status(400))
}

/// True for an answer about the pod: the server knows this version of the API.
fn is_of_pod(error: &Error) -> bool {
    matches!(error.kind, ApiErrorKind::Status(409 | 429))
}

fn sorted(error: Error) -> Evicted {
    match error.kind {
        ApiErrorKind::Missing => Evicted::Gone,
        ApiErrorKind::Status(429) => Evicted::Not(Hindrance::Budget(error.to_string())),
        ApiErrorKind::Forbidden => Evicted::Not(Hindrance::Forbidden(error.to_string())),
        ApiErrorKind::Late
        | ApiErrorKind::Unreachable
        | ApiErrorKind::Unauthorized
        | ApiErrorKind::Account => Evicted::Unanswered(error),
        _ => Evicted::Not(Hindrance::Failed(error.to_string())),
    }
}
