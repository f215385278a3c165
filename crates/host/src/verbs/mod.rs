//! Verbs that change a host, and queries that observe the change.
//!
//! Implemented by the real host ([`real`](crate::real)) and by a simulated one (feature `fake`).

pub mod bring_up;
mod error;
pub(crate) mod labels;
pub mod published;
pub mod refusal;
pub mod shared_dir;
pub mod status_file;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::daemon::{Daemon, DaemonStatus, Ending};
use crate::facts::gpus::Gpu;
use crate::values::{DirId, DriverUsers, FileId, Node, WantedNode};
use longshore_core::deadlines::Deadlines;
use published::{Published, PublishedFile};
use status_file::Status;

pub use error::VerbError;

/// A module's image, not compressed, as it is passed to the kernel.
#[derive(Debug, Clone, Copy)]
pub enum Image<'a> {
    /// From memory (init_module): the kernel's policies for files do not apply.
    Bytes(&'a [u8]),
    /// As a file open for reading (finit_module): the kernel reads it, and its policies for files
    /// apply (SELinux labels, LoadPin, IMA).
    File(&'a File),
}

/// The state of a loaded module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleState {
    /// References to it, including those of its holders.
    pub refcount: i64,
    /// Names of modules that hold it.
    pub holders: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// srcversion.
    pub srcversion: Option<String>,
    /// Number of this load of the module, within one boot: another load of the same build has
    /// another number. None if it cannot be determined.
    ///
    /// It is the inode number of /sys/module/NAME: sysfs counts its inodes up and comes back to a
    /// number only after 2^31 others (fs/kernfs/dir.c, `idr_alloc_cyclic`).
    pub instance: Option<u64>,
    /// Load stage.
    pub stage: Stage,
}

/// Load stage of a module: `initstate` of sysfs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// Its init function runs.
    Coming,
    /// It is loaded.
    #[default]
    Live,
    /// Its exit function runs.
    Going,
}

/// Driver of a PCI device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// The driver bound to it.
    pub driver: Option<String>,
    /// The only driver that may bind to it (driver_override); empty for any.
    pub only: String,
}

