//! What this process may do, from /proc/self.

use std::collections::BTreeSet;
use std::io;

use super::facts::Known;
use super::root::Root;

/// Names by number (include/uapi/linux/capability.h, Linux 5.9 and later have no more).
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

/// What a process is allowed.
pub(super) struct Process {
    pub(super) capabilities: Known<BTreeSet<String>>,
    pub(super) euid: Known<u32>,
    pub(super) initial_user_namespace: Known<bool>,
}

/// Reads /proc/self/status and /proc/self/uid_map.
pub(super) fn read(root: &Root) -> Process {
    let status = root.read_to_string("proc/self/status");
    let uid_map = root.read_to_string("proc/self/uid_map");
    Process {
        capabilities: of(&status, "CapPrm", capabilities),
        euid: of(&status, "Uid", |uids| uids.split_ascii_whitespace().nth(1)?.parse().ok()),
        initial_user_namespace: match uid_map {
            Ok(map) => Known::Yes(is_initial(&map)),
            Err(e) => Known::Unknown(e.to_string()),
        },
    }
}

fn of<T>(status: &io::Result<String>, key: &str, parse: impl Fn(&str) -> Option<T>) -> Known<T> {
    let text = match status {
        Ok(text) => text,
        Err(e) => return Known::Unknown(e.to_string()),
    };
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    match value.and_then(|value| parse(value.trim())) {
        Some(value) => Known::Yes(value),
        None => Known::Unknown(format!("/proc/self/status has no readable {key}")),
    }
}

fn capabilities(hex: &str) -> Option<BTreeSet<String>> {
    let bits = u64::from_str_radix(hex, 16).ok()?;
    let named = CAPABILITIES.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1);
    Some(named.map(|(_, name)| (*name).to_owned()).collect())
}

/// The initial namespace maps every id to itself (user_namespaces(7)).
fn is_initial(uid_map: &str) -> bool {
    let fields: Vec<&str> = uid_map.split_ascii_whitespace().collect();
    fields == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

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
        let euid = of(&Ok(text.to_owned()), "Uid", |uids| {
            uids.split_ascii_whitespace().nth(1)?.parse().ok()
        });
        let known = if let Known::Yes(id) = euid { Some(id) } else { None };
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
            let _ = of(&Ok(text), "Cap", |v| Some(v.len()));
        }
    }
}
