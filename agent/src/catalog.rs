//! What is at hand: built module sets, driver packages, user-mode trees, headers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::artifact::{Flavour, ModuleSet, layout};
use crate::config::Config;
use crate::failure::Failure;
use crate::host::HostFacts;
use crate::host::facts::Known;
use crate::module_signing::{Certificate, Signer};
use crate::source::archive::Archive;
pub use crate::source::runfile::{Chip, SupportedGpus};
use crate::source::{driver, headers, userspace};
use crate::store::Store;

/// Everything a plan may choose from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Catalog {
    /// Built sets of modules, best first (the store before prebuilt directories before registries).
    pub sets: Vec<SetAtHand>,
    /// Sets that count for nothing because they are not signed as the configuration requires.
    #[serde(default)]
    pub refused: Vec<RefusedSet>,
    /// Registries that could not be read.
    #[serde(default)]
    pub unread: Vec<UnreadRegistry>,
    /// User-mode trees assembled in the store.
    pub userspace: Vec<UserspaceAtHand>,
    /// Driver packages the archives offer, newest first, or why the archives were not read.
    pub drivers: Known<Vec<DriverAtHand>>,
    /// The .run files that the configuration names, as far as they are known. Where there are any,
    /// drivers come from these, and not from the archives.
    pub run_files: Known<Vec<RunFileAtHand>>,
    /// Whether headers and compiler for the kernel can be had, or why that was not looked up.
    pub headers: Known<HeadersAtHand>,
    /// Who signs modules for the kernel here, where the configuration says so.
    #[serde(default)]
    pub signer: Option<Signer>,
    /// Of sets of the store that are for this kernel, by their names there: whether the kernel takes
    /// their modules. Those that are known to fit are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fits: BTreeMap<String, Fit>,
}

/// What a comparison of a set's modules with the kernel came to: vermagic, and the CRCs of the symbols
/// that they import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// They are the kernel's.
    Fits {
        /// What they were compared with.
        place: String,
        /// How many symbols could be compared.
        symbols: usize,
    },
    /// The kernel would refuse a module.
    Differs {
        /// What they were compared with.
        place: String,
        /// A line for each difference, 18 at most.
        lines: Vec<String>,
        /// How many more there are.
        more: usize,
    },
    /// There is nothing to compare them with.
    Unchecked {
        /// Why.
        why: String,
    },
}

/// A built set of modules.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SetAtHand {
    /// The set.
    pub set: ModuleSet,
    /// Where its modules lie.
    pub place: SetPlace,
}

/// A set that is not signed as the configuration requires.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RefusedSet {
    /// The set.
    pub at_hand: SetAtHand,
    /// Why it does not count as signed.
    pub why: String,
}

/// A registry that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadRegistry {
    /// Its repository.
    pub name: String,
    /// Why.
    pub why: String,
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
    /// A registry.
    Registry {
        /// The repository as it is configured.
        registry: String,
        /// `sha256:...` of the manifest.
        manifest: String,
    },
}

impl std::fmt::Display for SetPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store => f.write_str("the store"),
            Self::Layout { dir, .. } => write!(f, "{}", dir.display()),
            Self::Registry { registry, .. } => f.write_str(registry),
        }
    }
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
    /// The programs in its `usr/bin`; none are known of a tree that is not assembled yet.
    #[serde(default)]
    pub tools: Vec<String>,
}

/// A driver that can be compiled: its kernel sources in one flavour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverAtHand {
    /// Upstream version.
    pub version: String,
    /// Flavour of the kernel sources.
    pub flavour: Flavour,
    /// What holds the kernel sources.
    pub origin: DriverOrigin,
    /// sha256 (hex) of the package or the .run file.
    pub sha256: String,
}

/// What holds a driver's kernel sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverOrigin {
    /// A package of an archive.
    Package {
        /// Name, for example `nvidia-kernel-source`.
        name: String,
        /// Debian version.
        version: String,
        /// Suite it is in.
        suite: String,
    },
    /// One of NVIDIA's .run files.
    RunFile {
        /// Its name, for example `NVIDIA-Linux-x86_64-535.261.03.run`.
        name: String,
    },
}

/// One of NVIDIA's .run files: a driver in all its flavours, with its user-mode files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFileAtHand {
    /// Its name, for example `NVIDIA-Linux-x86_64-535.261.03.run`.
    pub name: String,
    /// Where it can be had, best first.
    pub urls: Vec<String>,
    /// sha256 (hex) it must have.
    pub sha256: String,
    /// Driver version: of its header, until it is in the store.
    pub version: String,
    /// Flavours it has: expected of its branch, until it is in the store.
    pub flavours: Vec<Flavour>,
    /// Whether the store has it unpacked.
    pub stored: bool,
    /// Which GPUs it says it drives, once it is in the store.
    pub gpus: Option<SupportedGpus>,
}

impl RunFileAtHand {
    /// The drivers that can be compiled from it.
    pub fn drivers(&self) -> impl Iterator<Item = DriverAtHand> + '_ {
        self.flavours.iter().map(|flavour| DriverAtHand {
            version: self.version.clone(),
            flavour: *flavour,
            origin: DriverOrigin::RunFile { name: self.name.clone() },
            sha256: self.sha256.clone(),
        })
    }
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
        /// Why what comes before on the ladder was passed over.
        #[serde(default)]
        passed_over: Vec<String>,
    },
    /// They lie on the host, or where the configuration says; the compiler is the archives'.
    Local {
        /// Where.
        place: String,
        /// The compiler they ask for, as it names itself.
        compiler: String,
        /// Why what comes before on the ladder was passed over.
        #[serde(default)]
        passed_over: Vec<String>,
    },
    /// Nobody has them; the releases that come nearest.
    Missing {
        /// Nearest releases the archives have headers for.
        nearest: Vec<String>,
        /// Why each place was passed over.
        #[serde(default)]
        passed_over: Vec<String>,
    },
}

