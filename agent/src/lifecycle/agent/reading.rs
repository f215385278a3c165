//! Reading of the configuration, or of its support table alone, on request.

use super::{Agent, Outcome, or_stop};
use crate::config::{ClusterConfig, Config};
use crate::provider::Configurations;
use longshore_core::failure::Failure;

/// Consequence of a configuration without a driver whose version the tag of the image does not give.
pub(super) const UNNAMED: &str = "the new configuration names no driver, keeping the running one";

/// Consequence of a configuration, or a support table, that cannot be read or is wrong.
pub(super) const UNUSABLE: &str = "the new configuration cannot be used, keeping the running one";

impl Agent {
    /// Reads the configuration again where that was requested while a change was held.
    pub(super) async fn read_again(
        &mut self,
        running: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        if let Some(next) = self.read_next(running, configurations).await? {
            self.follow(&next);
            configurations.follows(&next);
            *running = next;
        }
        Ok(())
    }

    /// The same while an installed driver is served: a configuration that leaves the driver open is not
    /// taken.
    pub(super) async fn read_held(
        &mut self,
        running: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        let Some(mut next) = self.read_next(running, configurations).await? else {
            return Ok(());
        };
        let settled = async { Ok(Self::settle_once(&mut next, configurations).await) };
        match or_stop(&self.stop, settled).await? {
            Ok(()) => {
                self.follow(&next);
                configurations.follows(&next);
                *running = next;
            }
            Err(failure) => warn_of(&failure, UNNAMED),
        }
        Ok(())
    }

    /// Reads what was requested again; None where the running configuration is to stay.
    async fn read_next(
        &self,
        running: &Config,
        configurations: &impl Configurations,
    ) -> Result<Option<Config>, Outcome> {
        let is_whole = self.renewal.take_whole();
        let read = async { Ok(next(running, configurations, is_whole).await) };
        match or_stop(&self.stop, read).await? {
            Ok(next) => match takes_restart(running, &next) {
                None => return Ok(Some(next)),
                Some(what) => warn_of_restart(what),
            },
            Err(failure) => warn_of(&failure, UNUSABLE),
        }
        Ok(None)
    }
}

/// Reads the whole configuration again, or its support table alone.
pub(super) async fn next(
    running: &Config,
    configurations: &impl Configurations,
    is_whole: bool,
) -> Result<Config, Failure> {
    if is_whole { configurations.read().await } else { configurations.with_table(running).await }
}

/// Returns the changed settings that an agent reads only at its start. All fields are named: a new one is classed
/// here as read again, by `_`, or compared, or does not compile.
pub(super) fn takes_restart(running: &Config, next: &Config) -> Option<&'static str> {
    let Config {
        driver: _,
        driver_rules: _,
        archives: _,
        run_files: _,
        source_trees: _,
        prebuilt: _,
        registries: _,
        logins: _,
        publish: _,
        builder: _,
        registry_wait: _,
        signatures,
        own_signature: _,
        builder_id: _,
        module_signing: _,
        headers: _,
        build_root: _,
        compile: _,
        module_packages: _,
        modules_only: _,
        jobs: _,
        build_user: _,
        patches: _,
        daemons: _,
        operator: _,
        cluster,
        cdi_capabilities: _,
        cdi_spec: _,
        missing_gpus: _,
        support: _,
        no_gpu: _,
        conflicting_drivers: _,
        next_kernel: _,
        paths,
        store_place: _,
        store_max_size: _,
        serving,
        termination_message,
        downloads: _,
        deadlines: _,
    } = next;
    let ClusterConfig {
        report,
        taint,
        features_file: _,
        evict,
        evict_deadline,
        keep_for_successor: _,
        build_lease: _,
    } = cluster;
    if running.paths != *paths {
        return Some("store, state directory, driver root or host root");
    }
    if running.serving != *serving {
        return Some("listen, or its certificate, key or token review");
    }
    if running.termination_message != *termination_message {
        return Some("termination-message");
    }
    if (running.cluster.report, running.cluster.taint) != (*report, *taint) {
        return Some("report or taint of the cluster");
    }
    if (running.cluster.evict, running.cluster.evict_deadline) != (*evict, *evict_deadline) {
        return Some("cluster.evict or cluster.evict-deadline");
    }
    // The amount of store content that is hashed before it is loaded depends on it.
    (running.signatures.required != signatures.required).then_some("require-signature")
}

pub(super) fn warn_of_restart(what: &str) {
    tracing::warn!("keeping the running configuration: changing {what} needs a restart");
}

pub(super) fn warn_of(failure: &Failure, consequence: &str) {
    let remedy = failure.remedy_text().map(|text| format!("; remedy: {text}"));
    tracing::warn!("{consequence}: {}{}", failure.one_line(), remedy.unwrap_or_default());
}
