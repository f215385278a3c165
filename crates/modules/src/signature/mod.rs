//! Signatures and attestations of sets of modules, in cosign's format and storage.
//!
//! cosign signs a small payload that names the digest of a manifest; the manifest names the config
//! and the modules by digest. An attestation is a signed statement about the same digest.
//! A [`set_index`] lists a repository's sets, signed with a version and an expiry.
//! [`Evidence`] holds that whole chain, so that it can be verified wherever the set is, the store
//! included, with the keys then configured.

pub mod attestation;
mod core_objects;
mod dsse;
mod foreign;
pub mod image;
pub mod index_minimums;
pub mod key;
pub mod payload;
mod predicate;
pub mod set_index;
pub mod statement;
pub mod trust;

use serde::{Deserialize, Serialize};

use crate::artifact::ModuleSet;
use crate::artifact::image::{Described, digest};
use attestation::{Attestation, NotAttested, ReadAttestations};
pub use image::{ReadSignatures, SignatureImage, SignatureReader};
use key::{PublicKey, SecretKey};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use statement::PredicateType;
pub use trust::{Role, Trust, TrustEntry};

/// Maximum number of signatures, and of attestations, of one set that are read.
const MOST: usize = 64;
/// Maximum size of a set's manifest, and of its config. They have a few kB.
const MAX_DESCRIPTION: usize = 1 << 20;

/// Size of the largest evidence that is accepted, as JSON: quotes and line breaks in its texts are escaped.
pub const MAX_EVIDENCE: u64 = {
    let signature = image::MAX_PAYLOAD + image::MAX_SIGNATURE as u64;
    let texts = 2 * MAX_DESCRIPTION as u64 + MOST as u64 * signature + attestation::MAX_TOTAL;
    2 * texts + FIELDS
};
/// Bytes of the evidence's field names and punctuation.
const FIELDS: u64 = 16 << 10;

/// Returns the tag under which cosign stores the signatures of the manifest `digest`
/// (`sha256:...`).
pub fn signature_tag(digest: &str) -> String {
    format!("{}.sig", digest.replace(':', "-"))
}

/// A signature with its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The payload.
    pub payload: String,
    /// base64 of DER.
    pub signature: String,
}

/// Signed manifest and config of a set, and the signatures and attestations found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    manifest: String,
    config: String,
    signatures: Vec<Signature>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attestations: Vec<Attestation>,
    /// Fault of an attestation that could not be read.
    #[serde(skip)]
    damaged: Option<String>,
    /// Number of signatures that were too large to be read.
    #[serde(skip)]
    too_large: usize,
}

/// Reason why a set does not count as signed, or as attested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// The configuration takes it back.
    #[error("{0} is denied (denied-sets)")]
    Denied(String),
    /// There is no signature.
    #[error("it has no signature")]
    Unsigned,
    /// There are signatures, and none is valid.
    #[error("none of its {count} signatures is by a configured key: {why}")]
    Wrong {
        /// Number of signatures.
        count: usize,
        /// Error of the last one.
        why: String,
    },
    /// The signed set, or the signed core objects, are others.
    #[error("what was signed is not this: {0}")]
    Other(String),
    /// It is signed, and lacks a required attestation.
    #[error(transparent)]
    Unattested(#[from] NotAttested),
}

impl NotSigned {
    /// Adds the number of signatures that were too large to be read.
    #[must_use]
    pub fn beside_too_large(self, too_large: usize) -> Self {
        let larger = format!("larger than {} KiB", image::MAX_PAYLOAD >> 10);
        match self {
            unchanged if too_large == 0 => unchanged,
            Self::Unsigned => Self::Wrong { count: too_large, why: format!("it is {larger}") },
            Self::Wrong { count, why } => Self::Wrong {
                count: count + too_large,
                why: format!("{why}; {too_large} are {larger}"),
            },
            other => other,
        }
    }
}

