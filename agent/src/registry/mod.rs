//! Sets of modules in OCI registries, after the OCI distribution specification 1.1.
//!
//! A set lies in a repository as it lies in an image layout (see [`crate::artifact::image`]),
//! under the tag `DRIVER-FLAVOUR-RELEASE-ARCH`, and its signatures under cosign's tag.

mod challenge;
pub mod claims;
pub mod credentials;
mod login;
mod push;
pub mod reference;
mod session;

use std::path::Path;

use reqwest::header::LINK;
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;

use crate::artifact::image::{Described, Descriptor, Manifest, digest, hex_of, parse_manifest};
use crate::artifact::{Flavour, ModuleSet, index, legal, tag};
use crate::config::{Env, RegistrySource};
use crate::failure::{ExitCode, Failure};
use crate::progress::{Progress, Unit};
use crate::signature::key::PublicKey;
use crate::signature::{self, Evidence, signature_tag};
use crate::source::http::{Expected, FetchError, Fetcher, Policy};
use crate::store::Store;
use credentials::DockerConfig;
pub use push::Pushed;
use reference::{Reference, Repository};
use session::{Answer, Call, MOST_LOGINS, Session, unexpected};

/// What kinds of manifest are understood; an index is told from one by what it says.
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, \
                      application/vnd.oci.image.index.v1+json, \
                      application/vnd.docker.distribution.manifest.v2+json";
/// Pages of tags that are asked for; at a thousand each that is more than any fleet has.
const MOST_PAGES: usize = 50;

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

/// A registry with its mirrors.
pub struct Registry {
    name: String,
    /// Mirrors first: they are nearer.
    sessions: Vec<Session>,
}

impl Registry {
    /// Opens a registry to read from it; nothing is sent yet.
    ///
    /// # Errors
    /// Exit code 2 for a docker configuration that cannot be read, or no way to set up TLS.
    pub fn open(source: &RegistrySource, host_root: &Path, env: Env<'_>) -> Result<Self, Failure> {
        Self::open_with(policy(), source, host_root, env)
    }

    /// As [`Registry::open`], as patient as `policy` says.
    ///
    /// # Errors
    /// As [`Registry::open`].
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

