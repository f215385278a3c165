//! Real processes in place of the daemons: perl scripts that listen, fork, hang, die or ignore
//! signals as told.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as SigSignal};
use rstest::rstest;

use super::*;
use crate::daemon::new_mark;
use crate::fake::Stuck;
use crate::verbs::bring_up::{bring_up, stop};
use crate::{Host, RealHost};
use longshore_core::cancel::CancelFlag;
use longshore_core::testing::STRANGER;

const STAND_IN: &str = r#"
use Socket; use POSIX qw(setsid);
my ($path, %how) = ($ARGV[0], map { $_ => 1 } @ARGV);
$| = 1; print "standing in\n";
exit 3 if $how{dies};
if ($how{forks}) { exit 0 if fork; setsid(); exit 0 if fork; }
$SIG{TERM} = 'IGNORE' if $how{stubborn};
unless ($how{mute}) {
    socket(S, PF_UNIX, SOCK_STREAM, 0) && bind(S, sockaddr_un($path)) && listen(S, 5) or die "bind: $!";
}
exit 0 if $how{listens} && fork;
sleep 60;
"#;

struct Scene {
    dir: tempfile::TempDir,
    host: RealHost,
    mark: String,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, host: RealHost::new(Path::new("/")), mark: new_mark().expect("random bits") }
    }

    fn daemon(&self, how: &str) -> Daemon {
        let socket = self.dir.path().join("socket");
        let script = ["-e", STAND_IN].into_iter().map(str::to_owned);
        let conduct = how.split_whitespace().map(str::to_owned);
        Daemon {
            name: "stand-in".to_owned(),
            program: "/usr/bin/perl".into(),
            arguments: script.chain([socket.display().to_string()]).chain(conduct).collect(),
            libraries: "/nonexistent".into(),
            socket,
            settings: None,
            capabilities: Vec::new(),
            required: true,
            ready_within: 20,
        }
    }

    fn start(&self, daemon: &Daemon) -> Result<(), crate::VerbError> {
        bring_up(&self.host, daemon, &self.mark, &CancelFlag::default())
    }

    fn stop(&self, daemon: &Daemon) {
        stop(&self.host, daemon, &self.mark, Duration::from_secs(5)).unwrap();
        assert!(self.find().is_empty());
    }

    fn find(&self) -> Vec<IdentifiedProcess> {
        find(Path::new("/"), &self.mark).unwrap()
    }
}

#[rstest]
#[case::in_the_foreground("")]
#[case::in_the_background("forks")]
#[case::that_forks_once_it_listens("listens")]
fn a_daemon_answers_and_is_ended_wherever_it_forked_to(#[case] how: &str) {
    let scene = Scene::new();
    let daemon = scene.daemon(how);
    scene.start(&daemon).unwrap();
    let since = Instant::now();
    loop {
        let seen = scene.host.daemon(&daemon, &scene.mark).unwrap();
        assert_eq!(seen.answers, Answers::Ours);
        // A daemon that forks after listen(2) answers a moment before the parent has ended.
        if seen.processes.len() == 1 {
            break;
        }
        assert!(since.elapsed() < daemon.start_limit(), "{seen:?}");
        std::thread::yield_now();
    }
    scene.stop(&daemon);
    assert_eq!(answers(&daemon.socket, &[]), Answers::Nobody);
}

#[test]
fn it_has_no_capability_and_can_get_none() {
    let scene = Scene::new();
    let daemon = scene.daemon("");
    scene.start(&daemon).unwrap();
    let (pid, _) = scene.find().remove(0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in ["NoNewPrivs:\t1", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"] {
        assert!(status.lines().any(|l| l == line), "{line} is not in {status}");
    }
    scene.stop(&daemon);
}

#[test]
fn it_hears_of_signals_that_the_agents_threads_hold_back() {
    let held: SigSet = [SigSignal::SIGTERM, SigSignal::SIGHUP].into_iter().collect();
    held.thread_block().unwrap();
    let scene = Scene::new();
    scene.start(&scene.daemon("forks")).unwrap();
    let (pid, _) = scene.find().remove(0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.lines().any(|line| line == "SigBlk:\t0000000000000000"), "{status}");
    let [term] = end(scene.find(), Ending::Term).unwrap().try_into().unwrap();
    let mut ended = [PollFd::new(&term, PollFlags::IN)];
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut ended, Some(&limit)).unwrap(), 1, "SIGTERM did not end it");
}

