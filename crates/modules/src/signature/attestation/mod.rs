//! Attestations of a set: signed statements about its manifest, and their storage beside it.
//!
//! They are stored as an image under cosign's tag (`sha256-HEX.att`), one layer each, which is also a
//! referrer of the set's manifest (OCI image specification 1.1, "subject").

mod age;
mod reader;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::MOST;
use super::dsse::{ENVELOPE_TYPE, Envelope, MAX_ENVELOPE};
use super::foreign::{is_json_text, shortened};
use super::image::{IMAGE_CONFIG_TYPE, SIGNATURE, image_config};
use super::key::{PublicKey, SecretKey};
use super::statement::{self, PredicateType};
use super::trust::{Role, Trust, TrustedKey};
use crate::artifact::image::{Descriptor, MANIFEST_TYPE, Manifest, hex_of, json};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::value::Uri;
pub(super) use reader::MAX_TOTAL;
pub use reader::{AttestationReader, ReadAttestations};

/// `artifactType` of the image of attestations, of cosign's own form for referrers.
pub const ATTESTATIONS_TYPE: &str = "application/vnd.dev.cosign.artifact.att.v1+json";
/// Types of artifacts that other tools give to images of envelopes: the media type of the envelope
/// itself, or in-toto's for one kind of predicate (`application/vnd.in-toto.provenance+dsse`).
const IN_TOTO: &str = "application/vnd.in-toto";
/// Annotation of a layer with the predicate's type, as cosign names it.
const PREDICATE_TYPE: &str = "predicateType";

/// Returns the tag under which cosign stores the attestations of the manifest `digest`
/// (`sha256:...`).
pub fn attestation_tag(digest: &str) -> String {
    format!("{}.att", digest.replace(':', "-"))
}

/// True if a manifest of this `artifactType` may hold attestations.
pub(crate) fn is_attestation_type(artifact_type: &str) -> bool {
    artifact_type == ATTESTATIONS_TYPE
        || artifact_type == ENVELOPE_TYPE
        || artifact_type.starts_with(IN_TOTO)
}

/// A signed statement: the text of its envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attestation(String);

/// A set lacks a required attestation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAttested {
    /// There is no attestation at all.
    #[error("it has no attestation, and one of the type {0} is required")]
    Without(PredicateType),
    /// There is none that could be read.
    #[error(
        "it has no attestation that can be read, and one of the type {kind} is required: {why}"
    )]
    Damaged {
        /// The required type.
        kind: PredicateType,
        /// Fault of one.
        why: String,
    },
    /// There are attestations, and none counts.
    #[error(
        "none of its {count} attestations is one of the type {kind} by a configured key: {why}"
    )]
    Wrong {
        /// The required type.
        kind: PredicateType,
        /// Number of attestations.
        count: usize,
        /// Fault of the one that is nearest to the required.
        why: String,
    },
}

impl NotAttested {
    /// Adds the fault of an attestation that could not be read.
    #[must_use]
    pub fn beside(self, damaged: Option<&str>) -> Self {
        let Some(damaged) = damaged else { return self };
        match self {
            Self::Without(kind) => Self::Damaged { kind, why: damaged.to_owned() },
            Self::Wrong { kind, count, why } => Self::Wrong {
                kind,
                count,
                why: format!("{why}; another cannot be read: {damaged}"),
            },
            already @ Self::Damaged { .. } => already,
        }
    }
}

impl Attestation {
    /// Signs a statement about the manifest with `digest` (`sha256:...`), in the repository `name`.
    ///
    /// # Errors
    /// Exit code 2 where the predicate says nothing to rely on, or is too large.
    pub fn make(
        key: &SecretKey,
        name: &str,
        digest: &str,
        kind: &PredicateType,
        predicate: serde_json::Value,
    ) -> Result<Self, Failure> {
        let what = || format!("attesting {kind} of {digest}");
        kind.check(&predicate).or_fail(FailureKind::Usage, what).map_err(|failure| {
            failure.remedy(
                "give a JSON object with the fields that its type requires; of a test-result, one \
                 whose result is PASSED",
            )
        })?;
        let hex = hex_of(digest).ok_or_else(|| Failure::new(FailureKind::Bug, what()))?;
        let statement = statement::statement(name, hex, kind, predicate)?;
        let envelope = Envelope::sign(&statement, key).to_json()?;
        if envelope.len() as u64 > MAX_ENVELOPE {
            let cause = format!("the attestation would have {} bytes", envelope.len());
            return Err(Failure::new(FailureKind::Usage, what())
                .with_source(cause)
                .remedy(format!("give a predicate of at most {} KiB", MAX_ENVELOPE >> 11)));
        }
        Ok(Self(envelope))
    }

