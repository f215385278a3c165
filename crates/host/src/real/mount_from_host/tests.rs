use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::mpsc;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rstest::rstest;

use super::*;
use crate::facts::Propagation;

/// Path of the store in these tests, on the host and in the container.
const STORE: &str = "var/lib/store";

fn mount_tmpfs(on: &Path) {
    mount(Some("test"), on, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
}

fn propagate(on: &Path, kind: MsFlags) {
    mount(None::<&str>, on, None::<&str>, kind, None::<&str>).unwrap();
}

fn in_own_namespace() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    propagate(Path::new("/"), MsFlags::MS_PRIVATE | MsFlags::MS_REC);
}

/// Runs `test` in a mount namespace that has an empty directory as the store's, while a thread has
/// the namespace of a host with a disk, both below the same path.
fn in_scene(on_host: MsFlags, test: impl FnOnce(&HostNamespace, &Path) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().to_path_buf();
    let (ready, host) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let disk = &disk;
        scope.spawn(move || {
            in_own_namespace();
            mount_tmpfs(disk);
            propagate(disk, on_host);
            fs::create_dir_all(disk.join("var/lib")).unwrap();
            let task = fs::read_link("/proc/thread-self").unwrap();
            ready.send(Path::new("/proc").join(task)).unwrap();
            let _ = ended.recv();
        });
        let task = host.recv().unwrap();
        let root = task.join("root").join(disk.strip_prefix("/").unwrap());
        let namespace = HostNamespace { root, file: task.join("ns/mnt") };
        let container = scope.spawn(move || {
            in_own_namespace();
            mount_tmpfs(disk);
            fs::create_dir_all(disk.join(STORE)).unwrap();
            test(&namespace, disk);
        });
        let result = container.join();
        drop(end);
        result.unwrap();
    });
}

fn store() -> PathBuf {
    Path::new("/").join(STORE)
}

fn mounts_here() -> Vec<crate::facts::Mount> {
    mounts::parse(&fs::read("/proc/thread-self/mountinfo").unwrap())
}

#[rstest]
#[case::a_private_disk(MsFlags::MS_PRIVATE)]
#[case::a_shared_disk(MsFlags::MS_SHARED)]
fn the_hosts_directory_is_attached_and_nothing_else_changes(#[case] on_host: MsFlags) {
    in_scene(on_host, |host, disk| {
        assert!(host.is_another());
        let target = disk.join(STORE);
        let before = mounts_here();
        let dir = host.make(&store()).unwrap();
        dir.attach(&target, &KernelCalls::direct()).unwrap();
        fs::write(target.join("set"), "kept").unwrap();
        let theirs = host.root.join(STORE).join("set");
        assert_eq!(fs::read_to_string(theirs).unwrap(), "kept", "it is the host's disk");
        let after = mounts_here();
        assert_eq!(after.len(), before.len() + 1);
        let mount = after.iter().find(|mount| mount.target == target).unwrap();
        assert_eq!(mount.propagation, Propagation::Private);
    });
}

#[test]
fn the_mount_propagates_to_no_peer_of_the_containers_root() {
    in_scene(MsFlags::MS_SHARED, |host, disk| {
        propagate(disk, MsFlags::MS_SHARED);
        let peer = tempfile::tempdir().unwrap();
        mount(Some(disk), peer.path(), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let target = disk.join(STORE);
        host.make(&store()).unwrap().attach(&target, &KernelCalls::direct()).unwrap();
        fs::write(target.join("set"), "kept").unwrap();
        assert!(!peer.path().join(STORE).join("set").exists());
    });
}

#[test]
fn a_trial_changes_neither_the_container_nor_the_host() {
    in_scene(MsFlags::MS_SHARED, |host, _| {
        let before = mounts_here();
        let dir = host.nearest(&store()).unwrap();
        assert!(!dir.whole);
        dir.try_out(&KernelCalls::direct()).unwrap();
        assert_eq!(mounts_here(), before);
        assert!(!host.root.join(STORE).exists());
        host.make(&store()).unwrap();
        assert!(host.nearest(&store()).unwrap().whole);
    });
}

#[test]
fn a_target_that_is_a_link_is_refused() {
    in_scene(MsFlags::MS_PRIVATE, |host, disk| {
        let link = disk.join("link");
        symlink(disk.join(STORE), &link).unwrap();
        let refused = host.make(&store()).unwrap().attach(&link, &KernelCalls::direct());
        assert_eq!(refused, Err(NotAttached::Refused(Errno::ENOTDIR)));
    });
}

#[rstest]
#[case::read_only(MsFlags::MS_RDONLY, "is mounted read-only")]
#[case::noexec(MsFlags::MS_NOEXEC, "is mounted noexec")]
fn a_file_system_that_cannot_have_a_store_is_refused(#[case] flag: MsFlags, #[case] why: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    thread::scope(|scope| {
        let refused = scope.spawn(move || {
            in_own_namespace();
            mount_tmpfs(path);
            let host = here(path);
            host.make(&store()).unwrap();
            let var = path.join("var");
            mount(Some(&var), &var, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flag;
            mount(None::<&str>, &var, None::<&str>, flags, None::<&str>).unwrap();
            [host.make(&store()), host.nearest(&store())].map(|it| it.unwrap_err().to_string())
        });
        for refused in refused.join().unwrap() {
            assert!(refused.contains(why), "{refused}");
        }
    });
}

fn here(root: &Path) -> HostNamespace {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    HostNamespace { root: root.to_path_buf(), file: "/proc/thread-self/ns/mnt".into() }
}

#[test]
fn what_is_missing_is_made_for_root_and_the_store_for_root_alone() {
    let dir = tempfile::tempdir().unwrap();
    let host = here(dir.path());
    assert!(!host.is_another());
    assert!(host.make(&store()).unwrap().whole);
    let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("var") & 0o022, mode(STORE)), (0, 0o700));
}

#[rstest]
#[case::a_link(|at: &Path| {
    fs::remove_dir(at).unwrap();
    symlink("/etc", at).unwrap();
}, "is a symbolic link")]
#[case::a_file(|at: &Path| {
    fs::remove_dir(at).unwrap();
    fs::write(at, "").unwrap();
}, "is no directory")]
#[case::of_another(|at: &Path| chown(at, Some(1000), None).unwrap(), "belongs to uid 1000")]
#[case::of_a_group(|at: &Path| chmod(at, 0o775), "written to by others (mode 0775)")]
#[case::of_all(|at: &Path| chmod(at, 0o1777), "written to by others (mode 1777)")]
fn a_directory_that_others_can_choose_is_refused(
    #[case] spoil: fn(&Path),
    #[case] why: &str,
    #[values("var/lib/store", "var/lib")] at: &str,
) {
    let dir = tempfile::tempdir().unwrap();
    let host = here(dir.path());
    let spoilt = dir.path().join(at);
    fs::create_dir_all(&spoilt).unwrap();
    spoil(&spoilt);
    for refused in [host.make(&store()), host.nearest(&store())] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with(&format!("/{at} on the host")), "{refused}");
        assert!(refused.contains(why), "{refused}");
    }
}

fn chmod(at: &Path, mode: u32) {
    fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
}

#[rstest]
#[case(Errno::ENOSYS, "Linux 5.2")]
#[case(Errno::EPERM, "seccomp profile")]
#[case(Errno::EACCES, "AppArmor")]
#[case(Errno::EINVAL, "Invalid argument")]
fn a_refusal_names_its_probable_cause(#[case] errno: Errno, #[case] cause: &str) {
    let text = NotAttached::Refused(errno).to_string();
    assert!(text.contains(cause), "{text}");
}
