//! Failures to acquire a part of a plan.

use std::fmt;
use std::path::PathBuf;

use crate::catalog::SetPlace;
use crate::plan::BuildSet;
use longshore_core::failure::{Failure, FailureKind};

/// Reason why an acquisition failed.
#[derive(Debug)]
pub(super) enum Missed {
    /// A part failed; a plan without it may succeed.
    Part(LeftOut, Failure),
    /// No other source would help.
    Failed(Failure),
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Part of an acquisition that a plan can do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// A set.
    Set(SetPlace),
    /// MOFED's headers for a kernel.
    Mofed { release: String, place: PathBuf },
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(place) => write!(f, "the set in {place}"),
            Self::Mofed { place, .. } => write!(f, "MOFED's headers in {}", place.display()),
        }
    }
}

/// Classifies a failure to acquire a set from `place`.
pub(super) fn missed(place: &SetPlace, failure: Failure) -> Missed {
    match failure.kind() {
        FailureKind::Download => Missed::Part(LeftOut::Set(place.clone()), failure),
        _ => Missed::Failed(failure),
    }
}

/// Classifies a failure to compile a set.
pub(super) fn not_built(build: &BuildSet, failure: Failure) -> Missed {
    match (&build.mofed, failure.kind()) {
        (Some(mofed), FailureKind::Compile) => {
            let (release, place) = (build.kernel_release.clone(), mofed.place());
            Missed::Part(LeftOut::Mofed { release, place }, failure)
        }
        _ => Missed::Failed(failure),
    }
}
