//! Failures to acquire a part of a plan.

use std::path::PathBuf;

use crate::catalog::SetPlace;
use crate::plan::BuildSet;
use longshore_core::failure::{Failure, FailureKind};

/// Reason why an acquisition failed.
#[derive(Debug, derive_more::From)]
pub(super) enum Missed {
    /// A part failed; a plan without it may succeed.
    Part(LeftOut, Failure),
    /// No other source would help.
    #[from]
    Failed(Failure),
}

/// Part of an acquisition that a plan can do without.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub(super) enum LeftOut {
    /// A set.
    #[display("the set in {_0}")]
    Set(SetPlace),
    /// MOFED's headers for a kernel.
    #[display("MOFED's headers in {}", place.display())]
    Mofed { release: String, place: PathBuf },
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