impl Evidence {
    /// # Errors
    /// Exit code 13 where manifest or config are no text as JSON is, or have more than 1 MiB.
    pub fn new(
        manifest: Vec<u8>,
        config: Vec<u8>,
        signatures: impl Into<ReadSignatures>,
    ) -> Result<Self, Failure> {
        let text = |bytes: Vec<u8>| {
            let what = || "reading the manifest of a set";
            if bytes.len() > MAX_DESCRIPTION {
                let cause = format!("manifest or config has more than {MAX_DESCRIPTION} bytes");
                return Err(Failure::new(FailureKind::Verification, what()).with_source(cause));
            }
            let text = String::from_utf8(bytes).or_fail(FailureKind::Verification, what)?;
            match foreign::is_json_text(&text) {
                true => Ok(text),
                false => Err(Failure::new(FailureKind::Verification, what())
                    .with_source("it has control characters, and is no JSON")),
            }
        };
        let (manifest, config) = (text(manifest)?, text(config)?);
        let ReadSignatures { signatures, too_large } = signatures.into();
        let (attestations, damaged) = (Vec::new(), None);
        Ok(Self { manifest, config, signatures, attestations, damaged, too_large })
    }

    /// Leaves out signatures and attestations that none of `keys` made: what others put beside a set is not kept.
    #[must_use]
    pub fn keeping<K: AsRef<PublicKey>>(mut self, keys: &[K]) -> Self {
        let manifest = digest(self.manifest.as_bytes());
        self.signatures.retain(|signature| signature.verify(&manifest, keys).is_ok());
        self.attestations.retain(|attestation| attestation.is_by(keys));
        self
    }

    /// Adds the attestations found.
    #[must_use]
    pub fn with_attestations(self, found: ReadAttestations) -> Self {
        let ReadAttestations { attestations, damaged } = found;
        Self { attestations, damaged, ..self }
    }

    /// Verifies that the set is signed and attested as `trust` requires; returns the name of the key
    /// that signed it.
    ///
    /// # Errors
    /// The reason why it does not count.
    pub fn meets(&self, set: &ModuleSet, trust: &Trust) -> Result<String, NotSigned> {
        trust.check_denied(&self.digest())?;
        let by = self.verify(set, &trust.module_keys())?;
        for kind in &trust.attestations {
            self.attested(kind, trust)?;
        }
        Ok(by)
    }

    /// Verifies an attestation of the type `kind` by one of the keys with that role; returns the key's name.
    ///
    /// # Errors
    /// The reason why none counts.
    pub fn attested(&self, kind: &PredicateType, trust: &Trust) -> Result<String, NotAttested> {
        let manifest = digest(self.manifest.as_bytes());
        attestation::verify(&manifest, &self.attestations, kind, trust)
            .map_err(|why| why.beside(self.damaged.as_deref()))
    }

    /// True if attestations are worth reading: `trust` requires some, and the set is signed as it
    /// demands.
    pub fn needs_attestations(&self, set: &ModuleSet, trust: &Trust) -> bool {
        !trust.attestations.is_empty() && self.verify(set, &trust.module_keys()).is_ok()
    }

    /// Verifies the chain from a signature by one of `keys` down to `set`; returns the key's name.
    ///
    /// # Errors
    /// The reason why the set does not count as signed.
    pub fn verify(&self, set: &ModuleSet, keys: &[PublicKey]) -> Result<String, NotSigned> {
        let (manifest, config) = (self.manifest.as_bytes(), self.config.as_bytes());
        let signed = Described::assemble(manifest.to_vec(), config.to_vec(), "what was signed")
            .map_err(|failure| NotSigned::Other(failure.one_line()))?;
        if signed.set != *set {
            return Err(NotSigned::Other("it has other modules, or another key".into()));
        }
        verify(&signed.digest(), &self.signatures, keys)
            .map_err(|why| why.beside_too_large(self.too_large))
    }

