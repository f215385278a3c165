//! Places of sets, and items of sources.

use std::path::Path;

use longshore_core::source_id::SourceId;
use longshore_modules::registry::RegistrySource;
use longshore_sources::finished::FinishedModules;
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::source_tree::SourceTree;

/// Location of a built set, or of finished modules.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}", if self.is_store() { "the store" } else { at.as_str() })]
pub struct SetPlace {
    /// Kind of the source.
    pub source: SourceId,
    /// The place in the source's own words: directory, repository, or package; empty for the store.
    pub at: String,
    /// Digest there: `sha256:...` of a manifest, sha256 (hex) of a package; empty for the store.
    pub digest: String,
}

impl SetPlace {
    /// Returns the store.
    pub fn store() -> Self {
        Self { source: SourceId::Store, at: String::new(), digest: String::new() }
    }

    /// Returns the place of a manifest in an OCI image layout: a directory with `oci-layout` and `index.json`.
    pub fn layout(dir: &Path, manifest: &str) -> Self {
        let (at, digest) = (dir.display().to_string(), manifest.to_owned());
        Self { source: SourceId::Layout, at, digest }
    }

    /// Returns the place of a manifest in a registry.
    pub fn registry(registry: &RegistrySource, manifest: &str) -> Self {
        let (at, digest) = (registry.reference.to_string(), manifest.to_owned());
        Self { source: SourceId::Registry, at, digest }
    }

    /// True for a set that is pulled; one in a directory is imported.
    pub fn is_pulled(&self) -> bool {
        match self.source {
            SourceId::Registry => true,
            SourceId::Layout
            | SourceId::Store
            | SourceId::Package
            | SourceId::RunFiles
            | SourceId::SourceTrees
            | SourceId::Archives
            | SourceId::BuildRoot
            | SourceId::Publish => false,
        }
    }

    /// True for the store.
    pub fn is_store(&self) -> bool {
        self.source == SourceId::Store
    }
}

impl From<&FinishedModules> for SetPlace {
    fn from(finished: &FinishedModules) -> Self {
        let package = &finished.package;
        Self {
            source: SourceId::Package,
            at: format!("{} {} ({})", package.name, package.version, package.origin.text),
            digest: package.sha256.clone(),
        }
    }
}

/// Item of a source that is brought into the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A built set.
    Set(SetPlace),
    /// A package with finished modules: they are linked if they come as objects, and made a set of. The modules, and
    /// so the exact driver, are known only afterwards, so planning is repeated then.
    Package(Box<FinishedModules>),
    /// A .run file. Its list of GPUs is known only afterwards, so planning is repeated then.
    RunFile(AvailableRunFile),
    /// A tree of NVIDIA's open kernel modules.
    SourceTree(SourceTree),
}

impl Item {
    /// Returns the kind of source that has it.
    pub fn source(&self) -> SourceId {
        match self {
            Self::Set(place) => place.source,
            Self::Package(_) => SourceId::Package,
            Self::RunFile(_) => SourceId::RunFiles,
            Self::SourceTree(_) => SourceId::SourceTrees,
        }
    }
}
