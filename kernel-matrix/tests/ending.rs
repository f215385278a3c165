//! A run that is ended by a signal leaves no process and no unfinished directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(120);

/// Two cells, so that there would be another after the first.
const MATRIX: &str = "[guest]\nsuite = 'bookworm'\npackages = []\n\
    [[cell]]\nname = 'a'\nscenario = 'build'\n\
    kernel = { suite = 'bookworm', package = 'linux-image-amd64' }\n\
    driver = { branch = '535', flavour = 'open' }\n\
    [[cell]]\nname = 'b'\nscenario = 'build'\n\
    kernel = { suite = 'bookworm', package = 'linux-image-amd64' }\n\
    driver = { branch = '535', flavour = 'open' }\n";

/// Stands in for longshore: a shell, and a child of it that ignores TERM. Both write down their ids
/// and do not end by themselves.
const LONGSHORE: &str = "#!/bin/sh\n\
    (trap '' TERM; exec sleep 1000) &\n\
    echo $! > \"$0.child\"; echo $$ > \"$0.shell\"; wait\n";

struct Run {
    child: Child,
    program: PathBuf,
    _dir: tempfile::TempDir,
}

fn start() -> Run {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (matrix, program) = (dir.path().join("matrix.toml"), dir.path().join("longshore"));
    fs::write(&matrix, MATRIX).expect("written");
    longshore_core::testing::write_program(&program, LONGSHORE);
    let child = Command::new(env!("CARGO_BIN_EXE_kernel-matrix"))
        .arg("--matrix")
        .arg(&matrix)
        .args(["run", "--jobs", "1", "--image", "/nonexistent", "--longshore"])
        .arg(&program)
        .env("LONGSHORE_CACHE", dir.path().join("cache"))
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    Run { child, program, _dir: dir }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Run {
    /// Returns the shell and its child, once they are there.
    fn programs(&self) -> [Pid; 2] {
        ["longshore.shell", "longshore.child"].map(|name| {
            let path = self.program.with_file_name(name);
            let read = || fs::read_to_string(&path).unwrap_or_default().trim().parse().ok();
            wait_until(name, || read().is_some());
            Pid::from_raw(read().expect("a number"))
        })
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("sent");
    }
}

/// True for a process that has not ended. One that has is a zombie until its parent reaps it, which
/// for an orphan is up to the machine's process 1.
fn is_there(pid: Pid) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    status.is_ok_and(|status| !status.contains("\nState:\tZ"))
}

#[test]
fn an_interrupt_ends_all_that_was_started_and_begins_nothing_more() {
    let mut run = start();
    let programs = run.programs();
    assert!(programs.into_iter().all(is_there));
    run.signal(Signal::SIGINT);
    let status = run.child.wait().expect("ended");
    assert_eq!(status.code(), Some(128 + Signal::SIGINT as i32));
    for pid in programs {
        wait_until("an end", || !is_there(pid));
    }
    let cache = run.program.with_file_name("cache/matrix");
    assert!(cache.join("runs/a").exists() && !cache.join("runs/b").exists());
}

#[test]
fn no_program_and_nothing_that_it_started_outlives_a_harness_that_is_killed() {
    let mut run = start();
    let programs = run.programs();
    run.signal(Signal::SIGKILL);
    run.child.wait().expect("ended");
    for pid in programs {
        wait_until("an end", || !is_there(pid));
    }
}
