use rstest::rstest;

use super::*;
use crate::upkeep::history::Installed;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_modules::sets::SetStore;
use longshore_modules::testing::set;

const HOUR: Duration = Duration::from_secs(3600);
/// Minimum size of each content on the disk.
const SIZE: usize = 64 << 10;

/// A store with entries of different age, in a directory with everything else an agent has.
struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    now: SystemTime,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        Self { dir, store, now: SystemTime::now() }
    }

    fn paths(&self) -> Paths {
        let below = |name: &str| self.dir.path().join(name);
        Paths {
            store: self.store.root().to_path_buf(),
            state: below("state"),
            driver_root: below("driver-root"),
            ..Paths::below(Path::new("/"))
        }
    }

    fn aged(&self, path: &Path, hours: u32) {
        let file = File::open(path).expect("opened");
        file.set_modified(self.now - HOUR * hours).expect("dated");
    }

    fn blob(&self, content: &str, hours: u32) -> String {
        let digest = self.store.put(content.repeat(SIZE).as_bytes()).expect("put");
        self.aged(&self.store.blob_path(&digest), hours);
        digest
    }

    /// A set with its own module and one that all sets share.
    fn set(&self, version: &str, hours: u32) -> Vec<String> {
        let mut set = set();
        set.key.driver_version = version.into();
        let mut other = set.modules[0].clone();
        (other.name, other.file) = ("shared".into(), "shared.ko".into());
        set.modules.push(other);
        set.modules[0].sha256 = self.blob(version, hours);
        set.modules[1].sha256 = self.blob("S", hours);
        let path = self.store.put_set(&set).expect("set");
        fs::write(path.with_extension("evidence"), "{}").expect("signatures");
        fs::write(path.with_extension("build"), "{}").expect("record");
        self.aged(&path, hours);
        set.modules.into_iter().map(|m| m.sha256).collect()
    }

    fn tree(&self, name: &str, hours: u32) -> PathBuf {
        let dir = self.store.dir("userspace").join(name);
        fs::create_dir_all(dir.join("root/usr")).expect("directories");
        fs::write(dir.join("root/usr/library"), name.repeat(SIZE)).expect("file");
        self.describe(&dir, hours);
        dir.join("root")
    }

    /// Writes the manifest of a tree as it is now.
    fn describe(&self, tree: &Path, hours: u32) {
        let manifest = longshore_sources::testing::manifest(&tree.join("root"));
        fs::write(tree.join("manifest.json"), manifest).expect("manifest");
        self.aged(&tree.join("manifest.json"), hours);
    }

    fn directory(&self, name: &str, hours: u32) {
        let dir = self.store.dir(name);
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join("file"), name.repeat(SIZE)).expect("file");
        self.aged(&dir, hours);
    }

    /// One of everything: a, b and c belong to three drivers, c was used last.
    fn full() -> Self {
        let scene = Self::new();
        for (name, hours) in [("a", 30), ("b", 20), ("c", 10)] {
            scene.set(name, hours);
            scene.tree(name, hours);
        }
        scene.blob("package", 40);
        scene.directory("roots/old", 35);
        scene.directory("drivers/run", 25);
        scene.directory("objects", 50);
        fs::write(scene.store.dir("logs/log"), "log").expect("log");
        scene.aged(&scene.store.dir("logs/log"), 5);
        scene
    }

    fn needed(&self) -> Needed {
        Needed::read(&self.store, &self.paths()).expect("known")
    }

    fn decide(&self, bound: Option<u64>) -> Decision {
        decide(&self.store, &self.needed(), bound, self.now).expect("decided")
    }

    fn collect(&self, bound: Option<u64>) -> Report {
        self.decide(bound).carry_out(&self.store, self.alone()).expect("carried out")
    }

    fn alone(&self) -> StoreGuard {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime
            .expect("runtime")
            .block_on(self.store.lock_exclusive(Duration::ZERO))
            .expect("alone")
    }

    /// Asserts that every set has all of its modules.
    fn assert_right(&self) {
        for set in self.store.sets().expect("sets") {
            assert!(self.store.holds(&set), "{} lacks a module", set.key.file_stem());
        }
    }

    fn versions(&self) -> Vec<String> {
        let sets = self.store.sets().expect("sets");
        sets.into_iter().map(|set| set.key.driver_version).collect()
    }
}

