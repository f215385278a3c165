//! Record of a compile: the inputs of a set that its key does not name, and the times.

use serde::{Deserialize, Serialize};

use super::ModuleSet;

/// A package that a compile used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputPackage {
    /// Name, for example `gcc-12`.
    pub name: String,
    /// Debian version.
    pub version: String,
    /// Debian architecture: `amd64`, `arm64` or `all`.
    pub arch: String,
    /// sha256 (hex) of the .deb.
    pub sha256: String,
}

/// Core objects of a source tree that modules were linked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreInput {
    /// Digest (hex) of everything that decides them, by which the store and registries have them.
    pub key: String,
    /// Manifest (`sha256:...`) that they were pulled by; None where they were compiled into this store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled: Option<String>,
}

/// Record of the compile that made a set, in the store that it was compiled into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildRecord {
    /// sha256 (hex) of each module that it made, in the set's order: a set with the same key may be
    /// fetched over it.
    pub modules: Vec<String>,
    /// Package of the driver's sources, or name of the .run file: the key has its digest.
    pub driver: String,
    /// Name of the package with the compiler; empty where the build root was given.
    pub compiler: String,
    /// Packages of the build root, the headers among them; empty where it was given.
    pub packages: Vec<InputPackage>,
    /// Core objects, where the driver's sources have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreInput>,
    /// Version of longshore that compiled.
    pub longshore: String,
    /// Beginning of the compile, by RFC 3339 in UTC.
    pub started: String,
    /// End of the compile.
    pub finished: String,
}

impl BuildRecord {
    /// True if it is of the compile that made exactly the modules of `set`.
    pub fn is_of(&self, set: &ModuleSet) -> bool {
        set.modules.iter().map(|module| &module.sha256).eq(&self.modules)
    }
}
