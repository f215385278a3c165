//! Reads everything in the store again, and reports what does not match its digest or description.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::Serialize;

use longshore_core::digest::digest_of;
use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_modules::artifact::{BuildRecord, ModuleSet};
use longshore_modules::signature::Evidence;
use longshore_sources::runfile;
use longshore_sources::userspace::{self, Depth};

/// Maximum number of damaged files named in a failure.
const NAMED: usize = 5;

/// Numbers of entries read, and the damaged ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Number of blobs, sets, user-mode trees and drivers read.
    pub read: BTreeMap<&'static str, usize>,
    /// Damaged entries, by path.
    pub damaged: Vec<Damage>,
}

/// A damaged file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// File or directory.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

impl Health {
    /// The failure, if anything is damaged.
    pub fn failure(&self) -> Option<Failure> {
        if self.damaged.is_empty() {
            return None;
        }
        let named = |d: &Damage| format!("{} ({})", d.path.display(), d.reason);
        let names: Vec<_> = self.damaged.iter().take(NAMED).map(named).collect();
        let more = self.damaged.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let cause = format!("the store is damaged: {}{more}", names.join(", "));
        Some(Failure::new(FailureKind::Verification, cause).remedy(
            "remove the named files: they are fetched or made anew when needed (a user-mode tree \
             may be in use: leave that to `longshore gc`); if it comes back, check the disk",
        ))
    }

    fn judge(&mut self, what: &'static str, path: &Path, found: Result<(), String>) {
        *self.read.entry(what).or_default() += 1;
        let damage = |reason| Damage { path: path.to_path_buf(), reason };
        self.damaged.extend(found.err().map(damage));
    }
}

/// Reads every blob, set, user-mode tree and unpacked driver whole. Unfinished files are left out,
/// and so are logs and build roots, which have no recorded digest.
///
/// # Errors
/// Exit code 15 where the store cannot be listed.
pub fn check(store: &Store) -> Result<Health, Failure> {
    let mut health = Health::default();
    for path in list(&store.dir("blobs/sha256"))? {
        health.judge("blobs", &path, blob(&path));
    }
    for path in list(&store.dir("sets"))? {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        match extension {
            "evidence" => {
                health.judge("signatures", &path, parse::<Evidence>(&path).map(drop));
            }
            "build" => health.judge("compiles", &path, parse::<BuildRecord>(&path).map(drop)),
            _ => health.judge("sets", &path, set(&path, store)),
        }
    }
    for path in list(&store.dir("userspace"))? {
        let found = userspace::examine(&path.join("root"), Depth::Full, store.disk());
        health.judge("trees", &path, found.map_err(|failure| failure.one_line()));
    }
    for path in list(&store.dir("drivers"))? {
        health.judge("drivers", &path, driver(&path, store));
    }
    Ok(health)
}

fn blob(path: &Path) -> Result<(), String> {
    let name = name(path);
    if !is_sha256(&name) {
        return Err("its name is no digest".into());
    }
    let found = File::open(path).and_then(digest_of).map_err(|e| e.to_string())?;
    if found == name { Ok(()) } else { Err(format!("its sha256 is {found}")) }
}

fn set(path: &Path, store: &Store) -> Result<(), String> {
    let set: ModuleSet = parse(path)?;
    set.check().map_err(|e| e.to_string())?;
    if name(path) != format!("{}.json", set.key.file_stem()) {
        return Err("it belongs to another set".into());
    }
    let absent = |sha256: &str| store.open_blob(sha256).is_err();
    match set.modules.iter().find(|module| absent(&module.sha256)) {
        Some(module) => Err(format!("its module {} is absent or damaged", module.file)),
        None => Ok(()),
    }
}

fn driver(path: &Path, store: &Store) -> Result<(), String> {
    let found = runfile::find(store, &name(path)).ok_or("its description is absent or damaged")?;
    found.verify().map_err(|failure| failure.one_line())
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let bytes = fs::read(path).map_err(|e| e.to_string())?;
    serde_json::from_slice(&bytes).map_err(|e| e.to_string())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Sorted, so that two runs report the same.
fn list(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut paths =
        list().or_fail(FailureKind::Preflight, || format!("listing {}", dir.display()))?;
    // Temporary names and locks begin with a dot.
    paths.retain(|path| !name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;
    use longshore_modules::sets::SetStore;
    use longshore_modules::testing::set;
    use rstest::rstest;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let mut set = set();
        set.modules[0].sha256 = store.put(b"module").expect("put");
        store.put(b"package").expect("put");
        store.put_set(&set).expect("set");
        let tree = store.dir("userspace/tree/root");
        fs::create_dir_all(&tree).expect("directory");
        fs::write(tree.join("file"), "library").expect("file");
        let manifest = longshore_sources::testing::manifest(&tree);
        fs::write(store.dir("userspace/tree/manifest.json"), manifest).expect("manifest");
        (dir, store)
    }

    fn first_in(store: &Store, dir: &str) -> PathBuf {
        list(&store.dir(dir)).expect("listed").remove(0)
    }

    #[test]
    fn a_sound_store_is_sound() {
        let (_dir, store) = store();
        let health = check(&store).expect("read");
        assert_eq!(health.read, BTreeMap::from([("blobs", 2), ("sets", 1), ("trees", 1)]));
        assert!(health.failure().is_none(), "{health:?}");
    }

    #[rstest]
    #[case::blob("blobs/sha256", |path: &Path| fs::write(path, "other"))]
    #[case::cut_off("blobs/sha256", |path: &Path| File::options().write(true).open(path)?.set_len(3))]
    #[case::strange_blob("blobs/sha256", |path: &Path| fs::write(path.with_file_name("name"), ""))]
    #[case::set("sets", |path: &Path| fs::write(path, "{"))]
    #[case::renamed_set("sets", |path: &Path| fs::rename(path, path.with_file_name("a.json")))]
    #[case::evidence("sets", |path: &Path| fs::write(path.with_extension("evidence"), "["))]
    #[case::build_record("sets", |path: &Path| fs::write(path.with_extension("build"), "["))]
    #[case::tree("userspace", |path: &Path| fs::write(path.join("root/file"), "librarz"))]
    #[case::tree_manifest("userspace", |path: &Path| fs::remove_file(path.join("manifest.json")))]
    #[case::driver("drivers", |path: &Path| fs::create_dir(path.join("0000")))]
    fn damage_is_named(#[case] dir: &str, #[case] damage: fn(&Path) -> std::io::Result<()>) {
        let (_dir, store) = store();
        let target = if dir == "drivers" { store.dir(dir) } else { first_in(&store, dir) };
        damage(&target).expect("damaged");
        let health = check(&store).expect("read");
        assert!(!health.damaged.is_empty());
        let named = health.damaged.iter().all(|d| d.path.exists());
        assert!(named, "{health:?}");
        let failure = health.failure().expect("a failure");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.to_string().contains(&store.dir(dir).display().to_string()), "{failure}");
    }
}
