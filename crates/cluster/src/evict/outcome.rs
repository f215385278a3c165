//! State of a drain that a node's agent reads: the content of the annotation `longshore.dev/evictions`.

use serde::{Deserialize, Serialize};

use super::EvictEvent;
use super::pods::Hindrance;
use crate::pods::PodRef;
use crate::text::{in_line, is_name};

/// Format of the annotation.
pub const DRAIN_FORMAT: u32 = 1;
/// Length of the longest annotation, in bytes.
const LARGEST: usize = 16 << 10;
/// Number of pods in each list.
const MOST_PODS: usize = 64;
/// Length at which a text is cut.
const LONGEST_TEXT: usize = 200;

/// Progress of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainState {
    /// Other nodes are drained first.
    Waiting,
    /// The node is cordoned, or is about to be, and pods are evicted.
    Draining,
    /// Another program uncordoned the node: no pod is evicted for this change any more.
    Overruled,
    /// The time limit is over: no pod is evicted for this change any more.
    Expired,
}

/// Cordon of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cordoned {
    /// None.
    #[default]
    No,
    /// One of longshore's.
    ByLongshore,
    /// That of another program.
    ByAnother,
}

/// A pod that is not evicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedPod {
    /// The pod.
    #[serde(flatten)]
    pub pod: PodRef,
    /// Kind of the reason.
    why: String,
    /// The server's answer, for the kinds that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// A call that the cluster refused, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainFailure {
    /// True for a refusal.
    pub refused: bool,
    /// The failure in one line.
    pub text: String,
}

/// State of a node's drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// Format: [`DRAIN_FORMAT`].
    pub format: u32,
    /// Id of the request.
    pub request: String,
    /// Progress.
    pub state: DrainState,
    /// Cordon of the node.
    #[serde(default)]
    pub cordoned: Cordoned,
    /// Pods whose eviction was accepted; of too many the last ones.
    #[serde(default)]
    pub evicted: Vec<PodRef>,
    /// Pods that were not evicted in the last round.
    #[serde(default)]
    pub blocked: Vec<BlockedPod>,
    /// The last failure, until a call succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<DrainFailure>,
}

/// Kinds of hindrances, as the annotation spells them.
fn kind_of(why: &Hindrance) -> &'static str {
    match why {
        Hindrance::OptedOut => "opted-out",
        Hindrance::Static => "static",
        Hindrance::NoController => "no-controller",
        Hindrance::Budget(_) => "budget",
        Hindrance::Forbidden(_) => "forbidden",
        Hindrance::Failed(_) => "failed",
        Hindrance::Ending => "ending",
    }
}

impl BlockedPod {
    fn new(pod: &PodRef, why: &Hindrance) -> Self {
        let text = match why {
            Hindrance::Budget(text) | Hindrance::Forbidden(text) | Hindrance::Failed(text) => {
                Some(in_line(text, LONGEST_TEXT))
            }
            _ => None,
        };
        Self { pod: pod.clone(), why: kind_of(why).to_owned(), text }
    }

    /// Returns the reason; that of a later controller is a failure with its name.
    fn hindrance(&self) -> Hindrance {
        let text = || in_line(self.text.as_deref().unwrap_or(&self.why), LONGEST_TEXT);
        match self.why.as_str() {
            "opted-out" => Hindrance::OptedOut,
            "static" => Hindrance::Static,
            "no-controller" => Hindrance::NoController,
            "budget" => Hindrance::Budget(text()),
            "forbidden" => Hindrance::Forbidden(text()),
            "ending" => Hindrance::Ending,
            _ => Hindrance::Failed(text()),
        }
    }
}

impl DrainStatus {
    /// Begins the state of a request.
    pub(crate) fn new(request: &str, state: DrainState) -> Self {
        Self {
            format: DRAIN_FORMAT,
            request: request.to_owned(),
            state,
            cordoned: Cordoned::No,
            evicted: Vec::new(),
            blocked: Vec::new(),
            failure: None,
        }
    }

