//! Signatures and attestations of sets of modules, in cosign's format and storage.
//!
//! cosign signs a small payload that names the digest of a manifest; the manifest names the config
//! and the modules by digest. An attestation is a signed statement about the same digest.
//! [`Evidence`] holds that whole chain, so that it can be verified wherever the set is, the store
//! included, with the keys then configured.

pub mod attestation;
mod dsse;
mod foreign;
pub mod key;
pub mod payload;
pub mod statement;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::artifact::ModuleSet;
use crate::artifact::image::{Described, Descriptor, MANIFEST_TYPE, Manifest, digest, json};
use attestation::{Attestation, NotAttested, ReadAttestations};
use key::{PublicKey, SecretKey};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use statement::PredicateType;

/// Media type of a payload.
const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Media type of the config beside them; cosign stores signatures as an image.
const IMAGE_CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
/// The annotation with the signature.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Maximum number of signatures, and of attestations, of one set that are read.
const MOST: usize = 64;

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
}

/// Reason why a set does not count as signed, or as attested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
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
    /// The signed set is another one.
    #[error("the signed set is not this set: {0}")]
    Other(String),
    /// It is signed, and lacks a required attestation.
    #[error(transparent)]
    Unattested(#[from] NotAttested),
}

impl Evidence {
    /// # Errors
    /// Exit code 13 where manifest or config are not text, which JSON is.
    pub fn new(
        manifest: Vec<u8>,
        config: Vec<u8>,
        signatures: Vec<Signature>,
    ) -> Result<Self, Failure> {
        let text = |bytes| {
            String::from_utf8(bytes)
                .or_fail(FailureKind::Verification, || "reading the manifest of a set")
        };
        let (manifest, config) = (text(manifest)?, text(config)?);
        Ok(Self { manifest, config, signatures, attestations: Vec::new(), damaged: None })
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
        let by = self.verify(set, &trust.keys)?;
        for kind in &trust.attestations {
            self.attested(kind, &trust.keys)?;
        }
        Ok(by)
    }

    /// Verifies an attestation of the type `kind` by one of `keys`; returns the key's name.
    ///
    /// # Errors
    /// The reason why none counts.
    pub fn attested(
        &self,
        kind: &PredicateType,
        keys: &[PublicKey],
    ) -> Result<String, NotAttested> {
        let manifest = digest(self.manifest.as_bytes());
        attestation::verify(&manifest, &self.attestations, kind, keys)
            .map_err(|why| why.beside(self.damaged.as_deref()))
    }

    /// True if attestations are worth reading: `trust` requires some, and the set is signed as it
    /// demands.
    pub fn needs_attestations(&self, set: &ModuleSet, trust: &Trust) -> bool {
        !trust.attestations.is_empty() && self.verify(set, &trust.keys).is_ok()
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
    fn verify(&self, wanted: &str, keys: &[PublicKey]) -> Result<String, String> {
        let by = keys.iter().find(|key| key.verifies(self.payload.as_bytes(), &self.signature));
        let by = by.ok_or("it was made with another key, or is damaged")?;
        let found = payload::digest_in(&self.payload)?;
        if found != wanted {
            return Err(format!("it is for {found}"));
        }
        Ok(by.name().to_owned())
    }
}

/// Signatures as an image, stored under [`signature_tag`].
#[derive(Debug, Clone)]
pub struct SignatureImage {
    /// The manifest.
    pub manifest: Vec<u8>,
    /// Config and payloads.
    pub blobs: Vec<Vec<u8>>,
}

impl SignatureImage {
    /// Returns an image of these signatures; None where there are none.
    ///
    /// # Errors
    /// As [`SignatureImage::with`].
    pub fn of(signatures: &[Signature]) -> Result<Option<Self>, Failure> {
        let mut whole: Option<Self> = None;
        for signature in signatures {
            let existing = whole.as_ref().map(|image| image.manifest.as_slice());
            let Some(next) = Self::with(existing, signature)? else { continue };
            let payloads = whole.into_iter().flat_map(|image| image.blobs.into_iter().skip(1));
            let mut blobs: Vec<_> = next.blobs;
            blobs.splice(1..1, payloads);
            whole = Some(Self { manifest: next.manifest, blobs });
        }
        Ok(whole)
    }

