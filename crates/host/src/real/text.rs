//! Texts and names of files in /proc and /sys.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use nix::errno::Errno;

use crate::verbs::VerbError;
use longshore_core::root::{if_there, is_absent};

/// Reads a file's text without its last newline; None if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, VerbError> {
    match fs::read_to_string(path) {
        Ok(mut text) => {
            if text.ends_with('\n') {
                text.pop();
            }
            Ok(Some(text))
        }
        Err(e) if is_absent(&e) => Ok(None),
        // Attributes of a module that is being unloaded return ENODEV.
        Err(e) if e.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
        // A parameter may be writable and not readable (mode 0200).
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(None),
        Err(e) => Err(VerbError::on_path("read", path, &e)),
    }
}

pub(super) fn names_in(dir: &Path) -> Result<Vec<String>, VerbError> {
    let fail = |e: &io::Error| VerbError::on_path("read", dir, e);
    let entries = if_there(fs::read_dir(dir)).map_err(|e| fail(&e))?;
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|e| e.file_name().to_string_lossy().into_owned()).map_err(|e| fail(&e))
    };
    let mut names = entries.into_iter().flatten().map(name).collect::<Result<Vec<_>, _>>()?;
    names.sort();
    Ok(names)
}
