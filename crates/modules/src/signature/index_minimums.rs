//! Lowest versions of registries' indexes, as a text: the builder of a cluster keeps it in a ConfigMap, and the agents
//! there read it as a file (`index-minimum-file`).
//!
//! A store remembers the versions that it has seen. That of a new node is empty, so that an older index would count there
//! until it expires.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::foreign::shortened;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::{bounded_read, ownership};

/// Larger than any such file: each registry has a line of some 100 bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Number of tries to read a file that is replaced meanwhile.
const TRIES: usize = 3;

const REMEDY: &str = "let each line be HOST/REPOSITORY and the lowest version of its index, as `longshore builder` writes it \
                      (in a cluster: the key index-minimum of the chart's ConfigMap), or leave out index-minimum-file";

/// Lowest versions of indexes that count, by registry (HOST/REPOSITORY).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexMinimums(BTreeMap<String, u64>);

impl IndexMinimums {
    /// Parses lines of the form `HOST/REPOSITORY VERSION`; of two of one registry the higher version counts.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut minimums = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let parsed = match words[..] {
                [] => continue,
                [registry, version] if registry.contains('/') => {
                    version.parse::<u64>().ok().map(|version| (registry, version))
                }
                _ => None,
            };
            let (registry, version) = parsed.ok_or_else(|| {
                let line = shortened(line);
                format!("line {number} is not of the form HOST/REPOSITORY VERSION: {line:?}")
            })?;
            minimums.raise(registry, version);
        }
        Ok(minimums)
    }

    /// Reads the file; one that is absent has no versions.
    ///
    /// # Errors
    /// Exit code 2 where it cannot be read, is larger than 64 KiB or of another form, or others than root may write to it.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let what = || format!("reading the lowest versions of indexes in {}", path.display());
        let text = text_of(path)
            .map_err(|error| ownership::failure(FailureKind::Usage, what(), error, REMEDY))?;
        Self::parse(&text.unwrap_or_default())
            .map_err(|why| Failure::new(FailureKind::Usage, what()).with_source(why).remedy(REMEDY))
    }

    /// Returns the lowest version of a registry's index; None where any counts.
    pub fn minimum(&self, registry: &str) -> Option<u64> {
        self.0.get(registry).copied()
    }

    /// Raises the lowest version of a registry's index; returns false where it is as high already.
    pub fn raise(&mut self, registry: &str, version: u64) -> bool {
        if self.minimum(registry).is_some_and(|there| there >= version) {
            return false;
        }
        self.0.insert(registry.to_owned(), version);
        true
    }
}

impl fmt::Display for IndexMinimums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(registry, version)| writeln!(f, "{registry} {version}"))
    }
}