    /// Returns the image whose manifest is `existing` with `signature` added; None where it has it
    /// already.
    ///
    /// # Errors
    /// Exit code 13 where `existing` is no image with layers of signatures alone: it is not replaced.
    pub fn with(existing: Option<&[u8]>, signature: &Signature) -> Result<Option<Self>, Failure> {
        let mut layers = match existing {
            Some(bytes) => signature_layers(bytes).ok_or_else(|| {
                let tag = payload::digest_in(&signature.payload).map(|of| signature_tag(&of));
                let tag = tag.unwrap_or_else(|_| "of the signatures".to_owned());
                let cause = format!("the tag {tag} has no image of signatures");
                Failure::new(FailureKind::Verification, cause).remedy("remove that tag")
            })?,
            None => Vec::new(),
        };
        let mut layer = Descriptor::of(PAYLOAD_TYPE, signature.payload.as_bytes());
        layer.annotations.insert(SIGNATURE.to_owned(), signature.signature.clone());
        if layers.contains(&layer) {
            return Ok(None);
        }
        layers.push(layer);
        let config = image_config(&layers)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            artifact_type: None,
            config: Descriptor::of(IMAGE_CONFIG_TYPE, &config),
            layers,
            subject: None,
            annotations: std::collections::BTreeMap::new(),
        };
        let payload = signature.payload.clone().into_bytes();
        Ok(Some(Self { manifest: json(&manifest)?, blobs: vec![config, payload] }))
    }
}

/// Returns the layers of an image of signatures; None where it is something else.
fn signature_layers(manifest: &[u8]) -> Option<Vec<Descriptor>> {
    let layers = serde_json::from_slice::<Manifest>(manifest).ok()?.layers;
    layers.iter().all(|layer| layer.media_type == PAYLOAD_TYPE).then_some(layers)
}

/// Returns an image's config that lists only its layers, as cosign's does.
fn image_config(layers: &[Descriptor]) -> Result<Vec<u8>, Failure> {
    let ids: Vec<&str> = layers.iter().map(|l| l.digest.as_str()).collect();
    let history: Vec<_> =
        layers.iter().map(|_| serde_json::json!({"created": "0001-01-01T00:00:00Z"})).collect();
    json(&serde_json::json!({
        "architecture": "",
        "created": "0001-01-01T00:00:00Z",
        "history": history,
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": ids},
        "config": {},
    }))
}

/// A layer of an image of signatures.
#[derive(Debug, Clone)]
pub struct SignatureLayer {
    /// `sha256:...` of the payload.
    pub digest: String,
    /// Bytes of the payload.
    pub size: u64,
    signature: String,
}

impl SignatureLayer {
    /// Returns the signature over the payload that was read; None where that is not text.
    pub fn signature(self, payload: Vec<u8>) -> Option<Signature> {
        Some(Signature { payload: String::from_utf8(payload).ok()?, signature: self.signature })
    }
}

/// Returns the signatures in an image's manifest; others than cosign's are skipped.
pub fn layers_of(manifest: &[u8]) -> Vec<SignatureLayer> {
    let layers =
        serde_json::from_slice::<Manifest>(manifest).map_or_else(|_| Vec::new(), |m| m.layers);
    layers
        .into_iter()
        .filter(|layer| layer.media_type == PAYLOAD_TYPE)
        .filter_map(|mut layer| {
            let signature = layer.annotations.remove(SIGNATURE)?;
            Some(SignatureLayer { digest: layer.digest, size: layer.size, signature })
        })
        .take(MOST)
        .collect()
}

/// Configured keys, and the requirements of a signature and of attestations.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// True to refuse a set without a signature by one of the keys.
    pub required: bool,
    /// The keys.
    pub keys: Vec<PublicKey>,
    /// Types of the attestations by one of the keys that a set has to have, too.
    pub attestations: Vec<PredicateType>,
}

impl Trust {
    /// Reads the keys.
    ///
    /// # Errors
    /// Exit code 2 where one cannot be read.
    pub fn read(required: bool, keys: &[PathBuf]) -> Result<Self, Failure> {
        let keys = keys.iter().map(|path| PublicKey::read(path)).collect::<Result<_, _>>()?;
        Ok(Self { required, keys, attestations: Vec::new() })
    }

    /// Requires attestations of these types, too.
    #[must_use]
    pub fn requiring(self, attestations: Vec<PredicateType>) -> Self {
        Self { attestations, ..self }
    }
}

/// Returns the failure for a set that does not count as signed, or as attested.
pub fn refusal(place: &str, why: &NotSigned) -> Failure {
    if let NotSigned::Unattested(why) = why {
        let cause = format!("the attestations of {place}: {why}");
        return Failure::new(FailureKind::Verification, cause).remedy(
            "attest it with a key whose public half is configured (`longshore attest`, `longshore \
             push --attest`, `cosign attest --key`), or do not require it (require-attestation)",
        );
    }
    Failure::new(FailureKind::Verification, format!("the signature of {place}: {why}")).remedy(
        "sign it with a key whose public half is configured (`longshore push --sign-key`, \
         `cosign sign --key`), or add the key that signed it to signature-keys",
    )
}

/// Returns the `sha256:...` of a manifest.
pub fn digest_of(manifest: &[u8]) -> String {
    digest(manifest)
}

#[cfg(test)]
mod tests;
