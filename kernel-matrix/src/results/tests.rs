use std::path::Path;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::results::seal::Authenticity;

#[test]
fn results_are_read_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let key = Key::read_or_make(&dir.path().join("key")).unwrap();
    let path = dir.path().join("results.json");
    let mut results = sample::results();
    results.write(&path, &key).unwrap();
    assert_eq!(Results::read(&path, Some(&key)).unwrap(), (results, Authenticity::Sealed));
}

/// Parses the sample with the value at a JSON pointer set to another one.
fn changed(pointer: &str, value: Value) -> Result<Results, String> {
    let mut json = serde_json::to_value(sample::results()).unwrap();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[field] = value;
    Results::parse(&serde_json::to_vec(&json).unwrap())
}

#[rstest]
#[case("/format", json!(1), "format 1, of `run --json`")]
#[case("/format", json!(3), "format 3 is newer than 2")]
#[case("/format", json!(null), "states no format")]
#[case("/format", json!("2"), "invalid type")]
#[case("/surprise", json!(1), "unknown field `surprise`")]
#[case("/run/surprise", json!(1), "unknown field `surprise`")]
#[case("/run/id", json!("x".repeat(3000)), "3000 bytes, 2048 are allowed")]
#[case("/run/lock", json!("abc"), "abc is no sha256")]
#[case("/run/shard", json!({"index": 7, "count": 6}), "shard 7 of 6")]
#[case("/run/ended", json!("2026-11-01T00:00:00Z"), "before its beginning")]
#[case("/run/nonce", json!(""), "no nonce")]
fn a_run_with_a_fault_is_refused_by_name(
    #[case] pointer: &str,
    #[case] value: Value,
    #[case] says: &str,
) {
    let error = changed(pointer, value).unwrap_err();
    assert!(error.contains(says), "{error}");
}

#[rstest]
#[case("/cells/0/verdict/why", json!(1), "unknown field `why`")]
#[case("/cells/0/verdict/kind", json!("passed"), "unknown variant `passed`")]
#[case("/cells/0/name", json!("bookworm-security-rt-470-proprietary"), "is there twice")]
#[case("/cells/0/name", json!("other"), "other has a result and was not planned")]
#[case("/planned/0/kernel", json!("k"), "kernel k, which is not listed")]
#[case("/planned/0/driver", json!("d"), "driver d, which is not listed")]
#[case("/cells/0/log/failing-line", json!(9), "failing line 9 of 3")]
#[case("/cells/0/log/excerpt", json!(vec!["a"; 41]), "41 lines of a log")]
fn a_cell_with_a_fault_is_refused_by_name(
    #[case] pointer: &str,
    #[case] value: Value,
    #[case] says: &str,
) {
    let error = changed(pointer, value).unwrap_err();
    assert!(error.contains(says), "{error}");
}

#[rstest]
#[case("", "cut off")]
#[case("not json", "no JSON")]
#[case("[]", "invalid length 0")]
#[case("{}", "states no format")]
fn a_file_that_has_no_results_is_refused(#[case] text: &str, #[case] says: &str) {
    let error = Results::parse(text.as_bytes()).unwrap_err();
    assert!(error.contains(says), "{error}");
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.json");
    std::fs::File::create(&path).unwrap().set_len(read::FILE_BYTES + 1).unwrap();
    let error = Results::read(&path, None).unwrap_err().to_string();
    assert!(error.contains("larger than 64 MiB"), "{error}");
}

#[test]
fn the_schema_is_that_of_the_types() {
    let schema = schemars::schema_for!(Results);
    let generated = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("results.schema.json");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written == generated, "differs from the types: run this test with WRITE_DOCS=1");
}

/// Nonce of the one published run before results named program and commit.
const UNNAMED: &str = "2a86b469bf8d3e268613404b892715f7";

#[test]
fn published_results_name_the_program_that_made_them() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("measured");
    let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> =
        entries.filter(|file| file.extension().is_some_and(|e| e == "json")).collect();
    assert!(!files.is_empty());
    for file in files {
        let Run { nonce, agent, .. } = Results::read(&file, None).unwrap().0.run;
        if nonce.as_str() == UNNAMED {
            // Nothing added them afterwards.
            assert_eq!((agent.program, agent.commit), (None, None));
        } else {
            assert_eq!(agent.check_origin(), Ok(()), "{}", file.display());
        }
    }
}

proptest! {
    #[test]
    fn results_that_are_cut_anywhere_are_refused(share in 0.0..1.0f64) {
        let whole = serde_json::to_vec_pretty(&sample::results()).unwrap();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let at = (whole.len() as f64 * share) as usize;
        let error = Results::parse(&whole[..at]).unwrap_err();
        prop_assert!(error.contains("cut off"), "{error}");
    }
}
