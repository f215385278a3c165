//! Modules of a simulated driver: compiled by the one agent that holds the build lease, and pulled from the
//! registry by the others. The compile is a stand-in of some seconds that makes a small set of modules.

use std::sync::Arc;
use std::time::Duration;

use longshore::build_lease::claims::ClaimTag;
use longshore::build_lease::objects::ClaimObject;
use longshore::build_lease::{Claims, Election, Forecast, Outcome, Search, Times};
use longshore::config::{Config, PublishConfig};
use longshore::prebuilt::Prebuilt;
use longshore_build::KnownFailure;
use longshore_build::builder::Builder;
use longshore_core::failure::Failure;
use longshore_core::flavour::Flavour;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_fetch::http::Policy;
use longshore_modules::artifact::image::Described;
use longshore_modules::artifact::tag;
use longshore_modules::registry::{Judge, Registry, RegistrySource, SetRequest};
use longshore_tests::module_sets;

use crate::agent::variables::COMPILE;

/// Kernel and driver of [`module_sets`].
const RELEASE: &str = "6.1.0-50-amd64";
const DRIVER: &str = "535.261.03";
/// Size of a set.
const SIZE: usize = 256 << 10;

/// True if modules are shared by a registry, and the node's store has none.
pub(crate) fn is_wanted(config: &Config) -> bool {
    config.publish.is_some() && !config.paths.store.join("sets").exists()
}

/// Acquires the modules.
pub(crate) async fn once(config: &Config) -> Result<(), Failure> {
    let Some(publish) = &config.publish else { return Ok(()) };
    let tag = tag(DRIVER, Flavour::Open, RELEASE, std::env::consts::ARCH);
    let claims = Claims::default();
    let search = Published(open(config, publish)?);
    let claim_tag =
        || Ok::<_, Failure>(ClaimTag::new(open(config, publish)?, format!("claim-{tag}")));
    let key = format!("{}:{tag}", publish.reference);
    let env = |name: &str| std::env::var(name).ok();
    let object =
        ClaimObject::of_pod(&env, &key, claim_tag()?)?.filter(|_| config.cluster.build_lease);
    let (claim_tag, me) = (Arc::new(claim_tag()?), Builder::here(tag.clone()));
    let store = Store::open(&config.paths.store, config.disk())?;
    let elected = match object {
        Some(object) => {
            let election = election(Arc::new(object), me, publish, &claims);
            election.elect_or(claim_tag, &search).await
        }
        None => election(claim_tag, me, publish, &claims).elect(&search).await,
    };
    match elected {
        Outcome::Found(manifest) => {
            let source =
                RegistrySource { reference: publish.reference.clone(), mirrors: Vec::new() };
            Prebuilt::new(config)?.pull(&source, &manifest, &store, &Silent).await?;
            tracing::info!("pulled {manifest}");
        }
        Outcome::Mine(lease) => {
            let set = compile(&store).await;
            open(config, publish)?.push(&set, &set.key.tag(), &store, &Silent).await?;
            lease.release().await;
        }
        Outcome::Alone(why) => {
            tracing::warn!("compiling without a lease: {why:?}");
            compile(&store).await;
        }
    }
    Ok(())
}

fn election<'a, B>(
    backend: Arc<B>,
    me: Builder,
    publish: &PublishConfig,
    claims: &'a Claims,
) -> Election<'a, B> {
    let times = Times { lease: publish.lease, wait: publish.wait };
    Election { backend, me, times, claims, progress: &Silent }
}

async fn compile(store: &Store) -> longshore_modules::artifact::ModuleSet {
    tracing::info!("compiling");
    let seconds = std::env::var(COMPILE).ok().and_then(|s| s.parse().ok()).unwrap_or(5);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    module_sets::put_of(store, RELEASE, &["nvidia", "nvidia-uvm"], SIZE)
}

fn open(config: &Config, publish: &PublishConfig) -> Result<Registry, Failure> {
    let policy = Policy::from_config(&config.downloads).for_registry();
    let env = |name: &str| std::env::var(name).ok();
    Registry::open_to_push_with(policy, &publish.reference, &config.paths.host_root, &env)
}

struct Published(Registry);

impl Judge for Published {
    type Why = ();

    async fn judge(&self, _: &Described) -> Result<(), ()> {
        Ok(())
    }
}

impl Search for Published {
    /// Digest of its manifest.
    type Product = String;

    async fn look(&self) -> Result<Option<String>, Failure> {
        let requested = SetRequest {
            driver: Some(DRIVER),
            flavour: Some(Flavour::Open),
            kernel_release: RELEASE,
            arch: std::env::consts::ARCH,
        };
        Ok(self.0.find(requested, self).await.into_taken()?.first().map(Described::digest))
    }

    async fn judge(&self, reported: Vec<KnownFailure>) -> Forecast {
        Forecast::Open(reported)
    }
}
