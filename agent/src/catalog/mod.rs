//! Available module sets, driver packages, user-mode trees and headers: the sum of what all sources offer.

mod offers;
mod place;

use std::collections::BTreeMap;
use std::path::Path;

pub use offers::{AptState, Offers, SourceFailure};
pub use place::{Item, SetPlace};

use crate::config::{Config, SignatureConfig};
use longshore_build::mofed::Mofed;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{Finding, Severity};
use longshore_core::ownership;
use longshore_core::source_id::SourceId;
use longshore_core::store::Store;
use longshore_host::HostFacts;
use longshore_host::facts::{Kernel, Probe};
use longshore_modules::artifact::core_objects::CoreRecord;
use longshore_modules::artifact::{HeadersFrom, ModuleSet};
use longshore_modules::layout;
use longshore_modules::module_signing::{Certificate, Signer};
use longshore_modules::sets::{SetStore, core_objects};
use longshore_sources::driver::{self, AvailableDriver};
use longshore_sources::finished::FinishedModules;
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::runfile::AvailableRunFile;
pub use longshore_sources::runfile::{Chip, SupportedGpus};
use longshore_sources::source_tree::SourceTree;
use longshore_sources::userspace::switches::SwitchPrograms;
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
    /// Configured trees of NVIDIA's open kernel modules: drivers beside those of archives and .run files.
    pub source_trees: Vec<SourceTree>,
    /// Core objects of these trees that the store has, by some compiler.
    pub core_objects: Vec<CoreRecord>,
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
    /// Failures of sources that could not be read. A plan goes on without them, or ends with one.
    pub failures: Vec<SourceFailure>,
    /// State of the host's apt beside its archives.
    pub apt: AptState,
}

impl Catalog {
    /// Adds what a source offers, after what is there: sources are asked in the order of preference. Packages with
    /// finished modules that there is a set of are left out.
    pub fn add(&mut self, offers: Offers, kernel: &Kernel) {
        self.sets.extend(offers.sets);
        self.refused.extend(offers.refused);
        self.denied.extend(offers.denied);
        self.userspace.extend(offers.userspace);
        self.add_drivers(offers.drivers);
        put(&mut self.switch_programs, offers.switch_programs);
        put(&mut self.run_files, offers.run_files);
        self.source_trees.extend(offers.source_trees);
        put(&mut self.headers, offers.headers);
        put(&mut self.apt, offers.apt);
        if let Some(why) = offers.no_sign_file {
            self.leave_out_key(&why);
        }
        let sets = &self.sets;
        let is_new = |one: &FinishedModules| !has_set_of(sets, one, kernel);
        self.finished.extend(offers.finished.into_iter().filter(is_new));
        self.failures.extend(offers.failures);
    }

    /// Adds drivers to those of the sources before, newest first; a source that could not be read takes none of them away.
    fn add_drivers(&mut self, offered: Option<Probe<Vec<AvailableDriver>>>) {
        match (&mut self.drivers, offered) {
            (Probe::Read(known), Some(Probe::Read(more))) => {
                known.extend(more);
                driver::sort(known);
            }
            (Probe::Read(_), Some(Probe::Unreadable(_))) | (_, None) => {}
            (Probe::Unreadable(_), Some(offered)) => self.drivers = offered,
        }
    }

    /// Returns the failure of this kind of source.
    pub fn failure_of(&self, source: SourceId) -> Option<&Failure> {
        self.failures_of(source).map(|one| &one.failure).next()
    }

    /// Returns the failures of sources of this kind.
    pub(crate) fn failures_of(&self, source: SourceId) -> impl Iterator<Item = &SourceFailure> {
        self.failures.iter().filter(move |one| one.source == source)
    }

    /// Returns the archives' failure where it lies in what is configured or missing here: no archive will have
    /// anything.
    pub fn definite_failure(&self) -> Option<&Failure> {
        self.failure_of(SourceId::Archives).filter(|failure| failure.kind().is_definite())
    }

    /// Returns the failure of a source for which `findings` refuse a plan: it has more detail than the finding.
    pub(crate) fn failure_behind(&self, config: &Config, findings: &[Finding]) -> Option<&Failure> {
        // A captured tree has no sources of its own. A file that the configuration names is read here all the same.
        let counts = |failure: &&Failure| {
            !config.paths.is_captured() || failure.kind() == FailureKind::Usage
        };
        let gravest = findings.iter().find(|finding| finding.severity == Severity::Refusal)?;
        self.failure_of(gravest.code.entry().failure_of()?).filter(counts)
    }

