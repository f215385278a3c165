//! Files of an agent that ended, or one that runs: its lock and its state.

use std::fs;

use nix::sys::signal::Signal;

use longshore_tests::scene::{Scene, finish, names, send, start, wait};
use longshore_tests::server::Fault;

#[test]
fn where_nothing_is_there_that_is_said_and_nothing_made() {
    let scene = Scene::new();
    let ended = finish(&mut scene.agent(&["status"]));
    ended.assert_done();
    assert_eq!(ended.out, "driver    none\nagent     no agent has run here since boot\n");
    let ended = finish(&mut scene.agent(&["status", "--json"]));
    ended.assert_done();
    serde_json::from_str::<serde_json::Value>(&ended.out).expect("JSON");
    let ended = finish(&mut scene.agent(&["unload"]));
    ended.assert_done();
    assert!(ended.err.contains("nothing to undo"), "{ended}");
    assert_eq!(names(&scene.path("")), ["config.toml", "keyring.asc"]);
}

#[test]
fn a_state_that_cannot_be_understood_is_left_alone() {
    let cases = [
        ("", 13, "state.json"),
        ("{", 13, "state.json"),
        ("\0\0\0\0", 13, "state.json"),
        ("[]", 13, "state.json"),
        ("{\"format\": -1}", 13, "state.json"),
        ("{\"format\": 1, \"entries\": 3}", 13, "state.json"),
        ("{\"format\": 99, \"what\": \"is this\"}", 15, "format 99"),
    ];
    for (text, code, word) in cases {
        let scene = Scene::new();
        let state = scene.path("state-dir/state.json");
        fs::create_dir(scene.path("state-dir")).expect("directory");
        fs::write(&state, text).expect("write");
        for args in ["status", "unload", "run"] {
            let named = state.to_str().expect("a path");
            let ended = scene.refuses(scene.agent(&[args]), code, &[named, word]);
            // The host's state is shown all the same.
            assert_eq!(ended.out.contains("\njournal error "), args == "status", "{ended}");
            assert_eq!(fs::read_to_string(&state).expect("the file"), text, "{args}");
        }
    }
}

#[test]
fn a_second_agent_is_told_who_the_first_is() {
    let scene = Scene::new();
    let first = held(&scene);
    let pid = format!("pid {}", first.id());
    let state = fs::read(scene.path("state-dir/state.json")).expect("state");
    for command in ["run", "unload"] {
        let second = scene.agent(&[command, "--lock-deadline", "1s"]);
        scene.refuses_beside(second, 15, &[&pid, "SIGTERM"]);
    }
    let ended = finish(&mut scene.agent(&["status"]));
    ended.assert_done();
    assert!(ended.out.contains(&format!("running, pid {}", first.id())), "{ended}");
    assert_eq!(fs::read(scene.path("state-dir/state.json")).expect("state"), state);
    send(&first, Signal::SIGTERM);
    wait(first).assert_done();
    finish(&mut scene.agent(&["unload"])).assert_done();
}

#[test]
fn the_lock_of_an_agent_that_was_killed_is_free() {
    let scene = Scene::new();
    let first = held(&scene);
    send(&first, Signal::SIGKILL);
    assert_eq!(wait(first).signal, Some(Signal::SIGKILL as i32));
    let ended = finish(&mut scene.agent(&["status"]));
    ended.assert_done();
    assert!(ended.out.contains("agent     no agent has run here since boot"), "{ended}");
    finish(&mut scene.agent(&["unload"])).assert_done();
}

/// Starts an agent that runs and makes no progress: its archive stalls.
fn held(scene: &Scene) -> std::process::Child {
    scene.server.always("/dists/stable/InRelease", Fault::Stall);
    let tree = longshore_tests::scene::fixture("bookworm-t4");
    let agent = start(&mut scene.agent(&["run", "--root", &tree]));
    scene.server.await_request("InRelease");
    agent
}
