//! Tests of the seccomp profile deploy/seccomp/longshore.json.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::Deserialize;
use syscalls::{aarch64, x86_64};

const PROFILE: &str = include_str!("../../deploy/seccomp/longshore.json");

/// Fields of the profile that container runtimes read (opencontainers/runtime-spec,
/// `LinuxSeccomp`).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    default_action: String,
    default_errno_ret: i32,
    architectures: Vec<String>,
    syscalls: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    names: Vec<String>,
    action: String,
    #[serde(default)]
    args: Vec<Argument>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Argument {
    index: u32,
    value: u64,
    op: String,
}

fn profile() -> Profile {
    serde_json::from_str(PROFILE).unwrap()
}

/// Returns the names of system calls that are allowed with any arguments.
fn allowed(profile: &Profile) -> BTreeSet<&str> {
    let open = profile.syscalls.iter().filter(|rule| rule.args.is_empty());
    open.flat_map(|rule| &rule.names).map(String::as_str).collect()
}

#[test]
fn every_name_is_a_system_call_of_one_of_its_architectures() {
    let profile = profile();
    assert_eq!(profile.architectures, ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]);
    let names: Vec<&String> = profile.syscalls.iter().flat_map(|rule| &rule.names).collect();
    let unknown: Vec<_> = names
        .iter()
        .filter(|name| {
            x86_64::Sysno::from_str(name).is_err() && aarch64::Sysno::from_str(name).is_err()
        })
        .collect();
    assert!(unknown.is_empty(), "runtimes leave these out without a word: {unknown:?}");
    let sorted: BTreeSet<_> = allowed(&profile).into_iter().collect();
    let written: Vec<_> = profile.syscalls[0].names.iter().map(String::as_str).collect();
    assert_eq!(written, sorted.into_iter().collect::<Vec<_>>(), "not sorted, or twice");
}

#[test]
fn what_is_not_named_does_not_exist() {
    let profile = profile();
    assert_eq!(profile.default_action, "SCMP_ACT_ERRNO");
    // With ENOSYS the C library falls back to another call; EPERM makes it fail.
    assert_eq!(profile.default_errno_ret, 38);
    assert!(profile.syscalls.iter().all(|rule| rule.action == "SCMP_ACT_ALLOW"));
    let conditions = profile.syscalls.iter().filter(|rule| !rule.args.is_empty());
    for rule in conditions {
        assert_eq!(rule.names, ["personality"]);
        // PER_LINUX, the same without randomised addresses, and the query of the current one.
        let [Argument { index: 0, value: 0 | 0x0004_0000 | 0xffff_ffff, op }] = &rule.args[..]
        else {
            panic!("{rule:?}");
        };
        assert_eq!(op, "SCMP_CMP_EQ");
    }
}

/// Checks the system calls of longshore, its build sandbox and its daemons, and those by which a
/// process with these capabilities could do more to the host or to other processes.
#[test]
fn it_opens_what_the_agent_does_and_nothing_that_its_capabilities_would_open_else() {
    let profile = profile();
    let allowed = allowed(&profile);
    let needed = "capset chown chroot clone clone3 delete_module execve finit_module flock \
        init_module kill mknodat mount pidfd_open pidfd_send_signal prctl seccomp setgid setgroups \
        sethostname setsid setuid syslog umount2 unshare";
    for name in needed.split_whitespace() {
        assert!(allowed.contains(name), "{name} is needed");
    }
    let refused = "acct add_key bpf fanotify_init fsmount fsopen io_uring_setup ioperm iopl kcmp \
        kexec_file_load kexec_load keyctl mount_setattr move_mount open_by_handle_at open_tree \
        perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv \
        process_vm_writev ptrace quotactl reboot request_key setns settimeofday swapoff swapon \
        userfaultfd vhangup";
    for name in refused.split_whitespace() {
        assert!(x86_64::Sysno::from_str(name).is_ok(), "{name} is no system call");
        assert!(!allowed.contains(name), "{name} is allowed");
    }
}
