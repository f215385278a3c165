//! Request for evictions of the driver's users while a change waits for them, where that is set. The controller
//! (`longshore evictor`) cordons the node and evicts.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::held::HeldChange;
use longshore_cluster::Evictions;
use longshore_host::facts::in_use::InUse;

/// Longest time between two looks at the users during evictions: a pod of a DaemonSet is made again within
/// some seconds.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// Requests the eviction of the pods that use the driver, in a task beside the wait.
pub(super) struct EvictsUsers {
    pub(super) evictions: Evictions,
    /// False where only the request that an earlier agent left is withdrawn.
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
        self.evictions.withdraw();
    }

    fn tries(&self, change: &str) {
        if self.evicts {
            self.evictions.want(change, []);
        }
    }

    fn look_within(&self) -> Duration {
        if self.evictions.are_active() { LOOK_WITHIN } else { Duration::MAX }
    }

    // Also where this agent requested nothing: it may end before its driver is Ready.
    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if !self.evictions.withdrawn(self.limit).await && self.evicts {
                tracing::warn!(
                    "the node may stay cordoned: the API server or the controller (`longshore evictor`) did not \
                     answer within {} s; the controller uncordons it once the request is withdrawn or its \
                     time is over; if none runs any more, run `longshore fleet clean`",
                    self.limit.as_secs_f64()
                );
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::drain::tests::in_use;
    use super::*;
    use longshore_cluster::names::{CORDONED, EVICT_REQUEST};
    use longshore_cluster::testing::{AnnotatedNode, SHORT};
    use longshore_cluster::{ActingPod, AskPace};
    use serde_json::json;

    const LONG: Duration = Duration::from_secs(60);

    fn evicting(node: &AnnotatedNode, evicts: bool) -> EvictsUsers {
        let place = ActingPod { node: "n".into(), namespace: "gpu".into(), pod: "driver".into() };
        let soon = Duration::from_millis(1);
        let pace = AskPace { first: soon, longest: soon, ..AskPace::default() };
        let cluster = node.api.cluster(SHORT);
        let evictions = Evictions::begin(cluster, place, pace, evicts, |_| {}).unwrap();
        EvictsUsers { evictions, evicts, limit: LONG }
    }

    async fn until(holds: impl Fn() -> bool) {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn the_pods_of_the_users_are_requested_and_the_end_withdraws() {
        let node = AnnotatedNode::default();
        let evicts = evicting(&node, true);
        evicts.waits(&in_use(&[(7, "train"), (8, "train")]), "driver 1 to 2");
        let request = node.request().await;
        assert_eq!(
            (&request["pods"], &request["reason"]),
            (&json!(["abc"]), &json!("driver 1 to 2"))
        );
        assert_eq!(evicts.look_within(), Duration::MAX, "nothing is evicted yet");
        node.answer(json!({ "state": "draining", "cordoned": "by-longshore" })).await;
        until(|| evicts.look_within() == LOOK_WITHIN).await;
        // A pod that used the driver is not one of its users any more.
        evicts.tries("driver 1 to 2");
        until(|| node.annotation(EVICT_REQUEST).is_some_and(|text| !text.contains("abc"))).await;
        evicts.ended().await;
        assert_eq!(node.annotation(EVICT_REQUEST), None);
        assert_eq!(evicts.look_within(), Duration::MAX);
        let lines = node.api.lines();
        assert!(lines.iter().all(|line| line.ends_with(" /api/v1/nodes/n")), "{lines:?}");
    }

    #[tokio::test]
    async fn the_end_waits_for_the_uncordon_no_longer_than_its_limit() {
        let node = AnnotatedNode::default();
        let evicts = EvictsUsers { limit: Duration::from_secs(2), ..evicting(&node, true) };
        evicts.waits(&in_use(&[(7, "train")]), "driver 1 to 2");
        node.request().await;
        node.annotate(CORDONED, Some("{}"));
        evicts.ended().await;
        assert_eq!(node.annotation(EVICT_REQUEST), None, "the controller uncordons later");
    }

    #[tokio::test]
    async fn an_agent_that_evicts_nothing_withdraws_the_request_of_an_earlier_one() {
        let node = AnnotatedNode::default();
        node.annotate(EVICT_REQUEST, Some("{}"));
        node.annotate(CORDONED, Some("{}"));
        let evicts = evicting(&node, false);
        evicts.waits(&in_use(&[(7, "train")]), "driver 1 to 2");
        evicts.over();
        evicts.ended().await;
        assert_eq!(node.api.lines(), ["GET /api/v1/nodes/n", "PATCH /api/v1/nodes/n"]);
        assert_eq!(node.annotation(EVICT_REQUEST), None);
        assert_eq!(evicts.look_within(), Duration::MAX);
    }

    #[test]
    fn the_page_about_deadlines_has_the_looks_and_the_answer() {
        let row = "A look at the driver's users while their pods are evicted";
        longshore_core::testing::assert_in_page(row, LOOK_WITHIN);
        let row = "An answer of the controller that drains the node";
        longshore_core::testing::assert_in_page(row, AskPace::default().answer);
    }
}
