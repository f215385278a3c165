//! Prebuilt sets: found in registries, verified by their signatures, and copied into the store.

mod offered;

use std::path::Path;

use crate::catalog::{
    self, AvailableSet, Catalog, Lack, Offers, RefusedSet, SetPlace, SourceFailure,
};
use crate::config::Config;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::Progress;
use longshore_core::source_id::SourceId;
use longshore_core::store::Store;
use longshore_fetch::http::{Policy, UnreachableHosts};
use longshore_host::facts::Kernel;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::registry::set_index::IndexRule;
use longshore_modules::registry::{Judge, Registry, RegistrySource, SetRequest, SetsFound};
use longshore_modules::sets::SetStore;
use longshore_modules::sets::index_versions::IndexVersions;
use longshore_modules::signature::{Evidence, NotSigned, Trust, refusal};
use longshore_modules::{layout, signed_sets};

/// Reason why a set of a registry is not used.
enum Unfit {
    OtherKernel,
    Denied,
    Refused(Refusal),
}

/// Reason why a set does not count as signed, or as attested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: String,
    /// Proof that the set lacks.
    pub lacks: Lack,
}

impl Refusal {
    fn refuse(self, available: AvailableSet) -> RefusedSet {
        RefusedSet { available, why: self.why, lacks: self.lacks }
    }
}

impl From<NotSigned> for Refusal {
    fn from(why: NotSigned) -> Self {
        let lacks = match why {
            NotSigned::Unattested(_) => Lack::Attestation,
            _ => Lack::Signature,
        };
        Self { why: why.to_string(), lacks }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { why: failure.one_line(), lacks: Lack::Signature }
    }
}

/// Criteria for a registry's set: built for this kernel, and signed as required.
struct Fit<'a> {
    of: &'a Prebuilt<'a>,
    registry: &'a Registry,
    kernel: &'a Kernel,
}

impl Judge for Fit<'_> {
    type Why = Unfit;

    async fn judge(&self, described: &Described) -> Result<(), Unfit> {
        let key = &described.set.key;
        if !key.is_for(&self.kernel.id()) {
            tracing::info!(
                "{}@{} is for another kernel: {} {} {}",
                self.registry.name(),
                described.digest(),
                key.kernel_release,
                key.kernel_version,
                key.arch
            );
            return Err(Unfit::OtherKernel);
        }
        self.of.trust.check_denied(&described.digest()).map_err(|_| Unfit::Denied)?;
        self.of.counts(self.registry, described).await.map_err(Unfit::Refused)
    }
}

/// Finds and acquires prebuilt sets, as configured.
pub struct Prebuilt<'a> {
    config: &'a Config,
    trust: Trust,
    away: UnreachableHosts,
}

impl<'a> Prebuilt<'a> {
    /// Reads the trusted public keys.
    ///
    /// # Errors
    /// Exit code 2 where one is unreadable.
    pub fn new(config: &'a Config) -> Result<Self, Failure> {
        let trust = config.signatures.trust()?;
        Ok(Self { config, trust, away: UnreachableHosts::default() })
    }

    /// Shares the list of unreachable servers.
    #[must_use]
    pub fn sharing(self, away: &UnreachableHosts) -> Self {
        Self { away: away.clone(), ..self }
    }

    /// Removes the sets from the catalog that do not count as signed and attested, where signatures are
    /// required: all in the store, since a plan looks there for those of the next kernel, and elsewhere those for
    /// `kernel`. Elsewhere other kernels' are removed unread.
    pub fn judge(&self, kernel: &Kernel, store: &Store, catalog: &mut Catalog) {
        self.leave_out_denied(store, catalog);
        if !self.trust.required {
            return;
        }
        let sets = std::mem::take(&mut catalog.sets);
        for available in sets {
            let for_kernel = available.set.key.is_for(&kernel.any_build());
            let SetPlace { source, at, digest } = &available.place;
            let evidence = match source {
                SourceId::Store => Ok(store.evidence(&available.set)),
                _ if !for_kernel => continue,
                SourceId::Layout => layout::evidence(Path::new(at), digest, &self.trust).map(Some),
                // Sets of registries were judged when found.
                SourceId::Registry => {
                    catalog.sets.push(available);
                    continue;
                }
                // No signature key signs a package's modules; the others have no sets.
                SourceId::Package
                | SourceId::RunFiles
                | SourceId::SourceTrees
                | SourceId::Archives
                | SourceId::BuildRoot
                | SourceId::Publish => Ok(None),
            };
            let verdict = match (source, &evidence) {
                (SourceId::Store, Ok(None)) => self.verdict_of_signed(&available.set, store),
                _ => self.verdict(evidence, &available.set),
            };
            match verdict {
                Ok(()) => catalog.sets.push(available),
                Err(refusal) => catalog.refused.push(refusal.refuse(available)),
            }
        }
    }

