//! Events of `events.k8s.io/v1`: repeated ones are counted in a series, and their number in a minute is
//! bounded.

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use super::{PodRef, Reason};
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error, check_names};
use crate::names::{CONTROLLER, NODE_EVENTS};
use crate::text::in_line;

const CREATE: &str = "writing an event (create events)";
const REPEAT: &str = "counting a repeated event (patch events)";

/// Length of the longest note, in bytes (k8s.io/api/events/v1, Event.Note).
const LONGEST_NOTE: usize = 1024;
/// Number of events in a minute; more are left out. The last ones are kept for the node, however many pods
/// there are.
const MOST: usize = 12;
const KEPT_FOR_NODE: usize = 4;
const MINUTE: Duration = Duration::from_secs(60);
/// Number of events that a repetition is compared with, and the age up to which one is continued: the API
/// server removes events an hour after their last change by default.
const REMEMBERED: usize = 64;
const SERIES: Duration = Duration::from_secs(30 * 60);
/// Length of the longest name of a reporting instance (k8s.io/kubernetes/pkg/apis/core/validation, events.go). Names of
/// a DaemonSet's pods are shorter.
const LONGEST_INSTANCE: usize = 128;
/// Length of an event's name up to its random ending.
const LONGEST_NAME: usize = 200;

/// Object of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Regarding {
    /// A node, by its name.
    Node(String),
    /// A pod.
    Pod(PodRef),
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its object.
    pub regarding: Regarding,
    /// Reason.
    pub reason: Reason,
    /// Action of the agent, in CamelCase, for example `Install`.
    pub action: &'static str,
    /// Text for a person, cut at 1024 bytes.
    pub note: String,
}

/// Namespace of the object of an event about a node, which has none itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeEvents {
    /// None, as the object.
    OfObject,
    /// That of the event: Kubernetes 1.20 answers 422 to an event of events.k8s.io/v1 without it (mended in 1.21,
    /// kubernetes pull request 100125). `kubectl describe node` does not show such an event.
    OfEvent,
}

impl NodeEvents {
    fn namespace(self) -> Option<String> {
        (self == Self::OfEvent).then(|| NODE_EVENTS.to_owned())
    }
}

/// Writes events.
#[derive(Debug)]
pub struct Events {
    /// Name of the reporting pod, which a policy compares with that of the token; else of its node.
    instance: String,
    /// Form of events about the node that the API server took last.
    node_events: NodeEvents,
    written: VecDeque<Written>,
    /// Times of the calls in the last minute.
    calls: VecDeque<Instant>,
    left_out: u64,
}

/// An event that was written.
#[derive(Debug)]
struct Written {
    event: Event,
    name: String,
    count: i32,
    last: Instant,
}

impl Event {
    fn namespace(&self) -> &str {
        match &self.regarding {
            Regarding::Node(_) => NODE_EVENTS,
            Regarding::Pod(pod) => &pod.namespace,
        }
    }

    fn object(&self) -> &str {
        match &self.regarding {
            Regarding::Node(name) => name,
            Regarding::Pod(pod) => &pod.name,
        }
    }

    fn reference(&self, node_events: NodeEvents) -> ObjectReference {
        let (kind, namespace, uid) = match &self.regarding {
            // As the kubelet: `kubectl describe node` looks for events whose uid is the node's name, and whose
            // object has no namespace (kubectl's describe.go, NodeDescriber: involvedObject.namespace=).
            Regarding::Node(name) => ("Node", node_events.namespace(), name.clone()),
            Regarding::Pod(pod) => ("Pod", Some(pod.namespace.clone()), pod.uid.clone()),
        };
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(self.object().to_owned()),
            namespace,
            uid: Some(uid),
            ..ObjectReference::default()
        }
    }

    fn named(&self, name: &str, instance: &str, node_events: NodeEvents) -> ApiEvent {
        let kind = if self.reason.is_warning() { "Warning" } else { "Normal" };
        ApiEvent {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            action: Some(self.action.to_owned()),
            reason: Some(self.reason.to_string()),
            regarding: Some(self.reference(node_events)),
            note: Some(note(&self.note)),
            type_: Some(kind.to_owned()),
            ..ApiEvent::default()
        }
    }
}

/// Returns a note in one line, of bounded length.
fn note(text: &str) -> String {
    let note = in_line(text, LONGEST_NOTE);
    if note.len() <= LONGEST_NOTE {
        return note;
    }
    let fits = (0..=LONGEST_NOTE - 3).rev().find_map(|end| note.get(..end));
    format!("{}...", fits.unwrap_or_default())
}

fn new_name(object: &str) -> String {
    let object = object.get(..LONGEST_NAME).unwrap_or(object);
    let object = object.trim_end_matches(['.', '-']);
    format!("{object}.{:016x}", fastrand::u64(..))
}

