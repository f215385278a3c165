//! TERM and INT while the agent or a command is busy.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use longshore_tests::packages::{self, Item, KERNEL, deb};
use longshore_tests::scene::{Ended, Scene, fixture, names, send, start, until, wait};
use longshore_tests::server::Fault;

const PROMPT: Duration = Duration::from_secs(5);

fn stop(child: Child, signal: Signal) -> Ended {
    let since = Instant::now();
    send(&child, signal);
    let ended = wait(child);
    assert!(since.elapsed() < PROMPT, "{:?}: {ended}", since.elapsed());
    ended.assert_no_panic();
    ended
}

/// Returns the path of the kernel's headers package on the server.
fn headers(scene: &Scene) -> String {
    scene.suite.pool(0)
}

#[test]
fn a_run_that_is_stopped_before_it_installs_has_done_nothing_and_is_no_failure() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        for acquiring in [false, true] {
            let scene = Scene::with(packages::buildable(&[]));
            let stalled = match acquiring {
                true => headers(&scene),
                false => "/dists/stable/InRelease".to_owned(),
            };
            scene.server.always(&stalled, Fault::Stall);
            let child = start(&mut scene.agent(&["run", "--root", &fixture("bookworm-t4")]));
            scene.server.await_request(&stalled);
            let ended = stop(child, signal);
            ended.assert_done();
            assert!(!ended.err.contains("error"), "{ended}");
            scene.assert_sound();
            let state = fs::read_to_string(scene.path("state-dir/state.json")).expect("state");
            assert!(state.contains("\"removed\""), "{state}");
        }
    }
}

/// The further signals come at any time: while the first is handled, or after the end.
#[test]
fn a_run_that_is_told_again_and_again_to_stop_stops_once() {
    for times in 2..8 {
        let scene = Scene::with(packages::buildable(&[]));
        let stalled = headers(&scene);
        scene.server.always(&stalled, Fault::Stall);
        let child = start(&mut scene.agent(&["run", "--root", &fixture("bookworm-t4")]));
        scene.server.await_request(&stalled);
        for _ in 1..times {
            send(&child, Signal::SIGTERM);
            std::thread::yield_now();
        }
        let ended = stop(child, Signal::SIGTERM);
        ended.assert_done();
        let said = |what: &str| ended.log().iter().filter(|line| line["message"] == what).count();
        assert_eq!(said("SIGTERM: stopping"), 1, "{ended}");
        assert!(said("SIGTERM: stopping already") < times, "{ended}");
        scene.assert_sound();
    }
}

/// The agent's first action is to block signals until they are handled.
#[test]
fn a_run_that_is_stopped_while_it_starts_is_no_failure() {
    const TERM: u64 = 1 << (Signal::SIGTERM as u64 - 1);
    let scene = Scene::with(packages::buildable(&[]));
    scene.server.always("/dists/stable/InRelease", Fault::Stall);
    for _ in 0..20 {
        let child = start(&mut scene.agent(&["run", "--root", &fixture("bookworm-t4")]));
        let status = format!("/proc/{}/status", child.id());
        let takes_term = || {
            let status = fs::read_to_string(&status).expect("it runs");
            let masks = status.lines().filter_map(|line| {
                let mask = line.strip_prefix("SigBlk:\t").or(line.strip_prefix("SigCgt:\t"))?;
                u64::from_str_radix(mask, 16).ok()
            });
            masks.fold(0, |all, mask| all | mask) & TERM != 0
        };
        until("it takes TERM", takes_term);
        stop(child, Signal::SIGTERM).assert_done();
        scene.assert_sound();
    }
}

/// A build, a fetch or a plan is an interactive command: it ends by the signal that stopped it.
#[test]
fn a_command_that_is_stopped_while_fetching_leaves_nothing_and_ends_by_the_signal() {
    for (args, signal) in [
        (&["build", "--kernel", KERNEL][..], Signal::SIGTERM),
        (&["fetch", "--kernel", KERNEL], Signal::SIGINT),
    ] {
        let scene = Scene::with(packages::buildable(&[]));
        scene.server.always(&headers(&scene), Fault::Stall);
        let child = start(&mut scene.agent(args));
        scene.server.await_request(&headers(&scene));
        until("the download is begun", || !names(&scene.path("store/tmp")).is_empty());
        let ended = stop(child, signal);
        assert_eq!(ended.signal, Some(signal as i32), "{ended}");
        assert!(ended.err.contains(signal.as_str()), "{ended}");
        scene.assert_sound();
    }
}

#[test]
fn a_build_that_is_stopped_leaves_no_process_no_mount_and_no_directory() {
    let gcc = deb(&[Item::Program("./usr/bin/gcc-12", &packages::endless())]);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let scene = Scene::with(packages::buildable(&[("gcc-12", gcc.clone())]));
        let child = start(&mut scene.agent(&["build", "--kernel", KERNEL]));
        until("the compiler runs", || sandboxed(&scene, "/usr/bin/gcc-12") == 1);
        let ended = stop(child, signal);
        assert_eq!(ended.signal, Some(signal as i32), "{ended}");
        until("all have ended", || sandboxed(&scene, "") == 0);
        if signal == Signal::SIGKILL {
            // The killed build could not remove it: the next build does.
            assert_eq!(names(&scene.path("store/tmp")).len(), 1);
            let child = start(&mut scene.agent(&["build", "--kernel", KERNEL]));
            until("the compiler runs", || sandboxed(&scene, "/usr/bin/gcc-12") == 1);
            stop(child, Signal::SIGTERM);
        }
        scene.assert_sound();
    }
}

#[test]
fn a_download_that_was_killed_is_removed_by_the_next_build() {
    let make = deb(&[Item::Program("./usr/bin/make", &packages::saying("x.c:1: error: no\n", 2))]);
    let scene = Scene::with(packages::buildable(&[("make", make)]));
    scene.server.once(&headers(&scene), Fault::Stall);
    let child = start(&mut scene.agent(&["build", "--kernel", KERNEL]));
    scene.server.await_request(&headers(&scene));
    until("the download is begun", || !names(&scene.path("store/tmp")).is_empty());
    stop(child, Signal::SIGKILL);
    assert_eq!(names(&scene.path("store/tmp")).len(), 1);
    scene.refuses(scene.agent(&["build", "--kernel", KERNEL]), 14, &["x.c:1"]);
}

/// Counts the processes whose command line begins with `text` and that have the scene's store
/// mounted.
fn sandboxed(scene: &Scene, text: &str) -> usize {
    let store = scene.path("store").display().to_string();
    let is_ours = |process: &&String| {
        let read = |what: &str| fs::read(format!("/proc/{process}/{what}")).unwrap_or_default();
        read("cmdline").starts_with(text.as_bytes())
            && String::from_utf8_lossy(&read("mountinfo")).contains(&store)
    };
    let is_process = |name: &&String| name.bytes().all(|b| b.is_ascii_digit());
    names("/proc".as_ref()).iter().filter(is_process).filter(is_ours).count()
}
