//! Compiling once for all hosts that publish to the same registry: by this agent, or by another
//! one.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::Supplier;
use super::run_files::Archives;
use crate::artifact::image::Described;
use crate::artifact::{KernelId, SetQuery};
use crate::artifact::{ModuleSet, tag};
use crate::build::{Failed, KnownFailure};
use crate::builder::Builder;
use crate::config::{Config, PublishConfig};
use crate::digest::hex;
use crate::failure::{ExitCode, Failure};
use crate::flavour::Flavour;
use crate::once::{Alone, Prospect, Round, Search, Times, Turn};
use crate::prebuilt::Prebuilt;
use crate::registry::{Judge, Registry, Wish};
use crate::signature::key::SecretKey;
use crate::source::driver::AvailableDriver;
use crate::source::headers;
use crate::source::headers::AvailableHeaders;
use crate::source::http::Policy;
use crate::telemetry::Origin;
use crate::terminal;

/// Time limit of a push, which must not keep a node from its driver for longer.
const PUSH_LIMIT: Duration = Duration::from_secs(600);
/// Prefix of a claim's tag.
const CLAIM: &str = "claim-";
/// Longest tag that the distribution specification allows.
const LONGEST_TAG: usize = 128;

/// The wanted set.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) driver_version: String,
    pub(super) flavour: Flavour,
    pub(super) kernel_release: String,
    /// `uname -v`, where known.
    pub(super) kernel_version: Option<String>,
}

impl Wanted {
    pub(super) fn new(driver: &AvailableDriver, release: &str, version: Option<&str>) -> Self {
        Self {
            driver_version: driver.version.clone(),
            flavour: driver.flavour,
            kernel_release: release.to_owned(),
            kernel_version: version.map(str::to_owned),
        }
    }

    /// Returns the tag of its sets.
    fn tag(&self) -> String {
        let arch = std::env::consts::ARCH;
        tag(&self.driver_version, self.flavour, &self.kernel_release, arch)
    }

    /// Returns the tag of the claim on compiling it, shared by hosts that would use each other's
    /// set.
    fn claim_tag(&self, config: &Config) -> String {
        let mut modules = config.driver.extra_modules.clone();
        modules.sort();
        let (tag, patches) = (self.tag(), &config.patches);
        let of = format!("{tag} {modules:?} {} {:?}", patches.apply, patches.off);
        let digest = hex(&Sha256::digest(of));
        let room = LONGEST_TAG - CLAIM.len() - 13;
        format!("{CLAIM}{}-{}", &tag[..tag.len().min(room)], &digest[..12])
    }

    fn is_met_by(&self, set: &ModuleSet, config: &Config) -> bool {
        let query = SetQuery {
            kernel: KernelId {
                release: &self.kernel_release,
                version: self.kernel_version.as_deref(),
                arch: std::env::consts::ARCH,
            },
            driver_version: &self.driver_version,
            flavour: Some(self.flavour),
        };
        query.matches_with(set, &config.driver.extra_modules)
            && config.patches.allows(set.key.patches.keys())
    }
}

/// Search for the wanted set in the registry that it is published to.
struct Published<'a> {
    supplier: &'a Supplier<'a>,
    config: &'a Config,
    prebuilt: Prebuilt<'a>,
    registry: Registry,
    wanted: &'a Wanted,
}

impl Judge for Published<'_> {
    /// The reason is in the log.
    type Why = ();

    async fn judge(&self, set: &Described) -> Result<(), ()> {
        if !self.wanted.is_met_by(&set.set, self.config) {
            return Err(());
        }
        self.prebuilt.counts(&self.registry, set).await.map_err(|why| {
            tracing::warn!("{} is not used: {why}", set.digest());
        })
    }
}

impl Search for Published<'_> {
    /// Digest of its manifest.
    type Found = String;

    async fn look(&self) -> Result<Option<String>, Failure> {
        let wish = Wish {
            driver: Some(&self.wanted.driver_version),
            flavour: Some(self.wanted.flavour),
            kernel_release: &self.wanted.kernel_release,
            arch: std::env::consts::ARCH,
        };
        let taken = self.registry.find(wish, self).await.into_taken()?;
        Ok(taken.first().map(Described::digest))
    }

    /// Judges the failures that other hosts reported. Any host that may write to the registry can
    /// report one; where sets must be signed, such a report is not trusted.
    async fn weigh(&self, told: Vec<KnownFailure>) -> Prospect {
        if told.is_empty() || self.config.signatures.required {
            return Prospect::Open(told);
        }
        if self.supplier.retry {
            tracing::info!("retrying a compile that failed elsewhere: {}", told[0].cause);
            return Prospect::Open(Vec::new());
        }
        match self.supplier.foresee(self.wanted, &told).await {
            Ok(Some(failure)) => Prospect::Fails(failure),
            Ok(None) => Prospect::Open(told),
            Err(failure) => {
                tracing::info!("cannot judge failures of other hosts: {}", failure.one_line());
                Prospect::Open(told)
            }
        }
    }
}

