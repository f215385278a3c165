//! Place of the store: as its path is, or a directory of the host that is attached on that path
//! (docs/internals/decisions/store-of-the-host.md).
//!
//! A container without a mount for the store has it in its own root, and loses it with its end. Where
//! process 1 is the host's, the host's directory of the same path can be attached instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::plain_path::plain;
use super::record_place::FIRST_PROCESS;
use longshore_core::bounded_call;
use longshore_core::paths::Paths;
use longshore_core::privileges;
use longshore_host::facts::Mount;
use longshore_host::facts::mounts;
use longshore_host::real::mount_from_host::HostNamespace;

/// Directories of a store whose contents take minutes to make again.
const COSTLY: [&str; 2] = ["sets", "userspace"];

/// Place of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StorePlace {
    /// The directory of its path, in whichever file system that is.
    #[default]
    AsItIs,
    /// The host's directory, attached on its path.
    Attached,
    /// The host's directory, which `run` attaches on its path.
    ToAttach,
    /// The container's own file system, for this reason.
    InContainer(String),
}

/// Choice of the store's place, before the kernel is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// The directory of its path.
    AsItIs,
    /// The host's directory of this path.
    Host(PathBuf),
    /// The container's own directory: covered, its sets and trees would be lost.
    Filled,
}

/// Inputs of the choice.
#[derive(Debug, Clone, Copy)]
struct Circumstances<'a> {
    captured: bool,
    /// Host's root directory, as the settings have it or as it was found.
    host_root: &'a Path,
    /// True if process 1 is in another mount namespace, with another root.
    other_root: bool,
    /// True if this process may mount.
    may_mount: bool,
    store: &'a Path,
    mounts: &'a [Mount],
}

/// State of a candidate's directory.
#[derive(Debug, Clone, Copy)]
struct DirectoryState {
    /// True if the path leads through a link: where somebody wanted the store to be.
    linked: bool,
    /// True if the store has sets or user-mode trees.
    filled: bool,
}

impl StoreChoice {
    /// Chooses the place of these paths' store, of the default one and of a configured one alike.
    /// Reads no directory of a store with a mount of its own; one that does not answer within `limit`
    /// stays as it is.
    pub fn choose(paths: &Paths, limit: Duration) -> Self {
        let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let candidate = candidate(Circumstances {
            captured: paths.is_captured(),
            host_root: &paths.host_root,
            other_root: HostNamespace::of_process_1().is_another(),
            may_mount: privileges::may("CAP_SYS_ADMIN"),
            store: &paths.store,
            mounts: &mounts::parse(&text),
        });
        let Some(path) = candidate else { return Self::AsItIs };
        let looked = path.clone();
        match bounded_call::in_time("store-place", limit, move || Ok(DirectoryState::at(&looked))) {
            Some(Ok(found)) => choose(path, found),
            Some(Err(_)) | None => Self::AsItIs,
        }
    }
}

impl DirectoryState {
    fn at(store: &Path) -> Self {
        Self {
            linked: resolved(store) != store,
            filled: COSTLY.iter().any(|name| has_entries(&store.join(name))),
        }
    }
}

/// Returns the store's path if the host's directory may take its place.
fn candidate(given: Circumstances<'_>) -> Option<PathBuf> {
    let path = plain(given.store);
    let reachable =
        given.host_root == Path::new(FIRST_PROCESS) && given.other_root && given.may_mount;
    let is_one = !given.captured && reachable && is_in_own_root(given.mounts, &path);
    is_one.then_some(path)
}

fn choose(path: PathBuf, found: DirectoryState) -> StoreChoice {
    match found {
        DirectoryState { linked: true, .. } => StoreChoice::AsItIs,
        DirectoryState { filled: true, .. } => StoreChoice::Filled,
        DirectoryState { .. } => StoreChoice::Host(path),
    }
}

/// True in the container's own root. A mount of its own, also a tmpfs, was made on purpose, and one
/// that the host shares must keep its propagation.
fn is_in_own_root(mounts: &[Mount], path: &Path) -> bool {
    mounts::containing(mounts, path).is_some_and(|mount| mount.target == Path::new("/"))
}

