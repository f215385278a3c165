//! Lists of the manifests that refer to a set's, by the OCI distribution specification 1.1: from the
//! registry's API, or under a tag where it has none (docker-registry until 2.8).

use reqwest::{Method, StatusCode};

use super::call::Call;
use super::manifests::{manifest, overwrite};
use super::session::Session;
use crate::artifact::image::{Descriptor, INDEX_TYPE, MANIFEST_TYPE, hex_of, json};
use crate::artifact::index::Index;
use crate::signature::attestation::{ATTESTATIONS_TYPE, is_attestation_type};
use longshore_core::failure::{Failure, FailureKind};

/// Maximum number of manifests in a list.
const MOST: usize = 1000;
/// Maximum number of referrers whose attestations are read.
const MOST_READ: usize = 4;

/// Returns the digests of the manifests with attestations that refer to `subject` (`sha256:...`), the
/// newest last, as far as a registry keeps them in order.
///
/// # Errors
/// Exit code 12 where the registry cannot be read, 13 where its list is none.
pub(super) async fn attestations_of(
    session: &Session,
    subject: &str,
) -> Result<Vec<String>, Failure> {
    let index = match by_api(session, subject).await? {
        Some(index) => index,
        None => by_tag(session, subject).await?.unwrap_or_default(),
    };
    let holds_some = |entry: &Descriptor| {
        entry.media_type == MANIFEST_TYPE
            && hex_of(&entry.digest).is_some()
            && entry.artifact_type.as_deref().is_some_and(is_attestation_type)
    };
    let mut found: Vec<String> =
        index.manifests.into_iter().filter(holds_some).map(|entry| entry.digest).collect();
    Ok(found.split_off(found.len().saturating_sub(MOST_READ)))
}

/// Makes sure that `entry` is in the list of referrers of `subject`. A registry with the API does that
/// itself; for another, the list under the tag is written anew, without the manifest that `entry`
/// replaces.
///
/// # Errors
/// Exit code 12 where the registry refuses it, 13 where something else is under the tag.
pub(super) async fn ensure_listed(
    session: &Session,
    subject: &str,
    entry: Descriptor,
    replaced: Option<String>,
) -> Result<(), Failure> {
    if by_api(session, subject).await?.is_some() {
        return Ok(());
    }
    let mut index = by_tag(session, subject).await?.unwrap_or_default();
    let before = index.manifests.clone();
    let is_replaced = |m: &Descriptor| {
        m.artifact_type.as_deref() == Some(ATTESTATIONS_TYPE)
            && Some(&m.digest) == replaced.as_ref()
    };
    index.manifests.retain(|m| m.digest != entry.digest && !is_replaced(m));
    index.manifests.push(entry);
    if index.manifests == before {
        return Ok(());
    }
    index.media_type = Some(INDEX_TYPE.to_owned());
    overwrite(session, &tag_of(subject), INDEX_TYPE, &json(&index)?).await
}

/// Asks the registry's API; None where it has none.
async fn by_api(session: &Session, subject: &str) -> Result<Option<Index>, Failure> {
    let url = session.url(&format!("referrers/{subject}"))?;
    let call = Call::new(Method::GET, url).header("accept", INDEX_TYPE);
    let answer = session.exchange(&call).await?;
    // The specification names 404; a proxy that does not know the path may answer otherwise.
    if answer.status != StatusCode::OK {
        return Ok(None);
    }
    parse(session, &answer.body, subject).map(Some)
}

/// Reads the list under the tag that stands for the API; None where there is none.
async fn by_tag(session: &Session, subject: &str) -> Result<Option<Index>, Failure> {
    let found = manifest(session, &tag_of(subject)).await?;
    found.map(|bytes| parse(session, &bytes, subject)).transpose()
}

fn parse(session: &Session, bytes: &[u8], subject: &str) -> Result<Index, Failure> {
    let wrong = |why: String| {
        let cause = format!("{}: the list of referrers of {subject}: {why}", session.repository);
        Failure::new(FailureKind::Verification, cause)
            .remedy(format!("remove the tag {} from the repository", tag_of(subject)))
    };
    let index: Index =
        serde_json::from_slice(bytes).map_err(|e| wrong(format!("no index: {e}")))?;
    let kind = index.media_type.as_deref().unwrap_or(INDEX_TYPE);
    if index.schema_version != 2 || kind != INDEX_TYPE {
        return Err(wrong(format!("it is of the type {kind:?}")));
    }
    if index.manifests.len() > MOST {
        return Err(wrong(format!("it has more than {MOST} manifests")));
    }
    Ok(index)
}

/// Returns the tag of the list, where there is no API: the digest with a hyphen.
fn tag_of(subject: &str) -> String {
    subject.replace(':', "-")
}
