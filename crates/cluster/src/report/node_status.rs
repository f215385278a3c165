//! Content of the annotation `longshore.dev/status`.

use k8s_openapi::jiff::{Timestamp, Unit};
use serde::{Deserialize, Deserializer, Serialize};

use super::Holder;
use crate::text::in_line;

/// Format of the annotation.
pub const STATUS_FORMAT: u32 = 1;
/// Length of the longest annotation that is written, in bytes.
pub const LARGEST_STATUS: usize = 8 << 10;
/// Length of the longest annotation that is read, in bytes: a later agent may write more.
const LARGEST_READ: usize = 64 << 10;

/// Number of holders that are named.
const MOST_HOLDERS: usize = 40;
/// Characters of a name, and of a text.
const LONGEST_NAME: usize = 120;
const LONGEST_TEXT: usize = 600;

/// Status of a node's driver. Keys that an agent does not write are empty. Earlier agents wrote a hyphen in
/// place of an underscore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Format: [`STATUS_FORMAT`].
    pub format: u32,
    /// Version of the agent.
    pub agent: String,
    /// The agent's pod, `NAMESPACE/NAME`; None where it does not know its name.
    pub pod: Option<String>,
    /// Release of the running kernel.
    pub kernel: String,
    /// The agent's phase, as the journal spells it.
    pub phase: String,
    /// Start time of the phase.
    #[serde(deserialize_with = "time_or_none")]
    pub since: Option<Timestamp>,
    /// Driver version of the last plan; None before the first.
    pub wanted: Option<String>,
    /// Version of the loaded driver, whichever program loaded it.
    pub live: Option<String>,
    /// Its flavour.
    pub flavour: Option<String>,
    /// Programs that prevent a change or removal of the driver.
    pub holders: Vec<HolderStatus>,
    /// Number of holders that are left out.
    #[serde(alias = "more-holders", skip_serializing_if = "is_zero")]
    pub more_holders: usize,
    /// The last failure.
    #[serde(alias = "last-failure")]
    pub last_failure: Option<LastFailure>,
    /// True if the modules of the wanted driver are at hand without compiling them; None where that is not
    /// known.
    pub prebuilt: Option<bool>,
    /// Newest installed kernel, where it is newer than the running one; None where there is none, or that is
    /// not known.
    #[serde(alias = "next-kernel")]
    pub next_kernel: Option<NextKernel>,
    /// True while longshore has the node cordoned.
    pub cordoned: bool,
}

/// A program that holds the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderStatus {
    /// Its command name.
    pub program: String,
    /// Its pod, `NAMESPACE/NAME`; None where it has none, or its name is not known.
    pub pod: Option<String>,
    /// Time of the first inspection that found it.
    #[serde(deserialize_with = "time_or_none")]
    pub since: Option<Timestamp>,
}

impl HolderStatus {
    pub(super) fn from_holder(holder: &Holder) -> Self {
        Self {
            program: holder.program.clone(),
            pod: holder.pod.as_ref().map(ToString::to_string),
            since: holder.since,
        }
    }
}

/// Failure of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastFailure {
    /// Name of its exit code, for example `in-use`.
    pub code: String,
    /// Cause, in one line.
    pub cause: String,
    /// Remedy.
    pub remedy: String,
}

/// Kernel that the node may boot next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextKernel {
    /// Release.
    pub release: String,
    /// True if modules for it are available.
    pub ready: bool,
}

/// Reason that an annotation is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Larger than any agent writes it.
    #[error("the annotation has {0} bytes, more than an agent writes")]
    TooLarge(usize),
    /// Another format.
    #[error(
        "the annotation has format {0}, and this longshore reads format {STATUS_FORMAT}: use the agent's \
         version"
    )]
    Format(u64),
    /// Not a status.
    #[error("the annotation is not a status: {0}")]
    Malformed(String),
}

/// The part of an annotation that every format has.
#[derive(Deserialize)]
struct Format {
    format: Option<u64>,
}

/// Reads a time; None for text that is none, which is no reason to leave the rest of a status out.
fn time_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

