//! X.509 certificate of a module signer, named as the kernel names it.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, SubjectKeyIdentifier};
use x509_cert::name::Name;

use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind, OrFail};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANISATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
const EMAIL: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.1");
/// Maximum size: a certificate is a few kB, a chain a few more.
const MAX_FILE: u64 = 1 << 20;
/// Number of equal leading bytes of organisation and common name that make the kernel leave out the
/// organisation.
const SIGNIFICANT: usize = 7;

/// A signer's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    der: Vec<u8>,
    parsed: x509_cert::Certificate,
}

impl Certificate {
    /// Reads a PEM or DER file; of several certificates in a PEM file the first is used.
    ///
    /// # Errors
    /// Exit code 2 where it cannot be read or is not a certificate.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let what = || format!("reading the certificate {}", path.display());
        let remedy = "give the X.509 certificate of the module signing key, PEM or DER";
        let bytes = super::read_bounded(path, MAX_FILE)
            .or_fail(FailureKind::Usage, what)
            .map_err(|failure| failure.remedy(remedy))?;
        Self::parse(&bytes)
            .map_err(|why| Failure::new(FailureKind::Usage, what()).with_source(why).remedy(remedy))
    }

    /// Parses PEM or DER.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let der = match pem(bytes, &["CERTIFICATE", "X509 CERTIFICATE"])? {
            Some(der) => der,
            None => bytes.to_vec(),
        };
        let parsed = x509_cert::Certificate::from_der(&der)
            .map_err(|e| format!("it is not an X.509 certificate: {e}"))?;
        Ok(Self { der, parsed })
    }

    /// Returns the certificate as DER.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the sha256 (hex) of its DER form.
    pub fn fingerprint(&self) -> String {
        hex(&Sha256::digest(&self.der))
    }

    /// Returns its subject as the kernel names it, in /proc/keys and in its log.
    pub fn name(&self) -> String {
        kernel_name(&self.parsed.tbs_certificate.subject)
    }

    /// Returns the kernel's identifier of its key (hex): the subject key identifier, or without one
    /// the serial number.
    pub fn key_id(&self) -> String {
        match self.subject_key_id() {
            Some(id) => hex(&id),
            None => hex(self.serial()),
        }
    }

    /// Returns the kernel's identifier of its issuer's key (hex), if the certificate states it.
    pub(crate) fn authority_key_id(&self) -> Option<String> {
        let found = self.parsed.tbs_certificate.get::<AuthorityKeyIdentifier>().ok()??.1;
        Some(hex(found.key_identifier?.as_bytes()))
    }

    pub(super) fn subject_key_id(&self) -> Option<Vec<u8>> {
        let found = self.parsed.tbs_certificate.get::<SubjectKeyIdentifier>().ok()??.1;
        Some(found.0.as_bytes().to_vec())
    }

    pub(super) fn issuer(&self) -> &Name {
        &self.parsed.tbs_certificate.issuer
    }

    pub(super) fn serial(&self) -> &[u8] {
        self.parsed.tbs_certificate.serial_number.as_bytes()
    }

    /// Returns the public key as DER (SubjectPublicKeyInfo), and the OID of its algorithm.
    pub(super) fn public_key(&self) -> Result<(Vec<u8>, ObjectIdentifier), String> {
        let info = &self.parsed.tbs_certificate.subject_public_key_info;
        let der = info.to_der().map_err(|e| format!("its public key: {e}"))?;
        Ok((der, info.algorithm.oid))
    }
}

impl From<x509_cert::Certificate> for Certificate {
    fn from(parsed: x509_cert::Certificate) -> Self {
        // A decoded certificate can always be encoded.
        Self { der: parsed.to_der().unwrap_or_default(), parsed }
    }
}

/// Returns the first PEM block with one of these labels; None where there is no PEM at all.
pub(super) fn pem(bytes: &[u8], labels: &[&str]) -> Result<Option<Vec<u8>>, String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(None) };
    if !text.contains("-----BEGIN ") {
        return Ok(None);
    }
    let block = labels.iter().find_map(|label| {
        let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
        rest.split_once(&format!("-----END {label}-----")).map(|(inside, _)| inside)
    });
    let block = block.ok_or_else(|| format!("it is PEM and holds no {}", labels[0]))?;
    let packed: String = block.split_ascii_whitespace().collect();
    STANDARD.decode(packed).map(Some).map_err(|e| format!("its PEM is damaged: {e}"))
}

/// Returns the common name in a name.
pub(super) fn common_name(name: &Name) -> Option<String> {
    part(name, COMMON_NAME)
}

fn part(name: &Name, wanted: ObjectIdentifier) -> Option<String> {
    let mut attributes = name.0.iter().flat_map(|set| set.0.iter());
    let found = attributes.find(|attribute| attribute.oid == wanted)?;
    Some(String::from_utf8_lossy(found.value.value()).into_owned())
}

/// Builds a name as the kernel does (x509_fabricate_name in
/// crypto/asymmetric_keys/x509_cert_parser.c): `O: CN`, or the CN alone if it begins with the O, or
/// the one that exists.
pub(super) fn kernel_name(name: &Name) -> String {
    match (part(name, ORGANISATION), part(name, COMMON_NAME)) {
        (Some(o), Some(cn)) => {
            let begins = |n: usize| {
                cn.as_bytes().get(..n).is_some_and(|head| Some(head) == o.as_bytes().get(..n))
            };
            if begins(o.len()) || begins(SIGNIFICANT) { cn } else { format!("{o}: {cn}") }
        }
        (o, cn) => cn.or(o).or_else(|| part(name, EMAIL)).unwrap_or_default(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rstest::rstest;

    /// `openssl req -x509 -newkey rsa:2048 -nodes -subj '/O=Example/CN=Module signing'`.
    pub(crate) const PEM: &str = include_str!("testdata/signer.pem");

    pub(crate) fn certificate() -> Certificate {
        Certificate::parse(PEM.as_bytes()).expect("a certificate")
    }

    #[test]
    fn it_is_known_as_the_kernel_knows_it() {
        let certificate = certificate();
        assert_eq!(certificate.name(), "Example: Module signing");
        assert_eq!(certificate.key_id(), include_str!("testdata/signer.skid").trim());
        assert_eq!(certificate.authority_key_id().as_deref(), Some(certificate.key_id().as_str()));
        assert_eq!(certificate.fingerprint(), include_str!("testdata/signer.sha256").trim());
    }

    #[test]
    fn pem_and_der_are_the_same_certificate() {
        let der = certificate().der().to_vec();
        assert_eq!(Certificate::parse(&der), Ok(certificate()));
        let preceded = format!("Certificate:\n    Data:\n{PEM}");
        assert_eq!(Certificate::parse(preceded.as_bytes()), Ok(certificate()));
    }

    #[rstest]
    #[case::empty(b"", "not an X.509")]
    #[case::text(b"hello", "not an X.509")]
    #[case::a_key(
        b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n",
        "no CERTIFICATE"
    )]
    #[case::damaged(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "damaged")]
    fn what_is_none_is_refused(#[case] bytes: &[u8], #[case] wanted: &str) {
        let why = Certificate::parse(bytes).expect_err("refused");
        assert!(why.contains(wanted), "{why}");
    }

    #[test]
    fn every_truncation_is_refused() {
        let der = certificate().der().to_vec();
        for length in 0..der.len() {
            assert!(Certificate::parse(&der[..length]).is_err(), "{length}");
        }
    }
}
