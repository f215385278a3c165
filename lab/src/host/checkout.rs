//! The checkout of longshore that the working directory is in: its files, and its commit for the results of runs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::error::Error;
use crate::host::process;

/// Ending of a commit's name where files of the checkout were changed since.
const CHANGED: &str = "+changes";
/// Number of digits of a commit: of SHA-1, and of SHA-256.
const DIGITS: [usize; 2] = [40, 64];

/// File that a checkout has.
const MARK: &str = "lab/matrix.toml";

/// Returns the directory of the checkout that the working directory is in; None outside of one.
pub fn root() -> Option<PathBuf> {
    root_of(&env::current_dir().ok()?)
}

fn root_of(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find(|dir| dir.join(MARK).is_file()).map(Path::to_path_buf)
}

/// Returns the path of a file of the checkout.
///
/// # Errors
/// The working directory is in no checkout. The message ends with `remedy`, for example the option that names the file.
pub fn file(path: &str, remedy: &str) -> Result<PathBuf, Error> {
    let outside = || {
        let what = "the working directory is in no checkout of longshore, which has";
        Error::Matrix(format!("{what} {path}: {remedy}"))
    };
    Ok(root().ok_or_else(outside)?.join(path))
}

/// Returns the path of a file of the checkout that no option names.
///
/// # Errors
/// The working directory is in no checkout.
pub fn own_file(path: &str) -> Result<PathBuf, Error> {
    file(path, "run kernel-matrix in a checkout")
}

/// Returns the commit of the checkout in `root`, with `+changes` where tracked files differ from it; None where git
/// does not tell it.
pub fn commit(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    // Of this checkout, also where a hook of another one runs this.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    // It may be another user's, as in a container of CI's.
    git.arg("-c").arg(format!("safe.directory={}", root.display())).arg("-C").arg(root);
    git.args(["describe", "--always", "--abbrev=40", "--exclude=*"]);
    git.arg(format!("--dirty={CHANGED}"));
    let (code, said) = process::listen(git.env("GIT_OPTIONAL_LOCKS", "0"), process::LIMIT).ok()?;
    said.into_iter().find(|line| code == Some(0) && is_commit(line))
}

fn is_commit(text: &str) -> bool {
    let digits = text.strip_suffix(CHANGED).unwrap_or(text);
    DIGITS.contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn git(dir: &Path, args: &[&str]) {
        let mut git = Command::new("git");
        git.arg("-C").arg(dir).args(["-c", "user.name=n", "-c", "user.email=n@example.com"]);
        assert!(git.args(args).output().unwrap().status.success(), "{args:?}");
    }

    #[test]
    fn a_checkout_is_found_from_the_directories_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (root, inner) = (dir.path().join("c"), dir.path().join("c/lab/src"));
        fs::create_dir_all(&inner).unwrap();
        assert_eq!(root_of(&inner), None);
        fs::write(root.join(MARK), "").unwrap();
        assert_eq!(root_of(&inner), Some(root.clone()));
        assert_eq!(root_of(&root), Some(root));
        assert_eq!(root_of(dir.path()), None);
    }

    #[test]
    fn a_commit_is_named_in_full_with_a_mark_where_files_were_changed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(commit(root), None, "no checkout");
        fs::write(root.join("file"), "1").unwrap();
        git(root, &["init", "--quiet"]);
        git(root, &["add", "."]);
        git(root, &["commit", "--quiet", "--message=m"]);
        // A tag's name takes the place of no commit.
        git(root, &["tag", "--annotate", "--message=m", "v1"]);
        let clean = commit(root).unwrap();
        assert!(clean.len() == 40 && is_commit(&clean), "{clean}");
        fs::write(root.join("file"), "2").unwrap();
        assert_eq!(commit(root), Some(format!("{clean}+changes")));
        git(root, &["checkout", "--quiet", "."]);
        assert_eq!(commit(root), Some(clean));
    }
}
