//! Changes to files below a directory: collected in memory, and written only once all of them fit.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use super::{FileDiff, split};
use longshore_core::durable::write_failure;
use longshore_core::failure::Failure;
use longshore_core::root::{open_regular, read_up_to};

/// Maximum size of a changed file; the largest source of today's drivers has 1 MiB.
const MOST_FILE: usize = 8 << 20;
/// Maximum size of all changed files; Debian's longest series changes 2 MiB.
const MOST_FILES: usize = 64 << 20;
/// Maximum number of comparisons of two lines: a hunk's lines times the file's. Debian's longest series needs some
/// millions.
const MOST_COMPARED: usize = 1 << 30;

/// Changes to files below a directory.
pub struct Edits<'a> {
    root: &'a Path,
    changed: BTreeMap<String, Changed>,
    compared: usize,
}

/// New content of a file.
struct Changed {
    bytes: Vec<u8>,
    /// True if the file did not exist before.
    made: bool,
}

/// A change that does not fit the files.
#[derive(Debug, derive_more::Display)]
#[display("{path}: {why}")]
pub struct Unfit {
    path: String,
    why: String,
}

impl<'a> Edits<'a> {
    /// Begins changes of files below `root`.
    pub fn new(root: &'a Path) -> Self {
        Self { root, changed: BTreeMap::new(), compared: 0 }
    }

    /// Adds the changes of one diff to one file, after those that were added before.
    ///
    /// # Errors
    /// The file is absent or there already, is a link or too large, or a hunk does not fit.
    pub fn add(&mut self, file: &FileDiff) -> Result<(), Unfit> {
        let unfit = |why: String| Unfit { path: file.path.clone(), why };
        let changed = if file.makes {
            self.check_absent(&file.path).map_err(|e| unfit(e.to_string()))?;
            Changed { bytes: file.apply(b"").map_err(|e| unfit(e.to_string()))?, made: true }
        } else {
            let before = self.before(&file.path).map_err(|e| unfit(e.to_string()))?;
            self.count(file, &before.bytes).map_err(unfit)?;
            let bytes = file.apply(&before.bytes).map_err(|e| unfit(e.to_string()))?;
            Changed { bytes, made: before.made }
        };
        self.changed.insert(file.path.clone(), changed);
        let held: usize = self.changed.values().map(|changed| changed.bytes.len()).sum();
        if held > MOST_FILES {
            return Err(unfit(format!(
                "the changed files have more than {} MiB",
                MOST_FILES >> 20
            )));
        }
        Ok(())
    }

    /// Writes all changes.
    ///
    /// # Errors
    /// Exit code 15 where a file cannot be written.
    pub fn write(self) -> Result<(), Failure> {
        for (path, changed) in &self.changed {
            let path = self.root.join(path);
            let written = match changed.made {
                true => make(&path, &changed.bytes),
                false => replace(&path, &changed.bytes),
            };
            written.map_err(|e| write_failure(&path, e))?;
        }
        Ok(())
    }

    /// Returns a file's content with the changes so far.
    fn before(&mut self, path: &str) -> io::Result<Changed> {
        if let Some(changed) = self.changed.remove(path) {
            return Ok(changed);
        }
        check_links(self.root, path)?;
        let file = open_regular(&self.root.join(path), OFlag::O_NOFOLLOW)?;
        let large = || io::Error::other(format!("larger than {} MiB", MOST_FILE >> 20));
        let bytes = read_up_to(file, MOST_FILE as u64)?.ok_or_else(large)?;
        Ok(Changed { bytes, made: false })
    }

