//! Available module sets, driver packages, user-mode trees and headers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::{Config, SignatureConfig};
use longshore_build::mofed::Mofed;
use longshore_build::sign;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::kernel_id::KernelId;
use longshore_core::machine::Machine;
use longshore_core::ownership;
use longshore_core::store::Store;
use longshore_debian::apt_sources::LeftOut;
use longshore_debian::archive::Archive;
use longshore_host::HostFacts;
use longshore_host::facts::{Kernel, Probe};
use longshore_modules::artifact::{HeadersFrom, ModuleSet};
use longshore_modules::layout;
use longshore_modules::module_signing::{Certificate, Signer};
use longshore_modules::registry::RegistrySource;
use longshore_modules::sets::SetStore;
use longshore_sources::driver::{self, AvailableDriver};
use longshore_sources::finished::{self, FinishedModules};
use longshore_sources::headers::{self, AvailableHeaders};
use longshore_sources::runfile::AvailableRunFile;
pub use longshore_sources::runfile::{Chip, SupportedGpus};
use longshore_sources::userspace::switches::{SwitchPrograms, switch_programs};
use longshore_sources::userspace::{self, AvailableUserspace};

/// Everything that a plan may choose from.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Built module sets, best first (the store before prebuilt directories before registries).
    pub sets: Vec<AvailableSet>,
    /// Sets that are not used because they are not signed, not listed in an index, or not attested, as the
    /// configuration requires.
    pub refused: Vec<RefusedSet>,
    /// Sets that the configuration takes back.
    pub denied: Vec<AvailableSet>,
    /// Registries that could not be read.
    pub unread: Vec<UnreadRegistry>,
    /// User-mode trees assembled in the store.
    pub userspace: Vec<AvailableUserspace>,
    /// Driver packages of the archives, newest first, or the reason why the archives were not read.
    pub drivers: Probe<Vec<AvailableDriver>>,
    /// Programs for NVLink switches in the archives, or the reason why the archives were not read.
    pub switch_programs: Probe<SwitchPrograms>,
    /// Packages of the archives with finished modules for the kernel, best first, that the store has no
    /// set of.
    pub finished: Vec<FinishedModules>,
    /// Configured .run files, as far as they are known. Where there are any, drivers come from
    /// these and not from the archives.
    pub run_files: Probe<Vec<AvailableRunFile>>,
    /// Available headers and compiler for the kernel, or the reason why they were not searched.
    pub headers: Probe<AvailableHeaders>,
    /// MOFED's headers for nvidia_peermem, where GPUDirect RDMA is on, or the reason why they are unusable.
    pub mofed: Probe<Option<Mofed>>,
    /// Signer of modules for the kernel, where configured and, as far as the archives were read, able to sign.
    pub signer: Option<Signer>,
    /// Reason why the configured key cannot sign; `signer` is None then.
    pub no_sign_file: Option<String>,
    /// Result of the comparison with the kernel, for sets of the store that are for this kernel, by
    /// name. Sets that are known to fit are left out.
    pub fits: BTreeMap<String, Fit>,
    /// Failures behind the unknown drivers, .run files and headers above.
    pub failures: SourceFailures,
}

/// Failures of sources that could not be read. A plan goes on without them, or ends with one.
#[derive(Debug, Clone, Default)]
pub struct SourceFailures {
    /// Failure of the archives.
    pub archives: Option<Failure>,
    /// Failure of the .run files.
    pub run_files: Option<Failure>,
    /// Sources of the host's apt that could not be read though the other archives were, one text each.
    pub unread: Vec<String>,
    /// Sources of the host's apt that are not used.
    pub left_out: Vec<LeftOut>,
    /// Settings of the host's apt about proxies, one line each.
    pub apt_proxies: Vec<String>,
}

impl SourceFailures {
    /// Returns the archives' failure where it lies in what is configured or missing here: no archive will have
    /// anything.
    pub fn definite(&self) -> Option<&Failure> {
        self.archives.as_ref().filter(|failure| failure.kind().is_definite())
    }

    /// Warns about each of them, where the plan goes on without.
    pub fn warn(&self) {
        let sources = [("archives", &self.archives), (".run files", &self.run_files)];
        for (name, failure) in sources {
            if let Some(failure) = failure {
                tracing::warn!("continuing without the {name}: {}", failure.one_line());
            }
        }
    }
}

impl Catalog {
    /// Notes that the archives could not be read, by this failure.
    pub(crate) fn without_archives(&mut self, failure: Failure) {
        self.drivers = Probe::Unreadable(failure.one_line());
        self.headers = Probe::Unreadable(failure.one_line());
        self.leave_out_key(&failure);
        self.failures.archives = Some(failure);
    }

