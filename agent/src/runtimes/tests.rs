//! Configure and revert over the fixtures of the crate, and over what others leave in the way.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;

use super::*;
use longshore_core::digest::digest_of;
use longshore_runtimes::State;
use rstest::rstest;

/// A host in a directory.
struct Scene {
    dir: tempfile::TempDir,
    host: HostRuntimes,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        for made in ["etc", "var/lib"] {
            fs::create_dir_all(dir.path().join(made)).expect("made");
        }
        let paths = Paths::new(dir.path(), dir.path());
        let root = Root::open(dir.path()).expect("root");
        Self { dir, host: HostRuntimes { root, paths, disk: Disk::default(), asking: ASKING } }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        fs::create_dir_all(self.at(path).parent().expect("parent")).expect("made");
        fs::write(self.at(path), bytes).expect("written");
    }

    fn edit(&self, runtime: Runtime) -> Option<Edit> {
        self.host.assess(&self.target(runtime)).state.edit().cloned()
    }

    fn target(&self, runtime: Runtime) -> Target {
        self.host.target(runtime, None).expect("one")
    }

    fn configure(&self, runtime: Runtime) {
        let edit = self.edit(runtime).expect("an edit");
        self.host.configure(&self.target(runtime), &edit).expect("configured");
    }

    fn sha256(&self, path: &str) -> String {
        digest_of(fs::read(self.at(path)).expect("read").as_slice()).expect("digest")
    }

    fn saved(&self) -> usize {
        let Ok(dir) = fs::read_dir(self.at("var/lib/longshore/runtimes")) else { return 0 };
        let names = dir.map(|entry| entry.expect("entry").file_name());
        names.filter(|name| !name.to_string_lossy().ends_with(".restart")).count()
    }
}

const DAEMON: &str = "/etc/docker/daemon.json";

fn fixtures(kind: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/runtimes/fixtures").join(kind);
    let entries = fs::read_dir(dir).expect("fixtures").map(|entry| entry.expect("entry").path());
    entries.map(|path| (path.display().to_string(), fs::read(&path).expect("read"))).collect()
}

#[rstest]
#[case(Runtime::Docker)]
#[case(Runtime::Containerd)]
fn every_configuration_is_back_byte_for_byte(#[case] runtime: Runtime) {
    let mut edited = 0;
    for (name, bytes) in fixtures(runtime.name()) {
        let scene = Scene::new();
        let file = longshore_runtimes::Distribution::usual(runtime).file;
        scene.write(file, &bytes);
        let before = scene.sha256(file);
        if let Some(edit) = scene.edit(runtime) {
            scene.host.configure(&scene.target(runtime), &edit).expect("configured");
            let after = scene.sha256(file);
            assert_ne!(after, before, "{name}");
            assert_eq!(scene.edit(runtime), None, "{name}: a second time");
            assert!(scene.host.assess(&scene.target(runtime)).state.is_well(), "{name}");
            assert_eq!(scene.sha256(file), after, "{name}");
            edited += 1;
        }
        scene.host.revert(runtime, false).expect("reverted");
        assert_eq!((scene.sha256(file), scene.saved()), (before, 0), "{name}");
    }
    assert!(edited > 15, "{edited}");
}

#[test]
fn an_absent_file_is_absent_again() {
    for with_dir in [false, true] {
        let scene = Scene::new();
        if with_dir {
            fs::create_dir(scene.at("etc/docker")).expect("made");
        }
        scene.configure(Runtime::Docker);
        assert_eq!(fs::metadata(scene.at(DAEMON)).expect("made").mode() & 0o7777, 0o644);
        let reverted = scene.host.revert(Runtime::Docker, false).expect("reverted");
        assert!(matches!(reverted, Reverted::Restored { .. }));
        assert_eq!(scene.at("etc/docker").exists(), with_dir);
        assert_eq!(scene.host.revert(Runtime::Docker, false).expect("reverted"), Reverted::Nothing);
    }
}

