//! Core objects of source trees in a registry, in the repository of the sets, under the tag `core-KEY`.

use futures_util::{TryStreamExt, stream};

use super::Registry;
use super::content::{find_small_blob, missing, signatures_of};
use super::manifests::{manifest, put_manifest, wrong};
use super::pull::{PARALLEL, fetch_blob};
use super::push::{ensure_blob, ensure_stored};
use super::session::Session;
use crate::artifact::core_objects::{
    CoreObject, CoreQuery, CoreRecord, DescribedCore, parse_core_manifest,
};
use crate::artifact::image::digest;
use crate::sets::core_objects::StoredCore;
use crate::signature::key::SecretKey;
use crate::signature::{Evidence, NotSigned, ReadSignatures, Trust, refusal};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::store::Store;
use longshore_fetch::http::{WriterGroup, WriterGuard};

/// Outcome of a push of core objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorePushed {
    /// The tag has exactly these now.
    There {
        /// `sha256:...` of the manifest.
        digest: String,
        /// Number of blobs sent; the others existed.
        sent: usize,
        /// True if tag and manifest existed already.
        was_there: bool,
    },
    /// The tag has another manifest (`sha256:...`), which is left as it is.
    Other(String),
}

impl Registry {
    /// Fetches core objects into the store, of the first repository that has some which are what was `asked` for, and
    /// count by `trust`; None where none has the tag. Every digest is verified; blobs in the store are not fetched again.
    ///
    /// # Errors
    /// Exit code 12 where a repository cannot be asked and no other has them; 13 where they are others, damaged, denied,
    /// or not signed as required; 15 where the store cannot be written.
    pub async fn pull_core(
        &self,
        asked: &CoreQuery,
        trust: &Trust,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Option<StoredCore>, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match pull_from(session, asked, trust, store, progress).await {
                Ok(Some(core)) => return Ok(Some(core)),
                Ok(None) => {}
                // The store is the same for every mirror.
                Err(failure) if failure.kind().is_of_host() => return Err(failure),
                Err(failure) => self.next_mirror(session, failure, &mut failed),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Pushes core objects of the store, with the signatures that they were pulled with. Those that were compiled here
    /// are signed with `key`, before any host can find them by the tag. Existing blobs are not sent again.
    ///
    /// # Errors
    /// Exit code 12 where the registry refuses them, 13 where an object in the store is damaged.
    pub async fn push_core(
        &self,
        core: &StoredCore,
        key: Option<&SecretKey>,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<CorePushed, Failure> {
        let session = self.only()?;
        let described = core.describe()?;
        let (tag, own) = (core.record.query().tag(), described.digest());
        if let Some(there) = manifest(session, &tag).await?
            && there != described.manifest
        {
            return Ok(CorePushed::Other(digest(&there)));
        }
        match (&core.pulled, key) {
            (Some(evidence), _) => {
                for signature in evidence.signatures() {
                    self.add_signature(&own, signature).await?;
                }
            }
            (None, Some(key)) => drop(self.sign(&own, key).await?),
            (None, None) => {}
        }
        let total = core.record.objects.values().map(|object| object.size).sum();
        let what = format!("core objects to {}", self.name());
        let task = progress.begin(&what, Some(total), Unit::Bytes);
        let mut sent = 0;
        for object in core.record.objects.values() {
            sent += usize::from(ensure_stored(session, &object.sha256, store).await?);
            task.advance(object.size);
        }
        sent += usize::from(ensure_blob(session, &described.config).await?);
        let was_there = put_manifest(session, &tag, &described.manifest).await?;
        Ok(CorePushed::There { digest: own, sent, was_there })
    }
}

async fn pull_from(
    session: &Session,
    asked: &CoreQuery,
    trust: &Trust,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Option<StoredCore>, Failure> {
    let Some(found) = described_at(session, asked).await? else { return Ok(None) };
    let digest = found.digest();
    let place = format!("the core objects {}@{digest}", session.repository);
    trust.check_denied(&digest).map_err(|why| refusal(&place, &why))?;
    let (signatures, lost) = match trust.required {
        true => signatures_of(session, &digest).await?,
        false => (ReadSignatures::default(), None),
    };
    let DescribedCore { manifest, config, record } = found;
    let evidence = Evidence::new(manifest, config, signatures)?;
    evidence.core_meets(&record, trust).map_err(|why| match (why, lost) {
        (NotSigned::Unsigned | NotSigned::Wrong { .. }, Some(payload)) => {
            missing(session, &payload)
        }
        (why, _) => refusal(&place, &why),
    })?;
    fetch_objects(session, &record, store, progress).await?;
    Ok(Some(StoredCore { record, pulled: Some(evidence.keeping(trust.keys())) }))
}

/// Fetches the description of core objects; None where there is no such tag.
async fn described_at(
    session: &Session,
    asked: &CoreQuery,
) -> Result<Option<DescribedCore>, Failure> {
    let tag = asked.tag();
    let Some(bytes) = manifest(session, &tag).await? else { return Ok(None) };
    let place = format!("{}:{tag}", session.repository);
    // Its bounds are checked before anything that it names is requested.
    let parsed = parse_core_manifest(&bytes, &place)?;
    let Some(config) = find_small_blob(session, &parsed.config).await? else {
        return Err(wrong(session, &format!("the core objects at {tag} have lost their config")));
    };
    let found = DescribedCore::assemble(bytes, config, &place)?;
    found
        .record
        .check_asked(asked)
        .or_fail(FailureKind::Verification, || format!("{place} is not what its tag says"))?;
    Ok(Some(found))
}

async fn fetch_objects(
    session: &Session,
    record: &CoreRecord,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let total = record.objects.values().map(|object| object.size).sum();
    let what = format!("core objects of {} from {}", record.version, session.repository);
    let task = progress.begin(&what, Some(total), Unit::Bytes);
    let writers = WriterGroup::default();
    let alive = writers.alive();
    let bring = |object: &CoreObject| {
        let (object, task) = (object.clone(), task.as_ref());
        async move { fetch_object(session, &object, store, task, alive).await }
    };
    let objects = stream::iter(record.objects.values().map(Ok));
    let fetched = objects.try_for_each_concurrent(PARALLEL, bring).await;
    // After a failure the other downloads were dropped; none may still write.
    writers.all_ended().await;
    fetched
}

async fn fetch_object(
    session: &Session,
    object: &CoreObject,
    store: &Store,
    task: &dyn Task,
    alive: &WriterGuard,
) -> Result<(), Failure> {
    let CoreObject { sha256, size } = object;
    match store.open_blob(sha256) {
        Ok(file) => {
            let length =
                file.metadata().or_fail(FailureKind::Preflight, || "reading an object")?.len();
            if length != *size {
                return Err(wrong(session, &format!("{sha256} has {length} bytes, not {size}")));
            }
            task.advance(*size);
            Ok(())
        }
        Err(_) => fetch_blob(session, sha256, *size, store, task, alive).await,
    }
}

#[cfg(test)]
mod tests;