    /// Returns a catalog without anything, whose sources were not read for the reason `why`.
    pub fn without_sources(why: &str) -> Self {
        Self {
            sets: Vec::new(),
            refused: Vec::new(),
            denied: Vec::new(),
            unread: Vec::new(),
            userspace: Vec::new(),
            drivers: Probe::Unreadable(why.to_owned()),
            switch_programs: Probe::Unreadable(why.to_owned()),
            finished: Vec::new(),
            run_files: Probe::Unreadable(why.to_owned()),
            headers: Probe::Unreadable(why.to_owned()),
            mofed: Probe::Read(None),
            signer: None,
            no_sign_file: None,
            fits: BTreeMap::new(),
            failures: SourceFailures::default(),
        }
    }

    /// Adds the drivers and the headers for `kernel` that the archives offer.
    pub fn add_archives(&mut self, config: &Config, kernel: &Kernel, archive: &Archive) {
        let KernelId { release, version, .. } = kernel.id();
        let wanted = headers::Wanted { release, version };
        self.drivers = Probe::Read(driver::drivers(archive));
        if let Ok(machine) = Machine::named(&kernel.arch) {
            self.switch_programs = Probe::Read(switch_programs(archive, machine.debian));
        }
        self.failures.unread = archive.unread().to_vec();
        self.failures.left_out = archive.left_out().to_vec();
        self.failures.apt_proxies = archive.apt_proxies().to_vec();
        self.headers = Probe::Read(headers::at_hand(wanted, &config.header_places(), archive));
        if let Err(failure) = sign::check_archive(archive, release, version) {
            self.leave_out_key(&failure);
        }
        if config.takes_module_packages() {
            let version = version.unwrap_or_default().to_owned();
            let of = finished::Kernel { release: release.to_owned(), version };
            self.finished = finished::find(archive, &of);
            self.finished.retain(|one| !has_set_of(&self.sets, one, kernel));
        }
    }
}

impl Catalog {
    /// Leaves out a signer that signs with a key, since its program is in no archive. Signatures made elsewhere
    /// need none.
    pub(crate) fn leave_out_key(&mut self, failure: &Failure) {
        if self.signer.take_if(|signer| !signer.detached).is_some() {
            self.no_sign_file = Some(failure.one_line());
        }
    }

    /// Leaves out sets of packages whose modules differ from `kernel`, as headers say that came later, or that are
    /// for an unknown build and could not be compared: another source may have others, and a package is not
    /// of this host's making.
    pub(crate) fn leave_out_unfit_packages(&mut self, kernel: &Kernel) {
        // Another kernel's modules are compared on the host that runs it.
        let runs = kernel.id().version.is_some();
        let fits = &self.fits;
        let is_unfit = |set: &ModuleSet| match fits.get(&set.key.file_stem()) {
            Some(Fit::Differs { .. }) => true,
            Some(fit) => runs && set.key.kernel_build().is_none() && !fit.compares_symbols(),
            None => false,
        };
        self.sets.retain(|at_hand| !(is_of_package(&at_hand.set) && is_unfit(&at_hand.set)));
    }
}

/// True if there is a set of a package's modules.
fn has_set_of(sets: &[AvailableSet], finished: &FinishedModules, kernel: &Kernel) -> bool {
    let digests = finished.digests();
    let mut keys = sets.iter().filter(|s| is_of_package(&s.set)).map(|at_hand| &at_hand.set.key);
    keys.any(|key| key.headers == digests && key.is_for(&kernel.id()))
}

/// Result of comparing a set's modules with the kernel: vermagic, and the CRCs of imported symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// Vermagic and CRCs match.
    Fits {
        /// Source of the comparison.
        place: String,
        /// Number of compared symbols.
        symbols: usize,
    },
    /// The kernel would refuse a module.
    Differs {
        /// Source of the comparison.
        place: String,
        /// Differences, one line each, 18 at most.
        lines: Vec<String>,
        /// Number of further differences.
        more: usize,
    },
    /// No source for a comparison is available.
    Unchecked {
        /// Why.
        why: String,
    },
}

impl Fit {
    /// True if symbols were compared, which tell the kernel's build from others: vermagic has only its release.
    pub(crate) fn compares_symbols(&self) -> bool {
        matches!(self, Self::Fits { symbols: 1.., .. } | Self::Differs { .. })
    }
}

/// An available built set of modules.
#[derive(Debug, Clone)]
pub struct AvailableSet {
    /// Module set.
    pub set: ModuleSet,
    /// Location of its modules.
    pub place: SetPlace,
}

/// A set that is not signed, not listed in an index, or not attested, as the configuration requires.
#[derive(Debug, Clone)]
pub struct RefusedSet {
    /// The set.
    pub at_hand: AvailableSet,
    /// Reason why it does not count.
    pub why: String,
    /// Missing proof.
    pub lacks: Lack,
}

/// Requirement that a set does not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// A signature.
    Signature,
    /// A place in the index of its repository; its signature was not read.
    Listing,
    /// It is signed, and lacks an attestation.
    Attestation,
}