#[test]
fn mode_and_owner_stay() {
    let scene = Scene::new();
    scene.write(DAEMON, b"{}");
    chown(scene.at(DAEMON), Some(4711), Some(4712)).expect("as root");
    fs::set_permissions(scene.at(DAEMON), fs::Permissions::from_mode(0o640)).expect("mode");
    scene.configure(Runtime::Docker);
    let of = || {
        fs::metadata(scene.at(DAEMON))
            .map(|found| (found.uid(), found.gid(), found.mode() & 0o7777))
    };
    assert_eq!(of().expect("there"), (4711, 4712, 0o640));
    scene.host.revert(Runtime::Docker, false).expect("reverted");
    assert_eq!(of().expect("there"), (4711, 4712, 0o640));
}

#[test]
fn a_link_stays_and_its_file_inside_the_root_is_edited() {
    let scene = Scene::new();
    scene.write("/srv/daemon.json", b"{}");
    fs::create_dir(scene.at("etc/docker")).expect("made");
    symlink("/srv/daemon.json", scene.at(DAEMON)).expect("link");
    scene.configure(Runtime::Docker);
    assert_eq!(fs::read_link(scene.at(DAEMON)).expect("a link"), Path::new("/srv/daemon.json"));
    assert_ne!(fs::read(scene.at("srv/daemon.json")).expect("read"), b"{}");
    scene.host.revert(Runtime::Docker, false).expect("reverted");
    assert_eq!(fs::read(scene.at("srv/daemon.json")).expect("read"), b"{}");
}

#[test]
fn an_edit_of_others_is_not_lost_unless_forced() {
    let scene = Scene::new();
    scene.write(DAEMON, b"{}");
    scene.configure(Runtime::Docker);
    scene.write(DAEMON, b"{\"debug\": true}\n");
    let failure = scene.host.revert(Runtime::Docker, false).expect_err("it was edited");
    assert_eq!(failure.code().number(), 19);
    assert!(failure.to_string().contains("-{\"debug\": true}"), "{failure}");
    assert_eq!(fs::read(scene.at(DAEMON)).expect("read"), b"{\"debug\": true}\n");
    scene.host.revert(Runtime::Docker, true).expect("forced");
    assert_eq!(fs::read(scene.at(DAEMON)).expect("read"), b"{}");
}

/// A process that was killed at each point between two changes of the disk.
#[test]
fn a_killed_process_leaves_a_host_that_reverts_and_configures() {
    for point in 0..5 {
        for again in [Scene::configure_again, Scene::revert_again] {
            let scene = Scene::new();
            scene.write(DAEMON, b"{}");
            let edit = scene.edit(Runtime::Docker).expect("an edit");
            match point {
                0 => scene.write("/var/lib/longshore/runtimes/docker.json.next", b"{"),
                1 => {
                    scene.host.prepare(Runtime::Docker, &edit).expect("saved");
                }
                2 => {
                    scene.host.prepare(Runtime::Docker, &edit).expect("saved");
                    let name = "/etc/docker/.daemon.json.0123456789abcdef.tmp";
                    scene.write(name, edit.after.as_bytes());
                }
                3 => scene.configure(Runtime::Docker),
                // In a revert, before its original is removed.
                _ => {
                    scene.host.prepare(Runtime::Docker, &edit).expect("saved");
                    scene.host.carry_out(&edit).expect("carried out");
                    scene.write(DAEMON, b"{}");
                }
            }
            again(&scene);
        }
    }
}

impl Scene {
    fn configure_again(&self) {
        if self.edit(Runtime::Docker).is_some() {
            self.configure(Runtime::Docker);
        }
        assert!(self.host.assess(&self.target(Runtime::Docker)).state.is_well());
        self.revert_again();
    }

    fn revert_again(&self) {
        self.host.revert(Runtime::Docker, false).expect("reverted");
        assert_eq!(fs::read(self.at(DAEMON)).expect("read"), b"{}");
        assert_eq!(self.host.revert(Runtime::Docker, false).expect("reverted"), Reverted::Nothing);
        let left = fs::read_dir(self.at("etc/docker")).expect("listed").count();
        assert_eq!(left, 1, "the configuration alone");
    }
}