fn has_entries(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Resolves the links of a path whose last parts may not exist.
fn resolved(path: &Path) -> PathBuf {
    let path = plain(path);
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(parent), Some(name)) => resolved(parent).join(name),
        (Err(_), ..) => path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    const OVERLAY: &str = "1 0 0:50 / / rw master:3 - overlay overlay rw";
    const STORE: &str = "/var/lib/longshore";

    struct Scene {
        captured: bool,
        host_root: &'static str,
        other_root: bool,
        may_mount: bool,
        store: &'static str,
        resolved: &'static str,
        mountinfo: &'static str,
        filled: bool,
    }

    /// A privileged pod with hostPID and without a mount for the store.
    const POD: Scene = Scene {
        captured: false,
        host_root: "/proc/1/root",
        other_root: true,
        may_mount: true,
        store: STORE,
        resolved: STORE,
        mountinfo: OVERLAY,
        filled: false,
    };

    fn chosen(scene: &Scene) -> StoreChoice {
        let candidate = candidate(Circumstances {
            captured: scene.captured,
            host_root: Path::new(scene.host_root),
            other_root: scene.other_root,
            may_mount: scene.may_mount,
            store: Path::new(scene.store),
            mounts: &mounts::parse(scene.mountinfo.as_bytes()),
        });
        let found = DirectoryState {
            linked: Path::new(scene.resolved) != plain(Path::new(scene.store)),
            filled: scene.filled,
        };
        candidate.map_or(StoreChoice::AsItIs, |path| choose(path, found))
    }

    #[rstest]
    #[case::a_pod(POD, STORE)]
    #[case::a_pod_with_a_shared_root(
        Scene { mountinfo: "1 0 0:50 / / rw shared:9 - overlay overlay rw", ..POD },
        STORE
    )]
    #[case::a_rootless_overlay(
        Scene { mountinfo: "1 0 0:50 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw", ..POD },
        STORE
    )]
    #[case::a_directory_on_disk_as_root(
        Scene { mountinfo: "1 0 8:1 /containers/vfs/dir/1 / rw - ext4 /dev/sda1 rw", ..POD },
        STORE
    )]
    #[case::a_tmpfs_as_root(Scene { mountinfo: "1 0 0:50 / / rw - tmpfs tmpfs rw", ..POD }, STORE)]
    #[case::the_setting(Scene { store: "/srv/x/../store", resolved: "/srv/store", ..POD }, "/srv/store")]
    #[case::a_mount_beside_it(
        Scene {
            mountinfo: "1 0 0:50 / / rw - overlay overlay rw\n2 1 8:1 /run/nvidia /run/nvidia rw shared:5 - tmpfs tmpfs rw",
            ..POD
        },
        STORE
    )]
    fn the_hosts_directory_takes_the_place_of_one_in_the_containers_root(
        #[case] scene: Scene,
        #[case] path: &str,
    ) {
        assert_eq!(chosen(&scene), StoreChoice::Host(path.into()));
    }

    #[rstest]
    #[case::captured(Scene { captured: true, ..POD })]
    #[case::on_the_host(Scene { host_root: "/", other_root: false, ..POD })]
    #[case::without_host_pid(Scene { host_root: "/", ..POD })]
    #[case::the_hosts_root_as_a_mount(Scene { host_root: "/host", ..POD })]
    #[case::with_the_hosts_root(Scene { other_root: false, ..POD })]
    #[case::without_privileges(Scene { may_mount: false, ..POD })]
    #[case::a_link(Scene { resolved: "/data/longshore", ..POD })]
    #[case::a_host_path(Scene {
        mountinfo: "1 0 0:50 / / rw - overlay overlay rw\n2 1 8:1 /var/lib/longshore /var/lib/longshore rw - ext4 /dev/sda1 rw",
        ..POD
    })]
    #[case::a_tmpfs_for_it(Scene {
        mountinfo: "1 0 0:50 / / rw - overlay overlay rw\n2 1 0:60 / /var/lib/longshore rw - tmpfs tmpfs rw",
        ..POD
    })]
    #[case::a_mount_above_it(Scene {
        mountinfo: "1 0 0:50 / / rw - overlay overlay rw\n2 1 8:1 /d /var/lib rw - xfs /dev/sda1 rw",
        ..POD
    })]
    #[case::in_run_nvidia(Scene {
        store: "/run/nvidia/store",
        resolved: "/run/nvidia/store",
        mountinfo: "1 0 0:50 / / rw - overlay overlay rw\n2 1 0:20 /nvidia /run/nvidia rw shared:5 - tmpfs tmpfs rw",
        ..POD
    })]
    #[case::unknown_mounts(Scene { mountinfo: "", ..POD })]
    fn any_other_store_stays_as_it_is(#[case] scene: Scene) {
        assert_eq!(chosen(&scene), StoreChoice::AsItIs);
    }

    #[test]
    fn sets_in_the_containers_own_store_are_not_covered() {
        assert_eq!(chosen(&Scene { filled: true, ..POD }), StoreChoice::Filled);
    }

    #[test]
    fn a_linked_or_filled_store_is_found_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("store/sets/one")).unwrap();
        symlink("store", dir.join("link")).unwrap();
        for (name, linked, filled) in
            [("store", false, true), ("link", true, true), ("none", false, false)]
        {
            let found = DirectoryState::at(&dir.join(name));
            assert_eq!((found.linked, found.filled), (linked, filled), "{name}");
        }
    }

    #[test]
    fn links_of_a_path_are_resolved_though_its_end_does_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir(dir.join("data")).unwrap();
        symlink("data", dir.join("link")).unwrap();
        assert_eq!(resolved(&dir.join("link/a/../b/c")), dir.join("data/b/c"));
        assert!(
            !has_entries(&dir.join("data")) && has_entries(&dir) && !has_entries(&dir.join("no"))
        );
    }
}
