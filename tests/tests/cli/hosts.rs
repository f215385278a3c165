//! Hosts that are not ready: stores that cannot be written, missing privileges, mounts that would
//! not be seen, no device.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use longshore_core::store::Store;
use longshore_tests::packages::{self, KERNEL};
use longshore_tests::scene::disk;
use longshore_tests::scene::{Scene, finish, fixture, names};

const BUILD: [&str; 3] = ["build", "--kernel", KERNEL];

#[test]
fn a_store_without_space_says_how_much_it_wants() {
    let scene = Scene::with(packages::buildable(&[]));
    let store = scene.path("store");
    fs::create_dir(&store).expect("directory");
    let dir = store.to_str().expect("a path");
    for (options, expected) in [
        ("size=1m", &["free", "--store"][..]),
        // Enough space, but no inode left for a file.
        ("size=100m,nr_inodes=10", &["No space left on device", "--store"]),
    ] {
        let command = scene.confined(&["--tmpfs", dir, options], &BUILD);
        scene.refuses(command, 15, &[&[dir], expected].concat());
    }
    assert_eq!(names(&store), [""; 0], "it was not the tmpfs that was written");
}

#[test]
fn a_store_from_which_nothing_may_be_executed_will_do() {
    let said = "x.c:1:1: error: the compiler ran\n";
    let make =
        packages::deb(&[packages::Item::Program("./usr/bin/make", &packages::saying(said, 2))]);
    let scene = Scene::with(packages::buildable(&[("make", make)]));
    let store = scene.path("store");
    fs::create_dir(&store).expect("directory");
    let dir = store.to_str().expect("a path");
    let command = scene.confined(&["--tmpfs", dir, "noexec,size=4g"], &BUILD);
    scene.refuses(command, 14, &["the compiler ran"]);
}

#[test]
fn a_store_that_is_mounted_read_only_is_named() {
    let scene = Scene::with(packages::buildable(&[]));
    let store = scene.path("store");
    fs::create_dir(&store).expect("directory");
    let dir = store.to_str().expect("a path");
    let expected = [dir, "Read-only file system", "--store"];
    scene.refuses(scene.confined(&["--read-only", dir], &BUILD), 15, &expected);
    // A store that was made before it became read-only.
    Store::open(&store, disk()).expect("store");
    scene.refuses(scene.confined(&["--read-only", dir], &BUILD), 15, &expected);
}

#[test]
fn a_store_that_is_a_file_is_named() {
    let scene = Scene::with(packages::buildable(&[]));
    let store = scene.path("store");
    fs::write(&store, "in the way").expect("write");
    let dir = store.to_str().expect("a path");
    for args in [&BUILD[..], &["fetch"], &["plan"], &["run"]] {
        scene.refuses(scene.agent(args), 15, &[dir, "Not a directory", "--store"]);
    }
    assert_eq!(fs::read(&store).expect("the file"), b"in the way");
}

#[test]
fn a_place_for_the_result_that_cannot_be_written_is_refused_before_anything_is_fetched() {
    let scene = Scene::with(packages::buildable(&[]));
    let dir = scene.path("read-only");
    fs::create_dir(&dir).expect("directory");
    let (dir, file) = (dir.display().to_string(), scene.path("keyring.asc").display().to_string());
    for (out, code, word) in [
        (file.as_str(), 15, "--out"),
        (&format!("{file}/below"), 15, "--out"),
        (&format!("{dir}/below"), 15, "Read-only file system"),
        (&scene.path("").display().to_string(), 13, "--out"),
    ] {
        let args = [&BUILD[..], &["--out", out]].concat();
        scene.refuses(scene.confined(&["--read-only", &dir], &args), code, &[out, word]);
    }
    assert!(scene.server.requests("").is_empty());
}

#[test]
fn a_state_directory_that_is_a_file_is_named() {
    let scene = Scene::new();
    let state = scene.path("state-dir");
    fs::write(&state, "in the way").expect("write");
    for args in ["run", "status", "unload"] {
        let expected = [state.to_str().expect("a path"), "--state-dir"];
        scene.refuses(scene.agent(&[args]), 15, &expected);
    }
}

/// Returns the tree of a host with a T4 in which the process itself is the real one.
fn as_we_are() -> (String, String) {
    let tree = fixture("bookworm-t4");
    (tree.clone(), format!("{tree}/proc/self"))
}

#[test]
fn whoever_is_not_root_is_told_so() {
    let scene = Scene::new();
    // Its own directory: a configuration in one that everybody may write to is refused.
    chown(scene.path(""), Some(65534), None).expect("chown");
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).expect("permissions");
    // That user may not be able to reach the checkout, which can be in root's home.
    let seen = scene.path("host");
    fs::create_dir(&seen).expect("directory");
    let seen = seen.to_str().expect("a path");
    let itself = format!("{seen}/proc/self");
    let tree = fixture("bookworm-t4");
    let options = ["--bind", &tree, seen, "--bind", "/proc/self", &itself, "--user", "65534"];
    let said = ["user id 65534", "as root"];
    scene.refuses(scene.confined(&options, &["run", "--root", seen]), 15, &said);
    // Nothing is writable.
    let scene = Scene::new();
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).expect("permissions");
    for args in [&["run"][..], &["build"], &["fetch"]] {
        scene.refuses(scene.confined(&["--user", "65534"], args), 15, &said);
    }
    // These verbs write nothing either, and tell all else that there is.
    let ended = finish(&mut scene.confined(&["--user", "65534"], &["plan"]));
    assert!(ended.code != Some(0) && ended.out.contains("refusal not-root: "), "{ended}");
    // These verbs write nothing.
    for args in ["status", "unload"] {
        finish(&mut scene.confined(&["--user", "65534"], &[args])).assert_done();
    }
}

