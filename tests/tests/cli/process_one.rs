//! The agent as process 1 of a container: signals in its first milliseconds, and a worker that is
//! killed.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use longshore_tests::packages;
use longshore_tests::scene::{Scene, fixture, longshore, names, start, until, wait};
use longshore_tests::server::Fault;

const TERM: u64 = 1 << (Signal::SIGTERM as u64 - 1);

/// Reads a line of /proc/PID/status.
fn status(pid: u32, key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"))?;
    Some(line.to_owned())
}

fn child_of(parent: u32) -> Option<u32> {
    let is_child = |pid: &u32| status(*pid, "PPid").is_some_and(|p| p == parent.to_string());
    names("/proc".as_ref()).iter().filter_map(|name| name.parse().ok()).find(is_child)
}

fn wait_for_child_of(parent: u32) -> u32 {
    until("it has a child", || child_of(parent).is_some());
    child_of(parent).expect("a child")
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.try_into().expect("a process id")), signal).expect("it is there");
}

#[test]
fn a_sigterm_in_its_first_milliseconds_ends_it_well() {
    let scene = Scene::with(packages::buildable(&[]));
    scene.server.always("/dists/stable/InRelease", Fault::Stall);
    let tree = fixture("bookworm-t4");
    for _ in 0..20 {
        let outside = start(&mut scene.contained(&["run", "--root", &tree]));
        let first = wait_for_child_of(outside.id());
        // Until process 1 blocks or catches a signal, the kernel drops it.
        let mask = |key| status(first, key).and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        let takes_term = || {
            // The program that starts it blocks signals, too.
            let program = fs::read_link(format!("/proc/{first}/exe"));
            let takes = ["SigBlk", "SigCgt"].into_iter().filter_map(mask).any(|m| m & TERM != 0);
            program.is_ok_and(|program| program == longshore()) && takes
        };
        until("it takes TERM", takes_term);
        send(first, Signal::SIGTERM);
        wait(outside).assert_done();
        scene.assert_sound();
    }
}

#[test]
fn the_message_of_a_worker_that_was_killed_is_left_by_process_one() {
    let scene = Scene::with(packages::buildable(&[]));
    let headers = scene.suite.pool(0);
    scene.server.always(&headers, Fault::Stall);
    let message = scene.path("termination-log");
    let path = message.to_str().expect("a path");
    let tree = fixture("bookworm-t4");
    let args = ["run", "--root", &tree, "--termination-message", path];
    let outside = start(&mut scene.contained(&args));
    let worker = wait_for_child_of(wait_for_child_of(outside.id()));
    scene.server.await_request(&headers);
    send(worker, Signal::SIGKILL);
    let ended = wait(outside);
    assert_eq!(ended.code, Some(137), "{ended}");
    let text = fs::read_to_string(&message).expect("a message");
    let expected =
        "exit code 137: the agent was killed by SIGKILL; remedy: if it was not killed on purpose";
    assert!(text.starts_with(expected), "{text}");
    let kept = fs::read_to_string(scene.path("state-dir/last-failure.json")).expect("a record");
    assert!(kept.contains("the agent was killed by SIGKILL"), "{kept}");
}
