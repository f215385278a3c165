//! Sources of the driver of a guest.

use serde::{Deserialize, Serialize};

/// Source of the guest's driver. Modules are compiled on this machine except for
/// [`Supply::Compile`]: in an emulated one, compiling from scratch takes an hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supply {
    /// A store that `longshore fetch` filled from the archive. No network.
    #[default]
    Archive,
    /// A .run file made of the archive's packages: the modules were compiled from it, and the guest
    /// extracts the user-mode files from it. No network.
    RunFile,
    /// A registry with the modules, signed; the store has only the user-mode files. The guest
    /// reaches nothing but that registry.
    Registry,
    /// A bundle that the guest imports into an empty store. No network.
    Bundle,
    /// A store that a first boot filled as with `Registry`, losing its power when the driver was
    /// Ready. The second boot, without a network, is judged.
    Store,
    /// The archive that this machine uses, through a relay: the guest fetches and compiles. Its
    /// store has the objects and conftest results of a compile on this machine, and nothing else.
    Compile,
    /// A store that `longshore fetch` filled from archives of Ubuntu's shape. No network.
    UbuntuArchive,
    /// As `Archive`, with a stand-in for the fabric manager as a package of a further archive. No network.
    FabricManager,
    /// A store with modules that were compiled in a build root of Enterprise Linux's layout. No
    /// network.
    BuildRoot,
    /// A store with modules that were compiled from a tree of NVIDIA's published sources, which whoever runs the cell gives.
    /// No user-mode files, no network.
    SourceTree,
    /// Archives on a disk at /srv, with the modules as a package, and without headers, compiler and
    /// kernel sources. The guest's store is empty. No network.
    FinishedModules,
}

impl Supply {
    /// Returns the name of the store on this machine, one for each source of modules: none reuses
    /// what another compiled.
    pub fn store(self) -> &'static str {
        match self {
            Self::Compile => "store-of-one-archive",
            Self::UbuntuArchive => "store-of-ubuntu-archive",
            Self::FabricManager => "store-with-fabric-manager",
            Self::BuildRoot => "store-of-build-root",
            _ => "store",
        }
    }

    /// True if its modules must equal those that the Debian archive's packages give.
    pub fn is_of_another_shape(self) -> bool {
        matches!(self, Self::UbuntuArchive | Self::BuildRoot)
    }

    /// True if the driver's user-mode files have a fabric manager.
    pub fn has_fabric_manager(self) -> bool {
        self == Self::FabricManager
    }

    /// True if the (first) guest reaches a registry.
    pub fn has_registry(self) -> bool {
        matches!(self, Self::Registry | Self::Store)
    }
}
