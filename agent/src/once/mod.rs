//! Building once across hosts: agents that start together take turns by a claim that all of them
//! see.
//!
//! Where the claim lies is a [`Board`]'s affair; one in a registry is `registry::claims`. A board is
//! asked for no more than that the last writer wins: docs/decisions/build-once.md has the protocol,
//! and which races remain.

pub mod claims;
mod held;
mod turn;

use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::build::KnownFailure;
use crate::builder::Builder;
use crate::failure::Failure;
pub use held::{Claims, Held};
pub use turn::{Alone, Prospect, Round, Search, Turn};

/// A claim is never believed for longer, whatever it says itself.
const LONGEST_LEASE: Duration = Duration::from_secs(3600);
/// A claim tells of no more failures; registries refuse manifests above 4 MiB, and one takes some
/// kilobytes.
const MOST_TOLD: usize = 4;

/// Where the claim on one piece of work lies. There is at most one; the last that was written counts.
pub trait Board: Send + Sync + 'static {
    /// Does what must be done once before anything is written.
    fn prepare(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The claim that lies there; None where there is none, or nothing that is one.
    fn read(&self) -> impl Future<Output = Result<Option<Posted>, Failure>> + Send;

    /// Puts a claim in the place of whatever lies there; returns its mark.
    fn write(&self, claim: &Claim) -> impl Future<Output = Result<String, Failure>> + Send;

    /// Removes what was written with this mark, and nothing else: a claim that has taken its place
    /// stays. False where the board does not allow that.
    fn withdraw(&self, mark: &str) -> impl Future<Output = Result<bool, Failure>> + Send;
}

/// A claim as it lies on a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// Another one whenever something is written.
    pub mark: String,
    /// What it says.
    pub claim: Claim,
}

/// Says who builds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Claim {
    /// Who.
    pub builder: Builder,
    /// Tells it from every other claim.
    pub nonce: String,
    /// How far it is.
    pub stage: Stage,
    /// How often it was written before.
    pub renewal: u32,
    /// Milliseconds that it is believed without being written anew.
    pub lease: u64,
    /// What is known to fail on every host: of this builder, and of those before it.
    #[serde(default, deserialize_with = "understood", skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<KnownFailure>,
}

/// Without what another longshore tells in other words: that is no reason to write over its claim.
fn understood<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KnownFailure>, D::Error> {
    let told = Vec::<serde_json::Value>::deserialize(from)?;
    let understood = told.into_iter().filter_map(|one| serde_json::from_value(one).ok());
    Ok(understood.take(MOST_TOLD).collect())
}

/// How far a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Its owner waits whether somebody else writes over it.
    Asking,
    /// Its owner builds.
    Building,
    /// Its owner has ended, well or not.
    Done,
}

impl Claim {
    fn new(builder: Builder, times: &Times, failures: Vec<KnownFailure>) -> Self {
        let nonce = format!("{:016x}", random());
        let lease = u64::try_from(times.lease.as_millis()).unwrap_or(u64::MAX);
        Self { builder, nonce, stage: Stage::Asking, renewal: 0, lease, failures }
    }

    /// The same once more, at `stage`.
    fn next(&self, stage: Stage) -> Self {
        Self { stage, renewal: self.renewal.saturating_add(1), ..self.clone() }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.nonce == other.nonce
    }
}

/// How long everything takes, in terms of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How long a claim is believed that is not written anew.
    pub lease: Duration,
    /// How long to wait for others before building all the same.
    pub wait: Duration,
}

impl Times {
    /// How often a builder writes its claim anew: three times in a row may fail.
    fn renew(&self) -> Duration {
        self.lease / 4
    }

    /// How long an asker waits whether somebody writes over its claim.
    fn settle(&self) -> Duration {
        self.lease / 20
    }

    /// The same for one whose writing took so long that it may have overwritten a builder's: that one
    /// has written anew by then.
    fn settle_slowly(&self) -> Duration {
        self.renew() + 2 * self.settle()
    }

    /// How long until the board is looked at again, spread so that many hosts do not come at once.
    fn poll(&self) -> Duration {
        let spread = (random() % 1000) as f64 / 1000.0;
        (self.lease / 12).mul_f64(0.5 + spread)
    }
}

/// std seeds every RandomState differently; that is random enough to tell claims apart.
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
