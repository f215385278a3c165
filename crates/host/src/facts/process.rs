//! Privileges of this process, from /proc/self.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::facts::Probe;
use longshore_core::module_dir::has_modules;
use longshore_core::root::Root;

/// Capability names by number (include/uapi/linux/capability.h, Linux 5.9 and later have no more).
pub(crate) const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Privileges of a process.
pub(super) struct Process {
    pub(super) capabilities: Probe<BTreeSet<String>>,
    pub(super) euid: Probe<u32>,
    pub(super) initial_user_namespace: Probe<bool>,
}

/// Process 1, in this PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstProcess {
    /// The process has the same root directory, or is out of reach: on the host itself, or in a
    /// container with its own PID namespace.
    Own,
    /// The host's process 1: this is a container in the host's PID namespace.
    Hosts,
    /// Another container's: the pause container of a pod with `shareProcessNamespace`.
    Foreign,
}

/// The initial PID namespace: PROC_PID_INIT_INO of include/linux/proc_ns.h.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// True if this process is in the host's PID namespace and has the root directory of its process 1; false
/// where that cannot be read, as without CAP_SYS_PTRACE.
pub fn has_hosts_root(root: &Path) -> bool {
    let namespace = fs::read_link(root.join("proc/self/ns/pid"));
    namespace.is_ok_and(|name| name == Path::new(INITIAL_PID_NAMESPACE))
        && identity(root).is_some_and(|ours| identity(&root.join("proc/1/root")) == Some(ours))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).map(|found| (found.dev(), found.ino())).ok()
}

/// Classifies process 1 below `root`: by its PID namespace, or, if that is nested (a node in a
/// container), by the files that a host has and a pause container does not.
pub fn first_process(root: &Path) -> FirstProcess {
    let theirs = root.join("proc/1/root");
    match (identity(&theirs), identity(root)) {
        (Some(theirs), Some(ours)) if theirs != ours => {}
        _ => return FirstProcess::Own,
    }
    let namespace = fs::read_link(root.join("proc/1/ns/pid"));
    let is_initial = namespace.is_ok_and(|name| name == Path::new(INITIAL_PID_NAMESPACE));
    if is_initial || is_hosts_tree(&theirs) { FirstProcess::Hosts } else { FirstProcess::Foreign }
}

fn is_hosts_tree(path: &Path) -> bool {
    let Ok(root) = Root::open(path) else { return false };
    let has = |inner| root.exists(inner).unwrap_or(false);
    has_modules(&root) && (has("etc/os-release") || has("usr/lib/os-release"))
}

/// Reads /proc/self/status and /proc/self/uid_map.
pub(super) fn read(root: &Root) -> Process {
    let status = root.read_to_string("proc/self/status");
    let uid_map = root.read_to_string("proc/self/uid_map");
    Process {
        capabilities: status_field(&status, "CapPrm", capabilities),
        euid: status_field(&status, "Uid", |uids| {
            uids.split_ascii_whitespace().nth(1)?.parse().ok()
        }),
        initial_user_namespace: match uid_map {
            Ok(map) => Probe::Read(is_initial(&map)),
            Err(e) => Probe::Unreadable(e.to_string()),
        },
    }
}

fn status_field<T>(
    status: &io::Result<String>,
    key: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Probe<T> {
    let text = match status {
        Ok(text) => text,
        Err(e) => return Probe::Unreadable(e.to_string()),
    };
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    match value.and_then(|value| parse(value.trim())) {
        Some(value) => Probe::Read(value),
        None => Probe::Unreadable(format!("/proc/self/status has no readable {key}")),
    }
}

fn capabilities(hex: &str) -> Option<BTreeSet<String>> {
    let bits = u64::from_str_radix(hex, 16).ok()?;
    let named = CAPABILITIES.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1);
    Some(named.map(|(_, name)| (*name).to_owned()).collect())
}

/// True if the map is that of the initial namespace, which maps every id to itself
/// (user_namespaces(7)).
fn is_initial(uid_map: &str) -> bool {
    let fields: Vec<&str> = uid_map.split_ascii_whitespace().collect();
    fields == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::privileges;
    use proptest::prelude::*;
    use rstest::rstest;

    /// A tree whose process 1 is in this PID namespace and has these files.
    fn tree(namespace: &str, files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("proc/1");
        fs::create_dir_all(process.join("root")).unwrap();
        fs::create_dir_all(process.join("ns")).unwrap();
        std::os::unix::fs::symlink(namespace, process.join("ns/pid")).unwrap();
        for file in files {
            let file = process.join("root").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        dir
    }

    #[rstest]
    #[case::pause("pid:[4026532800]", &["pause", "etc/hostname", "dev/null"], FirstProcess::Foreign)]
    #[case::another_container("pid:[4026532800]", &["etc/os-release"], FirstProcess::Foreign)]
    #[case::a_node_in_a_container(
        "pid:[4026532800]",
        &["usr/lib/os-release", "lib/modules/6.1.0/modules.dep"],
        FirstProcess::Hosts
    )]
    #[case::the_host(INITIAL_PID_NAMESPACE, &[], FirstProcess::Hosts)]
    fn whose_process_1_is(
        #[case] namespace: &str,
        #[case] files: &[&str],
        #[case] expected: FirstProcess,
    ) {
        assert_eq!(first_process(tree(namespace, files).path()), expected);
    }

    #[test]
    fn a_process_1_with_this_root_is_no_other_machine() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(first_process(dir.path()), FirstProcess::Own);
        fs::create_dir_all(dir.path().join("proc/1")).unwrap();
        std::os::unix::fs::symlink("../..", dir.path().join("proc/1/root")).unwrap();
        assert_eq!(first_process(dir.path()), FirstProcess::Own);
    }

    #[test]
    fn a_privileged_container_has_them_all() {
        let all = capabilities("000001ffffffffff").unwrap();
        assert_eq!(all.len(), CAPABILITIES.len());
    }

    #[test]
    fn a_default_container_cannot_load_modules() {
        let some = capabilities("00000000a80425fb").unwrap();
        assert!(some.contains("CAP_MKNOD") && some.contains("CAP_CHOWN"));
        assert!(!some.contains("CAP_SYS_MODULE") && !some.contains("CAP_SYS_ADMIN"));
    }

    #[rstest]
    #[case("Name:\tx\nUid:\t1000\t0\t0\t0\n", Some(0))]
    #[case("Uid:\t1000\n", None)]
    #[case("", None)]
    fn effective_user_ids(#[case] text: &str, #[case] wanted: Option<u32>) {
        let euid = status_field(&Ok(text.to_owned()), "Uid", |uids| {
            uids.split_ascii_whitespace().nth(1)?.parse().ok()
        });
        let known = if let Probe::Read(id) = euid { Some(id) } else { None };
        assert_eq!(known, wanted);
    }

    #[rstest]
    #[case("         0          0 4294967295\n", true)]
    #[case("0 1000 1\n1 100000 65536\n", false)]
    #[case("", false)]
    fn user_namespaces(#[case] map: &str, #[case] initial: bool) {
        assert_eq!(is_initial(map), initial);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(text in "\\PC{0,80}") {
            let _ = capabilities(&text);
            let _ = status_field(&Ok(text), "Cap", |v| Some(v.len()));
        }
    }

    #[test]
    fn every_capability_is_named_as_the_kernel_numbers_it() {
        let by_number = |need: &privileges::Need| CAPABILITIES[need.number() as usize];
        for need in &privileges::NEEDS {
            assert_eq!(need.name, by_number(need), "{}", need.purpose);
        }
    }
}
