//! A user-mode tree split into its manifest and its files for transport, and reassembled elsewhere.
//!
//! The manifest lists every path with its sha256, so the files are transported without names: a
//! trusted manifest, and files with matching digests, give the original tree.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use super::assembly::name_of;
use super::generations;
use super::manifest::{Depth, Manifest, examine, verify_root};
use crate::tree_entries::TreeEntry;
use crate::userspace::AvailableUserspace;
use longshore_core::digest::is_sha256;
use longshore_core::disk::Disk;
use longshore_core::driver_version::DriverVersion;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::machine::Machine;
use longshore_core::root::stays_inside;
use longshore_core::scratch::claim;
use longshore_core::store::Store;

/// Maximum number of paths: trees of today have less than 200.
const MOST_ENTRIES: usize = 20_000;

/// A user-mode tree split for transport.
#[derive(Debug, Clone)]
pub struct Packed {
    /// The bytes of its manifest.json.
    pub manifest: Vec<u8>,
    /// Driver version.
    pub driver_version: String,
    /// `uname -m`.
    pub arch: String,
    /// Its files, each distinct content once.
    pub files: Vec<PackedFile>,
    read: Manifest,
}

/// A distinct content in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedFile {
    /// sha256 (hex).
    pub sha256: String,
    /// Size in bytes.
    pub size: u64,
    /// The first path with this content, below the tree's root.
    pub path: PathBuf,
}

impl Packed {
    /// Splits a tree of the store.
    ///
    /// # Errors
    /// Exit code 13 where its manifest is absent or damaged.
    pub fn read(tree: &AvailableUserspace) -> Result<Self, Failure> {
        let path = tree.root.with_file_name("manifest.json");
        let bytes = fs::read(&path)
            .or_fail(FailureKind::Verification, || format!("reading {}", path.display()))?;
        Self::parse(bytes, &path.display().to_string())
    }

    /// Parses a manifest, from `place` (as messages call it), and checks that every path in it
    /// stays inside the tree.
    ///
    /// # Errors
    /// Exit code 13 where it is invalid.
    pub fn parse(manifest: Vec<u8>, place: &str) -> Result<Self, Failure> {
        let wrong = |why: String| {
            Failure::new(
                FailureKind::Verification,
                format!("{place}: the manifest of the user-mode tree cannot be used: {why}"),
            )
            .remedy("get it again, or assemble the tree anew (`longshore fetch`)")
        };
        let read: Manifest = serde_json::from_slice(&manifest).map_err(|e| wrong(e.to_string()))?;
        check(&read).map_err(wrong)?;
        let mut files = BTreeMap::new();
        for (path, entry) in &read.entries {
            if let TreeEntry::File { size, sha256, .. } = entry {
                let file = PackedFile { sha256: sha256.clone(), size: *size, path: path.clone() };
                let first = files.entry(sha256.clone()).or_insert_with(|| file);
                if first.size != *size {
                    return Err(wrong(format!("{sha256} has two sizes")));
                }
            }
        }
        let mut files: Vec<_> = files.into_values().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let (driver_version, arch) = (read.driver_version.clone(), read.arch.clone());
        Ok(Self { manifest, driver_version, arch, files, read })
    }

    /// Checks that this program supports the tree's machine.
    ///
    /// # Errors
    /// Exit code 10 where it does not.
    pub fn check_machine(&self) -> Result<(), Failure> {
        Machine::named(&self.arch).map(drop)
    }

    /// Returns the store's tree, if it is exactly this one, compared byte by byte.
    ///
    /// # Errors
    /// As [`Packed::check_machine`]; exit code 15 where the store cannot be listed.
    pub fn there(&self, store: &Store) -> Result<Option<AvailableUserspace>, Failure> {
        let found = generations::generations_of(store, &self.name()?)?;
        Ok(found
            .into_iter()
            .find(|directory| self.is(directory, store.disk()))
            .map(|found| self.tree_in(&found)))
    }