impl Events {
    /// Takes the name of the reporting pod, or of its node.
    pub fn new(instance: &str) -> Self {
        let instance = match instance.len() <= LONGEST_INSTANCE {
            true => in_line(instance, LONGEST_INSTANCE),
            false => in_line(instance, LONGEST_INSTANCE - 3),
        };
        Self {
            instance,
            node_events: NodeEvents::OfObject,
            written: VecDeque::new(),
            calls: VecDeque::new(),
            left_out: 0,
        }
    }

    /// Writes an event, or counts one that was written before. Where too many were written in the last
    /// minute it is left out, which is no error.
    ///
    /// # Errors
    /// A name that is none; a refusal; no answer, or none of the API, after all tries.
    pub async fn record(&mut self, cluster: &Cluster, event: Event) -> Result<(), Error> {
        check_names(CREATE, &[event.namespace(), event.object()])?;
        let now = Instant::now();
        while self.calls.front().is_some_and(|call| now.duration_since(*call) >= MINUTE) {
            self.calls.pop_front();
        }
        let most = match event.regarding {
            Regarding::Node(_) => MOST,
            Regarding::Pod(_) => MOST - KEPT_FOR_NODE,
        };
        if self.calls.len() >= most {
            self.left_out += 1;
            tracing::debug!("{} events of this agent are left out so far", self.left_out);
            return Ok(());
        }
        self.calls.push_back(now);
        let before = self.written.iter().position(|written| {
            written.event == event && now.duration_since(written.last) < SERIES
        });
        if let Some(mut written) = before.and_then(|index| self.written.remove(index)) {
            written.count = written.count.saturating_add(1);
            written.last = now;
            match repeat(cluster, &written).await {
                // It was removed from the cluster: a new one is written.
                Err(error) if error.kind == ApiErrorKind::Missing => {}
                repeated => {
                    self.remember(written);
                    return repeated;
                }
            }
        }
        let name = new_name(event.object());
        self.create(cluster, &event, &name).await?;
        self.remember(Written { event, name, count: 1, last: now });
        Ok(())
    }

    /// Writes a new event, in the form that an API server of 1.20 takes where it refuses the other one.
    async fn create(&mut self, cluster: &Cluster, event: &Event, name: &str) -> Result<(), Error> {
        let written = event.named(name, &self.instance, self.node_events);
        match create(cluster, &written, event.namespace()).await {
            Err(error) if error.kind == ApiErrorKind::Status(422) && self.is_of_object(event) => {
                tracing::debug!("{error}; it is written with the namespace of the event");
                let written = event.named(name, &self.instance, NodeEvents::OfEvent);
                create(cluster, &written, event.namespace()).await?;
                self.node_events = NodeEvents::OfEvent;
                Ok(())
            }
            created => created,
        }
    }

    fn is_of_object(&self, event: &Event) -> bool {
        matches!(event.regarding, Regarding::Node(_)) && self.node_events == NodeEvents::OfObject
    }

    fn remember(&mut self, written: Written) {
        self.written.push_back(written);
        if self.written.len() > REMEMBERED {
            self.written.pop_front();
        }
    }
}

async fn create(cluster: &Cluster, event: &ApiEvent, namespace: &str) -> Result<(), Error> {
    let created = cluster.call(CREATE, |client| {
        let events: Api<ApiEvent> = Api::namespaced(client, namespace);
        async move { events.create(&PostParams::default(), event).await }
    });
    match created.await {
        // A try whose answer was lost.
        Err(error) if error.kind == ApiErrorKind::Status(409) => Ok(()),
        created => created.map(drop),
    }
}

async fn repeat(cluster: &Cluster, written: &Written) -> Result<(), Error> {
    let series = json!({ "count": written.count, "lastObservedTime": MicroTime(Timestamp::now()) });
    let patch = &Patch::Merge(json!({ "series": series }));
    let (name, namespace) = (&written.name, written.event.namespace());
    let repeated = cluster.call(REPEAT, |client| {
        let events: Api<ApiEvent> = Api::namespaced(client, namespace);
        async move { events.patch_metadata(name, &PatchParams::default(), patch).await }
    });
    repeated.await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_name;

    #[test]
    fn a_note_is_one_line_of_bounded_length() {
        assert_eq!(note("a\nb"), "a\\nb");
        for long in ["x".repeat(5000), "\u{10ffff}".repeat(5000)] {
            let note = note(&long);
            assert!(note.len() <= LONGEST_NOTE && note.ends_with("..."), "{}", note.len());
        }
    }

    #[test]
    fn a_name_is_one_of_an_object() {
        let long = format!("a.{}", "b-".repeat(200));
        for object in ["node-1", "a.b", &long] {
            assert!(is_name(&new_name(object)), "{object}");
        }
    }
}
