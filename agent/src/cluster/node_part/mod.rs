//! The node's own part in a change of its driver: the request for evictions, and the report of what the controller did,
//! in the log and as events of the cluster.

use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{
    ActingPod, AskPace, Event, EvictEvent, Evictions, Reason, Regarding, Reporter,
};
use longshore_core::failure::Failure;

use super::{Pod, failed};
use crate::telemetry::{NodeDrain, Telemetry};

impl Pod {
    /// Begins the part of this pod's node, without any call yet; `deadline` is the time limit of
    /// evictions, `reporter` writes their events, and `telemetry` counts them. Without `asks` only the request of an
    /// earlier agent is withdrawn. None where the pod does not know its node or its own name.
    ///
    /// # Errors
    /// Exit code 15 where one of the names is none.
    pub fn evictions(
        self,
        deadline: Duration,
        asks: bool,
        reporter: Option<Arc<Reporter>>,
        telemetry: &Telemetry,
    ) -> Result<Option<Evictions>, Failure> {
        let Self { cluster, namespace, given_name: name, node, .. } = self;
        let (Some(namespace), Some(pod), Some(node)) = (namespace, name, node) else {
            return Ok(None);
        };
        let place = ActingPod { node, namespace, pod };
        let pace = AskPace { deadline, ..AskPace::default() };
        let telemetry = telemetry.clone();
        telemetry.drain(|_| ());
        let tell = move |event: &EvictEvent| {
            telemetry.drain(|drain| count(event, drain));
            let text = described(event, deadline);
            log(event, &text);
            if let Some(reporter) = &reporter {
                report(event, text, reporter);
            }
        };
        let begun = Evictions::begin(cluster, place, pace, asks, tell);
        begun.map(Some).map_err(|error| failed(&error))
    }
}

/// Counts an event. Pods are evicted from a cordoned node alone, so one of them tells of a cordon that was made for the
/// same change before this agent began.
fn count(event: &EvictEvent, drain: &mut NodeDrain) {
    match event {
        EvictEvent::Unanswered(_) => return drain.unanswered = true,
        // It is not the controller that tells these.
        EvictEvent::Refused(_) | EvictEvent::Unreachable(_) => {}
        _ => drain.unanswered = false,
    }
    match event {
        EvictEvent::Cordoned(_) => (drain.cordoned, drain.by_another) = (true, false),
        EvictEvent::CordonedByAnother => (drain.cordoned, drain.by_another) = (false, true),
        EvictEvent::Evicted(_) => {
            drain.evicted += 1;
            drain.cordoned = !drain.by_another;
        }
        EvictEvent::Blocked(..) => {
            drain.blocked += 1;
            drain.cordoned = !drain.by_another;
        }
        EvictEvent::Overruled | EvictEvent::Uncordoned | EvictEvent::Forgotten => {
            (drain.cordoned, drain.by_another) = (false, false);
        }
        EvictEvent::Expired(_)
        | EvictEvent::Refused(_)
        | EvictEvent::Unreachable(_)
        | EvictEvent::Waits
        | EvictEvent::Unanswered(_) => {}
    }
}

fn described(event: &EvictEvent, deadline: Duration) -> String {
    match event {
        EvictEvent::Waits => {
            "the node is not drained yet: the controller drains other nodes first".into()
        }
        EvictEvent::Unanswered(after) => format!(
            "no controller drains this node: none (`longshore evictor`) has answered the request for evictions within \
             {} s; the change waits for the driver's users, and the request stays",
            after.as_secs()
        ),
        EvictEvent::Cordoned(reason) => {
            format!("the node is cordoned until the change is made: {reason}")
        }
        EvictEvent::CordonedByAnother => {
            "the node is cordoned already, not by longshore: it stays so after the change".into()
        }
        EvictEvent::Evicted(pod) => {
            format!("pod {pod} uses the driver: its eviction was accepted")
        }
        EvictEvent::Blocked(pod, why) => {
            format!("pod {pod} uses the driver and is not evicted: {why}")
        }
        EvictEvent::Overruled => "another program uncordoned the node: no pod is evicted for this \
                                  change any more, which waits for the driver's users"
            .into(),
        EvictEvent::Expired(left) => {
            let left: Vec<String> = left.iter().map(|(pod, why)| format!("{pod}: {why}")).collect();
            let left = match left.is_empty() {
                true => "none of its pods is known to use the driver".to_owned(),
                false => left.join("; "),
            };
            format!(
                "the driver still has users after {} s of evictions ({left}): no pod is evicted for \
                 this change any more, which waits for them; the installed driver is served",
                deadline.as_secs()
            )
        }
        EvictEvent::Uncordoned => "the node is uncordoned again".into(),
        EvictEvent::Forgotten => "another program uncordoned the node before".into(),
        EvictEvent::Refused(why) => {
            format!("{why}; the change waits for the driver's users (reported once)")
        }
        EvictEvent::Unreachable(why) => format!("{why}; it is asked again"),
    }
}

fn log(event: &EvictEvent, text: &str) {
    match event {
        EvictEvent::Cordoned(_)
        | EvictEvent::CordonedByAnother
        | EvictEvent::Evicted(_)
        | EvictEvent::Waits
        | EvictEvent::Uncordoned => tracing::info!("{text}"),
        EvictEvent::Blocked(..)
        | EvictEvent::Overruled
        | EvictEvent::Expired(_)
        | EvictEvent::Refused(_)
        | EvictEvent::Unanswered(_)
        | EvictEvent::Unreachable(_) => tracing::warn!("{text}"),
        EvictEvent::Forgotten => tracing::debug!("{text}"),
    }
}

/// Writes an event on the node and on the pod that it is about, and has a changed cordon reported at once.
fn report(event: &EvictEvent, note: String, reporter: &Reporter) {
    let (reason, action, pod) = match event {
        EvictEvent::Cordoned(_) => (Reason::Cordoned, "Cordon", None),
        EvictEvent::Uncordoned => (Reason::Uncordoned, "Uncordon", None),
        EvictEvent::Evicted(pod) => (Reason::Evicted, "Evict", Some(pod)),
        EvictEvent::Blocked(pod, _) => (Reason::EvictionBlocked, "Evict", Some(pod)),
        EvictEvent::Overruled
        | EvictEvent::Expired(_)
        | EvictEvent::Refused(_)
        | EvictEvent::Unanswered(_) => (Reason::EvictionBlocked, "Evict", None),
        EvictEvent::Forgotten => return reporter.again(),
        EvictEvent::CordonedByAnother | EvictEvent::Unreachable(_) | EvictEvent::Waits => return,
    };
    let node = Regarding::Node(reporter.node().to_owned());
    let pod = pod.map(|pod| Regarding::Pod(pod.clone()));
    for regarding in [Some(node), pod].into_iter().flatten() {
        reporter.event(Event { regarding, reason, action, note: note.clone() });
    }
    if matches!(reason, Reason::Cordoned | Reason::Uncordoned) {
        reporter.again();
    }
}

#[cfg(test)]
mod tests;
