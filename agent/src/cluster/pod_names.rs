//! Names of the node's pods, by the directories of their logs: no right of the cluster is needed for them.
//!
//! The kubelet makes `/var/log/pods/NAMESPACE_NAME_UID` before a pod's first container starts, and removes it after
//! the pod (pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory; the delimiter is in none of the three). The uid
//! is that of the pod's cgroups, also for a static pod, whose mirror object has another one.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use longshore_cluster::{PodRef, is_name};
use longshore_core::root::Root;
use nix::dir::Dir;

/// Directory of the pods' logs on the host: the kubelet's default of `podLogsDir`.
const LOGS: &str = "var/log/pods";
/// Number of directories that are read: a node has some hundred pods.
const MOST: usize = 4096;
/// Mode bits of writers other than the owner.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Returns the pods with a directory of logs on the host whose root is `host_root`, by their uids.
///
/// # Errors
/// The kernel's error, with the path; a directory that is not root's alone.
pub(super) fn pods_by_uid(host_root: &Path) -> io::Result<BTreeMap<String, PodRef>> {
    read(host_root, 0)
}

/// As [`pods_by_uid`], of a directory that belongs to this user.
fn read(host_root: &Path, owner: u32) -> io::Result<BTreeMap<String, PodRef>> {
    let root = Root::open(host_root)?;
    let dir = root.file(LOGS)?;
    let found = dir.metadata()?;
    // A user who could make directories there would choose the names in events.
    if !found.is_dir() || found.uid() != owner || found.mode() & WRITTEN_BY_OTHERS != 0 {
        let place = root.display(LOGS);
        let why = format!("{} is not a directory that root alone can write to", place.display());
        return Err(io::Error::other(why));
    }
    let mut pods = BTreeMap::new();
    for entry in Dir::from_fd(dir.into())?.iter().take(MOST) {
        let entry = entry?;
        if let Some(pod) = entry.file_name().to_str().ok().and_then(of_name) {
            pods.insert(pod.uid.clone(), pod);
        }
    }
    Ok(pods)
}

/// Parses the name of a directory; None where the kubelet makes no such one.
fn of_name(name: &str) -> Option<PodRef> {
    let mut parts = name.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let fits = is_name(namespace) && is_name(name) && is_uid(uid) && parts.next().is_none();
    let pod = || PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    fits.then(pod)
}

/// True for the uid of a pod: a UUID, or the hash of a static pod's manifest.
fn is_uid(uid: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    matches!(uid.len(), 32 | 36 | 64) && uid.bytes().all(|b| is_hex(b) || b == b'-')
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rstest::rstest;

    use super::*;

    const UID: &str = "8f3b2c1d-1111-2222-3333-444455556666";
    const HASH: &str = "0b7ec6a1de0a5b14e1ad2c1b6b0d3c55";

    /// A host with these directories of logs, and the uid that they belong to.
    fn host(names: &[&str]) -> (tempfile::TempDir, u32) {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join(LOGS);
        for name in names {
            fs::create_dir_all(logs.join(name)).unwrap();
        }
        fs::set_permissions(&logs, Permissions::from_mode(0o755)).unwrap();
        let owner = fs::metadata(&logs).unwrap().uid();
        (dir, owner)
    }

    #[test]
    fn pods_have_the_uids_of_their_cgroups_and_static_ones_their_hash() {
        let (pod, fixed) = (format!("ml_train-0_{UID}"), format!("kube-system_st-node.1_{HASH}"));
        let (dir, owner) = host(&[&pod, &fixed, "lost+found"]);
        let pods = read(dir.path(), owner).unwrap();
        let names: Vec<String> = pods.values().map(ToString::to_string).collect();
        assert_eq!(names, ["kube-system/st-node.1", "ml/train-0"]);
        assert_eq!(pods[HASH].name, "st-node.1");
        assert_eq!(pods[UID].uid, UID);
    }

    #[rstest]
    #[case::two_parts("ml_train")]
    #[case::four_parts("ml_train_8f3b2c1d-1111-2222-3333-444455556666_x")]
    #[case::no_name("ml_-_8f3b2c1d-1111-2222-3333-444455556666")]
    #[case::dots(".._train_8f3b2c1d-1111-2222-3333-444455556666")]
    #[case::escapes("ml_tr\u{1b}[2J_8f3b2c1d-1111-2222-3333-444455556666")]
    #[case::no_uid("ml_train_0001")]
    #[case::capitals("ml_train_8F3B2C1D-1111-2222-3333-444455556666")]
    #[case::long_uid("ml_train_8f3b2c1d-1111-2222-3333-4444555566667777")]
    fn other_names_are_passed_over(#[case] name: &str) {
        let (dir, owner) = host(&[name]);
        assert_eq!(read(dir.path(), owner).unwrap(), BTreeMap::new());
    }

    #[test]
    fn a_directory_that_others_fill_is_not_read_and_none_is_an_error() {
        let (dir, owner) = host(&[&format!("ml_train_{UID}")]);
        let error = read(dir.path(), owner + 1).unwrap_err().to_string();
        assert!(error.contains("root alone"), "{error}");
        let logs = dir.path().join(LOGS);
        for mode in [0o775, 0o777, 0o1777] {
            fs::set_permissions(&logs, Permissions::from_mode(mode)).unwrap();
            assert!(read(dir.path(), owner).is_err(), "{mode:o}");
        }
        fs::remove_dir_all(&logs).unwrap();
        assert_eq!(read(dir.path(), owner).unwrap_err().kind(), io::ErrorKind::NotFound);
        // A link of the host's stays below its root.
        symlink("/etc", &logs).unwrap();
        assert_eq!(read(dir.path(), owner).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn so_many_directories_are_read_and_no_more() {
        let names: Vec<String> = (0..MOST + 8).map(|n| format!("ml_p_{n:032x}")).collect();
        let (dir, owner) = host(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let found = read(dir.path(), owner).unwrap().len();
        assert!((MOST - 2..=MOST).contains(&found), "{found}");
    }
}
