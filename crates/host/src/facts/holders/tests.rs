use std::os::unix::fs::symlink;

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Long enough for every inspection that ends.
const AMPLE: Duration = Duration::from_secs(60);

/// A captured /proc: links lead to devices that every machine has, in place of the driver's.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().unwrap() };
        // /dev/null is major 1.
        let devices = "Character devices:\n  1 nvidia-uvm\n\nBlock devices:\n  5 nvidia\n";
        scene.write("devices", devices);
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = self.dir.path().join("proc").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        symlink(to, self.at(path)).unwrap();
    }

    fn users(&self) -> DriverUsers {
        driver_users(self.dir.path(), AMPLE, &Looker::default()).unwrap()
    }

    /// Process ids and the devices they hold.
    fn held(&self) -> Vec<(u32, Vec<String>)> {
        let seen = self.users();
        assert_eq!(seen.unseen, None);
        seen.users.into_iter().map(|user| (user.pid, user.devices)).collect()
    }
}

#[test]
fn holders_are_found_by_device_number() {
    let scene = Scene::new();
    scene.link("41/fd/7", "/dev/null");
    scene.link("42/fd/7", "/dev/tty");
    scene.link("42/fd/8", "/gone");
    scene.link("42/fd/9", "socket:[12]");
    scene.write("43/comm", "kthreadd\n");
    scene.write("sys/kernel/x", "");
    scene.write("41/comm", "python3\n");
    scene.write("41/status", "Name:\tpython3\nNSpid:\t41\t7\n");
    scene.write("41/cgroup", &format!("0::/system.slice/docker-{ID}.scope\n"));
    let user = DriverUser {
        pid: 41,
        namespace_pid: Some(7),
        comm: "python3".to_owned(),
        container: Some(ID.to_owned()),
        pod: None,
        devices: vec!["/dev/null".to_owned()],
    };
    let said = format!("pid 41 (python3, inside pid 7) of container {ID} holds /dev/null");
    assert_eq!(user.to_string(), said);
    assert_eq!(scene.users(), DriverUsers { users: vec![user], unseen: None });
}

/// prctl(PR_SET_NAME) takes any bytes, and a program that can rename a device node can use any
/// name.
#[test]
fn a_process_with_a_hostile_name_is_one_line_of_the_log() {
    let scene = Scene::new();
    scene.link("41/fd/7", "/dev/null");
    fs::write(scene.at("41/comm"), b"x\n2026 ok\x1b[2J\xff\n").unwrap();
    let user = scene.users().users.remove(0);
    let devices = vec!["/dev/nv\r0".to_owned()];
    let said = DriverUser { devices, ..user }.to_string();
    assert_eq!(said, "pid 41 (x\\n2026 ok\\u{1b}[2J\u{fffd}) holds /dev/nv\\r0");
}

#[test]
fn what_a_thread_alone_has_open_is_found() {
    let scene = Scene::new();
    for task in ["50", "51", "52"] {
        scene.link(&format!("50/task/{task}/fd/3"), "/dev/tty");
    }
    scene.link("50/fd/3", "/dev/tty");
    assert_eq!(scene.held(), []);
    scene.link("50/task/52/fd/4", "/dev/null");
    assert_eq!(scene.held(), [(50, vec!["/dev/null".to_owned()])]);
    // Its first thread has ended, and the others run on.
    scene.link("60/task/61/fd/3", "/dev/null");
    fs::create_dir_all(scene.at("60/fd/x").parent().unwrap()).unwrap();
    assert_eq!(scene.held().len(), 2);
}

#[test]
fn what_is_mapped_and_no_longer_open_is_found() {
    let scene = Scene::new();
    fs::create_dir_all(scene.at("70/fd")).unwrap();
    scene.link("70/map_files/7f00-7f01", "/dev/null");
    scene.link("70/map_files/7f01-7f02", "/dev/null");
    assert_eq!(scene.held(), [(70, vec!["/dev/null".to_owned()])]);
}

