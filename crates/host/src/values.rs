//! Plain values that facts and verbs share: identities of files, device nodes, users of the driver.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use longshore_core::sanitize::in_line;

/// Source of longshore's own file systems in the mount table.
pub const TMPFS_SOURCE: &str = "longshore";

/// A character device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// User and group; root's in a journal of an older longshore, which recorded none.
    #[serde(default, skip_serializing_if = "Owner::is_root")]
    pub owner: Owner,
}

impl Node {
    /// True if both are the same device, regardless of permissions.
    pub fn same_device(&self, other: &Node) -> bool {
        (self.major, self.minor) == (other.major, other.minor)
    }

    /// True if this is a state that setting `made` on a node of state `was` passes through: mode
    /// and owner are set one after the other, and the agent can die in between.
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
    /// True if it is root and root's group.
    pub fn is_root(&self) -> bool {
        *self == Self::default()
    }
}

/// A device node that belongs below a /dev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedNode {
    /// Its path below the /dev, for example `nvidia-caps/nvidia-cap1`.
    pub name: PathBuf,
    /// The device, with the permissions to make it with.
    pub node: Node,
    /// Its keeper.
    pub keeper: NodeKeeper,
}

/// The program responsible for a device node in the host's /dev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKeeper {
    /// The driver's installer: the node is made, and its mode and owner are put right.
    Installer,
    /// The program that loaded the driver with NVreg_ModifyDeviceFiles=0: longshore, which does so to
    /// keep the driver's libraries from it, or where it was asked for that, as for [`Self::Admin`].
    Loader,
    /// Another program (DeviceFileModify: 0): it is neither made nor changed. The driver root's own
    /// /dev, which no other program fills, gets a copy of it.
    Admin,
    /// The kernel's devtmpfs: the node is made if it is missing, for example in a container's /dev
    /// that was filled before the device appeared, and not changed. The driver root does without
    /// it.
    Kernel,
}

/// Identity of a directory, the same under every path: device and inode.
pub type DirId = (u64, u64);

/// Identity of a file, including its last change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    /// Device of its file system.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Time of the last change of content, owner, mode or links (`st_ctime`), in nanoseconds since
    /// 1970.
    pub changed: i64,
}

impl FileId {
    /// The identity in a file's metadata.
    pub fn from_metadata(found: &Metadata) -> Self {
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
    /// Its id in its own PID namespace, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_pid: Option<u32>,
    /// Its command name (at most 15 bytes).
    pub comm: String,
    /// The container's full id (or name), from its cgroup.
    pub container: Option<String>,
    /// The pod's uid, from its cgroup.
    pub pod: Option<String>,
    /// The devices, as `/proc/PID/fd` and `/proc/PID/maps` name them.
    pub devices: Vec<String>,
}

impl fmt::Display for DriverUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({}", self.pid, in_line(&self.comm))?;
        self.namespace_pid.map_or(Ok(()), |pid| write!(f, ", inside pid {pid}"))?;
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
    /// The reason why there may be more; None if all processes were inspected.
    pub unseen: Option<String>,
}
