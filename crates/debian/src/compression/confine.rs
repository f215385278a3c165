//! Rights that the process gives up before it reads a byte.

use longshore_core::confinement::{NOBODY, close_all_others, give_up_rights};
use nix::sys::resource::Resource;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::{codec, filter};

/// Address space of the process: twice the memory limit of xz, which is above that of zstd's window. The program
/// itself is mapped into it, too.
const ADDRESS_SPACE: u64 = 2 * codec::XZ_MEMORY;

/// Limits of resources: pipes count for none of them.
const LIMITS: [(Resource, u64); 6] = [
    (Resource::RLIMIT_NOFILE, 0),
    (Resource::RLIMIT_NPROC, 0),
    (Resource::RLIMIT_FSIZE, 0),
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_MEMLOCK, 0),
    (Resource::RLIMIT_AS, ADDRESS_SPACE),
];

/// Gives up all rights but those to read standard input, to write to standard output and error, and to end.
///
/// # Errors
/// The right that could not be given up, and the cause.
pub(super) fn confine() -> Result<(), String> {
    close_all_others().map_err(|e| format!("closing files: {e}"))?;
    // Without files and most system calls root's user id, where it stays, has no rights either.
    give_up_rights(&[NOBODY], &LIMITS)?;
    // After the change of the user id, which takes it back (kernel/cred.c, commit_creds).
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| format!("a signal: {e}"))?;
    filter::install().map_err(|e| format!("the seccomp filter: {e}"))
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
            let reported = std::io::stdout().write_all(b"confined\n");
            reported.and_then(|()| std::io::stdout().flush()).map_err(|e| e.to_string())?;
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
