//! The capabilities of this process's threads and of what they start (docs/operate/privileges.md).
//!
//! Capabilities belong to a thread (capabilities(7)), and a new thread inherits those of its
//! creator. So before there is a second one, [`drop_unneeded`] drops for good what longshore never needs,
//! and disables what only changes to the host need; every thread of the runtime inherits that.
//! Changes to the host run on a thread of their own, which enables everything the process may have
//! and ends with its work.

use std::io::{self, ErrorKind};
use std::process::{Child, Command};
use std::thread;

use nix::sys::signal::SigSet;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use crate::small_stacks;

/// A capability with its purpose.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// Its name, for example `CAP_SYS_MODULE`.
    pub name: &'static str,
    set: CapabilitySet,
    /// When it is effective.
    pub worn: Scope,
    /// True if no driver can be installed without it.
    pub required: bool,
    /// Purpose.
    pub purpose: &'static str,
}

impl Need {
    /// Returns the capability's number in the kernel's header (linux/capability.h).
    pub fn number(&self) -> u32 {
        self.set.bits().trailing_zeros()
    }
}

/// Time during which a thread has a capability in its effective set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Always: for reading the host and writing the store.
    Always,
    /// Only on the thread that changes the host, and in executed programs: the stages of the build
    /// sandbox.
    Changing,
}

const fn need(
    name: &'static str,
    set: CapabilitySet,
    worn: Scope,
    required: bool,
    purpose: &'static str,
) -> Need {
    Need { name, set, worn, required, purpose }
}

/// All capabilities that longshore needs, with their purpose; the others are dropped for good.
pub const NEEDS: [Need; 13] = {
    use CapabilitySet as C;
    use Scope::{Always, Changing};
    [
        need("CAP_SYS_MODULE", C::SYS_MODULE, Changing, true, "load and unload kernel modules"),
        need(
            "CAP_SYS_ADMIN",
            C::SYS_ADMIN,
            Changing,
            true,
            "mount the driver root, and make the build sandbox",
        ),
        need("CAP_MKNOD", C::MKNOD, Changing, true, "make the driver's device nodes"),
        need(
            "CAP_SYS_PTRACE",
            C::SYS_PTRACE,
            Always,
            false,
            "see the host's files through process 1, and which processes hold the driver",
        ),
        need(
            "CAP_DAC_READ_SEARCH",
            C::DAC_READ_SEARCH,
            Always,
            false,
            "see which files other users' processes have open",
        ),
        need(
            "CAP_DAC_OVERRIDE",
            C::DAC_OVERRIDE,
            Always,
            false,
            "write below directories that another user owns",
        ),
        need(
            "CAP_CHOWN",
            C::CHOWN,
            Always,
            false,
            "hand the build its directories, and device nodes to the user and group that the driver names",
        ),
        need(
            "CAP_FOWNER",
            C::FOWNER,
            Always,
            false,
            "set modes of files the build made, and of device nodes that another user owns",
        ),
        need("CAP_SETUID", C::SETUID, Changing, false, "compile as an unprivileged user"),
        need("CAP_SETGID", C::SETGID, Changing, false, "compile as an unprivileged user"),
        need("CAP_SYS_CHROOT", C::SYS_CHROOT, Changing, false, "enter the build root"),
        need("CAP_KILL", C::KILL, Changing, false, "end processes of the build and of daemons"),
        need(
            "CAP_SYSLOG",
            C::SYSLOG,
            Changing,
            false,
            "read why the kernel refused a module (kernel.dmesg_restrict)",
        ),
    ]
};

/// Drops for good what is not in [`NEEDS`], and disables what only changes to the host need. To be
/// called once, before there is a second thread.
///
/// # Errors
/// The kernel's error; the threads then keep the capabilities they were given.
pub fn drop_unneeded() -> io::Result<()> {
    let have = capabilities(None)?;
    let needed = all(|_| true);
    // Without CAP_SETPCAP the bounding set stays unchanged.
    if have.effective.contains(CapabilitySet::SETPCAP) {
        for (_, one) in CapabilitySet::all().difference(needed).iter_names() {
            match remove_capability_from_bounding_set(one) {
                // This kernel does not know the capability yet.
                Err(rustix::io::Errno::INVAL) => {}
                result => result?,
            }
        }
    }
    let permitted = have.permitted.intersection(needed);
    let effective = permitted.intersection(all(|need| need.worn == Scope::Always));
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}

