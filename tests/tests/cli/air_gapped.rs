//! Hosts without a network: bundles, imports, and a store that has the wanted driver.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longshore::upkeep::check::check;
use longshore_core::digest::digest_of;
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_host::HostFacts;
use longshore_modules::artifact::{HeadersFrom, ModuleEntry, ModuleKey, ModuleSet};
use longshore_modules::sets::SetStore;
use longshore_modules::signature::key::SecretKey;
use longshore_sources::userspace::{Manifest, TreeEntry};

use longshore_tests::module_sets::module;
use longshore_tests::packages::{DRIVER, KERNEL};
use longshore_tests::scene::disk;
use longshore_tests::scene::{Ended, Scene, finish, fixture, names};

/// Time limit that covers one archive that does not answer, with short timeouts.
const SOON: Duration = Duration::from_secs(30);

/// Makes a scene whose archive is unreachable, and whose store has a driver for the fixture's host.
fn away() -> Scene {
    let scene = Scene::new();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("http://{}", gone.local_addr().expect("address"));
    drop(gone);
    scene.configure(&scene.archive_at(&url));
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    put(&store);
    scene
}

fn put(store: &Store) {
    let tree = fixture("bookworm-t4");
    let kernel = HostFacts::read(Path::new(&tree), Path::new(&tree)).expect("facts").kernel;
    let key = ModuleKey {
        driver_version: DRIVER.into(),
        flavour: Flavour::Open,
        driver_digest: "1".repeat(64),
        kernel_release: kernel.release.clone(),
        kernel_version: kernel.version,
        arch: "x86_64".into(),
        headers: Default::default(),
        compiler: "gcc-12 (Debian 12.2.0-14) 12.2.0".into(),
        options: Vec::new(),
        patches: Default::default(),
        signed_by: None,
    };
    let modules = ["nvidia", "nvidia-uvm", "nvidia-modeset"].map(|name| {
        let image = module(name, &kernel.release);
        store.put(&image).expect("put");
        ModuleEntry::describe(&format!("{name}.ko"), &image, &kernel.release).expect("a module")
    });
    store
        .put_set(&ModuleSet { key, headers_from: HeadersFrom::Archive, modules: modules.into() })
        .expect("set");
    put_tree(store);
}

fn put_tree(store: &Store) {
    let dir = store.dir("userspace").join(format!("{DRIVER}-x86_64-test"));
    fs::create_dir_all(dir.join("root/usr")).expect("directories");
    let library = vec![b'x'; 300_000];
    fs::write(dir.join("root/usr/library"), &library).expect("file");
    for (path, mode) in [("root/usr", 0o755), ("root/usr/library", 0o644)] {
        fs::set_permissions(dir.join(path), fs::Permissions::from_mode(mode)).expect("mode");
    }
    let sha256 = digest_of(&*library).expect("digest");
    let file = TreeEntry::File { mode: 0o644, size: library.len() as u64, sha256 };
    let manifest = Manifest {
        format: 1,
        driver_version: DRIVER.into(),
        arch: "x86_64".into(),
        packages: Vec::new(),
        missing: Vec::new(),
        needs: Vec::new(),
        sources: None,
        entries: [("usr".into(), TreeEntry::Dir { mode: 0o755 }), ("usr/library".into(), file)]
            .into(),
    };
    let text = serde_json::to_vec(&manifest).expect("JSON");
    fs::write(dir.join("manifest.json"), text).expect("manifest");
}

/// Writes a bundle of the scene's store.
fn bundle(scene: &Scene, more: &[&str]) -> String {
    let out = scene.path("bundle.tar").display().to_string();
    let (tree, args) = (fixture("bookworm-t4"), ["bundle", "--out", &out, "--driver", DRIVER]);
    let mut command = scene.agent(&args);
    command.args(["--root", &tree]).args(more).env("COSIGN_PASSWORD", "");
    let ended = finish(&mut command);
    ended.assert_done();
    assert_eq!(ended.out.lines().filter(|l| l.contains("@sha256:")).count() % 2, 0, "{ended}");
    out
}

