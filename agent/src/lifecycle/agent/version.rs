//! Version of the driver where no setting names it: that in the tag of the own pod's image. An API server
//! that does not answer ends no agent: it would be started again, and end again.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Agent, Outcome, or_stop};
use crate::cluster::VersionUnknown;
use crate::config::Config;
use crate::lifecycle::Renewal;
use crate::provider::Configurations;
use crate::steps::LoadModule;
use longshore_core::failure::Failure;
use longshore_core::privileges;

/// Longest pause between two questions.
const LONGEST: Duration = Duration::from_secs(60);

/// Time for which a refused question is repeated, in first pauses: a minute.
const DENIALS: u32 = 30;

/// Growing pauses: half of each to all of it, so that the nodes of a cluster do not ask at once.
struct Pauses(Duration);

impl Pauses {
    fn next(&mut self) -> Duration {
        let all = self.0;
        self.0 = (all * 2).min(LONGEST);
        all.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Configuration that was settled by the record alone; None while there is none.
pub(super) struct Unsettled {
    by_record: watch::Sender<Option<Config>>,
    first: Duration,
}

impl Unsettled {
    /// Returns one that asks again after this pause, and then after longer ones.
    pub(super) fn new(first: Duration) -> Self {
        Self { by_record: watch::Sender::new(None), first }
    }

    /// Goes on asking where the version is the record's, and requests a renewal once the answer is
    /// another one.
    pub(super) async fn ask(
        &self,
        configurations: &impl Configurations,
        renewal: &Renewal,
    ) -> Infallible {
        let mut settled = self.by_record.subscribe();
        // The sender is this one's own, so this cannot fail.
        let Ok(config) = settled.wait_for(Option::is_some).await.map(|found| found.clone()) else {
            return std::future::pending().await;
        };
        if let Some(config) = config {
            self.answer(&config, configurations, renewal).await;
        }
        std::future::pending().await
    }

    async fn answer(
        &self,
        config: &Config,
        configurations: &impl Configurations,
        renewal: &Renewal,
    ) {
        let mut pauses = Pauses(self.first);
        loop {
            sleep(pauses.next()).await;
            match configurations.image_version(config).await {
                Ok(version) if version == config.driver.version => {
                    return tracing::info!("the tag of the pod's image names the same driver");
                }
                Ok(version) => {
                    configurations.keep_image_version(version);
                    return renewal.ask();
                }
                Err(VersionUnknown::Refused(failure)) => {
                    return tracing::warn!("{}; the installed driver stays", failure.one_line());
                }
                Err(VersionUnknown::Denied(failure) | VersionUnknown::Unanswered(failure)) => {
                    tracing::debug!("{}; it is asked again", failure.one_line());
                }
            }
        }
    }
}

impl Agent {
    /// Takes the version in the tag of the pod's image where no setting names one. While the API server
    /// does not answer, it is that of the record's driver if that is loaded; else the question is
    /// repeated until it is answered, refused for [`DENIALS`] pauses, a setting names the driver, or the
    /// agent is to stop.
    pub(super) async fn settle_version(
        &mut self,
        config: &mut Config,
        configurations: &impl Configurations,
        unsettled: &Unsettled,
    ) -> Result<(), Outcome> {
        let mut pauses = Pauses(unsettled.first);
        let (mut is_first, mut denied) = (true, None);
        while is_unknown(config) {
            let asked = async { Ok(configurations.image_version(config).await) };
            let failure = match or_stop(&self.stop, asked).await? {
                Ok(version) => {
                    take(config, configurations, version);
                    return Ok(());
                }
                Err(VersionUnknown::Refused(failure)) => return Err(Outcome::Failed(failure)),
                Err(VersionUnknown::Denied(failure)) => {
                    let since = *denied.get_or_insert_with(Instant::now);
                    if since.elapsed() > unsettled.first * DENIALS {
                        return Err(Outcome::Failed(failure));
                    }
                    failure
                }
                Err(VersionUnknown::Unanswered(failure)) => {
                    denied = None;
                    failure
                }
            };
            if let Some(version) = self.recorded_version().await {
                tracing::warn!(
                    "{}; driver {version} is served meanwhile: an earlier agent installed it since \
                     the host was booted",
                    failure.one_line()
                );
                take(config, configurations, Some(version));
                unsettled.by_record.send_replace(Some(config.clone()));
                return Ok(());
            }
            self.tell_unanswered(&failure, &mut is_first);
            let (stop, renewal) = (self.stop.clone(), self.renewal.clone());
            tokio::select! {
                biased;
                () = stop.wait() => return Err(Outcome::Stopped),
                () = renewal.asked() => {
                    denied = None;
                    self.read_again(config, configurations).await?;
                }
                () = sleep(pauses.next()) => {}
            }
        }
        Ok(())
    }

    /// Takes the version in the tag for a configuration that is read while a driver serves, where no
    /// setting names one any more: one question alone.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) async fn settle_once(
        config: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Failure> {
        if is_unknown(config) {
            let asked = configurations.image_version(config).await;
            take(config, configurations, asked.map_err(VersionUnknown::into_failure)?);
        }
        Ok(())
    }

    /// Reports a question without an answer: in the status once, in the log each time.
    fn tell_unanswered(&self, failure: &Failure, is_first: &mut bool) {
        if std::mem::take(is_first) {
            self.context.telemetry.failed(failure);
        }
        tracing::warn!(
            "waiting for the driver's version, which no setting names: {}",
            failure.one_line()
        );
    }

    /// Returns the version of the driver that this boot's record has, if it is the loaded one.
    async fn recorded_version(&self) -> Option<String> {
        let version = self.journal.state().plan.as_ref()?.driver_version.clone();
        let loads = |module: &LoadModule| module.name == "nvidia";
        let mut live = self.journal.live().filter_map(|entry| LoadModule::recorded(&entry.step));
        if !self.journal.state().whole || !live.any(loads) {
            return None;
        }
        let host = std::sync::Arc::clone(&self.context.host);
        let seen = privileges::run_privileged(move || host.module("nvidia")).await;
        let loaded = seen.ok()?.ok()??;
        loaded.version.is_none_or(|loaded| loaded == version).then_some(version)
    }
}

/// True if neither a setting nor a tag gave the version.
fn is_unknown(config: &Config) -> bool {
    !config.driver.is_named && config.driver.version.is_none()
}

fn take(config: &mut Config, configurations: &impl Configurations, version: Option<String>) {
    config.take_image_version(version.clone());
    configurations.keep_image_version(version);
}
