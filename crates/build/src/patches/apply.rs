//! Applies patches to the copy of a driver's sources that is compiled: all of them or none.

use std::path::Path;

use super::Patch;
use longshore_core::failure::{Failure, FailureKind};
use longshore_sources::diff::{Edits, Unfit};

/// Applies `patches`, in this order, to the files below `sources`. Nothing is written unless every
/// hunk of every patch fits.
///
/// # Errors
/// Exit code 14 naming the patch, the file and the hunk that does not fit; 15 where a file cannot
/// be written.
pub(crate) fn apply(patches: &[Patch], sources: &Path) -> Result<(), Failure> {
    let mut edits = Edits::new(sources);
    for patch in patches {
        for file in &patch.diff.files {
            edits.add(file).map_err(|why| unfit(patch, &why))?;
        }
    }
    edits.write()
}

fn unfit(patch: &Patch, why: &Unfit) -> Failure {
    let name = &patch.name;
    Failure::new(
        FailureKind::Compile,
        format!("the patch {name} does not fit the driver's sources: {why}"),
    )
    .remedy(format!(
        "switch it off (--no-patch {name}) and see whether the driver compiles without; for a \
         patch of your own, make it for these sources; for one of longshore's, please report it"
    ))
}
