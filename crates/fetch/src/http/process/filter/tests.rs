//! The compiled filter, run by an interpreter.

use super::*;
use longshore_core::testing::seccomp::answer;
use rstest::rstest;

/// `AUDIT_ARCH_*` of linux/audit.h, of this architecture and of another.
const OWN: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
const I386: u32 = 0x4000_0003;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const ABSENT: u32 = 0x0005_0000 | libc::ENOSYS as u32;

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXEC: u64 = libc::PROT_EXEC as u64;
const PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;

#[rstest]
#[case::receive(libc::SYS_recvfrom, [3, 0, 0, 0], ALLOW)]
#[case::connect(libc::SYS_connect, [3, 0, 0, 0], ALLOW)]
#[case::tcp(libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0], ALLOW)]
#[case::tcp_6(libc::SYS_socket, [libc::AF_INET6 as u64, libc::SOCK_STREAM as u64, 0, 0], ALLOW)]
#[case::unix(libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, 0], ABSENT)]
#[case::netlink(libc::SYS_socket, [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, 0, 0], ABSENT)]
#[case::packet(libc::SYS_socket, [libc::AF_PACKET as u64, libc::SOCK_RAW as u64, 0, 0], ABSENT)]
#[case::udp(libc::SYS_socket, [libc::AF_INET as u64, (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64, 17, 0], ALLOW)]
#[case::raw(libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_RAW as u64, 1, 0], ABSENT)]
#[case::sctp(libc::SYS_socket, [libc::AF_INET as u64, libc::SOCK_STREAM as u64, libc::IPPROTO_SCTP as u64, 0], ABSENT)]
#[case::bind(libc::SYS_bind, [3, 0, 0, 0], ABSENT)]
#[case::flags(libc::SYS_fcntl, [3, libc::F_SETFL as u64, 0, 0], ALLOW)]
#[case::owner_of_signals(libc::SYS_fcntl, [3, libc::F_SETOWN as u64, 1, 0], ABSENT)]
#[case::signal_of_a_file(libc::SYS_fcntl, [3, 10, 9, 0], ABSENT)]
#[case::nonblocking(libc::SYS_ioctl, [3, libc::FIONBIO, 0, 0], ALLOW)]
#[case::owner_by_ioctl(libc::SYS_ioctl, [3, 0x8901, 0, 0], ABSENT)]
#[case::device(libc::SYS_ioctl, [3, 0xc020_462a, 0, 0], ABSENT)]
#[case::open(libc::SYS_openat, [0, 0, libc::O_CLOEXEC as u64, 0], ALLOW)]
#[case::list(libc::SYS_openat, [0, 0, libc::O_DIRECTORY as u64, 0], ALLOW)]
#[case::open_to_write(libc::SYS_openat, [0, 0, libc::O_WRONLY as u64, 0], ABSENT)]
#[case::open_for_both(libc::SYS_openat, [0, 0, libc::O_RDWR as u64, 0], ABSENT)]
#[case::create(libc::SYS_openat, [0, 0, libc::O_CREAT as u64, 0], ABSENT)]
#[case::truncate(libc::SYS_openat, [0, 0, libc::O_TRUNC as u64, 0], ABSENT)]
#[case::temporary(libc::SYS_openat, [0, 0, libc::O_TMPFILE as u64, 0], ABSENT)]
#[case::memory(libc::SYS_mmap, [0, 0, READ | WRITE, PRIVATE | ANONYMOUS], ALLOW)]
#[case::library(libc::SYS_mmap, [0, 0, READ | EXEC, PRIVATE], ALLOW)]
#[case::code(libc::SYS_mmap, [0, 0, READ | EXEC, PRIVATE | ANONYMOUS], ABSENT)]
#[case::writable_code(libc::SYS_mmap, [0, 0, READ | WRITE | EXEC, PRIVATE], ABSENT)]
#[case::memory_becomes_code(libc::SYS_mprotect, [0, 0, READ | EXEC, 0], ABSENT)]
#[case::thread(libc::SYS_clone, [libc::CLONE_THREAD as u64 | libc::CLONE_VM as u64, 0, 0, 0], ALLOW)]
#[case::process(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0], ABSENT)]
#[case::either(libc::SYS_clone3, [0; 4], ABSENT)]
#[case::program(libc::SYS_execve, [0; 4], ABSENT)]
#[case::signal(libc::SYS_kill, [0; 4], ABSENT)]
#[case::ptrace(libc::SYS_ptrace, [0; 4], ABSENT)]
#[case::listen(libc::SYS_listen, [0; 4], ABSENT)]
#[case::name(libc::SYS_prctl, [libc::PR_SET_NAME as u64, 0, 0, 0], ALLOW)]
#[case::dumpable(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as u64, 1, 0, 0], ABSENT)]
fn calls(#[case] number: libc::c_long, #[case] args: [u64; 4], #[case] wanted: u32) {
    let program = program().expect("it compiles");
    let answer = |arch| {
        let [a, b, c, d] = args;
        let number = u32::try_from(number).expect("a number");
        let program = program.iter().map(|one| (one.code, one.jt, one.jf, one.k));
        answer(program, arch, number, [a, b, c, d, 0, 0])
    };
    assert_eq!(answer(OWN), wanted);
    assert_eq!(answer(I386), KILL, "of another architecture");
}
