//! Key pairs of tests, in cosign's format. Users' keys are made by cosign or openssl.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Nonce, XSalsa20Poly1305};
use p256::ecdsa::SigningKey;
use p256::elliptic_curve::rand_core::{OsRng, RngCore};
use p256::pkcs8::EncodePrivateKey;

use longshore_core::failure::{Failure, FailureKind, OrFail};

use super::{Cipher, Cost, ENCRYPTED, Envelope, Kdf, SecretKey};

/// scrypt's cost as cosign sets it.
const N: u32 = 1 << 16;

impl SecretKey {
    /// Generates a new key.
    pub fn generate() -> Self {
        Self(SigningKey::random(&mut OsRng))
    }

    /// Returns the key in cosign's format, encrypted with a password.
    ///
    /// # Errors
    /// Exit code 70; a P-256 key can always be written so.
    pub fn to_encrypted_pem(&self, password: &str) -> Result<String, Failure> {
        let bug = || "encrypting a key";
        let secret = p256::SecretKey::from(&self.0);
        let der = secret.to_pkcs8_der().or_fail(FailureKind::Bug, bug)?;
        let sealed = Envelope::seal(der.as_bytes(), password).or_fail(FailureKind::Bug, bug)?;
        let json = serde_json::to_vec(&sealed).or_fail(FailureKind::Bug, bug)?;
        let encoded = STANDARD.encode(json).into_bytes();
        let lines: Vec<_> = encoded.chunks(64).map(String::from_utf8_lossy).collect();
        Ok(format!(
            "-----BEGIN {ENCRYPTED}-----\n{}\n-----END {ENCRYPTED}-----\n",
            lines.join("\n")
        ))
    }
}

impl Envelope {
    fn seal(plain: &[u8], password: &str) -> Result<Self, String> {
        let (mut salt, mut nonce) = ([0; 32], [0; 24]);
        OsRng.fill_bytes(&mut salt);
        OsRng.fill_bytes(&mut nonce);
        let params = Cost { n: N, r: 8, p: 1 };
        let kdf = Kdf { name: "scrypt".into(), params, salt: STANDARD.encode(salt) };
        let sealed = XSalsa20Poly1305::new(&kdf.key(password, &salt)?.into())
            .encrypt(Nonce::from_slice(&nonce), plain)
            .map_err(|e| e.to_string())?;
        let cipher = Cipher { name: "nacl/secretbox".into(), nonce: STANDARD.encode(nonce) };
        Ok(Self { kdf, cipher, ciphertext: STANDARD.encode(sealed) })
    }
}
