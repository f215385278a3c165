//! Tests of `longshore cdi`: specs that are there, are refused, or cannot be made.

use std::fs;

use longshore_tests::scene::{Scene, finish, fixture, names};

const SPEC: &str = r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/net", "devices": [
    {"name": "eth1", "containerEdits": {"deviceNodes": [{"path": "/dev/eth1"}]}}]}"#;

#[test]
fn without_an_exposed_driver_there_is_no_spec() {
    let scene = Scene::new();
    for (tree, cause) in [
        ("bookworm-t4", "no NVIDIA driver is loaded"),
        ("bookworm-t4-live", "no driver is exposed at "),
    ] {
        let tree = fixture(tree);
        for args in [&["cdi", "show"][..], &["cdi", "show", "--json"]] {
            let args = [args, &["--root", &tree]].concat();
            let ended = scene.refuses(scene.agent(&args), 30, &[cause, "longshore run"]);
            assert_eq!(ended.out, "");
        }
    }
}

#[test]
fn a_part_that_there_is_not_is_refused() {
    let scene = Scene::new();
    let mut command = scene.agent(&["cdi", "show"]);
    command.env("LONGSHORE_CDI_CAPABILITIES", "compute,display");
    scene.refuses(command, 2, &["LONGSHORE_CDI_CAPABILITIES", "`display` is not compute, utility"]);
}

#[test]
fn specs_of_a_host_are_listed_and_a_refused_one_is_the_failure() {
    let scene = Scene::new();
    let root = scene.path("root");
    let cdi = root.join("etc/cdi");
    fs::create_dir_all(&cdi).expect("directories");
    let list = ["cdi", "list", "--root", root.to_str().expect("a path")];
    let before = names(&scene.path(""));
    let empty = finish(&mut scene.agent(&list));
    empty.assert_done();
    assert_eq!(empty.out, "no CDI spec is in /etc/cdi or /var/run/cdi\n");
    fs::write(cdi.join("net.json"), SPEC).expect("written");
    let ended = finish(&mut scene.agent(&list));
    ended.assert_done();
    let line = "vendor.com/net=eth1  /etc/cdi/net.json\n";
    assert_eq!(ended.out, line);
    fs::write(cdi.join("other.json"), SPEC.replace("0.5.0", "0.2.0")).expect("written");
    let cause = "/etc/cdi/other.json is no spec that runtimes accept";
    let ended = scene.refuses(scene.agent(&list), 13, &[cause, "0.2.0 is lower than 0.3.0"]);
    assert!(ended.out.starts_with(line), "{ended}");
    assert!(ended.out.contains("refused     /etc/cdi/other.json: "), "{ended}");
    assert_eq!(names(&scene.path("")), before, "no store, no record, no lock");
}
