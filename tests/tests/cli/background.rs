//! `fetch --background`, by which an agent prepares the next kernel: its priority, and its end.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;

use longshore_tests::packages::{self, Item, KERNEL, deb};
use longshore_tests::scene::{Scene, names, send, start, until, wait};
use longshore_tests::server::Fault;

const FETCH: [&str; 4] = ["fetch", "--background", "--kernel", KERNEL];
/// SCHED_IDLE, and the lowest priority (sched(7)).
const LOWEST: (&str, &str) = ("5", "19");

/// State of a process or thread by proc_pid_stat(5).
#[derive(Debug)]
struct Stat {
    state: String,
    parent: u32,
    nice: String,
    policy: String,
}

fn stat(path: &str) -> Option<Stat> {
    let text = fs::read_to_string(path).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    let field = |number: usize| fields.get(number - 3).map(|text| (*text).to_owned());
    Some(Stat {
        state: field(3)?,
        parent: field(4)?.parse().ok()?,
        nice: field(19)?,
        policy: field(41)?,
    })
}

/// Returns the processes that `pid` started, and those that they started.
fn descendants(pid: u32) -> BTreeMap<u32, Stat> {
    let pids =
        names(std::path::Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let all: BTreeMap<u32, Stat> =
        pids.filter_map(|pid: u32| Some((pid, stat(&format!("/proc/{pid}/stat"))?))).collect();
    let is_below = |of: &u32| {
        let mut above = Some(*of);
        while let Some(parent) = above.and_then(|above| all.get(&above)).map(|stat| stat.parent) {
            if parent == pid {
                return true;
            }
            above = (parent > 1).then_some(parent);
        }
        false
    };
    let below: Vec<u32> = all.keys().filter(|of| is_below(of)).copied().collect();
    all.into_iter().filter(|(of, _)| below.contains(of)).collect()
}

#[test]
fn each_thread_and_compiler_has_the_lowest_priority() {
    let gcc = deb(&[Item::Program("./usr/bin/gcc-12", &packages::endless())]);
    let scene = Scene::with(packages::buildable(&[("gcc-12", gcc)]));
    let child = start(&mut scene.agent(&FETCH));
    let is_compiler = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with(b"/usr/bin/gcc-12"))
    };
    until("the compiler runs", || descendants(child.id()).keys().any(is_compiler));
    let tasks = format!("/proc/{}/task", child.id());
    let threads = names(std::path::Path::new(&tasks)).into_iter();
    let threads: Vec<Stat> =
        threads.filter_map(|tid| stat(&format!("{tasks}/{tid}/stat"))).collect();
    assert!(threads.len() > 1, "{threads:?}");
    for stat in threads.iter().chain(descendants(child.id()).values()) {
        assert_eq!((&*stat.policy, &*stat.nice), LOWEST, "{stat:?}");
    }
    send(&child, Signal::SIGTERM);
    assert_eq!(wait(child).signal, Some(Signal::SIGTERM as i32));
    scene.assert_sound();
}

#[test]
fn it_ends_with_the_process_that_started_it() {
    let scene = Scene::with(packages::buildable(&[]));
    let headers = scene.suite.pool(0);
    scene.server.always(&headers, Fault::Stall);
    let fetch = scene.agent(&FETCH);
    let mut parent = Command::new("sh");
    parent.args(["-c", "\"$@\" & wait", "sh"]).arg(fetch.get_program()).args(fetch.get_args());
    for (name, value) in fetch.get_envs() {
        match value {
            Some(value) => parent.env(name, value),
            None => parent.env_remove(name),
        };
    }
    let parent = start(&mut parent);
    scene.server.await_request(&headers);
    let fetch = descendants(parent.id()).into_keys().next().expect("it runs");
    send(&parent, Signal::SIGKILL);
    let has_ended = || stat(&format!("/proc/{fetch}/stat")).is_none_or(|stat| stat.state == "Z");
    until("it has ended", has_ended);
    wait(parent);
    scene.assert_sound();
}
