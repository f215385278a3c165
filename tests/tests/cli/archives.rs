//! Archives that lack the wanted package, do not answer, or give a wrong answer.

use std::fs;
use std::process::Command;

use longshore_tests::archive::{self, Suite};
use longshore_tests::packages::{self, DRIVER, Item, KERNEL, deb};
use longshore_tests::scene::{Scene, finish, fixture, names};
use longshore_tests::server::{Closed, Fault};

const IN_RELEASE: &str = "/dists/stable/InRelease";
const BUILD: [&str; 3] = ["build", "--kernel", KERNEL];

fn buildable() -> Scene {
    Scene::with(packages::buildable(&[]))
}

fn position(scene: &Scene, package: &str) -> String {
    let field = format!("Package: {package}\n");
    let at = scene.suite.packages.iter().position(|(stanza, _)| stanza.starts_with(&field));
    scene.suite.pool(at.unwrap_or_else(|| panic!("no package {package}")))
}

#[test]
fn an_unknown_kernel_is_told_the_nearest_that_there_are() {
    for command in ["build", "fetch"] {
        let scene = buildable();
        let asked = scene.agent(&[command, "--kernel", "6.1.0-99-amd64"]);
        scene.refuses(asked, 11, &["linux-headers-6.1.0-99-amd64", KERNEL]);
    }
}

#[test]
fn an_unknown_driver_is_told_the_nearest_that_there_are() {
    for command in ["build", "fetch"] {
        let scene = buildable();
        let asked = scene.agent(&[command, "--kernel", KERNEL, "--driver", "535.999"]);
        scene.refuses(asked, 12, &["driver 535.999", DRIVER]);
        let asked = scene.agent(&[command, "--kernel", KERNEL, "--flavour", "open"]);
        scene.refuses(asked, 12, &["driver open", &format!("{DRIVER} proprietary")]);
    }
}

#[test]
fn an_archive_where_nobody_listens_is_named() {
    let scene = buildable();
    let closed = Closed::new();
    scene.configure(&scene.archive_at(&closed.url()));
    let expected = [&format!("{}{IN_RELEASE}", closed.url()), "Connection refused"];
    scene.refuses(scene.agent(&BUILD), 12, &expected);
}

#[test]
fn metadata_that_is_not_what_it_should_be_is_refused() {
    let scene = buildable();
    let signed = String::from_utf8(scene.server.remove(IN_RELEASE)).expect("text");
    let half = signed.as_bytes()[..signed.len() / 2].to_vec();
    let changed = signed.replace("Origin: Test", "Origin: Evil").into_bytes();
    let stranger = archive::sign(&archive::key(), &scene.suite.release());
    let unsigned = scene.suite.release().into_bytes();
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("garbage", b"<html>log in first</html>".to_vec(), "PGP"),
        ("nothing", Vec::new(), "PGP"),
        ("half of it", half, "URL/dists/stable/InRelease"),
        ("a bad signature", changed, "does not match"),
        ("an unknown key", stranger, "not in the keyring"),
        ("no signature", unsigned, "PGP"),
    ];
    for (what, bytes, word) in cases {
        eprintln!("{what}");
        scene.server.put(IN_RELEASE, bytes);
        scene.refuses(scene.agent(&BUILD), 13, &["URL/dists/stable/InRelease", word]);
    }
    scene.server.remove(IN_RELEASE);
    scene.server.put("/dists/stable/Release", scene.suite.release().into_bytes());
    let expected = ["URL/dists/stable/Release", "no OpenPGP signature"];
    scene.refuses(scene.agent(&BUILD), 13, &expected);
}

#[test]
fn expired_metadata_is_refused_unless_the_archive_is_frozen() {
    let mut suite = packages::buildable(&[]);
    suite.more.push_str("Valid-Until: Sun, 12 Jul 2020 10:16:37 UTC\n");
    let scene = Scene::with(suite);
    let expected = ["2020-07-12", "--archive-frozen"];
    scene.refuses(scene.agent(&BUILD), 13, &expected);
    // Accepted: the next error is the unknown kernel.
    let asked = scene.agent(&["build", "--kernel", "6.1.0-99-amd64", "--archive-frozen"]);
    scene.refuses(asked, 11, &["6.1.0-99-amd64"]);
}

