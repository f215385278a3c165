//! OpenPGP keyrings, and verification of signatures with their keys.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufReader, Read};

use pgp::armor::Dearmor;
use pgp::composed::{Deserializable, SignedPublicKey, SignedPublicSubKey};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Packet, PacketParser, Signature, SignatureType};
use pgp::ser::Serialize;
use pgp::types::{KeyDetails, PublicParams, Tag, Timestamp};

use super::cleartext;

/// Maximum number of seconds that a signature may be ahead of this host's clock.
const CLOCK_SKEW: u64 = 24 * 3600;
/// Minimum size in bits of an RSA or DSA key (NIST SP 800-57 part 1: 112 bits of strength).
const SHORTEST_KEY: u16 = 2048;

/// Error of a text without a good signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not in the form of a signed text.
    #[error("it is not a signed text: {0}")]
    Form(String),
    /// No readable signature.
    #[error("it has no OpenPGP signature")]
    Unsigned,
    /// Signatures, none of them acceptable, with the reason for each.
    #[error("no key of the keyring made a good signature: {}", .0.join("; "))]
    NoneGood(Vec<String>),
}

/// Certificates whose keys may sign.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    /// By fingerprint: each merged from all its copies.
    certificates: BTreeMap<String, SignedPublicKey>,
    /// Of these keys, those that may sign; all where empty.
    signers: Vec<Signer>,
}

/// A key that may sign, as apt's Signed-By names it (sources.list(5)).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signer {
    /// Fingerprint (hex) of a primary key or of a subkey.
    pub fingerprint: String,
    /// True if the subkeys of a primary key may not sign in its place (`FINGERPRINT!`).
    pub exact: bool,
}

impl Signer {
    /// True if this names `key`, a key of the certificate with this primary key.
    fn is(&self, key: &dyn KeyDetails, primary: &dyn KeyDetails) -> bool {
        let has = |key: &dyn KeyDetails| {
            self.fingerprint.eq_ignore_ascii_case(&key.fingerprint().to_string())
        };
        has(key) || (!self.exact && has(primary))
    }
}

impl Keyring {
    /// Reads a keyring: binary, or one or more armored blocks. Unreadable keys (of obsolete kinds)
    /// are left out.
    pub fn read(bytes: &[u8]) -> Self {
        let mut keyring = Self::default();
        for block in blocks(bytes, "PUBLIC KEY BLOCK") {
            let parsed = SignedPublicKey::from_bytes_many(BufReader::new(&block[..]));
            let certificates = parsed.into_iter().flatten().take(10_000).flatten();
            certificates.for_each(|certificate| keyring.add(certificate));
        }
        keyring
    }

    /// Adds another keyring's certificates. For a certificate in both, the newest self-signature,
    /// and every revocation, applies, in whichever copy it is.
    pub fn extend(&mut self, other: Self) {
        other.certificates.into_values().for_each(|certificate| self.add(certificate));
    }

    fn add(&mut self, certificate: SignedPublicKey) {
        match self.certificates.entry(certificate.primary_key.fingerprint().to_string()) {
            Entry::Occupied(mut known) => merge(known.get_mut(), certificate),
            Entry::Vacant(free) => drop(free.insert(certificate)),
        }
    }

    /// Restricts the keyring to these signers.
    pub fn only(&mut self, signers: &[Signer]) {
        self.signers = signers.to_vec();
        self.certificates.retain(|_, certificate| {
            let primary = &certificate.primary_key;
            may_sign(signers, primary, primary)
                || certificate.public_subkeys.iter().any(|s| may_sign(signers, &s.key, primary))
        });
    }

