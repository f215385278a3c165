//! Fields that predicates have to have: without them a statement states nothing that its type promises.
//!
//! Sources: slsa.dev/spec/v1.0/provenance (the fields marked as required), SPDX 2.3 (the document's mandatory fields of
//! chapters 6 and 6.8 to 6.9), in-toto's attestation/spec/predicates/test-result.md.

use jiff::Timestamp;
use serde_json::Value;

use super::foreign::shortened;

/// Checks provenance by SLSA 1.
///
/// # Errors
/// A text that names the first field at fault.
pub(super) fn check_provenance(predicate: &Value) -> Result<(), String> {
    let of = "SLSA's provenance";
    text(predicate, "/buildDefinition/buildType", of)?;
    object(predicate, "/buildDefinition/externalParameters", of)?;
    text(predicate, "/runDetails/builder/id", of).map(drop)
}

/// Returns the builder that provenance names.
pub(super) fn builder_of(predicate: &Value) -> Option<&str> {
    predicate.pointer("/runDetails/builder/id")?.as_str()
}

/// Returns the end of the compile that provenance gives.
pub(super) fn time_of_provenance(predicate: &Value) -> Option<Timestamp> {
    time(predicate.pointer("/runDetails/metadata/finishedOn")?)
}

/// Returns the time at which a bill of materials was made.
pub(super) fn time_of_spdx(predicate: &Value) -> Option<Timestamp> {
    time(predicate.pointer("/creationInfo/created")?)
}

/// Returns the time of a test result: `finishedOn`, or the oldest of the kernel matrix' runs, which the annotation
/// `run` of each part of the configuration begins with. The type itself has no field for it.
pub(super) fn time_of_test_result(predicate: &Value) -> Option<Timestamp> {
    if let Some(stated) = predicate.get("finishedOn") {
        return time(stated);
    }
    let of_run = |part: &Value| {
        let run = part.pointer("/annotations/run")?.as_str()?;
        run.split('-').next()?.parse().ok()
    };
    let runs = predicate.get("configuration")?.as_array()?.iter().map(of_run);
    runs.collect::<Option<Vec<Timestamp>>>()?.into_iter().min()
}

fn time(stated: &Value) -> Option<Timestamp> {
    stated.as_str()?.parse().ok()
}

/// Checks a bill of materials by SPDX 2.
///
/// # Errors
/// As [`check_provenance`].
pub(super) fn check_spdx(predicate: &Value) -> Result<(), String> {
    let of = "a document of SPDX 2";
    let version = text(predicate, "/spdxVersion", of)?;
    if !version.starts_with("SPDX-2.") {
        return Err(format!("its spdxVersion is {:?}, not SPDX-2", shortened(version)));
    }
    let id = text(predicate, "/SPDXID", of)?;
    if id != "SPDXRef-DOCUMENT" {
        return Err(format!("its SPDXID is {:?}, not that of a document", shortened(id)));
    }
    for field in ["/name", "/dataLicense", "/documentNamespace", "/creationInfo/created"] {
        text(predicate, field, of)?;
    }
    list(predicate, "/creationInfo/creators", of)
}

/// Checks a result of tests: they passed.
///
/// # Errors
/// As [`check_provenance`].
pub(super) fn check_test_result(predicate: &Value) -> Result<(), String> {
    let of = "a result of tests";
    let result = text(predicate, "/result", of)?;
    if result != "PASSED" {
        return Err(format!("its result is {:?}, not \"PASSED\"", shortened(result)));
    }
    list(predicate, "/configuration", of)
}

fn text<'p>(predicate: &'p Value, field: &str, of: &str) -> Result<&'p str, String> {
    let found = predicate.pointer(field).and_then(Value::as_str);
    found.filter(|text| !text.is_empty()).ok_or_else(|| lacks(field, "a text", of))
}

fn object(predicate: &Value, field: &str, of: &str) -> Result<(), String> {
    let found = predicate.pointer(field).filter(|value| value.is_object());
    found.map(drop).ok_or_else(|| lacks(field, "an object", of))
}

fn list(predicate: &Value, field: &str, of: &str) -> Result<(), String> {
    let found = predicate.pointer(field).filter(|value| value.is_array());
    found.map(drop).ok_or_else(|| lacks(field, "a list", of))
}

