//! Core objects of source trees in the configured registries: fetched before they would be compiled, and pushed beside
//! the sets that were linked from them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::compile_record;
use crate::config::Config;
use crate::telemetry::Telemetry;
use longshore_build::CoreSource;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::Progress;
use longshore_core::source_id::SourceId;
use longshore_core::store::Store;
use longshore_fetch::http::{Policy, UnreachableHosts};
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::core_objects::CoreQuery;
use longshore_modules::registry::core_objects::CorePushed;
use longshore_modules::registry::{LoginRules, Registry, RegistrySource};
use longshore_modules::sets::core_objects::{self, StoredCore};
use longshore_modules::signature::Trust;
use longshore_modules::signature::key::{PublicKey, SecretKey};

/// Time limit of the search in all registries: a compile takes no longer.
const PULL_LIMIT: Duration = Duration::from_secs(600);
/// Time limit of a push: half of that with the set.
const CORE_PUSH_LIMIT: Duration = Duration::from_secs(300);

/// The configured registries, as places of core objects.
#[derive(Debug)]
pub(super) struct CoreRegistries {
    registries: Vec<RegistrySource>,
    policy: Policy,
    host_root: PathBuf,
    logins: LoginRules,
    trust: Trust,
    telemetry: Telemetry,
}

impl CoreRegistries {
    /// Reads the keys by which core objects count: as sets do. For a set that the key `signs` as compiled here, they have
    /// to be signed in any case, by a configured key or that one.
    ///
    /// # Errors
    /// Exit code 2 where a key cannot be read.
    pub(super) fn new(
        config: &Config,
        signs: Option<PublicKey>,
        away: &UnreachableHosts,
        telemetry: &Telemetry,
    ) -> Result<Self, Failure> {
        let trust = config.signatures.trust()?;
        Ok(Self {
            registries: config.registries.clone(),
            policy: Policy {
                away: away.clone(),
                ..Policy::from_config(&config.downloads).for_registry()
            },
            host_root: config.paths.host_root.clone(),
            logins: config.logins.clone(),
            trust: match signs {
                Some(key) => trust.requiring_or_by(key),
                None => trust,
            },
            telemetry: telemetry.clone(),
        })
    }

    async fn fetch_from(
        &self,
        source: &RegistrySource,
        asked: &CoreQuery,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Option<StoredCore>, Failure> {
        let env = |name: &str| std::env::var(name).ok();
        let registry = Registry::open_with(self.policy.clone(), source, &self.host_root, &env)?;
        let registry = registry.with_login_rules(&self.logins);
        registry.pull_core(asked, &self.trust, store, progress).await
    }

    async fn search(
        &self,
        asked: &CoreQuery,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Option<StoredCore>, Failure> {
        let (version, tag) = (&asked.version, asked.tag());
        for source in &self.registries {
            let name = &source.reference;
            match self.fetch_from(source, asked, store, progress).await {
                Ok(Some(core)) => {
                    let manifest = core.input().pulled.unwrap_or_default();
                    tracing::info!("the core objects of {version} are {name}@{manifest}");
                    return Ok(Some(core));
                }
                Ok(None) => tracing::debug!("{name} has no {tag}"),
                Err(failure) if failure.kind().is_of_host() => return Err(failure),
                Err(failure) => {
                    self.telemetry.source_failed(SourceId::Registry, &failure);
                    let why = failure.one_line();
                    tracing::warn!("the core objects of {version} in {name} are not used: {why}");
                }
            }
        }
        Ok(None)
    }
}

impl CoreSource for CoreRegistries {
    fn fetch<'a>(
        &'a self,
        asked: &'a CoreQuery,
        store: &'a Store,
        progress: &'a dyn Progress,
    ) -> BoxFuture<'a, Result<Option<StoredCore>, Failure>> {
        Box::pin(async move {
            let searched = tokio::time::timeout(PULL_LIMIT, self.search(asked, store, progress));
            searched.await.unwrap_or_else(|_| {
                let cause = format!("fetching core objects took more than {PULL_LIMIT:?}");
                let failure = Failure::new(FailureKind::Download, cause);
                self.telemetry.source_failed(SourceId::Registry, &failure);
                tracing::warn!("core objects are compiled here: {}", failure.one_line());
                Ok(None)
            })
        })
    }

    fn check(&self, core: &StoredCore) -> Result<(), String> {
        let Some(evidence) = &core.pulled else { return Ok(()) };
        let met = evidence.core_meets(&core.record, &self.trust);
        met.map(drop).map_err(|why| format!("they were pulled, and {why}"))
    }
}

/// Push of core objects beside a set.
pub(crate) struct CorePush<'a> {
    /// The repository of the set.
    pub(crate) registry: &'a Registry,
    /// Key that signs those that were compiled here.
    pub(crate) key: Option<&'a SecretKey>,
    /// Manifests that are not pushed (`denied-sets`).
    pub(crate) denied: &'a BTreeSet<String>,
    /// The store that has them.
    pub(crate) store: &'a Store,
}

impl CorePush<'_> {
    /// Pushes the core objects that `set` was linked from, where the registry lacks them. A failure is a warning: the set
    /// is complete without them.
    pub(crate) async fn push_of(&self, set: &ModuleSet, progress: &dyn Progress) {
        let name = set.key.file_stem();
        let Ok(record) = compile_record(set, self.store) else {
            tracing::debug!("no core objects are pushed with {name}, which was compiled elsewhere");
            return;
        };
        let Some(input) = record.core else { return };
        let Some(core) = core_objects::find(&input.key, self.store) else {
            tracing::info!("no core objects are pushed with {name}: the store has removed them");
            return;
        };
        let pushed = tokio::time::timeout(CORE_PUSH_LIMIT, self.push(&core, progress)).await;
        let pushed = pushed.unwrap_or_else(|_| {
            let cause = format!("it took more than {CORE_PUSH_LIMIT:?}");
            Err(Failure::new(FailureKind::Download, cause))
        });
        if let Err(failure) = pushed {
            let why = failure.one_line();
            tracing::warn!("the core objects of {name} are not pushed: {why}");
        }
    }

    async fn push(&self, core: &StoredCore, progress: &dyn Progress) -> Result<(), Failure> {
        let (name, tag) = (self.registry.name(), core.record.query().tag());
        let own = core.describe()?.digest();
        if self.denied.contains(&own) {
            let cause = format!("{own} is denied (denied-sets)");
            return Err(Failure::new(FailureKind::Verification, cause));
        }
        match self.registry.push_core(core, self.key, self.store, progress).await? {
            CorePushed::There { digest, was_there: true, .. } => {
                tracing::debug!("{name}:{tag}@{digest} was there already");
            }
            CorePushed::There { digest, .. } => {
                tracing::info!("pushed core objects: {name}:{tag}@{digest}");
            }
            CorePushed::Other(there) => tracing::warn!(
                "{name}:{tag} has other core objects, {there}, which stay: remove the tag to push those of this store, {own}"
            ),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