    /// Assembles the tree in the store from verified files; `file` returns the path of each by its
    /// sha256. These must be in the store's file system, and become part of the tree. A damaged
    /// tree, or another of the same packages, stays beside it, because it may be in use.
    ///
    /// # Errors
    /// Exit code 13 where a file does not match the manifest, 15 where the store cannot be written.
    pub fn unpack(
        &self,
        store: &Store,
        file: &dyn Fn(&str) -> PathBuf,
    ) -> Result<AvailableUserspace, Failure> {
        let name = self.name()?;
        let scratch = claim(store, "userspace")?;
        let root = scratch.path().join("root");
        fs::create_dir(&root).map_err(|e| write_failure(&root, e))?;
        self.fill(&root, file)?;
        let manifest = scratch.path().join("manifest.json");
        fs::write(&manifest, &self.manifest).map_err(|e| write_failure(&manifest, e))?;
        verify_root(&root, Depth::Quick, store.disk())?;
        let landed =
            generations::land(scratch, &name, store, |directory| self.is(directory, store.disk()))?;
        Ok(self.tree_in(&landed))
    }

    fn name(&self) -> Result<String, Failure> {
        let machine = Machine::named(&self.arch)?;
        Ok(name_of(&self.driver_version, machine, &self.read.packages, self.read.sources))
    }

    fn tree_in(&self, directory: &Path) -> AvailableUserspace {
        AvailableUserspace {
            driver_version: self.driver_version.clone(),
            arch: self.arch.clone(),
            root: directory.join("root"),
            sources: self.read.sources,
            tools: self.read.tools(),
        }
    }

    /// True if a directory of the store holds exactly this tree.
    fn is(&self, directory: &Path, disk: Disk) -> bool {
        let written = fs::read(directory.join("manifest.json")).ok();
        let same = written.and_then(|bytes| serde_json::from_slice::<Manifest>(&bytes).ok());
        same.is_some_and(|same| same == self.read)
            && examine(&directory.join("root"), Depth::Full, disk).is_ok()
    }

    fn paths_of(&self, content: &str) -> usize {
        let has = |entry: &&TreeEntry| matches!(entry, TreeEntry::File { sha256, .. } if sha256 == content);
        self.read.entries.values().filter(has).count()
    }

    fn fill(&self, root: &Path, file: &dyn Fn(&str) -> PathBuf) -> Result<(), Failure> {
        let mode =
            |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        // Sorted by path: a directory comes before its contents.
        for (path, entry) in &self.read.entries {
            let path = root.join(path);
            let made = match entry {
                TreeEntry::Dir { .. } => fs::create_dir(&path),
                TreeEntry::Link { target } => symlink(target, &path),
                TreeEntry::File { mode: bits, sha256, .. } => {
                    let from = file(sha256);
                    // Paths with the same content and different modes cannot share a file.
                    let put = match self.paths_of(sha256) {
                        1 => fs::hard_link(from, &path),
                        _ => fs::copy(from, &path).map(drop),
                    };
                    put.and_then(|()| mode(&path, *bits))
                }
            };
            made.map_err(|e| write_failure(&path, e))?;
        }
        // In reverse order, and last: a directory may be read-only.
        for (path, entry) in self.read.entries.iter().rev() {
            let path = root.join(path);
            if let TreeEntry::Dir { mode: bits } = entry {
                mode(&path, *bits).map_err(|e| write_failure(&path, e))?;
            }
        }
        Ok(())
    }
}

