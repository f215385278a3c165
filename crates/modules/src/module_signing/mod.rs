//! Module signatures, as kernels require them under Secure Boot, lockdown and `module.sig_enforce`.
//!
//! A module is compiled first and signed afterwards, so that a compiled set is the same on every
//! host: the signed set is another set, with the same key plus [`SignedBy`]. Signatures are made by
//! the kernel's own sign-file (`sign` of longshore-build) or elsewhere ([`crate::signed_sets::detached`]); both are
//! verified here before they are appended, since a kernel refuses a wrong signature even where it
//! requires none (mod_verify_sig in kernel/module/signing.c).
//!
//! Not to be confused with [`crate::signature`]: that one covers sets in registries.

pub mod appended;
pub mod certificate;
pub mod pkcs7;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Serialize};

pub use certificate::Certificate;
pub use pkcs7::{Message, NotASignature};

/// A hash that modules are signed with.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display,
)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl FromStr for Hash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Sha256, Self::Sha384, Self::Sha512]
            .into_iter()
            .find(|hash| hash.to_string() == text)
            .ok_or_else(|| format!("`{text}` is none of sha256, sha384, sha512"))
    }
}

/// Signer of a set's modules; part of the set's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Display)]
#[display("{name} ({})", key_ids.first().map_or("", String::as_str))]
#[serde(deny_unknown_fields)]
pub struct SignedBy {
    /// sha256 (hex) of the signer's certificate as DER; empty where it is unknown, as of a package's
    /// modules: a signature states issuer and serial number only.
    pub certificate: String,
    /// Its subject, as the kernel names it; of an unknown certificate, the issuer.
    pub name: String,
    /// Keys (hex, as in /proc/keys) of which the kernel needs one; the signer's comes first.
    pub key_ids: Vec<String>,
    /// Returns the hash that is signed.
    pub hash: Hash,
}

impl SignedBy {
    /// Returns the signer that a message states. It is not verified: that needs the certificate.
    pub fn stated(message: &Message) -> Self {
        Self {
            certificate: String::new(),
            name: message.stated_name(),
            key_ids: message.stated_key_ids(),
            hash: message.hash(),
        }
    }

    /// True if the certificate is known, so that the key ids are those of the kernel.
    pub fn has_certificate(&self) -> bool {
        !self.certificate.is_empty()
    }
}

/// The configured signer, as far as planning needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Display)]
#[display("{name} ({key_id})")]
pub struct Signer {
    /// sha256 (hex) of the certificate as DER.
    pub certificate: String,
    /// Its subject, as the kernel names it.
    pub name: String,
    /// The kernel's identifier of its key (hex).
    pub key_id: String,
    /// True if signatures are made elsewhere and only appended here.
    pub detached: bool,
}

impl Signer {
    /// The owner of `certificate`.
    pub fn from_certificate(certificate: &Certificate, detached: bool) -> Self {
        Self {
            certificate: certificate.fingerprint(),
            name: certificate.name(),
            key_id: certificate.key_id(),
            detached,
        }
    }

    /// True if a set with these signatures is signed by this signer.
    pub fn signed(&self, by: Option<&SignedBy>) -> bool {
        by.is_some_and(|by| by.certificate == self.certificate)
    }
}

/// True if a PKCS#7 message is appended to a module.
pub fn is_signed(image: &[u8]) -> bool {
    matches!(appended::split(image), Ok((_, Some(message))) if Message::parse(message).is_ok())
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::modinfo;

    const SIGNED: &[u8] = include_bytes!("testdata/module.signed");

    #[test]
    fn a_signature_states_its_signer() {
        let (_, message) = appended::split(SIGNED).expect("a module");
        let message = Message::parse(message.expect("signed")).expect("a message");
        let stated = SignedBy::stated(&message);
        let own = certificate::tests::certificate();
        assert_eq!((stated.name.as_str(), stated.hash), (own.name().as_str(), Hash::Sha512));
        assert!(
            !stated.has_certificate()
                && !Signer::from_certificate(&own, false).signed(Some(&stated))
        );
    }

    #[test]
    fn modinfo_says_who_signed() {
        let info = modinfo::read(SIGNED).expect("a module");
        let signature = info.signature.expect("signed");
        assert_eq!(signature.signer, "Module signing");
        assert_eq!(signature.hash, Some(Hash::Sha512));
        assert_eq!(signature.key.len(), 40);
    }

    #[test]
    fn hashes_are_read_as_they_are_written() {
        for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
            assert_eq!(hash.to_string().parse(), Ok(hash));
        }
        assert!("md5".parse::<Hash>().is_err());
    }
}
