//! An archive, a store and a configuration for one test, and the program run with them.

use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use longshore_core::deadlines::Deadlines;
use longshore_core::disk::Disk;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use pgp::composed::SignedSecretKey;

use crate::archive::{self, Suite};
use crate::server::Server;

/// The agent's main function, as this package builds it.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/fixtures");

/// Time limit of every command in these tests, with retries, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(180);

/// The disk under a test's stores, with the default deadline.
pub fn disk() -> Disk {
    Disk::within(Deadlines::default().disk)
}

/// A directory, an archive on a server, and a configuration that names both.
pub struct Scene {
    dir: tempfile::TempDir,
    /// Key that signs the archive.
    pub key: SignedSecretKey,
    /// Suite of the archive.
    pub suite: Suite,
    /// Server of the archive.
    pub server: Server,
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    /// Makes a scene with the usual suite.
    pub fn new() -> Self {
        Self::with(Suite::usual())
    }

    /// Makes a scene with this suite.
    pub fn with(suite: Suite) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let key = archive::key();
        let server = Server::start(suite.files(&key));
        let scene = Self { dir, key, suite, server };
        fs::write(scene.path("keyring.asc"), archive::certificate(&scene.key)).expect("keyring");
        scene.configure(&scene.archive_at(&scene.server.url()));
        scene
    }

    /// Returns a path below the scene's directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// Returns the `[[archive]]` of the scene's suite, at `url`.
    pub fn archive_at(&self, url: &str) -> String {
        let keyring = self.path("keyring.asc");
        format!(
            "[[archive]]\nurl = \"{url}\"\nsuites = [\"{}\"]\ncomponents = [\"{}\"]\n\
             keyring = \"{}\"\n",
            self.suite.name,
            self.suite.component,
            keyring.display()
        )
    }

    /// Writes the configuration file.
    pub fn configure(&self, text: &str) {
        fs::write(self.path("config.toml"), text).expect("configuration");
    }

    /// Returns all settings of paths, within the scene and not on this machine, which override the
    /// file.
    fn environment(&self) -> [(&'static str, PathBuf); 7] {
        [
            ("LONGSHORE_STORE", self.path("store")),
            ("LONGSHORE_STATE_DIR", self.path("state-dir")),
            ("LONGSHORE_DRIVER_ROOT", self.path("driver-root")),
            ("LONGSHORE_PARAMETERS_DIR", self.path("parameters-dir")),
            ("LONGSHORE_HOST_APT", "false".into()),
            // Tests run in parallel.
            ("LONGSHORE_LISTEN", "off".into()),
            ("LONGSHORE_TERMINATION_MESSAGE", "off".into()),
        ]
    }

    /// Returns the program with the scene's configuration and environment, and no other.
    pub fn agent(&self, args: &[&str]) -> Command {
        let mut command = Command::new(longshore());
        command
            .env_clear()
            .envs(self.environment())
            .args(args)
            .arg("--config")
            .arg(self.path("config.toml"));
        command
    }

    /// Like [`Scene::agent`], behind `tests/confined.rs` with its options.
    pub fn confined(&self, options: &[&str], args: &[&str]) -> Command {
        self.behind(options, &[], args)
    }

    /// Like [`Scene::confined`], without one capability.
    pub fn without(&self, capability: &str, options: &[&str], args: &[&str]) -> Command {
        let drop = format!("--bounding-set=-{capability}");
        self.behind(options, &["/usr/bin/setpriv", &drop, "--"], args)
    }

    /// Like [`Scene::agent`], as process 1 of a PID namespace of its own. The started process waits
    /// for it, and exits with its code.
    pub fn contained(&self, args: &[&str]) -> Command {
        let unshare = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"];
        self.behind(&[], &unshare, args)
    }

    /// Like [`Scene::agent`], started with another umask.
    pub fn with_umask(&self, umask: &str, args: &[&str]) -> Command {
        let script = format!("umask {umask}; exec \"$@\"");
        self.behind(&[], &["/bin/sh", "-c", &script, "sh"], args)
    }

    fn behind(&self, options: &[&str], wrapper: &[&str], args: &[&str]) -> Command {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root: run it as root");
        let mut command = Command::new(program("confined"));
        command
            .env_clear()
            .envs(self.environment())
            .args(options)
            .arg("--")
            .args(wrapper)
            .arg(longshore());
        command.args(args).arg("--config").arg(self.path("config.toml"));
        command
    }

    /// Runs a command to its end, which must be a failure with `code`: one message that has the
    /// texts (`URL` is the server's) and a remedy. Nothing unfinished is left.
    pub fn refuses(&self, command: Command, code: i32, expected: &[&str]) -> Ended {
        let ended = self.refuses_beside(command, code, expected);
        self.assert_sound();
        ended
    }

    /// Like [`Scene::refuses`], beside another agent that is busy.
    pub fn refuses_beside(&self, mut command: Command, code: i32, expected: &[&str]) -> Ended {
        let ended = finish(&mut command);
        let expected: Vec<String> =
            expected.iter().map(|text| text.replace("URL", &self.server.url())).collect();
        ended.assert_failed(code, &expected);
        ended
    }

    /// Checks that every blob matches the digest in its name, nothing is unfinished, nothing is
    /// mounted.
    pub fn assert_sound(&self) {
        let store = self.path("store");
        assert_eq!(names(&store.join("tmp")), [""; 0], "an unfinished file is left");
        for name in names(&store.join("blobs/sha256")) {
            let bytes = fs::read(store.join("blobs/sha256").join(&name)).expect("a blob");
            assert_eq!(archive::digest(&bytes), name, "a partial blob");
        }
        assert!(!self.path("driver-root").exists(), "the driver root was made");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let dir = self.dir.path().display().to_string();
        assert!(!mounts.contains(&dir), "something is mounted:\n{mounts}");
    }
}

