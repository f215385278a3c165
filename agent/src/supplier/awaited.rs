//! Sets that a registry may get later, for an agent that compiles nothing.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::Provisioner;
use super::host_facts::with_kernel;
use crate::plan::Plan;
use crate::prebuilt::Prebuilt;
use crate::telemetry::Awaited;
use longshore_core::failure::Failure;
use longshore_core::finding::{About, Finding, Severity};
use longshore_host::HostFacts;

/// Pauses between two questions to the registries: the first, and the longest.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(15);

/// A wait for a set, over all plans that it is for.
#[derive(Debug)]
pub(crate) struct OfferWait {
    since: Instant,
    limit: Duration,
    pause: Duration,
    /// Sets that the registries offered at the last plan, which did not suffice.
    offered: Vec<String>,
}

impl OfferWait {
    /// Begins a wait with this time limit.
    pub(crate) fn begin(limit: Duration) -> Self {
        Self { since: Instant::now(), limit, pause: FIRST, offered: Vec::new() }
    }

    /// Returns the next pause, twice as long each time, and spread over its half: the nodes of a fleet begin to wait
    /// at the same moment. None once the time is over.
    pub(crate) fn pause(&mut self) -> Option<Duration> {
        let left = self.limit.saturating_sub(self.since.elapsed());
        let whole = self.pause;
        self.pause = (whole * 2).min(LONGEST);
        (!left.is_zero()).then(|| whole.mul_f64(0.5 + fastrand::f64() / 2.0).min(left))
    }

    /// True if the registries offer something that they did not at the last plan.
    pub(crate) fn is_new(&mut self, offered: Vec<String>) -> bool {
        let is_new = !offered.is_empty() && offered != self.offered;
        self.offered = offered;
        is_new
    }

    /// Returns the whole seconds since its begin.
    pub(crate) fn seconds(&self) -> u64 {
        self.since.elapsed().as_secs()
    }
}

impl Provisioner<'_> {
    /// Keeps the modules that [`Provisioner::fetch`] found missing; findings about this host do not count.
    pub(super) fn note_awaited(&self, plan: &Plan) {
        let about_sources =
            plan.findings.iter().filter(|f| f.code.entry().is_about(About::Modules));
        let awaited = self.awaited_by(plan, about_sources);
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = awaited;
    }

    /// Returns the modules that the last [`Provisioner::fetch`] failed for, where the configuration waits for them.
    pub(crate) fn missing(&self) -> Option<Awaited> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the modules that a refused plan lacks, where the configuration waits for a registry to get them.
    pub(super) fn awaited(&self, plan: &Plan) -> Option<Awaited> {
        self.awaited_by(plan, plan.findings.iter())
    }

    fn awaited_by<'f>(
        &self,
        plan: &Plan,
        mut findings: impl Iterator<Item = &'f Finding>,
    ) -> Option<Awaited> {
        let config = self.config();
        let waits = !config.registry_wait.is_zero()
            && !config.may_compile()
            && !config.registries.is_empty();
        let gravest = findings.find(|finding| finding.severity == Severity::Refusal)?;
        (waits && gravest.code.entry().is_about(About::LaterSet)).then(|| Awaited {
            driver: plan.driver_version.clone(),
            flavour: plan.flavour.to_string(),
            kernel: plan.kernel_release.clone(),
            registries: config.registries.iter().map(|one| one.reference.to_string()).collect(),
            since: jiff::Timestamp::now(),
        })
    }

    /// Returns the digests of the sets that the registries have now for `release`, or this host's kernel, and that
    /// count. A registry that cannot be asked has none.
    pub(crate) async fn offered_for(&self, release: Option<&str>) -> Vec<String> {
        let asked = async {
            let paths = &self.config().paths;
            let facts = HostFacts::read(&paths.root, &paths.host_root)?;
            let kernel = match release {
                Some(release) => with_kernel(facts, paths, release).kernel,
                None => facts.kernel,
            };
            // Servers that did not answer before are asked again.
            let store = self.store()?;
            Ok::<_, Failure>(Prebuilt::new(self.config())?.offered(&kernel, &store).await)
        };
        asked.await.unwrap_or_else(|failure| {
            tracing::debug!("the registries cannot be asked: {}", failure.one_line());
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_are_spread_and_end_with_the_time() {
        let mut wait = OfferWait::begin(Duration::from_secs(3600));
        for whole in [2, 4, 8, 15, 15, 15] {
            let (whole, pause) = (Duration::from_secs(whole), wait.pause().expect("time is left"));
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
        }
        assert_eq!(OfferWait::begin(Duration::ZERO).pause(), None);
        let soon = Duration::from_millis(900);
        assert!(OfferWait::begin(soon).pause().is_some_and(|pause| pause <= soon));
    }

    #[test]
    fn a_plan_is_made_again_for_another_offer_alone() {
        let mut wait = OfferWait::begin(Duration::ZERO);
        let offer = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(!wait.is_new(Vec::new()));
        assert!(wait.is_new(offer(&["a"])));
        assert!(!wait.is_new(offer(&["a"])), "it did not suffice");
        assert!(wait.is_new(offer(&["a", "b"])));
        assert!(!wait.is_new(Vec::new()));
    }
}