/// A registry that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadRegistry {
    /// Its repository.
    pub name: String,
    /// Why.
    pub why: String,
}

/// Location of a built set, or of finished modules.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        /// Repository as configured, with its mirrors.
        registry: RegistrySource,
        /// `sha256:...` of the manifest.
        manifest: String,
    },
    /// A package of an archive with finished modules, which become a set of the store.
    Package {
        /// Name of the package.
        name: String,
        /// Version of the package.
        version: String,
        /// Suite of the package.
        suite: String,
        /// sha256 (hex) of the package.
        sha256: String,
    },
}

impl From<&FinishedModules> for SetPlace {
    fn from(finished: &FinishedModules) -> Self {
        let package = &finished.package;
        Self::Package {
            name: package.name.clone(),
            version: package.version.clone(),
            suite: package.suite.clone(),
            sha256: package.sha256.clone(),
        }
    }
}

impl std::fmt::Display for SetPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store => f.write_str("the store"),
            Self::Layout { dir, .. } => write!(f, "{}", dir.display()),
            Self::Registry { registry, .. } => registry.reference.fmt(f),
            Self::Package { name, version, suite, .. } => write!(f, "{name} {version} ({suite})"),
        }
    }
}

/// Gathers everything available for the host without a query: from the store, where it exists, and
/// the prebuilt directories. The archives are not read, for the reason `why`.
///
/// A set of the store for this host's kernel is read whole, and left out where it is damaged, so
/// that no plan depends on it.
///
/// # Errors
/// Exit code 2 where a prebuilt directory is missing, or the certificate of the module signer cannot be
/// read; 12 or 13 where a prebuilt directory is no image layout or is damaged; 15 where the store cannot be
/// listed.
pub fn gather(
    config: &Config,
    facts: &HostFacts,
    store: Option<&Store>,
    why: &str,
) -> Result<Catalog, Failure> {
    let mut sets = Vec::new();
    let mut trees = Vec::new();
    if let Some(store) = store {
        let release = &facts.kernel.release;
        let usable = |set: &ModuleSet| set.key.kernel_release != *release || store.holds(set);
        let stored = store.sets()?.into_iter().filter(usable);
        sets.extend(stored.map(|set| AvailableSet { set, place: SetPlace::Store }));
        trees = userspace::at_hand(store)?;
    }
    for dir in &config.prebuilt {
        check_there(dir)?;
        check_owners(dir, &config.signatures)?;
        sets.extend(layout::list(dir)?.into_iter().map(|entry| AvailableSet {
            set: entry.set,
            place: SetPlace::Layout { dir: dir.clone(), manifest: entry.manifest },
        }));
    }
    sets.retain(|at_hand: &AvailableSet| config.patches.allows(at_hand.set.key.patches.keys()));
    sets.retain(|at_hand| config.module_packages || !is_of_package(&at_hand.set));
    let run_files = Probe::Read(Vec::new());
    let (userspace, signer) = (trees, signer(config)?);
    Ok(Catalog { sets, userspace, run_files, signer, ..Catalog::without_sources(why) })
}

/// Maximum number of files in a layout: a set has ten.
const MOST_OF_LAYOUT: usize = 1_000_000;

/// Checks that nobody but root may write to a directory of prebuilt sets, or on the way to it. Where signatures are
/// required they decide, whoever wrote the files.
///
/// # Errors
/// Exit code 13 with the file that others may write to.
pub fn check_owners(dir: &Path, signatures: &SignatureConfig) -> Result<(), Failure> {
    if signatures.required {
        return Ok(());
    }
    ownership::tree(Path::new("/"), dir, MOST_OF_LAYOUT).map_err(|error| {
        let what = format!("reading the unsigned sets in {}", dir.display());
        ownership::failure(
            FailureKind::Verification,
            what,
            error,
            "check the directory of --prebuilt",
        )
    })
}

fn check_there(dir: &Path) -> Result<(), Failure> {
    match dir.try_exists() {
        Ok(false) => {
            let cause = format!("the prebuilt directory {} is missing", dir.display());
            Err(Failure::new(FailureKind::Usage, cause)
                .remedy("correct --prebuilt, or mount the directory in the container"))
        }
        // The reading that follows fails, too, and has the error.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// True if a set's modules are those of a package.
fn is_of_package(set: &ModuleSet) -> bool {
    set.headers_origin() == HeadersFrom::Package
}

/// Returns the signer of modules.
///
/// # Errors
/// Exit code 2 where the certificate cannot be read.
pub(crate) fn signer(config: &Config) -> Result<Option<Signer>, Failure> {
    let Some(signing) = &config.module_signing else { return Ok(None) };
    let certificate = Certificate::read(&signing.certificate)?;
    Ok(Some(Signer::of(&certificate, signing.key().is_none())))
}

#[cfg(test)]
mod tests;