/// Operations that change or observe a host. All paths are absolute.
pub trait Host: Send + Sync {
    /// Releases what is only needed while the host is being changed (the helper process).
    fn release_idle(&self) {}
    /// The same host with these deadlines; None if it does not use them.
    fn within(&self, _deadlines: &Deadlines) -> Option<Arc<dyn Host>> {
        None
    }
    /// Loads a module; returns the kernel log messages of the load, as far as they can be read.
    fn load_module(
        &self,
        name: &str,
        image: Image<'_>,
        parameters: &str,
    ) -> Result<Vec<String>, VerbError>;
    /// Unloads a module; never forces, never waits.
    fn unload_module(&self, name: &str) -> Result<(), VerbError>;
    /// The module's state, or None if it is not loaded.
    fn module(&self, name: &str) -> Result<Option<ModuleState>, VerbError>;
    /// The value a loaded module reports for one of its parameters; None if it reports none.
    fn module_parameter(&self, module: &str, name: &str) -> Result<Option<String>, VerbError>;
    /// The processes that have a device of the driver open or mapped, in any mount namespace, as
    /// far as this process may inspect them.
    fn driver_users(&self) -> Result<DriverUsers, VerbError>;
    /// Writes a value to a file of /sys or /proc; an empty value empties it.
    fn write_parameter(&self, path: &Path, value: &str) -> Result<(), VerbError>;
    /// The value without its trailing newline, or None if there is no such file.
    fn parameter(&self, path: &Path) -> Result<Option<String>, VerbError>;
    /// Mounts the tree `source` on `target`, recursively.
    fn bind(&self, source: &Path, target: &Path) -> Result<(), VerbError>;
    /// Like `bind`, but read-only by that mount and every copy of it.
    fn bind_read_only(&self, source: &Path, target: &Path) -> Result<(), VerbError> {
        self.bind(source, target)
    }
    /// Mounts a small tmpfs (mode 0755, device nodes allowed) from [`TMPFS_SOURCE`](crate::values::TMPFS_SOURCE) on `target`; all
    /// its files have the SELinux label, where one is given.
    fn mount_tmpfs(&self, target: &Path, label: Option<&str>) -> Result<(), VerbError>;
    /// Mounts a tmpfs from [`TMPFS_SOURCE`](crate::values::TMPFS_SOURCE) on `target`, with these empty directories (plain names,
    /// mode 0755), read-only by that mount and every copy of it; with the SELinux label as
    /// [`Host::mount_tmpfs`].
    fn mount_root(
        &self,
        target: &Path,
        dirs: &[&str],
        label: Option<&str>,
    ) -> Result<(), VerbError>;
    /// Mounts sysfs on `target`, from [`TMPFS_SOURCE`](crate::values::TMPFS_SOURCE), read-only.
    fn mount_sysfs(&self, target: &Path) -> Result<(), VerbError>;
    /// Unmounts the topmost mount on `target`.
    fn unmount(&self, target: &Path) -> Result<(), VerbError>;
    /// Detaches the topmost mount on `target`, and all mounts below it, while it is busy; it is
    /// freed when its last user ends.
    fn detach(&self, target: &Path) -> Result<(), VerbError>;
    /// Number of mounts on exactly `target`.
    fn mounts_on(&self, target: &Path) -> Result<usize, VerbError>;
    /// Source of the mount on exactly `target` that a path to it shows; None if nothing is mounted
    /// there, or only below a mount that came later on a directory above.
    fn mount_source(&self, target: &Path) -> Result<Option<String>, VerbError>;
    /// Makes a character device node with exactly these permissions and this owner.
    fn make_node(&self, path: &Path, node: Node) -> Result<(), VerbError>;
    /// Makes nodes like [`Host::make_node`], one after the other, until one fails; the error does
    /// not name which.
    fn make_nodes(&self, nodes: &[(PathBuf, Node)]) -> Result<(), VerbError> {
        nodes.iter().try_for_each(|(path, node)| self.make_node(path, *node))
    }
    /// Sets the permissions and owner of the node at `path`; ENXIO if it is another device.
    fn set_node(&self, path: &Path, node: Node) -> Result<(), VerbError>;
    /// The node at `path`, or None if nothing is there; EEXIST if it is not a node.
    fn node(&self, path: &Path) -> Result<Option<Node>, VerbError>;
    /// The target of the symbolic link at `path`, or None if nothing is there; EEXIST if it is no link.
    fn link(&self, path: &Path) -> Result<Option<PathBuf>, VerbError>;
    /// Makes a symbolic link.
    fn make_link(&self, path: &Path, target: &Path) -> Result<(), VerbError>;
    /// Removes a file, node or link.
    fn remove_file(&self, path: &Path) -> Result<(), VerbError>;
    /// Gives the file or directory at `path`, and everything below it, this SELinux label; follows
    /// no link.
    fn label(&self, path: &Path, label: &str) -> Result<(), VerbError>;
    /// True if all of these have the label.
    fn has_label(&self, path: &Path, label: &str) -> Result<bool, VerbError>;
    /// Identity of the file at `path`, links not followed; None for nothing or a directory.
    fn file(&self, path: &Path) -> Result<Option<FileId>, VerbError>;
    /// The status file at `path`; None where there is nothing.
    fn status(&self, path: &Path) -> Result<Option<Status>, VerbError>;
    /// Writes a status file whole, with its directory; replaces what is there, follows no link.
    fn write_status(&self, path: &Path, text: &str) -> Result<(), VerbError>;
    /// Removes what is at the path of a status file, unless that is a directory.
    fn remove_status(&self, path: &Path) -> Result<(), VerbError>;
    /// Makes one directory, mode 0755.
    fn make_dir(&self, path: &Path) -> Result<(), VerbError>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> Result<(), VerbError>;
    /// Identity of the directory `path`, links followed; None if there is none.
    fn dir(&self, path: &Path) -> Result<Option<DirId>, VerbError>;
    /// True if the directory exists.
    fn has_dir(&self, path: &Path) -> Result<bool, VerbError> {
        Ok(self.dir(path)?.is_some())
    }
    /// The contents of a published file.
    fn published(&self, place: &PublishedFile<'_>) -> Result<Published, VerbError>;
    /// Makes the directory of a published file, mode 0755, in the parent that it has; one that is there
    /// stays as it is.
    fn make_place(&self, place: &PublishedFile<'_>) -> Result<(), VerbError>;
    /// Replaces a published file by these bytes, at once for its readers.
    fn publish(&self, place: &PublishedFile<'_>, bytes: &[u8]) -> Result<(), VerbError>;
    /// Removes a published file, and one that an agent died over before it was published; where
    /// `keeps`, the second alone.
    fn withdraw(&self, place: &PublishedFile<'_>, keeps: bool) -> Result<(), VerbError>;
    /// Removes the directory of a published file; ENOTEMPTY if others use it.
    fn remove_place(&self, place: &PublishedFile<'_>) -> Result<(), VerbError>;
    /// The directory that all paths are below: `/`, except in tests.
    fn root(&self) -> &Path;
    /// Starts a daemon under a mark; returns once its program is being executed.
    fn start_daemon(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError>;
    /// Signals every process that has the mark, and no other; returns a descriptor for each, which
    /// becomes readable when the process ends.
    fn end_daemon(&self, mark: &str, how: Ending) -> Result<Vec<OwnedFd>, VerbError>;
    /// The processes that have the mark, each as a descriptor that becomes readable when it ends.
    fn daemon_processes(&self, mark: &str) -> Result<Vec<OwnedFd>, VerbError>;
    /// The processes under the mark, and the one that answers on the daemon's socket.
    fn daemon(&self, daemon: &Daemon, mark: &str) -> Result<DaemonStatus, VerbError>;
    /// The device nodes that the loaded driver needs below a /dev.
    fn wanted_nodes(&self) -> Result<Vec<WantedNode>, VerbError>;
    /// The driver of the PCI device at this address; None if there is no such device.
    fn binding(&self, address: &str) -> Result<Option<Binding>, VerbError>;
    /// Lets only this driver bind to the PCI device from now on; an empty name lets any. A driver that
    /// is bound stays so.
    fn set_only_driver(&self, address: &str, driver: &str) -> Result<(), VerbError>;
    /// Binds a loaded driver to the PCI device.
    fn bind_device(&self, address: &str, driver: &str) -> Result<(), VerbError>;
    /// The GPUs on the PCI bus that nvidia.ko may drive, each with the driver bound to it.
    fn gpus(&self) -> Result<Vec<Gpu>, VerbError>;
}