    /// The sets whose tags say that they are what is looked for. What lies under such a tag and is
    /// no set is passed over with a warning.
    ///
    /// # Errors
    /// Exit code 12 where neither the registry nor a mirror of it answers.
    pub async fn find(&self, wish: Wish<'_>) -> Result<Vec<Described>, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match find_in(session, wish).await {
                Ok(found) if !found.is_empty() => return Ok(found),
                Ok(_) => {}
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        failed.map_or(Ok(Vec::new()), Err)
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

/// How patient it is with a registry: two further sources may follow, and patience is for what has
/// no other.
pub fn policy() -> Policy {
    Policy { attempts: 3, ..Policy::default() }
}

fn nobody(name: &str) -> Failure {
    Failure::new(ExitCode::Bug, format!("{name} has no place to ask"))
}

fn missing(session: &Session, what: &str) -> Failure {
    Failure::new(ExitCode::Download, format!("{} has no {what}", session.repository))
        .remedy("push the set again, or drop the mirror that lacks it")
}

async fn find_in(session: &Session, wish: Wish<'_>) -> Result<Vec<Described>, Failure> {
    let mut found = Vec::new();
    for tag in tags_for(session, wish).await? {
        match described(session, &tag).await {
            Ok(set) => found.extend(set),
            Err(failure) if failure.code() == ExitCode::Verification => {
                tracing::warn!("passing over {}:{tag}: {}", session.repository, failure.one_line());
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

/// A whole version has tags that can be told beforehand; for a branch they are listed.
async fn tags_for(session: &Session, wish: Wish<'_>) -> Result<Vec<String>, Failure> {
    let flavours = match wish.flavour {
        Some(flavour) => vec![flavour],
        None => vec![Flavour::Open, Flavour::Proprietary],
    };
    match wish.driver {
        Some(version) if version.split('.').count() >= 3 => Ok(flavours
            .into_iter()
            .map(|flavour| tag(version, flavour, wish.kernel_release, wish.arch))
            .collect()),
        driver => {
            let tags = list_tags(session).await?;
            Ok(tags.into_iter().filter(|t| is_wished(t, driver, &flavours, wish)).collect())
        }
    }
}

/// Whether a tag is one of `DRIVER-FLAVOUR-RELEASE-ARCH` for what is looked for.
fn is_wished(candidate: &str, driver: Option<&str>, flavours: &[Flavour], wish: Wish<'_>) -> bool {
    let Some((version, _)) = candidate.split_once('-') else { return false };
    let within = driver.is_none_or(|driver| {
        version.strip_prefix(driver).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let of =
        |flavour: &Flavour| candidate == tag(version, *flavour, wish.kernel_release, wish.arch);
    within && version == legal(version) && flavours.iter().any(of)
}

#[derive(Deserialize)]
struct Tags {
    tags: Option<Vec<String>>,
}

async fn list_tags(session: &Session) -> Result<Vec<String>, Failure> {
    let mut url = session.url("tags/list")?;
    url.query_pairs_mut().append_pair("n", "1000");
    let mut tags = Vec::new();
    for _ in 0..MOST_PAGES {
        let call = Call::new(Method::GET, url.clone());
        let answer = session.exchange(&call).await?;
        match answer.status {
            StatusCode::OK => {}
            // A repository comes into being with the first push.
            StatusCode::NOT_FOUND => return Ok(tags),
            _ => return Err(unexpected(&call, &answer)),
        }
        let page: Tags = serde_json::from_slice(&answer.body).map_err(|e| {
            Failure::new(ExitCode::Verification, format!("{url} is no list of tags"))
                .because(e)
                .remedy("check that this is a registry")
        })?;
        tags.extend(page.tags.unwrap_or_default());
        match next_page(&url, &answer) {
            Some(next) => url = next,
            None => return Ok(tags),
        }
    }
    tracing::warn!("{} has more tags than are looked at", session.repository);
    Ok(tags)
}

/// `Link: </v2/...>; rel="next"` (RFC 8288), on the same host.
fn next_page(url: &Url, answer: &Answer) -> Option<Url> {
    let link = answer.headers.get(LINK)?.to_str().ok()?;
    let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let next = url.join(target).ok()?;
    let is_next = parameters.contains("rel=\"next\"") || parameters.contains("rel=next");
    (is_next && next.origin() == url.origin()).then_some(next)
}

/// The bytes of a manifest; None where there is none. Asked for by digest, it is what it says.
async fn manifest(session: &Session, reference: &str) -> Result<Option<Vec<u8>>, Failure> {
    let url = session.url(&format!("manifests/{reference}"))?;
    let call = Call::new(Method::GET, url).header("accept", ACCEPT);
    let answer = session.exchange(&call).await?;
    match answer.status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(None),
        _ => return Err(unexpected(&call, &answer)),
    }
    if reference.starts_with("sha256:") && digest(&answer.body) != reference {
        return Err(wrong(session, &format!("the manifest {reference} has another digest")));
    }
    Ok(Some(answer.body))
}

/// A small blob, verified.
async fn small_blob(session: &Session, described: &Descriptor) -> Result<Vec<u8>, Failure> {
    let found = find_small_blob(session, described).await?;
    found.ok_or_else(|| missing(session, &described.digest))
}

/// A small blob, verified; None where it is not there.
async fn find_small_blob(
    session: &Session,
    described: &Descriptor,
) -> Result<Option<Vec<u8>>, Failure> {
    let digest = legal_digest(session, &described.digest)?;
    let call = Call::new(Method::GET, session.url(&format!("blobs/{digest}"))?);
    let answer = session.exchange(&call).await?;
    match answer.status {
        StatusCode::OK if described.describes(&answer.body) => Ok(Some(answer.body)),
        StatusCode::OK => {
            Err(wrong(session, &format!("the blob {digest} is not what it should be")))
        }
        StatusCode::NOT_FOUND => Ok(None),
        _ => Err(unexpected(&call, &answer)),
    }
}

/// The set under a tag or digest; None where nothing is, or something else.
async fn described(session: &Session, reference: &str) -> Result<Option<Described>, Failure> {
    let Some(mut bytes) = manifest(session, reference).await? else { return Ok(None) };
    let place = format!("{} at {reference}", session.repository);
    if let Some(entry) = index::entry_for(&bytes, std::env::consts::ARCH, &place)? {
        let found = manifest(session, &entry).await?;
        bytes = found.ok_or_else(|| missing(session, &entry))?;
    }
    let Some(parsed): Option<Manifest> = parse_manifest(&bytes, &place)? else {
        return Err(Failure::new(
            ExitCode::Verification,
            format!("{place} is no set of modules: its manifest is of another kind"),
        )
        .remedy("name a repository that `longshore push` filled"));
    };
    let Some(config) = find_small_blob(session, &parsed.config).await? else {
        // Whatever else is under other tags is no worse for it.
        return Err(wrong(session, &format!("the set at {reference} has lost its config")));
    };
    Described::assemble(bytes, config, &place).map(Some)
}

/// The evidence, and whether there is any signature.
async fn evidence_in(session: &Session, set: &Described) -> Result<(Evidence, bool), Failure> {
    let tag = signature_tag(&set.digest());
    let mut signatures = Vec::new();
    if let Some(image) = manifest(session, &tag).await? {
        for layer in signature::layers_of(&image) {
            let mut wanted = Descriptor::of("", b"");
            (wanted.digest, wanted.size) = (layer.digest.clone(), layer.size);
            let payload = small_blob(session, &wanted).await?;
            signatures.extend(layer.signature(payload));
        }
    }
    let any = !signatures.is_empty();
    let evidence = Evidence::new(set.manifest.clone(), set.config.clone(), signatures)?;
    Ok((evidence, any))
}

async fn pull_from(
    session: &Session,
    digest: &str,
    store: &Store,
    progress: &dyn Progress,
) -> Result<ModuleSet, Failure> {
    let found = described(session, digest).await?;
    let set = found.ok_or_else(|| missing(session, digest))?.set;
    fetch_modules(session, &set, store, progress).await?;
    store.put_set(&set)?;
    Ok(set)
}

async fn fetch_modules(
    session: &Session,
    set: &ModuleSet,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let total = set.modules.iter().map(|m| m.size).sum();
    let what = format!("modules of {} from {}", set.key.driver_version, session.repository);
    let task = progress.begin(&what, Some(total), Unit::Bytes);
    for module in &set.modules {
        if store.open_blob(&module.sha256).is_err() {
            let expected =
                Expected { sha256: Some(module.sha256.clone()), size: Some(module.size) };
            fetch_blob(session, &expected, &module.sha256, store, task.as_ref()).await?;
        } else {
            task.advance(module.size);
        }
        let (store, module) = (store.clone(), module.clone());
        let key = set.key.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let image = store.read_blob(&module.sha256)?;
            module.check_image(&image, &key).map_err(|e| {
                Failure::new(ExitCode::Verification, format!("checking {}", module.file)).because(e)
            })
        });
        checked
            .await
            .map_err(|e| Failure::new(ExitCode::Bug, "checking a module").because(e))??;
    }
    Ok(())
}

async fn fetch_blob(
    session: &Session,
    expected: &Expected,
    sha256: &str,
    store: &Store,
    task: &dyn crate::progress::Task,
) -> Result<(), Failure> {
    let url = session.url(&format!("blobs/sha256:{sha256}"))?;
    let mut logins = 0;
    loop {
        let authorization = session.authorization().await;
        let fetched = session.fetcher().blob_as(authorization, url.as_str(), expected, store, task);
        match fetched.await {
            Ok(_) => return Ok(()),
            Err(FetchError::Denied(denied)) if logins < MOST_LOGINS => {
                session.log_in_for(url.clone(), denied).await?;
                logins += 1;
            }
            Err(other) => return Err(other.into()),
        }
    }
}

fn legal_digest<'d>(session: &Session, digest: &'d str) -> Result<&'d str, Failure> {
    match hex_of(digest) {
        Some(_) => Ok(digest),
        None => Err(wrong(session, &format!("{digest:?} is no sha256 digest"))),
    }
}

fn wrong(session: &Session, what: &str) -> Failure {
    Failure::new(ExitCode::Verification, format!("{}: {what}", session.repository))
        .remedy("push the set again; a mirror or proxy in between may serve something else")
}

/// The registry that holds `reference`, without mirrors.
pub fn source_of(reference: &Reference) -> RegistrySource {
    RegistrySource { reference: reference.repository.clone(), mirrors: Vec::<Repository>::new() }
}

#[cfg(test)]
mod tests;
