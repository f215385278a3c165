//! Choice of the directory that holds the record (docs/internals/decisions/record-place.md).
//!
//! `/run/nvidia` is mounted read-write into many containers, and root in any of them can write
//! there. So the record is kept in the host's `/run/longshore`, reached by a mount or through the
//! host's root. Where neither is available it stays below `/run/nvidia`, with a seal.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::plain_path::plain;
use longshore_host::facts::mounts;

/// Record directory on the host.
const OWN: &str = longshore_core::paths::STATE;
/// Directory that others can write to.
const SHARED: &str = "/run/nvidia";
/// Record directory where only [`SHARED`] is the host's; also that of every agent before this rule.
const IN_SHARED: &str = "/run/nvidia/longshore";
/// Host's root, through process 1.
pub(super) const FIRST_PROCESS: &str = "/proc/1/root";
/// Inode of the initial PID namespace: `PROC_PID_INIT_INO` (include/linux/proc_ns.h).
const INITIAL_PIDS: &str = "pid:[4026531836]";

/// Record directory, and whether its contents need a seal to be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordPlace {
    pub(super) dir: PathBuf,
    /// True if others can write to `dir`.
    pub(super) sealed: bool,
    /// Directory that an earlier agent may have left its record in.
    pub(super) earlier: Option<PathBuf>,
}

/// Inputs of the choice.
#[derive(Debug, Clone, Copy, Default)]
struct Circumstances<'a> {
    setting: Option<&'a Path>,
    /// True if the facts come from a captured tree.
    captured: bool,
    /// Directory, within its file system, that is mounted on [`OWN`], as in mountinfo.
    mounted: Option<&'a Path>,
    /// Path of the host's root, where it is certainly the host's.
    host: Option<&'a Path>,
}

impl RecordPlace {
    /// Returns the record directory for this setting, root and driver root.
    pub(super) fn find(setting: Option<&Path>, root: &Path, driver_root: &Path) -> Self {
        let captured = root != Path::new("/");
        let host = if captured { None } else { host_root(root, driver_root) };
        let mounted = if captured { None } else { mounted_on(Path::new(OWN)) };
        let host = host.as_deref();
        choose(Circumstances { setting, captured, mounted: mounted.as_deref(), host })
    }
}

fn choose(given: Circumstances<'_>) -> RecordPlace {
    let own = |root: &Path| RecordPlace {
        dir: root.join(OWN.trim_start_matches('/')),
        sealed: false,
        earlier: Some(IN_SHARED.into()),
    };
    if let Some(dir) = given.setting {
        return RecordPlace { dir: dir.into(), sealed: is_shared(dir), earlier: None };
    }
    if given.captured || given.mounted.is_some_and(is_of_host) {
        return own(Path::new("/"));
    }
    match given.host {
        Some(root) => own(root),
        None => RecordPlace { dir: IN_SHARED.into(), sealed: true, earlier: None },
    }
}

/// True if a mount on [`OWN`] is the host's directory of that name, judged by its root in
/// mountinfo: in a tmpfs on the host's /run, or in a file system that holds /run. A tmpfs of the
/// container's own has `/`, and a volume a path of its runtime's.
fn is_of_host(root: &Path) -> bool {
    root == Path::new("/longshore") || root.ends_with("run/longshore")
}

/// True if others can write to the directory, also as seen through the host's root.
fn is_shared(dir: &Path) -> bool {
    let dir = plain(dir);
    let from_host = dir.strip_prefix(FIRST_PROCESS).map(|rest| Path::new("/").join(rest));
    from_host.as_ref().unwrap_or(&dir).starts_with(SHARED)
}

fn mounted_on(target: &Path) -> Option<PathBuf> {
    let mounts = mounts::parse(&fs::read("/proc/self/mountinfo").ok()?);
    mounts.into_iter().rfind(|mount| mount.target == target).map(|mount| mount.root)
}

/// Returns the host's root, as seen from `root`; None where that is uncertain: process 1 may be a
/// container's own, or that of a pod which shares one PID namespace among its containers.
fn host_root(root: &Path, driver_root: &Path) -> Option<PathBuf> {
    let first = root.join(FIRST_PROCESS.trim_start_matches('/'));
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let initial =
        fs::read_link(root.join("proc/self/ns/pid")).is_ok_and(|ns| ns == Path::new(INITIAL_PIDS));
    if identity(&first)? == identity(root)? {
        return initial.then(|| root.to_path_buf());
    }
    // A directory that is the same in both is the host's, mounted into the container.
    let shared = driver_root.parent().filter(|dir| dir.components().any(is_name))?;
    let shared = shared.strip_prefix("/").unwrap_or(shared);
    let same = || {
        let theirs = identity(&first.join(shared));
        theirs.is_some() && theirs == identity(&root.join(shared))
    };
    (initial || same()).then_some(first)
}

