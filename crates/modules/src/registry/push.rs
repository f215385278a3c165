//! Pushing of sets, signatures and attestations to a registry: blobs first, the manifest last, so
//! that a reader sees a complete set or none, and all its attestations or none.

use reqwest::header::LOCATION;
use reqwest::{Method, StatusCode, Url};

use super::Registry;
use super::call::{Call, unexpected};
use super::manifests::{manifest, overwrite_manifest, put_manifest};
use super::referrers;
use super::session::Session;
use crate::artifact::ModuleSet;
use crate::artifact::image::{Described, Descriptor, digest};
use crate::registry::RegistrySource;
use crate::signature::attestation::{Attestation, AttestationImage, attestation_tag};
use crate::signature::key::SecretKey;
use crate::signature::{Signature, SignatureImage, signature_tag};
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::image_reference::Repository;
use longshore_core::progress::{Progress, Unit};
use longshore_core::store::Store;
use longshore_fetch::http::{Policy, UnreachableHosts};

/// Maximum number of uploads started for one blob: an upload that the registry lost cannot be
/// resumed.
const UPLOADS: u32 = 3;

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// `sha256:...` of the manifest.
    pub digest: String,
    /// Number of blobs sent; the others existed.
    pub sent: usize,
    /// True if tag and manifest existed already.
    pub was_there: bool,
}

impl Registry {
    /// Opens a repository for writing.
    ///
    /// # Errors
    /// As [`Registry::open_with`].
    pub fn open_to_push(
        repository: &Repository,
        host_root: &std::path::Path,
        env: Env<'_>,
    ) -> Result<Self, Failure> {
        Self::open_to_push_with(Policy::default(), repository, host_root, env)
    }

    /// Like [`Registry::open_to_push`], with the timeouts of `policy`.
    ///
    /// # Errors
    /// As [`Registry::open_with`].
    pub fn open_to_push_with(
        policy: Policy,
        repository: &Repository,
        host_root: &std::path::Path,
        env: Env<'_>,
    ) -> Result<Self, Failure> {
        let source = RegistrySource { reference: repository.clone(), mirrors: Vec::new() };
        // A claim is held, and a set pushed, long after the first request, so unreachable hosts are
        // not remembered.
        let policy = Policy { away: UnreachableHosts::forgetful(), ..policy };
        Self::with_actions(policy, &source, host_root, env, "pull,push")
    }