    /// True if it holds no certificate.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// Verifies a cleartext-signed message and returns the text that was signed, and nothing else.
    ///
    /// One good signature suffices: made with SHA-256 or better by a key of the keyring that may
    /// sign and is neither expired nor revoked `now` (seconds since 1970), and dated at most a day
    /// after that. RSA and DSA keys must have 2048 bits or more.
    ///
    /// # Errors
    /// The reason why no signature is accepted.
    pub fn verify_cleartext(&self, message: &[u8], now: u64) -> Result<String, SignatureError> {
        let message = std::str::from_utf8(message)
            .map_err(|_| SignatureError::Form("it is not UTF-8".to_owned()))?;
        let cleartext =
            cleartext::unframe(message).map_err(|e| SignatureError::Form(e.to_owned()))?;
        self.verify(&cleartext.signed_bytes(), cleartext.signatures.as_bytes(), now)?;
        Ok(cleartext.text)
    }

    /// Verifies `data` against detached signatures (armored or binary), by the rules of
    /// [`Keyring::verify_cleartext`].
    ///
    /// # Errors
    /// The reason why no signature is accepted.
    pub fn verify(&self, data: &[u8], signatures: &[u8], now: u64) -> Result<(), SignatureError> {
        let signatures = read_signatures(signatures);
        if signatures.is_empty() {
            return Err(SignatureError::Unsigned);
        }
        let mut reasons = Vec::new();
        for signature in &signatures {
            match self.check(signature, data, now) {
                Ok(()) => return Ok(()),
                Err(reason) if reasons.contains(&reason) => {}
                Err(reason) => reasons.push(reason),
            }
        }
        Err(SignatureError::NoneGood(reasons))
    }

    fn check(&self, signature: &Signature, data: &[u8], now: u64) -> Result<(), String> {
        let issuer = issuer(signature);
        if !matches!(signature.typ(), Some(SignatureType::Binary | SignatureType::Text)) {
            return Err(format!("{issuer} signed something other than a document"));
        }
        match signature.hash_alg() {
            Some(hash) if is_strong(hash) => {}
            hash => {
                let hash = hash.map(|hash| hash.to_string()).unwrap_or_default();
                return Err(format!("the signature of {issuer} uses the weak hash {hash}"));
            }
        }
        match signature.created().map(|made| u64::from(made.as_secs())) {
            None => return Err(format!("the signature of {issuer} has no creation time")),
            Some(made) if made > now.saturating_add(CLOCK_SKEW) => {
                return Err(format!(
                    "the signature of {issuer} was made {} hours in the future: is the clock right?",
                    (made - now) / 3600
                ));
            }
            Some(_) => {}
        }
        if is_past(signature.created(), signature.signature_expiration_time(), now) {
            return Err(format!("the signature of {issuer} has expired"));
        }
        let mut reason = format!("{issuer} is not in the keyring");
        for certificate in self.certificates.values() {
            match check_certificate(certificate, &self.signers, signature, data, now) {
                KeyCheck::Good => return Ok(()),
                KeyCheck::Bad(why) => reason = format!("{issuer}: {why}"),
                KeyCheck::NotHere => {}
            }
        }
        Err(reason)
    }
}

