//! Applies patches to the copy of a driver's sources that is compiled: all of them or none.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::Patch;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};

/// Applies `patches`, in this order, to the files below `sources`. Nothing is written unless every
/// hunk of every patch fits.
///
/// # Errors
/// Exit code 14 naming the patch, the file and the hunk that does not fit; 15 where a file cannot
/// be written.
pub(in crate::build) fn apply(patches: &[Patch], sources: &Path) -> Result<(), Failure> {
    let mut changed: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for patch in patches {
        for file in &patch.diff.files {
            let path = file.path.as_str();
            let before = match changed.remove(path) {
                Some(bytes) => bytes,
                None => read(&sources.join(path), sources).map_err(|e| unfit(patch, path, &e))?,
            };
            let after = file.apply(&before).map_err(|misfit| unfit(patch, path, &misfit))?;
            changed.insert(path, after);
        }
    }
    for (path, bytes) in changed {
        let path = sources.join(path);
        replace(&path, &bytes).map_err(|e| write_failure(&path, e))?;
    }
    Ok(())
}

/// Reads a source file; a link that leads out of the sources is refused.
fn read(path: &Path, sources: &Path) -> io::Result<Vec<u8>> {
    if !path.canonicalize()?.starts_with(sources.canonicalize()?) {
        return Err(io::Error::other("it is a link that leads out of the sources"));
    }
    fs::read(path)
}

/// Replaces a file and keeps its mode and times: conftest.sh is executed, and its time is the
/// build's.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new().permissions(meta.permissions()).tempfile_in(parent)?;
    file.write_all(bytes)?;
    File::set_modified(file.as_file(), meta.modified()?)?;
    file.persist(path)?;
    Ok(())
}

fn unfit(patch: &Patch, path: &str, why: &dyn std::fmt::Display) -> Failure {
    let name = &patch.name;
    Failure::new(
        FailureKind::Compile,
        format!("the patch {name} does not fit the driver's sources: {path}: {why}"),
    )
    .remedy(format!(
        "switch it off (--no-patch {name}) and see whether the driver compiles without; for a \
         patch of your own, make it for these sources; for one of longshore's, please report it"
    ))
}
