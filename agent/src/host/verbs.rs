//! The verbs by which a host is changed, and the questions that observe the change.
//!
//! Implemented by the real host ([`real`](super::real)) and by a [`fake`](super::fake).

use std::fmt;
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::gpus::Gpu;
use crate::deadlines::Deadlines;
use crate::host::daemon::{Daemon, DaemonSeen, Ending};
use crate::printable::in_line;

/// A verb that failed: what was tried, on what, and the kernel's answer.
#[derive(Debug)]
pub struct VerbError {
    /// The system call or operation, for example `init_module`.
    pub verb: &'static str,
    /// The module, path or device it was about.
    pub subject: String,
    /// The kernel's answer; ETIMEDOUT where it gave none.
    pub errno: Errno,
    /// How long an answer was waited for, where none came: the call is still in the kernel.
    pub unanswered: Option<Duration>,
    /// What the kernel logged meanwhile, where that was looked at.
    pub said: Vec<String>,
}

impl VerbError {
    /// A failed verb of which the kernel log was not looked at.
    pub fn new(verb: &'static str, subject: impl Into<String>, errno: Errno) -> Self {
        Self { verb, subject: subject.into(), errno, unanswered: None, said: Vec::new() }
    }

    /// A call that did not come back from the kernel within `waited`. It may still take effect.
    pub fn unanswered(verb: &'static str, subject: impl Into<String>, waited: Duration) -> Self {
        Self { unanswered: Some(waited), ..Self::new(verb, subject, Errno::ETIMEDOUT) }
    }

    /// A failed verb on a path. An I/O error that has no errno becomes EIO.
    pub fn on_path(verb: &'static str, path: &Path, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Self::new(verb, path.display().to_string(), errno)
    }
}

impl fmt::Display for VerbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, subject, errno, .. } = self;
        match self.unanswered {
            Some(waited) => {
                write!(f, "{verb} {subject}: no answer from the kernel within {waited:.0?}")
            }
            None => write!(f, "{verb} {subject}: {errno}"),
        }
    }
}

impl std::error::Error for VerbError {}

/// A module, not compressed, as the kernel gets it.
#[derive(Debug, Clone, Copy)]
pub enum Image<'a> {
    /// From memory (init_module): no policy about files counts.
    Bytes(&'a [u8]),
    /// As a file open for reading (finit_module): the kernel reads it, and its policies for files
    /// count (SELinux labels, LoadPin, IMA).
    File(&'a File),
}

/// What a tmpfs of ours says it is from, in the mount table.
pub const TMPFS_SOURCE: &str = "longshore";

/// The state of a loaded module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleState {
    /// References to it, those of its holders among them.
    pub refcount: i64,
    /// Names of modules that hold it.
    pub holders: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// srcversion.
    pub srcversion: Option<String>,
    /// Which loading of it this is, within one boot: another loading of the same build has another
    /// number. None where that cannot be told.
    ///
    /// It is the inode number of /sys/module/NAME: sysfs counts its inodes up and comes back to a
    /// number only after 2^31 others (fs/kernfs/dir.c, `idr_alloc_cyclic`).
    pub instance: Option<u64>,
    /// Whether it is on its way in or out.
    pub stage: Stage,
}

/// How far a module is loaded: `initstate` of sysfs.
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

/// A character device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// User and group; root's in a record of an older longshore, which knew no other.
    #[serde(default, skip_serializing_if = "Owner::is_root")]
    pub owner: Owner,
}

impl Node {
    /// Whether both name the same device, whatever the permissions.
    pub fn same_device(&self, other: &Node) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }

    /// Whether this is what setting `made` on what was `was` leaves, at any point of it: mode and
    /// owner are set one after the other, and whoever sets them can die in between.
    pub fn is_between(&self, was: &Node, made: &Node) -> bool {
        self.same_device(made)
            && [was.mode, made.mode].contains(&self.mode)
            && [was.owner, made.owner].contains(&self.owner)
    }
}

