//! Inputs of a plan: the host's facts, and the catalog from local sources to remote ones. A remote
//! source is queried only where the local ones do not suffice.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::acquire::LeftOut;
use super::fits;
use super::mofed;
use super::signing::Signing;
use super::source::{self, Ask, Query};
use super::sources::Sources;
use super::store_access::StoreAccess;
use crate::catalog::{self, Catalog, SetPlace};
use crate::config::Config;
use crate::journal::{self, State};
use crate::plan::{self, Plan};
use crate::prebuilt::Prebuilt;
use crate::provider::Gathered;
use crate::telemetry::Telemetry;
use longshore_build::mofed::Mofed;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::Failure;
use longshore_core::paths::Paths;
use longshore_core::store::Store;
use longshore_host::HostFacts;
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

    /// Returns facts and plan of this host.
    ///
    /// # Errors
    /// Failures that make planning impossible.
    pub async fn decide(&self) -> Result<(HostFacts, Plan), Failure> {
        let gathered = self.gather().await?;
        let plan = self.plan(&gathered)?;
        gathered.catalog.warn_of_failures();
        Ok((gathered.facts, plan))
    }

    /// Reads the host, and what is available for it.
    ///
    /// # Errors
    /// Exit code 15 where the host or the store cannot be read; as [`catalog::gather`].
    pub(super) async fn gather(&self) -> Result<Gathered, Failure> {
        self.gather_for(read_host).await
    }

    /// Makes the plan: of the same inputs always the same.
    ///
    /// # Errors
    /// The failure of a source, where the plan is refused for it: it has more detail than the
    /// finding, such as an unreachable or unsigned archive.
    pub(super) fn plan(&self, of: &Gathered) -> Result<Plan, Failure> {
        let plan = match &of.plan {
            Some(plan) => plan.clone(),
            None => plan::plan(self.config, &of.facts, &of.catalog)?,
        };
        match of.catalog.failure_behind(self.config, &plan.findings) {
            Some(failure) => Err(failure.clone()),
            None => Ok(plan),
        }
    }

    /// Returns the inputs of a plan for the host, or for another kernel, that `read` returns.
    pub(super) async fn gather_for(
        &self,
        read: impl FnOnce(&Config) -> Result<HostFacts, Failure> + Send + 'static,
    ) -> Result<Gathered, Failure> {
        // At a point without other waiting, so that SIGTERM is handled meanwhile.
        let store = self.store.open_in_time().await?;
        self.store.share().await?;
        let (config, opened) = (self.config.clone(), store.clone());
        let known = self.mofed().clone();
        let read = move || -> Result<_, Failure> {
            let facts = read(&config)?;
            let mut catalog = look(&config, &facts, &opened)?;
            let release = &facts.kernel.release;
            let known = known.get(release).cloned();
            catalog.mofed = known.unwrap_or_else(|| mofed::look(&config, release));
            Ok((facts, catalog))
        };
        let (facts, mut catalog) = self.store.in_time(read).await?;
        let release = facts.kernel.release.clone();
        self.mofed().entry(release).or_insert_with(|| catalog.mofed.clone());
        self.leave_out_excluded(&mut catalog);
        self.leave_out_mofed(&mut catalog);
        let mut plan = self.local_plan(&facts, &catalog);
        let needs_no_source = |plan: &Plan| plan.idle || plan::adopts(self.config, &facts, plan);
        if !plan.as_ref().is_some_and(needs_no_source)
            && self.query(&facts.kernel, &mut catalog, &store).await?
        {
            plan = None;
        }
        Ok(Gathered { facts, catalog, plan })
    }

    /// Returns the plan without remote sources, where the loaded driver may be the wanted one, or there is no GPU.
    fn local_plan(&self, facts: &HostFacts, catalog: &Catalog) -> Option<Plan> {
        let may_suffice = facts.live_driver.is_some() || plan::is_idle(self.config, facts);
        may_suffice.then(|| plan::plan(self.config, facts, catalog).ok()).flatten()
    }

    /// Queries the remote sources that are needed; returns true if there was one, so that the
    /// catalog may have changed.
    async fn query(
        &self,
        kernel: &Kernel,
        catalog: &mut Catalog,
        store: &Store,
    ) -> Result<bool, Failure> {
        let mut asked = false;
        for query in Query::ALL {
            let ask = Ask { inventory: self, kernel, store, catalog };
            for source in source::needed(query, &ask) {
                let ask = Ask { inventory: self, kernel, store, catalog };
                let offers = source.offers(&ask).await?;
                catalog.add(offers, kernel);
                self.leave_out_excluded(catalog);
                asked = true;
            }
        }
        Ok(asked)
    }

    /// Leaves MOFED's headers out where a build root is used as it is.
    fn leave_out_mofed(&self, catalog: &mut Catalog) {
        let in_root = self.config.build_root.is_some() && self.config.may_compile();
        if in_root && matches!(catalog.mofed, Probe::Read(Some(_))) {
            let why = "nothing is added to a build root from elsewhere (build-root)";
            catalog.mofed = Probe::Unreadable(why.to_owned());
        }
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
        trees.map(|tree| &tree.driver_version).any(|version| {
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

    fn mofed(&self) -> MutexGuard<'_, BTreeMap<String, Probe<Option<Mofed>>>> {
        self.mofed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave_out_excluded(&self, catalog: &mut Catalog) {
        let excluded = self.excluded();
        catalog.sets.retain(|available| !excluded.contains(&available.place));
        catalog.finished.retain(|finished| !excluded.contains(&SetPlace::from(finished)));
    }

    fn excluded(&self) -> MutexGuard<'_, Vec<SetPlace>> {
        self.excluded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the catalog without registries and archives.
pub(super) fn look(config: &Config, facts: &HostFacts, store: &Store) -> Result<Catalog, Failure> {
    let unasked = "not queried: everything needed is available";
    let mut catalog = catalog::gather(config, facts, Some(store), unasked)?;
    Prebuilt::new(config)?.judge(&facts.kernel, store, &mut catalog);
    catalog.fits = fits::of(config, facts, store, &catalog.sets);
    catalog.leave_out_unfit_packages(&facts.kernel);
    Ok(catalog)
}

/// Reads the facts of the configured host, and which of its parts an agent installed.
pub(super) fn read_host(config: &Config) -> Result<HostFacts, Failure> {
    let paths = &config.paths;
    read_host_with(paths, || match paths.is_captured() {
        true => Ok(None),
        false => journal::read_state(paths),
    })
}

/// Reads the facts of the host, and which of its modules an agent loaded by the record that `record` reads.
///
/// # Errors
/// Exit code 10 where the kernel's release cannot be read; those of `record`.
pub(crate) fn read_host_with(
    paths: &Paths,
    record: impl FnOnce() -> Result<Option<State>, Failure>,
) -> Result<HostFacts, Failure> {
    let mut facts = HostFacts::read(&paths.root, &paths.host_root)?;
    if let Some(state) = record()?
        && !state.is_of_another_boot(facts.kernel.boot_id.as_deref())
    {
        facts.ours = state.driver_modules(&facts.loaded);
    }
    Ok(facts.with_places(paths, &journal::recorded(paths)))
}

#[cfg(test)]
mod tests;