#[test]
fn another_agent_finds_what_a_dead_one_started_and_a_stranger_does_not() {
    let scene = Scene::new();
    let daemon = scene.daemon("forks");
    scene.start(&daemon).unwrap();
    let next = RealHost::new(Path::new("/"));
    assert_eq!(next.daemon(&daemon, &scene.mark).unwrap().answers, Answers::Ours);
    let stranger = new_mark().expect("random bits");
    let seen = next.daemon(&daemon, &stranger).unwrap();
    assert!(matches!(seen.answers, Answers::Other(pid) if pid > 0), "{seen:?}");
    assert!(next.end_daemon(&stranger, Ending::Kill).unwrap().is_empty());
    assert_eq!(next.daemon(&daemon, &scene.mark).unwrap().answers, Answers::Ours);
    scene.stop(&daemon);
}

#[test]
fn one_that_dies_says_what_it_said() {
    let scene = Scene::new();
    let error = scene.start(&scene.daemon("dies")).unwrap_err();
    assert_eq!(error.errno, Errno::ECHILD);
    assert!(error.to_string().contains("ended before it answered"), "{error}");
}

#[test]
fn one_that_does_not_answer_is_given_up_and_can_be_ended() {
    let scene = Scene::new();
    let daemon = Daemon { ready_within: 1, ..scene.daemon("mute") };
    let error = scene.start(&daemon).unwrap_err();
    assert_eq!(error.errno, Errno::ETIMEDOUT);
    assert!(error.to_string().contains("last output: standing in"), "{error}");
    scene.stop(&daemon);
}

#[test]
fn a_stop_does_not_wait_for_one_that_does_not_answer() {
    let scene = Scene::new();
    let (daemon, cancel) = (scene.daemon("mute"), CancelFlag::default());
    cancel.set();
    let since = Instant::now();
    bring_up(&scene.host, &daemon, &scene.mark, &cancel).unwrap();
    assert!(since.elapsed() < daemon.start_limit());
    scene.stop(&daemon);
}

#[test]
fn one_that_ignores_sigterm_is_killed_and_what_it_left_is_no_hindrance() {
    let scene = Scene::new();
    let daemon = scene.daemon("stubborn");
    scene.start(&daemon).unwrap();
    stop(&scene.host, &daemon, &scene.mark, Duration::from_millis(100)).unwrap();
    assert!(scene.find().is_empty());
    assert!(daemon.socket.exists());
    scene.start(&daemon).unwrap();
    scene.stop(&daemon);
}

#[test]
fn a_stale_socket_behind_a_link_is_no_hindrance_and_what_is_no_socket_is_left_alone() {
    let scene = Scene::new();
    let daemon = scene.daemon("");
    let stale = scene.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    std::os::unix::fs::symlink(&stale, &daemon.socket).unwrap();
    scene.start(&daemon).unwrap();
    scene.stop(&daemon);
    assert!(stale.exists(), "only the link was in the way");
    fs::remove_file(&daemon.socket).unwrap();
    fs::write(&daemon.socket, "somebody's").unwrap();
    let error = scene.start(&daemon).unwrap_err();
    assert_eq!(error.errno, Errno::ECHILD, "{error}");
    assert_eq!(fs::read_to_string(&daemon.socket).unwrap(), "somebody's");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let scene = Scene::new();
    let daemon = Daemon { program: "/nonexistent/daemon".into(), ..scene.daemon("") };
    let error = scene.start(&daemon).unwrap_err();
    assert_eq!(error.to_string(), "start /nonexistent/daemon: ENOENT: No such file or directory");
}