/// User and group of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Owner {
    /// Whether it is root and root's group.
    pub fn is_root(&self) -> bool {
        *self == Self::default()
    }
}

/// A device node that belongs below a /dev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedNode {
    /// Its path below the /dev, for example `nvidia-caps/nvidia-cap1`.
    pub name: PathBuf,
    /// The device, with the permissions that it gets where it is made.
    pub node: Node,
    /// Who sees to it.
    pub keeper: NodeKeeper,
}

/// Who sees to a device node in the host's /dev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKeeper {
    /// The driver's installer: the node is made, and its mode and owner are put right.
    Installer,
    /// Someone else (NVreg_ModifyDeviceFiles=0, DeviceFileModify: 0): it is neither made nor
    /// changed. The driver root's own /dev, which nobody else fills, gets a copy of it.
    Admin,
    /// The kernel's devtmpfs: it is made where it is missing, for example in a container's /dev that
    /// was filled before the device was there, and not changed. The driver root does without it.
    Kernel,
}

/// What makes a directory the same directory under another path: device and inode.
pub type DirId = (u64, u64);

/// What makes a file the same one, with nothing of it changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    /// Device of its file system.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// When content, owner, mode or links changed last (`st_ctime`), in nanoseconds since 1970.
    pub changed: i64,
}

impl FileId {
    /// That of a file which was looked at.
    pub fn of(found: &Metadata) -> Self {
        let changed =
            found.ctime().saturating_mul(1_000_000_000).saturating_add(found.ctime_nsec());
        Self { device: found.dev(), inode: found.ino(), changed }
    }
}

/// A process that has a device of the driver open or mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverUser {
    /// Process id, in the PID namespace of this process.
    pub pid: u32,
    /// Its id in its own PID namespace, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<u32>,
    /// Its command name (at most 15 bytes).
    pub comm: String,
    /// The container's whole id (or name), from its cgroup.
    pub container: Option<String>,
    /// The pod's uid, from its cgroup.
    pub pod: Option<String>,
    /// The devices, as `/proc/PID/fd` and `/proc/PID/maps` name them.
    pub devices: Vec<String>,
}

impl fmt::Display for DriverUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({}", self.pid, in_line(&self.comm))?;
        self.inside.map_or(Ok(()), |pid| write!(f, ", inside pid {pid}"))?;
        write!(f, ")")?;
        if let Some(container) = &self.container {
            write!(f, " of container {}", in_line(container))?;
        }
        if let Some(pod) = &self.pod {
            write!(f, " of pod {pod}")?;
        }
        write!(f, " holds {}", in_line(&self.devices.join(", ")))
    }
}

/// The processes that hold the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverUsers {
    /// By process id.
    pub users: Vec<DriverUser>,
    /// Why there may be more; None where all processes were looked at.
    pub unseen: Option<String>,
}

