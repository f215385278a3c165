//! Tests of `longshore runtime` and `longshore docker-args` on a host in a directory.

use std::fs;

use longshore_tests::scene::{Scene, finish, fixture};

const DAEMON: &str = "etc/docker/daemon.json";

/// Makes a host with this daemon.json, and returns the path of its root.
fn host(scene: &Scene, daemon: &str) -> String {
    let root = scene.path("root");
    for dir in ["etc/docker", "var/lib", "proc", "sys"] {
        fs::create_dir_all(root.join(dir)).expect("directories");
    }
    fs::write(root.join(DAEMON), daemon).expect("written");
    root.display().to_string()
}

#[test]
fn docker_is_configured_when_told_to_and_put_back() {
    let scene = Scene::new();
    let before = "{\n\t\"live-restore\": true\n}\n";
    let root = host(&scene, before);
    let agent = |args: &[&str]| scene.agent(&[&["runtime"][..], args, &["--root", &root]].concat());
    let daemon = || fs::read_to_string(scene.path("root").join(DAEMON)).expect("read");

    scene.refuses(
        agent(&["check"]),
        19,
        &["docker does not read CDI specs", "runtime configure docker"],
    );
    let ended = scene.refuses(agent(&["configure", "docker"]), 19, &["--yes is missing"]);
    assert!(ended.out.contains("\n+\t\"features\": {\n"), "{ended}");
    finish(&mut agent(&["configure", "docker", "--dry-run"])).assert_done();
    assert_eq!(daemon(), before);

    let ended = finish(&mut agent(&["configure", "docker", "--yes"]));
    ended.assert_done();
    assert!(
        ended.out.contains("`systemctl restart docker.service` (its containers go on"),
        "{ended}"
    );
    let after = daemon();
    assert!(after.contains("\"cdi\": true"), "{after}");
    let ended = finish(&mut agent(&["configure", "docker", "--yes"]));
    ended.assert_done();
    assert!(ended.out.starts_with("docker              on "), "{ended}");
    finish(&mut agent(&["check", "docker"])).assert_done();
    // The host of this test has no systemctl.
    let again = ["configure", "docker", "--yes", "--restart"];
    scene.refuses(agent(&again), 19, &["restarting docker.service", "no systemctl"]);
    assert_eq!(daemon(), after);
    let mark = scene.path("root").join("var/lib/longshore/runtimes/docker.restart");
    fs::remove_file(&mark).expect("as after a restart");
    let ended = finish(&mut agent(&again));
    ended.assert_done();
    assert!(ended.out.contains("no edit of longshore's waits for a restart"), "{ended}");

    finish(&mut agent(&["revert", "docker"])).assert_done();
    assert_eq!(daemon(), before);
    let again = ["revert", "docker", "--restart"];
    scene.refuses(agent(&again), 19, &["restarting docker.service", "no systemctl"]);
    fs::remove_file(&mark).expect("as after a restart");
    finish(&mut agent(&again)).assert_done();
    let ended = finish(&mut agent(&["revert", "docker"]));
    ended.assert_done();
    assert_eq!(ended.out, "docker: longshore has configured nothing\n");
}

#[test]
fn a_file_that_docker_refuses_is_named_and_left() {
    let scene = Scene::new();
    let daemon = "{ // of the proxy\n}\n";
    let root = host(&scene, daemon);
    let args = ["runtime", "configure", "docker", "--yes", "--root", &root];
    let cause = "/etc/docker/daemon.json is a file that docker refuses";
    scene.refuses(scene.agent(&args), 19, &[cause, "comments", "dockerd --validate"]);
    assert_eq!(fs::read_to_string(scene.path("root").join(DAEMON)).expect("read"), daemon);
}

#[test]
fn wrong_command_lines_are_refused() {
    let scene = Scene::new();
    let root = host(&scene, "{}");
    for (args, cause) in [
        (&["runtime", "check", "lxc"][..], "not one of docker, containerd, crio, podman"),
        (&["runtime", "check", "podman", "--file", "/etc/x"], "--file goes with one RUNTIME"),
        (&["runtime", "check", "docker", "--file", "x"], "is an absolute path"),
        (&["runtime", "configure"], "required arguments were not provided"),
        (&["runtime", "configure", "docker", "--restart"], "required arguments were not provided"),
        (&["docker-args"], "required arguments were not provided"),
        (&["docker-args", "--gpus", "device="], "not `all`, a number above 0, or `device=0,1`"),
    ] {
        let ended = finish(&mut scene.agent(&[args, &["--root", &root]].concat()));
        assert!(ended.to_string().contains(cause), "{ended}");
        assert_eq!(ended.out, "");
    }
}

#[test]
fn without_a_driver_there_are_no_options_for_docker() {
    let scene = Scene::new();
    let args = ["docker-args", "--gpus", "all", "--root", &fixture("bookworm-t4")];
    scene.refuses(scene.agent(&args), 30, &["no NVIDIA driver is loaded", "longshore run"]);
}
