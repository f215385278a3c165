//! Sets that are compiled for a registry: signed and attested as configured, and pushed. An agent that
//! publishes and `longshore builder` share it.

use std::time::Duration;

use super::open_archives::OpenArchives;
use super::{CorePush, Provisioner, attest_compiled, compile_record};
use crate::config::PublishConfig;
use crate::plan::BuildSet;
use crate::terminal;
use longshore_build::Failed;
use longshore_core::failure::{Failure, FailureKind};
use longshore_fetch::http::Policy;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::registry::Registry;
use longshore_modules::sets::SetStore;
use longshore_modules::signature::attestation::{Attestation, ReadAttestations};
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::{Evidence, Signature};
use longshore_sources::headers::{self, AvailableHeaders};

/// Time limit of a push, which must not keep a node from its driver for longer.
pub(super) const PUSH_LIMIT: Duration = Duration::from_secs(600);

/// The registry that compiled sets are pushed to, and the key that signs them.
pub(super) struct Publication<'p> {
    pub(super) provisioner: &'p Provisioner<'p>,
    pub(super) publish: &'p PublishConfig,
    /// Key that signs the pushed sets, where configured.
    pub(super) key: Option<SecretKey>,
}

impl<'p> Publication<'p> {
    /// Reads the key, whose password is in `COSIGN_PASSWORD`.
    ///
    /// # Errors
    /// Exit code 2 where it cannot be read.
    pub(super) fn new(
        provisioner: &'p Provisioner<'p>,
        publish: &'p PublishConfig,
    ) -> Result<Self, Failure> {
        let password = std::env::var("COSIGN_PASSWORD").ok();
        let read = |path| SecretKey::read(path, password.as_deref());
        let key = publish.sign_key.as_deref().map(read).transpose()?;
        Ok(Self { provisioner, publish, key })
    }

    /// Opens the registry itself, without mirrors, which may lag behind.
    pub(super) fn open(&self) -> Result<Registry, Failure> {
        let config = self.provisioner.config();
        // A fallback always exists: to compile, or to ask again later.
        let policy = Policy::from_config(&config.downloads).for_registry();
        let env = |name: &str| std::env::var(name).ok();
        let host_root = &config.paths.host_root;
        let reference = &self.publish.reference;
        let registry = Registry::open_to_push_with(policy, reference, host_root, &env)?;
        Ok(registry.with_login_rules(&config.logins))
    }

    /// Returns the location of the headers for the compile, if they are unsigned and may not be
    /// used for published modules.
    pub(super) async fn unsigned_headers(&self, build: &BuildSet) -> Option<String> {
        // Hosts without this MOFED look for a set by the same name.
        if let Some(mofed) = &build.mofed {
            return Some(mofed.place().display().to_string());
        }
        if self.publish.unsigned_headers {
            return None;
        }
        if let Some(root) = &self.provisioner.config().build_root {
            return Some(root.to_string());
        }
        match self.headers(build).await? {
            AvailableHeaders::Local { place, .. } | AvailableHeaders::BuildRoot { place, .. } => {
                Some(place)
            }
            AvailableHeaders::Archive { .. } | AvailableHeaders::Missing { .. } => None,
        }
    }

    /// Returns the plan's headers, or searches for them where no plan did. None without the
    /// archives: nothing is compiled here then; a host that has them may have published.
    async fn headers(&self, build: &BuildSet) -> Option<AvailableHeaders> {
        if let Some(headers) = &build.headers {
            return Some(headers.clone());
        }
        let provisioner = self.provisioner;
        let store = provisioner.store().ok()?;
        let archive = provisioner.inventory.sources.archive(&store).await.ok()?;
        let version = build.kernel_version.as_deref();
        let kernel = headers::Wanted { release: &build.kernel_release, version };
        Some(headers::available(kernel, &provisioner.config().header_places(), archive))
    }

    /// Compiles the set that is published. One that is to be signed is of a compile that this store
    /// has the record of: another with the same key may have been pulled from a registry.
    pub(super) async fn compile(&self, build: &BuildSet) -> Result<ModuleSet, Failed> {
        let signed_by = self.key.as_ref().map(SecretKey::public);
        self.provisioner.compile(build, signed_by).await
    }

