//! Statements about a manifest, by in-toto's attestation framework
//! (github.com/in-toto/attestation).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::foreign::{place_of, shortened};
use super::predicate;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::value::{BadValue, Uri};

/// `_type` of a statement; cosign 2.5 writes the older one.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const OLDER_STATEMENT: &str = "https://in-toto.io/Statement/v0.1";
/// Maximum number of subjects of a statement.
const MOST_SUBJECTS: usize = 1000;

/// Predicate types that have a name of their own.
const NAMED: [(&str, &str); 3] = [
    (PredicateType::PROVENANCE, "https://slsa.dev/provenance/v1"),
    (PredicateType::SPDX, "https://spdx.dev/Document"),
    (PredicateType::TEST_RESULT, "https://in-toto.io/attestation/test-result/v0.1"),
];

/// Type of an attestation's predicate: the subject matter of a statement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct PredicateType(String);

impl PredicateType {
    /// Name of SLSA's provenance.
    pub const PROVENANCE: &'static str = "provenance";
    /// Name of SPDX' bill of materials.
    pub const SPDX: &'static str = "spdx";
    /// Name of in-toto's result of tests.
    pub const TEST_RESULT: &'static str = "test-result";

    /// Returns the type with one of these names.
    pub(crate) fn named(name: &'static str) -> Self {
        let uri = NAMED.iter().find(|(known, _)| *known == name).map_or(name, |(_, uri)| uri);
        Self(uri.to_owned())
    }

    /// Returns its URI, which statements name.
    pub fn uri(&self) -> &str {
        &self.0
    }

    fn is(&self, name: &str) -> bool {
        NAMED.iter().any(|(known, uri)| *known == name && *uri == self.0)
    }

    /// Checks that a predicate has the fields of this type, and states something that may be relied on: tests passed.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn check(&self, predicate: &serde_json::Value) -> Result<(), String> {
        match predicate.as_object() {
            None => return Err("its predicate is not a JSON object".into()),
            Some(fields) if fields.is_empty() => {
                return Err("its predicate lacks every field: it is empty".into());
            }
            Some(_) => {}
        }
        match () {
            () if self.is(Self::PROVENANCE) => predicate::check_provenance(predicate),
            () if self.is(Self::SPDX) => predicate::check_spdx(predicate),
            () if self.is(Self::TEST_RESULT) => predicate::check_test_result(predicate),
            () => Ok(()),
        }
    }
}

impl FromStr for PredicateType {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if let Some((_, uri)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(Self((*uri).to_owned()));
        }
        let uri: Result<Uri, _> = text.parse();
        uri.map(|uri| Self(uri.as_str().to_owned()))
            .map_err(|_| BadValue::new(text, "provenance, spdx, test-result or the URI of a type"))
    }
}

longshore_core::from_string!(PredicateType);

impl fmt::Display for PredicateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMED.iter().find(|(_, uri)| *uri == self.0).map(|(name, _)| *name);
        f.write_str(name.unwrap_or(&self.0))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    predicate_type: String,
    #[serde(default)]
    predicate: serde_json::Value,
}

#[derive(Debug, Serialize, Deserialize)]
struct Subject {
    #[serde(default)]
    name: String,
    digest: BTreeMap<String, String>,
}

/// Returns a statement about the manifest with the sha256 `hex`, which `name` has.
///
/// # Errors
/// Exit code 70; it can always be serialized.
pub(super) fn statement(
    name: &str,
    hex: &str,
    kind: &PredicateType,
    predicate: serde_json::Value,
) -> Result<Vec<u8>, Failure> {
    let digest = BTreeMap::from([("sha256".to_owned(), hex.to_owned())]);
    let statement = Statement {
        kind: STATEMENT.to_owned(),
        subject: vec![Subject { name: name.to_owned(), digest }],
        predicate_type: kind.uri().to_owned(),
        predicate,
    };
    serde_json::to_vec(&statement).or_fail(FailureKind::Bug, || "writing a statement")
}

/// Returns the predicate's type that a statement gives.
pub(super) fn type_of(bytes: &[u8]) -> Option<PredicateType> {
    let statement: Statement = serde_json::from_slice(bytes).ok()?;
    statement.predicate_type.parse().ok()
}

/// Returns the builder that a statement's provenance names.
pub(super) fn builder_of(bytes: &[u8]) -> Option<String> {
    let statement: Statement = serde_json::from_slice(bytes).ok()?;
    predicate::builder_of(&statement.predicate).map(str::to_owned)
}

/// Returns the time that a statement of this type gives of itself; None for a type without one.
pub(super) fn time_of(bytes: &[u8], kind: &PredicateType) -> Option<Timestamp> {
    let statement: Statement = serde_json::from_slice(bytes).ok()?;
    let predicate = &statement.predicate;
    match () {
        () if kind.is(PredicateType::PROVENANCE) => predicate::time_of_provenance(predicate),
        () if kind.is(PredicateType::SPDX) => predicate::time_of_spdx(predicate),
        () if kind.is(PredicateType::TEST_RESULT) => predicate::time_of_test_result(predicate),
        () => None,
    }
}

