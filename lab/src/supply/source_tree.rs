//! Trees of NVIDIA's published sources, which whoever runs the cells gives: none is part of this repository.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use crate::host::error::{At, Error};
use crate::supply::seed::MODULES_ONLY;
use longshore_core::digest::digest_of;

/// Environment variable with the directory of the trees: `VERSION.tar.gz` each.
const DIRECTORY: &str = "LONGSHORE_SOURCE_TREES";

/// Adds a version's tree to the arguments of a `longshore fetch`, with the modules alone.
///
/// # Errors
/// No directory is given, or it has no such tree.
pub(crate) fn add(command: &mut Command, version: &str) -> Result<(), Error> {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return Err(Error::Matrix(format!(
            "the source tree of {version} is needed: set {DIRECTORY} to a directory with {version}.tar.gz, the tarball of \
             that tag of open-gpu-kernel-modules"
        )));
    };
    let path = PathBuf::from(dir).join(format!("{version}.tar.gz"));
    let sha256 = File::open(&path).and_then(digest_of).at("read", &path)?;
    command.arg("--source-tree").arg(&path);
    command.args(["--source-tree-sha256", &format!("{version}={sha256}"), MODULES_ONLY]);
    Ok(())
}
