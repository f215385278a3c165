//! Detached PKCS#7 signatures in the form that the kernel accepts for modules.
//!
//! The kernel (crypto/asymmetric_keys/pkcs7_parser.c and pkcs7_verify.c, Linux 6.1) requires
//! SignedData without content and, for modules, without signed attributes; so the signature is over
//! the digest of the file itself, and the signer's public key is needed to find out which file.

use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;

use cms::cert::CertificateChoices;
use cms::content_info::ContentInfo;
use cms::signed_data::{SignedData, SignerIdentifier, SignerInfo};
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use rsa::pkcs8::DecodePublicKey;

use super::Hash;
use super::certificate::{Certificate, common_name, kernel_name, pem};
use longshore_core::digest::hex;

const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const HASHES: [(Hash, ObjectIdentifier); 3] = [
    (Hash::Sha256, ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1")),
    (Hash::Sha384, ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.2")),
    (Hash::Sha512, ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.3")),
];

/// Error of a file that is not a module signature, or not one that a kernel accepts.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum NotASignature {
    /// Not parsable.
    #[error("it is not a PKCS#7 message in DER: {0}")]
    Malformed(String),
    /// Contains the signed content.
    #[error("it is not detached, but contains the signed file (openssl cms: without -nodetach)")]
    Attached,
    /// Has signed attributes.
    #[error("it has signed attributes, which kernels refuse (openssl cms: sign with -noattr)")]
    Attributes,
    /// More or fewer than one signer.
    #[error("it has {0} signers, and one is wanted")]
    Signers(usize),
    /// An unsupported digest.
    #[error("its digest algorithm ({0}) is none of sha256, sha384, sha512")]
    Digest(String),
    /// An unsupported key or signature algorithm.
    #[error("its algorithm is not supported: {0}")]
    Algorithm(String),
    /// Signed by another key.
    #[error("it is signed by {found}, and the certificate is of {wanted}")]
    OtherSigner {
        /// The signer, as far as it is stated.
        found: String,
        /// The certificate's subject.
        wanted: String,
    },
    /// Verification failed.
    #[error(
        "it is no signature of the certificate's key over exactly this file (openssl cms: sign \
         the file as it was exported, with -binary)"
    )]
    Wrong,
}

/// A detached signature.
#[derive(Debug, Clone)]
pub struct Message {
    der: Vec<u8>,
    data: SignedData,
    signer: SignerInfo,
    hash: Hash,
}

