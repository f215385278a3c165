//! Manifest of a user-mode tree, written when it is assembled and compared before it is exposed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::generations;
use crate::tree_entries::{TreeEntry, compare, read_tree};
use crate::userspace::AvailableUserspace;
use longshore_core::digest::digest_of;
use longshore_core::disk::Disk;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::store::verified_files::VerifiedFiles;
use longshore_debian::packages::Package;

/// Version of the manifest's format; a tree with another is assembled again.
pub(super) const FORMAT: u32 = 1;

/// File beside a tree's root with the hashes of its files.
const HASHED: &str = "hashed.json";

/// Remedy for a damaged tree, which stays in place because it may be mounted.
const ANEW: &str = "the disk or a person changed it: run again, and it is assembled anew beside it; \
                    `longshore gc` removes this one when nothing shows it any more";

/// Contents and origin of a user-mode tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format.
    pub format: u32,
    /// Driver version, for example `535.261.03`.
    pub driver_version: String,
    /// `uname -m`.
    pub arch: String,
    /// The packages it was assembled from, by name.
    pub packages: Vec<PackageUsed>,
    /// Parts of the driver that the archives lack in this version, for example `libnvidia-nscq`.
    pub missing: Vec<String>,
    /// SONAMEs that the tools and libraries need and the tree lacks: the C library's, and others
    /// that the program running a tool must provide.
    pub needs: Vec<String>,
    /// Flavour of the kernel sources in it, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Flavour>,
    /// Every path below the root.
    pub entries: BTreeMap<PathBuf, TreeEntry>,
}

/// A package that a tree was assembled from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageUsed {
    /// Name, for example `libcuda1`.
    pub name: String,
    /// Debian version.
    pub version: String,
    /// Suite it was in, if it is from an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// sha256 (hex) of the .deb or .run file.
    pub sha256: String,
}

impl PackageUsed {
    /// Describes a package of an archive.
    pub(super) fn from_package(package: &Package) -> Self {
        Self {
            name: package.name.clone(),
            version: package.version.clone(),
            suite: Some(package.origin.text.clone()),
            sha256: package.sha256.clone(),
        }
    }
}

/// Depth of the comparison of a tree with its manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Types, permission bits, sizes and link targets: takes some milliseconds.
    Quick,
    /// Also the contents of files that may have been written since they were last hashed.
    Changed,
    /// Also all contents: reads some hundred megabytes.
    Full,
}

impl Manifest {
    /// A manifest in the current format.
    pub(crate) fn new(driver_version: &str, arch: &str) -> Self {
        Self {
            format: FORMAT,
            driver_version: driver_version.to_owned(),
            arch: arch.to_owned(),
            packages: Vec::new(),
            missing: Vec::new(),
            needs: Vec::new(),
            sources: None,
            entries: BTreeMap::new(),
        }
    }

    /// Compares the tree at `root`, on `disk`, with this manifest.
    ///
    /// # Errors
    /// As [`verify`].
    pub(super) fn verify(&self, root: &Path, depth: Depth, disk: Disk) -> Result<(), Failure> {
        let record = root.with_file_name(HASHED);
        let known = if depth == Depth::Changed {
            VerifiedFiles::read(&record)
        } else {
            VerifiedFiles::none()
        };
        let mut learnt = VerifiedFiles::none();
        let found = read_tree(root, &mut |path, metadata| match self.entries.get(path) {
            Some(TreeEntry::File { sha256, .. }) if depth == Depth::Quick => Ok(sha256.clone()),
            Some(TreeEntry::File { size, .. }) if *size == metadata.len() => {
                let sha256 = match known.digest(path, metadata) {
                    Some(sha256) => sha256.to_owned(),
                    None => digest_of(File::open(root.join(path))?)?,
                };
                learnt.learn(path, metadata, &sha256);
                Ok(sha256)
            }
            _ => Ok(String::new()),
        })
        .or_fail(FailureKind::Verification, || format!("reading {}", root.display()))?;
        compare(root, &self.entries, &found).map_err(|failure| failure.remedy(ANEW))?;
        if depth != Depth::Quick
            && learnt != known
            && let Err(e) = learnt.write(&record, disk)
        {
            tracing::debug!("{} will be hashed again: {e}", root.display());
        }
        Ok(())
    }

    /// Returns the names in `usr/bin`.
    pub(super) fn tools(&self) -> Vec<String> {
        let below = self.entries.keys().filter_map(|path| path.strip_prefix("usr/bin").ok());
        below
            .filter_map(|name| name.to_str())
            .filter(|n| !n.is_empty())
            .map(str::to_owned)
            .collect()
    }
}