    /// Moves the sets that the configuration takes back out of the catalog's sets.
    fn leave_out_denied(&self, store: &Store, catalog: &mut Catalog) {
        if self.trust.denied.is_empty() {
            return;
        }
        let is_denied = |digest: &String| self.trust.denied.contains(digest);
        let sets = std::mem::take(&mut catalog.sets);
        let (denied, sets) =
            sets.into_iter().partition(|available| match available.place.is_store() {
                true => stored_digests(&available.set, store).iter().any(is_denied),
                false => is_denied(&available.place.digest),
            });
        catalog.sets = sets;
        catalog.denied.extend::<Vec<_>>(denied);
    }

    /// Returns the registries' sets for `kernel`; versions of required indexes are kept in `store`. An unreadable
    /// registry is recorded: there may be other sources.
    ///
    /// # Errors
    /// Exit code 2 for a configuration that permits no request at all.
    pub async fn ask_registries(&self, kernel: &Kernel, store: &Store) -> Result<Offers, Failure> {
        let mut offers = Offers::default();
        for source in &self.config.registries {
            let name = source.reference.to_string();
            let registry = self.open(source, store)?;
            let found = self.find(&registry, kernel).await;
            if let Some(failure) = found.failed.filter(|_| found.taken.is_empty()) {
                tracing::warn!("continuing without {name}: {}", failure.one_line());
                offers.failures.push(SourceFailure::new(SourceId::Registry, name, failure));
            }
            let available = |described: Described| {
                let place = SetPlace::registry(source, &described.digest());
                AvailableSet { set: described.set, place }
            };
            offers.sets.extend(found.taken.into_iter().map(available));
            offers.refused.extend(found.unlisted.into_iter().map(|(described, why)| {
                let refusal = Refusal { why: why.to_string(), lacks: Lack::Listing };
                refusal.refuse(available(described))
            }));
            for (described, unfit) in found.refused {
                match unfit {
                    Unfit::Refused(refusal) => {
                        offers.refused.push(refusal.refuse(available(described)));
                    }
                    Unfit::Denied => offers.denied.push(available(described)),
                    Unfit::OtherKernel => {}
                }
            }
        }
        Ok(offers)
    }

    /// Searches a registry for the configured driver's sets for `kernel`.
    async fn find(&self, registry: &Registry, kernel: &Kernel) -> SetsFound<Unfit> {
        let requested = SetRequest {
            driver: self.config.driver.version.as_deref(),
            flavour: self.config.driver.flavour,
            kernel_release: &kernel.release,
            arch: &kernel.arch,
        };
        registry.find(requested, &Fit { of: self, registry, kernel }).await
    }

    /// Checks that a set of a registry counts as signed and attested, where that is required.
    ///
    /// # Errors
    /// The reason why it does not.
    pub async fn counts(&self, registry: &Registry, described: &Described) -> Result<(), Refusal> {
        if !self.trust.required {
            return Ok(());
        }
        let evidence = registry.evidence(described, &self.trust).await.map(Some);
        self.verdict(evidence, &described.set)
    }

    /// Copies a set out of a layout into the store, with its signatures where required.
    ///
    /// # Errors
    /// As [`layout::import`]; 13 where it does not count as signed and attested.
    pub async fn import(
        &self,
        dir: &Path,
        manifest: &str,
        store: &Store,
    ) -> Result<ModuleSet, Failure> {
        let (dir, manifest, store) = (dir.to_path_buf(), manifest.to_owned(), store.clone());
        let (trust, signatures) = (self.trust.clone(), self.config.signatures.clone());
        let import = move || {
            catalog::check_owners(&dir, &signatures)?;
            let mut evidence = None;
            let place = format!("{manifest} in {}", dir.display());
            trust.check_denied(&manifest).map_err(|why| refusal(&place, &why))?;
            if trust.required {
                let found = layout::evidence(&dir, &manifest, &trust)?;
                let set = layout::describe(&dir, &manifest)?;
                found.meets(&set, &trust).map_err(|why| refusal(&place, &why))?;
                evidence = Some(found.keeping(trust.keys()));
            }
            let set = layout::import(&dir, &manifest, &store)?;
            if evidence.is_none() && Described::from_set(&set)?.digest() != manifest {
                evidence = Some(layout::evidence(&dir, &manifest, &trust)?.keeping(trust.keys()));
            }
            evidence.map_or(Ok(()), |evidence| store.put_evidence(&set, &evidence))?;
            Ok(set)
        };
        tokio::task::spawn_blocking(import)
            .await
            .or_fail(FailureKind::Bug, || "importing a set of modules")?
    }