#[test]
fn a_missing_capability_is_named() {
    let (tree, itself) = as_we_are();
    for capability in ["sys_module", "sys_admin", "mknod"] {
        let scene = Scene::new();
        let name = format!("CAP_{}", capability.to_uppercase());
        let options = ["--bind", "/proc/self", &itself];
        let command = scene.without(capability, &options, &["run", "--root", &tree]);
        scene.refuses(command, 15, &["missing-capability", &name, "privileged"]);
        let ended = finish(&mut scene.without(capability, &options, &["plan", "--root", &tree]));
        assert_eq!(ended.code, Some(15), "{ended}");
        assert!(ended.out.contains(&name), "{ended}");
    }
}

#[test]
fn a_build_that_may_not_make_its_sandbox_is_refused_before_anything_is_fetched() {
    let scene = Scene::with(packages::buildable(&[]));
    let command = scene.without("sys_admin", &[], &BUILD);
    scene.refuses(command, 15, &["CAP_SYS_ADMIN", "privileged"]);
    assert_eq!(names(&scene.path("store/blobs/sha256")), [""; 0]);
}

#[test]
fn a_container_whose_mounts_do_not_reach_the_host_is_told_the_flag() {
    let (tree, itself) = as_we_are();
    let scene = Scene::new();
    let run_nvidia = scene.path("nvidia");
    fs::create_dir(&run_nvidia).expect("directory");
    let (dir, root) = (run_nvidia.display().to_string(), run_nvidia.join("driver"));
    // Like a container with a host root of its own; all mounts made in here are private.
    let host = fixture("bookworm-rt-t4");
    let args = ["run", "--root", &tree, "--host-root", &host, "--driver-root"];
    let args = [&args[..], &[root.to_str().expect("a path")]].concat();
    let options = ["--bind", "/proc/self", &itself, "--tmpfs", &dir, "size=1m"];
    let expected = ["run-nvidia-not-shared", &dir, "-v /run/nvidia:/run/nvidia:rshared"];
    scene.refuses(scene.confined(&options, &args), 15, &expected);
    assert_eq!(names(&run_nvidia), [""; 0]);
}

#[test]
fn every_captured_tree_is_decided_upon() {
    let trees: Vec<String> = names(fixture("").as_ref())
        .into_iter()
        .filter(|name| fs::metadata(fixture(name)).is_ok_and(|m| m.is_dir()))
        .collect();
    assert!(trees.len() >= 14, "{trees:?}");
    let scene = Scene::new();
    for name in trees {
        let expected = match name.as_str() {
            _ if name.ends_with("no-gpu") || name == "bookworm-vm" => 17,
            "bookworm-nouveau" | "bookworm-vfio" | "bookworm-secure-boot" => 15,
            "bookworm-t4-container" => 15,
            "bookworm-t4-live" => 0,
            // The archive of this scene has no driver.
            _ => 12,
        };
        for more in [&[][..], &["--json"]] {
            let tree = fixture(&name);
            let args = [&["plan", "--root", &tree], more].concat();
            let ended = finish(&mut scene.agent(&args));
            assert_eq!(ended.code, Some(expected), "{name}: {ended}");
            ended.assert_no_panic();
            assert!(expected == 0 || ended.out.contains("remedy"), "{name}: {ended}");
            if !more.is_empty() {
                serde_json::from_str::<serde_json::Value>(&ended.out).expect("JSON");
            }
        }
        scene.assert_sound();
    }
}

#[test]
fn a_host_that_brings_its_own_driver_is_told_its_mechanism() {
    let scene = Scene::new();
    let tree = scene.path("tree");
    let copied = Command::new("cp").arg("-r").arg(fixture("bookworm-t4")).arg(&tree).status();
    assert!(copied.expect("cp").success());
    fs::write(tree.join("etc/os-release"), "ID=talos\nVERSION_ID=v1.13.0\n").expect("written");
    let root = tree.display().to_string();
    let said = ["host-brings-driver", "Talos brings NVIDIA's driver itself", "system extensions"];
    scene.refuses(scene.agent(&["run", "--root", &root]), 10, &said);
    let ended = finish(&mut scene.agent(&["plan", "--root", &root]));
    assert_eq!(ended.code, Some(10), "{ended}");
    assert!(ended.out.contains("system extensions"), "{ended}");
}

#[test]
fn a_tree_that_is_none_is_named() {
    let scene = Scene::new();
    let (empty, file) = (scene.path("empty"), scene.path("keyring.asc"));
    fs::create_dir(&empty).expect("directory");
    for tree in ["/no/such/tree", file.to_str().expect("a path"), empty.to_str().expect("a path")] {
        for args in [&["plan"][..], &["run"]] {
            let args = [args, &["--root", tree]].concat();
            scene.refuses(scene.agent(&args), 10, &[tree, "--root"]);
        }
    }
}

#[test]
fn the_plan_of_this_machine_ends_as_it_says() {
    let scene = Scene::new();
    let ended = finish(&mut scene.agent(&["plan"]));
    ended.assert_no_panic();
    let words = ended.words();
    let code = words.split("(exit code ").nth(1).and_then(|rest| rest.split(')').next());
    assert_eq!(code.map(str::parse), ended.code.map(Ok), "{ended}");
    assert!(words.contains("no-device"), "a machine with a GPU? {ended}");
    assert!(words.contains("remedy: run on a node that has one"), "{ended}");
    scene.assert_sound();
}