/// Reads the manifest of an assembled tree.
///
/// # Errors
/// Exit code 13 where it is absent, damaged or of another format.
pub fn manifest_of(tree: &AvailableUserspace) -> Result<Manifest, Failure> {
    of_root(&tree.root)
}

pub(super) fn of_root(root: &Path) -> Result<Manifest, Failure> {
    let path = root.with_file_name("manifest.json");
    let read = || -> Result<Manifest, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::from_slice(&fs::read(&path)?)?)
    };
    let manifest = read()
        .or_fail(FailureKind::Verification, || format!("reading {}", path.display()))
        .map_err(|failure| failure.remedy(ANEW))?;
    if manifest.format != FORMAT {
        let cause = format!("{} has form {}, not {FORMAT}", path.display(), manifest.format);
        return Err(Failure::new(FailureKind::Verification, cause).remedy(ANEW));
    }
    if generations::is_condemned(root) {
        let cause = format!("the tree {} was found damaged before", root.display());
        return Err(Failure::new(FailureKind::Verification, cause).remedy(ANEW));
    }
    Ok(manifest)
}

/// Compares a tree with its manifest.
///
/// # Errors
/// Exit code 13 naming the first paths that differ, are missing or do not belong there.
pub fn verify(tree: &AvailableUserspace, depth: Depth, disk: Disk) -> Result<(), Failure> {
    verify_root(&tree.root, depth, disk)
}

/// Like [`verify`], for the directory `root` of a tree.
///
/// # Errors
/// As [`verify`].
pub fn verify_root(root: &Path, depth: Depth, disk: Disk) -> Result<(), Failure> {
    of_root(root)?.verify(root, depth, disk)
}