    fn check_absent(&self, path: &str) -> io::Result<()> {
        let there = || Err(io::Error::other("the file is there already"));
        if self.changed.contains_key(path) {
            return there();
        }
        match check_links(self.root, path) {
            Ok(()) => there(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Bounds the comparisons of lines, so that no diff keeps a build busy for ever.
    fn count(&mut self, file: &FileDiff, content: &[u8]) -> Result<(), String> {
        let wanted: usize = file.hunks.iter().map(|hunk| hunk.old.len()).sum();
        self.compared = self.compared.saturating_add(wanted.saturating_mul(split(content).len()));
        match self.compared > MOST_COMPARED {
            true => Err("too many lines to be searched for the hunks".to_owned()),
            false => Ok(()),
        }
    }
}

/// Refuses a path with a link in it; a missing part is an error of its own.
pub(crate) fn check_links(root: &Path, path: impl AsRef<Path>) -> io::Result<()> {
    let mut whole = root.to_path_buf();
    for part in path.as_ref() {
        whole.push(part);
        if fs::symlink_metadata(&whole)?.is_symlink() {
            let link = whole.strip_prefix(root).unwrap_or(&whole);
            return Err(io::Error::other(format!("{} is a link", link.display())));
        }
    }
    Ok(())
}

/// Replaces a file and keeps its mode and times: conftest.sh is executed, and its time is the
/// build's.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    let mut file = beside(path, bytes, meta.permissions())?;
    File::set_modified(file.as_file_mut(), meta.modified()?)?;
    file.persist(path)?;
    Ok(())
}

fn make(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    let file = beside(path, bytes, Permissions::from_mode(0o644))?;
    file.persist_noclobber(path)?;
    Ok(())
}

/// Writes a temporary file in the directory of `path`.
fn beside(
    path: &Path,
    bytes: &[u8],
    permissions: Permissions,
) -> io::Result<tempfile::NamedTempFile> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(parent)?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::diff::Diff;
    use rstest::rstest;

    const MADE: &str = "--- /dev/null\n+++ b/new/n.h\n@@ -0,0 +1,2 @@\n+one\n+two\n";
    const CHANGED: &str = "--- a/new/n.h\n+++ b/new/n.h\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";

    fn edit(root: &Path, diffs: &[&str]) -> Result<(), String> {
        let mut edits = Edits::new(root);
        for diff in diffs {
            for file in Diff::parse(diff.as_bytes()).expect("parses").files {
                edits.add(&file).map_err(|unfit| unfit.to_string())?;
            }
        }
        edits.write().map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_file_that_one_diff_makes_is_changed_by_the_next() {
        let root = tempfile::tempdir().expect("temporary directory");
        edit(root.path(), &[MADE, CHANGED]).expect("fits");
        let path = root.path().join("new/n.h");
        assert_eq!(fs::read_to_string(&path).expect("read"), "one\n2\n");
        let mode = fs::metadata(&path).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[rstest]
    #[case::there_already(&[MADE], "n.h: the file is there already")]
    #[case::made_twice(&[OTHER, OTHER], "o.h: the file is there already")]
    #[case::a_link_on_the_way(&["--- a/link/n.h\n+++ b/link/n.h\n@@ -1 +1 @@\n-x\n+y\n"], "link is a link")]
    #[case::made_behind_a_link(&["--- /dev/null\n+++ b/link/m.h\n@@ -0,0 +1 @@\n+y\n"], "link is a link")]
    #[case::made_in_place_of_a_link(&["--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+y\n"], "link is a link")]
    #[case::a_directory(&["--- a/new\n+++ b/new\n@@ -1 +1 @@\n-x\n+y\n"], "no regular file")]
    #[case::absent(&["--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-x\n+y\n"], "a.c: No such file")]
    fn a_change_that_does_not_fit_the_files_is_named(#[case] diffs: &[&str], #[case] said: &str) {
        let root = tempfile::tempdir().expect("temporary directory");
        let outside = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(root.path().join("new")).expect("directory");
        fs::write(root.path().join("new/n.h"), "one\ntwo\n").expect("write");
        fs::write(outside.path().join("n.h"), "x\n").expect("write");
        symlink(outside.path(), root.path().join("link")).expect("link");
        let unfit = edit(root.path(), diffs).expect_err("refused");
        assert!(unfit.contains(said), "{unfit}");
        assert_eq!(fs::read_dir(outside.path()).expect("list").count(), 1);
        assert_eq!(fs::read_to_string(outside.path().join("n.h")).expect("read"), "x\n");
    }

    const OTHER: &str = "--- /dev/null\n+++ b/o.h\n@@ -0,0 +1 @@\n+y\n";

    #[test]
    fn sizes_and_the_search_are_bounded() {
        let root = tempfile::tempdir().expect("temporary directory");
        let (many, old) = ("\n".repeat(1 << 20), "-\n".repeat(2000));
        fs::write(root.path().join("many.c"), many).expect("write");
        let file = File::create(root.path().join("large.c")).expect("create");
        file.set_len(MOST_FILE as u64 + 1).expect("grow");
        let change = |path: &str, count: usize, old: &str| {
            format!("--- a/{path}\n+++ b/{path}\n@@ -1,{count} +0,0 @@\n{old}")
        };
        let searched = edit(root.path(), &[&change("many.c", 2000, &old)]).expect_err("too long");
        assert!(searched.contains("too many lines"), "{searched}");
        let large = edit(root.path(), &[&change("large.c", 1, "-\n")]).expect_err("too large");
        assert!(large.contains("larger than 8 MiB"), "{large}");
    }
}