/// What can be done to a host, and seen of it. All paths are absolute.
pub trait Host: Send + Sync {
    /// Nothing will be changed for a while: what only changes need may go.
    fn rest(&self) {}
    /// The same host with these deadlines; None where it has no use for them.
    fn within(&self, _deadlines: &Deadlines) -> Option<Arc<dyn Host>> {
        None
    }
    /// Hands a module to the kernel; returns what the kernel logged meanwhile, as far as that can
    /// be read.
    fn load_module(
        &self,
        name: &str,
        image: Image<'_>,
        parameters: &str,
    ) -> Result<Vec<String>, VerbError>;
    /// Removes a module; never forces, never waits.
    fn unload_module(&self, name: &str) -> Result<(), VerbError>;
    /// The module's state, or None where it is not loaded.
    fn module(&self, name: &str) -> Result<Option<ModuleState>, VerbError>;
    /// The value a loaded module reports for one of its parameters; None where it shows none.
    fn module_parameter(&self, module: &str, name: &str) -> Result<Option<String>, VerbError>;
    /// The processes that have a device of the driver open or mapped, in whichever mount
    /// namespace, as far as this process may see them.
    fn driver_users(&self) -> Result<DriverUsers, VerbError>;
    /// Writes a value to a file of /sys or /proc; an empty value empties it.
    fn write_parameter(&self, path: &Path, value: &str) -> Result<(), VerbError>;
    /// The value without its trailing newline, or None where there is no such file.
    fn parameter(&self, path: &Path) -> Result<Option<String>, VerbError>;
    /// Mounts the tree `source` on `target`, recursively.
    fn bind(&self, source: &Path, target: &Path) -> Result<(), VerbError>;
    /// The same, so that nobody can write to the tree by that mount or a copy of it.
    fn bind_read_only(&self, source: &Path, target: &Path) -> Result<(), VerbError> {
        self.bind(source, target)
    }
    /// Mounts a small tmpfs (mode 0755, device nodes allowed) from [`TMPFS_SOURCE`] on `target`.
    fn mount_tmpfs(&self, target: &Path) -> Result<(), VerbError>;
    /// Unmounts the topmost mount on `target`.
    fn unmount(&self, target: &Path) -> Result<(), VerbError>;
    /// Takes the topmost mount on `target`, and all below it, out of the tree while it is busy;
    /// it vanishes when its last user goes.
    fn detach(&self, target: &Path) -> Result<(), VerbError>;
    /// How many mounts lie on exactly `target`.
    fn mounts_on(&self, target: &Path) -> Result<usize, VerbError>;
    /// What the topmost mount on exactly `target` says it is from; None where none is there.
    fn mount_source(&self, target: &Path) -> Result<Option<String>, VerbError>;
    /// Makes a character device node with exactly these permissions and this owner.
    fn make_node(&self, path: &Path, node: Node) -> Result<(), VerbError>;
    /// As [`Host::make_node`], one after the other, until one fails; of which one it was, the error says
    /// nothing.
    fn make_nodes(&self, nodes: &[(PathBuf, Node)]) -> Result<(), VerbError> {
        nodes.iter().try_for_each(|(path, node)| self.make_node(path, *node))
    }
    /// Gives the node at `path` these permissions and this owner; ENXIO where it is not this device.
    fn set_node(&self, path: &Path, node: Node) -> Result<(), VerbError>;
    /// The node at `path`, or None where nothing is there; EEXIST where something else is.
    fn node(&self, path: &Path) -> Result<Option<Node>, VerbError>;
    /// Removes a file or node.
    fn remove_file(&self, path: &Path) -> Result<(), VerbError>;
    /// Which file is at `path`, links not followed; None where nothing or a directory is.
    fn file(&self, path: &Path) -> Result<Option<FileId>, VerbError>;
    /// Makes one directory, mode 0755.
    fn make_dir(&self, path: &Path) -> Result<(), VerbError>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> Result<(), VerbError>;
    /// Which directory `path` is, links followed; None where there is none.
    fn dir(&self, path: &Path) -> Result<Option<DirId>, VerbError>;
    /// Whether a directory is there.
    fn has_dir(&self, path: &Path) -> Result<bool, VerbError> {
        Ok(self.dir(path)?.is_some())
    }
    /// Starts a daemon under a mark; returns once its program is being executed.
    fn start_daemon(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError>;
    /// Signals every process that has the mark, and no other; returns a descriptor for each, which
    /// becomes readable when the process ends.
    fn end_daemon(&self, mark: &str, how: Ending) -> Result<Vec<OwnedFd>, VerbError>;
    /// The processes that have the mark, each as a descriptor that becomes readable when it ends.
    fn daemon_processes(&self, mark: &str) -> Result<Vec<OwnedFd>, VerbError>;
    /// Who runs under the mark, and who answers on the daemon's socket.
    fn daemon(&self, daemon: &Daemon, mark: &str) -> Result<DaemonSeen, VerbError>;
    /// The device nodes the loaded driver wants below a /dev.
    fn wanted_nodes(&self) -> Result<Vec<WantedNode>, VerbError>;
    /// The GPUs on the PCI bus that nvidia.ko may drive, and which driver has each.
    fn gpus(&self) -> Result<Vec<Gpu>, VerbError>;
}