    /// Takes the bytes of an envelope from elsewhere; None where they are no text as JSON is.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        String::from_utf8(bytes).ok().filter(|text| is_json_text(text)).map(Self)
    }

    /// True if one of `keys` signed it, whatever it states.
    pub(super) fn is_by<K: AsRef<PublicKey>>(&self, keys: &[K]) -> bool {
        Envelope::parse(&self.0).and_then(|envelope| envelope.verify(keys)).is_ok()
    }

    /// Verifies that it is of the type `kind`, about the manifest with the digest `wanted`
    /// (`sha256:...`), and by one of the keys with that role; returns the key's name. The signature is verified
    /// first: an unsigned statement is not parsed.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn verify(
        &self,
        wanted: &str,
        kind: &PredicateType,
        trust: &Trust,
    ) -> Result<String, String> {
        self.judge(wanted, kind, trust).map_err(|(_, why)| why)
    }

    /// As [`Attestation::verify`]; returns beside the fault its distance from an attestation that counts.
    fn judge(
        &self,
        wanted: &str,
        kind: &PredicateType,
        trust: &Trust,
    ) -> Result<String, (Fault, String)> {
        let envelope = Envelope::parse(&self.0);
        let verified = envelope.and_then(|envelope| envelope.verify(trust.keys()));
        let (bytes, by) = verified.map_err(|why| (Fault::NotVerified, why))?;
        let hex = hex_of(wanted).ok_or_else(|| {
            (Fault::NotVerified, format!("{:?} is no sha256 digest", shortened(wanted)))
        })?;
        let near = match statement::type_of(&bytes).as_ref() == Some(kind) {
            true => Fault::OfStatement,
            false => Fault::OtherType,
        };
        statement::check(&bytes, hex, kind).map_err(|why| (near, why))?;
        if let Some(most) = trust.attestation_max_age {
            age::check(statement::time_of(&bytes, kind), most, Timestamp::now())
                .map_err(|why| (near, why))?;
        }
        counting(&by, kind, &bytes).map(|key| key.name().to_owned()).map_err(|why| (near, why))
    }

    /// Returns the type of an attestation that was made here; empty for another's damaged one.
    fn own_type(&self) -> String {
        let made = Envelope::parse(&self.0).and_then(|envelope| envelope.payload());
        let kind = made.ok().and_then(|bytes| statement::type_of(&bytes));
        kind.map_or(String::new(), |kind| kind.uri().to_owned())
    }

    fn layer(&self) -> Descriptor {
        let mut layer = Descriptor::for_bytes(ENVELOPE_TYPE, self.0.as_bytes());
        layer.annotations.insert(PREDICATE_TYPE.to_owned(), self.own_type());
        // cosign reads the annotation of every layer; the signature is in the envelope.
        layer.annotations.insert(SIGNATURE.to_owned(), String::new());
        layer
    }
}

/// Returns the first of the keys that signed a checked statement by which it counts: with the role, and for the builder
/// that it names.
fn counting<'k>(
    by: &[&'k TrustedKey],
    kind: &PredicateType,
    statement: &[u8],
) -> Result<&'k TrustedKey, String> {
    let role = Role::Attestation(kind.clone());
    let names = by.iter().map(|key| key.name()).collect::<Vec<_>>().join(" and ");
    let with_role: Vec<_> = by.iter().copied().filter(|key| key.has(&role)).collect();
    if with_role.is_empty() {
        return Err(format!("it is by {names}, which has not the role {kind}"));
    }
    let builder = statement::builder_of(statement);
    let is_of = |key: &&TrustedKey| {
        key.builder().is_none_or(|wanted| Some(wanted.as_str()) == builder.as_deref())
    };
    with_role.iter().copied().find(is_of).ok_or_else(|| {
        let wanted = with_role.iter().filter_map(|key| key.builder().map(Uri::as_str));
        let wanted = wanted.collect::<Vec<_>>().join(" or ");
        let builder = shortened(&builder.unwrap_or_default());
        format!("its builder is {builder:?}, and {names} counts for {wanted} alone")
    })
}

