//! Texts that are kept in files beside the tests, so that a review shows each change of them.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of all captured trees.
pub(crate) fn trees() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries =
        fs::read_dir(dir).expect("the fixtures are there").map(|entry| entry.expect("read"));
    let dirs = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        dirs.map(|entry| entry.file_name().into_string().expect("a name")).collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    names
}

/// Returns the path of a captured tree.
pub(crate) fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Asserts that a file below `src` has this text; WRITE_DOCS=1 writes it anew.
pub(crate) fn assert_kept(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, text).expect("written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{file} differs, and WRITE_DOCS=1 renews it:\n{text}");
}

/// Asserts that no line of a text is longer than 80 columns, but where one word is.
pub(crate) fn assert_narrow(text: &str) {
    for line in text.lines() {
        let is_one_word = line.split_ascii_whitespace().count() <= 1;
        assert!(line.chars().count() <= 80 || is_one_word, "{line}");
    }
}