    /// True where no pod is evicted for the change any more.
    pub(crate) fn rests(&self) -> bool {
        matches!(self.state, DrainState::Overruled | DrainState::Expired)
    }

    /// True where there is nothing to tell yet: the drain has just begun.
    pub(crate) fn is_blank(&self) -> bool {
        self.state == DrainState::Draining
            && self.cordoned == Cordoned::No
            && self.failure.is_none()
    }

    /// True while pods are evicted from a cordoned node.
    pub(super) fn is_active(&self) -> bool {
        self.state == DrainState::Draining && self.cordoned != Cordoned::No
    }

    /// Takes an event of the drain.
    pub(crate) fn take(&mut self, event: &EvictEvent) {
        match event {
            EvictEvent::Cordoned(_) => self.is_draining(Cordoned::ByLongshore),
            EvictEvent::CordonedByAnother => self.is_draining(Cordoned::ByAnother),
            EvictEvent::Evicted(pod) => {
                self.is_evicting();
                self.blocked.retain(|blocked| blocked.pod.uid != pod.uid);
                self.evicted.retain(|evicted| evicted.uid != pod.uid);
                self.evicted.push(pod.clone());
                let over = self.evicted.len().saturating_sub(MOST_PODS);
                self.evicted.drain(..over);
            }
            EvictEvent::Blocked(pod, why) => {
                self.is_evicting();
                self.blocked.retain(|blocked| blocked.pod.uid != pod.uid);
                self.blocked.push(BlockedPod::new(pod, why));
                self.blocked.truncate(MOST_PODS);
            }
            EvictEvent::Overruled => {
                (self.state, self.cordoned) = (DrainState::Overruled, Cordoned::No);
            }
            EvictEvent::Expired(left) => {
                self.state = DrainState::Expired;
                if self.cordoned == Cordoned::ByLongshore {
                    self.cordoned = Cordoned::No;
                }
                let left = left.iter().take(MOST_PODS);
                self.blocked = left.map(|(pod, why)| BlockedPod::new(pod, why)).collect();
            }
            EvictEvent::Uncordoned => self.cordoned = Cordoned::No,
            EvictEvent::Refused(text) => self.fails(true, text),
            EvictEvent::Unreachable(text) => self.fails(false, text),
            // The end of the drain follows, which says why. The last two are those of an agent.
            EvictEvent::Forgotten | EvictEvent::Waits | EvictEvent::Unanswered(_) => {}
        }
    }

    fn is_draining(&mut self, cordoned: Cordoned) {
        (self.state, self.cordoned, self.failure) = (DrainState::Draining, cordoned, None);
    }

    /// Pods are evicted from a cordoned node alone: one without an event has the cordon of an earlier controller.
    fn is_evicting(&mut self) {
        let cordoned = match self.cordoned {
            Cordoned::No => Cordoned::ByLongshore,
            known => known,
        };
        self.is_draining(cordoned);
    }

    fn fails(&mut self, refused: bool, text: &str) {
        self.failure = Some(DrainFailure { refused, text: in_line(text, LONGEST_TEXT) });
    }

    /// Returns the JSON of the annotation, of bounded length: pods are left out.
    pub(crate) fn to_annotation(&self) -> String {
        let mut status = self.clone();
        loop {
            // A structure of texts has no map whose keys are none.
            let text = serde_json::to_string(&status).unwrap_or_default();
            if text.len() <= LARGEST {
                return text;
            }
            if status.evicted.len() > status.blocked.len() {
                status.evicted.remove(0);
            } else if status.blocked.pop().is_none() && status.failure.take().is_none() {
                return text;
            }
        }
    }

