//! Wait for a GPU on a host without one: nothing of ours is on it, and the agent is Ready all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Agent, Outcome, tell_phase};
use crate::journal::phase::Phase;
use crate::lifecycle::watch::Watch;
use crate::plan::Plan;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::privileges;

/// Time between two looks at the PCI bus where the kernel's events are not received.
const WITHOUT_EVENTS: Duration = Duration::from_secs(60);

impl Agent {
    /// Returns the outcome of a plan that waits for a GPU. An agent that has changed the host before ends instead, and
    /// undoes that.
    pub(super) fn without_gpu(&self, plan: &Plan) -> Outcome {
        let is_untouched = self.journal.live().next().is_none();
        if is_untouched && self.journal.phase() == Phase::Planning {
            return Outcome::NoGpu;
        }
        let cause = plan.findings.first().map_or("there is no GPU", |note| note.detail.as_str());
        Outcome::Failed(
            Failure::new(FailureKind::NoDevice, cause)
                .remedy("nothing: the next agent waits for a GPU (no-gpu = wait)"),
        )
    }

    /// Waits until the PCI bus may have a GPU, or the configuration is to be read again: then true.
    pub(super) async fn idle(&mut self) -> Result<bool, Outcome> {
        self.enter_idle()?;
        let mut watch = Watch::begin(&self.context.triggers);
        watch.arm(&[]);
        let is_deaf = !self.context.triggers.kernel || !watch.left_out().is_empty();
        self.context.rest.is(true);
        let renewed = self.until_gpu(&mut watch, is_deaf).await;
        self.context.rest.is(false);
        self.asked = ("a change of the PCI bus", Instant::now());
        self.enter(Phase::Probing)?;
        renewed.ok_or(Outcome::Stopped)
    }

    /// Returns true for a request to read the configuration, false for a bus that may have a GPU, None for a stop.
    async fn until_gpu(&self, watch: &mut Watch, is_deaf: bool) -> Option<bool> {
        loop {
            // Also before the first event: one may have appeared between the plan and the opening of the sources.
            tokio::select! {
                biased;
                () = self.stop.wait() => return None,
                () = self.renewal.asked() => return Some(true),
                is_there = self.has_gpu() => if is_there { return Some(false) },
            }
            tokio::select! {
                biased;
                () = self.stop.wait() => return None,
                () = self.renewal.asked() => return Some(true),
                () = watch.changed() => return Some(false),
                () = tokio::time::sleep(WITHOUT_EVENTS), if is_deaf => {}
            }
        }
    }

    /// True if a GPU is on the bus. A bus that cannot be read is left to the next plan, which names the reason.
    async fn has_gpu(&self) -> bool {
        let host = Arc::clone(&self.context.host);
        match privileges::run_privileged(move || host.gpus()).await {
            Ok(Ok(gpus)) => !gpus.is_empty(),
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Enters the phase; the record has it as Removed.
    fn enter_idle(&mut self) -> Result<(), Failure> {
        let last = self.journal.phase();
        self.journal.enter(Phase::Removed)?;
        self.context.telemetry.enter(Phase::Idle);
        tell_phase(Phase::Idle, last, self.entered);
        self.entered = Instant::now();
        tracing::info!("no NVIDIA GPU is on the PCI bus: waiting for one (no-gpu = wait)");
        Ok(())
    }
}
