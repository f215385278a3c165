/* Tries each call that opens further parts of the kernel, and prints its name and errno; 0 where it succeeded. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void told(const char *name, long result)
{
    printf("%s %d\n", name, result < 0 ? errno : 0);
    fflush(stdout);
}

/* Ends the child of a call that made one. */
static long made(long pid)
{
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        waitpid((pid_t)pid, NULL, 0);
    return pid;
}

static void *nothing(void *given)
{
    return given;
}

int main(void)
{
    char zeros[256] = {0};
    uint64_t clone3[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};

    /* Compilers do these. */
    told("socket-unix", socket(AF_UNIX, SOCK_STREAM, 0));
    pthread_t thread;
    errno = pthread_create(&thread, NULL, nothing, NULL);
    told("thread", errno ? -1 : 0);
    told("fork", made(fork()));

    told("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNET));
    told("unshare-mount", unshare(CLONE_NEWNS));
    told("clone", made(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)));
    told("clone3", made(syscall(SYS_clone3, clone3, sizeof clone3)));
    told("setns", syscall(SYS_setns, open("/proc/self/ns/net", O_RDONLY), 0));
    told("nftables", socket(AF_NETLINK, SOCK_RAW, 12));
    told("route", socket(AF_NETLINK, SOCK_RAW, 0));
    told("socket-vsock", socket(AF_VSOCK, SOCK_STREAM, 0));
    told("socket-alg", socket(AF_ALG, SOCK_SEQPACKET, 0));
    told("socket-packet", socket(AF_PACKET, SOCK_RAW, 0));
    told("socket-inet", socket(AF_INET, SOCK_DGRAM, 0));
    told("mount", mount("tmpfs", "/build", "tmpfs", 0, NULL));
    told("umount2", umount2("/build", MNT_DETACH));
    told("pivot_root", syscall(SYS_pivot_root, "/build", "/build"));
    told("chroot", chroot("/build"));
    told("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    told("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    told("move_mount", syscall(SYS_move_mount, AT_FDCWD, "/build", AT_FDCWD, "/build", 0));
    told("keyctl", syscall(SYS_keyctl, 0, -4, 1));
    told("add_key", syscall(SYS_add_key, "user", "longshore", zeros, 8, -2));
    told("bpf", syscall(SYS_bpf, 0, zeros, sizeof zeros));
    told("perf_event_open", syscall(SYS_perf_event_open, zeros, 0, -1, -1, 0));
    told("io_uring_setup", syscall(SYS_io_uring_setup, 4, zeros));
    told("userfaultfd", syscall(SYS_userfaultfd, 1));
    told("ptrace", ptrace(PTRACE_TRACEME, 0, 0, 0));
    told("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), zeros, 0, zeros, 0, 0));
    told("init_module", syscall(SYS_init_module, zeros, sizeof zeros, ""));
    told("kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, 0));
    told("syslog", syscall(SYS_syslog, 3, zeros, sizeof zeros));
    told("personality", personality(PER_LINUX32));

#ifdef __x86_64__
    pid_t child = fork();
    if (child == 0) {
        long number = 20; /* getpid of 32 bits */
        __asm__ volatile("int $0x80" : "+a"(number) : : "memory");
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("int80 %d\n", WIFSIGNALED(status) ? -WTERMSIG(status) : 0);
#endif
    return 0;
}