fn plan(scene: &Scene, driver: &str) -> (Ended, serde_json::Value) {
    let tree = fixture("bookworm-t4");
    let since = Instant::now();
    let ended = finish(&mut scene.agent(&["plan", "--json", "--driver", driver, "--root", &tree]));
    assert!(since.elapsed() < SOON, "after {:?}: {ended}", since.elapsed());
    let plan = serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended}"));
    (ended, plan)
}

/// Checks that the plan needs only the store.
fn assert_from_store(ended: &Ended, plan: &serde_json::Value) {
    ended.assert_done();
    assert_eq!(plan["acquire"], serde_json::json!([]), "{ended}");
    assert_eq!(plan["exact"], true, "{ended}");
    assert_eq!(plan["driver_version"], DRIVER, "{ended}");
}

fn empty_store(scene: &Scene) {
    fs::remove_dir_all(scene.path("store")).expect("removed");
}

#[test]
fn a_store_that_has_the_version_asked_for_needs_no_archive() {
    let scene = away();
    let (ended, plan) = plan(&scene, DRIVER);
    assert_from_store(&ended, &plan);
    assert!(!ended.err.contains("archive"), "none was asked: {ended}");
}

#[test]
fn a_kernel_with_a_set_needs_no_archive() {
    let scene = away();
    let tree = fixture("bookworm-t4");
    let asked = ["plan", "--kernel", KERNEL, "--driver", DRIVER, "--root", &tree];
    let ended = finish(&mut scene.agent(&asked));
    ended.assert_done();
    assert!(ended.out.contains("The store has everything for this kernel."), "{ended}");
}

#[test]
fn a_store_that_has_one_of_the_branch_is_enough_where_no_archive_answers() {
    for driver in ["535", "newest"] {
        let scene = away();
        let (ended, plan) = plan(&scene, driver);
        assert_from_store(&ended, &plan);
        assert!(ended.err.contains("continuing without the archives"), "a warning: {ended}");
    }
}

#[test]
fn a_flipped_bit_in_a_module_is_found_and_the_set_is_not_used() {
    let scene = away();
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    let module = store.sets().expect("sets")[0].modules[1].sha256.clone();
    let path = store.blob_path(&module);
    let mut bytes = fs::read(&path).expect("module");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).expect("flipped");
    let (ended, plan) = plan(&scene, DRIVER);
    assert!(ended.err.contains("does not match the digest in its name"), "{ended}");
    assert_eq!(plan["acquire"][0]["acquire"], "build-set", "it is built again: {ended}");
    assert!(!plan["install"].to_string().contains(&module), "it is loaded: {ended}");
    let verified = finish(&mut scene.agent(&["store", "verify"]));
    verified.assert_failed(13, &[path.display().to_string()]);
}

#[test]
fn a_bundle_is_all_that_a_host_needs() {
    let scene = away();
    let out = bundle(&scene, &[]);
    assert_eq!(fs::metadata(&out).expect("file").permissions().mode() & 0o777, 0o644);
    let first = fs::read(&out).expect("bundle");
    bundle(&scene, &[]);
    assert!(first == fs::read(&out).expect("bundle"), "the same bytes");
    empty_store(&scene);
    let ended = finish(&mut scene.agent(&["import", &out]));
    ended.assert_done();
    assert!(ended.out.contains(&format!("driver {DRIVER} (open)")), "{ended}");
    let (ended, plan) = plan(&scene, DRIVER);
    assert_from_store(&ended, &plan);
    finish(&mut scene.agent(&["store", "verify"])).assert_done();
    scene.assert_sound();
}