    /// Warns about each of them, where the plan goes on without. Registries are warned of when they are asked.
    pub fn warn_of_failures(&self) {
        let others = self.failures.iter().filter(|one| one.source != SourceId::Registry);
        let mut others: Vec<&SourceFailure> = others.collect();
        others.sort_by_key(|one| one.source);
        for SourceFailure { name, failure, .. } in others {
            tracing::warn!("continuing without the {name}: {}", failure.one_line());
        }
    }

    /// Returns a catalog without anything, whose sources were not read for the reason `why`.
    pub fn without_sources(why: &str) -> Self {
        Self {
            sets: Vec::new(),
            refused: Vec::new(),
            denied: Vec::new(),
            userspace: Vec::new(),
            drivers: Probe::Unreadable(why.to_owned()),
            switch_programs: Probe::Unreadable(why.to_owned()),
            finished: Vec::new(),
            run_files: Probe::Unreadable(why.to_owned()),
            source_trees: Vec::new(),
            core_objects: Vec::new(),
            headers: Probe::Unreadable(why.to_owned()),
            mofed: Probe::Read(None),
            signer: None,
            no_sign_file: None,
            fits: BTreeMap::new(),
            failures: Vec::new(),
            apt: AptState::default(),
        }
    }

    /// Leaves out a signer that signs with a key, since its program is in no archive. Signatures made elsewhere
    /// need none.
    fn leave_out_key(&mut self, why: &str) {
        if self.signer.take_if(|signer| !signer.detached).is_some() {
            self.no_sign_file = Some(why.to_owned());
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
        self.sets.retain(|available| !(is_of_package(&available.set) && is_unfit(&available.set)));
    }
}

/// Puts what a source offers in the place of what is known so far.
fn put<T>(known: &mut T, offered: Option<T>) {
    if let Some(offered) = offered {
        *known = offered;
    }
}

/// True if there is a set of a package's modules.
fn has_set_of(sets: &[AvailableSet], finished: &FinishedModules, kernel: &Kernel) -> bool {
    let digests = finished.digests();
    let mut keys =
        sets.iter().filter(|s| is_of_package(&s.set)).map(|available| &available.set.key);
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
    pub available: AvailableSet,
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
    let mut catalog = Catalog::without_sources(why);
    catalog.run_files = Probe::Read(Vec::new());
    if let Some(store) = store {
        catalog.add(of_store(&facts.kernel, store)?, &facts.kernel);
        let trees = config.source_trees.iter();
        let stored = trees.flat_map(|tree| core_objects::of_tree(&tree.sha256, store));
        catalog.core_objects = stored.map(|core| core.record).collect();
    }
    for dir in &config.prebuilt {
        catalog.add(of_layout(config, dir)?, &facts.kernel);
    }
    let sets = &mut catalog.sets;
    sets.retain(|available| config.patches.allows(available.set.key.patches.keys()));
    sets.retain(|available| config.module_packages || !is_of_package(&available.set));
    catalog.signer = signer(config)?;
    Ok(catalog)
}

/// Returns what the store has: sets, and trees.
fn of_store(kernel: &Kernel, store: &Store) -> Result<Offers, Failure> {
    let usable = |set: &ModuleSet| set.key.kernel_release != *kernel.release || store.holds(set);
    let stored = store.sets()?.into_iter().filter(usable);
    let sets = stored.map(|set| AvailableSet { set, place: SetPlace::store() }).collect();
    Ok(Offers { sets, userspace: userspace::available(store)?, ..Offers::default() })
}

/// Returns the sets of a directory of prebuilt sets.
fn of_layout(config: &Config, dir: &Path) -> Result<Offers, Failure> {
    check_there(dir)?;
    check_owners(dir, &config.signatures)?;
    let available = |entry: layout::LayoutSet| AvailableSet {
        set: entry.set,
        place: SetPlace::layout(dir, &entry.manifest),
    };
    let sets = layout::list(dir)?.into_iter().map(available).collect();
    Ok(Offers { sets, ..Offers::default() })
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
    Ok(Some(Signer::from_certificate(&certificate, signing.key().is_none())))
}

#[cfg(test)]
mod tests;
