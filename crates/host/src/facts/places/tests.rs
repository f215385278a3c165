use std::os::unix::fs::symlink;

use super::*;
use crate::facts::mounts;

const OVERLAY: &str = "60 26 0:44 / /run/nvidia/driver rw shared:9 - overlay overlay rw\n";
const RUN: &str = "26 28 0:23 / /run rw shared:5 - tmpfs tmpfs rw\n";

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(scene.at("run/nvidia/driver")).unwrap();
        fs::create_dir_all(scene.at("proc")).unwrap();
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn look(&self, mountinfo: &str) -> DriverRootState {
        self.look_with(mountinfo, &Recorded::default())
    }

    fn look_with(&self, mountinfo: &str, recorded: &Recorded) -> DriverRootState {
        let paths = Paths {
            store: "/var/lib/longshore".into(),
            state: "/run/nvidia/longshore".into(),
            driver_root: "/run/nvidia/driver".into(),
            ..Paths::below(self.dir.path())
        };
        read(&paths, &mounts::parse(format!("{RUN}{mountinfo}").as_bytes()), recorded).unwrap()
    }
}

fn owners(places: &DriverRootState) -> Vec<RootMountOwner> {
    places.mounts.iter().map(|mount| mount.owner).collect()
}

#[test]
fn a_host_that_nobody_touched() {
    let scene = Scene::new();
    let places = scene.look("");
    let wanted = DriverRootState { kind: RootKind::Directory, ..DriverRootState::default() };
    assert_eq!(places, wanted);
    fs::remove_dir(scene.at("run/nvidia/driver")).unwrap();
    assert_eq!(scene.look("").kind, RootKind::Absent);
    symlink("/etc", scene.at("run/nvidia/driver")).unwrap();
    assert_eq!(scene.look("").kind, RootKind::Symlink("/etc".into()));
    fs::remove_file(scene.at("run/nvidia/driver")).unwrap();
    scene.write("run/nvidia/driver", "");
    assert_eq!(scene.look("").kind, RootKind::Other);
}

#[test]
fn whoever_holds_the_lock_is_named_by_a_number_or_not_at_all() {
    let scene = Scene::new();
    let file = "run/nvidia/nvidia-driver.pid";
    for (text, who) in
        [("4242\n", "process 4242"), ("", "a process"), (&"4".repeat(1 << 20), "a process")]
    {
        scene.write(file, text);
        let held = Flock::lock(File::open(scene.at(file)).unwrap(), FlockArg::LockExclusive);
        let wanted = format!("{who} holds the lock on /run/nvidia/nvidia-driver.pid");
        assert_eq!(scene.look("").installer, Installer::Alive(wanted));
        drop(held.unwrap());
    }
}

#[test]
fn a_dead_containers_root_is_told_by_its_lock_that_nobody_holds() {
    let scene = Scene::new();
    assert_eq!(owners(&scene.look(OVERLAY)), [RootMountOwner::Unknown], "owner not determined");
    scene.write("run/nvidia/nvidia-driver.pid", "4242\n");
    scene.write("run/nvidia/nvidia-driver.state", "digest\n");
    scene.write("sys/module/firmware_class/parameters/path", "/run/nvidia/driver/lib/firmware\n");
    let places =
        scene.look(&format!("{OVERLAY}61 60 0:5 / /run/nvidia/driver/dev rw - tmpfs t rw\n"));
    assert_eq!(owners(&places), [RootMountOwner::Installer], "mounts on it are unmounted with it");
    assert_eq!(places.installer, Installer::NotSeen);
    assert!(places.mounts[0].dir.is_some());
    let names: Vec<_> = places.files.iter().map(|file| file.path.file_name().unwrap()).collect();
    assert_eq!(names, ["nvidia-driver.state", "nvidia-driver.pid"]);
    assert_eq!(places.firmware_path.as_deref(), Some("/run/nvidia/driver/lib/firmware"));
}

#[test]
fn a_held_lock_is_a_living_container() {
    let scene = Scene::new();
    scene.write("run/nvidia/nvidia-driver.pid", "4242\n");
    let file = File::open(scene.at("run/nvidia/nvidia-driver.pid")).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let Installer::Alive(why) = scene.look(OVERLAY).installer else { panic!("alive") };
    assert_eq!(why, "process 4242 holds the lock on /run/nvidia/nvidia-driver.pid");
    drop(lock);
    assert_eq!(scene.look(OVERLAY).installer, Installer::NotSeen);
}

#[test]
fn a_process_that_lives_in_the_mount_is_a_living_container() {
    let scene = Scene::new();
    scene.write("run/nvidia/nvidia-driver.pid", "1\n");
    scene.write("proc/77/comm", "sleep\n");
    symlink("../../run/nvidia/driver", scene.at("proc/77/root")).unwrap();
    let Installer::Alive(why) = scene.look(OVERLAY).installer else { panic!("alive") };
    assert_eq!(why, "process 77 (sleep) has it as its root");
    assert_eq!(scene.look("").installer, Installer::NotSeen, "nothing is mounted there");
}

#[test]
fn without_its_lock_the_image_is_told_by_its_entry_point_where_all_processes_are_seen() {
    let scene = Scene::new();
    scene.write("run/nvidia/driver/usr/local/bin/nvidia-driver", "#!/bin/bash\n");
    let host = "28 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw\n";
    assert_eq!(owners(&scene.look(&format!("{host}{OVERLAY}"))), [RootMountOwner::Installer]);
    let container = "28 1 0:50 / / rw - overlay overlay rw\n";
    assert_eq!(
        owners(&scene.look(&format!("{container}{OVERLAY}"))),
        [RootMountOwner::Unknown],
        "in its own container, its processes are not visible"
    );
}

#[test]
fn ours_is_told_from_others() {
    let scene = Scene::new();
    for root in ["/var/lib/longshore/userspace/a-1/root", "/userspace/a-1/root//deleted"] {
        let mounts = format!(
            "60 26 254:1 {root} /run/nvidia/driver rw - ext4 /dev/vda1 rw\n\
             61 60 0:50 / /run/nvidia/driver/dev rw - tmpfs longshore rw\n"
        );
        assert_eq!(owners(&scene.look(&mounts)), [RootMountOwner::Ours], "{root}");
    }
    let other = "60 26 254:1 /srv /run/nvidia/driver/srv rw - ext4 /dev/vda1 rw\n";
    assert_eq!(owners(&scene.look(other)), [RootMountOwner::Unknown]);
    let recorded = Recorded {
        mounts: vec!["/run/nvidia/driver/srv".into()],
        firmware_path: true,
        ..Recorded::default()
    };
    assert_eq!(owners(&scene.look_with(other, &recorded)), [RootMountOwner::Ours]);
    assert_eq!(owners(&scene.look("60 26 0:9 / /run/nvidia/driver2 rw - ext4 d rw\n")), []);
}

#[test]
fn files_of_the_record_are_no_leftovers() {
    let scene = Scene::new();
    scene.write("run/nvidia/nvidia-driver.state", "2166136261\n");
    assert_eq!(scene.look("").files.len(), 1);
    let files = vec!["/run/nvidia/nvidia-driver.state".into()];
    let recorded = Recorded { files, ..Recorded::default() };
    assert_eq!(scene.look_with("", &recorded).files.len(), 0);
}

#[test]
fn a_live_place_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths { root: "/".into(), ..Paths::below(dir.path()) };
    let places = read(&paths, &[], &Recorded::default()).unwrap();
    for room in [places.state_room, places.store_room] {
        assert!(room.is_some_and(|room| room.free_bytes > 0));
    }
}