/// Returns the path of the agent's program.
pub fn longshore() -> PathBuf {
    program("longshore-under-test")
}

/// Returns the path of a program of this package: cargo puts it one directory above the tests.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let path = test.ancestors().nth(2).expect("target directory").join(name);
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// Returns the path of a captured tree.
pub fn fixture(name: &str) -> String {
    format!("{FIXTURES}/{name}")
}

/// Returns the names in a directory, sorted; none if it does not exist.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Waits until a child has ended, and leaves its exit status to be read.
pub fn await_exit(child: &Child) {
    let id = Id::Pid(pid_of(child));
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let _ = done.send(waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT));
    });
    match ended.recv_timeout(LIMIT) {
        Ok(waited) => drop(waited.expect("a child")),
        Err(_) => panic!("process {} has not ended after {LIMIT:?}", child.id()),
    }
}

/// Waits until `happened`, a state of another process that the kernel has no event for: files below
/// /proc, or files in directories that do not exist yet. Fails the test after the time limit.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let since = Instant::now();
    while !happened() {
        assert!(since.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a command with empty standard input and captured output.
pub fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|e| panic!("starting {command:?}: {e}"))
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Ended {
    wait(start(command))
}

/// Sends a signal to a child.
pub fn send(child: &Child, signal: Signal) {
    kill(pid_of(child), signal).expect("the child is there");
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().expect("a process id"))
}

/// Waits for a child, which must end within the time limit.
pub fn wait(child: Child) -> Ended {
    let pid = pid_of(&child);
    let (done, waiting) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = done.send(());
        output
    });
    let in_time = waiting.recv_timeout(LIMIT).is_ok();
    if !in_time {
        kill(pid, Signal::SIGKILL).expect("kill");
    }
    let output = waiter.join().expect("thread").expect("output");
    let ended = Ended::new(&output);
    assert!(in_time, "it did not end within {LIMIT:?}: {ended}");
    ended
}

/// Exit status and output of a command.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; None after a signal.
    pub code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ended {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Checks that it succeeded.
    pub fn assert_done(&self) {
        assert_eq!(self.code, Some(0), "{self}");
        self.assert_no_panic();
    }

    /// Checks that it failed with `code`, with a single message that has the expected texts and a
    /// remedy.
    pub fn assert_failed(&self, code: i32, expected: &[String]) {
        assert_eq!(self.code, Some(code), "{self}");
        self.assert_no_panic();
        let failure = self.failure().unwrap_or_else(|| panic!("no message: {self}"));
        assert_eq!(failure["exit_code"], code, "{self}");
        let text = |key: &str| failure[key].as_str().unwrap_or_default();
        assert!(!text("remedy").is_empty(), "no remedy: {self}");
        let message = format!("{}\n{}", text("message"), text("remedy"));
        for part in expected {
            assert!(message.contains(part), "{part:?} is not in the message: {self}");
        }
        let cause = text("cause");
        let says_it = |line: &&serde_json::Value| {
            line["message"].as_str().is_some_and(|message| message.contains(cause))
        };
        let times = self.log().iter().filter(says_it).count();
        assert_eq!(times, 1, "not said once: {self}");
    }

    /// Parses the lines of its log, each of which is JSON.
    pub fn log(&self) -> Vec<serde_json::Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}\n{self}"))
        };
        self.err.lines().map(parse).collect()
    }

    /// Returns the failure that it ended with: the last line of its log, and the only one with an
    /// exit code.
    pub fn failure(&self) -> Option<serde_json::Value> {
        let mut log = self.log();
        let coded = log.iter().filter(|line| line.get("exit_code").is_some()).count();
        assert!(coded < 2, "more than one failure: {self}");
        log.pop().filter(|line| coded == 1 && line["level"] == "ERROR")
    }

    /// Returns its output as words with single spaces, whatever the lines are.
    pub fn words(&self) -> String {
        self.out.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Checks that it did not panic.
    pub fn assert_no_panic(&self) {
        for word in ["panicked", "backtrace", "RUST_BACKTRACE"] {
            assert!(!self.err.contains(word), "{self}");
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, signal, out, err } = self;
        write!(f, "exit code {code:?}, signal {signal:?}\n-- stdout\n{out}\n-- stderr\n{err}")
    }
}