enum KeyCheck {
    Good,
    Bad(&'static str),
    NotHere,
}

/// Checks that a key of this certificate made the signature, and was allowed to.
fn check_certificate(
    certificate: &SignedPublicKey,
    signers: &[Signer],
    signature: &Signature,
    data: &[u8],
    now: u64,
) -> KeyCheck {
    let by_primary = made_by(signature, &certificate.primary_key);
    let subkey = certificate.public_subkeys.iter().find(|subkey| made_by(signature, &subkey.key));
    if !by_primary && subkey.is_none() {
        return KeyCheck::NotHere;
    }
    let primary = &certificate.primary_key;
    let (verified, named) = match subkey {
        Some(subkey) if !by_primary => {
            (signature.verify(&subkey.key, data), may_sign(signers, &subkey.key, primary))
        }
        _ => (signature.verify(primary, data), may_sign(signers, primary, primary)),
    };
    if verified.is_err() {
        return KeyCheck::Bad("the signature does not match the text");
    }
    if !named {
        return KeyCheck::Bad("the source names other keys that may sign it");
    }
    let refused = primary_refusal(certificate, by_primary, now).or_else(|| {
        subkey.filter(|_| !by_primary).and_then(|s| subkey_refusal(certificate, s, now))
    });
    refused.map_or(KeyCheck::Good, KeyCheck::Bad)
}

fn may_sign(signers: &[Signer], key: &dyn KeyDetails, primary: &dyn KeyDetails) -> bool {
    signers.is_empty() || signers.iter().any(|signer| signer.is(key, primary))
}

/// Returns the reason why the primary key, or with it the whole certificate, is not accepted.
fn primary_refusal(certificate: &SignedPublicKey, signs: bool, now: u64) -> Option<&'static str> {
    let key = &certificate.primary_key;
    let details = &certificate.details;
    if is_weak(key) {
        return Some("the key is too short");
    }
    if details.revocation_signatures.iter().any(|revocation| revocation.verify_key(key).is_ok()) {
        return Some("the key is revoked");
    }
    let direct = details.direct_signatures.iter().filter(|s| s.verify_key(key).is_ok());
    let certifications = details.users.iter().flat_map(|user| {
        user.signatures.iter().filter(move |s| {
            s.is_certification() && s.verify_certification(key, Tag::UserId, &user.id).is_ok()
        })
    });
    let Some(latest) = direct.chain(certifications).max_by_key(|s| s.created()) else {
        return Some("the key has no valid self-signature");
    };
    if is_past(Some(key.created_at()), latest.key_expiration_time(), now) {
        return Some("the key has expired");
    }
    // A key without any flags predates flags, and may be used for everything.
    let flags = latest.key_flags();
    let has_flags = flags.sign()
        || flags.certify()
        || flags.encrypt_comms()
        || flags.encrypt_storage()
        || flags.authentication();
    (signs && has_flags && !flags.sign()).then_some("the key is not for signing")
}

/// Returns the reason why a subkey is not accepted.
fn subkey_refusal(
    certificate: &SignedPublicKey,
    subkey: &SignedPublicSubKey,
    now: u64,
) -> Option<&'static str> {
    let primary = &certificate.primary_key;
    if is_weak(&subkey.key) {
        return Some("the subkey is too short");
    }
    let valid = |typ| {
        subkey.signatures.iter().filter(move |s| {
            s.typ() == Some(typ) && s.verify_subkey_binding(primary, &subkey.key).is_ok()
        })
    };
    if valid(SignatureType::SubkeyRevocation).next().is_some() {
        return Some("the subkey is revoked");
    }
    let Some(binding) = valid(SignatureType::SubkeyBinding).max_by_key(|s| s.created()) else {
        return Some("the subkey does not belong to its certificate");
    };
    if is_past(Some(subkey.key.created_at()), binding.key_expiration_time(), now) {
        return Some("the subkey has expired");
    }
    if !binding.key_flags().sign() {
        return Some("the subkey is not for signing");
    }
    // RFC 9580, 5.2.1.9: a signing subkey must itself state that it belongs to the primary key.
    let owned = binding
        .embedded_signature()
        .is_some_and(|back| back.verify_primary_key_binding(&subkey.key, primary).is_ok());
    (!owned).then_some("the subkey has no signature that binds it to its certificate")
}

/// True if the signature names this key, or names none.
fn made_by(signature: &Signature, key: &impl KeyDetails) -> bool {
    let (ids, fingerprints) = (signature.issuer_key_id(), signature.issuer_fingerprint());
    (ids.is_empty() && fingerprints.is_empty())
        || ids.iter().any(|id| **id == key.legacy_key_id())
        || fingerprints.iter().any(|fingerprint| **fingerprint == key.fingerprint())
}

fn issuer(signature: &Signature) -> String {
    if let Some(fingerprint) = signature.issuer_fingerprint().first() {
        return format!("key {fingerprint}");
    }
    match signature.issuer_key_id().first() {
        Some(id) => format!("key {id}"),
        None => "an unnamed key".to_owned(),
    }
}