#[test]
fn a_file_that_changed_meanwhile_is_left() {
    let scene = Scene::new();
    scene.write(DAEMON, b"{}");
    let edit = scene.edit(Runtime::Docker).expect("an edit");
    scene.write(DAEMON, b"{ }");
    let failure =
        scene.host.configure(&scene.target(Runtime::Docker), &edit).expect_err("it changed");
    assert!(failure.one_line().contains("changed meanwhile"), "{}", failure.one_line());
    assert_eq!((fs::read(scene.at(DAEMON)).expect("read"), scene.saved()), (b"{ }".to_vec(), 0));
}

#[rstest]
#[case::a_pipe(|path: &Path| nix::unistd::mkfifo(path, Mode::S_IRWXU).expect("pipe"))]
#[case::a_directory(|path: &Path| fs::create_dir(path).expect("made"))]
#[case::too_large(|path: &Path| fs::write(path, vec![b' '; (1 << 20) + 1]).expect("written"))]
fn odd_files_are_refused(#[case] make: fn(&Path)) {
    let scene = Scene::new();
    fs::create_dir(scene.at("etc/docker")).expect("made");
    make(&scene.at(DAEMON));
    let state = scene.host.assess(&scene.target(Runtime::Docker)).state;
    assert!(matches!(state, State::Refused { .. }), "{state:?}");
}

#[test]
fn a_pipe_that_takes_the_place_of_a_file_is_not_opened() {
    let scene = Scene::new();
    fs::create_dir(scene.at("etc/docker")).expect("made");
    let pipe = scene.at(DAEMON);
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("pipe");
    let writer = longshore_core::testing::Waiting::at(&pipe);
    let place = scene.host.root.place(DAEMON).expect("place");
    host_files::replace(&place, b"{}", Disk::default()).expect_err("a pipe");
    assert!(writer.is_waiting());
}

#[test]
fn a_forged_original_is_not_put_back() {
    let scene = Scene::new();
    scene.write(DAEMON, b"{}");
    scene.configure(Runtime::Docker);
    let record = "/var/lib/longshore/runtimes/docker.json";
    let text = fs::read_to_string(scene.at(record)).expect("read");
    scene.write(record, text.replace("\"before\":\"{}\"", "\"before\":\"{ }\"").as_bytes());
    let failure = scene.host.revert(Runtime::Docker, true).expect_err("another digest");
    assert!(failure.one_line().contains("digest"), "{}", failure.one_line());
    fs::set_permissions(scene.at(record), fs::Permissions::from_mode(0o666)).expect("mode");
    scene.write(record, text.as_bytes());
    let failure = scene.host.revert(Runtime::Docker, true).expect_err("others can write");
    assert!(failure.one_line().contains("others can write"), "{}", failure.one_line());
}

#[test]
fn found_are_those_with_a_program_or_a_configuration() {
    let scene = Scene::new();
    scene.write("/usr/bin/podman", b"");
    scene.write("/etc/containerd/config.toml", b"version = 3\n");
    let found: Vec<_> = scene.host.found().iter().map(Target::runtime).collect();
    assert_eq!(found, [Runtime::Containerd, Runtime::Podman]);
}

/// containerd reads each file of a directory that it imports by `conf.d/*`.
#[test]
fn an_edit_that_is_cut_off_leaves_no_half_of_a_file_in_its_directory() {
    let scene = Scene::new();
    scene.write("/etc/containerd/conf.d/cdi.toml", b"version = 2\n");
    let place = scene.host.root.place("/etc/containerd/conf.d/cdi.toml").expect("place");
    let dir = longshore_host::verbs::shared_dir::SharedDir::new(&place.dir);
    let new = dir.create(&place.name).expect("made");
    std::io::Write::write_all(&mut new.file(), b"version = 2\n[plug").expect("written");
    let names = || fs::read_dir(scene.at("etc/containerd/conf.d")).expect("listed").count();
    assert_eq!(names(), 1);
    host_files::replace(&place, b"version = 3\n", Disk::default()).expect("replaced");
    assert_eq!(names(), 1);
    drop(new);
    assert_eq!(
        fs::read(scene.at("etc/containerd/conf.d/cdi.toml")).expect("read"),
        b"version = 3\n"
    );
}

