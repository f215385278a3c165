//! Steps that change a host. Each is one entry of the journal, and can be applied, observed and
//! undone.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::host::daemon::Daemon;
use crate::host::verbs::FileId;
use crate::module_parameters;

/// Source of a module's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleOrigin {
    /// The running kernel's own modules, below `/lib/modules/RELEASE`.
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

/// Leftover of NVIDIA's driver container after it died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Leftover {
    /// Its root, mounted recursively.
    Mount {
        /// Absolute path of the mount point.
        target: PathBuf,
        /// Device of the directory at the mount point: another device means another owner.
        device: u64,
        /// Inode of that directory.
        inode: u64,
    },
    /// A file, for example `/run/nvidia/nvidia-driver.pid`.
    File {
        /// Absolute path.
        path: PathBuf,
        /// Identity of the file: another one, or one written to since, has another owner. None in a
        /// record of an older longshore, which stored only the path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<FileId>,
    },
    /// A value in a file below /sys; removed by emptying the file.
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
    /// Make a directory and its missing parents; undone by removing those made.
    MakeDir {
        /// Absolute path.
        path: PathBuf,
    },
    /// Write a value to a file below /sys or /proc; undone by restoring the previous value.
    WriteParameter {
        /// Absolute path, for example `/sys/module/firmware_class/parameters/path`.
        path: PathBuf,
        /// The value, without a newline.
        value: String,
    },
    /// Load a kernel module; undone by unloading it, if this step loaded it.
    LoadModule {
        /// Kernel name (underscores).
        name: String,
        /// Source of its file.
        origin: ModuleOrigin,
        /// Parameters as on insmod's command line.
        parameters: String,
        /// Version that the kernel must report afterwards.
        version: Option<String>,
        /// Srcversion that the kernel must report afterwards.
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
    /// Remove a leftover of NVIDIA's dead driver container. Not undone: no process is left to use
    /// it.
    RemoveLeftover {
        /// The leftover.
        what: Leftover,
    },
    /// Bind-mount a directory of longshore's on a second path; undone by unmounting it.
    Share {
        /// Absolute path of the directory.
        source: PathBuf,
        /// Absolute path of the mount point.
        target: PathBuf,
    },
    /// Start a daemon of the driver; undone by ending it with all its child processes.
    StartDaemon {
        /// The daemon.
        daemon: Daemon,
    },
    /// Make the character device nodes of a loaded driver; undone by removing those made.
    ///
    /// Majors are known only once the driver is loaded, so the step names the directories and the
    /// journal the nodes.
    MakeNodes {
        /// Directories for the nodes, for example `/dev` of the host and of the driver root.
        dirs: Vec<PathBuf>,
    },
}

impl Step {
    /// Returns the kind of step, as named in the journal's file: for labels and log fields.
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

    /// Returns the changed part of the host: a module's name or a path.
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

    /// True if both steps leave the host the same. Modules are the same where the kernel cannot
    /// distinguish them: file location and signer may differ.
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
                write!(f, "remove {what} (left by NVIDIA's container)")
            }
            Step::Share { source, target } => {
                write!(f, "bind-mount {} on {}", source.display(), target.display())
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