/// True for an RSA or DSA key of less than 2048 bits: such keys can be computed from their public
/// half.
fn is_weak(key: &impl KeyDetails) -> bool {
    let parameters = key.public_params();
    if !matches!(parameters, PublicParams::RSA(_) | PublicParams::DSA(_)) {
        return false;
    }
    // The modulus comes first (RFC 9580, 5.5.5.1 and 5.5.5.2), and a number begins with its length in
    // bits (3.2).
    let bits = match parameters.to_bytes().as_deref() {
        Ok([high, low, ..]) => u16::from_be_bytes([*high, *low]),
        _ => 0,
    };
    bits < SHORTEST_KEY
}

/// Adds the parts of a certificate's copy that `known` lacks.
fn merge(known: &mut SignedPublicKey, copy: SignedPublicKey) {
    let (details, more) = (&mut known.details, copy.details);
    add_new(&mut details.revocation_signatures, more.revocation_signatures);
    add_new(&mut details.direct_signatures, more.direct_signatures);
    for user in more.users {
        match details.users.iter_mut().find(|there| there.id.id() == user.id.id()) {
            Some(there) => add_new(&mut there.signatures, user.signatures),
            None => details.users.push(user),
        }
    }
    for subkey in copy.public_subkeys {
        let fingerprint = subkey.key.fingerprint();
        let mut subkeys = known.public_subkeys.iter_mut();
        match subkeys.find(|there| there.key.fingerprint() == fingerprint) {
            Some(there) => add_new(&mut there.signatures, subkey.signatures),
            None => known.public_subkeys.push(subkey),
        }
    }
}

fn add_new(there: &mut Vec<Signature>, more: Vec<Signature>) {
    for signature in more {
        if !there.contains(&signature) {
            there.push(signature);
        }
    }
}

fn is_strong(hash: HashAlgorithm) -> bool {
    matches!(
        hash,
        HashAlgorithm::Sha256
            | HashAlgorithm::Sha384
            | HashAlgorithm::Sha512
            | HashAlgorithm::Sha3_256
            | HashAlgorithm::Sha3_512
    )
}

/// True if something made at `from` and valid for `lasts` (0 or None: for ever) has expired.
fn is_past(from: Option<Timestamp>, lasts: Option<pgp::types::Duration>, now: u64) -> bool {
    let lasts = lasts.map(std::time::Duration::from).unwrap_or_default().as_secs();
    let from = from.map_or(0, |from| u64::from(from.as_secs()));
    lasts != 0 && from.saturating_add(lasts) <= now
}

fn read_signatures(bytes: &[u8]) -> Vec<Signature> {
    let mut signatures = Vec::new();
    for block in blocks(bytes, "SIGNATURE") {
        // Packets of unknown kinds are no reason to refuse the known ones.
        let packets = PacketParser::new(BufReader::new(&block[..])).take(100).flatten();
        signatures.extend(packets.filter_map(|packet| match packet {
            Packet::Signature(signature) => Some(signature),
            _ => None,
        }));
    }
    signatures
}

/// Returns the binary content: of each armored block of `kind`, or the bytes themselves where there
/// is no armor.
fn blocks(bytes: &[u8], kind: &str) -> Vec<Vec<u8>> {
    let begin = format!("-----BEGIN PGP {kind}-----");
    let end = format!("-----END PGP {kind}-----");
    let Ok(text) = std::str::from_utf8(bytes) else { return vec![bytes.to_vec()] };
    if !text.contains(&begin) {
        return vec![bytes.to_vec()];
    }
    let armored = text.split(&begin).skip(1).filter_map(|rest| rest.split_once(&end));
    armored
        .filter_map(|(body, _)| {
            let block = format!("{begin}{body}{end}\n");
            let mut binary = Vec::new();
            Dearmor::new(block.as_bytes()).read_to_end(&mut binary).ok()?;
            Some(binary)
        })
        .collect()
}

#[cfg(test)]
mod tests;
