//! Build claims in a Lease object of the cluster that the agent's pod is in.
//!
//! The API server compares and swaps, so the first write decides. The product still travels through
//! the registry; an agent that could not publish it there claims nothing.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::build_lease::{Claim, LeaseBackend, Stage, StoredClaim};
use longshore_cluster::names::BUILD_LEASE;
use longshore_cluster::{Account, Cluster, Error, FILES, LeaseRecord, LeaseVersion, Limits};
use longshore_core::digest::hex;
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};

/// Limits of a call: one that is not answered takes 17 s.
const LIMITS: Limits = Limits {
    call: Duration::from_secs(5),
    tries: 3,
    first_pause: Duration::from_millis(500),
    longest_pause: Duration::from_secs(5),
    watch: Duration::from_secs(240),
    answer: Limits::ANSWER,
};

/// The claim in one Lease object.
pub struct ClaimObject<R> {
    cluster: Cluster,
    namespace: String,
    name: String,
    /// The registry that the product is published to.
    registry: R,
    last: Mutex<LastRead>,
}

/// The object as it was read last.
#[derive(Default)]
struct LastRead {
    /// Its version, where it has no valid claim.
    invalid: Option<LeaseVersion>,
    /// Nonce of its claim.
    nonce: Option<String>,
    /// Number of its earlier holders.
    transitions: i32,
}

impl<R: LeaseBackend> ClaimObject<R> {
    /// Returns the claim on `key` in the namespace of this process's pod. None outside of a cluster,
    /// and in a pod without a service account or a namespace.
    ///
    /// # Errors
    /// Exit code 15 where the service account's files cannot be used.
    pub fn of_pod(env: Env<'_>, key: &str, registry: R) -> Result<Option<Self>, Failure> {
        let Some(account) = Account::of_pod(env, Path::new(FILES)).map_err(|e| unusable(&e))?
        else {
            return Ok(None);
        };
        let cluster = Cluster::new(account, LIMITS).map_err(|e| unusable(&e))?;
        let Some(namespace) = cluster.namespace().map(str::to_owned) else { return Ok(None) };
        Ok(Some(Self::new(cluster, namespace, key, registry)))
    }

    /// Returns the claim on `key` in a namespace.
    pub(super) fn new(cluster: Cluster, namespace: String, key: &str, registry: R) -> Self {
        let last = Mutex::default();
        Self { cluster, namespace, name: name_of(key), registry, last }
    }

    fn last(&self) -> MutexGuard<'_, LastRead> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of earlier holders to write with a claim.
    fn transitions(&self, claim: &Claim) -> i32 {
        let last = self.last();
        match &last.nonce {
            Some(nonce) if *nonce != claim.nonce => last.transitions.saturating_add(1),
            _ => last.transitions,
        }
    }
}

/// Returns the name of the Lease object for a key.
fn name_of(key: &str) -> String {
    let digest = hex(&Sha256::digest(key));
    format!("{BUILD_LEASE}{}", &digest[..16])
}

impl<R: LeaseBackend> LeaseBackend for ClaimObject<R> {
    const COMPARES: bool = true;

    async fn prepare(&self) -> Result<(), Failure> {
        self.registry.prepare().await
    }

    async fn read(&self) -> Result<Option<StoredClaim>, Failure> {
        let there = self.cluster.read_lease(&self.namespace, &self.name).await;
        let Some(there) = there.map_err(|e| unusable(&e))? else {
            *self.last() = LastRead::default();
            return Ok(None);
        };
        let claim: Option<Claim> =
            there.claim.as_deref().and_then(|text| serde_json::from_str(text).ok());
        *self.last() = LastRead {
            invalid: claim.is_none().then(|| there.version.clone()),
            nonce: claim.as_ref().map(|claim| claim.nonce.clone()),
            transitions: there.transitions,
        };
        if claim.is_none() {
            tracing::warn!("Lease {} is not a valid claim, overwriting it", self.name);
        }
        Ok(claim.map(|claim| StoredClaim { mark: there.version.mark(), claim }))
    }

    async fn write(&self, claim: &Claim, over: Option<&str>) -> Result<Option<String>, Failure> {
        let wrong = |e| Failure::new(FailureKind::Bug, "writing a claim as JSON").with_source(e);
        let text = serde_json::to_string(claim).map_err(wrong)?;
        let over = match over {
            Some(mark) => LeaseVersion::from_mark(mark),
            None => self.last().invalid.clone(),
        };
        let record = LeaseRecord {
            claim: &text,
            holder: (claim.stage != Stage::Done).then_some(claim.builder.host.as_str()),
            duration: Duration::from_millis(claim.lease),
            acquired: claim.builder.since,
            transitions: self.transitions(claim),
        };
        let (namespace, name) = (&self.namespace, &self.name);
        let written = self.cluster.write_lease(namespace, name, &record, over.as_ref()).await;
        Ok(written.map_err(|e| unusable(&e))?.map(|version| version.mark()))
    }

    async fn withdraw(&self, mark: &str) -> Result<bool, Failure> {
        let Some(version) = LeaseVersion::from_mark(mark) else { return Ok(true) };
        match self.cluster.remove_lease(&self.namespace, &self.name, &version).await {
            Ok(()) => Ok(true),
            // An account with write access may lack delete access.
            Err(error) => {
                tracing::debug!("cannot delete Lease objects: {error}");
                Ok(false)
            }
        }
    }
}

fn unusable(error: &Error) -> Failure {
    Failure::new(FailureKind::Download, error.to_string()).remedy(
        "let the pod's service account get, create, update and delete leases \
         (coordination.k8s.io) in its namespace, or set `build-lease` of [cluster] to false",
    )
}

#[cfg(test)]
mod tests;
