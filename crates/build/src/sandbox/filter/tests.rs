//! The compiled filter, run by an interpreter.

use super::*;
use longshore_core::testing::seccomp;
use rstest::rstest;
use seccompiler::sock_filter;

/// `AUDIT_ARCH_*` of linux/audit.h.
const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const AARCH64: u32 = 0xc000_00b7;
const ARM: u32 = 0x4000_0028;
/// Bit of the numbers of x32 (`__X32_SYSCALL_BIT`).
const X32: libc::c_long = 0x4000_0000;

const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::ENOSYS as u32;
const KILL: u32 = 0x8000_0000;

fn own_arch() -> u32 {
    if cfg!(target_arch = "x86_64") { X86_64 } else { AARCH64 }
}

/// Runs the filter on a call with `first` as its first argument.
fn answer(program: &[sock_filter], arch: u32, number: libc::c_long, first: u64) -> u32 {
    let program = program.iter().map(|one| (one.code, one.jt, one.jf, one.k));
    seccomp::answer(program, arch, number as u32, [first, 0, 0, 0, 0, 0])
}

fn asked(number: libc::c_long, first: u64) -> u32 {
    answer(&program().expect("it compiles"), own_arch(), number, first)
}

#[rstest]
#[case(libc::SYS_read)]
#[case(libc::SYS_execve)]
#[case(libc::SYS_wait4)]
#[case(libc::SYS_setuid)]
fn what_compilers_call_is_allowed(#[case] number: libc::c_long) {
    assert_eq!(asked(number, u64::MAX), ALLOW);
}

#[rstest]
#[case::unshare(libc::SYS_unshare)]
#[case::clone3(libc::SYS_clone3)]
#[case::setns(libc::SYS_setns)]
#[case::mount(libc::SYS_mount)]
#[case::umount2(libc::SYS_umount2)]
#[case::pivot_root(libc::SYS_pivot_root)]
#[case::chroot(libc::SYS_chroot)]
#[case::move_mount(libc::SYS_move_mount)]
#[case::fsopen(libc::SYS_fsopen)]
#[case::fsconfig(libc::SYS_fsconfig)]
#[case::fsmount(libc::SYS_fsmount)]
#[case::fspick(libc::SYS_fspick)]
#[case::open_tree(libc::SYS_open_tree)]
#[case::mount_setattr(libc::SYS_mount_setattr)]
#[case::open_by_handle_at(libc::SYS_open_by_handle_at)]
#[case::add_key(libc::SYS_add_key)]
#[case::request_key(libc::SYS_request_key)]
#[case::keyctl(libc::SYS_keyctl)]
#[case::bpf(libc::SYS_bpf)]
#[case::perf_event_open(libc::SYS_perf_event_open)]
#[case::io_uring_setup(libc::SYS_io_uring_setup)]
#[case::io_uring_enter(libc::SYS_io_uring_enter)]
#[case::io_uring_register(libc::SYS_io_uring_register)]
#[case::userfaultfd(libc::SYS_userfaultfd)]
#[case::ptrace(libc::SYS_ptrace)]
#[case::process_vm_readv(libc::SYS_process_vm_readv)]
#[case::process_vm_writev(libc::SYS_process_vm_writev)]
#[case::pidfd_getfd(libc::SYS_pidfd_getfd)]
#[case::kexec_load(libc::SYS_kexec_load)]
#[case::kexec_file_load(libc::SYS_kexec_file_load)]
#[case::init_module(libc::SYS_init_module)]
#[case::finit_module(libc::SYS_finit_module)]
#[case::delete_module(libc::SYS_delete_module)]
#[case::shmget(libc::SYS_shmget)]
#[case::mq_open(libc::SYS_mq_open)]
#[case::syslog(libc::SYS_syslog)]
#[case::of_a_later_kernel(1_000)]
#[case::of_x32(libc::SYS_read | X32)]
#[case::ptrace_of_x32(521 | X32)]
fn other_calls_do_not_exist(#[case] number: libc::c_long) {
    assert_eq!(asked(number, 0), REFUSE);
}

#[rstest]
#[case::thread(libc::SYS_clone, 0x3d_0f00, ALLOW)]
#[case::fork(libc::SYS_clone, libc::SIGCHLD as u64, ALLOW)]
#[case::user_namespace(libc::SYS_clone, libc::CLONE_NEWUSER as u64, REFUSE)]
#[case::mount_namespace(libc::SYS_clone, libc::CLONE_NEWNS as u64, REFUSE)]
#[case::network_namespace(libc::SYS_clone, libc::CLONE_NEWNET as u64, REFUSE)]
#[case::pid_namespace(libc::SYS_clone, libc::CLONE_NEWPID as u64, REFUSE)]
#[case::cgroup_namespace(libc::SYS_clone, libc::CLONE_NEWCGROUP as u64, REFUSE)]
#[case::namespaces_under_other_bits(libc::SYS_clone, 0xffff_ffff_7e02_0011, REFUSE)]
#[case::unix(libc::SYS_socket, libc::AF_UNIX as u64, ALLOW)]
#[case::unix_pair(libc::SYS_socketpair, libc::AF_UNIX as u64, ALLOW)]
#[case::netlink(libc::SYS_socket, libc::AF_NETLINK as u64, REFUSE)]
#[case::netlink_under_other_bits(libc::SYS_socket, 0xffff_ffff_0000_0010, REFUSE)]
#[case::vsock(libc::SYS_socket, libc::AF_VSOCK as u64, REFUSE)]
#[case::alg(libc::SYS_socket, libc::AF_ALG as u64, REFUSE)]
#[case::packet(libc::SYS_socket, libc::AF_PACKET as u64, REFUSE)]
#[case::inet(libc::SYS_socket, libc::AF_INET as u64, REFUSE)]
#[case::tipc_pair(libc::SYS_socketpair, libc::AF_TIPC as u64, REFUSE)]
#[case::linux(libc::SYS_personality, 0, ALLOW)]
#[case::query(libc::SYS_personality, 0xffff_ffff, ALLOW)]
#[case::fixed_addresses(libc::SYS_personality, 0x0004_0000, ALLOW)]
#[case::page_zero(libc::SYS_personality, 0x0010_0000, REFUSE)]
#[case::of_32_bits(libc::SYS_personality, 8, REFUSE)]
fn arguments_decide(#[case] number: libc::c_long, #[case] first: u64, #[case] wanted: u32) {
    assert_eq!(asked(number, first), wanted);
}

#[rstest]
#[case::i386(I386)]
#[case::arm(ARM)]
#[case::the_other(if own_arch() == X86_64 { AARCH64 } else { X86_64 })]
fn a_call_of_another_architecture_kills(#[case] arch: u32) {
    let program = program().expect("it compiles");
    for number in 0..600 {
        assert_eq!(answer(&program, arch, number, 0), KILL);
    }
}

#[test]
fn no_call_is_named_twice() {
    let named: std::collections::BTreeSet<_> = ALLOWED.iter().chain(OLDER).collect();
    assert_eq!(named.len(), ALLOWED.len() + OLDER.len());
}