fn lacks(field: &str, what: &str, of: &str) -> String {
    let field = field.trim_start_matches('/').replace('/', ".");
    format!("its predicate lacks {field} ({what}), which {of} has")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::statement::PredicateType;
    use crate::testing::predicate as good;
    use rstest::rstest;
    use serde_json::json;

    fn check(name: &str, predicate: &Value) -> Result<(), String> {
        name.parse::<PredicateType>().expect("a type").check(predicate)
    }

    #[rstest]
    #[case("provenance", &["/buildDefinition", "/buildDefinition/buildType",
        "/buildDefinition/externalParameters", "/runDetails", "/runDetails/builder",
        "/runDetails/builder/id"])]
    #[case("spdx", &["/spdxVersion", "/SPDXID", "/name", "/dataLicense", "/documentNamespace",
        "/creationInfo", "/creationInfo/created", "/creationInfo/creators"])]
    #[case("test-result", &["/result", "/configuration"])]
    fn each_required_field_is_missed(#[case] name: &str, #[case] fields: &[&str]) {
        assert_eq!(check(name, &good(name)), Ok(()));
        for field in fields {
            let (above, own) = field.rsplit_once('/').expect("a field");
            for replaced in [None, Some(Value::Null), Some(7.into()), Some("".into())] {
                let mut predicate = good(name);
                let place = predicate.pointer_mut(above).and_then(Value::as_object_mut);
                let place = place.expect("an object");
                match &replaced {
                    Some(value) => drop(place.insert(own.to_owned(), value.clone())),
                    None => drop(place.remove(own)),
                }
                let why = check(name, &predicate).expect_err(field);
                assert!(why.contains("its predicate lacks"), "{why}");
            }
        }
    }

    #[rstest]
    #[case::provenance("provenance", json!({"runDetails": {"metadata": {"finishedOn": "2026-11-20T14:04:11Z"}}}), Some(1_795_183_451))]
    #[case::begun("provenance", json!({"runDetails": {"metadata": {"startedOn": "2026-11-20T14:04:11Z"}}}), None)]
    #[case::spdx("spdx", good("spdx"), Some(1_795_183_451))]
    #[case::no_time("spdx", json!({"creationInfo": {"created": "yesterday"}}), None)]
    #[case::number("spdx", json!({"creationInfo": {"created": 1}}), None)]
    #[case::stated("test-result", json!({"finishedOn": "2026-11-20T15:04:11+01:00"}), Some(1_795_183_451))]
    #[case::oldest_run("test-result", runs(&["20261123T010000Z-a", "20261120T140411Z-b"]), Some(1_795_183_451))]
    #[case::a_part_without_a_run("test-result", json!({"configuration": [{"annotations": {"run": "20261120T140411Z-b"}}, {}]}), None)]
    #[case::no_run("test-result", runs(&[]), None)]
    #[case::no_time_of_run("test-result", runs(&["nightly"]), None)]
    fn times(#[case] name: &str, #[case] predicate: Value, #[case] seconds: Option<i64>) {
        let found = match name {
            "provenance" => time_of_provenance(&predicate),
            "spdx" => time_of_spdx(&predicate),
            _ => time_of_test_result(&predicate),
        };
        assert_eq!(found.map(Timestamp::as_second), seconds);
    }

    fn runs(names: &[&str]) -> Value {
        let parts = names.iter().map(|run| json!({"name": "a", "annotations": {"run": run}}));
        json!({"configuration": parts.collect::<Vec<_>>()})
    }

    #[rstest]
    fn an_empty_or_foreign_predicate_is_refused(
        #[values("provenance", "spdx", "test-result", "https://example.com/type")] name: &str,
    ) {
        for predicate in [serde_json::json!({}), Value::Null, "PASSED".into(), 1.into()] {
            assert!(check(name, &predicate).is_err(), "{name}: {predicate}");
        }
        for other in ["provenance", "spdx", "test-result"] {
            let counts = other == name || name.starts_with("https");
            assert_eq!(check(name, &good(other)).is_ok(), counts, "{other} as {name}");
        }
    }
}
