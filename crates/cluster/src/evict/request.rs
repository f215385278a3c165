//! Request of a node's agent for evictions: the content of the annotation `longshore.dev/evict-request`.
//!
//! Root on a node can write it as the agent does. So nothing of it is taken unchecked, and nothing in it names a
//! node: it is about the node that it stands on, and about pods that the API server says run there.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};

use super::decision::Change;
use crate::text::{in_line, is_name};

/// Format of the annotation.
pub const REQUEST_FORMAT: u32 = 1;
/// Length of the longest annotation, in bytes.
const LARGEST: usize = 24 << 10;
/// Number of pods in one request: kubelets have up to some 250.
const MOST_PODS: usize = 256;
/// Length at which the reason is cut, in characters.
const LONGEST_REASON: usize = 200;
/// Longest time limit, as of the setting.
const LONGEST_DEADLINE: Duration = Duration::from_secs(3600);

/// Request for evictions of the pods that use the driver of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictRequest {
    /// Format: [`REQUEST_FORMAT`].
    pub format: u32,
    /// Identifies the change: another one begins anew, with the whole time limit. 16 hexadecimal digits.
    pub id: String,
    /// The change, for example `driver 535.261.03 to 550.163.01`.
    pub reason: String,
    /// Time of the request by the node's clock, RFC 3339: for people.
    pub since: String,
    /// Time limit of the evictions in seconds, from the cordon on.
    pub deadline: u64,
    /// The agent's pod, `NAMESPACE/NAME`, which is never evicted.
    pub pod: String,
    /// Uids of the pods that use the driver, as their cgroups have them.
    pub pods: BTreeSet<String>,
}

/// Reason that a request is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// Larger than any agent writes it.
    #[error("it has {0} bytes, more than an agent writes")]
    TooLarge(usize),
    /// Another format.
    #[error("it has format {0}, and this longshore reads format {REQUEST_FORMAT}")]
    Format(u64),
    /// Not a request.
    #[error("it is not a request: {0}")]
    Malformed(String),
    /// A field that no agent writes so.
    #[error("its `{0}` is none that an agent writes")]
    Field(&'static str),
}

/// The part of a request that every format has.
#[derive(Deserialize)]
struct Format {
    format: Option<u64>,
}

