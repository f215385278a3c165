//! Tests of `longshore plan`: the plan of README, and that nothing but the store's cache is changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_tests::archive::{ARCH, Suite, deb};
use longshore_tests::manifest::{ManifestEntry, manifest};
use longshore_tests::scene::{Scene, finish, fixture, names};

const TREE: &str = "bookworm-t4";
/// First line of README that is left out of its plan: the steps go on.
const LEFT_OUT: &str = "   4. ";

/// Returns a scene whose archive has the packages of Debian 12 that the plan names, in their versions of README, and
/// an older driver.
fn debian_12() -> Scene {
    let package = |name: &str, version: &str, more: &str| {
        let stanza = format!("Package: {name}\nVersion: {version}\nArchitecture: {ARCH}\n{more}");
        (stanza, deb(&[("./usr/share/doc/none", b"")]))
    };
    Scene::with(Suite {
        name: "bookworm-security".to_owned(),
        packages: vec![
            package("nvidia-kernel-source", "535.261.03-1", ""),
            package("nvidia-kernel-source", "535.309.01-0+deb12u1", ""),
            package("linux-headers-6.1.0-50-amd64", "6.1.176-1", "Depends: gcc-12\n"),
            package("gcc-12", "12.2.0-14+deb12u1", ""),
        ],
        ..Suite::usual()
    })
}

#[test]
fn the_plan_in_readme_is_the_programs() {
    let scene = debian_12();
    let mut command = scene.agent(&["plan", "--root", &fixture(TREE), "--driver", "535"]);
    for name in ["LONGSHORE_DRIVER_ROOT", "LONGSHORE_PARAMETERS_DIR", "LONGSHORE_STATE_DIR"] {
        command.env_remove(name);
    }
    let ended = finish(&mut command);
    ended.assert_done();
    let shown = ended.out.lines().take_while(|line| !line.starts_with(LEFT_OUT));
    let shown: Vec<&str> = shown.collect();
    assert!(shown.len() < ended.out.lines().count(), "no line {LEFT_OUT:?}: {ended}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(&path).expect("README");
    let (before, rest) = readme.split_once("\n## A plan\n").expect("the section");
    let (text, rest) = rest.split_once("```text\n").expect("a block");
    let (block, after) = rest.split_once("   ...\n```\n").expect("its end");
    if std::env::var_os("WRITE_DOCS").is_some() {
        let shown = shown.join("\n");
        let renewed = format!("{before}\n## A plan\n{text}```text\n{shown}\n   ...\n```\n{after}");
        fs::write(&path, renewed).expect("written");
    } else {
        let block: Vec<&str> = block.lines().collect();
        assert_eq!(block, shown, "README.md differs: WRITE_DOCS=1 renews it");
    }
}

/// A kernel that is to be rolled out: with headers in the archive, and with nothing; it need not be installed.
#[test]
fn a_kernel_that_does_not_run_is_planned_without_a_compile() {
    let scene = debian_12();
    let tree = fixture(TREE);
    let plan = |kernel: &str, more: &[&str]| {
        let args = ["plan", "--kernel", kernel, "--driver", "535", "--root", &tree];
        finish(&mut scene.agent(&[&args[..], more].concat()))
    };
    let ended = plan("6.1.0-50-amd64", &[]);
    ended.assert_done();
    let hint = "longshore build --kernel 6.1.0-50-amd64 --driver 535.309.01";
    assert!(ended.out.starts_with("TO BE DONE") && ended.out.contains(hint), "{ended}");
    assert!(!ended.out.contains("Then on the host"), "{ended}");
    let ended = plan("6.1.0-99-amd64", &[]);
    assert_eq!(ended.code, Some(11), "{ended}");
    assert!(ended.out.starts_with("REFUSED") && ended.out.contains("6.1.0-50-amd64"), "{ended}");
    let ended = plan("6.1.0-99-amd64", &["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!((&answer["format"], &answer["verdict"]), (&2.into(), &"refused".into()));
    assert_eq!(answer["exit_code"], 11, "{ended}");
    // Every character that uname can have, and none that leads elsewhere.
    for release in ["../6.1", "6.1/0", "", "a b", "6.1\n0"] {
        assert_eq!(plan(release, &[]).code, Some(2), "{release:?}");
    }
    let ended = plan("6.1.0+deb12~a_b-amd64", &[]);
    assert_eq!(ended.code, Some(11), "{ended}");
}

/// Names the differences between two listings.
fn differences(
    before: &BTreeMap<PathBuf, ManifestEntry>,
    after: &BTreeMap<PathBuf, ManifestEntry>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (path, entry) in before {
        match after.get(path) {
            None => found.push(format!("{} is gone", path.display())),
            Some(now) if now == entry => {}
            // The times of the directory for temporary files change with a name in it.
            Some(now)
                if path.ends_with("temporary")
                    && (now.state, &now.content) == (entry.state, &entry.content) => {}
            Some(now) => found.push(format!("{}: {entry:?}, now {now:?}", path.display())),
        }
    }
    let new = after.keys().filter(|path| !before.contains_key(*path));
    found.extend(new.map(|path| format!("{} is new", path.display())));
    found
}

/// Runs the commands that only look, beside a store's directory of this mode that has these files, on a host in the
/// scene: they change nothing.
fn looks(mode: Option<u32>, files: &[&str]) {
    let scene = debian_12();
    let (tree, store, temporary) =
        (scene.path("tree"), scene.path("store"), scene.path("temporary"));
    let copied = Command::new("cp").arg("-a").arg(fixture(TREE)).arg(&tree).status();
    assert!(copied.expect("cp").success());
    fs::create_dir(&temporary).expect("directory");
    if let Some(mode) = mode {
        fs::create_dir(&store).expect("directory");
        for file in files {
            fs::write(store.join(file), "a file of the host's").expect("written");
        }
        fs::set_permissions(&store, fs::Permissions::from_mode(mode)).expect("mode");
    }
    let root = tree.display().to_string();
    for args in [&["plan"][..], &["plan", "--json"], &["doctor", "--online"], &["doctor"]] {
        let before = manifest(&scene.path(""));
        let args = [args, &["--root", &root, "--driver", "535"]].concat();
        let ended = finish(scene.agent(&args).env("TMPDIR", &temporary));
        ended.assert_done();
        let after = manifest(&scene.path(""));
        assert_eq!(differences(&before, &after), [""; 0], "{args:?}");
    }
    assert_eq!(names(&temporary), [""; 0], "what was fetched is removed");
}

#[test]
fn a_plan_and_a_diagnosis_change_nothing() {
    looks(None, &[]);
    for mode in [0o700, 0o755] {
        looks(Some(mode), &["note"]);
    }
    for mode in [0o777, 0o1777, 0o770] {
        looks(Some(mode), &[]);
    }
}

/// A plan of another user than root, without the contents of the store, which is root's.
#[test]
fn another_user_gets_a_plan_too() {
    let scene = debian_12();
    let store = scene.path("store");
    fs::create_dir(&store).expect("directory");
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).expect("mode");
    fs::write(store.join("note"), "a file of root's").expect("written");
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).expect("mode");
    let seen = scene.path("host");
    fs::create_dir(&seen).expect("directory");
    let seen = seen.to_str().expect("a path");
    // The checkout may be where another user does not come.
    let options = ["--bind", &fixture(TREE), seen, "--user", "65534"];
    let asked = ["plan", "--driver", "535", "--root", seen];
    let ended = finish(&mut scene.confined(&options, &asked));
    ended.assert_done();
    assert!(ended.out.starts_with("TO BE DONE"), "{ended}");
    assert_eq!(names(&store), ["note"]);
}
