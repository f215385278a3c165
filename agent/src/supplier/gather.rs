//! Inputs of a plan: the host's facts, and the catalog from local sources to remote ones. A remote
//! source is queried only where the local ones do not suffice.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use super::run_files::Archives;
use super::{Supplier, fits};
use crate::artifact::SetQuery;
use crate::catalog::{self, Catalog};
use crate::config::Config;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::host::HostFacts;
use crate::host::facts::{Kernel, Known};
use crate::journal;
use crate::plan;
use crate::prebuilt::Prebuilt;
use crate::source::{driver, headers};
use crate::store::Store;

impl Supplier<'_> {
    /// Returns the catalog for the host, or for another kernel, that `read` returns.
    pub(super) async fn gather_for(
        &self,
        read: impl FnOnce(&Config) -> Result<HostFacts, Failure> + Send + 'static,
    ) -> Result<(HostFacts, Catalog), Failure> {
        // At a point without other waiting, so that SIGTERM is handled meanwhile.
        let store = self.open_store().await?;
        self.share_store().await?;
        let config = self.config.clone();
        let read = move || -> Result<_, Failure> {
            let facts = read(&config)?;
            let catalog = look(&config, &facts, &store)?;
            Ok((facts, catalog))
        };
        let (facts, mut catalog) = self.in_time(read).await?;
        self.leave_out_failed(&mut catalog);
        if plan::adopts(self.config, &facts, &catalog) {
            return Ok((facts, catalog));
        }
        let version = self.config.driver.version.as_deref();
        if !version.is_some_and(|version| self.has_set(version, &facts.kernel, &catalog)) {
            let prebuilt = Prebuilt::new(self.config)?.sharing(&self.away);
            let ask = || prebuilt.ask_registries(&facts.kernel);
            self.registries.get_or_try_init(ask).await?.add_to(&mut catalog);
            self.leave_out_failed(&mut catalog);
        }
        self.ask(&facts.kernel, &mut catalog, &self.store()?).await;
        Ok((facts, catalog))
    }

    /// Like [`Supplier::store`], but does not hang with its disk.
    async fn open_store(&self) -> Result<Store, Failure> {
        if let Some(store) = self.store.get() {
            return Ok(store.clone());
        }
        let root = self.config.paths.store.clone();
        let store = self.in_time(move || Store::open(&root)).await?;
        Ok(self.store.get_or_init(|| store).clone())
    }

    /// Runs `read` on the host and the store within `step-deadline`.
    async fn in_time<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let limit = self.config.deadlines.step;
        let read = tokio::task::spawn_blocking(read);
        let read = tokio::time::timeout(limit, read)
            .await
            .map_err(|_| unanswered(limit, &self.config.paths.store))?;
        read.or_fail(ExitCode::Bug, || "reading the host")?
    }

    /// Adds what the .run files and the archives offer, unless everything needed is available. The
    /// plan judges a failure to read them: with a set for this kernel available it is no reason to
    /// leave a node without its driver, and a host without a GPU has a graver finding.
    async fn ask(&self, kernel: &Kernel, catalog: &mut Catalog, store: &Store) {
        let suffices = self.suffices(kernel, catalog);
        catalog.run_files = self.run_files.look(store, suffices, self).await;
        if !self.suffices(kernel, catalog) {
            self.ask_archives(kernel, catalog).await;
        }
    }

    async fn ask_archives(&self, kernel: &Kernel, catalog: &mut Catalog) {
        let asked = match self.has_some(kernel, catalog) {
            true => self.archive_soon().await,
            false => self.archive().await,
        };
        match asked {
            Ok(archive) => {
                let version = Some(kernel.version.as_str());
                let wanted = headers::Wanted { release: &kernel.release, version };
                let places = self.config.header_places();
                catalog.drivers = Known::Yes(driver::drivers(archive));
                catalog.headers = Known::Yes(headers::at_hand(wanted, &places, archive));
            }
            Err(failure) => {
                catalog.drivers = Known::Unknown(failure.one_line());
                catalog.headers = Known::Unknown(failure.one_line());
                *self.unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            }
        }
    }

    fn suffices(&self, kernel: &Kernel, catalog: &Catalog) -> bool {
        let wish = &self.config.driver;
        let versions = match (&wish.version, &catalog.run_files) {
            (Some(version), _) => vec![version],
            (None, Known::Yes(files)) => files.iter().map(|file| &file.version).collect(),
            (None, Known::Unknown(_)) => Vec::new(),
        };
        let is_there = |version: &String| {
            self.has_set(version, kernel, catalog)
                && catalog.userspace.iter().any(|tree| tree.driver_version == *version)
        };
        !versions.is_empty() && versions.into_iter().all(is_there)
    }

    /// True if a complete set of exactly this version is available for a kernel.
    pub(super) fn has_set(&self, version: &str, kernel: &Kernel, catalog: &Catalog) -> bool {
        let wish = &self.config.driver;
        let query =
            SetQuery { kernel: kernel.id(), driver_version: version, flavour: wish.flavour };
        catalog.sets.iter().map(|s| &s.set).any(|set| {
            query.matches_with(set, &wish.extra_modules)
                // sign-file comes from the archives.
                && self.signing.suffices(&set.key, catalog)
        })
    }
}

