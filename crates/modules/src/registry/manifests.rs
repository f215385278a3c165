//! Manifests of a repository: fetched by tag or digest, and put under a tag.

use reqwest::{Method, StatusCode};

use super::call::{Call, unexpected};
use super::session::Session;
use crate::artifact::image::{MANIFEST_TYPE, digest};
use longshore_core::failure::{Failure, FailureKind};

/// Accepted kinds of manifest; an index is recognized by its media type.
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, \
                      application/vnd.oci.image.index.v1+json, \
                      application/vnd.docker.distribution.manifest.v2+json, \
                      application/vnd.docker.distribution.manifest.list.v2+json";

/// Fetches the bytes of a manifest; None where there is none. A manifest requested by digest is
/// verified.
pub async fn manifest(session: &Session, reference: &str) -> Result<Option<Vec<u8>>, Failure> {
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

/// Puts a manifest; returns true if it existed already.
pub(super) async fn put_manifest(
    session: &Session,
    tag: &str,
    bytes: &[u8],
) -> Result<bool, Failure> {
    if manifest(session, tag).await?.is_some_and(|there| there == bytes) {
        return Ok(true);
    }
    overwrite_manifest(session, tag, bytes).await?;
    Ok(false)
}

/// Puts a manifest under `tag`, replacing any other.
pub async fn overwrite_manifest(session: &Session, tag: &str, bytes: &[u8]) -> Result<(), Failure> {
    overwrite(session, tag, MANIFEST_TYPE, bytes).await
}

/// Puts a manifest or an index under `tag`, replacing any other.
pub(super) async fn overwrite(
    session: &Session,
    tag: &str,
    media_type: &'static str,
    bytes: &[u8],
) -> Result<(), Failure> {
    let call = Call::new(Method::PUT, session.url(&format!("manifests/{tag}"))?)
        .header("content-type", media_type)
        .body(bytes.to_vec());
    let answer = session.exchange(&call).await?;
    match answer.status {
        StatusCode::CREATED | StatusCode::OK => Ok(()),
        _ => Err(unexpected(&call, &answer)),
    }
}

/// Failure of a repository whose content is not as it was described.
pub(super) fn wrong(session: &Session, what: &str) -> Failure {
    Failure::new(FailureKind::Verification, format!("{}: {what}", session.repository))
        .remedy("push the set again; a mirror or proxy in between may serve something else")
}