/// True for the uid of a pod, or the hash of a static pod's manifest.
fn is_uid(uid: &str) -> bool {
    (1..=64).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Returns a reason in one line, of bounded length with its escapes.
pub(super) fn reason_of(text: &str) -> String {
    let line = in_line(text, LONGEST_REASON);
    match line.chars().count() <= LONGEST_REASON {
        true => line,
        false => line.chars().take(LONGEST_REASON - 3).chain("...".chars()).collect(),
    }
}

impl EvictRequest {
    /// Makes the request for a new change. Of too many pods the last ones are left out: they are requested once the
    /// others have ended.
    pub(super) fn new(
        pod: String,
        reason: &str,
        deadline: Duration,
        pods: &BTreeSet<String>,
    ) -> Self {
        let now = Timestamp::now();
        Self {
            format: REQUEST_FORMAT,
            id: format!("{:016x}", fastrand::u64(..)),
            reason: reason_of(reason),
            since: now.round(Unit::Second).unwrap_or(now).to_string(),
            deadline: deadline.min(LONGEST_DEADLINE).as_secs(),
            pod,
            pods: pods_of(pods),
        }
    }

    /// Returns the request of the same change for other pods.
    pub(super) fn with(&self, pods: &BTreeSet<String>) -> Self {
        Self { pods: pods_of(pods), ..self.clone() }
    }

    /// Returns the JSON of the annotation.
    pub(super) fn to_annotation(&self) -> String {
        // A struct of texts and numbers is always written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses an annotation, which anybody may have written who may write to the node.
    ///
    /// # Errors
    /// [`BadRequest`] with the reason.
    pub fn of_annotation(text: &str) -> Result<Self, BadRequest> {
        if text.len() > LARGEST {
            return Err(BadRequest::TooLarge(text.len()));
        }
        let malformed =
            |error: serde_json::Error| BadRequest::Malformed(in_line(&error.to_string(), 200));
        match serde_json::from_str::<Format>(text).map_err(malformed)?.format {
            Some(format) if format == u64::from(REQUEST_FORMAT) => {}
            Some(other) => return Err(BadRequest::Format(other)),
            None => return Err(BadRequest::Malformed("it has no format".to_owned())),
        }
        let request: Self = serde_json::from_str(text).map_err(malformed)?;
        match request.wrong_field() {
            None => Ok(request),
            Some(field) => Err(BadRequest::Field(field)),
        }
    }

    fn wrong_field(&self) -> Option<&'static str> {
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let is_one_line = |text: &str| {
            let length = text.chars().count();
            (1..=LONGEST_REASON).contains(&length) && !text.contains(char::is_control)
        };
        let is_pod = |text: &str| {
            let parts = text.split_once('/');
            parts.is_some_and(|(namespace, name)| is_name(namespace) && is_name(name))
        };
        [
            ("id", self.id.len() == 16 && self.id.bytes().all(is_hex)),
            ("reason", is_one_line(&self.reason)),
            ("since", self.since.len() <= 64 && self.since.parse::<Timestamp>().is_ok()),
            ("deadline", self.deadline <= LONGEST_DEADLINE.as_secs()),
            ("pod", is_pod(&self.pod)),
            ("pods", self.pods.len() <= MOST_PODS && self.pods.iter().all(|uid| is_uid(uid))),
        ]
        .into_iter()
        .find_map(|(field, fits)| (!fits).then_some(field))
    }

    /// Returns the change that a drain is for.
    pub(crate) fn change(&self) -> Change {
        Change {
            id: self.id.clone(),
            reason: self.reason.clone(),
            agent: self.pod.clone(),
            pods: self.pods.clone(),
            deadline: Duration::from_secs(self.deadline),
        }
    }
}

fn pods_of(pods: &BTreeSet<String>) -> BTreeSet<String> {
    pods.iter().filter(|uid| is_uid(uid)).take(MOST_PODS).cloned().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "8f3b2c1d-1111-2222-3333-444455556666";

    fn request() -> EvictRequest {
        let pods = BTreeSet::from([UID.to_owned()]);
        let deadline = Duration::from_secs(600);
        EvictRequest::new("gpu/driver-x7k2p".to_owned(), "driver 1 to 2", deadline, &pods)
    }

    #[test]
    fn it_reads_what_it_writes() {
        let request = request();
        let text = request.to_annotation();
        assert_eq!(EvictRequest::of_annotation(&text), Ok(request.clone()), "{text}");
        assert_eq!(request.change().deadline, Duration::from_secs(600));
        let others = request.with(&BTreeSet::new());
        assert_eq!((others.id, others.pods.len()), (request.id, 0));
    }

    #[test]
    fn what_an_agent_writes_is_always_read() {
        let long = "a\u{1b}\u{10ffff}".repeat(300);
        let pods: BTreeSet<String> = (0..600).map(|n| format!("{n:064}")).collect();
        let pods: BTreeSet<String> = pods.into_iter().chain(["../x".to_owned()]).collect();
        let day = Duration::from_secs(86400);
        let request = EvictRequest::new("gpu/driver".to_owned(), &long, day, &pods);
        let text = request.to_annotation();
        let read = EvictRequest::of_annotation(&text);
        assert_eq!(read.as_ref().map(|read| read.pods.len()), Ok(MOST_PODS), "{}", text.len());
        assert_eq!(read.map(|read| (read.reason.chars().count(), read.deadline)), Ok((200, 3600)));
    }

    #[rstest]
    #[case::no_json("{")]
    #[case::a_list("[]")]
    #[case::no_format("{}")]
    #[case::large_format(r#"{"format":99999999999999999999}"#)]
    fn text_that_is_none_is_refused(#[case] text: &str) {
        let refused = EvictRequest::of_annotation(text);
        assert!(matches!(refused, Err(BadRequest::Malformed(_))), "{refused:?}");
    }

    #[rstest]
    #[case::later_format("format", json!(2), BadRequest::Format(2))]
    #[case::no_hex("id", json!("................"), BadRequest::Field("id"))]
    #[case::long_id("id", json!("0".repeat(17)), BadRequest::Field("id"))]
    #[case::empty_reason("reason", json!(""), BadRequest::Field("reason"))]
    #[case::long_reason("reason", json!("a".repeat(201)), BadRequest::Field("reason"))]
    #[case::two_lines("reason", json!("a\nb"), BadRequest::Field("reason"))]
    #[case::terminal("reason", json!("\u{1b}[2J"), BadRequest::Field("reason"))]
    #[case::no_time("since", json!("yesterday"), BadRequest::Field("since"))]
    #[case::long_deadline("deadline", json!(3601), BadRequest::Field("deadline"))]
    #[case::no_namespace("pod", json!("driver"), BadRequest::Field("pod"))]
    #[case::path("pod", json!("gpu/../x"), BadRequest::Field("pod"))]
    #[case::path_as_uid("pods", json!(["../../x"]), BadRequest::Field("pods"))]
    #[case::empty_uid("pods", json!([""]), BadRequest::Field("pods"))]
    fn a_field_that_no_agent_writes_is_refused(
        #[case] field: &str,
        #[case] value: Value,
        #[case] wanted: BadRequest,
    ) {
        let mut json = serde_json::to_value(request()).unwrap();
        json[field] = value;
        assert_eq!(EvictRequest::of_annotation(&json.to_string()), Err(wanted));
    }

    #[test]
    fn too_many_pods_and_too_large_a_text_are_refused() {
        let mut json = serde_json::to_value(request()).unwrap();
        let uids: Vec<String> = (0..=MOST_PODS).map(|n| format!("u{n}")).collect();
        json["pods"] = json!(uids);
        let refused = EvictRequest::of_annotation(&json.to_string());
        assert_eq!(refused, Err(BadRequest::Field("pods")));
        let text = format!("{}{}", request().to_annotation(), " ".repeat(LARGEST));
        let refused = EvictRequest::of_annotation(&text);
        assert_eq!(refused, Err(BadRequest::TooLarge(text.len())));
    }
}