#[test]
fn a_buffer_the_driver_gave_out_holds_it() {
    let scene = Scene::new();
    scene.link("80/fd/3", "/dmabuf:");
    scene.write("80/fdinfo/3", "pos:\t0\nexp_name:\tnvidia\n");
    scene.link("81/fd/3", "/dmabuf:");
    scene.write("81/fdinfo/3", "pos:\t0\nexp_name:\ti915\n");
    assert_eq!(scene.held(), [(80, vec!["/dmabuf:".to_owned()])]);
}

#[test]
fn drm_devices_count_where_their_driver_is_nvidia() {
    let scene = Scene::new();
    let devices = DriverDevices::read(scene.dir.path()).unwrap();
    let driver = scene.dir.path().join("sys/dev/char/226:128/device/driver");
    fs::create_dir_all(driver.parent().unwrap()).unwrap();
    symlink("../../../bus/pci/drivers/nvidia", &driver).unwrap();
    assert!(devices.is_nvidia_drm(128) && !devices.is_nvidia_drm(129));
}

#[test]
fn what_was_found_until_the_time_was_over_is_told() {
    let scene = Scene::new();
    scene.link("90/fd/3", "/dev/null");
    let mut seen = HolderSearch::default();
    for news in [News::At(90), News::Refused, News::At(91)] {
        seen.note(news);
    }
    let users = seen.into_users(Some(Duration::from_secs(3)));
    let unseen = users.unseen.unwrap();
    assert!(unseen.contains("the files of pid 91 could not be inspected within 3s"), "{unseen}");
    assert!(unseen.contains("1 processes may not be inspected, among them pid 90"), "{unseen}");
}

#[test]
fn a_process_that_cannot_be_looked_at_in_time_keeps_nobody_waiting() {
    let scene = Scene::new();
    scene.link("90/fd/3", "/dev/null");
    scene.link("91/fd/3", "/dev/null");
    // Opening it blocks until a writer comes, which never happens.
    nix::unistd::mkfifo(&scene.at("91/comm"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let looker = Looker::default();
    let seen = driver_users(scene.dir.path(), Duration::from_secs(2), &looker).unwrap();
    assert_eq!(seen.users.iter().map(|user| user.pid).collect::<Vec<_>>(), [90]);
    assert!(seen.unseen.is_some_and(|why| why.contains("pid 91")));
}

/// The memory map of pid 90 stays locked; a metrics scrape inspects it again and again.
#[test]
fn however_often_it_is_looked_there_is_one_thread_for_a_process_that_hangs() {
    let scene = Scene::new();
    scene.link("90/fd/3", "/dev/null");
    let hangs = scene.at("90/cgroup");
    nix::unistd::mkfifo(&hangs, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let looker = Looker::default();
    let threads = || {
        let all = fs::read_dir("/proc/self/task").unwrap().flatten();
        // Other tests inspect processes as well, but none of them has this scene's process open.
        all.filter(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c == "holders\n")
        })
        .count()
    };
    let limit = Duration::from_millis(100);
    driver_users(scene.dir.path(), limit, &looker).unwrap();
    let before = threads();
    let since = Instant::now();
    for _ in 0..50 {
        let seen = driver_users(scene.dir.path(), AMPLE, &looker).unwrap();
        let why = seen.unseen.unwrap();
        assert!(why.contains("an earlier inspection of the processes still hangs"), "{why}");
    }
    assert!(since.elapsed() < AMPLE / 2, "{:?}", since.elapsed());
    // Fifty threads more without the limit; a few may be of other tests.
    assert!(threads() < before + 25, "{before} threads, and {} after", threads());
    let _writer = fs::OpenOptions::new().read(true).write(true).open(&hangs).unwrap();
}

/// The machine this runs on: this process, which holds a device.
#[test]
fn this_process_is_seen_to_hold_what_it_holds() {
    let devices =
        DriverDevices { root: "/".into(), majors: BTreeSet::from([1]), numbers: BTreeSet::new() };
    let null = fs::File::open("/dev/null").unwrap();
    let me = PathBuf::from(format!("/proc/{}", std::process::id()));
    let held = devices.held_by_process(&me).unwrap();
    assert!(held.contains(&"/dev/null".to_owned()), "{held:?}");
    drop(null);
    assert_eq!(describe(1, &me, held).comm, fs::read_to_string(me.join("comm")).unwrap().trim());
}
