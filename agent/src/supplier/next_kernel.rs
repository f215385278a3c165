//! Kernels of the host, and what the store has for the next of them.

use std::collections::BTreeMap;

use super::Inventory;
use super::gather::look;
use super::host_facts::{read_host, with_kernel};
use crate::config::Config;
use crate::next_kernel::{FetchCommand, Kernels, NextRelease, of_host};
use crate::plan;
use crate::telemetry::Unprepared;
use longshore_core::bounded_call;
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_host::HostFacts;

/// Kernels of the configured host; a child process prepares them.
#[derive(Debug)]
pub struct HostKernels {
    fetch: FetchCommand,
}

impl HostKernels {
    /// Returns those that this command prepares.
    pub fn new(fetch: FetchCommand) -> Self {
        Self { fetch }
    }
}

impl Kernels for HostKernels {
    async fn next(&self, config: &Config) -> Result<Option<NextRelease>, Failure> {
        let paths = config.paths.clone();
        let read = bounded_call::off_runtime(config.deadlines.look, move || of_host(&paths));
        read.await.or_fail(FailureKind::Preflight, || "reading the kernels of the host")?
    }

    async fn has_modules(&self, config: &Config, release: &str) -> Result<bool, Failure> {
        Inventory::new(config).has_modules(release).await
    }

    async fn prepare(
        &self,
        config: &Config,
        release: &str,
        stop: &CancelFlag,
    ) -> Result<(), Unprepared> {
        // That of the pod's image, which the other process does not know.
        let driver = config.driver.version.as_deref().filter(|_| !config.driver.is_named);
        self.fetch.run(release, driver, stop).await
    }
}

/// Returns the facts of the host as the kernel `release` finds it after its boot: no module is loaded.
pub(crate) fn at_boot_of(facts: HostFacts, paths: &Paths, release: &str) -> HostFacts {
    let facts = with_kernel(facts, paths, release);
    HostFacts { loaded: BTreeMap::new(), live_driver: None, ..facts }
}

