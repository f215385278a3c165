//! The configurations that `longshore run` follows.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{env, image_version, load};
use crate::build_lease::Claims;
use crate::cluster::VersionUnknown;
use crate::config::{Config, Fragment, StorePlace};
use crate::provider;
use crate::supplier::Provisioner;
use crate::support_table;
use crate::telemetry::Telemetry;
use longshore_core::failure::Failure;

/// Configurations of `run`: read again with the flags and the environment of its start.
pub(super) struct Configurations {
    flags: Fragment,
    telemetry: Telemetry,
    claims: Claims,
    store_place: StorePlace,
    image_version: Mutex<Option<String>>,
    /// The one that the agent follows.
    running: Mutex<Config>,
}

impl Configurations {
    /// Returns those of a run that starts with `config`.
    pub(super) fn new(
        flags: Fragment,
        config: &Config,
        telemetry: &Telemetry,
        claims: &Claims,
    ) -> Self {
        Self {
            flags,
            telemetry: telemetry.clone(),
            claims: claims.clone(),
            store_place: config.store_place.clone(),
            image_version: Mutex::default(),
            running: Mutex::new(config.clone()),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<String>> {
        self.image_version.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl provider::Configurations for Configurations {
    async fn read(&self) -> Result<Config, Failure> {
        let mut config = load(&self.flags, &env)?;
        config.take_image_version(self.kept().clone());
        let config = Config { store_place: self.store_place.clone(), ..config };
        support_table::settled(config, true).await
    }

    async fn with_table(&self, running: &Config) -> Result<Config, Failure> {
        support_table::settled(running.clone(), true).await
    }

    fn follows(&self, running: &Config) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone_from(running);
    }

    async fn table_changed(&self) {
        loop {
            tokio::time::sleep(support_table::until_look()).await;
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if support_table::has_changed(&running).await {
                return;
            }
        }
    }

    async fn image_version(&self, config: &Config) -> Result<Option<String>, VersionUnknown> {
        image_version(config).await
    }

    fn keep_image_version(&self, version: Option<String>) {
        *self.kept() = version;
    }

    fn provider<'a>(&self, config: &'a Config) -> impl provider::Provider + 'a {
        Provisioner::new(config).telling(&self.telemetry).claiming(&self.claims)
    }
}