fn names(of: &[Line]) -> Vec<String> {
    let name = |line: &Line| {
        let text = line.path.to_string_lossy().into_owned();
        match line.kind {
            ItemKind::Modules => {
                format!("set {}", text["sets/".len()..].split('-').next().unwrap_or(""))
            }
            ItemKind::Download => "package".into(),
            _ => text,
        }
    };
    of.iter().map(name).collect()
}

#[test]
fn what_was_not_used_for_longest_goes_until_the_rest_fits() {
    let scene = Scene::full();
    let order =
        ["objects", "package", "roots/old", "userspace/a", "set a", "drivers/run", "userspace/b"];
    let before = scene.decide(None).report().before;
    assert!(scene.decide(None).report().removed.is_empty(), "no bound");
    assert!(scene.decide(Some(before)).report().removed.is_empty(), "all fits");
    // One byte less than the size after each removal makes the next one necessary.
    let all = scene.decide(Some(0));
    assert_eq!(names(&all.report().removed)[..order.len()], order);
    let mut bound = before;
    for (number, line) in all.report().removed.iter().enumerate() {
        let decision = scene.decide(Some(bound - 1));
        assert_eq!(decision.report().removed.len(), number + 1, "{bound}");
        bound -= line.bytes;
        assert_eq!(decision.report().after, bound);
    }
    let report = scene.collect(Some(before - 1));
    assert_eq!(names(&report.removed), ["objects"]);
    assert_eq!(report.after, scene.decide(None).report().before, "as predicted");
    scene.assert_right();
}

#[test]
fn with_no_room_at_all_nothing_stays_but_what_is_needed() {
    let scene = Scene::full();
    let (c, b) = (scene.set("c", 10), scene.set("b", 20));
    let installed = |modules: &[String], tree: &str| Installed {
        driver_version: tree.into(),
        flavour: longshore_core::flavour::Flavour::Open,
        kernel_release: "6.1".into(),
        modules: modules.iter().cloned().collect(),
        tree: Some(tree.into()),
    };
    for (modules, tree) in [(&c, "c"), (&b, "b")] {
        history::record(&scene.store, installed(modules, tree)).expect("recorded");
    }
    let report = scene.collect(Some(0));
    let kept = names(&report.kept);
    for wanted in ["set b", "set c", "userspace/b", "userspace/c"] {
        assert!(kept.contains(&wanted.to_owned()), "{kept:?}");
    }
    assert_eq!(kept.len(), 4);
    let why =
        |path: &str| report.kept.iter().find(|l| l.path == Path::new(path)).expect("kept").reason;
    assert_eq!((why("userspace/b"), why("userspace/c")), (RUNS, RAN));
    assert_eq!(scene.versions(), ["b", "c"]);
    scene.assert_right();
    assert_eq!(scene.collect(Some(0)).removed, [], "a second time there is nothing to do");
}

#[test]
fn what_a_needed_set_was_signed_from_stays() {
    let scene = Scene::new();
    for version in ["a", "b"] {
        scene.set(version, 30);
        let unsigned = scene.store.sets().expect("sets");
        let mut signed = unsigned
            .into_iter()
            .find(|set| set.key.driver_version == version && set.key.signed_by.is_none())
            .expect("the unsigned set");
        signed.key.signed_by = Some(longshore_modules::module_signing::SignedBy {
            certificate: "c".repeat(64),
            name: "Example".into(),
            key_ids: Default::default(),
            hash: longshore_modules::module_signing::Hash::Sha256,
        });
        signed.modules[0].sha256 = scene.blob(&format!("{version}, signed"), 10);
        scene.store.put_set(&signed).expect("set");
    }
    let signed = scene.store.sets().expect("sets");
    let runs =
        signed.into_iter().find(|s| s.key.driver_version == "a" && s.key.signed_by.is_some());
    let modules = runs.expect("the signed set").modules.into_iter().map(|m| m.sha256).collect();
    let installed = Installed {
        driver_version: "a".into(),
        flavour: longshore_core::flavour::Flavour::Open,
        kernel_release: "6.1".into(),
        modules,
        tree: None,
    };
    history::record(&scene.store, installed).expect("recorded");
    let report = scene.collect(Some(0));
    let mut why: Vec<_> = report.kept.iter().map(|line| line.reason).collect();
    why.sort_unstable();
    assert_eq!(why, [RUNS, SIGNED_FROM]);
    assert_eq!(scene.versions(), ["a", "a"]);
    scene.assert_right();
}

