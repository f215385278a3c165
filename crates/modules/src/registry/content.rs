//! Reading of a repository's contents: manifests, small blobs, sets, their signatures and
//! attestations.

use reqwest::{Method, StatusCode};

use super::call::{Call, unexpected};
use super::manifests::{manifest, wrong};
use super::referrers;
use super::session::Session;
use crate::artifact::image::{Described, Descriptor, Manifest, hex_of, parse_manifest};
use crate::artifact::index;
use crate::signature::attestation::{AttestationReader, attestation_tag};
use crate::signature::{Evidence, ReadSignatures, SignatureReader, Trust, signature_tag};
use longshore_core::failure::{Failure, FailureKind};

/// Fetches a small blob, verified.
pub(super) async fn small_blob(
    session: &Session,
    described: &Descriptor,
) -> Result<Vec<u8>, Failure> {
    let found = find_small_blob(session, described).await?;
    found.ok_or_else(|| missing(session, &described.digest))
}

/// Fetches a small blob, verified; None where it does not exist.
pub(super) async fn find_small_blob(
    session: &Session,
    described: &Descriptor,
) -> Result<Option<Vec<u8>>, Failure> {
    let digest = legal_digest(session, &described.digest)?;
    let url = session.url(&format!("blobs/{digest}"))?;
    let call = Call::new(Method::GET, url).at_most(described.size);
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

/// Fetches the description of the set under a tag or digest; None where there is none, or something
/// else.
pub(crate) async fn described(
    session: &Session,
    reference: &str,
) -> Result<Option<Described>, Failure> {
    let Some(mut bytes) = manifest(session, reference).await? else { return Ok(None) };
    let place = format!("{} at {reference}", session.repository);
    if let Some(entry) = index::entry_for(&bytes, std::env::consts::ARCH, &place)? {
        let found = manifest(session, &entry).await?;
        let lost = || wrong(session, &format!("the index at {reference} has lost its {entry}"));
        bytes = found.ok_or_else(lost)?;
    }
    let Some(parsed): Option<Manifest> = parse_manifest(&bytes, &place)? else {
        let cause = format!("{place} is not a set of modules: its manifest is of another kind");
        return Err(Failure::new(FailureKind::Verification, cause)
            .remedy("name a repository that `longshore push` filled"));
    };
    let Some(config) = find_small_blob(session, &parsed.config).await? else {
        // A damaged set under one tag does not affect the other tags.
        return Err(wrong(session, &format!("the set at {reference} has lost its config")));
    };
    Described::assemble(bytes, config, &place).map(Some)
}

/// Evidence of a set in one repository.
pub(crate) struct FoundEvidence {
    pub(crate) evidence: Evidence,
    /// There is a signature that was read.
    pub(crate) any: bool,
    /// Payload (`sha256:...`) of a signature that the repository names and does not have.
    pub(crate) lost: Option<String>,
}

/// Fetches the evidence, with attestations where `trust` requires any and the set is signed as it
/// demands. A signature whose payload is absent is left out.
pub(crate) async fn evidence_in(
    session: &Session,
    set: &Described,
    trust: &Trust,
) -> Result<FoundEvidence, Failure> {
    let (signatures, lost) = signatures_of(session, &set.digest()).await?;
    let any = !signatures.signatures.is_empty();
    let evidence = Evidence::new(set.manifest.clone(), set.config.clone(), signatures)?;
    if !evidence.needs_attestations(&set.set, trust) {
        return Ok(FoundEvidence { evidence, any, lost });
    }
    let mut reader = AttestationReader::default();
    attestations_at(session, &attestation_tag(&set.digest()), &mut reader).await?;
    let mut evidence = evidence.with_attestations(reader.found().clone());
    if evidence.meets(&set.set, trust).is_err() {
        for referrer in referrers::attestations_of(session, &set.digest()).await? {
            // The image under the tag is a referrer, too.
            attestations_at(session, &referrer, &mut reader).await?;
        }
        evidence = evidence.with_attestations(reader.found().clone());
    }
    Ok(FoundEvidence { evidence, any, lost })
}

/// Fetches the signatures of the manifest with this digest (`sha256:...`), and the digest of a payload that the
/// repository names and does not have.
pub(super) async fn signatures_of(
    session: &Session,
    digest: &str,
) -> Result<(ReadSignatures, Option<String>), Failure> {
    let (mut reader, mut lost) = (SignatureReader::default(), None);
    if let Some(image) = manifest(session, &signature_tag(digest)).await? {
        for layer in reader.layers(&image) {
            match find_small_blob(session, &layer.descriptor()).await? {
                Some(payload) => reader.add(layer, payload),
                None => lost = Some(layer.digest),
            }
        }
    }
    Ok((reader.into_found(), lost))
}

/// Fetches the attestations in the image under a tag or digest; none where there is no such image. A
/// damaged one does not count; a registry that cannot be asked is a failure.
async fn attestations_at(
    session: &Session,
    reference: &str,
    reader: &mut AttestationReader,
) -> Result<(), Failure> {
    if !reader.wants(reference) {
        return Ok(());
    }
    let image = match manifest(session, reference).await {
        Ok(Some(image)) => image,
        Ok(None) => return Ok(()),
        Err(failure) if failure.kind() == FailureKind::Verification => {
            reader.add_damaged(&failure);
            return Ok(());
        }
        Err(failure) => return Err(failure),
    };
    for layer in reader.layers(&image) {
        match find_small_blob(session, &layer).await {
            Ok(envelope) => reader.add(envelope.ok_or_else(|| missing(session, &layer.digest))),
            Err(failure) if failure.kind() == FailureKind::Verification => {
                reader.add_damaged(&failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn legal_digest<'d>(session: &Session, digest: &'d str) -> Result<&'d str, Failure> {
    match hex_of(digest) {
        Some(_) => Ok(digest),
        None => Err(wrong(session, &format!("{digest:?} is not a sha256 digest"))),
    }
}

pub(crate) fn missing(session: &Session, what: &str) -> Failure {
    Failure::new(FailureKind::Download, format!("{} has no {what}", session.repository))
        .remedy("push the set again, or drop the mirror that lacks it")
}