fn check(manifest: &Manifest) -> Result<(), String> {
    if manifest.format != super::manifest::FORMAT {
        return Err(format!("it has form {}, not {}", manifest.format, super::manifest::FORMAT));
    }
    if DriverVersion::parse(&manifest.driver_version).is_none() {
        return Err(format!("{:?} is not a driver version", manifest.driver_version));
    }
    if manifest.entries.len() > MOST_ENTRIES {
        return Err(format!("it names more than {MOST_ENTRIES} paths"));
    }
    for (path, entry) in &manifest.entries {
        check_path(path, manifest).map_err(|why| format!("{}: {why}", path.display()))?;
        check_entry(path, entry).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(())
}

/// Checks that a path consists of names alone, and that all its parents are directories of the
/// tree.
fn check_path(path: &Path, manifest: &Manifest) -> Result<(), String> {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    // `a//b` and `a/./b` have the same components as `a/b`, and would be duplicates of it.
    let same = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if path.as_os_str().is_empty() || !plain || !same {
        return Err("it leads outside".into());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    match above.map(|above| manifest.entries.get(above)) {
        None | Some(Some(TreeEntry::Dir { .. })) => Ok(()),
        _ => Err("its parent is not a directory".into()),
    }
}

fn check_entry(path: &Path, entry: &TreeEntry) -> Result<(), String> {
    match entry {
        TreeEntry::Dir { mode } | TreeEntry::File { mode, .. } if mode & !0o777 != 0 => {
            Err(format!("it has the mode {mode:o}"))
        }
        TreeEntry::File { sha256, .. } if !is_sha256(sha256) => {
            Err("its digest is not a sha256".into())
        }
        TreeEntry::Link { target } if !stays_inside(path, target) => {
            Err(format!("it is a link to {}, which is outside", target.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::manifest;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    /// A tree in a store, split for another store.
    fn packed() -> (tempfile::TempDir, Store, Packed) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        let root = dir.path().join("tree/root");
        fs::create_dir_all(root.join("usr/lib")).expect("directories");
        for (name, mode) in [("a.so.1", 0o644), ("b", 0o755)] {
            let path = root.join("usr/lib").join(name);
            fs::write(&path, "same content").expect("file");
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
        }
        fs::write(root.join("other"), "other").expect("file");
        symlink("a.so.1", root.join("usr/lib/a.so")).expect("link");
        symlink("../lib/b", root.join("usr/lib/c")).expect("link");
        fs::write(root.with_file_name("manifest.json"), manifest(&root)).expect("manifest");
        let (version, arch) = ("535.261.03".to_owned(), "x86_64".to_owned());
        let tree = AvailableUserspace {
            driver_version: version,
            arch,
            root,
            sources: None,
            tools: Vec::new(),
        };
        let packed = Packed::read(&tree).expect("packs");
        (dir, store, packed)
    }

    /// Stages the tree's files, each named by its digest.
    fn stage(dir: &Path, packed: &Packed) -> impl Fn(&str) -> PathBuf + use<> {
        let staged = tempfile::tempdir_in(dir).expect("temporary directory").keep();
        for file in &packed.files {
            let from = dir.join("tree/root").join(&file.path);
            fs::copy(from, staged.join(&file.sha256)).expect("copied");
        }
        move |sha256| staged.join(sha256)
    }

    #[test]
    fn what_was_taken_apart_is_put_together_again() {
        let (dir, store, packed) = packed();
        assert_eq!(packed.files.len(), 2, "each content once");
        assert_eq!(packed.there(&store).expect("looked"), None);
        let tree = packed.unpack(&store, &stage(dir.path(), &packed)).expect("unpacks");
        verify_root(&tree.root, Depth::Full, Disk::default()).expect("as it was");
        assert_eq!(packed.there(&store).expect("looked").as_ref(), Some(&tree));
        let listed = super::super::available(&store).expect("listed");
        assert_eq!(listed, std::slice::from_ref(&tree));
        let again = packed.unpack(&store, &stage(dir.path(), &packed)).expect("unpacks again");
        assert_eq!(again, tree, "there already");
        assert_eq!(fs::read_dir(store.dir("tmp")).expect("listed").count(), 0);
    }

    #[test]
    fn a_damaged_tree_stays_and_a_whole_one_is_put_beside_it() {
        let (dir, store, packed) = packed();
        let first = packed.unpack(&store, &stage(dir.path(), &packed)).expect("unpacks");
        fs::write(first.root.join("other"), "chang").expect("damaged");
        assert_eq!(packed.there(&store).expect("looked"), None);
        let second = packed.unpack(&store, &stage(dir.path(), &packed)).expect("unpacks again");
        assert_ne!(second.root, first.root);
        assert_eq!(packed.there(&store).expect("looked").as_ref(), Some(&second));
        assert_eq!(super::super::available(&store).expect("listed"), [second]);
        assert!(first.root.join("usr/lib/a.so.1").is_file(), "it is gone from under its user");
    }

    #[test]
    fn another_tree_of_the_same_packages_takes_nobodys_place() {
        let (dir, store, packed) = packed();
        let first = packed.unpack(&store, &stage(dir.path(), &packed)).expect("unpacks");
        let text = String::from_utf8(packed.manifest.clone()).expect("text");
        let manifest = text.replace(r#""usr/lib/c""#, r#""usr/lib/d""#);
        assert_ne!(manifest, text);
        let other = Packed::parse(manifest.into_bytes(), "x").expect("reads");
        assert_eq!(other.there(&store).expect("looked"), None);
        let second = other.unpack(&store, &stage(dir.path(), &packed)).expect("unpacks");
        assert_ne!(second.root, first.root);
        assert!(second.root.join("usr/lib/d").is_symlink());
        verify_root(&first.root, Depth::Full, Disk::default()).expect("as it was");
        for (packed, tree) in [(packed, first), (other, second)] {
            assert_eq!(packed.there(&store).expect("looked"), Some(tree));
        }
    }

    #[test]
    fn a_file_of_another_size_leaves_no_tree() {
        let (dir, store, packed) = packed();
        fs::write(dir.path().join("tree/root/other"), "longer than it was").expect("damaged");
        let failure = packed.unpack(&store, &stage(dir.path(), &packed)).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        for empty in ["userspace", "tmp"] {
            assert_eq!(fs::read_dir(store.dir(empty)).expect("listed").count(), 0, "{empty}");
        }
    }

    #[rstest]
    #[case::parent(r#""../x": {"type":"dir","mode":493}"#)]
    #[case::absolute(r#""/x": {"type":"dir","mode":493}"#)]
    #[case::dot(r#""./x": {"type":"dir","mode":493}"#)]
    #[case::slash(r#""x/": {"type":"dir","mode":493}"#)]
    #[case::no_parent(r#""a/b": {"type":"dir","mode":493}"#)]
    #[case::through_a_link(
        r#""a": {"type":"link","target":"b"}, "a/b": {"type":"dir","mode":493}, "b": {"type":"dir","mode":493}"#
    )]
    #[case::link_outside(r#""a": {"type":"link","target":"../b"}"#)]
    #[case::absolute_link(r#""a": {"type":"link","target":"/etc/passwd"}"#)]
    #[case::setuid(r#""a": {"type":"dir","mode":2541}"#)]
    #[case::no_digest(r#""a": {"type":"file","mode":420,"size":1,"sha256":"../../a"}"#)]
    #[case::device(r#""a": {"type":"device","mode":420}"#)]
    #[case::empty(r#""": {"type":"dir","mode":493}"#)]
    fn a_manifest_is_refused_that_has(#[case] entries: &str) {
        let text = format!(
            r#"{{"format":1,"driver_version":"535.1","arch":"x86_64","packages":[],"missing":[],"needs":[],"entries":{{{entries}}}}}"#
        );
        let failure = Packed::parse(text.into_bytes(), "x").expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
    }

    #[rstest]
    #[case::version("..", "x86_64", ExitCode::Verification)]
    #[case::version_with_parent("1/../..", "x86_64", ExitCode::Verification)]
    #[case::arch("1.2", "../x", ExitCode::HostUnsupported)]
    fn a_name_that_leads_elsewhere(
        #[case] version: &str,
        #[case] arch: &str,
        #[case] code: ExitCode,
    ) {
        let (_dir, store, _) = packed();
        let manifest = serde_json::to_vec(&Manifest::new(version, arch)).expect("json");
        let found = Packed::parse(manifest, "x").and_then(|packed| packed.there(&store));
        assert_eq!(found.expect_err("refused").code(), code);
    }
}