    /// Pushes a set, signed and attested by its digest before any host can find it by its tag; returns the digest of
    /// its manifest.
    ///
    /// # Errors
    /// Exit code 2 for a set of unknown origin, or of unsigned headers that may not be used; 12 for a registry that
    /// does not take it, or takes longer than [`PUSH_LIMIT`].
    pub(super) async fn push(&self, set: &ModuleSet) -> Result<String, Failure> {
        if !set.has_signed_headers() && !self.publish.unsigned_headers {
            let cause = format!("unsigned headers from {}", set.headers_origin());
            return Err(Failure::new(FailureKind::Usage, cause)
                .remedy("allow such sets to be published (publish-unsigned-headers)"));
        }
        let pushed = tokio::time::timeout(PUSH_LIMIT, self.push_now(set)).await;
        pushed.unwrap_or_else(|_| {
            let cause =
                format!("pushing to {} took more than {PUSH_LIMIT:?}", self.publish.reference);
            Err(Failure::new(FailureKind::Download, cause))
        })
    }

    async fn push_now(&self, set: &ModuleSet) -> Result<String, Failure> {
        let registry = self.open()?;
        let (store, described) = (self.provisioner.store()?, Described::from_set(set)?);
        // Uploads are not counted as downloads.
        let shown = terminal::progress();
        let denied = &self.provisioner.config().signatures.denied;
        let core = CorePush { registry: &registry, key: self.key.as_ref(), denied, store: &store };
        core.push_of(set, shown.as_ref()).await;
        if let Some(key) = &self.key {
            compile_record(set, &store)?;
            registry.sign(&described.digest(), key).await?;
            let attestations = self.attestations(set, &described, key)?;
            if !attestations.is_empty() {
                registry.attest(&described.descriptor(), &attestations).await?;
            }
        }
        let pushed = registry.push(set, &set.key.tag(), &store, shown.as_ref()).await?;
        let tag = set.key.tag();
        tracing::info!("published {}:{tag}@{}", self.publish.reference, pushed.digest);
        Ok(pushed.digest)
    }

    fn attestations(
        &self,
        set: &ModuleSet,
        described: &Described,
        key: &SecretKey,
    ) -> Result<Vec<Attestation>, Failure> {
        if !self.publish.attest {
            return Ok(Vec::new());
        }
        let store = self.provisioner.store()?;
        let (builder, name) =
            (&self.provisioner.config().builder_id, self.publish.reference.name());
        attest_compiled(set, described, &store, builder, &name, key)
    }

    /// Puts the key's signature and attestations of a set that was compiled into this store beside it, where the key
    /// counts among the configured ones: so the set is loaded here, whatever becomes of its push. A set of unsigned
    /// headers gets them only where it may be published.
    ///
    /// # Errors
    /// Exit code 2 for a set of unknown origin, 15 where the store cannot be written.
    pub(super) fn vouch(&self, set: &ModuleSet) -> Result<(), Failure> {
        let config = self.provisioner.config();
        let of_known_headers = set.has_signed_headers() || self.publish.unsigned_headers;
        let counts =
            config.signatures.required && config.own_signature.counts() && of_known_headers;
        let Some(key) = self.key.as_ref().filter(|_| counts) else { return Ok(()) };
        let (store, described) = (self.provisioner.store()?, Described::from_set(set)?);
        compile_record(set, &store)?;
        let name = self.publish.reference.name();
        let signature = Signature::make(key, &name, &described.digest())?;
        let attestations = self.attestations(set, &described, key)?;
        let Described { manifest, config, .. } = described;
        let evidence = Evidence::new(manifest, config, vec![signature])?
            .with_attestations(ReadAttestations { attestations, damaged: None });
        store.put_evidence(set, &evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_deadlines_has_the_push() {
        longshore_core::testing::assert_in_page("A registry that takes", PUSH_LIMIT);
    }
}