fn is_name(part: Component<'_>) -> bool {
    matches!(part, Component::Normal(_))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    const NOTHING: Circumstances<'_> =
        Circumstances { setting: None, captured: false, mounted: None, host: None };

    fn set(dir: &str) -> Circumstances<'_> {
        Circumstances { setting: Some(Path::new(dir)), ..NOTHING }
    }

    fn mounted(root: &str) -> Circumstances<'_> {
        Circumstances { mounted: Some(Path::new(root)), ..NOTHING }
    }

    fn host(root: &str) -> Circumstances<'_> {
        Circumstances { host: Some(Path::new(root)), ..NOTHING }
    }

    #[rstest]
    #[case::only_run_nvidia(NOTHING, "/run/nvidia/longshore", true)]
    #[case::the_host_itself(host("/"), "/run/longshore", false)]
    #[case::through_process_1(host("/proc/1/root"), "/proc/1/root/run/longshore", false)]
    #[case::a_mount_of_a_tmpfs_on_run(mounted("/longshore"), "/run/longshore", false)]
    #[case::a_mount_of_a_run_on_disk(mounted("/run/longshore"), "/run/longshore", false)]
    #[case::a_mount_of_a_subvolume(mounted("/@/run/longshore"), "/run/longshore", false)]
    #[case::a_tmpfs_of_the_container(mounted("/"), "/run/nvidia/longshore", true)]
    #[case::an_empty_dir(
        mounted("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/longshore"),
        "/run/nvidia/longshore",
        true
    )]
    #[case::a_tmpfs_beside_the_hosts_root(
        Circumstances { host: Some(Path::new("/proc/1/root")), ..mounted("/") },
        "/proc/1/root/run/longshore",
        false
    )]
    #[case::a_mount_and_the_hosts_root(
        Circumstances { host: Some(Path::new("/proc/1/root")), ..mounted("/longshore") },
        "/run/longshore",
        false
    )]
    #[case::captured(Circumstances { captured: true, ..NOTHING }, "/run/longshore", false)]
    #[case::the_setting(set("/srv/state"), "/srv/state", false)]
    #[case::the_setting_wins(
        Circumstances { setting: Some(Path::new("/srv/state")), ..mounted("/longshore") },
        "/srv/state",
        false
    )]
    #[case::a_setting_that_is_shared(set("/run/nvidia/longshore"), "/run/nvidia/longshore", true)]
    #[case::a_setting_with_dots(set("/run/x/../nvidia/l"), "/run/x/../nvidia/l", true)]
    #[case::a_setting_through_process_1(
        set("/proc/1/root/run/nvidia/l"),
        "/proc/1/root/run/nvidia/l",
        true
    )]
    #[case::a_setting_beside_it(set("/run/nvidia2"), "/run/nvidia2", false)]
    fn places(#[case] given: Circumstances<'_>, #[case] dir: &str, #[case] sealed: bool) {
        let place = choose(given);
        assert_eq!((place.dir.as_path(), place.sealed), (Path::new(dir), sealed));
        let moved = given.setting.is_none() && !sealed;
        assert_eq!(place.earlier, moved.then(|| IN_SHARED.into()));
    }

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// Makes a root whose process 1 has another root, in a PID namespace with this inode.
        fn new(namespace: &str) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(tree.at("proc/self/ns")).unwrap();
            fs::create_dir_all(tree.at("proc/1/root/run")).unwrap();
            fs::create_dir_all(tree.at("run/nvidia")).unwrap();
            symlink(namespace, tree.at("proc/self/ns/pid")).unwrap();
            tree
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn host(&self) -> Option<PathBuf> {
            let found = host_root(self.0.path(), Path::new("/run/nvidia/driver"))?;
            Some(found.strip_prefix(self.0.path()).unwrap().to_path_buf())
        }
    }

    #[test]
    fn another_process_1_is_the_hosts_in_its_pid_namespace_or_with_its_run_nvidia() {
        assert_eq!(Tree::new(INITIAL_PIDS).host(), Some("proc/1/root".into()));
        let tree = Tree::new("pid:[4026532000]");
        assert_eq!(tree.host(), None, "the pause container of a pod is process 1 as well");
        fs::create_dir(tree.at("proc/1/root/run/nvidia")).unwrap();
        assert_eq!(tree.host(), None, "a directory of that name is not that directory");
        fs::remove_dir(tree.at("proc/1/root/run/nvidia")).unwrap();
        symlink(tree.at("run/nvidia"), tree.at("proc/1/root/run/nvidia")).unwrap();
        assert_eq!(tree.host(), Some("proc/1/root".into()));
    }

    #[test]
    fn an_agent_with_process_1s_root_is_on_the_host_only_in_the_initial_pid_namespace() {
        for (namespace, host) in [(INITIAL_PIDS, Some("".into())), ("pid:[4026532000]", None)] {
            let tree = Tree::new(namespace);
            fs::remove_dir_all(tree.at("proc/1/root")).unwrap();
            symlink("../..", tree.at("proc/1/root")).unwrap();
            assert_eq!(tree.host(), host, "{namespace}");
            fs::remove_file(tree.at("proc/1/root")).unwrap();
            assert_eq!(tree.host(), None, "out of reach is not the same");
        }
    }
}
