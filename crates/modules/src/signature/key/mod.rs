//! Keys in cosign's format: ECDSA P-256, the secret key encrypted with a password.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Nonce, XSalsa20Poly1305};
use p256::ecdsa::signature::{Signer, Verifier};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePublicKey, LineEnding};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::ownership;

/// PEM label of cosign's secret keys since version 2; older ones used `ENCRYPTED COSIGN PRIVATE
/// KEY`.
const ENCRYPTED: &str = "ENCRYPTED SIGSTORE PRIVATE KEY";
const ENCRYPTED_OLD: &str = "ENCRYPTED COSIGN PRIVATE KEY";
/// Maximum size of a key file.
const MAX_FILE: u64 = 64 << 10;
/// Maximum cost accepted from a file: 256 MB of memory.
const MOST_N: u32 = 1 << 18;

/// A key that verifies signatures, and the file it came from.
#[derive(Debug, Clone)]
pub struct PublicKey {
    key: VerifyingKey,
    name: String,
}

impl AsRef<PublicKey> for PublicKey {
    fn as_ref(&self) -> &PublicKey {
        self
    }
}

/// Remedy of a public key that is none.
const PUBLIC_KEY: &str = "give a cosign.pub: an ECDSA P-256 key (PEM, PUBLIC KEY)";

impl PublicKey {
    /// Reads a PEM file (`cosign.pub`).
    ///
    /// # Errors
    /// Exit code 2 where it cannot be read, others than root may write to it, or it is not an ECDSA P-256 public key.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let what = || format!("reading the public key {}", path.display());
        let text = ownership::file(path).and_then(|()| bounded_read::read_text(path, MAX_FILE));
        let text =
            text.map_err(|e| ownership::failure(FailureKind::Usage, what(), e, PUBLIC_KEY))?;
        Self::from_pem(&text, &path.display().to_string()).map_err(|why| {
            Failure::new(FailureKind::Usage, what()).with_source(why).remedy(PUBLIC_KEY)
        })
    }

    /// Parses PEM; `name` is its name in messages.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(crate) fn from_pem(text: &str, name: &str) -> Result<Self, String> {
        let (label, der) = pem(text)?;
        if label != "PUBLIC KEY" {
            return Err(format!("it holds a {label}, and a PUBLIC KEY is wanted"));
        }
        let key = VerifyingKey::from_public_key_der(&der)
            .map_err(|_| "it is not an ECDSA P-256 public key".to_owned())?;
        Ok(Self { key, name: name.to_owned() })
    }

    /// Returns the file it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the sha256 (hex) of its DER form: the same for the same key in any file format.
    pub fn fingerprint(&self) -> String {
        let der = self.key.to_public_key_der().map(|der| der.as_bytes().to_vec());
        longshore_core::digest::hex(&Sha256::digest(der.unwrap_or_default()))
    }

    /// True if `signature` (base64 of DER, as in cosign's annotation) is this key's over `payload`.
    pub(crate) fn verifies(&self, payload: &[u8], signature: &str) -> bool {
        let der = STANDARD.decode(signature.trim()).ok();
        let signature = der.and_then(|der| Signature::from_der(&der).ok());
        signature.is_some_and(|signature| self.key.verify(payload, &signature).is_ok())
    }
}

/// A key that signs.
pub struct SecretKey(SigningKey);

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

impl SecretKey {
    /// Reads a `cosign.key`, or a PEM file with an unencrypted P-256 key (PKCS #8 or SEC 1).
    /// `password` is the value of COSIGN_PASSWORD.
    ///
    /// # Errors
    /// Exit code 2 where it cannot be read, is another kind of key, or the password is wrong.
    pub fn read(path: &Path, password: Option<&str>) -> Result<Self, Failure> {
        let what = || format!("reading the secret key {}", path.display());
        let text = bounded_read::read_text(path, MAX_FILE).or_fail(FailureKind::Usage, what)?;
        Self::from_pem(&text, password).map_err(|why| {
            Failure::new(FailureKind::Usage, what()).with_source(why).remedy(
                "give a cosign.key of `cosign generate-key-pair` with its password in \
                 COSIGN_PASSWORD, or an unencrypted ECDSA P-256 key (PEM)",
            )
        })
    }

