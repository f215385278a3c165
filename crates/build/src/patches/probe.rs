//! Probes: conditions on the C text of a file, checked before a patch is applied.

use std::io;
use std::path::Path;

use longshore_core::root::Root;
use serde::Deserialize;

/// Larger than any header or source of a driver; larger files are not read.
const MAX_FILE: u64 = 16 << 20;

/// A condition on one file. Both texts are compared by C's tokens, so that neither line breaks nor
/// comments count; `$` stands for any one name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Path below the probed directory.
    pub file: String,
    /// Text that must be in the file; a missing file fails the probe.
    pub has: Option<String>,
    /// Text that must not be in the file; a missing file passes.
    pub lacks: Option<String>,
}

impl Probe {
    /// Checks the probe in the first of `directories`, paths inside `root`, that has the file.
    ///
    /// # Errors
    /// An error where the file exists and cannot be read.
    pub fn holds(&self, root: &Root, directories: &[&Path]) -> io::Result<bool> {
        let text = read_first(root, directories, &self.file)?;
        let found = |wanted: &str| text.as_deref().is_some_and(|text| contains(text, wanted));
        Ok(self.has.as_deref().is_none_or(found) && !self.lacks.as_deref().is_some_and(found))
    }

    /// Returns the probe's error, if it is invalid.
    pub(super) fn fault(&self) -> Option<String> {
        if !longshore_sources::diff::is_plain(&self.file) {
            return Some(format!("{:?} is not a relative path of plain names", self.file));
        }
        let texts = [&self.has, &self.lacks];
        if texts.iter().filter(|text| text.is_some()).count() != 1 {
            return Some(format!("the probe of {} needs either `has` or `lacks`", self.file));
        }
        let empty = texts.into_iter().flatten().any(|text| tokens(text).is_empty());
        empty.then(|| format!("the probe of {} has no tokens", self.file))
    }
}