    /// Parses an annotation, which anybody may have written who may write to the node; None where no controller
    /// writes such a one.
    pub fn of_annotation(text: &str) -> Option<Self> {
        if text.len() > LARGEST {
            return None;
        }
        let mut status: Self = serde_json::from_str(text).ok()?;
        let fits = |pod: &PodRef| {
            is_name(&pod.namespace) && is_name(&pod.name) && (1..=64).contains(&pod.uid.len())
        };
        status.evicted.retain(fits);
        status.blocked.retain(|blocked| fits(&blocked.pod));
        status.evicted.truncate(MOST_PODS);
        status.blocked.truncate(MOST_PODS);
        if let Some(failure) = &mut status.failure {
            failure.text = in_line(&failure.text, LONGEST_TEXT);
        }
        (status.format == DRAIN_FORMAT && status.request.len() <= 64).then_some(status)
    }

    /// Returns the events that led from an earlier state of the same request, or from none, to this one.
    pub(super) fn events_since(&self, before: Option<&Self>, reason: &str) -> Vec<EvictEvent> {
        let none = Self::new(&self.request, DrainState::Draining);
        let (is_first, before) = (before.is_none(), before.unwrap_or(&none));
        let mut events = Vec::new();
        let is_new_state = is_first || before.state != self.state;
        if is_new_state && self.state == DrainState::Waiting {
            events.push(EvictEvent::Waits);
        }
        if before.cordoned != self.cordoned {
            match self.cordoned {
                Cordoned::ByLongshore => events.push(EvictEvent::Cordoned(reason.to_owned())),
                Cordoned::ByAnother => events.push(EvictEvent::CordonedByAnother),
                Cordoned::No => {}
            }
        }
        let is_new = |pod: &&PodRef| !before.evicted.iter().any(|known| known.uid == pod.uid);
        events.extend(self.evicted.iter().filter(is_new).cloned().map(EvictEvent::Evicted));
        let failure = self.failure.as_ref();
        if let Some(failure) = failure.filter(|now| before.failure.as_ref() != Some(*now)) {
            let event = if failure.refused { EvictEvent::Refused } else { EvictEvent::Unreachable };
            events.push(event(failure.text.clone()));
        }
        let left = || self.blocked.iter().map(|of| (of.pod.clone(), of.hindrance()));
        if !self.rests() {
            let is_reported = |of: &BlockedPod| {
                let same = |known: &BlockedPod| known.pod.uid == of.pod.uid && known.why == of.why;
                before.blocked.iter().any(same)
            };
            let new = self.blocked.iter().filter(|of| !is_reported(of));
            events.extend(new.map(|of| EvictEvent::Blocked(of.pod.clone(), of.hindrance())));
        }
        if before.cordoned == Cordoned::ByLongshore && self.cordoned == Cordoned::No {
            events.push(match self.state {
                DrainState::Overruled => EvictEvent::Forgotten,
                _ => EvictEvent::Uncordoned,
            });
        }
        match self.state {
            DrainState::Overruled if is_new_state => events.push(EvictEvent::Overruled),
            DrainState::Expired if is_new_state => {
                events.push(EvictEvent::Expired(left().collect()))
            }
            _ => {}
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodRef {
        PodRef { namespace: "ml".into(), name: name.into(), uid: format!("uid-of-{name}") }
    }

    fn budget() -> Hindrance {
        Hindrance::Budget("429: no".into())
    }

    /// Events of a drain, told one by one and all at once.
    #[test]
    fn an_agent_tells_the_events_of_the_controller() {
        let why = "driver 1 to 2".to_owned();
        let events = [
            EvictEvent::Cordoned(why.clone()),
            EvictEvent::Evicted(pod("a")),
            EvictEvent::Blocked(pod("b"), budget()),
            EvictEvent::Refused("403".into()),
            EvictEvent::Uncordoned,
            EvictEvent::Expired(vec![(pod("b"), budget())]),
        ];
        let mut status = DrainStatus::new("0", DrainState::Draining);
        let mut reported = Vec::new();
        for event in &events {
            let before = status.clone();
            status.take(event);
            let read = DrainStatus::of_annotation(&status.to_annotation()).unwrap();
            assert_eq!(read, status);
            reported.extend(read.events_since(Some(&before), &why));
        }
        assert_eq!(reported, events);
        assert!(status.events_since(Some(&status.clone()), &why).is_empty());
        let at_once = status.events_since(None, &why);
        let left = EvictEvent::Expired(vec![(pod("b"), budget())]);
        let refused = EvictEvent::Refused("403".into());
        assert_eq!(at_once, [EvictEvent::Evicted(pod("a")), refused, left]);
    }

    #[test]
    fn a_pod_that_a_budget_blocked_is_evicted_later_and_told_once() {
        let mut status = DrainStatus::new("0", DrainState::Draining);
        status.take(&EvictEvent::Blocked(pod("a"), budget()));
        assert_eq!(status.cordoned, Cordoned::ByLongshore, "as an earlier controller left it");
        let before = status.clone();
        status.take(&EvictEvent::Blocked(pod("a"), Hindrance::Budget("429: another text".into())));
        assert!(status.events_since(Some(&before), "").is_empty(), "of the same kind");
        status.take(&EvictEvent::Evicted(pod("a")));
        assert_eq!(status.events_since(Some(&before), ""), [EvictEvent::Evicted(pod("a"))]);
        assert!(status.blocked.is_empty());
    }

    #[test]
    fn a_node_that_another_program_uncordoned_is_told_as_overruled() {
        let mut status = DrainStatus::new("0", DrainState::Draining);
        status.take(&EvictEvent::Cordoned(String::new()));
        let before = status.clone();
        status.take(&EvictEvent::Forgotten);
        status.take(&EvictEvent::Overruled);
        let reported = status.events_since(Some(&before), "");
        assert_eq!(reported, [EvictEvent::Forgotten, EvictEvent::Overruled]);
        assert!(status.rests() && !status.is_active());
    }

    #[test]
    fn lists_are_bounded_and_never_the_json() {
        let mut status = DrainStatus::new("0", DrainState::Draining);
        let long = "\u{1b}\u{10ffff}\"\\".repeat(1000);
        for n in 0..300 {
            let name = format!("{}{n}", "a".repeat(240));
            let of = |uid: String| PodRef { uid, ..pod(&name) };
            status.take(&EvictEvent::Evicted(of(format!("e{n}"))));
            let failed = Hindrance::Failed(long.clone());
            status.take(&EvictEvent::Blocked(of(format!("b{n}")), failed));
        }
        status.take(&EvictEvent::Refused(long));
        let text = status.to_annotation();
        assert!(text.len() <= LARGEST && !text.contains('\u{1b}'), "{}", text.len());
        let read = DrainStatus::of_annotation(&text).unwrap();
        assert!(read.evicted.last().is_some_and(|pod| pod.name.ends_with("299")));
    }

    #[test]
    fn foreign_text_is_none_and_pods_without_names_are_left_out() {
        let large =
            format!(r#"{{"format":1,"request":"{}","state":"draining"}}"#, "a".repeat(LARGEST));
        for text in ["", "{}", "[]", r#"{"format":2,"request":"0","state":"draining"}"#, &large] {
            assert_eq!(DrainStatus::of_annotation(text), None);
        }
        let text = r#"{"format":1,"request":"0","state":"draining","evicted":[
            {"namespace":"../x","name":"a","uid":"u"}], "blocked":[
            {"namespace":"ml","name":"a","uid":"u","why":"of later","text":"\u001b[2J"}], "new": 1}"#;
        let read = DrainStatus::of_annotation(text).unwrap();
        assert!(read.evicted.is_empty());
        let reported = read.events_since(None, "");
        let [EvictEvent::Blocked(_, Hindrance::Failed(why))] = &reported[..] else {
            panic!("{reported:?}")
        };
        assert_eq!(why, "\\u{1b}[2J");
    }
}
