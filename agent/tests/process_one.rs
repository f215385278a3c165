//! Tests of process 1: it passes signals on, exits with its child's code, and leaves no zombie.
//!
//! One test in a program of its own: it waits for every child of its process, so no other test may
//! have children there.

use std::process::Command;
use std::thread;

use longshore::lifecycle::init::supervise;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn process_one_ends_as_its_child_and_reaps_orphans() {
    // Orphans are adopted by this process as they are by process 1.
    set_child_subreaper(true).unwrap();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 20", 20),
        ("kill -KILL $$", 137),
        // A real-time signal, of its own or of an orphan that ends with it.
        ("kill -40 $$", 168),
        ("(kill -40 $(exec sh -c 'echo $PPID')) & exit 4", 4),
        // It ends only after its orphan was reaped: a zombie can still be signalled.
        ("o=$( (exit 0) >&2 & echo $! ); while kill -0 $o 2>&-; do :; done; exit 3", 3),
    ] {
        let ended = supervise(shell(script)).unwrap();
        assert_eq!(ended.code, code, "{script}");
        let signal = i32::from(code) - 128;
        assert_eq!(ended.signal, (signal > 0).then_some(signal), "{script}");
        let name = match code {
            137 => Some("SIGKILL"),
            168 => Some("signal 40"),
            _ => None,
        };
        assert_eq!(ended.signal_name().as_deref(), name, "{script}");
    }
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("ready");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let waits = format!(
        "trap 'exit 7' TERM; echo ready > {}; while :; do read line < {}; done",
        fifo.display(),
        dir.path().join("never").display()
    );
    nix::unistd::mkfifo(&dir.path().join("never"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let signalling = thread::spawn(move || {
        // Reading ends once the child has set its trap.
        std::fs::read_to_string(&fifo).unwrap();
        kill(Pid::this(), Signal::SIGTERM).unwrap();
    });
    assert_eq!(supervise(shell(&waits)).unwrap().code, 7, "TERM is passed on");
    signalling.join().unwrap();
    let up = dir.path().join("up");
    nix::unistd::mkfifo(&up, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let gate = dir.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let late = format!(
        "echo up > {}; read go < {}; trap 'exit 8' TERM; while :; do read line < {}; done",
        up.display(),
        gate.display(),
        dir.path().join("never").display()
    );
    let signalling = thread::spawn(move || {
        std::fs::read_to_string(&up).unwrap();
        kill(Pid::this(), Signal::SIGTERM).unwrap();
        std::fs::write(&gate, "go\n").unwrap();
    });
    assert_eq!(supervise(shell(&late)).unwrap().code, 8, "TERM waits until it is handled");
    signalling.join().unwrap();
    assert_eq!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Err(Errno::ECHILD), "no zombie is left");
}
