//! The steps that change a host. Each is one entry of the journal and can be applied, observed
//! and undone.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::host::daemon::Daemon;
use crate::host::verbs::FileId;
use crate::module_parameters;

/// Where a module's bytes come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleOrigin {
    /// The host's own kernel, below `/lib/modules/RELEASE`.
    Kernel {
        /// Path relative to `/lib/modules/RELEASE`, for example `kernel/drivers/char/ipmi/ipmi_msghandler.ko`.
        file: PathBuf,
    },
    /// The driver's module set in the store.
    Driver {
        /// sha256 (hex) of the blob in the store.
        sha256: String,
    },
}

/// What NVIDIA's driver container leaves when it dies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Leftover {
    /// Its root, mounted with all below it.
    Mount {
        /// Absolute path of the mount point.
        target: PathBuf,
        /// Device of the directory seen there: another one is another's.
        device: u64,
        /// Its inode.
        inode: u64,
    },
    /// A file, for example `/run/nvidia/nvidia-driver.pid`.
    File {
        /// Absolute path.
        path: PathBuf,
        /// Which one: another one, or one that was written to since, is another's. None in a record
        /// of an older longshore, which knew the path alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<FileId>,
    },
    /// A value in a file below /sys; it is emptied.
    Value {
        /// Absolute path.
        path: PathBuf,
        /// The value, without a newline.
        value: String,
    },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Mount { target, .. } => write!(f, "the mount on {}", target.display()),
            Leftover::File { path, .. } => write!(f, "{}", path.display()),
            Leftover::Value { path, value } => write!(f, "{value} in {}", path.display()),
        }
    }
}

/// One change to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Step {
    /// Make a directory, and what leads to it; undone by removing what was made.
    MakeDir {
        /// Absolute path.
        path: PathBuf,
    },
    /// Write a value to a file below /sys or /proc; undone by writing what was there before.
    WriteParameter {
        /// Absolute path, for example `/sys/module/firmware_class/parameters/path`.
        path: PathBuf,
        /// The value, without a newline.
        value: String,
    },
    /// Load a kernel module; undone by removing it, if this step loaded it.
    LoadModule {
        /// Kernel name (underscores).
        name: String,
        /// Where its bytes come from.
        origin: ModuleOrigin,
        /// Parameters as on insmod's command line.
        parameters: String,
        /// What the kernel must report as its version afterwards.
        version: Option<String>,
        /// What the kernel must report as its srcversion afterwards.
        srcversion: Option<String>,
    },
    /// Mount an assembled tree of the store; undone by unmounting it.
    Bind {
        /// Absolute path of the tree.
        source: PathBuf,
        /// Absolute path of the mount point.
        target: PathBuf,
    },
    /// Mount a small tmpfs for device nodes; undone by unmounting it.
    MountTmpfs {
        /// Absolute path of the mount point.
        target: PathBuf,
    },
    /// Take off what NVIDIA's driver container left when it died. Not undone: a host is not given
    /// back a mount or a file that nobody is alive to use.
    RemoveLeftover {
        /// What it left.
        what: Leftover,
    },
    /// Show a directory of ours under a second path, by a mount; undone by unmounting it.
    Share {
        /// Absolute path of the directory.
        source: PathBuf,
        /// Absolute path of the mount point.
        target: PathBuf,
    },
    /// Start a daemon of the driver; undone by ending it, and all that it forked to.
    StartDaemon {
        /// The daemon.
        daemon: Daemon,
    },
    /// Make the character device nodes of a loaded driver; undone by removing those made.
    ///
    /// Majors are known only once the driver is loaded, so the step names what to make and the
    /// journal what was made.
    MakeNodes {
        /// Directories that get the nodes, for example `/dev` of the host and of the driver root.
        dirs: Vec<PathBuf>,
    },
}

impl Step {
    /// Which kind of step it is, as the journal's file names it: for labels and log fields.
    pub fn kind(&self) -> &'static str {
        match self {
            Step::MakeDir { .. } => "make-dir",
            Step::WriteParameter { .. } => "write-parameter",
            Step::LoadModule { .. } => "load-module",
            Step::Bind { .. } => "bind",
            Step::MountTmpfs { .. } => "mount-tmpfs",
            Step::RemoveLeftover { .. } => "remove-leftover",
            Step::Share { .. } => "share",
            Step::StartDaemon { .. } => "start-daemon",
            Step::MakeNodes { .. } => "make-nodes",
        }
    }

    /// What of the host it changes: a module's name or a path.
    pub fn subject(&self) -> String {
        match self {
            Step::MakeDir { path } | Step::WriteParameter { path, .. } => {
                path.display().to_string()
            }
            Step::LoadModule { name, .. } => name.clone(),
            Step::RemoveLeftover {
                what:
                    Leftover::Mount { target: path, .. }
                    | Leftover::File { path, .. }
                    | Leftover::Value { path, .. },
            } => path.display().to_string(),
            Step::Bind { target, .. }
            | Step::Share { target, .. }
            | Step::MountTmpfs { target } => target.display().to_string(),
            Step::StartDaemon { daemon } => daemon.name.clone(),
            Step::MakeNodes { dirs } => {
                let dirs: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
                dirs.join(",")
            }
        }
    }

    /// Whether both leave the host the same. A module is the same where the kernel cannot tell it
    /// from the other: its bytes may lie elsewhere, or be signed by somebody else.
    pub fn is_same(&self, other: &Step) -> bool {
        match (self, other) {
            (
                Step::LoadModule { name, origin, parameters, version, srcversion },
                Step::LoadModule {
                    name: other_name,
                    origin: other_origin,
                    parameters: other_parameters,
                    version: other_version,
                    srcversion: other_srcversion,
                },
            ) => {
                let driver = |origin| matches!(origin, &ModuleOrigin::Driver { .. });
                name == other_name
                    && driver(origin) == driver(other_origin)
                    && version == other_version
                    && srcversion == other_srcversion
                    && module_parameters::same_parameters(parameters, other_parameters)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::MakeDir { path } => write!(f, "make directory {}", path.display()),
            Step::WriteParameter { path, value } => {
                write!(f, "write {value:?} to {}", path.display())
            }
            Step::LoadModule { name, version, .. } => {
                write!(f, "load module {name}")?;
                version.as_ref().map_or(Ok(()), |v| write!(f, " {v}"))
            }
            Step::Bind { source, target } => {
                write!(f, "mount {} on {}", source.display(), target.display())
            }
            Step::RemoveLeftover { what } => {
                write!(f, "take off {what} (left by NVIDIA's container)")
            }
            Step::Share { source, target } => {
                write!(f, "show {} as {}", source.display(), target.display())
            }
            Step::StartDaemon { daemon } => write!(f, "start {daemon}"),
            Step::MountTmpfs { target } => write!(f, "mount a tmpfs on {}", target.display()),
            Step::MakeNodes { dirs } => {
                let dirs: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
                write!(f, "make device nodes in {}", dirs.join(" and "))
            }
        }
    }
}
