//! What is at hand: built module sets, driver packages, user-mode trees, headers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::artifact::{Flavour, ModuleSet};
use crate::host::facts::Known;

/// Everything a plan may choose from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Catalog {
    /// Built sets of modules, best first (the store before prebuilt directories).
    pub sets: Vec<SetAtHand>,
    /// User-mode trees assembled in the store.
    pub userspace: Vec<UserspaceAtHand>,
    /// Driver packages the archives offer, newest first, or why the archives were not read.
    pub drivers: Known<Vec<DriverAtHand>>,
    /// Whether headers and compiler for the kernel can be had, or why that was not looked up.
    pub headers: Known<HeadersAtHand>,
}

/// A built set of modules.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SetAtHand {
    /// The set.
    pub set: ModuleSet,
    /// Where its modules lie.
    pub place: SetPlace,
}

/// Where a built set lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetPlace {
    /// The store.
    Store,
    /// An OCI image layout: its directory and the digest of the manifest.
    Layout {
        /// Directory with `oci-layout` and `index.json`.
        dir: PathBuf,
        /// `sha256:...` of the manifest.
        manifest: String,
    },
}

/// An assembled user-mode tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserspaceAtHand {
    /// Driver version it belongs to.
    pub driver_version: String,
    /// `uname -m`.
    pub arch: String,
    /// Directory of the tree (the store's `userspace/NAME/root`).
    pub root: PathBuf,
}

/// A driver package that the archives offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverAtHand {
    /// Upstream version.
    pub version: String,
    /// Flavour of the kernel sources.
    pub flavour: Flavour,
    /// Package that holds the kernel sources, for example `nvidia-kernel-source`.
    pub package: String,
    /// Debian version of that package.
    pub package_version: String,
    /// Suite it is in.
    pub suite: String,
    /// sha256 (hex) of the package.
    pub sha256: String,
}

/// Headers and compiler for one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadersAtHand {
    /// The archives have them.
    Archive {
        /// The headers package, for example `linux-headers-6.1.0-50-amd64`.
        package: String,
        /// Its version.
        version: String,
        /// The compiler package it asks for, for example `gcc-12`.
        compiler: String,
    },
    /// They have not; the releases that come nearest.
    Missing {
        /// Nearest releases the archives have headers for.
        nearest: Vec<String>,
    },
}