#[test]
fn metadata_older_than_was_seen_before_is_refused_unless_the_archive_is_frozen() {
    let mut scene = buildable();
    let unknown = ["build", "--kernel", "6.1.0-99-amd64"];
    let mut serve = |date: &str| {
        date.clone_into(&mut scene.suite.date);
        scene.server.put(IN_RELEASE, archive::sign(&scene.key, &scene.suite.release()));
        let frozen = [&unknown[..], &["--archive-frozen"]].concat();
        [scene.agent(&unknown), scene.agent(&frozen)]
    };
    // Accepted: the next error is the unknown kernel.
    let assert_accepted = |mut command| {
        let ended = finish(&mut command);
        assert_eq!(ended.code, Some(11), "{ended}");
    };
    let [now, _] = serve("Sat, 11 Jul 2026 10:16:37 UTC");
    assert_accepted(now);
    let [lagging, _] = serve("Sun, 05 Jul 2026 10:16:37 UTC");
    assert_accepted(lagging);
    let [mut old, frozen] = serve("Mon, 15 Jun 2026 10:16:37 UTC");
    let ended = finish(&mut old);
    let expected = ["2026-06-15", "2026-07-11", "dists/stable"].map(str::to_owned);
    ended.assert_failed(13, &expected);
    assert!(ended.err.contains("--archive-frozen"), "{ended}");
    assert_accepted(frozen);
    scene.assert_sound();
}

#[test]
fn a_keyring_that_cannot_be_used_is_a_mistake_of_the_configuration() {
    let scene = buildable();
    let keyring = scene.path("keyring.asc");
    let named = keyring.to_str().expect("a path");
    fs::write(&keyring, "no key").expect("write");
    scene.refuses(scene.agent(&BUILD), 2, &[named, "no OpenPGP certificate"]);
    fs::remove_file(&keyring).expect("remove");
    scene.refuses(scene.agent(&BUILD), 2, &[named, "No such file"]);
}

#[test]
fn a_package_that_is_not_what_the_index_says_is_refused() {
    let scene = buildable();
    let path = position(&scene, "make");
    let good = scene.server.remove(&path);
    let mut changed = good.clone();
    changed[100] ^= 1;
    let url = format!("URL{path}");
    scene.server.put(&path, changed);
    scene.refuses(scene.agent(&BUILD), 13, &[&url, "sha256"]);
    scene.server.put(&path, good[..good.len() / 2].to_vec());
    scene.refuses(scene.agent(&BUILD), 13, &[&url, "bytes"]);
    scene.server.remove(&path);
    scene.refuses(scene.agent(&BUILD), 12, &[&url, "404"]);
    scene.server.put(&path, good);
    scene.server.always(&path, Fault::Cut);
    scene.refuses(scene.agent(&BUILD), 12, &[&url]);
}