#[test]
fn a_damaged_tree_keeps_its_files_for_as_long_as_somebody_has_it_mounted() {
    let scene = away();
    let out = bundle(&scene, &[]);
    empty_store(&scene);
    finish(&mut scene.agent(&["import", &out])).assert_done();
    let trees = scene.path("store/userspace");
    let [name] = &names(&trees)[..] else { panic!("not one tree") };
    fs::create_dir(scene.path("mounted")).expect("directory");
    // As mounted in a container; all of it in one mount namespace, which ends with the shell.
    let script = "set -e; mount --bind \"$TREES/$NAME/root\" \"$MOUNTED\"
        echo shorter > \"$TREES/$NAME/root/usr/library\"
        \"$0\" import \"$1\" --config \"$2\"
        \"$0\" gc --config \"$2\"
        grep -q shorter \"$MOUNTED/usr/library\"
        test -d \"$TREES/$NAME.2/root\"
        umount \"$MOUNTED\"
        \"$0\" gc --config \"$2\"
        test ! -e \"$TREES/$NAME\"
        \"$0\" store verify --config \"$2\"";
    let mut command = Command::new(env!("CARGO_BIN_EXE_confined"));
    command.env_clear().env("LONGSHORE_STORE", scene.path("store")).env("PATH", "/usr/bin:/bin");
    command.env("LONGSHORE_STATE_DIR", scene.path("state-dir"));
    command.env("LONGSHORE_DRIVER_ROOT", scene.path("driver-root"));
    let longshore = longshore_tests::scene::longshore().display().to_string();
    command.env("TREES", &trees).env("NAME", name).env("MOUNTED", scene.path("mounted"));
    command.args(["--", "/bin/sh", "-c", script, &longshore, &out]);
    finish(command.arg(scene.path("config.toml"))).assert_done();
    assert_eq!(names(&trees), [format!("{name}.2")]);
    let (ended, plan) = plan(&scene, DRIVER);
    assert_from_store(&ended, &plan);
}

#[test]
fn a_bundle_goes_through_pipes() {
    let scene = away();
    let tree = fixture("bookworm-t4");
    let mut bundle = scene.agent(&["bundle", "--out", "-", "--driver", DRIVER, "--root", &tree]);
    let mut bundle = bundle.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let into = scene.path("other").display().to_string();
    let mut import = scene.agent(&["import", "-", "--store", &into]);
    import.stdin(bundle.stdout.take().expect("a pipe"));
    let import = import.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    longshore_tests::scene::wait(import).assert_done();
    assert!(bundle.wait().expect("ends").success());
    let store = Store::open(&scene.path("other"), disk()).expect("store");
    assert_eq!(store.sets().expect("sets").len(), 1);
    assert!(check(&store).expect("read").failure().is_none());
}

#[test]
fn a_bundle_is_taken_only_with_the_signature_asked_for() {
    let scene = away();
    let keys = |name: &str| {
        let dir = scene.path(name).display().to_string();
        fs::create_dir(&dir).expect("directory");
        let (key, [secret, public]) =
            (SecretKey::generate(), ["key", "pub"].map(|end| format!("{dir}/cosign.{end}")));
        fs::write(&secret, key.to_encrypted_pem("").expect("pem")).expect("written");
        fs::write(&public, key.public_pem().expect("pem")).expect("written");
        (secret, public)
    };
    let ((secret, public), (_, other)) = (keys("a"), keys("b"));
    let unsigned = bundle(&scene, &[]);
    let kept = scene.path("unsigned.tar").display().to_string();
    fs::rename(unsigned, &kept).expect("renamed");
    let signed = bundle(&scene, &["--sign-key", &secret]);
    empty_store(&scene);
    let policy =
        |key: &str| vec!["--require-signature".to_owned(), format!("--signature-key={key}")];
    let key = |key: &str| vec!["--key".to_owned(), key.to_owned()];
    for (file, args, expected) in [
        (&kept, key(&public), "no signature"),
        (&kept, policy(&public), "no signature"),
        (&signed, key(&other), "another key"),
        (&signed, policy(&other), "another key"),
    ] {
        let mut command = scene.agent(&["import", file]);
        command.args(&args);
        scene.refuses(command, 13, &[file, expected]);
        assert_eq!(names(&scene.path("store/sets")), [""; 0]);
        assert_eq!(names(&scene.path("store/blobs/sha256")), [""; 0]);
    }
    for args in [key(&public), policy(&public), [key(&public), policy(&public)].concat()] {
        finish(scene.agent(&["import", &signed]).args(&args)).assert_done();
    }
    // The policy finds the signature in the store, too.
    let tree = fixture("bookworm-t4");
    let mut planned = scene.agent(&["plan", "--driver", DRIVER, "--root", &tree]);
    finish(planned.args(policy(&public))).assert_done();
    let mut planned = scene.agent(&["plan", "--driver", DRIVER, "--root", &tree]);
    let ended = finish(planned.args(policy(&other)));
    assert_eq!(ended.code, Some(13), "{ended}");
}

