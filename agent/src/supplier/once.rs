//! Compiling once for all hosts that publish to the same registry: by this agent, or by another
//! one.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::Provisioner;
use super::open_archives::OpenArchives;
use super::publication::Publication;
use crate::build_lease::claims::ClaimTag;
use crate::build_lease::objects::ClaimObject;
use crate::build_lease::{Alone, Election, Forecast, Outcome, Search, Times};
use crate::config::{Config, PublishConfig};
use crate::open_registry::registry_source;
use crate::plan::BuildSet;
use crate::prebuilt::Prebuilt;
use crate::telemetry::Origin;
use longshore_build::builder::Builder;
use longshore_build::{Failed, KnownFailure};
use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::kernel_id::KernelId;
use longshore_core::source_id::SourceId;
use longshore_modules::artifact::image::Described;
use longshore_modules::artifact::{ModuleSet, SetQuery, tag};
use longshore_modules::registry::{Judge, Registry, SetRequest};

/// Prefix of a claim's tag.
const CLAIM: &str = "claim-";
/// Longest tag that the distribution specification allows.
const LONGEST_TAG: usize = 128;

/// Returns the tag of a build's sets.
pub(super) fn tag_of(build: &BuildSet) -> String {
    tag(&build.driver_version, build.flavour, &build.kernel_release, std::env::consts::ARCH)
}

/// Returns the tag of the claim on a build, shared by hosts that would use each other's set.
fn claim_tag(build: &BuildSet, config: &Config) -> String {
    let mut modules = config.driver.extra_modules.clone();
    modules.sort();
    let (tag, patches) = (tag_of(build), &config.patches);
    let of = format!("{tag} {modules:?} {} {:?}", patches.apply, patches.off);
    let digest = hex(&Sha256::digest(of));
    let room = LONGEST_TAG - CLAIM.len() - 13;
    format!("{CLAIM}{}-{}", &tag[..tag.len().min(room)], &digest[..12])
}

/// Returns the question for the sets that a build would make.
pub(super) fn request_of(build: &BuildSet) -> SetRequest<'_> {
    SetRequest {
        driver: Some(&build.driver_version),
        flavour: Some(build.flavour),
        kernel_release: &build.kernel_release,
        arch: std::env::consts::ARCH,
    }
}

/// True if a set of the registry is what a build would make.
pub(super) fn is_met_by(build: &BuildSet, set: &ModuleSet, config: &Config) -> bool {
    let query = SetQuery {
        kernel: KernelId {
            release: &build.kernel_release,
            version: build.kernel_version.as_deref(),
            arch: std::env::consts::ARCH,
        },
        driver_version: &build.driver_version,
        flavour: Some(build.flavour),
    };
    query.matches_with(set, &config.driver.extra_modules)
        && config.patches.allows(set.key.patches.keys())
}

/// Search for the set in the registry that it is published to.
struct Published<'p> {
    shared: &'p SharedBuild<'p>,
    prebuilt: Prebuilt<'p>,
    registry: Registry,
}

impl Judge for Published<'_> {
    /// The reason is in the log.
    type Why = ();

    async fn judge(&self, set: &Described) -> Result<(), ()> {
        let SharedBuild { provisioner, build, .. } = self.shared;
        if !is_met_by(build, &set.set, provisioner.config()) {
            return Err(());
        }
        self.prebuilt.counts(&self.registry, set).await.map_err(|refusal| {
            tracing::warn!("{} is not used: {}", set.digest(), refusal.why);
        })
    }
}

impl Search for Published<'_> {
    /// Digest of its manifest.
    type Product = String;

    async fn look(&self) -> Result<Option<String>, Failure> {
        let requested = request_of(self.shared.build);
        let taken = self.registry.find(requested, self).await.into_taken()?;
        Ok(taken.first().map(Described::digest))
    }

    /// Judges the failures that other hosts reported. Any host that may write to the registry, or the Lease
    /// objects, can report one: none is signed, so it delays the build and never prevents it. Where sets must be
    /// signed, it does not even delay it.
    async fn judge(&self, reported: Vec<KnownFailure>) -> Forecast {
        let SharedBuild { provisioner, build, .. } = self.shared;
        if reported.is_empty() || provisioner.config().signatures.required {
            return Forecast::Open(reported);
        }
        if provisioner.retry {
            tracing::info!("retrying a compile that failed elsewhere: {}", reported[0].cause);
            return Forecast::Open(Vec::new());
        }
        match provisioner.predict_failure(build, &reported).await {
            Ok(Some(failure)) => Forecast::Fails(failure, reported),
            Ok(None) => Forecast::Open(reported),
            Err(failure) => {
                tracing::info!("cannot judge failures of other hosts: {}", failure.one_line());
                Forecast::Open(reported)
            }
        }
    }
}