#[test]
fn a_package_that_was_signed_for_and_is_damaged_or_hostile_is_refused_by_name() {
    let whole = deb(&[Item::File("./usr/bin/make", &archive::noise(100_000))]);
    let evil = |items: &[Item<'_>]| deb(items);
    let cases = [
        ("cut off", whole[..whole.len() / 2].to_vec()),
        ("no package", b"<html>".to_vec()),
        ("empty", Vec::new()),
        ("parent", evil(&[Item::File("../../../../evil", b"evil")])),
        ("parent within", evil(&[Item::File("usr/../../../../../evil", b"evil")])),
        ("absolute", evil(&[Item::File("/tmp/longshore-cli-test-evil", b"evil")])),
        (
            "through a link",
            evil(&[Item::Link("./d", "/tmp"), Item::File("./d/longshore-cli-test-evil", b"evil")]),
        ),
        (
            "through a relative link",
            evil(&[Item::Link("./d", "../../.."), Item::File("./d/evil", b"evil")]),
        ),
    ];
    for package in ["make", "nvidia-kernel-source"] {
        for (what, bytes) in &cases {
            // Only the files below usr/src of a driver's package are unpacked at all.
            if package == "nvidia-kernel-source"
                && !matches!(*what, "cut off" | "no package" | "empty")
            {
                continue;
            }
            eprintln!("{package}: {what}");
            let scene = Scene::with(packages::buildable(&[(package, bytes.clone())]));
            scene.refuses(scene.agent(&BUILD), 13, &[package]);
            assert!(!scene.path("evil").exists() && !scene.path("store/evil").exists());
            assert!(!std::path::Path::new("/tmp/longshore-cli-test-evil").exists());
            let roots = names(&scene.path("store/roots"));
            let unfinished = package == "make" && roots.iter().any(|name| !name.ends_with(".lock"));
            assert!(!unfinished, "{roots:?}");
        }
    }
}

#[test]
fn a_driver_that_does_not_compile_ends_with_the_compilers_words() {
    let said = "x.c:1:1: error: implicit declaration of function 'strncpy'\n";
    let make = deb(&[Item::Program("./usr/bin/make", &packages::saying(said, 2))]);
    let scene = Scene::with(packages::buildable(&[("make", make)]));
    let ended = scene.refuses(scene.agent(&BUILD), 14, &["strncpy", KERNEL, DRIVER]);
    let log = scene.path("store/logs").display().to_string();
    assert!(ended.err.contains(&log), "{ended}");
    assert_eq!(names(&scene.path("store/sets")).iter().filter(|n| n.ends_with(".json")).count(), 0);
}

#[test]
fn what_cannot_be_resolved_is_named_with_who_asks_for_it() {
    let mut suite = packages::buildable(&[]);
    suite.packages.retain(|(stanza, _)| !stanza.starts_with("Package: make\n"));
    let scene = Scene::with(suite);
    scene.refuses(scene.agent(&BUILD), 11, &["make"]);
    let scene = Scene::with(Suite { packages: Vec::new(), ..Suite::usual() });
    scene.refuses(scene.agent(&BUILD), 12, &["contrib"]);
}

#[test]
fn without_any_archive_nothing_can_be_installed() {
    let scene = Scene::new();
    scene.configure("");
    let said = ["no archive is configured", "[[archive]]"];
    scene.refuses(scene.agent(&BUILD), 12, &said);
    let tree = fixture("bookworm-t4");
    let ended = finish(&mut scene.agent(&["plan", "--root", &tree]));
    assert_eq!(ended.code, Some(12), "{ended}");
    assert!(
        ended.out.starts_with("REFUSED") && said.iter().all(|text| ended.words().contains(text)),
        "{ended}"
    );
    let ended = finish(&mut scene.agent(&["doctor", "--online", "--root", &tree]));
    assert_eq!(ended.code, Some(12), "{ended}");
}

/// Another machine's sources are not to be judged from here: neither a plan that could be carried out, nor a refusal.
#[test]
fn a_captured_tree_without_an_answer_of_its_sources_is_not_decided() {
    let scene = Scene::new();
    scene.configure(&format!(
        "[[archive]]\nurl = \"http://127.0.0.1:9/debian\"\nsuites = [\"bookworm\"]\n\
         components = [\"main\"]\nkeyring = \"{}\"\n",
        scene.path("keyring.asc").display()
    ));
    let tree = fixture("bookworm-t4");
    let ended = finish(&mut scene.agent(&["plan", "--root", &tree]));
    assert_eq!(ended.code, Some(12), "{ended}");
    assert!(ended.out.starts_with("CANNOT BE DECIDED HERE"), "{ended}");
    assert_eq!(ended.out.matches("127.0.0.1:9").count(), 1, "{ended}");
    for args in [&["plan", "--json"][..], &["doctor", "--online", "--json"]] {
        let ended = finish(&mut scene.agent(&[args, &["--root", &tree]].concat()));
        assert_eq!(ended.code, Some(12), "{ended}");
        let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
        assert_eq!((&answer["verdict"], &answer["exit_code"]), (&"undecided".into(), &12.into()));
    }
    // A host that no driver is for is refused all the same.
    let ended = finish(&mut scene.agent(&["plan", "--root", &fixture("bookworm-no-gpu")]));
    assert_eq!(ended.code, Some(17), "{ended}");
}

/// The keyring is read once, the server that is away asked a bounded number of times, and the answer stays short.
#[test]
fn a_host_with_ten_thousand_sources_is_answered_in_a_bounded_time_and_length() {
    let scene = Scene::new();
    let (tree, closed) = (scene.path("tree"), Closed::new());
    let copied = Command::new("cp").arg("-a").arg(fixture("bookworm-t4")).arg(&tree).status();
    assert!(copied.expect("cp runs").success());
    let keyring = tree.join("usr/share/keyrings/many.asc");
    fs::create_dir_all(keyring.parent().expect("a directory")).expect("made");
    fs::copy(scene.path("keyring.asc"), &keyring).expect("copied");
    let source = |number: usize| {
        let url = format!("{}/{number}", closed.url());
        format!("deb [signed-by=/usr/share/keyrings/many.asc] {url} bookworm main\n")
    };
    let sources: String = (0..10_000).map(source).collect();
    fs::create_dir_all(tree.join("etc/apt/sources.list.d")).expect("made");
    fs::write(tree.join("etc/apt/sources.list.d/many.list"), sources).expect("written");
    let tree = tree.to_str().expect("a path");
    scene.configure("");
    let ended = finish(&mut scene.agent(&["plan", "--host-apt", "--root", tree]));
    assert_eq!(ended.code, Some(12), "{ended}");
    assert!(ended.out.starts_with("CANNOT BE DECIDED HERE"), "{ended}");
    assert!(ended.out.contains(&closed.url()) && ended.out.len() < 10_000, "{ended}");
    let lines = ended.err.lines().count();
    assert!(lines < 5 * 200 + 20, "{lines} lines");
}

/// A typo in a path is told as such: with nothing in the store, nothing could be installed without it.
#[test]
fn a_file_that_the_configuration_names_and_that_is_missing_ends_plan_and_doctor() {
    let tree = fixture("bookworm-t4");
    let scene = Scene::new();
    let keyring = "[[archive]]\nurl = \"https://archive.example.com/debian\"\nsuites = [\"bookworm\"]\n\
                   components = [\"main\"]\nkeyring = \"/nonexistent.gpg\"\n";
    for (configuration, more) in [
        (keyring, &[][..]),
        ("", &["--build-root", "/nonexistent"]),
        ("", &["--prebuilt", "/nonexistent"]),
    ] {
        scene.configure(configuration);
        let ended = finish(&mut scene.agent(&[&["plan", "--root", &tree][..], more].concat()));
        assert_eq!(ended.code, Some(2), "{ended}");
        assert!(ended.err.contains("/nonexistent"), "{ended}");
        let asked = [&["doctor", "--online", "--root", &tree][..], more].concat();
        let ended = finish(&mut scene.agent(&asked));
        assert_eq!(ended.code, Some(2), "{ended}");
        assert!(ended.out.contains("/nonexistent"), "{ended}");
    }
}

#[test]
fn a_local_file_that_is_none_is_refused_at_once_and_said_once() {
    let scene = buildable();
    let pipe = scene.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("pipe");
    let pipe = pipe.to_str().expect("a path");
    let digest = "0".repeat(64);
    for (place, code) in [(pipe, 12), ("/dev/zero", 12), ("/no/such.run", 12)] {
        for command in [&BUILD[..], &["run", "--root", &fixture("bookworm-t4")]] {
            let pinned = ["--run-file", place, "--run-file-sha256", &digest];
            let asked = scene.agent(&[command, &pinned].concat());
            scene.refuses(asked, code, &[place]);
        }
    }
    let asked =
        scene.agent(&[&BUILD[..], &["--run-file", "/x.run", "--run-file-checksum", pipe]].concat());
    scene.refuses(asked, 12, &[pipe, "no regular file"]);
    scene.configure(&scene.archive_at(&format!("file://{}", scene.path("").display())));
    fs::create_dir_all(scene.path("dists/stable")).expect("directory");
    std::os::unix::fs::symlink(pipe, scene.path("dists/stable/InRelease")).expect("link");
    scene.refuses(scene.agent(&BUILD), 12, &["dists/stable/InRelease", "no regular file"]);
}
