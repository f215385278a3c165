//! The compiled filter, run by an interpreter.

use super::*;
use longshore_core::testing::seccomp;
use rstest::rstest;
use seccompiler::sock_filter;

/// `AUDIT_ARCH_*` of linux/audit.h, of this architecture and of another.
const OWN: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
const I386: u32 = 0x4000_0003;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;

/// Runs the filter on a call with `third` as its third argument.
fn answer(program: &[sock_filter], arch: u32, number: libc::c_long, third: u64) -> u32 {
    let program = program.iter().map(|one| (one.code, one.jt, one.jf, one.k));
    seccomp::answer(program, arch, number as u32, [0, 0, third, 0, 0, 0])
}

#[rstest]
#[case::read(libc::SYS_read, u64::MAX, ALLOW)]
#[case::exit_group(libc::SYS_exit_group, u64::MAX, ALLOW)]
#[case::memory(libc::SYS_mmap, (libc::PROT_READ | libc::PROT_WRITE) as u64, ALLOW)]
#[case::code(libc::SYS_mmap, (libc::PROT_READ | libc::PROT_EXEC) as u64, KILL)]
#[case::memory_becomes_code(libc::SYS_mprotect, libc::PROT_EXEC as u64, KILL)]
#[case::open(libc::SYS_openat, 0, KILL)]
#[case::close(libc::SYS_close, 0, KILL)]
#[case::socket(libc::SYS_socket, 0, KILL)]
#[case::program(libc::SYS_execve, 0, KILL)]
#[case::process(libc::SYS_clone, 0, KILL)]
#[case::signal(libc::SYS_kill, 0, KILL)]
#[case::ptrace(libc::SYS_ptrace, 0, KILL)]
fn calls(#[case] number: libc::c_long, #[case] third: u64, #[case] wanted: u32) {
    let program = program().expect("it compiles");
    assert_eq!(answer(&program, OWN, number, third), wanted);
    assert_eq!(answer(&program, I386, number, third), KILL, "of another architecture");
}
