//! What is on the host now, and who put it there.

use std::path::PathBuf;

use serde::Serialize;

use super::Phase;
use crate::config::Config;
use crate::failure::Failure;

/// What `longshore status` tells.
#[derive(Debug, Clone, Serialize)]
pub struct StatusReport {
    /// The phase the journal was left in; None where there is no journal.
    pub phase: Option<Phase>,
    /// Process id of the agent that holds the lock; None where none does.
    pub agent: Option<u32>,
    /// `/sys/module/nvidia/version`: the driver that is live, whoever loaded it.
    pub driver_version: Option<String>,
    /// NVIDIA's modules, and the others we loaded.
    pub modules: Vec<ModuleStatus>,
    /// The mounts we made.
    pub mounts: Vec<MountStatus>,
    /// The device nodes of the driver.
    pub nodes: Vec<NodeStatus>,
    /// The journal's entries that are not undone, one line each, oldest first.
    pub entries: Vec<String>,
}

/// A loaded module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModuleStatus {
    /// Kernel name.
    pub name: String,
    /// References to it.
    pub refcount: i64,
    /// Modules that hold it.
    pub holders: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// Whether the journal says that we loaded it.
    pub ours: bool,
}

/// A mount of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountStatus {
    /// Mount point.
    pub target: PathBuf,
    /// Whether something is mounted there now.
    pub mounted: bool,
}

/// A device node of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Where it is, or should be.
    pub path: PathBuf,
    /// Whether it is there with the right numbers.
    pub right: bool,
    /// Whether the journal says that we made it.
    pub ours: bool,
}

/// Reads what is on the host now; takes no lock and changes nothing.
///
/// # Errors
/// 13 where the journal cannot be understood.
pub fn status(_config: &Config) -> Result<StatusReport, Failure> {
    Ok(StatusReport {
        phase: None,
        agent: None,
        driver_version: None,
        modules: Vec::new(),
        mounts: Vec::new(),
        nodes: Vec::new(),
        entries: Vec::new(),
    })
}

impl StatusReport {
    /// The report as a person reads it.
    pub fn render(&self) -> String {
        String::new()
    }
}
