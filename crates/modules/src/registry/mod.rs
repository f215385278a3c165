//! Sets of modules in OCI registries, by the OCI distribution specification 1.1.
//!
//! A set has the same form as in an image layout (see [`crate::artifact::image`]), under the tag
//! `DRIVER-FLAVOUR-RELEASE-ARCH`, and its signatures are under cosign's tag.

mod blobs;
pub mod call;
mod challenge;
mod content;
pub mod core_objects;
pub mod credentials;
pub mod files;
mod image;
mod listing;
mod login;
mod login_rules;
pub mod manifests;
mod pull;
pub mod push;
mod referrers;
pub mod session;
pub mod set_index;
pub mod source;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod stand_in;

use std::path::Path;

use crate::artifact::ModuleSet;
use crate::artifact::image::{Described, Descriptor};
use crate::signature::set_index::NotListed;
use crate::signature::{Evidence, Trust};
#[cfg(any(test, feature = "testing"))]
pub(crate) use challenge::realms;
use content::{FoundEvidence, described, evidence_in, missing};
use credentials::DockerConfig;
use image::image_from;
use listing::find_in;
pub use login_rules::LoginRules;
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::image_reference::Repository;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_fetch::http::Policy;
use pull::pull_from;
pub use push::Pushed;
use session::Session;
use set_index::IndexRule;
pub use source::RegistrySource;

/// Search for sets in a registry.
#[derive(Debug, Clone, Copy)]
pub struct SetRequest<'a> {
    /// A version or a branch; None for the newest.
    pub driver: Option<&'a str>,
    /// The flavour; None for either.
    pub flavour: Option<Flavour>,
    /// `uname -r`.
    pub kernel_release: &'a str,
    /// `uname -m`.
    pub arch: &'a str,
}

/// Accepts or refuses sets where they are found.
pub trait Judge {
    /// Reason for refusing a set.
    type Why: Send;

    /// Accepts or refuses a set.
    ///
    /// # Errors
    /// The reason for refusing it.
    fn judge(&self, set: &Described) -> impl Future<Output = Result<(), Self::Why>> + Send;
}

/// Result of a search in a registry and its mirrors.
pub struct SetsFound<W> {
    /// Accepted sets, all from one repository.
    pub taken: Vec<Described>,
    /// Refused sets, with the reasons.
    pub refused: Vec<(Described, W)>,
    /// Sets that no index lists, where that is required, with the reason of the last repository.
    pub unlisted: Vec<(Described, NotListed)>,
    /// The most severe failure of a repository that was asked: exit code 12 or 13.
    pub failed: Option<Failure>,
}

impl<W> SetsFound<W> {
    /// Adds the sets of one repository that its index does not list.
    fn add_unlisted(&mut self, sets: Vec<(Described, NotListed)>) {
        for (set, why) in sets {
            self.unlisted.retain(|(known, _)| known.manifest != set.manifest);
            if !self.refused.iter().any(|(known, _)| known.manifest == set.manifest) {
                self.unlisted.push((set, why));
            }
        }
    }

    /// Judges the sets of one repository.
    async fn add(&mut self, sets: Vec<Described>, judge: &impl Judge<Why = W>) {
        for set in sets {
            self.unlisted.retain(|(known, _)| known.manifest != set.manifest);
            // The same set from another repository is judged the same.
            if self.refused.iter().any(|(known, _)| known.manifest == set.manifest) {
                continue;
            }
            match judge.judge(&set).await {
                Ok(()) => self.taken.push(set),
                Err(why) => self.refused.push((set, why)),
            }
        }
    }

    /// Returns the accepted sets.
    ///
    /// # Errors
    /// The failure of a repository, where no other has any matching set.
    pub fn into_taken(self) -> Result<Vec<Described>, Failure> {
        match self.failed {
            Some(failure)
                if self.taken.is_empty() && self.refused.is_empty() && self.unlisted.is_empty() =>
            {
                Err(failure)
            }
            _ => Ok(self.taken),
        }
    }
}

/// Opens the registry that has a repository.
pub type OpenRegistry<'a> = &'a (dyn Fn(&Repository) -> Result<Registry, Failure> + Sync);

/// A registry with its mirrors.
pub struct Registry {
    name: String,
    /// Mirrors first: they are nearer.
    sessions: Vec<Session>,
    /// Requirement of an index of the sets.
    index_rule: Option<IndexRule>,
}

