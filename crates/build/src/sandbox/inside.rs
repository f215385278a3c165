//! The sandbox's two stages, which run in processes of their own.

use std::error::Error;
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Pid, chroot, sethostname};

use super::{INIT_SUBCOMMAND, Outcome, SUBCOMMAND, Spec, filter, limits};
use longshore_core::{privileges, small_stacks};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Capability of a command that keeps the agent's user: a signing key may be another user's. (With
/// CAP_DAC_READ_SEARCH it could open any file outside by its handle: open_by_handle_at(2).)
const READS_ALL: &str = "CAP_DAC_OVERRIDE";

/// Name of a sandbox's process 1, as in /proc/PID/status: at most 15 characters (TASK_COMM_LEN).
/// Processes of a sandbox are recognized by this ancestor.
pub(crate) const INIT_NAME: &str = "longshore-build";

/// Exit status of a stage that failed; the error is on its standard error.
const FAILED: u8 = 125;

/// Runs the stages `__sandbox` and `__sandbox-init`; `args` begins with one of the two.
///
/// Must be called before anything else in the process, above all before it has a second thread: a
/// process with threads cannot leave its PID namespace. Returns the exit status.
pub fn sandbox_main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let mut args = args.into_iter();
    let stage = args.next().unwrap_or_default();
    let spec = args.next().unwrap_or_default();
    let done = read_spec(&spec).and_then(|parsed| match stage.to_str() {
        Some(SUBCOMMAND) => leave_namespaces(&spec),
        Some(INIT_SUBCOMMAND) => be_init(&parsed),
        _ => Err(format!("{} is not a stage of the sandbox", stage.display()).into()),
    });
    match done {
        Ok(()) => 0,
        Err(error) => {
            // Standard error is the pipe to the agent; if that is gone, so is its reader.
            let _ = writeln!(std::io::stderr(), "sandbox: {error}");
            FAILED
        }
    }
}

fn read_spec(text: &OsString) -> Result<Spec> {
    Ok(serde_json::from_slice(text.as_encoded_bytes())
        .map_err(|e| format!("reading its arguments: {e}"))?)
}

fn leave_namespaces(spec: &OsString) -> Result<()> {
    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS,
    )
    .map_err(|e| format!("unshare: {e}"))?;
    // The first child is process 1 of the new PID namespace.
    let status = Command::new("/proc/self/exe").arg(INIT_SUBCOMMAND).arg(spec).status()?;
    // A failed stage has printed its error, and left the outcome file empty.
    if status.code().is_some() { Ok(()) } else { Err(format!("process 1 ended: {status}").into()) }
}

fn be_init(spec: &Spec) -> Result<()> {
    let name = CString::new(INIT_NAME)?;
    nix::sys::prctl::set_name(&name).map_err(|e| format!("naming process 1: {e}"))?;
    watch_lifeline()?;
    // Opened while the outside can still be reached, kept open until the command has ended.
    let outcome = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&spec.outcome)
        .map_err(|e| format!("{}: {e}", spec.outcome.display()))?;
    let outcome = Arc::new(OutcomeFile(Mutex::new(Some(outcome))));
    mount_all(spec)?;
    enter(&spec.root)?;
    sethostname("longshore").map_err(|e| format!("sethostname: {e}"))?;
    watch_processes(Arc::clone(&outcome))?;
    let ended = run_command(spec)?;
    outcome.write(ended)
}

/// File of the outcome; the first that is written counts.
struct OutcomeFile(Mutex<Option<File>>);

impl OutcomeFile {
    fn write(&self, outcome: Outcome) -> Result<()> {
        let mut file = self.0.lock().map_err(|_| "writing the outcome panicked")?;
        let Some(mut file) = file.take() else { return Ok(()) };
        file.write_all(&serde_json::to_vec(&outcome)?)?;
        Ok(file.sync_all()?)
    }
}

/// Standard input is the agent's lifeline: when it closes, this process ends, and with process 1
/// everything in its PID namespace.
fn watch_lifeline() -> Result<()> {
    let watch = || {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1)) {}
        std::process::exit(i32::from(FAILED));
    };
    std::thread::Builder::new().name("lifeline".into()).spawn(watch)?;
    Ok(())
}

/// Ends this process, and with it everything inside, once there are more processes than any compile has.
fn watch_processes(outcome: Arc<OutcomeFile>) -> Result<()> {
    let most = limits::most_processes();
    let watch = move || {
        loop {
            std::thread::sleep(limits::PERIOD);
            // A listing that fails is repeated.
            if limits::processes(Path::new("/proc")).is_ok_and(|found| found > most) {
                break;
            }
        }
        let written = outcome.write(Outcome::TooManyProcesses(most));
        std::process::exit(if written.is_ok() { 0 } else { i32::from(FAILED) });
    };
    small_stacks::named("processes").spawn(watch)?;
    Ok(())
}

