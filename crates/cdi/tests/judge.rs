//! The verdicts on a table of specs, which the specification's own library judges too
//! (scripts/cdi-judge --table).
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use longshore_cdi::Spec;

fn specs(directory: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/specs").join(directory);
    let files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "{directory} has no specs");
    files
}

fn is_accepted(file: &Path) -> bool {
    let text = fs::read(file).unwrap();
    Spec::from_json(&text).is_ok_and(|spec| spec.check().is_ok())
}

#[test]
fn each_spec_is_judged_as_its_directory_says() {
    // The library takes a number for a name, and before 1.0 a spec without devices; runtimes have no
    // use for either.
    for (directory, accepted) in [("accepted", true), ("refused", false), ("stricter", false)] {
        for file in specs(directory) {
            assert_eq!(is_accepted(&file), accepted, "{}", file.display());
        }
    }
}
