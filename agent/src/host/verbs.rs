//! The verbs by which a host is changed, and the questions that observe the change.
//!
//! Implemented by the real host ([`real`](super::real)) and by a fake in tests.

use std::path::{Path, PathBuf};

/// A verb that failed: what was tried, on what, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{verb} {subject}: {errno}")]
pub struct VerbError {
    /// The system call or operation, for example `init_module`.
    pub verb: &'static str,
    /// The module, path or device it was about.
    pub subject: String,
    /// The kernel's answer.
    pub errno: nix::errno::Errno,
}

/// The state of a loaded module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleState {
    /// References to it.
    pub refcount: i64,
    /// Names of modules that hold it.
    pub holders: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// srcversion.
    pub srcversion: Option<String>,
}

/// A character device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
}

/// What can be done to a host, and seen of it. All paths are absolute.
pub trait Host {
    /// Hands a module's bytes (not compressed) to the kernel.
    fn load_module(&self, name: &str, image: &[u8], parameters: &str) -> Result<(), VerbError>;
    /// Removes a module; never forces, never waits.
    fn unload_module(&self, name: &str) -> Result<(), VerbError>;
    /// The module's state, or None where it is not loaded.
    fn module(&self, name: &str) -> Result<Option<ModuleState>, VerbError>;
    /// Writes a value to a file of /sys or /proc.
    fn write_parameter(&self, path: &Path, value: &str) -> Result<(), VerbError>;
    /// The value without its trailing newline, or None where there is no such file.
    fn parameter(&self, path: &Path) -> Result<Option<String>, VerbError>;
    /// Mounts the tree `source` on `target`, recursively.
    fn bind(&self, source: &Path, target: &Path) -> Result<(), VerbError>;
    /// Mounts a small tmpfs (mode 0755, device nodes allowed) on `target`.
    fn mount_tmpfs(&self, target: &Path) -> Result<(), VerbError>;
    /// Unmounts what is mounted on `target`.
    fn unmount(&self, target: &Path) -> Result<(), VerbError>;
    /// How many mounts lie on exactly `target`.
    fn mounts_on(&self, target: &Path) -> Result<usize, VerbError>;
    /// Makes a character device node.
    fn make_node(&self, path: &Path, node: Node) -> Result<(), VerbError>;
    /// The node at `path`, or None where nothing is there.
    fn node(&self, path: &Path) -> Result<Option<Node>, VerbError>;
    /// Removes a file or node.
    fn remove_file(&self, path: &Path) -> Result<(), VerbError>;
    /// Makes one directory.
    fn make_dir(&self, path: &Path) -> Result<(), VerbError>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> Result<(), VerbError>;
    /// Whether a directory is there.
    fn has_dir(&self, path: &Path) -> Result<bool, VerbError>;
    /// The device nodes the loaded driver wants below a /dev, with their names relative to it.
    fn wanted_nodes(&self) -> Result<Vec<(PathBuf, Node)>, VerbError>;
}