fn mount_all(spec: &Spec) -> Result<()> {
    // Stops the propagation of later mounts to the outside.
    call_mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None)?;
    let root = &spec.root;
    bind(root, root)?;
    // MS_REMOUNT with MS_BIND changes this one mount, not the file system below it.
    let read_only =
        MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID;
    call_mount(None, root, None, read_only, None)?;
    mount_proc(&root.join("proc"))?;
    mount_dev(&root.join("dev"))?;
    for one in &spec.binds {
        let target = inside(root, &one.target);
        bind(&one.source, &target)?;
        if one.read_only {
            call_mount(
                None,
                &target,
                None,
                read_only | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
                None,
            )?;
        }
    }
    Ok(())
}

/// Mounts /proc, so that the inside sees its own processes, read-only: /proc/sys and sysrq-trigger
/// only require root's user id and no capability, and sign-file runs as root
/// (fs/proc/proc_sysctl.c, test_perm).
fn mount_proc(proc: &Path) -> Result<()> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    call_mount(Some(Path::new("proc")), proc, Some("proc"), plain, None)?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    call_mount(None, proc, None, read_only | plain, None)
}

/// Binds the device nodes a compiler needs from outside: that works without CAP_MKNOD too.
fn mount_dev(dev: &Path) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let source = Some(Path::new("tmpfs"));
    call_mount(source, dev, Some("tmpfs"), flags, Some("mode=0755,size=64k"))?;
    for name in ["null", "zero", "full", "random", "urandom"] {
        let node = dev.join(name);
        File::create(&node).map_err(|e| format!("{}: {e}", node.display()))?;
        bind(&Path::new("/dev").join(name), &node)?;
    }
    for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        symlink(format!("/proc/self/fd{target}"), dev.join(name))?;
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> Result<()> {
    call_mount(Some(source), target, None, MsFlags::MS_BIND, None)
}

fn call_mount(
    source: Option<&Path>,
    target: &Path,
    fstype: Option<&str>,
    flags: MsFlags,
    data: Option<&str>,
) -> Result<()> {
    mount(source, target, fstype, flags, data)
        .map_err(|e| format!("mount {}: {e}", target.display()).into())
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Moves the root over `/`, as switch_root does: it works where pivot_root does not (a host that
/// still runs on its initramfs), and `..` reaches nothing outside.
fn enter(root: &Path) -> Result<()> {
    std::env::set_current_dir(root)?;
    call_mount(Some(Path::new(".")), Path::new("/"), None, MsFlags::MS_MOVE, None)?;
    chroot(".").map_err(|e| format!("chroot: {e}"))?;
    std::env::set_current_dir("/")?;
    Ok(())
}

fn run_command(spec: &Spec) -> Result<Outcome> {
    let (program, arguments) = spec.command.split_first().ok_or("no command")?;
    nix::sys::prctl::set_no_new_privs().map_err(|e| format!("no_new_privs: {e}"))?;
    limits::set(spec.user.is_some()).map_err(|e| format!("setrlimit: {e}"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(spec.environment.iter().map(|(k, v)| (k, v)))
        .envs(spec.handed_on.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .current_dir(&spec.directory)
        .stdin(Stdio::null());
    let child = spawn_filtered(command, spec.user).map_err(|e| format!("{program}: {e}"))?;
    reap_until(Pid::from_raw(i32::try_from(child.id())?))
}

/// Starts the command under the filter, on a thread that ends then: process 1 itself is not filtered.
fn spawn_filtered(mut command: Command, user: Option<u32>) -> io::Result<Child> {
    let on_thread = move || {
        filter::install().map_err(|e| io::Error::other(format!("seccomp filter: {e}")))?;
        match user {
            Some(user) => command.gid(user).uid(user).spawn(),
            None => privileges::spawn_with_only(&[READS_ALL.to_owned()], command),
        }
    };
    let thread = small_stacks::named("filtered").spawn(on_thread)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

/// Reaps every child that ends, as process 1 must, until `wanted` has ended.
fn reap_until(wanted: Pid) -> Result<Outcome> {
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, status)) if pid == wanted => {
                return Ok(Outcome::Exited(status));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == wanted => {
                return Ok(Outcome::Signalled(signal as i32));
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(format!("wait: {error}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_before_anything_is_done() {
        for args in [vec![], vec!["__sandbox"], vec!["__sandbox", "{"], vec!["x", "{}"]] {
            assert_eq!(sandbox_main(args.into_iter().map(OsString::from)), FAILED);
        }
    }

    #[test]
    fn a_path_inside_stays_inside() {
        let root = Path::new("/store/root");
        assert_eq!(inside(root, Path::new("/build")), Path::new("/store/root/build"));
    }
}