    /// Pushes a set of the store under `tag`. Existing blobs are not sent again.
    ///
    /// # Errors
    /// Exit code 12 where the registry refuses it, 13 where a module in the store is damaged.
    pub async fn push(
        &self,
        set: &ModuleSet,
        tag: &str,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Pushed, Failure> {
        self.push_described(&Described::from_set(set)?, tag, store, progress).await
    }

    /// Pushes a set of the store with this manifest and config, as [`Registry::push`] does.
    ///
    /// # Errors
    /// As [`Registry::push`].
    pub async fn push_described(
        &self,
        described: &Described,
        tag: &str,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Pushed, Failure> {
        let (session, set) = (self.only()?, &described.set);
        let mut sent = 0;
        let total = set.modules.iter().map(|m| m.size).sum();
        let task = progress.begin(&format!("modules to {}", self.name()), Some(total), Unit::Bytes);
        for module in &set.modules {
            sent += usize::from(ensure_stored(session, &module.sha256, store).await?);
            task.advance(module.size);
        }
        sent += usize::from(ensure_blob(session, &described.config).await?);
        let was_there = put_manifest(session, tag, &described.manifest).await?;
        Ok(Pushed { digest: described.digest(), sent, was_there })
    }

    /// Signs the manifest `digest` and adds the signature to the existing ones; false where it
    /// existed already, with its payload.
    ///
    /// # Errors
    /// Exit code 12 where the registry refuses it, 13 where the tag of its signatures has something else.
    pub async fn sign(&self, digest: &str, key: &SecretKey) -> Result<bool, Failure> {
        let signature = Signature::make(key, &self.only()?.repository.name(), digest)?;
        self.add_signature(digest, &signature).await
    }

    /// Adds a signature of the manifest `digest` to the existing ones, or the payload that the registry lost of it;
    /// false where both existed already.
    ///
    /// # Errors
    /// As [`Registry::sign`].
    pub async fn add_signature(
        &self,
        digest: &str,
        signature: &Signature,
    ) -> Result<bool, Failure> {
        let session = self.only()?;
        let tag = signature_tag(digest);
        let existing = manifest(session, &tag).await?;
        let Some(image) = SignatureImage::with(existing.as_deref(), signature)? else {
            // A registry's cleanup may have removed the payload alone.
            return ensure_blob(session, signature.payload.as_bytes()).await;
        };
        for blob in &image.blobs {
            ensure_blob(session, blob).await?;
        }
        put_manifest(session, &tag, &image.manifest).await?;
        Ok(true)
    }

    /// Adds attestations to the existing ones of the manifest `subject`, and lists them as its
    /// referrers; false where they existed already.
    ///
    /// # Errors
    /// Exit code 12 where the registry refuses it, 13 where its list of referrers is none.
    pub async fn attest(
        &self,
        subject: &Descriptor,
        attestations: &[Attestation],
    ) -> Result<bool, Failure> {
        let session = self.only()?;
        let tag = attestation_tag(&subject.digest);
        let existing = manifest(session, &tag).await?;
        let image = AttestationImage::with(existing.as_deref(), subject, attestations)?;
        let Some(stored) = image.as_ref().map(|image| &image.manifest).or(existing.as_ref()) else {
            return Ok(false);
        };
        if let Some(image) = &image {
            for blob in &image.blobs {
                ensure_blob(session, blob).await?;
            }
            overwrite_manifest(session, &tag, &image.manifest).await?;
        }
        // Done again where an earlier push did not come this far.
        let replaced = existing.as_deref().map(digest);
        let entry = AttestationImage::descriptor(stored);
        referrers::ensure_listed(session, &subject.digest, entry, replaced).await?;
        Ok(image.is_some())
    }

    /// Returns the session of the repository itself, which is the last one.
    ///
    /// # Errors
    /// If the registry has none.
    pub fn only(&self) -> Result<&Session, Failure> {
        self.sessions.last().ok_or_else(|| super::nobody(self.name()))
    }
}

async fn has_blob(session: &Session, digest: &str) -> Result<bool, Failure> {
    let call = Call::new(Method::HEAD, session.url(&format!("blobs/{digest}"))?);
    let answer = session.exchange(&call).await?;
    match answer.status {
        StatusCode::OK => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        _ => Err(unexpected(&call, &answer)),
    }
}

/// Pushes a blob unless the repository has it; returns true if it was pushed.
///
/// # Errors
/// If the registry refuses it or cannot be reached.
pub async fn ensure_blob(session: &Session, bytes: &[u8]) -> Result<bool, Failure> {
    let digest = digest(bytes);
    if has_blob(session, &digest).await? {
        return Ok(false);
    }
    send_blob(session, &digest, bytes.to_vec()).await?;
    Ok(true)
}

/// Pushes a blob of the store unless the repository has it; returns true if it was pushed.
///
/// # Errors
/// Exit code 12 where the registry refuses it, 13 where it is damaged in the store.
pub(super) async fn ensure_stored(
    session: &Session,
    sha256: &str,
    store: &Store,
) -> Result<bool, Failure> {
    let digest = format!("sha256:{sha256}");
    if has_blob(session, &digest).await? {
        return Ok(false);
    }
    let (store, sha256) = (store.clone(), sha256.to_owned());
    let read = tokio::task::spawn_blocking(move || store.read_blob(&sha256)).await;
    let bytes = read.or_fail(FailureKind::Bug, || "reading a blob of the store")??;
    send_blob(session, &digest, bytes).await?;
    Ok(true)
}

/// Uploads a blob by POST, then PUT to the returned location ("pushing a blob monolithically").
async fn send_blob(session: &Session, digest: &str, bytes: Vec<u8>) -> Result<(), Failure> {
    let mut bytes = bytes;
    for attempt in 1.. {
        let begin = Call::new(Method::POST, session.url("blobs/uploads/")?);
        let answer = session.exchange(&begin).await?;
        if answer.status != StatusCode::ACCEPTED {
            return Err(unexpected(&begin, &answer));
        }
        let location = answer.headers.get(LOCATION).and_then(|l| l.to_str().ok());
        let url = upload_url(session, location, digest)?;
        let finish = Call::new(Method::PUT, url)
            .header("content-type", "application/octet-stream")
            .body(bytes);
        let answer = session.exchange(&finish).await?;
        match answer.status {
            StatusCode::CREATED | StatusCode::NO_CONTENT => return Ok(()),
            // The registry has lost the upload.
            StatusCode::NOT_FOUND if attempt < UPLOADS => bytes = finish.into_body(),
            _ => return Err(unexpected(&finish, &answer)),
        }
    }
    Ok(())
}

fn upload_url(session: &Session, location: Option<&str>, digest: &str) -> Result<Url, Failure> {
    let home = session.url("blobs/uploads/")?;
    let odd = |what: &str| {
        Failure::new(FailureKind::Download, format!("{home}: {what}"))
            .remedy("check the registry, and a proxy before it (X-Forwarded-Proto)")
    };
    let location = location.ok_or_else(|| odd("the registry names no location for the upload"))?;
    let mut url = home.join(location).map_err(|_| odd("the upload's location is not a URL"))?;
    if home.scheme() == "https" && url.scheme() != "https" {
        return Err(odd("the upload's location is without TLS"));
    }
    url.query_pairs_mut().append_pair("digest", digest);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::stand_in::StandIn;

    /// Losses of the registry before a manifest is signed again, with the outcome.
    #[tokio::test]
    async fn a_signature_that_is_there_costs_one_look_and_its_lost_payload_is_sent_again() {
        let (stand_in, key) = (StandIn::start(), SecretKey::generate());
        let registry = stand_in.open();
        let subject = digest(b"a manifest");
        let name = registry.only().expect("one").repository.name();
        let signature = Signature::make(&key, &name, &subject).expect("signs");
        let payload = format!("blobs/{}", digest(signature.payload.as_bytes()));
        let image = format!("manifests/{}", signature_tag(&subject));
        assert!(registry.sign(&subject, &key).await.expect("signs"), "the first time");
        stand_in.requests();
        for (lost, is_new, methods) in [
            (None, false, &["GET", "HEAD"][..]),
            (Some(&payload), true, &["GET", "HEAD", "POST", "PUT"][..]),
            (Some(&image), true, &["GET", "HEAD", "HEAD", "GET", "PUT"][..]),
            (None, false, &["GET", "HEAD"][..]),
        ] {
            if let Some(path) = lost {
                stand_in.remove(path);
            }
            let new = registry.sign(&subject, &key).await.expect("signs");
            assert_eq!(new, is_new, "{lost:?}");
            let requests = stand_in.requests();
            let asked = requests.iter().map(|line| line.split(' ').next().unwrap_or_default());
            assert_eq!(asked.collect::<Vec<_>>(), methods, "{lost:?}: {requests:?}");
            assert!(stand_in.has(&payload) && stand_in.has(&image), "{lost:?}");
        }
    }
}
