//! Sets that a registry is to have, whichever kernel this host runs: for `longshore builder`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::once::is_met_by;
use super::publication::Publication;
use super::{Inventory, Provisioner};
use crate::config::{ATTESTED, PublishConfig};
use crate::plan::BuildSet;
use longshore_build::source::driver::AvailableDriver;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::module_signing::{Certificate, Signer};
use longshore_modules::registry::set_index::IndexSummary;
use longshore_modules::registry::{Judge, Registry, Wish};
use longshore_modules::signature::Trust;
use longshore_modules::signature::statement::PredicateType;

/// Number of sets that are not listed and are named in the log.
const MOST_NAMED: usize = 10;

/// Reason that a set was not made.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// The registry could not be asked, or did not take it.
    Registry(Failure),
    /// The set could not be compiled, or signed for the kernel.
    Build(Failure),
}

impl NotMade {
    /// Sorts a failure of the registry: one of its contents, or of this configuration, is no outage.
    fn of_registry(failure: Failure) -> Self {
        match failure.kind() {
            FailureKind::Download => Self::Registry(failure),
            _ => Self::Build(failure),
        }
    }
}

/// The registry that compiled sets are pushed to, and what a set in it has to have.
pub(crate) struct ForRegistry<'p> {
    publication: Publication<'p>,
    trust: Trust,
    /// Signer of the modules for the kernel, where configured.
    signer: Option<Signer>,
}

impl<'p> ForRegistry<'p> {
    /// Reads the keys.
    ///
    /// # Errors
    /// Exit code 2 where a key or the certificate cannot be read.
    pub(crate) fn new(
        provisioner: &'p Provisioner<'p>,
        publish: &'p PublishConfig,
    ) -> Result<Self, Failure> {
        provisioner.signing.check()?;
        let publication = Publication::new(provisioner, publish)?;
        let config = provisioner.config();
        let trust = trust(&publication)?;
        let signer = config.module_signing.as_ref().map(|signing| {
            let certificate = Certificate::read(&signing.certificate)?;
            Ok::<_, Failure>(Signer::of(&certificate, signing.key().is_none()))
        });
        Ok(Self { publication, trust, signer: signer.transpose()? })
    }

    /// Returns the driver of this version or branch, the newest without one, as the sources have it now.
    ///
    /// # Errors
    /// Exit code 12 where no source has it.
    pub(crate) async fn driver(
        &self,
        version: Option<&str>,
        flavour: Flavour,
    ) -> Result<AvailableDriver, Failure> {
        let provisioner = self.publication.provisioner;
        let store = provisioner.store()?;
        provisioner.inventory.sources.pick(version, Some(flavour), &store).await
    }

    /// Searches the registry for the set of `build`; returns the digest of its manifest. A set counts with a signature
    /// by this key and, where configured, with the attestations, and signed for the kernel.
    ///
    /// # Errors
    /// The registry's failure.
    pub(crate) async fn look(&self, build: &BuildSet) -> Result<Option<String>, NotMade> {
        let wish = Wish {
            driver: Some(&build.driver_version),
            flavour: Some(build.flavour),
            kernel_release: &build.kernel_release,
            arch: std::env::consts::ARCH,
        };
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        let judge = Counts { of: self, registry: &registry, build };
        let found = registry.find(wish, &judge).await;
        let taken = found.into_taken().map_err(NotMade::of_registry)?;
        Ok(taken.first().map(Described::digest))
    }

    /// Compiles the set of `build` and pushes it, signed and attested as configured; returns the digest of its manifest.
    /// One that is in the store already, with the record of its compile, is pushed as it is.
    ///
    /// # Errors
    /// The failure of the build, which includes unsigned headers that may not be used; or the registry's.
    pub(crate) async fn make(&self, build: &BuildSet) -> Result<String, NotMade> {
        let set = self.compile(build).await.map_err(NotMade::Build)?;
        self.publication.push(&set).await.map_err(NotMade::of_registry)
    }

