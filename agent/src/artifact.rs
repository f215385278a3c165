//! A set of built kernel modules: what it is keyed by, and what it holds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which of NVIDIA's two kernel module flavours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// NVIDIA's open GPU kernel modules (Turing and newer).
    Open,
    /// The proprietary kernel modules.
    Proprietary,
}

/// Everything a set of modules is made of; two sets with the same key are interchangeable.
///
/// Debian's ABI bumps change more than half of all symbol CRCs, so the kernel's release **and**
/// its version string (`uname -v`) are part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleKey {
    /// Upstream driver version, for example `535.261.03`.
    pub driver_version: String,
    /// Flavour of the kernel modules.
    pub flavour: Flavour,
    /// sha256 (hex) of the package the kernel sources came from.
    pub driver_digest: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -v`.
    pub kernel_version: String,
    /// `uname -m`, for example `x86_64`.
    pub arch: String,
    /// Header packages: `name_version_arch` -> sha256 (hex).
    pub headers: BTreeMap<String, String>,
    /// The compiler as it names itself, for example `gcc-12 (Debian 12.2.0-14) 12.2.0`.
    pub compiler: String,
    /// Arguments given to make that change the result.
    pub options: Vec<String>,
}

/// One module of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleEntry {
    /// The kernel's name for it (underscores), for example `nvidia_uvm`.
    pub name: String,
    /// File name, for example `nvidia-uvm.ko`.
    pub file: String,
    /// sha256 (hex) of the file.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// modinfo `vermagic`.
    pub vermagic: String,
    /// modinfo `version`, where the module has one.
    pub version: Option<String>,
    /// modinfo `srcversion`, where the module has one.
    pub srcversion: Option<String>,
    /// modinfo `depends`, in kernel names.
    pub depends: Vec<String>,
}

/// A set of modules: the config blob of its OCI manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleSet {
    /// What it was made of.
    pub key: ModuleKey,
    /// The modules, in load order.
    pub modules: Vec<ModuleEntry>,
}
