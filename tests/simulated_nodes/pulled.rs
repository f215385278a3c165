//! Modules that a builder makes for the simulated nodes: nodes with public keys alone find them in the registry, and
//! pull them; and the archive that the builder compiles from.

use std::fs;
use std::path::Path;

use longshore::config::Config;
use longshore::prebuilt::Prebuilt;
use longshore::telemetry::Awaited;
use longshore_core::failure::Failure;
use longshore_core::flavour::Flavour;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_fetch::http::Policy;
use longshore_modules::artifact::image::Described;
use longshore_modules::registry::{Judge, Registry, RegistrySource, SetRequest};
use longshore_modules::sets::SetStore;
use longshore_tests::archive::{certificate, key};
use longshore_tests::packages::{DRIVER, KERNEL, headers_of};
use longshore_tests::stand_in::archive;

/// Kernel that appears later.
pub(crate) const NEXT: &str = "6.1.0-51-amd64";
/// File of a node with the release of its kernel.
pub(crate) const KERNEL_FILE: &str = "kernel";

/// Returns the kernel of a node.
pub(crate) fn kernel(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join(KERNEL_FILE)).unwrap_or_default();
    if text.is_empty() { KERNEL.to_owned() } else { text.trim().to_owned() }
}

/// True if the node pulls modules that a builder makes: it has no key to sign with, and compiles nothing.
pub(crate) fn is_wanted(config: &Config) -> bool {
    config.publish.is_none() && !config.may_compile() && !config.registries.is_empty()
}

/// True if the node's store has the modules for its kernel.
pub(crate) fn is_stored(config: &Config, kernel: &str) -> bool {
    let sets = Store::open(&config.paths.store, config.disk()).and_then(|store| store.sets());
    sets.is_ok_and(|sets| sets.iter().any(|set| set.key.kernel_release == kernel))
}

/// Describes modules that are waited for.
pub(crate) fn awaited(config: &Config, kernel: &str) -> Awaited {
    Awaited {
        driver: DRIVER.to_owned(),
        flavour: Flavour::Proprietary.to_string(),
        kernel: kernel.to_owned(),
        registries: config.registries.iter().map(|one| one.reference.to_string()).collect(),
        since: k8s_openapi::jiff::Timestamp::now(),
    }
}

/// Accepts sets that count as signed and attested.
struct Counting<'a> {
    prebuilt: &'a Prebuilt<'a>,
    registry: &'a Registry,
}

impl Judge for Counting<'_> {
    type Why = ();

    async fn judge(&self, set: &Described) -> Result<(), ()> {
        self.prebuilt.counts(self.registry, set).await.map_err(drop)
    }
}

/// Returns the manifests of the registry's sets for the kernel that count.
pub(crate) async fn offered(config: &Config, kernel: &str) -> Vec<String> {
    let mut all = Vec::new();
    let Ok(prebuilt) = Prebuilt::new(config) else { return all };
    for source in &config.registries {
        let Ok(registry) = open(config, source) else { continue };
        let requested = SetRequest {
            driver: Some(DRIVER),
            flavour: Some(Flavour::Proprietary),
            kernel_release: kernel,
            arch: std::env::consts::ARCH,
        };
        let judge = Counting { prebuilt: &prebuilt, registry: &registry };
        let found = registry.find(requested, &judge).await;
        all.extend(found.taken.iter().map(Described::digest));
    }
    all
}

fn open(config: &Config, source: &RegistrySource) -> Result<Registry, Failure> {
    let policy = Policy::from_config(&config.downloads).for_registry();
    let env = |name: &str| std::env::var(name).ok();
    Registry::open_with(policy, source, &config.paths.host_root, &env)
}

/// Pulls the modules for the kernel, verified by the public keys.
pub(crate) async fn pull(config: &Config, manifest: &str) -> Result<(), Failure> {
    let store = Store::open(&config.paths.store, config.disk())?;
    let prebuilt = Prebuilt::new(config)?;
    for source in &config.registries {
        prebuilt.pull(source, manifest, &store, &Silent).await?;
        tracing::info!("pulled {manifest}");
    }
    Ok(())
}

/// Writes the files of an archive with the driver and the headers of both kernels, its keyring, and the configuration of
/// a builder that compiles from it. make waits for a file `go`.
pub(crate) fn write_archive(dir: &Path) -> std::io::Result<()> {
    let mut suite = archive(0, true);
    suite.packages.push(headers_of(NEXT));
    let key = key();
    for (path, bytes) in suite.files(&key) {
        let path = dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        fs::write(path, bytes)?;
    }
    fs::write(dir.join("keyring.asc"), certificate(&key))?;
    let at = dir.display();
    let config = format!(
        "host-apt = false\n[[archive]]\nurl = \"file://{at}\"\nsuites = [\"{}\"]\ncomponents = [\"{}\"]\n\
         keyring = \"{at}/keyring.asc\"\n",
        suite.name, suite.component
    );
    fs::write(dir.join("config.toml"), config)
}
