//! The seccomp filter of the process: the system calls of decompression into a pipe, and of an end.
//!
//! Every other call kills the process. Among them is close(2): so standard output ends when the process does, and
//! whoever reads it can wait for the exit status. Memory that can be executed cannot be made.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// System calls that are allowed with any arguments.
const ALLOWED: [libc::c_long; 12] = [
    // Streams.
    libc::SYS_read,
    libc::SYS_write,
    // Memory, of the allocators of glibc and musl.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // The standard library's locks and signal stack, and a stop by SIGSTOP.
    libc::SYS_futex,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // The end.
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// System calls whose third argument must not ask for memory that can be executed.
const OF_MEMORY: [libc::c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Installs the filter on the calling thread, the only one.
///
/// # Errors
/// The kernel's errno: ENOSYS or EINVAL where it has no seccomp(2) (CONFIG_SECCOMP_FILTER).
pub(super) fn install() -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter(&program()?)
}

/// Compiles the filter for this architecture.
fn program() -> Result<BpfProgram, BackendError> {
    let (refused, allowed) = (SeccompAction::KillProcess, SeccompAction::Allow);
    SeccompFilter::new(rules()?, refused, allowed, ARCH.try_into()?)?.try_into()
}

/// Returns the rules of each allowed call: none allow it with any arguments.
fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&number| (number, Vec::new())).collect();
    let executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    let not_executable = SeccompCondition::new(2, SeccompCmpArgLen::Dword, executable, 0)?;
    for number in OF_MEMORY {
        rules.insert(number, vec![SeccompRule::new(vec![not_executable.clone()])?]);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests;