/// Headers may be somebody else's: links lead inside their root, and nothing but a regular file is read, to a limit.
fn read_first(root: &Root, directories: &[&Path], file: &str) -> io::Result<Option<String>> {
    for path in directories.iter().map(|dir| dir.join(file)) {
        match root.read_small_text(&path, MAX_FILE) {
            Ok(text) => return Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// True if the tokens of `wanted` follow each other somewhere in `text`.
fn contains(text: &str, wanted: &str) -> bool {
    let (text, wanted) = (tokens(text), tokens(wanted));
    let is_name = |token: &str| token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let same = |(a, b): (&&str, &&str)| a == b || (*b == "$" && is_name(a));
    text.windows(wanted.len().max(1)).any(|window| window.iter().zip(&wanted).all(same))
}

/// Splits C text: names and numbers whole, every other character by itself; no blanks, no comments.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else {
            let end = if word(first) { rest.find(|c| !word(c)) } else { Some(first.len_utf8()) };
            let end = end.unwrap_or(rest.len());
            found.push(&rest[..end]);
            end
        };
        rest = rest[length..].trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// As in include/linux/pci.h of Debian's 6.1.0-56.
    const NEW: &str = "int __must_check pci_resize_resource(struct pci_dev *dev, int i, int size,\n\
        \t\t\t\t     int exclude_bars); /* a comment */\nint pci_select_bars(void);";
    /// As in Debian's 6.1.0-50.
    const OLD: &str = "int __must_check pci_resize_resource(struct pci_dev *dev, int i, int size);";

    #[rstest]
    #[case::line_break(NEW, "int pci_select_bars(void);", true)]
    #[case::names_do_not_count(
        NEW,
        "pci_resize_resource(struct pci_dev *$, int $, int $, int $)",
        true
    )]
    #[case::fewer_arguments(
        OLD,
        "pci_resize_resource(struct pci_dev *$, int $, int $, int $)",
        false
    )]
    #[case::more_arguments(NEW, "pci_resize_resource(struct pci_dev *$, int $, int $)", false)]
    #[case::part_of_a_name(NEW, "resize_resource(", false)]
    #[case::in_a_comment(NEW, "a comment", false)]
    #[case::line_comment("int a; // int b;\nint c;", "int a; int c;", true)]
    #[case::open_comment("int a; /* int b;", "int b;", false)]
    #[case::any_is_a_name("f(1);", "f($);", false)]
    #[case::empty("", "a", false)]
    fn text_is_compared_by_tokens(#[case] text: &str, #[case] wanted: &str, #[case] found: bool) {
        assert_eq!(contains(text, wanted), found);
    }

    fn probe(file: &str, has: Option<&str>, lacks: Option<&str>) -> Probe {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Probe { file: file.to_owned(), has: owned(has), lacks: owned(lacks) }
    }

    #[rstest]
    #[case(probe("a.h", Some("int a;"), None), true)]
    #[case(probe("a.h", Some("int b;"), None), false)]
    #[case(probe("a.h", None, Some("int a;")), false)]
    #[case(probe("a.h", None, Some("int b;")), true)]
    #[case::the_second_directory_has_it(probe("b.h", Some("int b;"), None), true)]
    #[case::absent(probe("c.h", Some("int c;"), None), false)]
    #[case::absent_lacks_all(probe("c.h", None, Some("int c;")), true)]
    fn files_are_asked(#[case] probe: Probe, #[case] holds: bool) {
        let (_dir, root) = root(&[("1/a.h", "int a;"), ("2/a.h", "int b;"), ("2/b.h", "int b;")]);
        let dirs = [Path::new("/1"), Path::new("2")];
        assert_eq!(probe.holds(&root, &dirs).expect("reads"), holds);
    }

    /// A root with these files, below a directory that also has the file `outside`.
    fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let top = dir.path().join("root");
        fs::create_dir(&top).expect("directory");
        fs::write(dir.path().join("outside"), "int a;").expect("write");
        for (path, text) in files {
            let path = top.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("write");
        }
        let root = Root::open(&top).expect("opens");
        (dir, root)
    }

    #[rstest]
    #[case::absolute_link_is_inner("/usr/include/a.h", Some(true))]
    #[case::link_that_climbs_is_inner("../../../usr/include/a.h", Some(true))]
    #[case::absent_inside("../../outside", Some(false))]
    #[case::file_of_the_kernel("/proc/self/status", Some(false))]
    #[case::fifo("fifo", None)]
    #[case::large("large", None)]
    #[case::round("a.h", None)]
    fn a_hostile_root_has_no_file_of_the_outside_read(
        #[case] target: &str,
        #[case] holds: Option<bool>,
    ) {
        let (_dir, root) = root(&[("usr/include/a.h", "int a;"), ("src/large", "")]);
        let src = root.path().join("src");
        fs::File::options()
            .write(true)
            .open(src.join("large"))
            .expect("opens")
            .set_len(MAX_FILE + 1)
            .expect("grows");
        nix::unistd::mkfifo(&src.join("fifo"), nix::sys::stat::Mode::S_IRUSR).expect("fifo");
        symlink(target, src.join("a.h")).expect("link");
        let found = probe("a.h", Some("int a;"), None).holds(&root, &[Path::new("/src")]);
        assert_eq!(found.ok(), holds);
    }

    #[rstest]
    #[case(probe("a.h", Some("x"), None), None)]
    #[case(probe("../a.h", Some("x"), None), Some("not a relative path"))]
    #[case(probe("a.h", None, None), Some("either"))]
    #[case(probe("a.h", Some("x"), Some("y")), Some("either"))]
    #[case(probe("a.h", Some(" /* x */ "), None), Some("has no tokens"))]
    fn faults_are_named(#[case] probe: Probe, #[case] said: Option<&str>) {
        let fault = probe.fault();
        assert_eq!(fault.is_some(), said.is_some(), "{fault:?}");
        assert!(said.is_none_or(|said| fault.unwrap_or_default().contains(said)));
    }

    proptest! {
        #[test]
        fn any_text_has_tokens(text in "[ -~\n\u{e4}\u{4e2d}]{0,80}") {
            prop_assert!(tokens(&text).iter().all(|t| !t.is_empty() && !t.contains(' ')));
        }
    }
}
