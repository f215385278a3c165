//! Build lease across hosts: agents that need the same modules elect one builder by a shared claim.
//!
//! A [`LeaseBackend`] stores the claim: [`claims`] in a registry, [`objects`] in a Lease object of a
//! cluster. A backend only has to guarantee that the last writer wins: docs/internals/decisions/build-once.md
//! has the protocol, and the remaining races.

pub mod claims;
mod election;
mod lease;
pub mod objects;

use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

pub use election::{Alone, Election, Forecast, Outcome, Search};
pub use lease::{Claims, Lease};
use longshore_build::KnownFailure;
use longshore_build::builder::Builder;
use longshore_core::failure::Failure;

/// Maximum lease that is accepted of a claim.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);
/// Maximum number of failures in a claim; registries refuse manifests above 4 MiB, and one failure
/// takes some kilobytes.
const MOST_FAILURES: usize = 4;

/// Storage for the claim on one piece of work. There is at most one; the last written one counts.
pub trait LeaseBackend: Send + Sync + 'static {
    /// True if a write replaces the claim that was read and no other (compare-and-swap): then the
    /// first write decides, and earlier ones leave nothing behind. False if the last writer wins.
    const COMPARES: bool;

    /// Prepares the backend once before the first write.
    fn prepare(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Reads the claim; None where there is none, or no valid one.
    fn read(&self) -> impl Future<Output = Result<Option<StoredClaim>, Failure>> + Send;

    /// Replaces the claim with mark `over`, None where none was read; returns the new mark. None
    /// where the backend compares, and another agent was faster.
    fn write(
        &self,
        claim: &Claim,
        over: Option<&str>,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send;

    /// Removes the claim with this mark, and no other: one that has replaced it stays. False where
    /// the backend does not support removal.
    fn withdraw(&self, mark: &str) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// A stored claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredClaim {
    /// Identifier of this write, different for each.
    pub mark: String,
    /// The claim.
    pub claim: Claim,
}

/// Record of the agent that builds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Claim {
    /// The builder.
    pub builder: Builder,
    /// Identifies the claim among all others.
    pub nonce: String,
    /// State of the claim.
    pub stage: Stage,
    /// Number of earlier writes.
    pub renewal: u32,
    /// Lease in milliseconds: the claim is valid for this long without a renewal.
    pub lease: u64,
    /// Failures that recur on every host: of this builder, and of earlier ones.
    #[serde(default, deserialize_with = "understood", skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<KnownFailure>,
}

/// Skips failures in another longshore's format: they are no reason to overwrite its claim.
fn understood<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KnownFailure>, D::Error> {
    let reported = Vec::<serde_json::Value>::deserialize(from)?;
    let understood = reported.into_iter().filter_map(|one| serde_json::from_value(one).ok());
    Ok(understood.take(MOST_FAILURES).collect())
}

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Its owner waits to see if another agent overwrites it.
    Asking,
    /// Its owner builds.
    Building,
    /// Its owner has ended, successfully or not.
    Done,
}

impl Claim {
    fn new(builder: Builder, times: &Times, failures: Vec<KnownFailure>) -> Self {
        let nonce = format!("{:016x}", getrandom::u64().unwrap_or_else(|_| fastrand::u64(..)));
        let lease = u64::try_from(times.lease.as_millis()).unwrap_or(u64::MAX);
        Self { builder, nonce, stage: Stage::Asking, renewal: 0, lease, failures }
    }

    /// Returns the next write of this claim, at `stage`.
    fn next(&self, stage: Stage) -> Self {
        Self { stage, renewal: self.renewal.saturating_add(1), ..self.clone() }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.nonce == other.nonce
    }
}

/// Time limits, derived from the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Validity of a claim without a renewal.
    pub lease: Duration,
    /// Time to wait for other agents before building anyway.
    pub wait: Duration,
}

impl Times {
    /// Interval of renewals: three consecutive ones may fail.
    fn renew(&self) -> Duration {
        self.lease / 4
    }

    /// Time an asking agent waits to see if another overwrites its claim.
    fn settling_time(&self) -> Duration {
        self.lease / 20
    }

    /// The same after a slow write, which may have overwritten a builder's claim: the builder has
    /// renewed it by then.
    fn settling_time_after_slow_write(&self) -> Duration {
        self.renew() + 2 * self.settling_time()
    }

    /// Time until the next read of the backend, spread so that many hosts do not read at once.
    fn poll(&self) -> Duration {
        (self.lease / 12).mul_f64(0.5 + fastrand::f64())
    }
}

#[cfg(test)]
mod tests;
