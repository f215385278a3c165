//! Record of the installed driver in the store, and the store's cleanup after it.

use std::time::{Duration, SystemTime};

use super::Inventory;
use crate::journal::PlanSummary;
use crate::steps::Step;
use crate::upkeep::gc::{self, Needed, Report};
use crate::upkeep::history;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Time limit for waiting on another agent's cleanup: that agent does the same work.
const LOCK_LIMIT: Duration = Duration::from_secs(1);

impl Inventory<'_> {
    /// Records what is installed, and removes what is not needed where the store exceeds its size
    /// limit. The driver is installed by now, so failures are warnings.
    pub(super) async fn look_after_store(&self, plan: &PlanSummary, steps: &[Step]) {
        let installed = history::installed(plan, steps);
        // Keeps the agent responsive to SIGTERM, even if the disk hangs.
        let record = async {
            let store = self.store.open()?;
            let recorded = tokio::task::spawn_blocking(move || history::record(&store, installed));
            recorded.await.or_fail(FailureKind::Bug, || "recording the installed driver")?
        };
        if let Err(failure) = record.await {
            tracing::warn!("could not record the installed driver: {}", failure.one_line());
        }
        self.store.release();
        match self.collect().await {
            Ok(Some(report)) if !report.removed.is_empty() => tracing::info!(
                "removed {} things from the store: {} MiB before, {} MiB after",
                report.removed.len(),
                report.before >> 20,
                report.after >> 20
            ),
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!("nothing was removed from the store: {}", failure.one_line())
            }
        }
    }

    /// Returns None where there is no size limit.
    pub(super) async fn collect(&self) -> Result<Option<Report>, Failure> {
        let Some(bound) = self.config.store_max_size else { return Ok(None) };
        let store = self.store.open()?;
        let alone = store.lock_exclusive(LOCK_LIMIT).await?;
        let paths = self.config.paths.clone();
        let work = move || {
            let needed = Needed::read(&store, &paths)?;
            gc::decide(&store, &needed, Some(bound), SystemTime::now())?.carry_out(&store, alone)
        };
        let work = tokio::task::spawn_blocking(work);
        work.await.or_fail(FailureKind::Bug, || "removing from the store")?.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Config, Fragment};
    use crate::steps::{LoadModule, ModuleOrigin};
    use longshore_core::disk::Disk;
    use longshore_core::flavour::Flavour;
    use longshore_core::store::Store;
    use longshore_modules::sets::SetStore;
    use longshore_modules::testing::set;

    /// Makes a configuration, and a store with a set, a package, and the load step of the set.
    fn scene(bound: &str) -> (tempfile::TempDir, Config, Store, Step) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let below = |name: &str| Some(dir.path().join(name).display().to_string());
        let env = |name: &str| match name {
            "LONGSHORE_STORE" => below("store"),
            "LONGSHORE_STATE_DIR" => below("state"),
            "LONGSHORE_DRIVER_ROOT" => below("root"),
            "LONGSHORE_STORE_MAX_SIZE" => Some(bound.to_owned()),
            _ => None,
        };
        let config = config::load(Fragment::default(), &env, None).expect("configuration");
        let store = Store::open(&config.paths.store, Disk::default()).expect("store");
        let mut set = set();
        set.modules[0].sha256 = store.put(b"module").expect("put");
        store.put_set(&set).expect("set");
        store.put(b"package").expect("put");
        let origin = ModuleOrigin::Driver { sha256: set.modules[0].sha256.clone() };
        let (parameters, version, srcversion) = (String::new(), None, None);
        let load = Step::LoadModule(LoadModule {
            name: "nvidia".into(),
            origin,
            parameters,
            version,
            srcversion,
        });
        (dir, config, store, load)
    }

    fn plan() -> PlanSummary {
        PlanSummary {
            driver_version: "535.261.03".into(),
            flavour: Flavour::Open,
            kernel_release: "6.1".into(),
        }
    }

    fn blobs(store: &Store) -> usize {
        std::fs::read_dir(store.dir("blobs/sha256")).expect("listed").count()
    }

    #[tokio::test]
    async fn what_is_installed_is_remembered_and_the_rest_goes_beyond_the_bound() {
        for (bound, left) in [("0", 1), ("5GiB", 2), ("none", 2)] {
            let (_dir, config, store, load) = scene(bound);
            let inventory = Inventory::new(&config);
            inventory.store.share().await.expect("shared");
            inventory.store.share().await.expect("still shared");
            inventory.look_after_store(&plan(), &[load]).await;
            assert_eq!(history::read(&store)[0].driver_version, "535.261.03");
            assert_eq!(blobs(&store), left, "{bound}");
            assert_eq!(store.sets().expect("sets").len(), 1);
            store.lock_exclusive(Duration::ZERO).await.expect("no longer in use");
        }
    }

    #[tokio::test]
    async fn nothing_goes_while_somebody_else_is_at_work() {
        let (_dir, config, store, load) = scene("0");
        let other = store.lock_shared(Duration::ZERO).await.expect("shared");
        Inventory::new(&config).look_after_store(&plan(), &[load]).await;
        assert_eq!(blobs(&store), 2);
        drop(other);
    }
}
