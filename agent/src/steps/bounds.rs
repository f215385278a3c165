//! Bounds of the steps that agents write, and the paths within them.
//!
//! Undoing follows paths from the record, as root. A forged record could have any file overwritten,
//! unmounted or removed; within these bounds it can name nothing but an agent's own work.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

pub(super) use super::daemon::shown_dirs;
pub(super) use crate::cdi::below;
use longshore_host::facts::nodes;
use longshore_host::facts::places::FIRMWARE_PATH;

/// Settings of the agents that can have written a record.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    /// Limits where no agent is proved to have written it.
    pub unproved: Option<Unproved>,
    /// Driver roots.
    pub driver_roots: Vec<PathBuf>,
    /// Stores.
    pub stores: Vec<PathBuf>,
    /// Directories that get device nodes.
    pub devs: Vec<PathBuf>,
    /// Private directories with the files of daemons.
    pub daemons: Vec<PathBuf>,
}

/// Limits of values of the host that an agent found and would restore: a forged record could name any.
/// They are closed lists, because whoever forges a record knows those of this program.
#[derive(Debug, Clone)]
pub struct Unproved {
    /// Major numbers of the driver's own devices.
    pub majors: Vec<u32>,
    /// Widest permissions of their nodes.
    pub mode: u32,
}

impl Unproved {
    /// Returns the limits of the host whose /proc is below `root`.
    pub fn read(root: &Path) -> Self {
        Self { majors: nodes::driver_majors(root), mode: nodes::mode_of_driver(root) }
    }
}

impl Bounds {
    /// Accepts the kernel's firmware path with a driver root's value.
    pub(super) fn firmware_path(&self, path: &Path, value: &str) -> Result<(), String> {
        given(path == Path::new(FIRMWARE_PATH), path)?;
        given(self.is_own_firmware(value), Path::new(value))
    }

    pub(super) fn is_own_firmware(&self, value: &str) -> bool {
        self.driver_roots.iter().any(|root| is(Path::new(value), &root.join("lib/firmware")))
    }
}

/// True if both are the same path, written the same.
pub(super) fn is(path: &Path, wanted: &Path) -> bool {
    path.as_os_str() == wanted.as_os_str()
}

/// True if a path is absolute, without `.`, `..`, a second slash or a control character.
pub fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && !path.components().any(|part| part == Component::ParentDir)
        && is_written_plainly(path)
}

pub(super) fn is_written_plainly(path: &Path) -> bool {
    let again: PathBuf = path.components().collect();
    is(path, &again) && !path.as_os_str().as_bytes().iter().any(u8::is_ascii_control)
}

/// True for such a path other than `/`.
pub fn is_below_root(path: &Path) -> bool {
    is_plain(path) && path != Path::new("/")
}

pub(super) fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == digits && text.bytes().all(is_digit)
}

pub(super) fn given(holds: bool, path: &Path) -> Result<(), String> {
    let named = || format!("{:?}", path.display().to_string());
    let refused = || format!("the record names {}, which this step never uses", named());
    if holds { Ok(()) } else { Err(refused()) }
}