    /// Returns `set` with the manifest and config that were signed; None where they describe another set.
    ///
    /// # Errors
    /// Exit code 13 where the signed bytes describe no set.
    pub fn described(&self, set: &ModuleSet) -> Result<Option<Described>, Failure> {
        let (manifest, config) = self.signed();
        let place = "the signatures in the store";
        let signed = Described::assemble(manifest.to_vec(), config.to_vec(), place)?;
        Ok((signed.set == *set).then_some(signed))
    }

    /// Returns the digest (`sha256:...`) of the manifest.
    pub fn digest(&self) -> String {
        digest(self.manifest.as_bytes())
    }

    /// Returns the bytes of the manifest and the config it names.
    pub fn signed(&self) -> (&[u8], &[u8]) {
        (self.manifest.as_bytes(), self.config.as_bytes())
    }

    /// Returns the signatures found.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// Returns the attestations found.
    pub fn attestations(&self) -> &[Attestation] {
        &self.attestations
    }
}

/// Verifies that one of `signatures` is by one of `keys` and for the manifest with the digest
/// `wanted` (`sha256:...`); returns the key's name.
///
/// # Errors
/// The reason why the manifest does not count as signed.
pub fn verify(
    wanted: &str,
    signatures: &[Signature],
    keys: &[PublicKey],
) -> Result<String, NotSigned> {
    let mut why = None;
    for signature in signatures.iter().take(MOST) {
        match signature.verify(wanted, keys) {
            Ok(name) => return Ok(name),
            Err(fault) => why = Some(fault),
        }
    }
    let count = signatures.len();
    Err(why.map_or(NotSigned::Unsigned, |why| NotSigned::Wrong { count, why }))
}

impl Signature {
    /// Signs the manifest with `digest` in the repository `name`.
    ///
    /// # Errors
    /// Exit code 70.
    pub fn make(key: &SecretKey, name: &str, digest: &str) -> Result<Self, Failure> {
        let payload = payload::payload(name, digest)?;
        let signature = key.sign(payload.as_bytes());
        Ok(Self { payload, signature })
    }

    /// Verifies the signature first: an unsigned payload is not parsed.
    fn verify<K: AsRef<PublicKey>>(&self, wanted: &str, keys: &[K]) -> Result<String, String> {
        let mut keys = keys.iter().map(|key| -> &PublicKey { key.as_ref() });
        let by = keys.find(|key| key.verifies(self.payload.as_bytes(), &self.signature));
        let by = by.ok_or("it was made with another key, or is damaged")?;
        let found = payload::digest_in(&self.payload)?;
        if found != wanted {
            return Err(format!("it is for {found}"));
        }
        Ok(by.name().to_owned())
    }
}

/// Returns the key by which a signature of a file holds, as `longshore sign FILE` and `cosign sign-blob` make it: base64
/// of the DER form. None where it holds by none of them.
pub fn signer_of_file<'k>(
    bytes: &[u8],
    signature: &str,
    keys: &'k [PublicKey],
) -> Option<&'k PublicKey> {
    keys.iter().find(|key| key.verifies(bytes, signature))
}

/// Returns the failure for a set that does not count as signed, or as attested.
pub fn refusal(place: &str, why: &NotSigned) -> Failure {
    if let NotSigned::Unattested(why) = why {
        let cause = format!("the attestations of {place}: {why}");
        return Failure::new(FailureKind::Verification, cause).remedy(
            "attest it with a key whose public half is configured for that (trust, signature-keys; \
             `longshore attest`, `longshore push --attest`, `cosign attest --key`), or do not require \
             it (require-attestation)",
        );
    }
    if let NotSigned::Denied(_) = why {
        return Failure::new(FailureKind::Verification, format!("{place}: {why}")).remedy(
            "use another set of these modules; if this one is to be loaded again, remove its digest from denied-sets",
        );
    }
    Failure::new(FailureKind::Verification, format!("the signature of {place}: {why}")).remedy(
        "sign it with a key whose public half is configured (`longshore push --sign-key`, \
         `cosign sign --key`), or add the key that signed it to signature-keys, or to trust with the \
         role modules",
    )
}

#[cfg(test)]
mod tests;