/// Like [`verify_root`], for a tree of the store. Damage that a quick comparison does not find is
/// recorded beside the tree, and every later comparison reports it.
///
/// # Errors
/// As [`verify`].
pub fn examine(root: &Path, depth: Depth, disk: Disk) -> Result<(), Failure> {
    let found = verify_root(root, depth, disk);
    if let Err(why) = &found
        && depth != Depth::Quick
        && verify_root(root, Depth::Quick, disk).is_ok()
    {
        generations::condemn(root, why, disk);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_entries::measure;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::io;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn tree() -> (tempfile::TempDir, AvailableUserspace) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("usr/lib")).expect("directories");
        fs::write(root.join("usr/lib/libcuda.so.1.2"), b"library").expect("file");
        symlink("libcuda.so.1.2", root.join("usr/lib/libcuda.so.1")).expect("link");
        let mut manifest = Manifest::new("1.2", "x86_64");
        manifest.entries = measure(&root).expect("measured");
        let text = serde_json::to_vec(&manifest).expect("json");
        fs::write(dir.path().join("manifest.json"), text).expect("manifest");
        let tree = AvailableUserspace {
            driver_version: "1.2".into(),
            arch: "x86_64".into(),
            root,
            sources: None,
            tools: Vec::new(),
        };
        (dir, tree)
    }

    #[rstest]
    #[case::quick(Depth::Quick)]
    #[case::full(Depth::Full)]
    fn an_untouched_tree_is_as_its_manifest_says(#[case] depth: Depth) {
        let (_dir, tree) = tree();
        verify(&tree, depth, Disk::default()).expect("verifies");
    }

    #[rstest]
    #[case::shorter("libcuda.so.1.2 differs", |root: &Path| fs::write(root.join("usr/lib/libcuda.so.1.2"), b"lib"))]
    #[case::gone("libcuda.so.1 is gone", |root: &Path| fs::remove_file(root.join("usr/lib/libcuda.so.1")))]
    #[case::link_elsewhere("libcuda.so.1 differs", |root: &Path| {
        fs::remove_file(root.join("usr/lib/libcuda.so.1"))?;
        symlink("/etc/passwd", root.join("usr/lib/libcuda.so.1"))
    })]
    #[case::strange("usr/lib/evil.so does not belong", |root: &Path| fs::write(root.join("usr/lib/evil.so"), b""))]
    #[case::mode("usr/lib differs", |root: &Path| fs::set_permissions(root.join("usr/lib"), fs::Permissions::from_mode(0o777)))]
    fn a_quick_look_finds(#[case] said: &str, #[case] change: fn(&Path) -> io::Result<()>) {
        let (_dir, tree) = tree();
        change(&tree.root).expect("changed");
        let failure = verify(&tree, Depth::Quick, Disk::default()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.to_string().contains(said), "{failure}");
    }

    #[test]
    fn only_a_full_look_finds_a_flipped_bit() {
        let (_dir, tree) = tree();
        fs::write(tree.root.join("usr/lib/libcuda.so.1.2"), b"librarz").expect("changed");
        verify(&tree, Depth::Quick, Disk::default()).expect("same size");
        let failure = verify(&tree, Depth::Full, Disk::default()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
    }

    /// A tree with the record of one that was unchanged for a while before it was hashed.
    fn known_tree() -> (tempfile::TempDir, AvailableUserspace) {
        let (dir, tree) = tree();
        let library = tree.root.join("usr/lib/libcuda.so.1.2");
        let metadata = fs::metadata(library).expect("metadata");
        let hashed = serde_json::json!({
            "identity": {
                "inode": metadata.ino(),
                "size": metadata.size(),
                "mtime": [metadata.mtime(), metadata.mtime_nsec()],
                "ctime": [metadata.ctime(), metadata.ctime_nsec()],
            },
            "sha256": digest_of(&b"library"[..]).expect("digest"),
        });
        let known = serde_json::json!({"format": 1, "files": {"usr/lib/libcuda.so.1.2": hashed}});
        fs::write(dir.path().join("hashed.json"), known.to_string()).expect("written");
        (dir, tree)
    }

    #[test]
    fn a_file_that_was_hashed_and_not_written_since_is_not_read_again() {
        let (dir, tree) = known_tree();
        let record = dir.path().join("hashed.json");
        // A digest of no file: it can only come from the record.
        let other = digest_of(&b"librarz"[..]).expect("digest");
        let text = fs::read_to_string(&record).expect("record");
        let own = digest_of(&b"library"[..]).expect("digest");
        fs::write(&record, text.replace(&own, &other)).expect("written");
        verify(&tree, Depth::Changed, Disk::default()).expect_err("taken from the record");
        verify(&tree, Depth::Full, Disk::default()).expect("read");
    }

    #[rstest]
    #[case::written_in_place(|file: &Path| fs::write(file, b"librarz"))]
    #[case::replaced(|file: &Path| {
        fs::write(file.with_extension("new"), b"librarz")?;
        fs::rename(file.with_extension("new"), file)
    })]
    #[case::with_its_old_time(|file: &Path| {
        let before = fs::metadata(file)?.modified()?;
        fs::write(file, b"librarz")?;
        File::options().write(true).open(file)?.set_modified(before)
    })]
    fn a_file_written_since_is_hashed_again(#[case] change: fn(&Path) -> io::Result<()>) {
        let (_dir, tree) = known_tree();
        let file = tree.root.join("usr/lib/libcuda.so.1.2");
        let inode_time = |file: &Path| fs::metadata(file).map(|m| (m.ctime(), m.ctime_nsec()));
        let before = inode_time(&file).expect("metadata");
        // The kernel's clock may not have ticked yet.
        while inode_time(&file).expect("metadata") == before {
            change(&file).expect("changed");
        }
        let failure = verify(&tree, Depth::Changed, Disk::default()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
    }

    #[rstest]
    #[case::cut_off("{\"format\":1,")]
    #[case::of_another_form("{\"format\":2,\"files\":{}}")]
    #[case::no_json("hello")]
    fn a_record_that_is_unreadable_is_as_none(#[case] text: &str) {
        let (dir, tree) = known_tree();
        fs::write(dir.path().join("hashed.json"), text).expect("written");
        verify(&tree, Depth::Changed, Disk::default()).expect("hashed");
        fs::write(tree.root.join("usr/lib/libcuda.so.1.2"), b"librarz").expect("changed");
        verify(&tree, Depth::Changed, Disk::default()).expect_err("hashed");
    }

    #[test]
    fn a_file_that_changed_just_now_is_not_known() {
        let (dir, tree) = tree();
        verify(&tree, Depth::Changed, Disk::default()).expect("hashed");
        let text = fs::read_to_string(dir.path().join("hashed.json")).unwrap_or_default();
        assert!(!text.contains("libcuda"), "{text}");
    }

    #[rstest]
    #[case::cut_off("{\"format\": 1")]
    #[case::of_another_form(
        r#"{"format":9,"driver_version":"1","arch":"x86_64","packages":[],"missing":[],"needs":[],"entries":{}}"#
    )]
    fn a_manifest_is_refused_when(#[case] text: &str) {
        let (dir, tree) = tree();
        fs::write(dir.path().join("manifest.json"), text).expect("written");
        let failure = verify(&tree, Depth::Quick, Disk::default()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.remedy_text().is_some());
    }
}
