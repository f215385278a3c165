//! Source of the content that steps give to the kernel: module images and trees.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use longshore_core::disk::Disk;
use longshore_core::failure::Failure;
use longshore_modules::sets::VerifiedModule;

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

impl ModuleOrigin {
    /// Returns the sha256 (hex) of the driver's module; None for the kernel's own.
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::Driver { sha256 } => Some(sha256),
            Self::Kernel { .. } => None,
        }
    }
}

/// A module's file, open and not compressed, for finit_module(2).
#[derive(Debug)]
pub enum ModuleFile {
    /// A module of the kernel's own, loaded as modprobe loads it.
    Kernel(File),
    /// A module of the store.
    Driver(VerifiedModule),
}

impl ModuleFile {
    /// The file, open for reading.
    pub fn file(&self) -> &File {
        match self {
            Self::Kernel(file) => file,
            Self::Driver(module) => module.file(),
        }
    }

    /// Checks, after the kernel has read the file, that it read the verified bytes.
    ///
    /// # Errors
    /// 13 if the file was written to meanwhile.
    pub fn check_unwritten(&self) -> Result<(), Failure> {
        match self {
            Self::Kernel(_) => Ok(()),
            Self::Driver(module) => module.check_unwritten(),
        }
    }
}

/// Source of module images.
pub trait Images: Send + Sync {
    /// The bytes of a module, not compressed.
    ///
    /// # Errors
    /// 13 where the bytes do not have the expected digest; 12 or 16 where they are absent.
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure>;
    /// The file of a module that is already verified, so that the kernel can read it directly; None
    /// if the module has to be loaded from memory.
    ///
    /// # Errors
    /// 12 or 16 where the file cannot be read.
    fn file(&self, name: &str, origin: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure>;
    /// Verifies every byte of an assembled tree of the store, before it is exposed to the host.
    ///
    /// # Errors
    /// 13 where it differs from the assembled tree.
    fn check_tree(&self, tree: &Path) -> Result<(), Failure>;
    /// The same images, of a store on this disk; None if they are of no store.
    fn on(&self, _disk: Disk) -> Option<Arc<dyn Images>> {
        None
    }
}
