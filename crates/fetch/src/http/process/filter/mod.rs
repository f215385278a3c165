//! The seccomp filter of the process: the system calls of a client for TCP, and of the C library's resolver.
//!
//! Every other call fails with ENOSYS, as on a kernel without it: what a resolver tries depends on the C library
//! and on the host's settings (nsswitch.conf(5)), and each has another way then. There is no call among them that starts a
//! program, writes a file, signals or reads another process, or changes anything of the machine. Files are opened for
//! reading alone.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompFilter, SeccompRule,
};

/// System calls that are allowed with any arguments.
const ALLOWED: [libc::c_long; 58] = [
    // Sockets that are there, and other open files.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_getrandom,
    // Threads and their signals.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The process's own identity, and the machine's name.
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
];

/// Older forms of allowed calls, which the C library of x86-64 still makes.
#[cfg(target_arch = "x86_64")]
const OLDER: [libc::c_long; 9] = [
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [libc::c_long; 0] = [];

/// Flags with which open(2) changes a file.
const WRITES: libc::c_int =
    libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY);

/// Bits of a socket's kind: the others are flags (linux/net.h, SOCK_TYPE_MASK).
const SOCKET_KIND: u32 = 0xf;

/// Installs the filter on the calling thread, the only one, and on those that it starts.
///
/// # Errors
/// The kernel's errno: ENOSYS or EINVAL where it has no seccomp(2) (CONFIG_SECCOMP_FILTER).
pub(super) fn install() -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter(&program()?)
}

/// Compiles the filter for this architecture.
pub(super) fn program() -> Result<BpfProgram, BackendError> {
    let (refused, allowed) = (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow);
    SeccompFilter::new(rules()?, refused, allowed, ARCH.try_into()?)?.try_into()
}

/// Returns the rules of each allowed call: none allow it with any arguments, several each on its own.
fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.into_iter().chain(OLDER).map(|number| (number, Vec::new())).collect();
    let mut only = |number: libc::c_long, when: Vec<Vec<Condition>>| -> Result<(), BackendError> {
        let when = when.into_iter().map(SeccompRule::new).collect::<Result<_, _>>()?;
        rules.insert(number, when);
        Ok(())
    };
    // TCP and UDP alone: no netlink, no Unix socket of another process, and no protocol that loads a module.
    let mut sockets = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in [
            (libc::SOCK_STREAM, 0),
            (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            (libc::SOCK_DGRAM, 0),
            (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        ] {
            sockets.push(vec![
                has(0, u32::MAX, family as u32)?,
                has(1, SOCKET_KIND, kind as u32)?,
                has(2, u32::MAX, protocol as u32)?,
            ]);
        }
    }
    only(libc::SYS_socket, sockets)?;
    // Other commands than these make the kernel signal any process that the user may signal (F_SETOWN), or are those
    // of devices.
    let command = |command: u32| has(1, u32::MAX, command).map(|it| vec![it]);
    let of_files =
        [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];
    let of_files: Result<_, _> = of_files.iter().map(|it| command(*it as u32)).collect();
    only(libc::SYS_fcntl, of_files?)?;
    only(libc::SYS_ioctl, vec![command(libc::FIONBIO as u32)?, command(libc::FIONREAD as u32)?])?;
    only(libc::SYS_openat, vec![vec![has(2, WRITES as u32, libc::O_RDONLY as u32)?]])?;
    #[cfg(target_arch = "x86_64")]
    only(libc::SYS_open, vec![vec![has(1, WRITES as u32, libc::O_RDONLY as u32)?]])?;
    // Memory with code is that of a file, which nothing here can write.
    let (code, writable) = (libc::PROT_EXEC as u32, libc::PROT_WRITE as u32);
    let anonymous = libc::MAP_ANONYMOUS as u32;
    let of_a_file = vec![has(2, writable, 0)?, has(3, anonymous, 0)?];
    only(libc::SYS_mmap, vec![vec![has(2, code, 0)?], of_a_file])?;
    only(libc::SYS_mprotect, vec![vec![has(2, code, 0)?]])?;
    // Threads, and no processes. The C library makes them so where it has no clone3(2), whose flags no filter sees.
    let thread = libc::CLONE_THREAD as u32;
    only(libc::SYS_clone, vec![vec![has(0, thread, thread)?]])?;
    // Names of threads and of memory.
    only(libc::SYS_prctl, vec![vec![has(0, u32::MAX, libc::PR_SET_NAME as u32)?]])?;
    Ok(rules)
}

/// Returns the condition that these bits of an argument have this value.
fn has(argument: u8, mask: u32, value: u32) -> Result<Condition, BackendError> {
    let masked = Op::MaskedEq(u64::from(mask));
    Condition::new(argument, Length::Dword, masked, u64::from(value))
}

#[cfg(test)]
mod tests;