/// Returns the catalog without registries and archives.
fn look(config: &Config, facts: &HostFacts, store: &Store) -> Result<Catalog, Failure> {
    let unasked = Known::Unknown("not queried: everything needed is available".into());
    let mut catalog = catalog::gather(config, facts, Some(store), unasked)?;
    Prebuilt::new(config)?.judge(&facts.kernel, store, &mut catalog);
    catalog.fits = fits::of(config, facts, store, &catalog.sets);
    Ok(catalog)
}

/// Reads the facts of the configured host, and which of its parts an agent installed.
pub(super) fn read_host(config: &Config) -> Result<HostFacts, Failure> {
    let paths = &config.paths;
    let mut facts = HostFacts::read(&paths.root, &paths.host_root)?;
    if !paths.is_captured()
        && let Some(state) = journal::read_state(paths)?
        && !state.is_of_another_boot(facts.kernel.boot_id.as_deref())
    {
        facts.ours = state.driver_modules(&facts.loaded);
    }
    Ok(facts.with_places(paths, &journal::recorded(paths)))
}

/// Makes the failure of an unanswered read; the hanging thread is left behind.
fn unanswered(limit: Duration, store: &Path) -> Failure {
    let cause = format!(
        "reading the host and the store has not come to its end in {} s: the kernel, a disk or a file \
         system does not answer (the store is {})",
        limit.as_secs_f64(),
        store.display()
    );
    Failure::new(ExitCode::Preflight, cause).remedy(
        "see the kernel's log (dmesg) for what does not answer; where the host is only slow, give it \
         more time (step-deadline)",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::{self, Fragment};

    #[tokio::test]
    async fn a_host_that_does_not_answer_is_given_up_and_said() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = config::load(Fragment::default(), &|_| None, None).expect("a default");
        config.paths.store = dir.path().join("store");
        config.deadlines.step = Duration::from_millis(20);
        let supplier = Supplier::new(&config);
        let (answers, hangs) = mpsc::channel::<()>();
        let read = move |config: &Config| {
            // Blocks until the disk answers again, which is here the end of the test.
            let _ = hangs.recv();
            read_host(config)
        };
        let failure = supplier.gather_for(read).await.expect_err("it hangs");
        assert_eq!(failure.code(), ExitCode::Preflight);
        let text = failure.report();
        assert!(text.contains("has not come to its end in 0.02 s"), "{text}");
        assert!(text.contains("step-deadline"), "{text}");
        assert!(text.contains(&config.paths.store.display().to_string()), "{text}");
        drop(answers);
    }
}
