//! Rights that a process gives up before it reads foreign data: files, privileges, and resources; and its end.
//!
//! System calls come last, by a seccomp filter of the process's own: no two of them need the same ones.

use std::fmt::Display;
use std::fs;
use std::io;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, close, geteuid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::privileges;
use crate::small_stacks;

/// User and group of nobody. It is not the user of compiles, whose processes are counted (`build::user`).
pub const NOBODY: u32 = 65534;

/// Time limit for a process to end that may not be killed; then a thread waits for it.
const END: Duration = Duration::from_millis(200);

/// A process without rights, which is ended when this is dropped.
///
/// Its user is another one, so only CAP_KILL kills it. Without that it is waited for a moment: a process that
/// was not taken over ends with its pipes or sockets, which are to be dropped first.
#[derive(Debug)]
pub struct Confined(pub Child);

impl Drop for Confined {
    fn drop(&mut self) {
        if privileges::kill(&mut self.0).is_ok() {
            // It has ended, or does at once; an error means that its status was read elsewhere.
            let _ = self.0.wait();
            return;
        }
        let since = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if since.elapsed() >= END {
                wait_elsewhere(self.0.id());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits for a process on a thread of its own, so that none is left that has ended.
fn wait_elsewhere(process: u32) {
    let Ok(process) = i32::try_from(process) else { return };
    let wait = move || {
        // An error means that its status was read elsewhere.
        let _ = waitpid(Pid::from_raw(process), None);
    };
    if let Err(error) = small_stacks::named("ended").spawn(wait) {
        tracing::debug!("process {process} is not waited for: {error}");
    }
}

/// Gives up the capabilities, the user, and the resources beyond `limits` (setrlimit(2)); the working directory
/// becomes the root. Where root starts it, the first of `users` that this user namespace has becomes user and group. To
/// be called while the process has one thread.
///
/// A container without CAP_SETUID and CAP_SETGID, or a user namespace without these users, keeps root's user id: then
/// files of root can be read all the same, if they can be opened.
///
/// # Errors
/// The right that could not be given up, and the cause.
pub fn give_up_rights(users: &[u32], limits: &[(Resource, u64)]) -> Result<(), String> {
    let step = |what: &'static str| move |error: &dyn Display| format!("{what}: {error}");
    std::env::set_current_dir("/").map_err(|e| step("chdir")(&e))?;
    set_no_new_privs(true).map_err(|e| step("no_new_privs")(&e))?;
    give_up_capabilities_of_programs().map_err(|e| step("capabilities of programs")(&e))?;
    leave_root(users).map_err(|e| step("the user id")(&e))?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .map_err(|e| step("capset")(&e))?;
    // After the change of the user id, which takes it back (kernel/cred.c, commit_creds).
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| step("dumpable")(&e))?;
    for (resource, most) in limits {
        // Only CAP_SYS_RESOURCE raises a limit: a lower one stays.
        let (_, hard) = getrlimit(*resource).map_err(|e| step("getrlimit")(&e))?;
        let most = hard.min(*most);
        setrlimit(*resource, most, most).map_err(|e| step("setrlimit")(&e))?;
    }
    Ok(())
}

/// Closes every file but the three standard ones.
///
/// # Errors
/// An error where the open files cannot be listed.
pub fn close_all_others() -> io::Result<()> {
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

/// Becomes the first of these users that there is, without groups.
fn leave_root(users: &[u32]) -> nix::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let unless_refused = |result| match result {
        Ok(()) => Ok(true),
        Err(Errno::EPERM | Errno::EINVAL) => Ok(false),
        Err(error) => Err(error),
    };
    unless_refused(setgroups(&[]))?;
    for id in users {
        let (user, group) = (Uid::from_raw(*id), Gid::from_raw(*id));
        unless_refused(setresgid(group, group, group))?;
        if unless_refused(setresuid(user, user, user))? {
            break;
        }
    }
    Ok(())
}