impl Supplier<'_> {
    /// Returns the wanted set, in the store: compiled here, or by another host that publishes to
    /// the same registry, where one is configured.
    ///
    /// # Errors
    /// As [`crate::build::build`]; 2 for an unreadable signing key, 13 where the registry has
    /// invalid content. An unusable registry is a warning.
    pub(super) async fn build_once(&self, wanted: Wanted) -> Result<ModuleSet, Failure> {
        let Some(publish) = &self.config.publish else { return self.compile_alone(&wanted).await };
        let password = std::env::var("COSIGN_PASSWORD").ok();
        let read = |path| SecretKey::read(path, password.as_deref());
        let key = publish.sign_key.as_deref().map(read).transpose()?;
        if let Some(place) = self.unsigned_headers(&wanted, publish).await {
            return self.build_unshared(&wanted, publish, &place).await;
        }
        match self.turn(&wanted, publish).await? {
            Turn::Found(manifest) => self.take(publish, &manifest, &wanted).await,
            Turn::Mine(held) => {
                tracing::info!("building {}; will publish to {}", wanted.tag(), publish.reference);
                match self.compile(&wanted).await {
                    Ok(set) => {
                        self.publish(publish, &set, key.as_ref()).await;
                        held.release().await;
                        Ok(set)
                    }
                    Err(Failed { failure, known: Some(known) }) => {
                        held.fail(*known).await;
                        Err(failure)
                    }
                    Err(Failed { failure, known: None }) => {
                        held.release().await;
                        Err(failure)
                    }
                }
            }
            Turn::Fails(failure) => Err(failure),
            Turn::Alone(Alone::NoBoard(failure)) => {
                let why = failure.one_line();
                tracing::warn!("building for this host only: {}: {why}", publish.reference);
                self.compile_alone(&wanted).await
            }
            Turn::Alone(Alone::InVain(why)) => {
                tracing::warn!("stopped waiting for other hosts, compiling here: {why}");
                let set = self.compile_alone(&wanted).await?;
                self.publish(publish, &set, key.as_ref()).await;
                Ok(set)
            }
        }
    }

    /// Returns the location of the headers for the compile, if they are unsigned and may not be
    /// used for published modules.
    async fn unsigned_headers(&self, wanted: &Wanted, publish: &PublishConfig) -> Option<String> {
        if publish.unsigned_headers {
            return None;
        }
        // Without the archives nothing is compiled here; a host that has them may have published.
        let archive = self.archive().await.ok()?;
        let version = wanted.kernel_version.as_deref();
        let kernel = headers::Wanted { release: &wanted.kernel_release, version };
        match headers::at_hand(kernel, &self.config.header_places(), archive) {
            AvailableHeaders::Local { place, .. } => Some(place),
            AvailableHeaders::Archive { .. } | AvailableHeaders::Missing { .. } => None,
        }
    }

    /// Uses a published set, or compiles for this host only: no other host waits for it.
    async fn build_unshared(
        &self,
        wanted: &Wanted,
        publish: &PublishConfig,
        place: &str,
    ) -> Result<ModuleSet, Failure> {
        match self.published(wanted, publish)?.look().await {
            Ok(Some(manifest)) => return self.take(publish, &manifest, wanted).await,
            Ok(None) => {}
            Err(failure) => tracing::warn!("cannot query the registry: {}", failure.one_line()),
        }
        tracing::warn!("building for this host only: the headers from {place} are unsigned");
        self.compile_alone(wanted).await
    }

    /// Compiles here, even if other hosts do the same.
    async fn compile_alone(&self, wanted: &Wanted) -> Result<ModuleSet, Failure> {
        self.compile(wanted).await.map_err(|failed| failed.failure)
    }

    async fn turn(
        &self,
        wanted: &Wanted,
        publish: &PublishConfig,
    ) -> Result<Turn<String>, Failure> {
        let search = self.published(wanted, publish)?;
        let claim = self.open(publish)?.into_claim(wanted.claim_tag(self.config));
        let round = Round {
            board: Arc::new(claim),
            me: Builder::here(wanted.tag()),
            times: Times { lease: publish.lease, wait: publish.wait },
            claims: &self.claims,
            progress: self.progress.as_ref(),
        };
        Ok(round.turn(&search).await)
    }

    fn published<'s>(
        &'s self,
        wanted: &'s Wanted,
        publish: &PublishConfig,
    ) -> Result<Published<'s>, Failure> {
        Ok(Published {
            supplier: self,
            config: self.config,
            prebuilt: Prebuilt::new(self.config)?,
            registry: self.open(publish)?,
            wanted,
        })
    }

    /// Opens the registry itself, without mirrors, which may lag behind.
    fn open(&self, publish: &PublishConfig) -> Result<Registry, Failure> {
        // A fallback always exists: to compile.
        let policy = Policy::of(&self.config.downloads).for_registry();
        let env = |name: &str| std::env::var(name).ok();
        let host_root = &self.config.paths.host_root;
        Registry::open_to_push_with(policy, &publish.reference, host_root, &env)
    }

    async fn take(
        &self,
        publish: &PublishConfig,
        manifest: &str,
        wanted: &Wanted,
    ) -> Result<ModuleSet, Failure> {
        let prebuilt = Prebuilt::new(self.config)?;
        let (store, name) = (self.store()?, publish.reference.to_string());
        match prebuilt.pull(&name, manifest, &store, self.progress.as_ref()).await {
            Err(failure) if failure.code() == ExitCode::Download => {
                tracing::warn!("building for this host only: {}", failure.one_line());
                self.compile_alone(wanted).await
            }
            pulled => pulled.inspect(|_| self.telemetry.origin(Origin::Pulled)),
        }
    }

    /// Pushes a set for other hosts. A failed push does not affect this host's driver.
    async fn publish(&self, publish: &PublishConfig, set: &ModuleSet, key: Option<&SecretKey>) {
        if !set.has_signed_headers() && !publish.unsigned_headers {
            tracing::warn!("not published: unsigned headers from {}", set.headers_origin());
            return;
        }
        let push = self.push(publish, set, key);
        let pushed = match tokio::time::timeout(PUSH_LIMIT, push).await {
            Ok(pushed) => pushed,
            Err(_) => Err(Failure::new(
                ExitCode::Download,
                format!("pushing to {} took more than {PUSH_LIMIT:?}", publish.reference),
            )),
        };
        match pushed {
            Ok(digest) => {
                let tag = set.key.tag();
                tracing::info!("published {}:{tag}@{digest}", publish.reference);
            }
            Err(failure) => tracing::warn!("not published: {}", failure.one_line()),
        }
    }

    async fn push(
        &self,
        publish: &PublishConfig,
        set: &ModuleSet,
        key: Option<&SecretKey>,
    ) -> Result<String, Failure> {
        let registry = self.open(publish)?;
        // Signed before any host can find it.
        if let Some(key) = key {
            registry.sign(&Described::of(set)?.digest(), key).await?;
        }
        let store = self.store()?;
        // Uploads are not counted as downloads.
        let shown = terminal::progress();
        let pushed = registry.push(set, &set.key.tag(), &store, shown.as_ref()).await?;
        Ok(pushed.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_deadlines_has_the_push() {
        config::assert_in_page("A registry that takes", PUSH_LIMIT);
    }

    use crate::config::{self, Fragment};

    fn wanted() -> Wanted {
        Wanted {
            driver_version: "535.261.03".into(),
            flavour: Flavour::Open,
            kernel_release: "6.1.0-50-amd64".into(),
            kernel_version: None,
        }
    }

    fn config() -> Config {
        config::load(Fragment::default(), &|_| None, None).expect("defaults")
    }

    #[test]
    fn a_claims_tag_is_read_by_people_and_taken_by_registries() {
        let arch = std::env::consts::ARCH;
        let tag = wanted().claim_tag(&config());
        let begins = format!("claim-535.261.03-open-6.1.0-50-amd64-{arch}-");
        assert!(tag.starts_with(&begins) && tag.len() == begins.len() + 12, "{tag}");
        let long = Wanted { kernel_release: "6".repeat(200), ..wanted() }.claim_tag(&config());
        assert!(crate::image_reference::is_tag(&long) && long.len() == 128, "{long}");
    }

    #[test]
    fn who_would_not_take_the_others_set_has_another_claim() {
        let mut with_drm = config();
        with_drm.driver.extra_modules.push("nvidia_drm".into());
        let mut unpatched = config();
        unpatched.patches.apply = false;
        let tags = [config(), with_drm, unpatched].map(|config| wanted().claim_tag(&config));
        assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2], "{tags:?}");
    }
}
