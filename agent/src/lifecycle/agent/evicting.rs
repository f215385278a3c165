//! Cordon of the own node and evictions of the driver's users while a change waits for them, where that is
//! set.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::held::HeldChange;
use longshore_cluster::Evictions;
use longshore_host::in_use::InUse;

/// Longest time between two looks at the users during evictions: a pod of a DaemonSet is made again within
/// some seconds.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// Cordons the node and evicts the pods that use the driver, in a task beside the wait.
pub(super) struct EvictsUsers {
    pub(super) evictions: Evictions,
    /// False where only what an earlier agent left is undone.
    pub(super) evicts: bool,
    pub(super) limit: Duration,
}

impl HeldChange for EvictsUsers {
    fn waits(&self, in_use: &InUse, change: &str) {
        if self.evicts {
            self.evictions.want(change, in_use.users.iter().filter_map(|user| user.pod.clone()));
        }
    }

    fn over(&self) {
        self.evictions.want_none();
    }

    fn tries(&self, change: &str) {
        if self.evicts {
            self.evictions.want(change, []);
        }
    }

    fn look_within(&self) -> Duration {
        if self.evictions.are_active() { LOOK_WITHIN } else { Duration::MAX }
    }

    // Also where this agent cordoned nothing: it may end before its driver is Ready.
    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if !self.evictions.withdrawn(self.limit).await && self.evicts {
                tracing::warn!(
                    "the node may stay cordoned: the API server refused to uncordon it, or did not \
                     answer within {} s; the next agent uncordons it once its driver is ready; if none \
                     follows, run `longshore fleet clean`",
                    self.limit.as_secs_f64()
                );
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::drain::tests::{in_use, until};
    use super::*;
    use longshore_cluster::names::CORDONED;
    use longshore_cluster::testing::{Answer, Api, SHORT};
    use longshore_cluster::{EvictPace, Place};
    use serde_json::json;

    const LONG: Duration = Duration::from_secs(60);

    /// A node that longshore cordoned, or one that nobody did.
    fn cordoned(version: u32, is: bool) -> Answer {
        let mut metadata = json!({ "name": "n", "resourceVersion": version.to_string() });
        if is {
            metadata["annotations"] = json!({ CORDONED: "{}" });
        }
        let spec = json!({ "unschedulable": is });
        let node =
            json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec });
        Answer::Body(200, node.to_string())
    }

    fn pods() -> Answer {
        let owner = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u",
                             "controller": true }]);
        let pod = |uid: &str, name: &str| {
            json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": { "name": name, "namespace": "ml", "uid": uid,
                                  "ownerReferences": owner } })
        };
        let list = json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                           "metadata": {}, "items": [pod("abc", "train"), pod("def", "idle")] });
        Answer::Body(200, list.to_string())
    }

    fn evicting(api: &Api, evicts: bool) -> EvictsUsers {
        let place = Place { node: "n".into(), namespace: "gpu".into(), pod: "driver".into() };
        let pace = EvictPace::default();
        let evictions = Evictions::begin(api.cluster(SHORT), place, pace, |_| {}).unwrap();
        EvictsUsers { evictions, evicts, limit: LONG }
    }

    #[tokio::test]
    async fn the_pods_of_the_users_are_evicted_and_the_end_uncordons() {
        let accepted = Answer::Body(201, json!({ "kind": "Status", "code": 201 }).to_string());
        let answers = [cordoned(1, false), cordoned(2, true), pods(), accepted];
        let api = Api::with(answers.into_iter().chain([cordoned(2, true), cordoned(3, false)]));
        let evicts = evicting(&api, true);
        evicts.waits(&in_use(&[(7, "train"), (8, "train")]), "driver 1 to 2");
        assert_eq!(evicts.look_within(), Duration::MAX);
        until(&api, 4).await;
        assert_eq!(evicts.look_within(), LOOK_WITHIN);
        evicts.ended().await;
        let (node, evicted) = ("/api/v1/nodes/n", "/api/v1/namespaces/ml/pods/train/eviction");
        let wanted = [("GET", node), ("PATCH", node), ("GET", "/api/v1/pods"), ("POST", evicted)];
        let wanted = wanted.into_iter().chain([("GET", node), ("PATCH", node)]);
        let wanted: Vec<String> = wanted.map(|(verb, path)| format!("{verb} {path}")).collect();
        assert_eq!(api.lines(), wanted);
        assert!(api.requests()[1].body.contains("driver 1 to 2"), "{}", api.requests()[1].body);
    }

    /// A pod that used the driver is not one of its users any more.
    #[tokio::test]
    async fn during_a_try_no_pod_is_evicted() {
        let api = Api::with([cordoned(1, true), cordoned(1, true), cordoned(2, false)]);
        let evicts = evicting(&api, true);
        evicts.tries("driver 1 to 2");
        while evicts.look_within() != LOOK_WITHIN {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        evicts.ended().await;
        let node = "/api/v1/nodes/n";
        assert_eq!(
            api.lines(),
            [format!("GET {node}"), format!("GET {node}"), format!("PATCH {node}")]
        );
    }

    #[tokio::test]
    async fn an_agent_that_evicts_nothing_undoes_the_cordon_of_an_earlier_one() {
        let api = Api::with([cordoned(1, true), cordoned(2, false)]);
        let evicts = evicting(&api, false);
        evicts.waits(&in_use(&[(7, "train")]), "driver 1 to 2");
        evicts.over();
        evicts.ended().await;
        assert_eq!(api.lines(), ["GET /api/v1/nodes/n", "PATCH /api/v1/nodes/n"]);
        assert_eq!(evicts.look_within(), Duration::MAX);
    }

    #[test]
    fn the_page_about_deadlines_has_the_looks() {
        let row = "A look at the driver's users while their pods are evicted";
        longshore_core::testing::assert_in_page(row, LOOK_WITHIN);
    }
}