/// Fault of an attestation, the farthest from one that counts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// It is by one of the keys, and of another type.
    OtherType,
    /// Its signature does not verify: what it states is not parsed.
    NotVerified,
    /// It is by one of the keys and of the type, and does not state what is required.
    OfStatement,
}

/// Verifies that one of `attestations` is of the type `kind`, about the manifest with the digest
/// `wanted`, and by one of the keys with that role; returns the key's name.
///
/// # Errors
/// The reason why the manifest does not count as attested.
pub fn verify(
    wanted: &str,
    attestations: &[Attestation],
    kind: &PredicateType,
    trust: &Trust,
) -> Result<String, NotAttested> {
    let mut why: Option<(Fault, String)> = None;
    for attestation in attestations.iter().rev().take(MOST) {
        match attestation.judge(wanted, kind, trust) {
            Ok(name) => return Ok(name),
            Err(fault) => why = why.filter(|(there, _)| *there >= fault.0).or(Some(fault)),
        }
    }
    let (kind, count) = (kind.clone(), attestations.len());
    Err(match why {
        Some((_, why)) => NotAttested::Wrong { kind, count, why },
        None => NotAttested::Without(kind),
    })
}

/// Attestations as an image, stored under [`attestation_tag`].
#[derive(Debug, Clone)]
pub struct AttestationImage {
    /// The manifest, a referrer of the set's.
    pub manifest: Vec<u8>,
    /// Config and new envelopes.
    pub blobs: Vec<Vec<u8>>,
}

/// Returns the layers of an image of attestations, ours or cosign's; None for anything else.
fn layers_of(manifest: &[u8]) -> Option<Vec<Descriptor>> {
    let manifest: Manifest = serde_json::from_slice(manifest).ok()?;
    let of_type = manifest.artifact_type.as_deref().is_none_or(is_attestation_type);
    let all = manifest.layers.iter().all(|layer| layer.media_type == ENVELOPE_TYPE);
    (of_type && all).then_some(manifest.layers)
}

impl AttestationImage {
    /// Returns the image whose manifest is `existing` with `attestations` of the manifest `subject`
    /// added; None where it has all of them already. All are added by one manifest: a reader sees
    /// every one of them, or none.
    ///
    /// # Errors
    /// Exit code 13 where `existing` is no image of attestations: it is not replaced.
    pub fn with(
        existing: Option<&[u8]>,
        subject: &Descriptor,
        attestations: &[Attestation],
    ) -> Result<Option<Self>, Failure> {
        let mut layers = match existing {
            Some(bytes) => layers_of(bytes).ok_or_else(|| {
                let tag = attestation_tag(&subject.digest);
                let cause = format!("the tag {tag} has no image of attestations");
                Failure::new(FailureKind::Verification, cause).remedy("remove that tag")
            })?,
            None => Vec::new(),
        };
        let mut envelopes = Vec::new();
        for attestation in attestations {
            let layer = attestation.layer();
            if !layers.iter().any(|there| there.digest == layer.digest) {
                layers.push(layer);
                envelopes.push(attestation.0.clone().into_bytes());
            }
        }
        if envelopes.is_empty() {
            return Ok(None);
        }
        let config = image_config(&layers)?;
        let described = Descriptor::for_bytes(IMAGE_CONFIG_TYPE, &config);
        let manifest = Manifest::new(Some(ATTESTATIONS_TYPE), described, layers);
        let manifest = Manifest { subject: Some(subject.clone()), ..manifest };
        let blobs = std::iter::once(config).chain(envelopes).collect();
        Ok(Some(Self { manifest: json(&manifest)?, blobs }))
    }

    /// Returns the entry for it in a list of referrers.
    pub fn descriptor(manifest: &[u8]) -> Descriptor {
        let mut entry = Descriptor::for_bytes(MANIFEST_TYPE, manifest);
        entry.artifact_type = Some(ATTESTATIONS_TYPE.to_owned());
        entry
    }
}

#[cfg(test)]
mod tests;
