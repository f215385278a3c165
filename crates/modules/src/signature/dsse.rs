//! Envelopes of signed statements and indexes, by DSSE 1.0 (github.com/secure-systems-lab/dsse), as cosign
//! writes them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::foreign::{place_of, shortened};
use super::key::{PublicKey, SecretKey};
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Media type of an envelope, as of cosign's layers.
pub(super) const ENVELOPE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// `payloadType` of in-toto's statements; it is signed, too.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Maximum size of an envelope. A bill of materials of a set's 70 packages has 40 kB.
pub(super) const MAX_ENVELOPE: u64 = 1 << 20;
/// Maximum number of signatures of one envelope that are verified.
const MOST_SIGNATURES: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EnvelopeSignature {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    keyid: String,
    sig: String,
}

impl Envelope {
    /// Signs a statement.
    pub(super) fn sign(statement: &[u8], key: &SecretKey) -> Self {
        Self::sign_as(PAYLOAD_TYPE, statement, key)
    }

    /// Signs a payload of this type, which is signed, too.
    pub(super) fn sign_as(payload_type: &str, payload: &[u8], key: &SecretKey) -> Self {
        let sig = key.sign(&pre_authentication_encoding(payload_type, payload));
        Self {
            payload_type: payload_type.to_owned(),
            payload: STANDARD.encode(payload),
            signatures: vec![EnvelopeSignature { keyid: String::new(), sig }],
        }
    }

    /// Parses an envelope with a statement in it.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_as(PAYLOAD_TYPE, text, MAX_ENVELOPE)
    }

    /// Parses an envelope of at most `most` bytes with a payload of this type in it.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(super) fn parse_as(payload_type: &str, text: &str, most: u64) -> Result<Self, String> {
        if text.len() as u64 > most {
            return Err(format!("its envelope has more than {most} bytes"));
        }
        let envelope: Self = serde_json::from_str(text)
            .map_err(|e| format!("its envelope cannot be read: {}", place_of(&e)))?;
        if envelope.payload_type != payload_type {
            let found = shortened(&envelope.payload_type);
            return Err(format!("its payload is of the type {found:?}, not {payload_type:?}"));
        }
        Ok(envelope)
    }

    /// Returns the statement, with its signature not verified.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(super) fn payload(&self) -> Result<Vec<u8>, String> {
        STANDARD.decode(&self.payload).map_err(|_| "its payload is not base64".to_owned())
    }

    /// Returns the statement, and those of `keys` that signed it, at least one.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(super) fn verify<'k, K: AsRef<PublicKey>>(
        &self,
        keys: &'k [K],
    ) -> Result<(Vec<u8>, Vec<&'k K>), String> {
        if self.signatures.len() > MOST_SIGNATURES {
            return Err(format!("its envelope has more than {MOST_SIGNATURES} signatures"));
        }
        let statement = self.payload()?;
        let signed = pre_authentication_encoding(&self.payload_type, &statement);
        // The key's id is a hint that nothing signs: every key is tried.
        let is_by = |key: &&K| {
            let key: &PublicKey = K::as_ref(key);
            self.signatures.iter().any(|s| key.verifies(&signed, &s.sig))
        };
        let by: Vec<&K> = keys.iter().filter(is_by).collect();
        if by.is_empty() {
            return Err("it was made with another key, or is damaged".into());
        }
        Ok((statement, by))
    }

    /// # Errors
    /// Exit code 70; strings can always be serialized.
    pub(super) fn to_json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).or_fail(FailureKind::Bug, || "writing an envelope")
    }
}