#[test]
fn settings_are_the_templates_but_for_those_that_are_set() {
    let scene = Scene::new();
    let at = |name: &str| scene.dir.path().join(name);
    fs::write(at("template"), "# about A\nA=1\nDAEMONIZE = 1\n\nB=2\n").unwrap();
    let set = [("DAEMONIZE", "0"), ("C", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    write_settings(&Settings { template: at("template"), set: set.to_vec(), file: at("file") })
        .unwrap();
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "# about A\nA=1\n\nB=2\nDAEMONIZE=0\nC=\n");
}

/// A process of `uid` that has the mark of the scene's daemons in its environment, until it is
/// dropped.
struct Pretender(Child);

impl Pretender {
    fn start(scene: &Scene, program: &Path, uid: u32) -> Self {
        let mut command = Command::new(program);
        command.arg("600").env_clear().env(MARK_VARIABLE, &scene.mark).uid(uid).gid(uid);
        let pretender = Self(command.spawn().unwrap());
        // The environment is its own only after exec: until then the process is a copy of this one.
        let environment = format!("/proc/{}/environ", pretender.0.id());
        let since = Instant::now();
        while !fs::read(&environment).unwrap().starts_with(MARK_VARIABLE.as_bytes()) {
            assert!(since.elapsed() < Duration::from_secs(20), "it is not executed");
            std::thread::yield_now();
        }
        pretender
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Pretender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Any user can give a known mark to their process; its user id tells it apart.
#[test]
fn a_strangers_process_with_the_mark_is_neither_waited_for_nor_ended() {
    let scene = Scene::new();
    let mut pretender = Pretender::start(&scene, Path::new("/bin/sleep"), STRANGER);
    let daemon = scene.daemon("");
    // Like [`stop`], this would wait for the foreign process and then kill it.
    scene.start(&daemon).unwrap();
    assert_eq!(scene.find().len(), 1);
    scene.stop(&daemon);
    assert!(pretender.is_running());
}

/// Another user's `su` that waits for its password has root's effective user id.
#[test]
fn a_program_with_a_setuid_bit_that_a_stranger_gave_the_mark_is_not_ours() {
    let scene = Scene::new();
    let program = scene.dir.path().join("sleep");
    fs::set_permissions(scene.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy("/bin/sleep", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let pretender = Pretender::start(&scene, &program, STRANGER);
    let process = PathBuf::from(format!("/proc/{}", pretender.0.id()));
    assert_eq!(fs::metadata(process).unwrap().uid(), 0, "it has root's effective user id");
    assert_eq!(scene.find().len(), 0);
}

const SHORT: Duration = Duration::from_millis(100);

/// Undo, as on SIGTERM.
#[test]
fn an_end_comes_to_its_end_though_a_process_hangs() {
    let (stuck, scene) = (Stuck::new(), Scene::new());
    let host = stuck.host(SHORT);
    let since = Instant::now();
    for why in ["it took longer than 100ms", "an earlier inspection of the processes still hangs"] {
        let error =
            stop(&host, &scene.daemon(""), &scene.mark, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    stuck.let_go();
    let since = Instant::now();
    while stop(&host, &scene.daemon(""), &scene.mark, SHORT).is_err() {
        assert!(since.elapsed() < Duration::from_secs(20), "no read hangs any more");
        std::thread::yield_now();
    }
}

#[test]
fn while_a_process_hangs_those_that_were_found_before_are_known() {
    let (stuck, scene) = (Stuck::new(), Scene::new());
    let daemon = scene.daemon("forks");
    scene.start(&daemon).unwrap();
    let found = scene.find();
    let host = stuck.host(SHORT);
    host.remember(&scene.mark, &found);
    let seen = host.daemon_processes(&scene.mark).unwrap();
    assert_eq!(seen.len(), found.len());
    // The process still hangs: it is not known that nothing is left.
    let error = stop(&host, &daemon, &scene.mark, Duration::from_secs(20)).unwrap_err();
    assert_eq!(error.errno, Errno::ETIMEDOUT, "{error}");
    assert!(scene.find().is_empty(), "it was ended nevertheless");
    stuck.let_go();
}

/// Root in a container that has the driver root mounted plants links where root will write.
#[test]
fn settings_are_written_through_no_link() {
    use std::os::unix::fs::{MetadataExt, symlink};
    for planted in ["file", "file.next"] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("template"), "A=1\n").unwrap();
        fs::write(at("victim"), "theirs").unwrap();
        symlink(at("victim"), at(planted)).unwrap();
        let settings = Settings { template: at("template"), set: Vec::new(), file: at("file") };
        write_settings(&settings).unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "theirs", "{planted}");
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "A=1\n");
        let written = fs::symlink_metadata(at("file")).unwrap();
        assert!(written.is_file() && written.mode() & 0o777 == 0o600);
        assert!(fs::symlink_metadata(at("file.next")).is_err());
    }
}

/// In a directory that others can write to, the file can be another one by the time the daemon reads it.
#[rstest]
#[case(0o777, None, "others can write to its directory (mode 0777)")]
#[case(0o1777, None, "others can write to its directory (mode 1777)")]
#[case(0o720, None, "others can write to its directory (mode 0720)")]
#[case(0o700, Some(STRANGER), "its directory belongs to user")]
fn settings_are_written_to_no_directory_of_others(
    #[case] mode: u32,
    #[case] owner: Option<u32>,
    #[case] why: &str,
) {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::write(dir.path().join("template"), "A=1\n").unwrap();
    fs::create_dir(&run).unwrap();
    std::os::unix::fs::chown(&run, owner, None).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(mode)).unwrap();
    let settings =
        Settings { template: dir.path().join("template"), set: Vec::new(), file: run.join("file") };
    let error = write_settings(&settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains(why), "{error}");
    assert!(fs::read_dir(&run).unwrap().next().is_none());
}

#[test]
fn settings_are_read_from_no_pipe_and_written_to_no_linked_directory() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let settings = |template: &str, file: &str| Settings {
        template: at(template),
        set: Vec::new(),
        file: at(file),
    };
    nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    assert!(write_settings(&settings("pipe", "file")).is_err());
    fs::write(at("template"), "A=1\n").unwrap();
    fs::create_dir(at("victim")).unwrap();
    symlink(at("victim"), at("run")).unwrap();
    assert!(write_settings(&settings("template", "run/file")).is_err());
    assert!(fs::read_dir(at("victim")).unwrap().next().is_none());
}