#[test]
fn a_restart_is_pending_from_an_edit_until_it_went_well() {
    let scene = Scene::new();
    let pending = || !scene.host.pending_restarts(Runtime::Docker).expect("read").is_empty();
    scene.write(DAEMON, b"{}");
    assert!(!pending());
    scene.configure(Runtime::Docker);
    assert!(pending());
    // The host of this test has no systemctl.
    scene.host.restart(&scene.target(Runtime::Docker)).expect_err("no systemctl");
    assert!(pending());
    scene.host.forget_restart(&scene.target(Runtime::Docker)).expect("noted");
    assert!(!pending());
    scene.host.revert(Runtime::Docker, false).expect("reverted");
    assert!(pending(), "the runtime has the reverted configuration");
    assert_eq!(scene.host.revert(Runtime::Docker, false).expect("reverted"), Reverted::Nothing);
    assert!(pending());
    scene.host.forget_restart(&scene.target(Runtime::Docker)).expect("noted");
    let edit = scene.edit(Runtime::Docker).expect("an edit");
    scene.write(DAEMON, b"{ }");
    scene.host.configure(&scene.target(Runtime::Docker), &edit).expect_err("it changed");
    assert!(!pending(), "nothing was edited");
}

/// The snap's docker and the package's are restarted on their own.
#[test]
fn a_restart_that_is_pending_is_of_the_runtime_whose_file_was_changed() {
    const SNAP: &str = "/var/snap/docker/current/config/daemon.json";
    let scene = Scene::new();
    let restarts = || {
        let pending = scene.host.pending_restarts(Runtime::Docker).expect("read");
        pending.iter().filter_map(|one| one.restart.command()).collect::<Vec<_>>()
    };
    for file in [SNAP, DAEMON] {
        scene.write(file, b"{}");
        let target = scene.host.target(Runtime::Docker, Some(Path::new(file))).expect("one");
        let edit = scene.host.assess(&target).state.edit().cloned().expect("an edit");
        scene.host.configure(&target, &edit).expect("configured");
        let reverted = scene.host.revert(Runtime::Docker, false).expect("reverted");
        assert!(matches!(&reverted, Reverted::Restored { path, .. } if path == Path::new(file)));
    }
    assert_eq!(restarts(), ["systemctl restart docker.service", "snap restart docker"]);
    let snap = scene.host.target(Runtime::Docker, Some(Path::new(SNAP))).expect("one");
    scene.host.forget_restart(&snap).expect("noted");
    assert_eq!(restarts(), ["systemctl restart docker.service"]);
}

#[test]
fn an_error_of_the_originals_names_their_directory() {
    let scene = Scene::new();
    scene.write(DAEMON, b"{}");
    scene.write("/var/lib/longshore/runtimes", b"a file");
    let edit = scene.edit(Runtime::Docker).expect("an edit");
    let failure = scene.host.configure(&scene.target(Runtime::Docker), &edit);
    let failure = failure.expect_err("no directory").one_line();
    assert!(failure.contains("/var/lib/longshore/runtimes: "), "{failure}");
}

const INITIAL: &str = "pid:[4026531836]";
const NESTED: &str = "pid:[4026532000]";
const OVERLAY: &str = "1 0 0:50 / / rw - overlay overlay rw\n";
const VFS: &str = "1 0 8:1 /var/lib/docker/vfs/dir/1 / rw - ext4 /dev/sda1 rw\n";
const BTRFS: &str = "1 0 0:40 /subvolumes/1 / rw - btrfs /dev/sda1 rw\n";
const VOLUME: &str = "2 1 8:1 /etc/docker /etc/docker rw - ext4 /dev/sda1 rw\n";
const STATE: &str = "3 1 8:1 /var/lib/longshore /var/lib/longshore rw - ext4 /dev/sda1 rw\n";
const VAR: &str = "3 1 8:1 /var /var rw - ext4 /dev/sda1 rw\n";
const IN_MEMORY: &str = "3 1 0:60 / /var/lib/longshore rw - tmpfs tmpfs rw\n";

