//! Resource limits of the programs inside (setrlimit(2)), and the number of their processes.
//!
//! They end what runs wild, and are multiples of what compiles need. The memory of all processes together is bounded
//! by the container's cgroup alone: mostly it is mounted read-only there, so the sandbox can make no cgroup of its
//! own.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// Maximum size of a file. A .run file unpacks to at most 4 GiB in all, and a module is read up to 1 GiB; with debug
/// information of Linux 6.12 the largest object of a driver has less than 0.5 GiB.
const MOST_OF_FILE: u64 = 4 << 30;

/// Maximum address space of a process, beside that of its threads: ten times what compilers, linkers and objtool
/// take for the largest object of a driver.
const ADDRESS_SPACE: u64 = 16 << 30;
/// Address space of a thread: glibc reserves two heaps of 64 MiB for a thread's arena (malloc/arena.c, to align one),
/// and a stack of 8 MiB. lld has as many threads as there are processors.
const OF_THREAD: u64 = 160 << 20;

/// Maximum number of processes in one sandbox, beside those of each processor. A job of make is six: a shell,
/// conftest.sh or the compiler's driver, cc1, as, and a pipe's other end. So 680 jobs fit on any machine.
const PROCESSES: u64 = 4096;
/// Processes for each processor, by which make chooses its number of jobs.
const OF_PROCESSOR: u64 = 16;

/// Interval in which they are counted.
pub(super) const PERIOD: Duration = Duration::from_millis(500);

/// Sets the limits of this process, and so of what it starts. `is_user` is true if that runs as the compiling user.
///
/// # Errors
/// The kernel's errno.
pub(super) fn set(is_user: bool) -> nix::Result<()> {
    let processors = processors();
    lower(Resource::RLIMIT_CORE, 0)?;
    lower(Resource::RLIMIT_FSIZE, MOST_OF_FILE)?;
    lower(Resource::RLIMIT_AS, ADDRESS_SPACE + OF_THREAD * processors)?;
    if is_user {
        // It counts the threads of all processes with the user's id, also those of a build beside this one; and it
        // holds between two counts. Root's are those of the whole host.
        lower(Resource::RLIMIT_NPROC, 2 * most(processors))?;
    }
    Ok(())
}

/// Lowers soft and hard limit to `most`, if they are not lower: raising the hard one takes a capability.
fn lower(resource: Resource, most: u64) -> nix::Result<()> {
    let (soft, hard) = getrlimit(resource)?;
    setrlimit(resource, soft.min(most), hard.min(most))
}

/// Maximum number of processes in one sandbox on this machine.
pub(super) fn most_processes() -> usize {
    usize::try_from(most(processors())).unwrap_or(usize::MAX)
}

fn most(processors: u64) -> u64 {
    PROCESSES + OF_PROCESSOR * processors
}

/// Number of processors of the machine, whatever this process may use of them: by it lld starts threads.
fn processors() -> u64 {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|number| u64::try_from(number).ok()).unwrap_or(1)
}

/// Counts the processes that `proc` shows.
///
/// # Errors
/// Those of the listing.
pub(super) fn processes(proc: &Path) -> io::Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(proc)? {
        let name = entry?.file_name();
        found += usize::from(name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Jobs of make, each of six processes.
    #[rstest]
    #[case::small(2, 4)]
    #[case::more_jobs_than_processors(2, 600)]
    #[case::large(256, 256)]
    #[case::largest(1024, 1024)]
    fn the_jobs_of_a_compile_fit(#[case] processors: u64, #[case] jobs: u64) {
        assert!(6 * jobs < most(processors));
    }

    #[test]
    fn only_processes_are_counted() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in ["1", "17", "4194304", "self", "sys", "1a"] {
            fs::create_dir(dir.path().join(name)).expect("directory");
        }
        assert_eq!(processes(dir.path()).expect("listed"), 3);
    }
}