impl Registry {
    /// Opens a registry for reading, with the timeouts of `policy`; nothing is sent yet.
    ///
    /// # Errors
    /// Exit code 2 for a docker configuration that cannot be read, or if TLS cannot be set up.
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
        let docker = DockerConfig::find(env)?;
        let places = source.mirrors.iter().chain([&source.reference]);
        let open =
            |place: &Repository| Session::open(place.clone(), actions, &docker, &policy, host_root);
        let sessions = places.map(open).collect::<Result<_, _>>()?;
        Ok(Self { name: source.reference.to_string(), sessions, index_rule: None })
    }

    /// Applies these rules of logins in place of the strictest: no login without TLS, and no realm on a host of
    /// another domain.
    #[must_use]
    pub fn with_login_rules(mut self, rules: &LoginRules) -> Self {
        self.sessions.iter_mut().for_each(|session| session.apply(rules.clone()));
        self
    }

    /// Returns the registry's own repository; the others are its mirrors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Finds the sets with matching tags, in the first repository that has one which `judge`
    /// accepts, and which its index lists where that is required: a mirror may have outdated or foreign ones.
    /// A matching tag without a set is skipped with a warning.
    pub async fn find<J: Judge>(&self, requested: SetRequest<'_>, judge: &J) -> SetsFound<J::Why> {
        let (refused, unlisted) = (Vec::new(), Vec::new());
        let mut found = SetsFound { taken: Vec::new(), refused, unlisted, failed: None };
        for session in &self.sessions {
            let sets = match find_in(session, requested).await {
                Ok(sets) => self.listed(session, sets).await,
                Err(failure) => Err(failure),
            };
            match sets {
                Ok((listed, others)) => {
                    found.add_unlisted(others);
                    found.add(listed, judge).await;
                }
                Err(failure) => self.next_mirror(session, failure, &mut found.failed),
            }
            if !found.taken.is_empty() {
                break;
            }
        }
        found
    }

    /// Fetches the description of the set with a tag or a digest.
    ///
    /// # Errors
    /// Exit code 12 where it does not exist, 13 where it is not a set or damaged.
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

    /// Describes the manifest with this digest, of any kind of artifact.
    ///
    /// # Errors
    /// Exit code 12 where it does not exist, 13 where it has another digest or is no manifest.
    pub async fn manifest(&self, digest: &str) -> Result<Descriptor, Failure> {
        let session = self.only()?;
        let bytes = manifests::manifest(session, digest).await?;
        let bytes = bytes.ok_or_else(|| missing(session, digest))?;
        Descriptor::for_manifest(&bytes).or_fail(FailureKind::Verification, || {
            format!("{}@{digest} is no manifest", session.repository)
        })
    }

    /// Fetches the description of the set with a tag or a digest, from the first repository that has it; None where
    /// none has.
    ///
    /// # Errors
    /// Exit code 12 where a repository cannot be asked and no other has it, 13 where it is not a set or damaged.
    pub async fn look_up(&self, reference: &str) -> Result<Option<Described>, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match described(session, reference).await {
                Ok(Some(set)) => return Ok(Some(set)),
                Ok(None) => {}
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Fetches a set's evidence, with the signatures, and attestations where `trust` requires any, of
    /// the first repository whose meet `trust`; where none has, those of the last that has any: a
    /// mirror may have outdated or foreign ones.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be fetched, or has lost the payload of a signature; 13 where it is damaged.
    pub async fn evidence(&self, set: &Described, trust: &Trust) -> Result<Evidence, Failure> {
        let mut failed = None;
        let mut best = None;
        for session in &self.sessions {
            match evidence_in(session, set, trust).await {
                Ok(found) if found.evidence.meets(&set.set, trust).is_ok() => {
                    return Ok(found.evidence);
                }
                Ok(FoundEvidence { lost: Some(payload), .. }) => {
                    self.next_mirror(session, missing(session, &payload), &mut failed);
                }
                Ok(found) if found.any || best.is_none() => best = Some(found.evidence),
                Ok(_) => {}
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        // A set counts as unsigned only if every repository answered.
        match (failed, best) {
            (None, Some(evidence)) => Ok(evidence),
            (Some(failure), _) => Err(failure),
            (None, None) => Err(nobody(&self.name)),
        }
    }

    /// Fetches the set with the manifest `digest` into the store, every digest verified and every
    /// module compared with the set's record of it. Blobs in the store are not fetched again.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be fetched, 13 where something does not verify, 15 where the
    /// store cannot be written.
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
                Err(failure) if failure.kind().is_of_host() => return Err(failure),
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        Err(failed.unwrap_or_else(|| nobody(&self.name)))
    }

    /// Fetches the layers of the image with the manifest or index `digest` into the store, for this machine; returns
    /// them, the lowest first. Every digest is verified; blobs in the store are not fetched again.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be fetched, 13 where it is damaged, no image of a file system, or one for another
    /// machine, 15 where the store cannot be written, or has too little space for the layers and what they unpack to.
    pub async fn pull_image(
        &self,
        digest: &str,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Vec<Descriptor>, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match image_from(session, digest, store, progress).await {
                Ok(layers) => return Ok(layers),
                Err(failure) if failure.kind().is_of_host() => return Err(failure),
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        Err(failed.unwrap_or_else(|| nobody(&self.name)))
    }

    /// Keeps the most severe failure: damaged contents over an unreachable repository.
    fn next_mirror(&self, session: &Session, failure: Failure, failed: &mut Option<Failure>) {
        if self.sessions.len() > 1 {
            tracing::warn!("{} does not serve it: {}", session.repository, failure.one_line());
        }
        let graver = failed.as_ref().is_none_or(|f| f.kind() != FailureKind::Verification);
        if graver {
            *failed = Some(failure);
        }
    }
}

fn nobody(name: &str) -> Failure {
    Failure::new(FailureKind::Bug, format!("{name} has no repository to ask"))
}
