//! Files of the store that the kernel of the next boot needs.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use super::history::{self, Taken, tree_name};
use crate::next_kernel::{NextRelease, of_host};
use longshore_core::failure::Failure;
use longshore_core::paths::Paths;
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::sets::SetStore;
use longshore_sources::userspace;

/// Returns the sets, each with the trees of its driver, for a newer kernel that is installed on the host: those
/// of the installed driver, and the one that was made or used last. Of other drivers it may have any number.
///
/// # Errors
/// Exit code 15 where the host or the store cannot be read.
pub(super) fn taken(store: &Store, paths: &Paths) -> Result<Vec<Taken>, Failure> {
    let Some(NextRelease { release, is_running: false }) = of_host(paths)? else {
        return Ok(Vec::new());
    };
    let mut sets = store.sets()?;
    sets.retain(|set| set.key.kernel_release == release);
    let installed = history::read(store).into_iter().next().map(|now| now.driver_version);
    let last = sets.iter().max_by_key(|set| used(store, set)).map(|set| set.key.clone());
    sets.retain(|set| {
        installed.as_ref() == Some(&set.key.driver_version) || last.as_ref() == Some(&set.key)
    });
    let trees = userspace::available(store)?;
    let of_driver = |version: &str| -> BTreeSet<String> {
        let trees = trees.iter().filter(|tree| tree.driver_version == version);
        trees.filter_map(|tree| tree_name(&tree.root)).collect()
    };
    let files = |set: &ModuleSet| Taken {
        modules: set.modules.iter().map(|module| module.sha256.clone()).collect(),
        trees: of_driver(&set.key.driver_version),
    };
    Ok(sets.iter().map(files).collect())
}

/// Returns the time of a set's last use; that of one that is gone meanwhile is the earliest.
fn used(store: &Store, set: &ModuleSet) -> Option<SystemTime> {
    let path = store.dir("sets").join(format!("{}.json", set.key.file_stem()));
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upkeep::gc::{self, Needed};
    use crate::upkeep::history::Installed;
    use longshore_core::disk::Disk;
    use longshore_core::flavour::Flavour;
    use longshore_modules::testing::set;
    use longshore_sources::testing::manifest;
    use rstest::rstest;
    use std::fs::File;
    use std::time::Duration;

    const RUNNING: &str = "6.12.100+deb13-amd64";
    const NEXT: &str = "6.12.117+deb13-amd64";
    /// Driver of the trees in tests.
    const DRIVER: &str = "535.261.03";

    struct Scene {
        _dir: tempfile::TempDir,
        paths: Paths,
        store: Store,
    }

    /// A host that runs [`RUNNING`], with this kernel installed beside it, and an empty store.
    fn scene(installed: &str) -> Scene {
        let dir = tempfile::tempdir().expect("temporary directory");
        let host = dir.path().join("host");
        for (path, text) in [
            ("proc/sys/kernel/osrelease".to_owned(), RUNNING),
            (format!("lib/modules/{RUNNING}/modules.dep"), ""),
            (format!("lib/modules/{installed}/modules.dep"), ""),
        ] {
            let path = host.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        let paths = Paths { root: host.clone(), host_root: host, ..Paths::below(dir.path()) };
        Scene { _dir: dir, paths, store }
    }

    impl Scene {
        /// Puts a set for [`NEXT`] into the store, used so many hours ago.
        fn put_set(&self, version: &str, hours: u64) {
            let mut set = set();
            set.key.driver_version = version.to_owned();
            set.modules[0].sha256 = self.store.put(version.as_bytes()).expect("put");
            let path = self.store.put_set(&set).expect("put");
            let then = SystemTime::now() - Duration::from_secs(hours * 3600);
            File::open(path).and_then(|file| file.set_modified(then)).expect("dated");
        }

        fn put_tree(&self) {
            let root = self.store.dir("userspace").join("tree").join("root");
            fs::create_dir_all(&root).expect("made");
            fs::write(root.with_file_name("manifest.json"), manifest(&root)).expect("written");
        }

        /// Collects with a bound that nothing fits in; returns the versions of the sets that stay, and of the
        /// trees.
        fn collect(&self) -> (Vec<String>, usize) {
            let needed = Needed::read(&self.store, &self.paths).expect("known");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let alone = self.store.lock_exclusive(Duration::ZERO);
            let alone = runtime.expect("runtime").block_on(alone).expect("alone");
            let decision = gc::decide(&self.store, &needed, Some(0), SystemTime::now());
            decision.expect("decided").carry_out(&self.store, alone).expect("carried out");
            let sets = self.store.sets().expect("sets");
            let trees = userspace::available(&self.store).expect("trees");
            (sets.into_iter().map(|set| set.key.driver_version).collect(), trees.len())
        }
    }

    #[rstest]
    #[case::installed(NEXT, &[DRIVER], 1)]
    #[case::removed("6.12.90+deb13-amd64", &[], 0)]
    #[case::of_another_flavour("6.12.117+deb13-cloud-amd64", &[], 0)]
    fn what_an_installed_kernel_needs_stays_until_its_boot(
        #[case] installed: &str,
        #[case] sets: &[&str],
        #[case] trees: usize,
    ) {
        let scene = scene(installed);
        scene.put_set(DRIVER, 100);
        scene.put_tree();
        assert_eq!(scene.collect(), (sets.iter().map(|s| (*s).to_owned()).collect(), trees));
    }

    #[test]
    fn of_several_drivers_the_installed_and_the_last_one_stay() {
        let scene = scene(NEXT);
        for (version, hours) in [("535.1", 40), ("535.2", 30), ("535.3", 20), ("535.4", 10)] {
            scene.put_set(version, hours);
        }
        let installed = Installed {
            driver_version: "535.2".into(),
            flavour: Flavour::Open,
            kernel_release: RUNNING.into(),
            modules: BTreeSet::new(),
            tree: None,
        };
        history::record(&scene.store, installed).expect("recorded");
        let (mut sets, _) = scene.collect();
        sets.sort();
        assert_eq!(sets, ["535.2", "535.4"]);
    }
}
