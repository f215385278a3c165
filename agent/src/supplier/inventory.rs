//! Sources, store and failures that the inputs of a plan are read from, and what of them suffices.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::missed::LeftOut;
use super::signing::Signing;
use super::sources::Sources;
use super::store_access::StoreAccess;
use crate::catalog::{Catalog, SetPlace};
use crate::config::Config;
use crate::plan;
use crate::telemetry::Telemetry;
use longshore_build::mofed::Mofed;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::Failure;
use longshore_host::facts::{Kernel, Probe};
use longshore_modules::artifact::{ModuleSet, SetQuery};

/// Reader of the host's facts and of everything available for it.
pub struct Inventory<'a> {
    pub(super) config: &'a Config,
    pub(super) sources: Sources<'a>,
    pub(super) store: StoreAccess<'a>,
    /// MOFED's headers by the kernel's release, read once: its container may become ready during a compile.
    mofed: Mutex<BTreeMap<String, Probe<Option<Mofed>>>>,
    /// Locations whose sets could not be acquired, and count as unavailable since.
    excluded: Mutex<Vec<SetPlace>>,
    pub(super) telemetry: Telemetry,
}

impl<'a> Inventory<'a> {
    /// Returns an inventory for `config` that reports to the terminal or the log.
    pub fn new(config: &'a Config) -> Self {
        Self {
            config,
            sources: Sources::new(config),
            store: StoreAccess::new(config),
            mofed: Mutex::default(),
            excluded: Mutex::default(),
            telemetry: Telemetry::default(),
        }
    }

    /// Returns an inventory for a command that only looks: nothing is written to the store.
    pub fn for_looking(config: &'a Config) -> Self {
        Self { store: StoreAccess::read_only(config), ..Self::new(config) }
    }

    /// Counts transfers and failed sources in `telemetry`, too.
    pub(super) fn counting(self, telemetry: &Telemetry) -> Self {
        let sources = self.sources.counting(telemetry);
        Self { sources, telemetry: telemetry.clone(), ..self }
    }

    /// True if sets and trees of all versions that a plan may choose are available.
    pub(super) fn suffices(&self, kernel: &Kernel, catalog: &Catalog) -> bool {
        let requested = &self.config.driver;
        let versions = match (&requested.version, &catalog.run_files) {
            (Some(version), _) => vec![version],
            (None, Probe::Read(files)) => files.iter().map(|file| &file.version).collect(),
            (None, Probe::Unreadable(_)) => Vec::new(),
        };
        let stays = |set: &ModuleSet| !plan::gives_way(self.config, catalog, set);
        let is_there = |version: &String| {
            self.sets(version, kernel, catalog).any(stays)
                && self.has_trees(version, kernel, catalog)
        };
        !versions.is_empty() && versions.into_iter().all(is_there)
    }

    /// True if set and tree of a suitable driver, of any matching version, are available.
    pub(super) fn has_some(&self, kernel: &Kernel, catalog: &Catalog) -> bool {
        let requested = self.config.driver.version.as_deref();
        let sources = self.config.operator.exposes_sources();
        let trees = catalog.userspace.iter().filter(|tree| tree.sources.is_some() == sources);
        let of_sets = catalog.sets.iter().filter(|_| self.config.modules_only);
        let of_sets = of_sets.map(|available| &available.set.key.driver_version);
        trees.map(|tree| &tree.driver_version).chain(of_sets).any(|version| {
            requested.is_none_or(|requested| DriverVersion::new(version).is_within(requested))
                && self.config.driver.permits(version)
                && self.has_set(version, kernel, catalog)
        })
    }

    /// True if a complete set of exactly this version is available for a kernel.
    pub(super) fn has_set(&self, version: &str, kernel: &Kernel, catalog: &Catalog) -> bool {
        self.sets(version, kernel, catalog).next().is_some()
    }

    /// Returns the complete sets of exactly this version for a kernel.
    fn sets<'s>(
        &'s self,
        version: &'s str,
        kernel: &'s Kernel,
        catalog: &'s Catalog,
    ) -> impl Iterator<Item = &'s ModuleSet> {
        let requested = &self.config.driver;
        let query =
            SetQuery { kernel: kernel.id(), driver_version: version, flavour: requested.flavour };
        let signing = Signing::new(self.config);
        catalog.sets.iter().map(|s| &s.set).filter(move |set| {
            query.matches_with(set, &requested.extra_modules)
                // sign-file comes from the archives.
                && signing.suffices(&set.key, catalog)
        })
    }

    /// True if the store has the tree of this version that each of its sets needs: one with the kernel
    /// sources of the set's flavour, where sources are to be exposed.
    fn has_trees(&self, version: &str, kernel: &Kernel, catalog: &Catalog) -> bool {
        if self.config.modules_only {
            return true;
        }
        let exposes = self.config.operator.exposes_sources();
        let trees = || catalog.userspace.iter().filter(|tree| tree.driver_version == *version);
        let has = |flavour| trees().any(|t| t.sources == exposes.then_some(flavour));
        self.sets(version, kernel, catalog).all(|set| has(set.key.flavour))
    }

    /// Counts a source that failed as unavailable from now on.
    pub(super) fn leave_out(&self, left_out: &LeftOut, failure: &Failure) {
        match left_out {
            LeftOut::Set(place) => {
                if !place.is_store() {
                    self.telemetry.source_failed(place.source, failure);
                }
                self.exclude(place.clone());
            }
            LeftOut::Mofed { release, place } => {
                let (place, why) = (place.display(), failure.one_line());
                let why = format!("a compile with those in {place} failed: {why}");
                self.mofed().insert(release.clone(), Probe::Unreadable(why));
            }
        }
    }

    /// Leaves the set in `place` out of every later catalog.
    pub(super) fn exclude(&self, place: SetPlace) {
        self.excluded().push(place);
    }

    pub(super) fn mofed(&self) -> MutexGuard<'_, BTreeMap<String, Probe<Option<Mofed>>>> {
        self.mofed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leave_out_excluded(&self, catalog: &mut Catalog) {
        let excluded = self.excluded();
        catalog.sets.retain(|available| !excluded.contains(&available.place));
        catalog.finished.retain(|finished| !excluded.contains(&SetPlace::from(finished)));
    }

    fn excluded(&self) -> MutexGuard<'_, Vec<SetPlace>> {
        self.excluded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