impl Provisioner<'_> {
    /// Returns the set of `build`, in the store and signed for the kernel where configured:
    /// compiled here, or by another host that publishes to the same registry, where one is
    /// configured.
    ///
    /// # Errors
    /// As [`longshore_build::build`]; 2 for an unreadable signing key, 13 where the registry has
    /// invalid content. An unusable registry is a warning.
    pub(super) async fn build_once(&self, build: &BuildSet) -> Result<ModuleSet, Failure> {
        let Some(publish) = &self.config().publish else { return self.compile_alone(build).await };
        let publication = Publication::new(self, publish)?;
        SharedBuild { provisioner: self, publication, build }.run().await
    }

    /// Compiles here, even if other hosts do the same.
    async fn compile_alone(&self, build: &BuildSet) -> Result<ModuleSet, Failure> {
        self.compile(build, None).await.map_err(|failed| failed.failure)
    }
}

/// A build whose set is published for other hosts.
struct SharedBuild<'p> {
    provisioner: &'p Provisioner<'p>,
    publication: Publication<'p>,
    build: &'p BuildSet,
}

impl SharedBuild<'_> {
    async fn run(&self) -> Result<ModuleSet, Failure> {
        if let Some(place) = self.publication.unsigned_headers(self.build).await {
            return self.build_unshared(&place).await;
        }
        let reference = &self.publish().reference;
        match self.elect().await? {
            Outcome::Found(manifest) => self.take(&manifest).await,
            Outcome::Mine(held) => {
                tracing::info!("building {}; will publish to {reference}", tag_of(self.build));
                match self.publication.compile(self.build).await {
                    Ok(set) => {
                        self.publish_or_warn(&set).await;
                        held.release().await;
                        self.vouched(set)
                    }
                    Err(Failed { failure, known }) => {
                        match known {
                            Some(known) => held.fail(*known).await,
                            None => held.release().await,
                        }
                        Err(failure)
                    }
                }
            }
            Outcome::Alone(Alone::NoBackend(failure)) => {
                let why = failure.one_line();
                tracing::warn!("building for this host only: {reference}: {why}");
                self.compile_alone().await
            }
            Outcome::Alone(Alone::InVain(why)) => {
                tracing::warn!("stopped waiting for other hosts, compiling here: {why}");
                let set = self.publication.compile(self.build).await;
                let set = set.map_err(|failed| failed.failure)?;
                self.publish_or_warn(&set).await;
                self.vouched(set)
            }
        }
    }

    fn publish(&self) -> &PublishConfig {
        self.publication.publish
    }

    /// Compiles for this host, which signs the set for itself where signatures are required and its key counts.
    async fn compile_alone(&self) -> Result<ModuleSet, Failure> {
        if !self.provisioner.config().signatures.required {
            return self.provisioner.compile_alone(self.build).await;
        }
        let set = self.publication.compile(self.build).await.map_err(|failed| failed.failure)?;
        self.vouched(set)
    }

    /// Returns a set that was compiled here, with this host's own signature beside it where that counts.
    fn vouched(&self, set: ModuleSet) -> Result<ModuleSet, Failure> {
        self.publication.vouch(&set)?;
        Ok(set)
    }

    /// Uses a published set, or compiles for this host only: no other host waits for it. Where signatures are
    /// required, a set of unsigned headers gets none, and is not loaded.
    async fn build_unshared(&self, place: &str) -> Result<ModuleSet, Failure> {
        match self.published()?.look().await {
            Ok(Some(manifest)) => return self.take(&manifest).await,
            Ok(None) => {}
            Err(failure) => {
                self.provisioner.telemetry.source_failed(SourceId::Registry, &failure);
                tracing::warn!("cannot query the registry: {}", failure.one_line());
            }
        }
        tracing::warn!("building for this host only: the headers from {place} are unsigned");
        self.provisioner.compile_alone(self.build).await
    }

    /// Elects the builder by a Lease object of the cluster, or by a claim in the registry where there
    /// is no API server, or it refuses.
    async fn elect(&self) -> Result<Outcome<String>, Failure> {
        let (search, tag) = (self.published()?, Arc::new(self.claim_tag()?));
        match self.claim_object()? {
            Some(object) => Ok(self.election(Arc::new(object)).elect_or(tag, &search).await),
            None => Ok(self.election(tag).elect(&search).await),
        }
    }

    fn election<B>(&self, backend: Arc<B>) -> Election<'_, B> {
        let (Self { provisioner, build, .. }, publish) = (self, self.publish());
        Election {
            backend,
            me: Builder::here(tag_of(build)),
            times: Times { lease: publish.lease, wait: publish.wait },
            claims: &provisioner.claims,
            progress: provisioner.inventory.sources.progress(),
        }
    }

    /// Returns the claim in the cluster; None outside of one, and where it is not wanted.
    fn claim_object(&self) -> Result<Option<ClaimObject<ClaimTag>>, Failure> {
        let (Self { provisioner, build, .. }, publish) = (self, self.publish());
        if !provisioner.config().cluster.build_lease {
            return Ok(None);
        }
        let env = |name: &str| std::env::var(name).ok();
        // Hosts that publish elsewhere do not find this one's set.
        let key = format!("{}:{}", publish.reference, claim_tag(build, provisioner.config()));
        let object = ClaimObject::of_pod(&env, &key, self.claim_tag()?);
        Ok(object.unwrap_or_else(|failure| {
            provisioner.claims.report_unused(&failure);
            None
        }))
    }

    fn claim_tag(&self) -> Result<ClaimTag, Failure> {
        Ok(ClaimTag::new(
            self.publication.open()?,
            claim_tag(self.build, self.provisioner.config()),
        ))
    }

    fn published(&self) -> Result<Published<'_>, Failure> {
        let prebuilt = Prebuilt::new(self.provisioner.config())?;
        let registry = self.publication.open()?;
        let registry = prebuilt.requiring_index(registry, &self.provisioner.store()?)?;
        Ok(Published { shared: self, prebuilt, registry })
    }

    /// Pulls the published set, or compiles here where the registry no longer delivers it.
    async fn take(&self, manifest: &str) -> Result<ModuleSet, Failure> {
        let Self { provisioner, build, .. } = self;
        let (prebuilt, store) = (Prebuilt::new(provisioner.config())?, provisioner.store()?);
        let progress = provisioner.inventory.sources.progress();
        let source = registry_source(provisioner.config(), &self.publish().reference);
        match prebuilt.pull(&source, manifest, &store, progress).await {
            Err(failure) if failure.kind() == FailureKind::Download => {
                provisioner.telemetry.source_failed(SourceId::Registry, &failure);
                tracing::warn!("building for this host only: {}", failure.one_line());
                self.compile_alone().await
            }
            pulled => {
                let set = pulled?;
                provisioner.telemetry.origin(Origin::Pulled);
                // The set of another host may be unsigned for the kernel.
                provisioner.sign_as(build, set).await
            }
        }
    }

    /// Pushes a set for other hosts. A failed push does not affect this host's driver.
    async fn publish_or_warn(&self, set: &ModuleSet) {
        if let Err(failure) = self.publication.push(set).await {
            if failure.kind() != FailureKind::Usage {
                self.provisioner.telemetry.source_failed(SourceId::Publish, &failure);
            }
            tracing::warn!("not published: {}", failure.one_line());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::{self, Fragment};
    use longshore_core::flavour::Flavour;

    fn wanted() -> BuildSet {
        BuildSet {
            driver_version: "535.261.03".into(),
            flavour: Flavour::Open,
            kernel_release: "6.1.0-50-amd64".into(),
            kernel_version: None,
            driver: None,
            headers: None,
            mofed: None,
            signs: true,
        }
    }

    fn config() -> Config {
        config::load(Fragment::default(), &|_| None, None).expect("defaults")
    }

    #[test]
    fn a_claims_tag_is_read_by_people_and_taken_by_registries() {
        let arch = std::env::consts::ARCH;
        let tag = claim_tag(&wanted(), &config());
        let begins = format!("claim-535.261.03-open-6.1.0-50-amd64-{arch}-");
        assert!(tag.starts_with(&begins) && tag.len() == begins.len() + 12, "{tag}");
        let long = BuildSet { kernel_release: "6".repeat(200), ..wanted() };
        let long = claim_tag(&long, &config());
        assert!(longshore_core::image_reference::is_tag(&long) && long.len() == 128, "{long}");
    }

    #[test]
    fn who_would_not_take_the_others_set_has_another_claim() {
        let mut with_drm = config();
        with_drm.driver.extra_modules.push("nvidia_drm".into());
        let mut unpatched = config();
        unpatched.patches.apply = false;
        let tags = [config(), with_drm, unpatched].map(|config| claim_tag(&wanted(), &config));
        assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2], "{tags:?}");
    }
}