    /// Parses PEM.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(crate) fn from_pem(text: &str, password: Option<&str>) -> Result<Self, String> {
        let (label, content) = pem(text)?;
        let der = match label.as_str() {
            ENCRYPTED | ENCRYPTED_OLD => {
                let password = password.ok_or("it is encrypted, and COSIGN_PASSWORD is not set")?;
                Envelope::parse(&content)?.open(password)?
            }
            "PRIVATE KEY" | "EC PRIVATE KEY" => content,
            other => return Err(format!("it holds a {other}, and a PRIVATE KEY is wanted")),
        };
        let key = p256::SecretKey::from_pkcs8_der(&der)
            .ok()
            .or_else(|| p256::SecretKey::from_sec1_der(&der).ok())
            .ok_or("it is not an ECDSA P-256 key")?;
        Ok(Self(key.into()))
    }

    /// Returns the public key in PEM.
    ///
    /// # Errors
    /// Exit code 70; a P-256 key can always be written so.
    pub fn public_pem(&self) -> Result<String, Failure> {
        let key = self.0.verifying_key();
        key.to_public_key_pem(LineEnding::LF).or_fail(FailureKind::Bug, || "writing a public key")
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        PublicKey { key: *self.0.verifying_key(), name: "the signing key".into() }
    }

    /// Signs (ECDSA over sha256, deterministic after RFC 6979): base64 of DER.
    pub fn sign(&self, payload: &[u8]) -> String {
        let signature: Signature = self.0.sign(payload);
        STANDARD.encode(signature.to_der().as_bytes())
    }
}

/// cosign's encryption of a key: the JSON of go-securesystemslib's package `encrypted`.
#[derive(Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(serde::Serialize))]
struct Envelope {
    kdf: Kdf,
    cipher: Cipher,
    ciphertext: String,
}

#[derive(Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(serde::Serialize))]
struct Kdf {
    name: String,
    params: Cost,
    salt: String,
}

#[derive(Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(serde::Serialize))]
struct Cost {
    #[serde(rename = "N")]
    n: u32,
    r: u32,
    p: u32,
}

#[derive(Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(serde::Serialize))]
struct Cipher {
    name: String,
    nonce: String,
}

impl Envelope {
    fn parse(json: &[u8]) -> Result<Self, String> {
        let envelope: Self = serde_json::from_slice(json)
            .map_err(|_| "its contents are not what cosign writes".to_owned())?;
        if envelope.kdf.name != "scrypt" || envelope.cipher.name != "nacl/secretbox" {
            return Err(format!(
                "it is encrypted with {} and {}; known are scrypt and nacl/secretbox",
                envelope.kdf.name, envelope.cipher.name
            ));
        }
        Ok(envelope)
    }

    fn open(&self, password: &str) -> Result<Vec<u8>, String> {
        let decode = |text: &str| STANDARD.decode(text).map_err(|_| "it is damaged".to_owned());
        let key = self.kdf.key(password, &decode(&self.kdf.salt)?)?;
        let nonce = decode(&self.cipher.nonce)?;
        if nonce.len() != 24 {
            return Err("its nonce has another length than 24 bytes".into());
        }
        XSalsa20Poly1305::new(&key.into())
            .decrypt(Nonce::from_slice(&nonce), &*decode(&self.ciphertext)?)
            .map_err(|_| "the password (COSIGN_PASSWORD) does not open it".to_owned())
    }
}

impl Kdf {
    fn key(&self, password: &str, salt: &[u8]) -> Result<[u8; 32], String> {
        let Cost { n, r, p } = self.params;
        if !n.is_power_of_two() || !(2..=MOST_N).contains(&n) || !(1..=8).contains(&r) || p != 1 {
            return Err(format!("its scrypt parameters (N={n} r={r} p={p}) are out of bounds"));
        }
        let log_n = u8::try_from(n.ilog2()).unwrap_or(u8::MAX);
        let params = scrypt::Params::new(log_n, r, p, 32).map_err(|e| e.to_string())?;
        let mut key = [0; 32];
        scrypt::scrypt(password.as_bytes(), salt, &params, &mut key).map_err(|e| e.to_string())?;
        Ok(key)
    }
}

/// Returns the label and content of the first PEM block.
fn pem(text: &str) -> Result<(String, Vec<u8>), String> {
    let no_pem = || "it holds no PEM block".to_owned();
    let (_, rest) = text.split_once("-----BEGIN ").ok_or_else(no_pem)?;
    let (label, rest) = rest.split_once("-----").ok_or_else(no_pem)?;
    let (body, _) = rest
        .split_once(&format!("-----END {label}-----"))
        .ok_or_else(|| "its PEM block does not end".to_owned())?;
    let body: String = body.split_whitespace().collect();
    let content = STANDARD.decode(body).map_err(|_| "its PEM block is not base64".to_owned())?;
    Ok((label.to_owned(), content))
}

#[cfg(any(test, feature = "testing"))]
mod made;
#[cfg(test)]
mod tests;
