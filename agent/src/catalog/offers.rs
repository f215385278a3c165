//! Offers of one source for a kernel, with its own failure.

use super::{AvailableSet, RefusedSet};
use longshore_core::failure::Failure;
use longshore_core::source_id::SourceId;
use longshore_debian::apt_sources::LeftOut;
use longshore_host::facts::Probe;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::finished::FinishedModules;
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::source_tree::SourceTree;
use longshore_sources::userspace::AvailableUserspace;
use longshore_sources::userspace::switches::SwitchPrograms;

/// Offers of one source. A field is None for a kind of source that never has it.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    /// Built module sets, best first.
    pub sets: Vec<AvailableSet>,
    /// Sets without the signatures, listings and attestations that the configuration requires.
    pub refused: Vec<RefusedSet>,
    /// Sets that the configuration takes back.
    pub denied: Vec<AvailableSet>,
    /// Assembled user-mode trees.
    pub userspace: Vec<AvailableUserspace>,
    /// Packages with finished modules for the kernel, best first.
    pub finished: Vec<FinishedModules>,
    /// Kernel sources of drivers, newest first.
    pub drivers: Option<Probe<Vec<AvailableDriver>>>,
    /// Programs for NVLink switches.
    pub switch_programs: Option<Probe<SwitchPrograms>>,
    /// .run files.
    pub run_files: Option<Probe<Vec<AvailableRunFile>>>,
    /// Trees of NVIDIA's open kernel modules.
    pub source_trees: Vec<SourceTree>,
    /// Headers and compiler for the kernel.
    pub headers: Option<Probe<AvailableHeaders>>,
    /// Reason why it has no program that signs for the kernel.
    pub no_sign_file: Option<String>,
    /// State of the host's apt.
    pub apt: Option<AptState>,
    /// Failures of the source, or of some of its places.
    pub failures: Vec<SourceFailure>,
}

impl Offers {
    /// Returns what archives offer that could not be read, by this failure.
    pub fn without_archives(failure: Failure) -> Self {
        let why = failure.one_line();
        Self {
            drivers: Some(Probe::Unreadable(why.clone())),
            headers: Some(Probe::Unreadable(why.clone())),
            no_sign_file: Some(why),
            failures: vec![SourceFailure::new(SourceId::Archives, "archives", failure)],
            ..Self::default()
        }
    }
}

/// Failure of a source that could not be read.
#[derive(Debug, Clone)]
pub struct SourceFailure {
    /// Kind of the source.
    pub source: SourceId,
    /// Name for a message, for example `archives`, or the repository of a registry.
    pub name: String,
    /// The failure.
    pub failure: Failure,
}

impl SourceFailure {
    /// Makes the failure of a source with this name.
    pub fn new(source: SourceId, name: impl Into<String>, failure: Failure) -> Self {
        Self { source, name: name.into(), failure }
    }
}

/// State of the host's apt beside the archives that could be read.
#[derive(Debug, Clone, Default)]
pub struct AptState {
    /// Sources that could not be read though the other archives were, one text each.
    pub unread: Vec<String>,
    /// Sources that are not used.
    pub left_out: Vec<LeftOut>,
    /// Settings about proxies, one line each.
    pub proxies: Vec<String>,
}