impl Inventory<'_> {
    /// True if the store has everything that an agent needs to install the configured driver with the kernel
    /// `release`, without a network: a plan for it acquires nothing.
    ///
    /// # Errors
    /// As of [`Inventory::decide`].
    pub(super) async fn has_modules(&self, release: &str) -> Result<bool, Failure> {
        let store = self.store.open_in_time().await?;
        let (config, release) = (self.config.clone(), release.to_owned());
        let read = move || -> Result<bool, Failure> {
            let facts = at_boot_of(read_host(&config)?, &config.paths, &release);
            let catalog = look(&config, &facts, &store)?;
            plan::is_stored(&config, &facts, &catalog)
        };
        self.store.in_time(read).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_scene::{DRIVER, Scene};
    use super::*;
    use crate::config::NextKernelMode;
    use longshore_core::store::Store;
    use longshore_core::testing::kernel_image;
    use longshore_modules::artifact::ModuleSet;
    use longshore_modules::artifact::image::Described;
    use longshore_modules::sets::SetStore;
    use longshore_modules::signature::key::SecretKey;
    use longshore_modules::signature::{Evidence, Signature};
    use rstest::rstest;
    use std::fs;

    const NEXT: &str = "6.1.0-51-amd64";

    /// Puts a set for the next kernel into the store.
    fn put_set(scene: &Scene, release: &str) -> ModuleSet {
        let store = scene.store();
        let mut set = scene.set_in(&store);
        set.key.kernel_release = release.to_owned();
        set.key.kernel_version = "#1 SMP of another day".to_owned();
        for module in &mut set.modules {
            module.vermagic = format!("{release} SMP ");
        }
        store.put_set(&set).expect("put");
        set
    }

    /// Puts a signature of a set beside it.
    fn sign(set: &ModuleSet, key: &SecretKey, store: &Store) {
        let described = Described::from_set(set).expect("an image");
        let digest = described.digest();
        let Described { manifest, config, .. } = described;
        let signature = Signature::make(key, "registry.example.com/sets", &digest).expect("signed");
        let evidence = Evidence::new(manifest, config, vec![signature]).expect("evidence");
        store.put_evidence(set, &evidence).expect("put");
    }

    #[rstest]
    #[case::none(true, None, false)]
    #[case::signed(true, Some(true), true)]
    #[case::unsigned(true, Some(false), false)]
    #[case::unsigned_where_that_counts(false, Some(false), true)]
    #[tokio::test]
    async fn a_plan_finds_the_next_kernels_set_as_the_status_does(
        #[case] required: bool,
        #[case] is_signed: Option<bool>,
        #[case] stored: bool,
    ) {
        let mut scene = Scene::new("bookworm-t4");
        let host = scene.dir.path().join("host");
        fs::create_dir_all(host.join("boot")).expect("made");
        for release in [scene.facts().kernel.release.as_str(), NEXT] {
            fs::write(host.join(format!("boot/vmlinuz-{release}")), "").expect("written");
        }
        let (key, public) = (SecretKey::generate(), scene.dir.path().join("key.pub"));
        fs::write(&public, key.public_pem().expect("PEM")).expect("written");
        let store = scene.store();
        let running = scene.set_in(&store);
        store.put_set(&running).expect("put");
        sign(&running, &key, &store);
        scene.put_tree();
        if let Some(is_signed) = is_signed {
            let set = put_set(&scene, NEXT);
            if is_signed {
                sign(&set, &key, &store);
            }
        }
        scene.config.paths.host_root = host;
        scene.config.next_kernel = Some(NextKernelMode::Prepare);
        scene.config.signatures.required = required;
        scene.config.signatures.keys = vec![public];
        let inventory = Inventory::new(&scene.config);
        let (_, plan) = inventory.decide().await.expect("a plan");
        let next = plan.next_kernel.map(|next| (next.release, next.stored, next.prepares));
        assert_eq!(next, Some((NEXT.to_owned(), stored, !stored)));
        assert_eq!(inventory.has_modules(NEXT).await.expect("read"), stored);
    }

    #[rstest]
    #[case::empty(&[], false, false)]
    #[case::set_alone(&[NEXT], false, false)]
    #[case::tree_alone(&[], true, false)]
    #[case::both(&[NEXT], true, true)]
    #[case::set_of_another_kernel(&["6.1.0-52-amd64"], true, false)]
    #[tokio::test]
    async fn a_kernel_is_prepared_where_a_plan_would_acquire_nothing(
        #[case] releases: &[&str],
        #[case] has_tree: bool,
        #[case] wanted: bool,
    ) {
        let scene = Scene::new("bookworm-t4");
        for release in releases {
            put_set(&scene, release);
        }
        if has_tree {
            scene.put_tree();
        }
        let inventory = Inventory::new(&scene.config);
        assert_eq!(inventory.has_modules(NEXT).await.expect("read"), wanted);
    }

    #[rstest]
    #[case::the_build_of_the_set("#1 SMP of another day", true)]
    #[case::another_build("#1 SMP of this day", false)]
    #[tokio::test]
    async fn the_image_of_an_installed_kernel_states_the_build_that_is_needed(
        #[case] installed: &str,
        #[case] wanted: bool,
    ) {
        let mut scene = Scene::new("bookworm-t4");
        put_set(&scene, NEXT);
        scene.put_tree();
        let host = scene.dir.path().join("host");
        fs::create_dir_all(host.join("boot")).expect("made");
        let image = kernel_image(&format!("{NEXT} (a@b) {installed}"), 0x800);
        fs::write(host.join(format!("boot/vmlinuz-{NEXT}")), image).expect("written");
        scene.config.paths.host_root = host;
        let inventory = Inventory::new(&scene.config);
        assert_eq!(inventory.has_modules(NEXT).await.expect("read"), wanted);
    }

    #[tokio::test]
    async fn a_loaded_driver_does_not_stand_for_its_modules() {
        let scene = Scene::new("bookworm-t4-live");
        let own = scene.facts().kernel.release;
        assert!(!Inventory::new(&scene.config).has_modules(&own).await.expect("read"));
        let store = scene.store();
        store.put_set(&scene.set_in(&store)).expect("put");
        scene.put_tree();
        let mut other = scene.config.clone();
        assert!(Inventory::new(&scene.config).has_modules(&own).await.expect("read"));
        other.driver.version = Some(format!("{DRIVER}.1"));
        assert!(!Inventory::new(&other).has_modules(&own).await.expect("read"));
    }
}
