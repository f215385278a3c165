//! Writing of the features file that Node Feature Discovery makes labels of.
//!
//! Its source `local` reads each file of the directory, at most 64 KiB, and takes a file with a past
//! `expiry-time` for empty (source/local/local.go): the labels go with an agent that died.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::bounds::given;
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, Refresh, Refreshed, StepKind, Tools, UndoResult, Watch,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::Code;
use longshore_host::facts::gpus::Taken;
use longshore_host::verbs::published::{Published, PublishedFile};
use longshore_host::{Host, VerbError};

/// Directory on the host.
const DIRECTORY: &str = "/etc/kubernetes/node-feature-discovery/features.d";
const FILE: &str = "longshore";
/// First line, by which longshore knows its file.
const HEAD: &str = "# Written by longshore while its driver is ready.";

/// State of a driver whose features are written first: its installation follows.
const READY: &str = "ready";

/// Time after which the labels are removed unless the file is written again.
const EXPIRY: Duration = Duration::from_secs(15 * 60);
/// Time after which a Ready agent writes it again.
const REFRESH: Duration = Duration::from_secs(5 * 60);

/// Write the driver's features; undone by removing the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("write the features of driver {version} to {}", self.place().shown())]
pub struct WriteFeatures {
    /// Root of the host's file system, as this process reaches it.
    pub host_root: PathBuf,
    /// Driver version.
    pub version: String,
    /// `open` or `proprietary`.
    pub flavour: String,
}

/// Directory before the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeaturesBefore {
    /// True if the directory was missing.
    pub makes_dir: bool,
}

impl WriteFeatures {
    fn place(&self) -> PublishedFile<'_> {
        PublishedFile { root: &self.host_root, dir: Path::new(DIRECTORY), name: FILE }
    }

    /// Returns the lines that do not depend on time and devices.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("longshore.dev/driver-version={}", self.version),
            format!("longshore.dev/flavour={}", self.flavour),
            format!("nvidia.com/cuda.driver-version.full={}", self.version),
        ];
        let parts = ["major", "minor", "revision"].into_iter().zip(self.version.split('.'));
        lines.extend(parts.map(|(part, n)| format!("nvidia.com/cuda.driver-version.{part}={n}")));
        lines
    }

    fn content(&self, host: &dyn Host, now: Timestamp, state: &str) -> String {
        // A span of minutes is always added.
        let expiry = now.checked_add(EXPIRY).unwrap_or(now);
        let mut text = format!("{HEAD}\n# +expiry-time={expiry:.0}\n");
        // GPUs that cannot be counted are no reason to leave the rest out.
        if let Ok(gpus) = host.gpus() {
            let count = gpus.iter().filter(|gpu| gpu.taken == Taken::Driver).count();
            text.push_str(&format!("nvidia.com/gpu.count={count}\n"));
        }
        text.push_str(&format!("longshore.dev/state={state}\n"));
        for line in self.lines() {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

impl Refreshed for WriteFeatures {
    /// Writes the file again with this state of the agent and a later expiry time, unless another program wrote it
    /// since; also while a change waits for users of the driver, which serves meanwhile.
    fn refresh(&self, host: &dyn Host, state: &str) -> Result<(), VerbError> {
        let place = self.place();
        match host.published(&place)? {
            Published::File(found) if !is_own(&found) => Ok(()),
            Published::Other(_) => Ok(()),
            Published::NoDirectory | Published::Nothing | Published::File(_) => {
                host.publish(&place, self.content(host, Timestamp::now(), state).as_bytes())
            }
        }
    }
}

fn is_own(found: &[u8]) -> bool {
    found.starts_with(HEAD.as_bytes())
}

fn unwritten(error: VerbError) -> Failure {
    Failure::new(FailureKind::Expose, "writing the features file").with_source(error).remedy(
        "install Node Feature Discovery, which makes the directory, and let the container write to it; \
         or set features-file of the cluster to false",
    )
}

impl StepKind for WriteFeatures {
    type Before = FeaturesBefore;
    const WAS: &'static str = "features";

    fn subject(&self) -> String {
        self.place().shown()
    }

    fn planned(&self) -> String {
        format!("{self} (for Node Feature Discovery)")
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: Some(Code::FeaturesUnwritten),
            recheck: Recheck::WhileLoaded,
            carries_daemons: false,
            next: Next::Wanted,
            content: None,
            watch: Watch::Nothing,
            // The features are of a Ready driver.
            announces: Announces::Driver,
            refresh: Some(Refresh { every: REFRESH, name: "features file", step: self }),
        }
    }

    /// Never finds the step unneeded: a file of this name is an agent's whose record was lost.
    fn observe(&self, host: &dyn Host) -> Result<Option<FeaturesBefore>, Failure> {
        let found = host.published(&self.place()).map_err(unwritten)?;
        Ok(Some(FeaturesBefore { makes_dir: found == Published::NoDirectory }))
    }

    fn apply(&self, before: &FeaturesBefore, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let (host, place) = (tools.host, self.place());
        let made = if before.makes_dir { host.make_place(&place) } else { Ok(()) };
        let content = self.content(host, Timestamp::now(), READY);
        match made.and_then(|()| host.publish(&place, content.as_bytes())) {
            Ok(()) => Ok(intent.done()),
            Err(error) => {
                // A directory that was just made is no one else's; the failure counts.
                let removed = before.makes_dir.then(|| host.remove_place(&place));
                if removed.is_none_or(|removed| removed.is_ok()) {
                    intent.not_done();
                }
                Err(unwritten(error))
            }
        }
    }

    fn is_there(
        &self,
        _: &FeaturesBefore,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        let Published::File(found) = host.published(&self.place()).map_err(unwritten)? else {
            return Ok(false);
        };
        let text = String::from_utf8_lossy(&found);
        Ok(is_own(&found) && self.lines().iter().all(|line| text.lines().any(|l| l == line)))
    }

    fn undo(
        &self,
        before: &FeaturesBefore,
        progress: &Progress<'_>,
        tools: &Tools<'_>,
    ) -> UndoResult {
        let (host, place) = (tools.host, self.place());
        let is_theirs = match host.published(&place)? {
            Published::NoDirectory => return Ok(EntryState::Undone),
            Published::File(found) => !is_own(&found),
            Published::Other(_) => true,
            Published::Nothing => false,
        };
        host.withdraw(&place, is_theirs)?;
        if is_theirs {
            return Ok(match *progress.state {
                EntryState::Intended => EntryState::Undone,
                _ => EntryState::Kept("another program changed it after us".to_owned()),
            });
        }
        if !before.makes_dir {
            return Ok(EntryState::Undone);
        }
        super::directory::kept_if_used(Path::new(DIRECTORY), host.remove_place(&place))
    }

    fn seen(&self, _: &FeaturesBefore) -> Deviation {
        Deviation::gone(format!("{} is missing, or not the present driver's", self.place().shown()))
    }

    /// Accepts the host's root, and values that are those of one label.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        given(bounds.devs.contains(&self.host_root.join("dev")), &self.host_root)?;
        let is_version = (1..=32).contains(&self.version.len())
            && self.version.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let is_flavour = matches!(self.flavour.as_str(), "open" | "proprietary");
        given(is_version && is_flavour, &self.host_root)
    }
}