    /// Fetches a set from a registry into the store, with its signatures where required.
    ///
    /// # Errors
    /// As [`Registry::pull`]; 13 where it does not count as listed, signed and attested.
    pub async fn pull(
        &self,
        registry: &RegistrySource,
        manifest: &str,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<ModuleSet, Failure> {
        let registry = self.open(registry, store)?;
        let place = format!("{}@{manifest}", registry.name());
        self.trust.check_denied(manifest).map_err(|why| refusal(&place, &why))?;
        registry.check_listed(manifest).await?;
        let mut evidence = None;
        if self.trust.required {
            let described = registry.describe(manifest).await?;
            let found = registry.evidence(&described, &self.trust).await?;
            found.meets(&described.set, &self.trust).map_err(|why| refusal(&place, &why))?;
            evidence = Some(found.keeping(self.trust.keys()));
        }
        let set = registry.pull(manifest, store, progress).await?;
        if evidence.is_none() && Described::from_set(&set)?.digest() != manifest {
            // Another longshore described it otherwise: the store has to know by which digest it may be denied.
            let described = registry.describe(manifest).await?;
            evidence = Some(Evidence::new(described.manifest, described.config, Vec::new())?);
        }
        evidence.map_or(Ok(()), |evidence| store.put_evidence(&set, &evidence))?;
        tracing::info!("the modules are {}@{manifest}", registry.name());
        Ok(set)
    }

    /// Counts sets of a registry only if an index lists them, where that is required; versions of indexes are kept in
    /// `store`.
    ///
    /// # Errors
    /// Exit code 2 where `index-minimum-file` cannot be used.
    pub(crate) fn requiring_index(
        &self,
        registry: Registry,
        store: &Store,
    ) -> Result<Registry, Failure> {
        let signatures = &self.config.signatures;
        if !signatures.index_required {
            return Ok(registry);
        }
        // Refused here, too: a failure of the search would be that of an unreadable registry.
        signatures.published_minimums()?;
        let rule = IndexRule::new(&self.trust, signatures.index_minimum, IndexVersions::new(store));
        Ok(registry.requiring_index(rule.with_minimum_file(signatures.index_minimum_file.clone())))
    }

    fn open(&self, source: &RegistrySource, store: &Store) -> Result<Registry, Failure> {
        let policy = Policy::from_config(&self.config.downloads).for_registry();
        let policy = Policy { away: self.away.clone(), ..policy };
        let env = |name: &str| std::env::var(name).ok();
        let registry = Registry::open_with(policy, source, &self.config.paths.host_root, &env)?;
        let registry = registry.with_login_rules(&self.config.logins);
        self.requiring_index(registry, store)
    }

    /// Judges a set that was signed here for the kernel by the unsigned set that it was made of.
    fn verdict_of_signed(&self, set: &ModuleSet, store: &Store) -> Result<(), Refusal> {
        let made_of = match set.key.signed_by {
            Some(_) => signed_sets::made_of(set, store)?,
            None => None,
        };
        match made_of {
            Some(unsigned) => self.verdict(Ok(store.evidence(&unsigned)), &unsigned),
            None => self.verdict(Ok(None), set),
        }
    }

    fn verdict(
        &self,
        evidence: Result<Option<Evidence>, Failure>,
        set: &ModuleSet,
    ) -> Result<(), Refusal> {
        let evidence = evidence?.ok_or(NotSigned::Unsigned)?;
        Ok(evidence.meets(set, &self.trust).map(drop)?)
    }
}

/// Returns the digests of the manifests that a stored set may have come with: that of its evidence, that of its own
/// description, and those of the unsigned set whose modules were signed here for the kernel.
fn stored_digests(set: &ModuleSet, store: &Store) -> Vec<String> {
    let of = |set: &ModuleSet| {
        let came_with = store.evidence(set).map(|evidence| evidence.digest());
        let own = Described::from_set(set).ok().map(|described| described.digest());
        came_with.into_iter().chain(own)
    };
    let unsigned = set.key.signed_by.as_ref().and_then(|_| {
        signed_sets::made_of(set, store)
            .inspect_err(|e| tracing::warn!("the set of a signed one is not known: {e}"))
            .ok()
            .flatten()
    });
    of(set).chain(unsigned.iter().flat_map(of)).collect()
}
