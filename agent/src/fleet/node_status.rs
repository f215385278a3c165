//! Annotation `longshore.dev/status` of a node, as the agent on it wrote it.

use serde::{Deserialize, Serialize};

use super::{NAME, SENTENCE, bounded};

/// Name of the annotation.
pub(super) const ANNOTATION: &str = "longshore.dev/status";

/// Format that is read.
const FORMAT: u32 = 1;
/// Size limit in bytes: an agent writes 8 KiB at most.
const LARGEST: usize = 64 << 10;
/// Number of holders that are kept.
const MOST_HOLDERS: usize = 64;

/// State of a node's driver. Fields that an agent does not write are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct NodeStatus {
    /// Format of the annotation.
    pub format: u32,
    /// Version of the agent.
    pub agent: String,
    /// The agent's pod, `NAMESPACE/NAME`; None where the agent does not know it.
    pub pod: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// Phase of the agent, for example `ready` or `in-use`.
    pub phase: String,
    /// Time of the phase's beginning by the node's clock, RFC 3339.
    pub since: Option<String>,
    /// Driver version that is wanted.
    pub wanted: Option<String>,
    /// Driver version that is loaded.
    pub live: Option<String>,
    /// Flavour of the loaded driver.
    pub flavour: Option<String>,
    /// Programs that use the driver.
    pub holders: Vec<Holder>,
    /// Number of holders that are left out.
    pub more_holders: usize,
    /// Last failure of the agent.
    pub last_failure: Option<NodeFailure>,
    /// True if the modules were found prebuilt.
    pub prebuilt: Option<bool>,
    /// Newest installed kernel that is not running.
    pub next_kernel: Option<NextKernel>,
    /// True while the agent has the node cordoned.
    pub cordoned: bool,
}

/// Program that uses the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Holder {
    /// Name of the program.
    pub program: String,
    /// Its pod, `NAMESPACE/NAME`; None for a program of the host.
    pub pod: Option<String>,
    /// Time since which it is known, RFC 3339.
    pub since: Option<String>,
}

/// Failure of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct NodeFailure {
    /// Code of the failure, for example `in-use`.
    pub code: String,
    /// Cause.
    pub cause: String,
    /// Remedy.
    pub remedy: String,
}

/// Kernel that the node will boot next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct NextKernel {
    /// Kernel release.
    pub release: String,
    /// True if modules for it are there.
    pub ready: bool,
}

/// Reason for which an annotation is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Larger than any agent writes it.
    #[error("the annotation has {0} bytes, more than an agent writes")]
    TooLarge(usize),
    /// Another format.
    #[error(
        "the annotation has format {0}, and this longshore reads format 1: use the agent's version"
    )]
    Format(u64),
    /// Not a status.
    #[error("the annotation is not a status: {0}")]
    Malformed(String),
}

impl NodeStatus {
    /// Reads the annotation's text, with every text in it bounded and escaped.
    ///
    /// # Errors
    /// [`Unreadable`] with the reason.
    pub fn read(text: &str) -> Result<Self, Unreadable> {
        if text.len() > LARGEST {
            return Err(Unreadable::TooLarge(text.len()));
        }
        let malformed =
            |error: serde_json::Error| Unreadable::Malformed(bounded(&error.to_string(), 200));
        let Format { format } = serde_json::from_str(text).map_err(malformed)?;
        match format {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(other) => return Err(Unreadable::Format(other)),
            None => return Err(Unreadable::Malformed("it has no format".to_owned())),
        }
        let status: Self = serde_json::from_str(text).map_err(malformed)?;
        Ok(status.bounded())
    }

    fn bounded(self) -> Self {
        let name = |text: String| bounded(&text, NAME);
        let sentence = |text: String| bounded(&text, SENTENCE);
        let holder = |holder: Holder| Holder {
            program: name(holder.program),
            // A namespace and a name.
            pod: holder.pod.map(|pod| bounded(&pod, 2 * NAME)),
            since: holder.since.map(name),
        };
        let left_out = self.holders.len().saturating_sub(MOST_HOLDERS);
        Self {
            format: self.format,
            agent: name(self.agent),
            pod: self.pod.map(|pod| bounded(&pod, 2 * NAME)),
            kernel: name(self.kernel),
            phase: name(self.phase),
            since: self.since.map(name),
            wanted: self.wanted.map(name),
            live: self.live.map(name),
            flavour: self.flavour.map(name),
            more_holders: self.more_holders.saturating_add(left_out),
            holders: self.holders.into_iter().take(MOST_HOLDERS).map(holder).collect(),
            last_failure: self.last_failure.map(|failure| NodeFailure {
                code: name(failure.code),
                cause: sentence(failure.cause),
                remedy: sentence(failure.remedy),
            }),
            prebuilt: self.prebuilt,
            next_kernel: self
                .next_kernel
                .map(|next| NextKernel { release: name(next.release), ready: next.ready }),
            cordoned: self.cordoned,
        }
    }
}

#[derive(Deserialize)]
struct Format {
    format: Option<u64>,
}