/// Returns the bytes that a signature is over: the type and the payload, each after its length.
fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut encoded =
        format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    encoded.extend_from_slice(payload);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::of_the_specification(
        "http://example.com/HelloWorld",
        b"hello world",
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )]
    #[case::nothing("", b"", b"DSSEv1 0  0 ")]
    #[case::bytes_and_not_characters("\u{e4}", b"\xff \n", b"DSSEv1 2 \xc3\xa4 3 \xff \n")]
    fn encodings(#[case] kind: &str, #[case] payload: &[u8], #[case] expected: &[u8]) {
        assert_eq!(pre_authentication_encoding(kind, payload), expected);
    }

    fn signed(key: &SecretKey) -> Value {
        serde_json::to_value(Envelope::sign(b"{}", key)).expect("JSON")
    }

    fn statement(envelope: &Value, key: &SecretKey) -> Result<Vec<u8>, String> {
        let keys = [SecretKey::generate().public(), key.public()];
        let verified = Envelope::parse(&envelope.to_string())?.verify(&keys);
        verified.map(|(statement, _)| statement)
    }

    #[test]
    fn a_signed_statement_is_read_back_and_says_who_signed_it() {
        let key = SecretKey::generate();
        assert_eq!(statement(&signed(&key), &key).as_deref(), Ok(&b"{}"[..]));
        assert!(statement(&signed(&key), &SecretKey::generate()).is_err());
    }

    #[rstest]
    #[case::another_type(|e: &mut Value| e["payloadType"] = json!("text/plain"), "of the type \"text/plain\"")]
    #[case::another_payload(|e: &mut Value| e["payload"] = json!(STANDARD.encode("{ }")), "another key")]
    #[case::no_base64(|e: &mut Value| e["payload"] = json!("{}"), "not base64")]
    #[case::payload_of_a_number(|e: &mut Value| e["payload"] = json!(1), "cannot be read")]
    #[case::no_signature(|e: &mut Value| e["signatures"] = json!([]), "another key")]
    #[case::no_signatures(|e: &mut Value| e["signatures"] = json!(null), "cannot be read")]
    #[case::a_signature_of_nothing(|e: &mut Value| e["signatures"][0]["sig"] = json!(""), "another key")]
    #[case::many(|e: &mut Value| e["signatures"] = json!(vec![json!({"sig": ""}); 17]), "more than 16")]
    #[case::no_envelope(|e: &mut Value| *e = json!([]), "cannot be read")]
    fn a_hostile_envelope_is_refused(#[case] change: fn(&mut Value), #[case] expected: &str) {
        let key = SecretKey::generate();
        let mut envelope = signed(&key);
        change(&mut envelope);
        let why = statement(&envelope, &key).expect_err("refused");
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn an_envelope_that_is_too_long_or_has_a_field_twice_is_refused() {
        let long = format!("{{\"payload\":\"{}\"", "A".repeat(MAX_ENVELOPE as usize));
        assert!(Envelope::parse(&long).expect_err("refused").contains("more than"));
        let twice = r#"{"payloadType":"a","payloadType":"application/vnd.in-toto+json","payload":"","signatures":[]}"#;
        assert!(Envelope::parse(twice).expect_err("refused").contains("line 1, column 3"));
    }

    #[rstest]
    #[case::of_a_type(json!({"payloadType": "\u{e4}".repeat(1 << 18), "payload": "", "signatures": []}), "...\", not")]
    #[case::of_no_envelope(json!({"payloadType": {"x".repeat(1 << 18): 1}}), "line 1, column ")]
    #[case::of_text(json!("\u{1b}[2J".repeat(1 << 12)), "line 1, column ")]
    fn an_error_quotes_little_of_a_hostile_envelope(#[case] envelope: Value, #[case] said: &str) {
        let why = Envelope::parse(&envelope.to_string()).expect_err("refused");
        assert!(why.contains(said) && why.chars().count() < 220, "{why}");
    }

    #[test]
    fn a_good_signature_counts_among_others() {
        let key = SecretKey::generate();
        let mut envelope = signed(&key);
        let good = envelope["signatures"][0].clone();
        envelope["signatures"] = json!([{"keyid": "other", "sig": "AAAA"}, good]);
        assert!(statement(&envelope, &key).is_ok());
    }
}
