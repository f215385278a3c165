//! Limits of a build root: some hundred thousand files in a few GiB. More is something else, or hostile.

use std::path::{Component, Path, PathBuf};

/// Limits of a build root.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Entries, in all layers.
    pub(super) entries: u64,
    /// Unpacked bytes of files, in all layers.
    pub(super) bytes: u64,
    /// Directories that no entry names.
    pub(super) implied: u64,
}

/// Limits of every build root. An image with gcc and the headers of three kernels has about 100 000 entries in
/// 2 GiB.
pub(super) const LIMITS: Limits = Limits { entries: 600_000, bytes: 12 << 30, implied: 20_000 };
/// Longest path, in bytes (PATH_MAX), and name.
const LONGEST: usize = 4095;
const LONGEST_NAME: usize = 255;
/// Deepest path.
pub(super) const DEEPEST: usize = 100;

/// Count of entries and bytes up to the limits.
#[derive(Debug)]
pub(super) struct Count {
    limits: Limits,
    entries: u64,
    bytes: u64,
}

impl Count {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, entries: 0, bytes: 0 }
    }

    /// Number of bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts an entry of so many bytes.
    pub(super) fn add(&mut self, bytes: u64) -> Result<(), String> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.entries > self.limits.entries {
            return Err(format!("it has more than {} entries", self.limits.entries));
        }
        if self.bytes > self.limits.bytes {
            return Err(format!("it unpacks to more than {} MiB", self.limits.bytes >> 20));
        }
        Ok(())
    }
}

/// Returns a path of an archive relative to the root, without `.`; refuses one that climbs, and a far too long one.
pub(super) fn clean(path: &Path) -> Result<PathBuf, String> {
    if path.as_os_str().len() > LONGEST {
        return Err(format!("it has a path of more than {LONGEST} bytes"));
    }
    let mut clean = PathBuf::new();
    for (depth, part) in path.components().enumerate() {
        match part {
            Component::Normal(name) if name.len() > LONGEST_NAME => {
                return Err(format!("it has a name of more than {LONGEST_NAME} bytes"));
            }
            Component::Normal(name) => clean.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(format!("its path {} climbs", path.display()));
            }
        }
        if depth > DEEPEST {
            return Err(format!("it has a path of more than {DEEPEST} directories"));
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("./usr/bin/gcc", Ok("usr/bin/gcc"))]
    #[case("/usr/bin/gcc", Ok("usr/bin/gcc"))]
    #[case("./", Ok(""))]
    #[case("../etc/passwd", Err("climbs"))]
    #[case("usr/../../etc", Err("climbs"))]
    #[case(&"a/".repeat(200), Err("directories"))]
    #[case(&"a/".repeat(3000), Err("bytes"))]
    #[case(&"n".repeat(300), Err("name"))]
    fn paths(#[case] path: &str, #[case] wanted: Result<&str, &str>) {
        match (clean(Path::new(path)), wanted) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, Path::new(wanted)),
            (Err(why), Err(said)) => assert!(why.contains(said), "{why}"),
            (found, wanted) => panic!("{found:?} instead of {wanted:?}"),
        }
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        let mut count = Count::new(Limits { entries: 2, bytes: 3 << 20, implied: 0 });
        count.add(3 << 20).expect("within");
        assert!(count.add(1).expect_err("too large").contains("3 MiB"));
        assert!(count.add(0).expect_err("too many").contains("2 entries"));
        let mut count = Count::new(LIMITS);
        count.add(1).and_then(|()| count.add(u64::MAX)).expect_err("no overflow");
    }
}
