//! Acquisitions into the store, each with everything that carrying it out needs.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::catalog::SetPlace;
use longshore_build::mofed::Mofed;
use longshore_core::flavour::Flavour;
use longshore_debian::archive::Package;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::module_signing::Signer;
use longshore_modules::registry::RegistrySource;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::finished::{FinishedModules, LinkedFrom};
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::runfile::AvailableRunFile;

/// One acquisition into the store. As JSON it has names only, which do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquire {
    /// Fetch and unpack a .run file. Its list of GPUs is known only afterwards, so planning is
    /// repeated then.
    FetchRunFile(AvailableRunFile),
    /// Copy a prebuilt set out of an OCI image layout.
    ImportSet {
        /// Directory of the layout.
        dir: PathBuf,
        /// `sha256:...` of the manifest.
        manifest: String,
    },
    /// Fetch a prebuilt set from a registry.
    PullSet {
        /// Repository as configured, with its mirrors.
        registry: RegistrySource,
        /// `sha256:...` of the manifest.
        manifest: String,
    },
    /// Fetch a package with finished modules, link those that come as objects, and make a set of them. The modules, and so the
    /// exact driver, are known only afterwards, so planning is repeated then.
    ReadPackage(Box<FinishedModules>),
    /// Compile the modules.
    BuildSet(Box<BuildSet>),
    /// Sign a set for the kernel.
    SignSet {
        /// Unsigned set; the acquisition before this one brings it into the store, if it is not
        /// there yet.
        set: Box<ModuleSet>,
        /// Signer.
        by: Signer,
    },
    /// Fetch and assemble the user-mode tree.
    AssembleUserspace {
        /// Driver version.
        driver_version: String,
        /// The .run file that has it; None where it comes from packages.
        run_file: Option<AvailableRunFile>,
        /// Flavour of the kernel sources to add; None adds none.
        sources: Option<Flavour>,
    },
}

/// A compile of modules, with the catalog's values that decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSet {
    /// Driver version.
    pub driver_version: String,
    /// Flavour.
    pub flavour: Flavour,
    /// Kernel release.
    pub kernel_release: String,
    /// `uname -v`; None takes the newest headers of the release.
    pub kernel_version: Option<String>,
    /// Kernel sources of the driver; None where the catalog has none.
    pub driver: Option<AvailableDriver>,
    /// Headers for the kernel; None where their sources were not read.
    pub headers: Option<AvailableHeaders>,
    /// MOFED's headers for nvidia_peermem.
    pub mofed: Option<Mofed>,
    /// True to sign the modules, where that is configured; false where they are to stay unsigned.
    pub signs: bool,
}

impl Acquire {
    /// Returns the location of a prebuilt set; None where nothing prebuilt is acquired.
    pub fn place(&self) -> Option<SetPlace> {
        match self {
            Self::ImportSet { dir, manifest } => {
                Some(SetPlace::Layout { dir: dir.clone(), manifest: manifest.clone() })
            }
            Self::PullSet { registry, manifest } => {
                Some(SetPlace::Registry { registry: registry.clone(), manifest: manifest.clone() })
            }
            Self::ReadPackage(finished) => Some(SetPlace::from(finished.as_ref())),
            Self::FetchRunFile(_)
            | Self::BuildSet(_)
            | Self::SignSet { .. }
            | Self::AssembleUserspace { .. } => None,
        }
    }
}

/// An acquisition as `longshore plan --json` prints it.
#[derive(Serialize)]
#[serde(tag = "acquire", rename_all = "kebab-case")]
enum Named<'a> {
    FetchRunFile {
        name: &'a str,
        sha256: &'a str,
    },
    ImportSet {
        dir: &'a Path,
        manifest: &'a str,
    },
    PullSet {
        registry: String,
        manifest: &'a str,
    },
    ReadPackage {
        name: &'a str,
        version: &'a str,
        suite: &'a str,
        sha256: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        linked_from: Option<NamedObjects<'a>>,
    },
    BuildSet {
        driver_version: &'a str,
        flavour: Flavour,
        kernel_release: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        mofed: Option<PathBuf>,
        #[serde(skip_serializing_if = "Option::is_none")]
        build_root: Option<NamedRoot<'a>>,
    },
    SignSet {
        set: String,
        signer: String,
    },
    AssembleUserspace {
        driver_version: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        sources: Option<Flavour>,
    },
}

/// Objects of a package's modules as `longshore plan --json` prints them.
#[derive(Serialize)]
struct NamedObjects<'a> {
    objects: &'a str,
    objects_sha256: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    signatures: Option<&'a str>,
    linker: String,
}

impl<'a> From<&'a LinkedFrom> for NamedObjects<'a> {
    fn from(linked: &'a LinkedFrom) -> Self {
        Self {
            objects: &linked.objects.name,
            objects_sha256: &linked.objects.sha256,
            signatures: linked.signatures.as_ref().map(|package| package.name.as_str()),
            linker: linked.linker_version(),
        }
    }
}

/// A build root as `longshore plan --json` prints it.
#[derive(Serialize)]
struct NamedRoot<'a> {
    place: &'a str,
    sha256: &'a str,
}

impl<'a> NamedRoot<'a> {
    fn of(build: &'a BuildSet) -> Option<Self> {
        match &build.headers {
            Some(AvailableHeaders::BuildRoot { place, digest, .. }) => {
                Some(Self { place, sha256: digest })
            }
            _ => None,
        }
    }
}

impl<'a> From<&'a Acquire> for Named<'a> {
    fn from(acquire: &'a Acquire) -> Self {
        match acquire {
            Acquire::FetchRunFile(file) => {
                Self::FetchRunFile { name: &file.name, sha256: &file.sha256 }
            }
            Acquire::ImportSet { dir, manifest } => Self::ImportSet { dir, manifest },
            Acquire::PullSet { registry, manifest } => {
                Self::PullSet { registry: registry.reference.to_string(), manifest }
            }
            Acquire::ReadPackage(finished) => {
                let Package { name, version, suite, sha256, .. } = &finished.package;
                let linked_from = finished.linked.as_deref().map(NamedObjects::from);
                Self::ReadPackage { name, version, suite, sha256, linked_from }
            }
            Acquire::BuildSet(build) => Self::BuildSet {
                driver_version: &build.driver_version,
                flavour: build.flavour,
                kernel_release: &build.kernel_release,
                mofed: build.mofed.as_ref().map(Mofed::place),
                build_root: NamedRoot::of(build),
            },
            Acquire::SignSet { set, by } => {
                Self::SignSet { set: set.key.file_stem(), signer: by.to_string() }
            }
            Acquire::AssembleUserspace { driver_version, sources, .. } => {
                Self::AssembleUserspace { driver_version, sources: *sources }
            }
        }
    }
}

impl Serialize for Acquire {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Named::from(self).serialize(serializer)
    }
}