#[test]
fn what_the_journal_or_a_mount_shows_stays() {
    let scene = Scene::full();
    let modules = scene.set("a", 30);
    let load = serde_json::json!({"do": "load-module", "name": "nvidia", "parameters": "",
        "origin": {"driver": {"sha256": modules[0]}}, "version": null, "srcversion": null});
    let entry = |state: &str| serde_json::json!({"seq": 1, "step": load, "before": {"was": "not-loaded"}, "state": state});
    let state = |entry| {
        serde_json::json!({"format": 1, "boot_id": null, "agent": 1, "phase": "ready",
            "plan": null, "entries": [entry]})
    };
    fs::create_dir(scene.paths().state).expect("directory");
    let path = scene.paths().state.join("state.json");
    fs::write(&path, state(entry("undone")).to_string()).expect("state");
    assert!(names(&scene.decide(Some(0)).report().removed).contains(&"set a".into()));
    // During a change the previous driver may have to come back.
    let mut changing = state(entry("undone"));
    changing["previous"] = serde_json::json!([load]);
    fs::write(&path, changing.to_string()).expect("state");
    assert!(names(&scene.decide(Some(0)).report().kept).contains(&"set a".into()));
    fs::write(&path, state(entry("done")).to_string()).expect("state");
    // Equivalent to a mount: the same directory under two names.
    let shown = scene.store.dir("userspace/b/root");
    std::os::unix::fs::symlink(shown, scene.paths().driver_root).expect("link");
    let decision = scene.decide(Some(0));
    let kept = names(&decision.report().kept);
    assert!(kept.contains(&"set a".into()) && kept.contains(&"userspace/b".into()), "{kept:?}");
    assert_eq!(kept.len(), 2);
}

#[test]
fn a_damaged_tree_goes_without_a_bound_once_nothing_shows_it() {
    let scene = Scene::full();
    let damaged = scene.store.dir("userspace/b");
    fs::write(damaged.join("root/usr/library"), "shorter").expect("damaged");
    let installed = Installed {
        driver_version: "b".into(),
        flavour: longshore_core::flavour::Flavour::Open,
        kernel_release: "6.1".into(),
        modules: Default::default(),
        tree: Some("b".into()),
    };
    history::record(&scene.store, installed).expect("recorded");
    let link = scene.paths().driver_root;
    std::os::unix::fs::symlink(damaged.join("root"), &link).expect("link");
    assert_eq!(scene.decide(None).report().removed, [], "it is in use");
    assert!(names(&scene.decide(Some(0)).report().kept).contains(&"userspace/b".into()));
    fs::remove_file(&link).expect("removed");
    let report = scene.collect(None);
    assert_eq!(names(&report.removed), ["userspace/b"], "though it is what ran last");
    assert_eq!(report.removed[0].reason, "it is damaged, and not in use");
    assert!(!damaged.exists());
}

#[rstest]
#[case::back_a_year(false)]
#[case::ahead_a_year(true)]
fn a_clock_that_jumped_removes_nothing_more(#[case] ahead: bool) {
    let mut scene = Scene::full();
    let as_it_was = names(&scene.decide(Some(0)).report().removed);
    let year = HOUR * 24 * 365;
    scene.now = if ahead { scene.now + year } else { scene.now - year };
    assert_eq!(scene.decide(None).report().removed, [], "no bound");
    let jumped = scene.decide(Some(0));
    assert_eq!(names(&jumped.report().removed), as_it_was, "the order is that of use");
    scene.collect(Some(0));
    scene.assert_right();
}