/// True if this process may have the capability of this name, which is one of [`NEEDS`].
pub fn may(name: &str) -> bool {
    let named = all(|need| need.name == name);
    capabilities(None).is_ok_and(|have| !named.is_empty() && have.permitted.contains(named))
}

fn all(wanted: impl Fn(&Need) -> bool) -> CapabilitySet {
    NEEDS.iter().filter(|need| wanted(need)).map(|need| need.set).collect()
}

/// Runs `work`, which may block, on a thread of its own with all capabilities that the process may
/// have.
///
/// # Errors
/// If no thread can be started, or the work panicked.
pub async fn run_privileged<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    let on_thread = move || {
        if let Err(e) = raise() {
            tracing::warn!("could not enable the capabilities for changes to the host: {e}");
        }
        // The receiver is gone where the work was cancelled.
        let _ = done.send(work());
    };
    small_stacks::named("changes").spawn(on_thread)?;
    result.await.map_err(|_| io::Error::other("the worker thread panicked"))
}

/// Kills a process that this one started, also one of another user, for which CAP_KILL is enabled on a thread of its
/// own. One that has ended and was waited for is left.
///
/// # Errors
/// The errno of the system call: EPERM where the process may not have CAP_KILL.
pub fn kill(child: &mut Child) -> io::Result<()> {
    match child.kill() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        result => return result,
    }
    thread::scope(|scope| {
        let thread = small_stacks::named("kills");
        let thread = thread.spawn_scoped(scope, || raise().and_then(|()| child.kill()))?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that kills it panicked")))
    })
}

fn raise() -> io::Result<()> {
    let have = capabilities(None)?;
    Ok(set_capabilities(None, CapabilitySets { effective: have.permitted, ..have })?)
}

/// Starts a program with at most the capabilities of these names, which cannot gain others by any
/// exec, and with no signal blocked.
///
/// # Errors
/// The errno of the system call.
pub fn spawn_with_only(names: &[String], mut command: Command) -> io::Result<Child> {
    let kept = all(|need| names.iter().any(|name| name == need.name));
    let on_thread = move || {
        // With no_new_privs an executed program gets no more than the thread has, even if it is
        // root's (security/commoncap.c, cap_bprm_creds_from_file).
        set_no_new_privs(true)?;
        let have = capabilities(None)?;
        let permitted = have.permitted.intersection(kept);
        let inheritable = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })?;
        // A program inherits its creator's signal mask, and most threads here inherited one that
        // blocks SIGTERM (lifecycle::signals): a daemon that only adds to its mask would never
        // receive it.
        SigSet::empty().thread_set_mask()?;
        command.spawn()
    };
    let thread = small_stacks::named("narrowed").spawn(on_thread)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Returns the calling thread's set of this name.
    fn own(name: &str) -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        u64::from_str_radix(value.unwrap(), 16).unwrap()
    }

    #[test]
    fn what_only_changes_need_is_worn_by_who_changes() {
        let given = own("CapPrm");
        let always = all(|need| need.worn == Scope::Always).bits();
        let needed = all(|_| true).bits();
        // Privileges belong to a thread: those of the other tests stay unchanged.
        let started = thread::spawn(move || {
            drop_unneeded().unwrap();
            drop_unneeded().unwrap();
            let low = thread::spawn(|| (own("CapEff"), own("CapPrm"))).join().unwrap();
            assert_eq!(low, (given & always, given & needed));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let raised = runtime.block_on(run_privileged(|| own("CapEff"))).unwrap();
            assert_eq!(raised, given & needed);
            own("CapEff")
        });
        assert_eq!(started.join().unwrap(), given & always);
        assert_eq!(own("CapPrm"), given);
    }
}