#[test]
fn what_is_no_bundle_is_refused() {
    let scene = Scene::new();
    let file = scene.path("file").display().to_string();
    fs::write(&file, "not a tar file").expect("file");
    scene.refuses(scene.agent(&["import", &file]), 13, &[&file, "cut off"]);
    let absent = scene.path("absent").display().to_string();
    scene.refuses(scene.agent(&["import", &absent]), 2, &[&absent, "No such file"]);
    let dir = scene.path("").display().to_string();
    scene.refuses(scene.agent(&["import", &dir]), 2, &[&dir, "is a directory"]);
}

#[test]
fn a_place_for_a_bundle_that_cannot_be_written_is_refused_before_anything_is_fetched() {
    let scene = Scene::new();
    let below = scene.path("keyring.asc/below").display().to_string();
    let dir = scene.path("").display().to_string();
    for out in [&below, &dir] {
        scene.refuses(scene.agent(&["bundle", "--out", out]), 15, &[out, "--out"]);
    }
    assert!(scene.server.requests("").is_empty());
}

#[test]
fn a_disk_that_is_full_keeps_no_part_of_a_bundle() {
    let scene = away();
    let small = scene.path("small");
    fs::create_dir(&small).expect("directory");
    let (dir, out) = (small.display().to_string(), small.join("b.tar").display().to_string());
    let tree = fixture("bookworm-t4");
    for kilobytes in [4, 8, 60, 150, 250, 300] {
        let size = format!("size={kilobytes}k");
        let args = ["bundle", "--out", &out, "--driver", DRIVER, "--root", &tree];
        let command = scene.confined(&["--tmpfs", &dir, &size], &args);
        scene.refuses_beside(command, 15, &[&out, "No space left on device", "--out"]);
    }
}

/// Runs the agent where no file may become larger than this many blocks of 512 bytes.
fn limited(scene: &Scene, blocks: u32, args: &[&str]) -> Command {
    let agent = scene.agent(args);
    // Without the trap the signal would end the process; with it the write fails, as on a full
    // disk.
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.env_clear().envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-c", &script]).arg(agent.get_program()).args(agent.get_args());
    command
}

#[test]
fn writing_that_fails_at_any_byte_leaves_nothing_wrong_in_the_store() {
    let scene = away();
    let out = bundle(&scene, &[]);
    empty_store(&scene);
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    for blocks in [0, 1, 2, 3, 5, 100, 585] {
        scene.refuses(limited(&scene, blocks, &["import", &out]), 15, &["File too large"]);
        assert!(check(&store).expect("read").failure().is_none(), "{blocks}");
        assert!(store.sets().expect("sets").is_empty(), "{blocks}");
    }
    finish(&mut limited(&scene, 600, &["import", &out])).assert_done();
    assert!(check(&store).expect("read").failure().is_none());
    assert_eq!(store.sets().expect("sets").len(), 1);
}

#[test]
fn a_disk_without_inodes_leaves_nothing_wrong_in_the_store() {
    let scene = away();
    let out = bundle(&scene, &[]);
    empty_store(&scene);
    fs::create_dir(scene.path("store")).expect("directory");
    let dir = scene.path("store").display().to_string();
    // The agent's files on a mount of its own disappear with it, so one shell does both.
    let script = "\"$0\" import \"$1\" --config \"$2\"; code=$?; \
                  \"$0\" store verify --config \"$2\" >/dev/null 2>&1 || code=99; exit $code";
    let mut done = false;
    let longshore = longshore_tests::scene::longshore().display().to_string();
    for inodes in (14..60).step_by(1) {
        let options = format!("size=100m,nr_inodes={inodes}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_confined"));
        command.env_clear().env("LONGSHORE_STORE", &dir).args(["--tmpfs", &dir, &options, "--"]);
        command.args(["/bin/sh", "-c", script, &longshore, &out]);
        let ended = finish(command.arg(scene.path("config.toml")));
        match ended.code {
            Some(15) => assert!(!done && ended.err.contains("No space left"), "{inodes}: {ended}"),
            // The store's own directories could not be made for the check either.
            Some(99) if inodes < 20 => {}
            code => {
                assert_eq!(code, Some(0), "{inodes}: {ended}");
                done = true;
            }
        }
    }
    assert!(done);
}