impl Scene {
    /// Makes this process one of a PID namespace, with these mounts; `first` is the root of process 1.
    fn runs_in(&self, namespace: &str, mounts: &[&str], first: Option<&str>) {
        self.write("/proc/self/mountinfo", mounts.concat().as_bytes());
        fs::create_dir_all(self.at("proc/self/ns")).expect("made");
        fs::create_dir_all(self.at("proc/1")).expect("made");
        symlink(namespace, self.at("proc/self/ns/pid")).expect("link");
        if let Some(first) = first {
            symlink(self.at(first), self.at("proc/1/root")).expect("link");
        }
    }
}

#[rstest]
#[case::a_host(INITIAL, &[VFS], Some(""), None)]
#[case::a_host_on_an_overlay(INITIAL, &[OVERLAY], Some(""), None)]
#[case::overlay(NESTED, &[OVERLAY], Some(""), Some("daemon.json"))]
#[case::vfs(NESTED, &[VFS], Some(""), Some("daemon.json"))]
#[case::btrfs(NESTED, &[BTRFS], Some(""), Some("daemon.json"))]
#[case::the_pid_namespace_alone(INITIAL, &[OVERLAY], None, Some("daemon.json"))]
#[case::another_root(INITIAL, &[VFS], Some("etc"), Some("daemon.json"))]
#[case::one_volume(NESTED, &[OVERLAY, VOLUME], Some(""), Some("the original would end"))]
#[case::one_volume_and_memory(NESTED, &[VFS, VOLUME, IN_MEMORY], Some(""), Some("the original"))]
#[case::the_other_volume(NESTED, &[OVERLAY, STATE], Some(""), Some("daemon.json"))]
#[case::both_volumes(NESTED, &[OVERLAY, VOLUME, STATE], Some(""), None)]
#[case::both_without_the_host(INITIAL, &[BTRFS, VOLUME, VAR], None, None)]
fn a_container_s_own_files_are_refused(
    #[case] namespace: &str,
    #[case] mounts: &[&str],
    #[case] first: Option<&str>,
    #[case] refused: Option<&str>,
) {
    let scene = Scene::new();
    scene.runs_in(namespace, mounts, first);
    let checked = scene.host.check_is_hosts(Runtime::Docker, Path::new(DAEMON));
    assert_eq!(checked.as_ref().err().map(|e| e.code().number()), refused.map(|_| 19));
    let (Some(cause), Err(failure)) = (refused, checked) else { return };
    assert!(failure.one_line().contains(cause), "{failure}");
    assert!(failure.remedy_text().is_some_and(|text| text.contains("--pid host")), "{failure}");
    let of_host = HostRuntimes {
        root: Root::open(scene.dir.path()).expect("root"),
        paths: Paths::new(Path::new("/"), scene.dir.path()),
        disk: Disk::default(),
        asking: ASKING,
    };
    of_host.check_is_hosts(Runtime::Docker, Path::new(DAEMON)).expect("through host-root");
}

#[rstest]
#[case::no_volume(&[OVERLAY], "runtimes is this container's own")]
#[case::no_original(&[OVERLAY, VOLUME], "runtimes is this container's own")]
#[case::no_configuration(&[OVERLAY, STATE], "daemon.json is this container's own")]
fn a_revert_in_a_container_without_the_volumes_is_refused(
    #[case] mounts: &[&str],
    #[case] cause: &str,
) {
    let scene = Scene::new();
    scene.write(DAEMON, b"{}");
    scene.configure(Runtime::Docker);
    scene.runs_in(NESTED, mounts, Some(""));
    for force in [false, true] {
        let failure = scene.host.revert(Runtime::Docker, force).expect_err("of the container");
        assert_eq!(failure.code().number(), 19);
        assert!(failure.one_line().contains(cause), "{failure}");
    }
    assert_eq!(scene.saved(), 1, "the original stays");
}