/// Reads the file; None where it is absent. A kubelet replaces the files of a ConfigMap by a link to another directory,
/// and then removes the former one (pkg/volume/util/atomic_writer.go): a file that was not found in it is read again.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    let read = || ownership::file(path).and_then(|()| bounded_read::read_text(path, MOST_BYTES));
    let is_missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    for _ in 1..TRIES {
        match read() {
            Err(error) if is_missing(&error) => {
                if fs::symlink_metadata(path).is_err_and(|error| is_missing(&error)) {
                    return Ok(None);
                }
            }
            ended => return ended.map(Some),
        }
    }
    read().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const REGISTRY: &str = "registry.example.com/gpu/modules";

    #[rstest]
    #[case::empty("", None)]
    #[case::blank("\n  \n", None)]
    #[case::one("registry.example.com/gpu/modules 7", Some(7))]
    #[case::line_break_at_the_end("registry.example.com/gpu/modules 7\n", Some(7))]
    #[case::of_dos("registry.example.com/gpu/modules 7\r\n", Some(7))]
    #[case::largest("registry.example.com/gpu/modules 18446744073709551615\n", Some(u64::MAX))]
    #[case::other("registry.example.com/gpu/other 7\n", None)]
    #[case::several("a.example.com/a 9\nregistry.example.com/gpu/modules 7\n", Some(7))]
    #[case::twice(
        "registry.example.com/gpu/modules 8\nregistry.example.com/gpu/modules 7\n",
        Some(8)
    )]
    fn texts_that_are_read(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(IndexMinimums::parse(text).expect("reads").minimum(REGISTRY), expected);
    }

    #[rstest]
    #[case::garbage("garbage", "line 1 is not of the form")]
    #[case::number_alone("1795183200\n", "line 1 is not of the form")]
    #[case::no_registry("7 7\n", "line 1 is not of the form")]
    #[case::no_number("a.example.com/a 1\n\na.example.com/a one\n", "line 3 is not of the form")]
    #[case::negative("a.example.com/a -1\n", "\"a.example.com/a -1\"")]
    #[case::too_large("a.example.com/a 18446744073709551616\n", "line 1")]
    #[case::three("a.example.com/a 1 2\n", "line 1")]
    #[case::control_characters("a\u{1b}[2J\n", "\\u{1b}[2J")]
    fn texts_that_are_refused(#[case] text: &str, #[case] expected: &str) {
        let why = IndexMinimums::parse(text).expect_err("refused");
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn a_minimum_is_only_raised_and_read_as_it_was_written() {
        let mut minimums = IndexMinimums::default();
        assert_eq!(minimums.to_string(), "");
        for (given, is_raised, kept) in [(5, true, 5), (3, false, 5), (5, false, 5), (9, true, 9)] {
            assert_eq!(minimums.raise(REGISTRY, given), is_raised, "{given}");
            assert_eq!(minimums.minimum(REGISTRY), Some(kept));
        }
        minimums.raise("a.example.com/a", 1);
        let text = minimums.to_string();
        assert_eq!(text, "a.example.com/a 1\nregistry.example.com/gpu/modules 9\n");
        assert_eq!(IndexMinimums::parse(&text), Ok(minimums));
    }

    #[test]
    fn a_file_that_is_absent_has_no_minimum() {
        let dir = tempfile::tempdir().expect("a directory");
        for path in ["index-minimum", "absent/index-minimum"] {
            let read = IndexMinimums::read(&dir.path().join(path)).expect("reads");
            assert_eq!(read, IndexMinimums::default(), "{path}");
        }
    }

    #[test]
    fn a_file_is_read_by_links_as_a_kubelet_makes_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("index-minimum");
        symlink("..data/index-minimum", &path).expect("links");
        let refused = IndexMinimums::read(&path).expect_err("the link leads nowhere");
        assert_eq!(refused.code(), ExitCode::Usage);
        fs::create_dir(dir.path().join("..1")).expect("makes");
        fs::write(dir.path().join("..1/index-minimum"), format!("{REGISTRY} 7\n")).expect("writes");
        symlink("..1", dir.path().join("..data")).expect("links");
        assert_eq!(IndexMinimums::read(&path).expect("reads").minimum(REGISTRY), Some(7));
    }

    #[rstest]
    #[case::garbage(b"garbage".to_vec(), 0o644, "not of the form")]
    #[case::too_large(vec![b'\n'; MOST_BYTES as usize + 1], 0o644, "larger than 65536 bytes")]
    #[case::no_text(vec![0xff], 0o644, "no UTF-8 text")]
    #[case::of_others(b"a.example.com/a 1\n".to_vec(), 0o666, "can be written to by others")]
    fn a_file_that_is_of_no_use_is_refused_with_a_remedy(
        #[case] bytes: Vec<u8>,
        #[case] mode: u32,
        #[case] expected: &str,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("index-minimum");
        fs::write(&path, bytes).expect("writes");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("sets");
        let failure = IndexMinimums::read(&path).expect_err("refused");
        assert_eq!((failure.kind(), failure.code()), (FailureKind::Usage, ExitCode::Usage));
        let report = failure.report();
        assert!(report.contains(expected) && report.contains("index-minimum"), "{report}");
        assert!(failure.remedy_text().is_some(), "{report}");
    }
}
