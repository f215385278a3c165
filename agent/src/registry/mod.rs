//! Sets of modules in OCI registries, after the OCI distribution specification 1.1.
//!
//! A set lies in a repository as it lies in an image layout (see [`crate::artifact::image`]),
//! under the tag `DRIVER-FLAVOUR-RELEASE-ARCH`, and its signatures under cosign's tag.

mod challenge;
pub(crate) mod content;
pub mod credentials;
mod listing;
mod login;
mod pull;
pub(crate) mod push;
pub(crate) mod session;

use std::path::Path;

use crate::artifact::ModuleSet;
use crate::artifact::image::Described;
use crate::config::{Env, RegistrySource};
use crate::failure::{ExitCode, Failure};
use crate::flavour::Flavour;
use crate::image_reference::{Reference, Repository};
use crate::progress::Progress;
use crate::signature::Evidence;
use crate::signature::key::PublicKey;
use crate::source::http::{Fetcher, Policy};
use crate::store::Store;
use content::{described, evidence_in, missing};
use credentials::DockerConfig;
use listing::find_in;
use pull::pull_from;
pub use push::Pushed;
use session::Session;

/// What is looked for in a registry.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// A version, a branch, or the newest.
    pub driver: Option<&'a str>,
    /// The flavour, or either.
    pub flavour: Option<Flavour>,
    /// `uname -r`.
    pub kernel_release: &'a str,
    /// `uname -m`.
    pub arch: &'a str,
}

/// Judges sets where they are found.
pub trait Judge {
    /// Why a set is not taken.
    type Why: Send;

    /// Takes a set, or not.
    ///
    /// # Errors
    /// Why it is not.
    fn judge(&self, set: &Described) -> impl Future<Output = Result<(), Self::Why>> + Send;
}

/// Sets of a registry and its mirrors that are looked for.
pub struct Found<W> {
    /// Sets that were taken, all of one place.
    pub taken: Vec<Described>,
    /// Sets that were not, and why.
    pub refused: Vec<(Described, W)>,
    /// Why a place that was asked did not answer, the gravest reason: exit code 12 or 13.
    pub failed: Option<Failure>,
}

impl<W> Found<W> {
    /// Sorts the sets of one place.
    async fn add(&mut self, sets: Vec<Described>, judge: &impl Judge<Why = W>) {
        for set in sets {
            // The same set of another place is no better.
            if self.refused.iter().any(|(known, _)| known.manifest == set.manifest) {
                continue;
            }
            match judge.judge(&set).await {
                Ok(()) => self.taken.push(set),
                Err(why) => self.refused.push((set, why)),
            }
        }
    }

    /// The sets taken.
    ///
    /// # Errors
    /// Why a place did not answer, where no other has any set of what is looked for.
    pub fn into_taken(self) -> Result<Vec<Described>, Failure> {
        match self.failed {
            Some(failure) if self.taken.is_empty() && self.refused.is_empty() => Err(failure),
            _ => Ok(self.taken),
        }
    }
}

/// A registry with its mirrors.
pub struct Registry {
    name: String,
    /// Mirrors first: they are nearer.
    sessions: Vec<Session>,
}

impl Registry {
    /// Opens a registry to read from it, as patiently as `policy` says; nothing is sent yet.
    ///
    /// # Errors
    /// Exit code 2 for a docker configuration that cannot be read, or no way to set up TLS.
    pub fn open_with(
        policy: Policy,
        source: &RegistrySource,
        host_root: &Path,
        env: Env<'_>,
    ) -> Result<Self, Failure> {
        Self::with_actions(policy, source, host_root, env, "pull")
    }