impl Message {
    /// Parses a message in DER, or PEM.
    ///
    /// # Errors
    /// An error where it is not a signature, or not one that a kernel accepts for a module.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotASignature> {
        let malformed = |e: x509_cert::der::Error| NotASignature::Malformed(e.to_string());
        let der = pem(bytes, &["PKCS7", "CMS"]).map_err(NotASignature::Malformed)?;
        let der = der.unwrap_or_else(|| bytes.to_vec());
        let info = ContentInfo::from_der(&der).map_err(malformed)?;
        if info.content_type != SIGNED_DATA {
            return Err(NotASignature::Malformed("it is not SignedData".into()));
        }
        let data: SignedData = info.content.decode_as().map_err(malformed)?;
        if data.encap_content_info.econtent.is_some() {
            return Err(NotASignature::Attached);
        }
        if data.encap_content_info.econtent_type != DATA {
            return Err(NotASignature::Malformed("the signed content is not plain data".into()));
        }
        let signers = data.signer_infos.0.as_slice();
        let [signer] = signers else { return Err(NotASignature::Signers(signers.len())) };
        let signer = signer.clone();
        if signer.signed_attrs.is_some() {
            return Err(NotASignature::Attributes);
        }
        let oid = signer.digest_alg.oid;
        let hash = HASHES.iter().find(|(_, known)| *known == oid).map(|(hash, _)| *hash);
        let hash = hash.ok_or_else(|| NotASignature::Digest(oid.to_string()))?;
        Ok(Self { der, data, signer, hash })
    }

    /// Returns the message in DER, as it is appended.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the hash that is signed.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the signer, as in modinfo's `signer`: the common name of the certificate's issuer.
    pub fn signer(&self) -> String {
        match &self.signer.sid {
            SignerIdentifier::IssuerAndSerialNumber(id) => {
                common_name(&id.issuer).unwrap_or_default()
            }
            SignerIdentifier::SubjectKeyIdentifier(_) => String::new(),
        }
    }

    /// Returns the identifier of the signer's certificate (hex), as in modinfo's `sig_key`: its
    /// serial number, or its subject key identifier.
    pub(crate) fn signer_id(&self) -> String {
        match &self.signer.sid {
            SignerIdentifier::IssuerAndSerialNumber(id) => hex(id.serial_number.as_bytes()),
            SignerIdentifier::SubjectKeyIdentifier(id) => hex(id.0.as_bytes()),
        }
    }

    /// True if the message names the owner of `certificate` as signer.
    pub fn names(&self, certificate: &Certificate) -> bool {
        match &self.signer.sid {
            SignerIdentifier::IssuerAndSerialNumber(id) => {
                id.issuer == *certificate.issuer()
                    && id.serial_number.as_bytes() == certificate.serial()
            }
            SignerIdentifier::SubjectKeyIdentifier(id) => {
                certificate.subject_key_id().is_some_and(|own| own == id.0.as_bytes())
            }
        }
    }

    /// Checks that it is a signature of the owner of `certificate` over exactly `module`.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn verify(&self, module: &[u8], certificate: &Certificate) -> Result<(), NotASignature> {
        self.verify_digest(&self.hash.digest(module), certificate)
    }

    /// Like [`Message::verify`], for a module with this digest ([`Message::hash`]).
    pub(crate) fn verify_digest(
        &self,
        digest: &[u8],
        certificate: &Certificate,
    ) -> Result<(), NotASignature> {
        if !self.names(certificate) {
            return Err(NotASignature::OtherSigner {
                found: format!("{} ({})", self.signer(), self.signer_id()),
                wanted: format!("{} ({})", certificate.name(), hex(certificate.serial())),
            });
        }
        let (key, algorithm) = certificate.public_key().map_err(NotASignature::Algorithm)?;
        let signature = self.signer.signature.as_bytes();
        let valid = match algorithm {
            RSA if self.signer.signature_algorithm.oid == RSA => {
                verify_rsa(&key, self.hash, digest, signature)
            }
            EC => verify_ecdsa(&key, digest, signature),
            // Kernels accept RSA as PKCS#1 v1.5 alone (pkcs7_sig_note_pkey_algo).
            _ => Err(format!("key {algorithm}, signature {}", self.signer.signature_algorithm.oid)),
        };
        if valid.map_err(NotASignature::Algorithm)? { Ok(()) } else { Err(NotASignature::Wrong) }
    }

    /// Returns the keys (as [`Certificate::key_id`]) of which the kernel must trust one: the
    /// signer's, and for included certificates, those of the chain and of its issuer.
    pub fn key_ids(&self, certificate: &Certificate) -> Vec<String> {
        self.with_embedded(vec![certificate.key_id()])
    }

    /// Returns the keys that the message itself states: the signer's serial number or key id, and
    /// those of included certificates.
    pub(crate) fn stated_key_ids(&self) -> Vec<String> {
        self.with_embedded(vec![self.signer_id()])
    }

    /// Returns the issuer of the signer's certificate as the kernel names it; empty where the
    /// message has only a key id.
    pub(crate) fn stated_name(&self) -> String {
        match &self.signer.sid {
            SignerIdentifier::IssuerAndSerialNumber(id) => kernel_name(&id.issuer),
            SignerIdentifier::SubjectKeyIdentifier(_) => String::new(),
        }
    }

    fn with_embedded(&self, mut ids: Vec<String>) -> Vec<String> {
        let embedded = self.data.certificates.iter().flat_map(|set| set.0.iter());
        for choice in embedded {
            let CertificateChoices::Certificate(embedded) = choice else { continue };
            let embedded = Certificate::from(embedded.clone());
            for id in [Some(embedded.key_id()), embedded.authority_key_id()].into_iter().flatten() {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }
}

/// Verifies PKCS#1 v1.5: the digest is in a DigestInfo, whose head is the same for every hash
/// except for the last byte of its OID and two lengths (RFC 8017, 9.2).
fn verify_rsa(key: &[u8], hash: Hash, digest: &[u8], signature: &[u8]) -> Result<bool, String> {
    let key = rsa::RsaPublicKey::from_public_key_der(key).map_err(|e| e.to_string())?;
    let length = digest.len() as u8;
    let last = match hash {
        Hash::Sha256 => 1,
        Hash::Sha384 => 2,
        Hash::Sha512 => 3,
    };
    let oid: [u8; 11] = [6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, last];
    let prefix = [&[0x30, 17 + length, 0x30, 13][..], &oid, &[5, 0, 4, length]].concat();
    let scheme = rsa::Pkcs1v15Sign { hash_len: Some(digest.len()), prefix: prefix.into() };
    Ok(key.verify(scheme, digest, signature).is_ok())
}

/// Verifies ECDSA on the two curves that kernels support: P-256 and P-384.
fn verify_ecdsa(key: &[u8], digest: &[u8], signature: &[u8]) -> Result<bool, String> {
    if let Ok(key) = p384::ecdsa::VerifyingKey::from_public_key_der(key) {
        let signature = p384::ecdsa::Signature::from_der(signature);
        return Ok(signature.is_ok_and(|s| key.verify_prehash(digest, &s).is_ok()));
    }
    let key = p256::ecdsa::VerifyingKey::from_public_key_der(key)
        .map_err(|_| "an elliptic curve that is neither P-256 nor P-384".to_owned())?;
    let signature = p256::ecdsa::Signature::from_der(signature);
    Ok(signature.is_ok_and(|s| key.verify_prehash(digest, &s).is_ok()))
}

impl Hash {
    /// Returns the digest of `bytes`.
    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::certificate;
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// The module that the test signatures are over.
    const MODULE: &[u8] = include_bytes!("testdata/module");
    /// Made by sign-file -d sha512, and by openssl cms with other arguments.
    const SIGN_FILE: &[u8] = include_bytes!("testdata/sign-file.p7s");

    #[test]
    fn what_sign_file_wrote_verifies() {
        let message = Message::parse(SIGN_FILE).expect("a message");
        assert_eq!(message.hash(), Hash::Sha512);
        assert_eq!(message.signer(), "Module signing");
        assert_eq!(message.verify(MODULE, &certificate()), Ok(()));
        assert_eq!(message.key_ids(&certificate()), [certificate().key_id()]);
    }

    #[rstest]
    #[case::by_issuer(include_bytes!("testdata/cms.p7s"))]
    #[case::by_key_id(include_bytes!("testdata/keyid.p7s"))]
    #[case::pem(include_bytes!("testdata/pem.p7s"))]
    fn what_openssl_wrote_verifies(#[case] bytes: &[u8]) {
        let message = Message::parse(bytes).expect("a message");
        assert_eq!(message.verify(MODULE, &certificate()), Ok(()));
    }

    #[rstest]
    #[case::p384(include_bytes!("testdata/ec.p7s"), include_bytes!("testdata/ec.pem"))]
    fn elliptic_curves_verify(#[case] bytes: &[u8], #[case] pem: &[u8]) {
        let signer = Certificate::parse(pem).expect("a certificate");
        let message = Message::parse(bytes).expect("a message");
        assert_eq!(message.verify(MODULE, &signer), Ok(()));
        assert_eq!(message.verify(b"other", &signer), Err(NotASignature::Wrong));
    }

    #[test]
    fn another_file_is_told() {
        let message = Message::parse(SIGN_FILE).expect("a message");
        assert_eq!(message.verify(b"other", &certificate()), Err(NotASignature::Wrong));
        let other = Certificate::parse(include_bytes!("testdata/ec.pem")).expect("a certificate");
        let failure = message.verify(MODULE, &other).expect_err("refused");
        assert!(matches!(failure, NotASignature::OtherSigner { .. }), "{failure}");
    }

    #[rstest]
    #[case::with_attributes(include_bytes!("testdata/attributes.p7s"), NotASignature::Attributes)]
    #[case::with_content(include_bytes!("testdata/attached.p7s"), NotASignature::Attached)]
    #[case::sha1(include_bytes!("testdata/sha1.p7s"), NotASignature::Digest("1.3.14.3.2.26".into()))]
    fn what_kernels_do_not_take_is_refused(#[case] bytes: &[u8], #[case] wanted: NotASignature) {
        assert_eq!(Message::parse(bytes).map(drop), Err(wanted));
    }

    #[test]
    fn every_truncation_is_refused_and_no_damage_verifies() {
        for length in 0..SIGN_FILE.len() {
            assert!(Message::parse(&SIGN_FILE[..length]).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn damage_is_no_panic(at in 0usize..4096, value in any::<u8>()) {
            let mut bytes = SIGN_FILE.to_vec();
            let at = at % bytes.len();
            bytes[at] = value;
            let signature_at = bytes.len() - 256;
            if let Ok(message) = Message::parse(&bytes) {
                let verified = message.verify(MODULE, &certificate()).is_ok();
                prop_assert!(!verified || at < signature_at || bytes == SIGN_FILE);
            }
        }
    }
}
