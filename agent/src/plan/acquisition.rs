//! Acquisitions into the store: items of sources, compiles, signatures and user-mode trees.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::catalog::{Item, SetPlace};
use longshore_build::mofed::Mofed;
use longshore_core::flavour::Flavour;
use longshore_debian::archive::Package;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::module_signing::Signer;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::finished::LinkedFrom;
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::runfile::AvailableRunFile;

/// One acquisition into the store. As JSON it has names only, which do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquire {
    /// Bring an item of a source into the store.
    Fetch(Item),
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

/// An acquisition as `longshore plan --json` prints it.
#[derive(Serialize)]
#[serde(tag = "acquire", rename_all = "kebab-case")]
enum Named<'a> {
    FetchRunFile {
        name: &'a str,
        sha256: &'a str,
    },
    FetchSourceTree {
        version: &'a str,
        sha256: &'a str,
    },
    ImportSet {
        dir: &'a str,
        manifest: &'a str,
    },
    PullSet {
        registry: &'a str,
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
    fn from_build(build: &'a BuildSet) -> Option<Self> {
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
            Acquire::Fetch(Item::RunFile(file)) => {
                Self::FetchRunFile { name: &file.name, sha256: &file.sha256 }
            }
            Acquire::Fetch(Item::SourceTree(tree)) => {
                Self::FetchSourceTree { version: &tree.version, sha256: &tree.sha256 }
            }
            Acquire::Fetch(Item::Set(place)) => {
                let SetPlace { at, digest, .. } = place;
                match place.is_pulled() {
                    true => Self::PullSet { registry: at, manifest: digest },
                    false => Self::ImportSet { dir: at, manifest: digest },
                }
            }
            Acquire::Fetch(Item::Package(finished)) => {
                let Package { name, version, sha256, origin, .. } = &finished.package;
                let linked_from = finished.linked.as_deref().map(NamedObjects::from);
                Self::ReadPackage { name, version, suite: &origin.text, sha256, linked_from }
            }
            Acquire::BuildSet(build) => Self::BuildSet {
                driver_version: &build.driver_version,
                flavour: build.flavour,
                kernel_release: &build.kernel_release,
                mofed: build.mofed.as_ref().map(Mofed::place),
                build_root: NamedRoot::from_build(build),
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
