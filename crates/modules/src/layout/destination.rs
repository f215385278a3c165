//! Check that a set can be written to a directory, before the set is compiled and not an hour
//! later.

use std::fs;
use std::io;
use std::path::Path;

use nix::unistd::{AccessFlags, access};

use longshore_core::durable::write_remedy;
use longshore_core::failure::{Failure, FailureKind};

/// Checks that an image layout can be written at `dir`, without creating anything.
///
/// # Errors
/// Exit code 13 where it is another kind of directory, 15 where it is none or cannot be written.
pub fn check(dir: &Path) -> Result<(), Failure> {
    let absolute = std::path::absolute(dir).map_err(|e| unwritable(dir, e))?;
    // If it does not exist yet: its nearest existing parent.
    let there = absolute.ancestors().find(|above| above.symlink_metadata().is_ok());
    let there = there.unwrap_or(Path::new("/"));
    let names = fs::read_dir(there).map_err(|e| unwritable(dir, e))?;
    access(there, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|e| unwritable(dir, e.into()))?;
    if there == absolute && names.count() > 0 && !dir.join("oci-layout").is_file() {
        let cause = format!("{} is not empty and not an OCI image layout", dir.display());
        return Err(Failure::new(FailureKind::Verification, cause)
            .remedy("give --out a directory that is empty, new, or was written by --out before"));
    }
    Ok(())
}

/// The failure for a write to a layout.
pub(crate) fn unwritable(dir: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--out");
    let failure = Failure::new(FailureKind::Disk, format!("writing {}", dir.display()));
    let failure = failure.with_source(error);
    match remedy {
        Some(remedy) => failure.remedy(remedy),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    #[rstest]
    #[case::new("new/below/new", None)]
    #[case::empty("empty", None)]
    #[case::layout("layout", None)]
    #[case::other("other", Some(ExitCode::Verification))]
    #[case::file("other/file", Some(ExitCode::Preflight))]
    #[case::below_a_file("other/file/below", Some(ExitCode::Preflight))]
    #[case::dangling("dangling", Some(ExitCode::Preflight))]
    fn directories(#[case] name: &str, #[case] wanted: Option<ExitCode>) {
        let dir = tempfile::tempdir().expect("directory");
        for made in ["empty", "layout", "other"] {
            fs::create_dir(dir.path().join(made)).expect("directory");
        }
        for file in ["layout/oci-layout", "other/file"] {
            fs::write(dir.path().join(file), "").expect("file");
        }
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).expect("link");
        assert_eq!(check(&dir.path().join(name)).err().map(|e| e.code()), wanted);
        assert!(!dir.path().join("new").exists());
    }
}