    /// Returns the manifests of the registry's sets that the builder's key signed; none without a key.
    ///
    /// # Errors
    /// The registry's failure.
    pub(crate) async fn signed_sets(&self) -> Result<BTreeSet<String>, NotMade> {
        let Some(key) = &self.publication.key else { return Ok(BTreeSet::new()) };
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        let found = registry.sets_signed_by(&[key.public()]).await.map_err(NotMade::of_registry)?;
        for (tag, why) in found.others.iter().take(MOST_NAMED) {
            tracing::info!("{}:{tag} is not listed: {why}", registry.name());
        }
        Ok(found.signed)
    }

    /// Writes the index of the registry, signed by the builder's key.
    ///
    /// # Errors
    /// The registry's failure, or that there is no key.
    pub(crate) async fn write_index(
        &self,
        sets: BTreeSet<String>,
        lasts: Duration,
    ) -> Result<IndexSummary, NotMade> {
        let key = self.publication.key.as_ref();
        let key = key.ok_or_else(|| Failure::new(FailureKind::Bug, "an index without a key"));
        let key = key.map_err(NotMade::Build)?;
        let registry = self.publication.open().map_err(NotMade::of_registry)?;
        registry.put_index(key, sets, lasts).await.map_err(NotMade::of_registry)
    }

    async fn compile(&self, build: &BuildSet) -> Result<ModuleSet, Failure> {
        self.publication.provisioner.ready_to_build().await?;
        if let Some(place) = self.publication.unsigned_headers(build).await {
            let cause = format!(
                "the headers of kernel {} are from {place}, unsigned, and every node would load modules \
                 compiled with them",
                build.kernel_release
            );
            return Err(Failure::new(FailureKind::Toolchain, cause).remedy(
                "add an archive with the headers of that kernel, or allow such sets to be published \
                 (publish-unsigned-headers)",
            ));
        }
        self.publication.compile(build).await.map_err(|failed| failed.failure)
    }

    async fn counts(&self, registry: &Registry, described: &Described) -> Result<(), String> {
        if let Some(signer) = &self.signer
            && !signer.signed(described.set.key.signed_by.as_ref())
        {
            return Err(format!("its modules are not signed for the kernel by {signer}"));
        }
        if !self.trust.required {
            return Ok(());
        }
        let evidence = registry.evidence(described, &self.trust).await;
        let evidence = evidence.map_err(|failure| failure.one_line())?;
        evidence.meets(&described.set, &self.trust).map(drop).map_err(|why| why.to_string())
    }
}

/// Returns the key of the publication as the one that signs, and the attestations that it makes.
fn trust(publication: &Publication<'_>) -> Result<Trust, Failure> {
    let Some(key) = &publication.key else { return Ok(Trust::default()) };
    let made = ATTESTED.iter().filter(|_| publication.publish.attest);
    let attestations = made.map(|name| name.parse()).collect::<Result<Vec<PredicateType>, _>>();
    let attestations = attestations.or_fail(FailureKind::Bug, || "naming the attestations")?;
    Ok(Trust::in_keys([key.public()]).requiring(attestations))
}

/// Criteria for a set of the registry.
struct Counts<'a> {
    of: &'a ForRegistry<'a>,
    registry: &'a Registry,
    build: &'a BuildSet,
}

impl Judge for Counts<'_> {
    /// The reason is in the log.
    type Why = ();

    async fn judge(&self, set: &Described) -> Result<(), ()> {
        if !is_met_by(self.build, &set.set, self.of.publication.provisioner.config()) {
            return Err(());
        }
        self.of.counts(self.registry, set).await.map_err(|why| {
            tracing::info!("{} in the registry is made anew: {why}", set.digest());
        })
    }
}

impl Provisioner<'_> {
    /// Releases the store, and removes what exceeds its size limit; a failure is a warning.
    pub(crate) async fn tidy(&self) {
        self.inventory.tidy().await;
    }
}

impl Inventory<'_> {
    async fn tidy(&self) {
        self.store.release();
        if let Err(failure) = self.collect().await {
            tracing::warn!("nothing was removed from the store: {}", failure.one_line());
        }
    }
}
