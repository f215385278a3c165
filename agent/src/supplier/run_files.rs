//! The .run files that the configuration names: looked at once, fetched when they are wanted.

use std::sync::{Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::artifact::Flavour;
use crate::catalog::{DriverAtHand, RunFileAtHand};
use crate::config::{Config, Pin};
use crate::failure::{ExitCode, Failure};
use crate::host::facts::Known;
use crate::plan::gpu::{OPEN_RECOMMENDED_BRANCH, branch_of};
use crate::progress::Progress;
use crate::source::driver;
use crate::source::http::{Fetcher, Policy};
use crate::source::runfile::{self, StoredRunFile};
use crate::store::Store;

/// The configuration's .run files.
pub(super) struct RunFiles<'a> {
    config: &'a Config,
    looked: OnceCell<Vec<RunFileAtHand>>,
    /// Why one of them could not be looked at.
    unread: Mutex<Option<Failure>>,
}

impl<'a> RunFiles<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        Self { config, looked: OnceCell::new(), unread: Mutex::default() }
    }

    pub(super) fn are_named(&self) -> bool {
        !self.config.run_files.is_empty()
    }

    /// For the catalog. Nothing is asked over the network where that is `needless`.
    pub(super) async fn look(&self, store: &Store, needless: bool) -> Known<Vec<RunFileAtHand>> {
        if !self.are_named() {
            return Known::Yes(Vec::new());
        }
        let is_stored =
            |pin: &Pin| matches!(pin, Pin::Sha256(s) if runfile::find(store, s).is_some());
        if needless && !self.config.run_files.iter().all(|file| is_stored(&file.pin)) {
            return Known::Unknown("not asked: all that is wanted is at hand".into());
        }
        match self.known(store).await {
            Ok(files) => Known::Yes(files),
            Err(failure) => {
                tracing::warn!("going on without the .run files: {}", failure.report());
                let why = failure.to_string();
                *self.unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                Known::Unknown(why)
            }
        }
    }

    /// The failure behind [`Known::Unknown`].
    pub(super) fn take_unread(&self) -> Option<Failure> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Chooses a driver to compile and brings its file into the store.
    ///
    /// # Errors
    /// Exit code 12 where no file holds it; as [`runfile::fetch`].
    pub(super) async fn choose(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<DriverAtHand, Failure> {
        let find = |files: &[RunFileAtHand]| {
            driver::find(&drivers(files), version, flavour).map_err(|nearest| {
                let wanted = version.map(|v| format!(" {v}")).unwrap_or_default();
                let flavour = flavour.map(|f| format!(" {f}")).unwrap_or_default();
                let cause = format!("no .run file named holds the driver{wanted}{flavour}");
                let remedy = nearest.remedy_text().unwrap_or_default().to_owned();
                Failure::new(ExitCode::Download, cause).remedy(remedy)
            })
        };
        let expected = find(&self.known(store).await?)?;
        self.fetch(&expected.version, store, progress).await?;
        // Now its flavours are known, and not only expected.
        find(&self.known(store).await?)
    }

    /// Brings the file with a version into the store.
    ///
    /// # Errors
    /// Exit code 12 where no file has it; as [`runfile::fetch`].
    pub(super) async fn fetch(
        &self,
        version: &str,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<StoredRunFile, Failure> {
        let files = self.known(store).await?;
        let file = files.iter().find(|file| file.version == version).ok_or_else(|| {
            Failure::new(ExitCode::Download, format!("no .run file named is of {version}"))
                .remedy("name the .run file of that version")
        })?;
        runfile::fetch(file, &self.fetcher()?, store, progress).await
    }

    /// What is known of every file, now.
    async fn known(&self, store: &Store) -> Result<Vec<RunFileAtHand>, Failure> {
        let looked = self.looked.get_or_try_init(|| self.look_at_all(store)).await?;
        Ok(looked.iter().map(|file| runfile::as_stored(file, store)).collect())
    }

    async fn look_at_all(&self, store: &Store) -> Result<Vec<RunFileAtHand>, Failure> {
        let fetcher = self.fetcher()?;
        let mut files = Vec::new();
        for source in &self.config.run_files {
            files.push(runfile::look(source, &fetcher, store).await?);
        }
        Ok(files)
    }

    fn fetcher(&self) -> Result<Fetcher, Failure> {
        Fetcher::new(Policy::default(), &self.config.paths.host_root)
    }
}

/// Newest first, and of a version the flavour first that NVIDIA recommends.
fn drivers(files: &[RunFileAtHand]) -> Vec<DriverAtHand> {
    let mut drivers: Vec<_> = files.iter().flat_map(RunFileAtHand::drivers).collect();
    let is_recommended = |driver: &DriverAtHand| {
        let open = branch_of(&driver.version).is_none_or(|b| b >= OPEN_RECOMMENDED_BRANCH);
        (driver.flavour == Flavour::Open) == open
    };
    drivers.sort_by(|a, b| {
        crate::source::version::compare(&b.version, &a.version)
            .then_with(|| is_recommended(b).cmp(&is_recommended(a)))
    });
    drivers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Fragment};

    #[tokio::test]
    async fn without_run_files_nothing_is_set_up() {
        let config = config::load(Fragment::default(), &|_| None, None).expect("configuration");
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path()).expect("store");
        let files = RunFiles::new(&config);
        for needless in [false, true] {
            let Known::Yes(found) = files.look(&store, needless).await else { panic!("known") };
            assert!(found.is_empty());
        }
        assert!(files.looked.get().is_none(), "no client was made");
    }
}
