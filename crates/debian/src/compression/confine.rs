//! Rights that the process gives up before it reads a byte: files, privileges, resources, and system calls.

use std::fmt::Display;
use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, close, geteuid, setgroups, setresgid, setresuid};
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::{codec, filter};

/// User and group of the process where root starts it: those of nobody. It is not the user of compiles, whose
/// processes are counted (`build::user`).
const NOBODY: u32 = 65534;

/// Address space of the process: twice the memory limit of xz, which is above that of zstd's window. The program
/// itself is mapped into it, too.
const ADDRESS_SPACE: u64 = 2 * codec::XZ_MEMORY;

/// Gives up all rights but those to read standard input, to write to standard output and error, and to end.
///
/// # Errors
/// The right that could not be given up, and the cause.
pub(super) fn confine() -> Result<(), String> {
    let step = |what: &'static str| move |error: &dyn Display| format!("{what}: {error}");
    std::env::set_current_dir("/").map_err(|e| step("chdir")(&e))?;
    close_all_others().map_err(|e| step("closing files")(&e))?;
    set_no_new_privs(true).map_err(|e| step("no_new_privs")(&e))?;
    give_up_capabilities_of_programs().map_err(|e| step("capabilities of programs")(&e))?;
    leave_root().map_err(|e| step("the user id")(&e))?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(|e| step("capset")(&e))?;
    // After the change of the user id, which takes both back (kernel/cred.c, commit_creds).
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| step("dumpable")(&e))?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| step("a signal")(&e))?;
    limit().map_err(|e| step("setrlimit")(&e))?;
    filter::install().map_err(|e| step("the seccomp filter")(&e))
}

/// Closes every file but the three standard ones.
fn close_all_others() -> io::Result<()> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        open.extend(number.filter(|number| *number > 2));
    }
    for number in open {
        match close(number) {
            // The listing itself was among them.
            Ok(()) | Err(Errno::EBADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Empties the ambient set, and the bounding set where CAP_SETPCAP is there: longshore itself has dropped it. No
/// program is executed any more, so that a bounding set that stays is of no use.
fn give_up_capabilities_of_programs() -> io::Result<()> {
    match clear_ambient_capability_set() {
        // Before Linux 4.3.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    for (_, one) in CapabilitySet::all().iter_names() {
        match remove_capability_from_bounding_set(one) {
            // INVAL: this kernel does not know the capability yet.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(rustix::io::Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Becomes nobody, without groups. A container without CAP_SETUID and CAP_SETGID, or a user namespace without that
/// user, keeps the process from it: without capabilities, files and most system calls its user has no rights either.
fn leave_root() -> nix::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let unless_refused = |result| match result {
        Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        result => result,
    };
    unless_refused(setgroups(&[]))?;
    unless_refused(setresgid(group, group, group))?;
    unless_refused(setresuid(user, user, user))
}

/// Sets the limits of resources (setrlimit(2)): pipes count for none of them.
fn limit() -> nix::Result<()> {
    for (resource, most) in [
        (Resource::RLIMIT_NOFILE, 0),
        (Resource::RLIMIT_NPROC, 0),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
        (Resource::RLIMIT_AS, ADDRESS_SPACE),
    ] {
        setrlimit(resource, most, most)?;
    }
    Ok(())
}

/// Attempts of a process that is taken over, for tests.
#[cfg(any(test, feature = "testing"))]
pub(super) mod testing {
    use std::io::Write;

    /// A system call that is not allowed.
    #[derive(Debug, Clone, Copy)]
    pub(crate) enum Forbidden {
        Open,
        Socket,
        Thread,
        Program,
        Kill,
    }

    impl Forbidden {
        pub(crate) fn named(name: &str) -> Option<Self> {
            Some(match name {
                "open" => Self::Open,
                "socket" => Self::Socket,
                "thread" => Self::Thread,
                "program" => Self::Program,
                "kill" => Self::Kill,
                _ => return None,
            })
        }

        /// Writes a line, then makes the call; it is the kernel that ends the process.
        pub(crate) fn try_it(self) -> Result<(), String> {
            let told = std::io::stdout().write_all(b"confined\n");
            told.and_then(|()| std::io::stdout().flush()).map_err(|e| e.to_string())?;
            match self {
                Self::Open => drop(std::fs::File::open("/")),
                Self::Socket => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
                Self::Thread => drop(std::thread::Builder::new().spawn(|| {})),
                Self::Program => drop(std::process::Command::new("/proc/self/exe").spawn()),
                Self::Kill => drop(nix::sys::signal::kill(nix::unistd::Pid::this(), None)),
            }
            Ok(())
        }
    }
}