    fn with_actions(
        policy: Policy,
        source: &RegistrySource,
        host_root: &Path,
        env: Env<'_>,
        actions: &'static str,
    ) -> Result<Self, Failure> {
        let plain = Fetcher::new(policy.clone(), host_root)?;
        // What a tag stands for is only as good as the line it came over.
        let safe = plain.over_https_only()?;
        let direct = Fetcher::without_redirects(policy, host_root)?;
        let docker = DockerConfig::find(env)?;
        let places = source.mirrors.iter().chain([&source.reference]);
        let sessions = places
            .map(|place| {
                let fetcher = if place.plain_http() { &plain } else { &safe };
                Session::new(fetcher.clone(), direct.clone(), place.clone(), actions, &docker)
            })
            .collect();
        Ok(Self { name: source.reference.to_string(), sessions })
    }

    /// The registry's own repository, by which the others are its mirrors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The sets whose tags say that they are what is looked for, of the first place that has one
    /// which `judge` takes: a mirror may hold older ones, or others'. What lies under such a tag and
    /// is no set is passed over with a warning.
    pub async fn find<J: Judge>(&self, wish: Wish<'_>, judge: &J) -> Found<J::Why> {
        let mut found = Found { taken: Vec::new(), refused: Vec::new(), failed: None };
        for session in &self.sessions {
            match find_in(session, wish).await {
                Ok(sets) => found.add(sets, judge).await,
                Err(failure) => self.next_mirror(session, failure, &mut found.failed),
            }
            if !found.taken.is_empty() {
                break;
            }
        }
        found
    }

    /// The set with a tag or a digest.
    ///
    /// # Errors
    /// Exit code 12 where it is not there, 13 where it is no set or damaged.
    pub async fn describe(&self, reference: &str) -> Result<Described, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match described(session, reference).await {
                Ok(Some(set)) => return Ok(set),
                Ok(None) => self.next_mirror(session, missing(session, reference), &mut failed),
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        Err(failed.unwrap_or_else(|| nobody(&self.name)))
    }

    /// What is signed about a set, with the signatures of the first place that has one by `keys`;
    /// where none has, those of the last that has any: a mirror may hold older ones, or others'.
    ///
    /// # Errors
    /// Exit code 12 where they cannot be asked for, 13 where what answers is damaged.
    pub async fn evidence(&self, set: &Described, keys: &[PublicKey]) -> Result<Evidence, Failure> {
        let mut failed = None;
        let mut best = None;
        for session in &self.sessions {
            match evidence_in(session, set).await {
                Ok((evidence, _)) if evidence.verify(&set.set, keys).is_ok() => {
                    return Ok(evidence);
                }
                Ok((evidence, any)) if any || best.is_none() => best = Some(evidence),
                Ok(_) => {}
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        // "Not signed" is believed only where everybody was asked.
        match (failed, best) {
            (None, Some(evidence)) => Ok(evidence),
            (Some(failure), _) => Err(failure),
            (None, None) => Err(nobody(&self.name)),
        }
    }

    /// Brings the set with the manifest `digest` into the store, every digest verified and every
    /// module compared with what the set says of it. What the store has is not fetched.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be fetched, 13 where something is not what it should be, 15
    /// where the store cannot be written.
    pub async fn pull(
        &self,
        digest: &str,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<ModuleSet, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match pull_from(session, digest, store, progress).await {
                Ok(set) => return Ok(set),
                // The store is the same for every mirror.
                Err(failure) if failure.code() == ExitCode::Preflight => return Err(failure),
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        Err(failed.unwrap_or_else(|| nobody(&self.name)))
    }

    /// Keeps the gravest: what is wrong over what is not reached.
    fn next_mirror(&self, session: &Session, failure: Failure, failed: &mut Option<Failure>) {
        if self.sessions.len() > 1 {
            tracing::warn!("{} does not serve it: {}", session.repository, failure.one_line());
        }
        let graver = failed.as_ref().is_none_or(|f| f.code() != ExitCode::Verification);
        if graver {
            *failed = Some(failure);
        }
    }
}

fn nobody(name: &str) -> Failure {
    Failure::new(ExitCode::Bug, format!("{name} has no place to ask"))
}

/// The registry that holds `reference`, without mirrors.
pub fn source_of(reference: &Reference) -> RegistrySource {
    RegistrySource { reference: reference.repository.clone(), mirrors: Vec::<Repository>::new() }
}
