//! The node's own part in a change of its driver: cordon and evictions, and their report in the log.

use std::time::Duration;

use longshore_cluster::{EvictEvent, EvictPace, Evictions, Place};
use longshore_core::failure::Failure;

use super::{Pod, failed};

impl Pod {
    /// Begins the part of this pod's node, without any call yet; `deadline` is the time limit of
    /// evictions. None where the pod does not know its node or its own name.
    ///
    /// # Errors
    /// Exit code 15 where one of the names is none.
    pub fn evictions(self, deadline: Duration) -> Result<Option<Evictions>, Failure> {
        let Self { cluster, namespace, name, node, .. } = self;
        let (Some(namespace), Some(pod), Some(node)) = (namespace, name, node) else {
            return Ok(None);
        };
        let place = Place { node, namespace, pod };
        let pace = EvictPace { deadline, ..EvictPace::default() };
        let report = move |event: &EvictEvent| log(event, deadline);
        let begun = Evictions::begin(cluster, place, pace, report);
        begun.map(Some).map_err(|error| failed(&error))
    }
}

/// Logs an event.
fn log(event: &EvictEvent, deadline: Duration) {
    match event {
        EvictEvent::Cordoned(reason) => {
            tracing::info!("the node is cordoned until the change is made: {reason}");
        }
        EvictEvent::CordonedByAnother => tracing::info!(
            "the node is cordoned already, not by longshore: it stays so after the change"
        ),
        EvictEvent::Evicted(pod) => {
            tracing::info!("pod {pod} uses the driver: its eviction was accepted");
        }
        EvictEvent::Blocked(pod, why) => {
            tracing::warn!("pod {pod} uses the driver and is not evicted: {why}");
        }
        EvictEvent::Overruled => tracing::warn!(
            "another program uncordoned the node: no pod is evicted for this change any more, which \
             waits for the driver's users"
        ),
        EvictEvent::Expired(left) => {
            let left: Vec<String> = left.iter().map(|(pod, why)| format!("{pod}: {why}")).collect();
            let left = match left.is_empty() {
                true => "none of its pods is known to use the driver".to_owned(),
                false => left.join("; "),
            };
            tracing::warn!(
                "the driver still has users after {} s of evictions ({left}): no pod is evicted for \
                 this change any more, which waits for them; the installed driver is served",
                deadline.as_secs()
            );
        }
        EvictEvent::Uncordoned => tracing::info!("the node is uncordoned again"),
        EvictEvent::Refused(why) => {
            tracing::warn!("{why}; the change waits for the driver's users (reported once)");
        }
        EvictEvent::Unreachable(why) => tracing::warn!("{why}; it is asked again"),
    }
}

#[cfg(test)]
mod tests {
    use longshore_cluster::testing::Api;

    use super::super::tests::pod;

    #[tokio::test]
    async fn a_pod_that_does_not_know_its_node_evicts_nothing() {
        let api = Api::with([]);
        let pod = pod(&api).unwrap().unwrap();
        assert!(pod.evictions(std::time::Duration::ZERO).unwrap().is_none());
    }
}