#[test]
fn what_runs_is_not_guessed() {
    let scene = Scene::full();
    fs::create_dir(scene.paths().state).expect("directory");
    for (text, code) in [("{", ExitCode::Verification), ("{\"format\":99}", ExitCode::Preflight)] {
        fs::write(scene.paths().state.join("state.json"), text).expect("state");
        let failure = Needed::read(&scene.store, &scene.paths()).expect_err("refused");
        assert_eq!(failure.code(), code);
    }
}

#[test]
fn what_the_dead_left_goes_without_a_bound_and_what_is_held_stays() {
    let scene = Scene::full();
    let store = &scene.store;
    let left = ["tmp/work-build-dead/sub", "tmp/work-gc-dead", "tmp/userspace-dead/root"];
    for dir in left {
        fs::create_dir_all(store.dir(dir)).expect("directory");
    }
    let files = [
        "tmp/blob-dead",
        "sets/.tmpAbc",
        ".tmpOfHistory",
        "userspace/a/.tmpOfHashed",
        "sets/.x-open.lock",
        "sets/gone.evidence",
        "sets/gone.build",
        "roots/x.lock",
        "blobs/sha256/name",
        "failures/old.json",
    ];
    for file in files {
        fs::write(store.dir(file), "left").expect("file");
    }
    scene.aged(&store.dir("failures/old.json"), 25);
    fs::write(store.dir("failures/new.json"), "{}").expect("file");
    let held = claim(store, "build").expect("claim");
    // The collection removes leftovers, so they are made again.
    fs::create_dir_all(store.dir(left[0])).expect("directory");
    let download = store.blob_writer().expect("writer");
    let report = scene.collect(None);
    assert!(report.removed.len() >= 10, "{:?}", names(&report.removed));
    for gone in left.iter().chain(&files) {
        assert!(!store.dir(gone).exists(), "{gone}");
    }
    assert!(held.path().is_dir());
    drop(download);
    held.close().expect("removed");
    assert!(store.dir("failures/new.json").exists());
    assert_eq!(scene.versions(), ["a", "b", "c"]);
    scene.assert_right();
}

#[test]
fn what_two_share_is_freed_by_the_last_of_them() {
    let scene = Scene::new();
    let dir = scene.store.dir("drivers/run");
    fs::create_dir_all(&dir).expect("directory");
    fs::write(dir.join("file"), "x".repeat(SIZE)).expect("file");
    scene.aged(&dir, 20);
    let root = scene.tree("tree", 10);
    fs::hard_link(dir.join("file"), root.join("usr/same")).expect("link");
    scene.describe(root.parent().expect("directory"), 10);
    let report = scene.collect(Some(0));
    assert_eq!(names(&report.removed), ["drivers/run", "userspace/tree"]);
    assert!(report.removed[0].bytes < SIZE as u64, "{}", report.removed[0].bytes);
    assert_eq!(report.after, 0);
    assert_eq!(report.removed.iter().map(|l| l.bytes).sum::<u64>(), report.before);
}

#[rstest]
fn wherever_it_is_cut_off_the_store_is_right(#[values(false, true)] acts_first: bool) {
    for number in 0.. {
        let scene = Scene::full();
        let mut count = 0;
        let decision = scene.decide(Some(0));
        let result = decision.carry_out_with(&scene.store, scene.alone(), &mut |act| {
            count += 1;
            if count <= number {
                return act();
            }
            if acts_first {
                act()?;
            }
            Err(io::Error::from_raw_os_error(5))
        });
        scene.assert_right();
        if result.is_ok() {
            assert!(number > 10, "{number}");
            assert_eq!(scene.versions(), [""; 0]);
            break;
        }
        assert_eq!(result.expect_err("cut off").code(), ExitCode::Preflight);
        // The next collection finishes it.
        scene.collect(Some(0));
        assert!(scene.decide(Some(0)).report().removed.is_empty());
        assert_eq!(fs::read_dir(scene.store.dir("tmp")).expect("listed").count(), 0);
    }
}
