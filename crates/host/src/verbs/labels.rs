//! SELinux labels of files: set on a tree, and compared.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};

/// Attribute that has the label (xattr(7)).
const ATTRIBUTE: &str = "security.selinux";
/// Longest label that is read: the kernel's limit of an attribute would do no good.
const LONGEST: usize = 4096;
/// Number of directories in each other: a driver's tree has some six.
const DEEPEST: usize = 32;

/// Gives `path` and everything below it the label; follows no link. Files that have it are not
/// written to: a write changes the time by which a hashed file is known.
pub(crate) fn set(path: &Path, label: &str) -> io::Result<()> {
    let labelled = |path: &Path| {
        if !is(path, label)? {
            // With its terminator, as libselinux writes it.
            let value = format!("{label}\0");
            lsetxattr(path, ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?;
        }
        Ok(true)
    };
    all(path, DEEPEST, &labelled).map(drop)
}

/// True if `path` and everything below it have the label.
pub(crate) fn has(path: &Path, label: &str) -> io::Result<bool> {
    all(path, DEEPEST, &|path| is(path, label))
}

fn is(path: &Path, label: &str) -> io::Result<bool> {
    let mut value = [0; LONGEST];
    match lgetxattr(path, ATTRIBUTE, &mut value[..]) {
        Ok(size) => {
            let value = &value[..size];
            Ok(value.strip_suffix(b"\0").unwrap_or(value) == label.as_bytes())
        }
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::RANGE) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// True if `test` is, of the path and of everything below it.
fn all(path: &Path, deep: usize, test: &dyn Fn(&Path) -> io::Result<bool>) -> io::Result<bool> {
    if !test(path)? {
        return Ok(false);
    }
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(true);
    }
    let deep = deep.checked_sub(1).ok_or(Errno::ENAMETOOLONG)?;
    for entry in fs::read_dir(path)? {
        if !all(&entry?.path(), deep, test)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const LABEL: &str = "system_u:object_r:container_ro_file_t:s0";

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/usr/lib")).unwrap();
        fs::write(dir.path().join("root/usr/lib/a.so.1"), "").unwrap();
        fs::write(dir.path().join("outside"), "").unwrap();
        symlink("a.so.1", dir.path().join("root/usr/lib/a.so")).unwrap();
        symlink("../../outside", dir.path().join("root/link")).unwrap();
        dir
    }

    #[test]
    fn a_tree_is_labelled_and_nothing_beyond_its_links() {
        let dir = tree();
        let root = dir.path().join("root");
        assert!(!has(&root, LABEL).unwrap());
        set(&root, LABEL).unwrap();
        assert!(has(&root, LABEL).unwrap());
        for path in ["root/usr/lib/a.so", "root/usr/lib/a.so.1", "root/link"] {
            assert!(is(&dir.path().join(path), LABEL).unwrap(), "{path}");
        }
        assert!(!is(&dir.path().join("outside"), LABEL).unwrap());
    }

    #[test]
    fn one_file_of_another_label_is_found_and_the_others_are_not_written_to() {
        use std::os::unix::fs::MetadataExt;
        let dir = tree();
        let (root, file) = (dir.path().join("root"), dir.path().join("root/usr/lib/a.so.1"));
        set(&root, LABEL).unwrap();
        let changed = || {
            let found = fs::metadata(&file).unwrap();
            (found.ctime(), found.ctime_nsec())
        };
        let before = changed();
        set(&root.join("usr/lib/a.so"), "a:b:c").unwrap();
        assert!(!has(&root, LABEL).unwrap());
        set(&root, LABEL).unwrap();
        assert!(has(&root, LABEL).unwrap());
        assert_eq!(changed(), before);
    }

    #[test]
    fn a_tree_without_end_and_one_that_is_not_there_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/".repeat(DEEPEST + 1));
        fs::create_dir_all(deep).unwrap();
        assert!(set(&dir.path().join("a"), LABEL).is_err());
        assert!(has(&dir.path().join("none"), LABEL).is_err());
    }
}