/// Gathers what is at hand for the host. Reads the store, where there is one, the prebuilt
/// directories and the indexes of the archive; fetches nothing.
///
/// A set of the store that is for this host's kernel is read whole and left out where it is
/// damaged, so that a plan does not rest on it.
///
/// # Errors
/// Exit code 12 or 13 where a prebuilt directory is not one or is damaged; 15 where the store
/// cannot be listed; 2 where the certificate of who signs modules cannot be read.
pub fn gather(
    config: &Config,
    facts: &HostFacts,
    store: Option<&Store>,
    archive: Known<&Archive>,
) -> Result<Catalog, Failure> {
    let mut sets = Vec::new();
    let mut trees = Vec::new();
    if let Some(store) = store {
        let release = &facts.kernel.release;
        let usable = |set: &ModuleSet| set.key.kernel_release != *release || store.holds(set);
        let stored = store.sets()?.into_iter().filter(usable);
        sets.extend(stored.map(|set| SetAtHand { set, place: SetPlace::Store }));
        trees = userspace::at_hand(store)?;
    }
    for dir in &config.prebuilt {
        sets.extend(layout::list(dir)?.into_iter().map(|entry| SetAtHand {
            set: entry.set,
            place: SetPlace::Layout { dir: dir.clone(), manifest: entry.manifest },
        }));
    }
    sets.retain(|at_hand: &SetAtHand| config.patches.allows(at_hand.set.key.patches.keys()));
    let kernel = &facts.kernel;
    let wanted = headers::Wanted { release: &kernel.release, version: Some(&kernel.version) };
    let (drivers, headers) = match archive {
        Known::Yes(archive) => (
            Known::Yes(driver::drivers(archive)),
            Known::Yes(headers::at_hand(wanted, &config.header_places(), archive)),
        ),
        Known::Unknown(why) => (Known::Unknown(why.clone()), Known::Unknown(why)),
    };
    let (refused, unread) = (Vec::new(), Vec::new());
    let run_files = Known::Yes(Vec::new());
    let signer = signer(config)?;
    let (userspace, fits) = (trees, BTreeMap::new());
    Ok(Catalog { sets, refused, unread, userspace, drivers, run_files, headers, signer, fits })
}

/// Who signs modules here.
///
/// # Errors
/// Exit code 2 where the certificate cannot be read.
fn signer(config: &Config) -> Result<Option<Signer>, Failure> {
    let Some(signing) = &config.module_signing else { return Ok(None) };
    let certificate = Certificate::read(&signing.certificate)?;
    Ok(Some(Signer::of(&certificate, signing.key().is_none())))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::artifact::{HeadersFrom, ModuleKey};
    use crate::config::{self, Fragment};
    use crate::failure::ExitCode;

    fn facts() -> HostFacts {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
        HostFacts::read(&tree, &tree).unwrap()
    }

    fn config() -> Config {
        config::load(Fragment::default(), &|_| None, None).unwrap()
    }

    fn set(release: &str) -> ModuleSet {
        let key = ModuleKey {
            driver_version: "535.261.03".into(),
            flavour: Flavour::Open,
            driver_digest: "0".repeat(64),
            kernel_release: release.into(),
            kernel_version: "#1".into(),
            arch: "x86_64".into(),
            headers: BTreeMap::new(),
            compiler: "gcc-12".into(),
            options: Vec::new(),
            patches: BTreeMap::new(),
            signed_by: None,
        };
        ModuleSet { key, headers_from: HeadersFrom::Archive, modules: Vec::new() }
    }

    #[test]
    fn nothing_at_hand_is_an_empty_catalog_that_says_why() {
        let why = "the archive was not asked";
        let catalog = gather(&config(), &facts(), None, Known::Unknown(why.into())).unwrap();
        assert!(catalog.sets.is_empty() && catalog.userspace.is_empty());
        assert_eq!(catalog.drivers, Known::Unknown(why.into()));
        assert_eq!(catalog.headers, Known::Unknown(why.into()));
    }

    #[test]
    fn a_prebuilt_directory_that_is_none_is_a_failure() {
        let mut config = config();
        config.prebuilt.push("/no/such/directory".into());
        let failure = gather(&config, &facts(), None, Known::Unknown(String::new())).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Download);
    }

    #[test]
    fn a_damaged_set_for_this_kernel_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let mut set = set("6.1.0-50-amd64");
        set.modules.push(crate::artifact::ModuleEntry {
            name: "nvidia".into(),
            file: "nvidia.ko".into(),
            sha256: store.put(b"image").unwrap(),
            size: 5,
            vermagic: "6.1.0-50-amd64 SMP ".into(),
            version: None,
            srcversion: None,
            depends: Vec::new(),
        });
        store.put_set(&set).unwrap();
        let at_hand = || {
            gather(&config(), &facts(), Some(&store), Known::Unknown(String::new())).unwrap().sets
        };
        assert_eq!(at_hand().len(), 1);
        std::fs::write(store.blob_path(&set.modules[0].sha256), b"other").unwrap();
        assert_eq!(at_hand().len(), 0);
    }
}