/// Checks that a statement of this type is about the manifest with the sha256 `hex`. The name of the
/// subject is ignored: a mirror serves the same manifest under another name.
///
/// # Errors
/// A text that describes the fault.
pub(super) fn check(bytes: &[u8], hex: &str, kind: &PredicateType) -> Result<(), String> {
    let statement: Statement = serde_json::from_slice(bytes)
        .map_err(|e| format!("its statement cannot be read: {}", place_of(&e)))?;
    if ![STATEMENT, OLDER_STATEMENT].contains(&statement.kind.as_str()) {
        return Err(format!("its statement is of the type {:?}", shortened(&statement.kind)));
    }
    if statement.predicate_type != kind.uri() {
        return Err(format!(
            "its predicate is of the type {:?}",
            shortened(&statement.predicate_type)
        ));
    }
    let subjects = &statement.subject;
    if subjects.len() > MOST_SUBJECTS {
        return Err(format!("its statement has more than {MOST_SUBJECTS} subjects"));
    }
    let is_this = |s: &Subject| s.digest.get("sha256").is_some_and(|found| found == hex);
    if !subjects.iter().any(is_this) {
        let digests = subjects.iter().filter_map(|s| s.digest.get("sha256"));
        let found: Vec<_> = digests.take(3).map(|digest| shortened(digest)).collect();
        return Err(format!("it is for {found:?}"));
    }
    kind.check(&statement.predicate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    const HEX: &str = "9494e567c7c44e8b9f8808c1658a47c9b7979ef3cceef10f48754fc2706802ba";

    #[rstest]
    #[case("provenance", Some("https://slsa.dev/provenance/v1"), "provenance")]
    #[case("https://slsa.dev/provenance/v1", Some("https://slsa.dev/provenance/v1"), "provenance")]
    #[case("spdx", Some("https://spdx.dev/Document"), "spdx")]
    #[case("test-result", Some("https://in-toto.io/attestation/test-result/v0.1"), "test-result")]
    #[case("https://example.com/a", Some("https://example.com/a"), "https://example.com/a")]
    #[case("sbom", None, "")]
    #[case("", None, "")]
    fn types(#[case] text: &str, #[case] uri: Option<&str>, #[case] shown: &str) {
        let parsed = text.parse::<PredicateType>().ok();
        assert_eq!(parsed.as_ref().map(PredicateType::uri), uri);
        assert_eq!(parsed.map_or(String::new(), |kind| kind.to_string()), shown);
    }

    fn good() -> Value {
        let kind = PredicateType::named(PredicateType::TEST_RESULT);
        let predicate = json!({"result": "PASSED", "configuration": []});
        let bytes = statement("registry.example.com/a", HEX, &kind, predicate).expect("writes");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn checked(statement: &Value) -> Result<(), String> {
        let kind = PredicateType::named(PredicateType::TEST_RESULT);
        check(statement.to_string().as_bytes(), HEX, &kind)
    }

    #[rstest]
    #[case::as_written(|_: &mut Value| ())]
    #[case::of_cosign(|s: &mut Value| s["_type"] = json!(OLDER_STATEMENT))]
    #[case::another_name(|s: &mut Value| s["subject"][0]["name"] = json!("mirror.example.com"))]
    #[case::no_name(|s: &mut Value| s["subject"][0] = json!({"digest": {"sha256": HEX}}))]
    #[case::among_others(|s: &mut Value| s["subject"] = json!([{"digest": {"gitCommit": "1"}}, s["subject"][0]]))]
    #[case::more_fields(|s: &mut Value| s["later"] = json!(1))]
    fn a_statement_counts(#[case] change: fn(&mut Value)) {
        let mut statement = good();
        change(&mut statement);
        assert_eq!(checked(&statement), Ok(()));
    }

    #[rstest]
    #[case::another_manifest(|s: &mut Value| s["subject"][0]["digest"]["sha256"] = json!("0".repeat(64)), "it is for [\"000")]
    #[case::another_algorithm(|s: &mut Value| s["subject"][0]["digest"] = json!({"sha512": HEX}), "it is for []")]
    #[case::in_capitals(|s: &mut Value| s["subject"][0]["digest"]["sha256"] = json!(HEX.to_uppercase()), "it is for")]
    #[case::no_subject(|s: &mut Value| s["subject"] = json!([]), "it is for []")]
    #[case::subject_of_text(|s: &mut Value| s["subject"] = json!(HEX), "cannot be read")]
    #[case::many_subjects(|s: &mut Value| s["subject"] = json!(vec![s["subject"][0].clone(); 1001]), "more than 1000")]
    #[case::no_statement(|s: &mut Value| s["_type"] = json!("https://example.com/a"), "of the type \"https://example.com/a\"")]
    #[case::another_predicate(|s: &mut Value| s["predicateType"] = json!("https://slsa.dev/provenance/v1"), "provenance/v1")]
    #[case::tests_that_failed(|s: &mut Value| s["predicate"]["result"] = json!("FAILED"), "\"FAILED\"")]
    #[case::tests_that_warned(|s: &mut Value| s["predicate"]["result"] = json!("WARNED"), "\"WARNED\"")]
    #[case::no_result(|s: &mut Value| s["predicate"] = json!({"configuration": []}), "lacks result")]
    #[case::empty(|s: &mut Value| s["predicate"] = json!({}), "it is empty")]
    #[case::no_predicate(|s: &mut Value| s["predicate"] = json!("PASSED"), "not a JSON object")]
    fn a_statement_is_refused(#[case] change: fn(&mut Value), #[case] expected: &str) {
        let mut statement = good();
        change(&mut statement);
        let why = checked(&statement).expect_err("refused");
        assert!(why.contains(expected), "{why}");
    }
}