fn in_seconds(time: Timestamp) -> Timestamp {
    time.round(Unit::Second).unwrap_or(time)
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl NodeStatus {
    /// Returns the JSON of the annotation, of [`LARGEST_STATUS`] bytes at most: texts are cut, then
    /// holders left out, then the last failure.
    pub fn to_annotation(&self) -> String {
        let mut status = self.cut();
        loop {
            // A struct of texts and numbers is always written.
            let text = serde_json::to_string(&status).unwrap_or_default();
            if text.len() <= LARGEST_STATUS {
                return text;
            }
            if status.holders.pop().is_some() {
                status.more_holders += 1;
            } else if status.last_failure.take().is_none() {
                return serde_json::to_string(&status.bare()).unwrap_or_default();
            }
        }
    }

    /// Parses an annotation, which anybody may have written who may write to the node: every text in it is
    /// bounded and escaped.
    ///
    /// # Errors
    /// [`Unreadable`] with the reason.
    pub fn of_annotation(text: &str) -> Result<Self, Unreadable> {
        if text.len() > LARGEST_READ {
            return Err(Unreadable::TooLarge(text.len()));
        }
        let malformed =
            |error: serde_json::Error| Unreadable::Malformed(in_line(&error.to_string(), 200));
        let Format { format } = serde_json::from_str(text).map_err(malformed)?;
        match format {
            Some(format) if format == u64::from(STATUS_FORMAT) => {}
            Some(other) => return Err(Unreadable::Format(other)),
            None => return Err(Unreadable::Malformed("it has no format".to_owned())),
        }
        let status: Self = serde_json::from_str(text).map_err(malformed)?;
        Ok(status.cut())
    }

    /// Returns the status with texts of bounded length, without control characters.
    fn cut(&self) -> Self {
        let name = |text: &String| in_line(text, LONGEST_NAME);
        let text = |text: &String| in_line(text, LONGEST_TEXT);
        let left_out = self.holders.len().saturating_sub(MOST_HOLDERS);
        let holder = |holder: &HolderStatus| HolderStatus {
            program: name(&holder.program),
            pod: holder.pod.as_ref().map(text),
            since: holder.since.map(in_seconds),
        };
        Self {
            format: self.format,
            agent: name(&self.agent),
            pod: self.pod.as_ref().map(text),
            kernel: name(&self.kernel),
            phase: name(&self.phase),
            since: self.since.map(in_seconds),
            wanted: self.wanted.as_ref().map(name),
            live: self.live.as_ref().map(name),
            flavour: self.flavour.as_ref().map(name),
            holders: self.holders.iter().take(MOST_HOLDERS).map(holder).collect(),
            more_holders: self.more_holders.saturating_add(left_out),
            last_failure: self.last_failure.as_ref().map(|failure| LastFailure {
                code: name(&failure.code),
                cause: text(&failure.cause),
                remedy: text(&failure.remedy),
            }),
            prebuilt: self.prebuilt,
            next_kernel: self
                .next_kernel
                .as_ref()
                .map(|next| NextKernel { release: name(&next.release), ready: next.ready }),
            cordoned: self.cordoned,
        }
    }

    /// Returns the status without its longer parts, which are never needed to fit.
    fn bare(&self) -> Self {
        Self { pod: None, next_kernel: None, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> NodeStatus {
        NodeStatus {
            format: STATUS_FORMAT,
            agent: "0.1.0".into(),
            pod: Some("gpu/driver-x7k2p".into()),
            kernel: "6.12.1".into(),
            phase: "ready".into(),
            since: "2026-11-23T03:00:00Z".parse().ok(),
            live: Some("535.261.03".into()),
            ..NodeStatus::default()
        }
    }

    #[test]
    fn the_annotation_is_compact_and_reads_as_it_was_written() {
        let text = status().to_annotation();
        assert_eq!(
            text,
            r#"{"format":1,"agent":"0.1.0","pod":"gpu/driver-x7k2p","kernel":"6.12.1","phase":"ready","since":"2026-11-23T03:00:00Z","wanted":null,"live":"535.261.03","flavour":null,"holders":[],"last_failure":null,"prebuilt":null,"next_kernel":null,"cordoned":false}"#
        );
        assert_eq!(NodeStatus::of_annotation(&text), Ok(status()));
    }

    #[test]
    fn keys_of_an_earlier_agent_are_read() {
        let text = r#"{"format":1,"more-holders":3,"last-failure":{"code":"in-use"},
            "next-kernel":{"release":"6.2","ready":true}}"#;
        let read = NodeStatus::of_annotation(text).unwrap();
        assert_eq!(read.more_holders, 3);
        assert_eq!(read.last_failure.map(|failure| failure.code).as_deref(), Some("in-use"));
        assert!(read.next_kernel.is_some_and(|next| next.ready));
    }

    #[test]
    fn lists_and_texts_are_cut_and_never_the_json() {
        let long = "\u{1b}\u{10ffff}\"\\".repeat(100_000);
        let holder = HolderStatus { program: long.clone(), pod: Some(long.clone()), since: None };
        let failure = LastFailure { code: long.clone(), cause: long.clone(), remedy: long.clone() };
        let large = NodeStatus {
            holders: vec![holder; 1000],
            last_failure: Some(failure),
            wanted: Some(long.clone()),
            kernel: long,
            ..status()
        };
        let text = large.to_annotation();
        assert!(text.len() <= LARGEST_STATUS, "{}", text.len());
        let read = NodeStatus::of_annotation(&text).unwrap();
        assert_eq!(read.more_holders + read.holders.len(), 1000);
        assert!(read.last_failure.is_some() && !text.contains('\u{1b}'));
    }

    #[test]
    fn another_format_and_foreign_text_are_refused() {
        for text in ["", "{}", "[]", r#"{"format":2,"agent":"1","kernel":"","phase":""}"#] {
            assert!(NodeStatus::of_annotation(text).is_err(), "{text}");
        }
        let large = " ".repeat(LARGEST_READ + 1);
        let read = NodeStatus::of_annotation(&large);
        assert_eq!(read, Err(Unreadable::TooLarge(LARGEST_READ + 1)));
    }

    #[test]
    fn keys_of_a_later_agent_are_passed_over_and_missing_ones_and_times_that_are_none_are_empty() {
        let text = r#"{"format":1,"agent":"9","since":"today","new":{"a":1},"holders":[{}]}"#;
        let read = NodeStatus::of_annotation(text).unwrap();
        assert_eq!((read.agent.as_str(), read.since, read.holders.len()), ("9", None, 1));
    }
}
