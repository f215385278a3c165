//! Inputs of a plan: the host's facts, and the catalog from local sources to remote ones. A remote
//! source is queried only where the local ones do not suffice.

use super::Inventory;
use super::fits;
use super::host_facts::read_host;
use super::mofed;
use super::source::{self, Ask, Query};
use crate::catalog::{self, Catalog};
use crate::config::Config;
use crate::plan::{self, Plan};
use crate::prebuilt::Prebuilt;
use crate::provider::Gathered;
use longshore_core::failure::Failure;
use longshore_core::store::Store;
use longshore_host::HostFacts;
use longshore_host::facts::{Kernel, Probe};

impl Inventory<'_> {
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
}

/// Returns the catalog without registries and archives.
pub(super) fn look(config: &Config, facts: &HostFacts, store: &Store) -> Result<Catalog, Failure> {
    let unasked = "not queried: everything needed is available";
    let mut catalog = catalog::gather(config, facts, Some(store), unasked)?;
    Prebuilt::new(config)?.judge(&facts.kernel, store, &mut catalog);
    catalog.fits = fits::fits_of(config, facts, store, &catalog.sets);
    catalog.leave_out_unfit_packages(&facts.kernel);
    Ok(catalog)
}

#[cfg(test)]
mod tests;
