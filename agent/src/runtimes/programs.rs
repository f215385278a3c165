//! Programs of the host, run with the host's root as theirs and without capabilities.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot};

use longshore_core::bounded_call;
use longshore_core::privileges;
use longshore_core::root::Root;
use longshore_core::sanitize::in_line;
use longshore_core::small_stacks;

/// Directories in which programs are looked for.
const DIRECTORIES: [&str; 7] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin"];
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin";
/// Size limit of an output.
const MOST: u64 = 1 << 20;
/// Size limit of the messages that are part of an error, and time limit for them after the program's end:
/// another process may have its end of the pipe.
const MOST_ERRORS: u64 = 1 << 10;
const LAST_ERRORS: Duration = Duration::from_secs(1);
/// Interval in which the end of a program is looked for.
const EVERY: Duration = Duration::from_millis(10);

/// Finds a program of the host.
pub(super) fn find(root: &Root, program: &str) -> Option<PathBuf> {
    let paths = DIRECTORIES.iter().map(|dir| Path::new(dir).join(program));
    paths.into_iter().find(|path| root.exists(path).unwrap_or(false))
}

/// Runs a program of the host, and returns its standard output; ended after `limit`.
///
/// # Errors
/// If it cannot be started, fails, or has not ended in time.
pub(super) fn output(
    root: &Path,
    program: &Path,
    arguments: &[&str],
    limit: Duration,
) -> io::Result<String> {
    let since = Instant::now();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        // systemctl refuses to act where it believes to be in a chroot.
        .env("SYSTEMD_IGNORE_CHROOT", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn_in(root, command)?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let errors = errors.map(first_of);
    let read = bounded_call::in_time("host-program", limit, move || {
        let mut text = String::new();
        out.map_or(Ok(0), |out| out.take(MOST).read_to_string(&mut text)).map(|_| text)
    });
    let ended = ended(&mut child, limit.saturating_sub(since.elapsed()))?;
    match (read, ended) {
        (Some(text), Some(status)) if status.success() => text,
        (_, Some(status)) => {
            let text = errors.and_then(|errors| errors.recv_timeout(LAST_ERRORS).ok());
            let text = text.map(|text| format!(": {text}")).unwrap_or_default();
            Err(io::Error::other(format!("{} ended with {status}{text}", program.display())))
        }
        (_, None) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{} has not ended in {} s", program.display(), limit.as_secs()),
        )),
    }
}

/// Reads a program's messages on a thread, which ends with them; returns the first of them in one line.
/// The rest is read, too: a program that is not read from would wait.
fn first_of(mut errors: ChildStderr) -> Receiver<String> {
    let (found, text) = mpsc::sync_channel(1);
    let read = move || {
        let mut first = Vec::new();
        let _ = (&mut errors).take(MOST_ERRORS).read_to_end(&mut first);
        let lines = String::from_utf8_lossy(&first);
        let lines: Vec<&str> = lines.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        if !lines.is_empty() {
            // The receiver is gone where the program succeeded.
            let _ = found.send(in_line(&lines.join("; ")).into_owned());
        }
        let _ = io::copy(&mut errors, &mut io::sink());
    };
    // Without a thread nothing is read, and the receiver finds no sender.
    let _ = small_stacks::named("host-errors").spawn(read);
    text
}

/// Starts a program with another root. Only the thread that starts it has that root, and ends.
fn spawn_in(root: &Path, command: Command) -> io::Result<Child> {
    let root = root.to_path_buf();
    let on_thread = move || {
        if root != Path::new("/") {
            unshare(CloneFlags::CLONE_FS)?;
            chroot(&root)?;
            chdir("/")?;
        }
        privileges::spawn_with_only(&[], command)
    };
    let thread = small_stacks::named("host-program").spawn(on_thread)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

/// Waits for the end of a program; kills it where it has not ended in time.
fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if since.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> Result<String, String> {
        output(Path::new("/"), Path::new("/bin/sh"), &["-c", script], limit)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_program_s_output_is_returned_and_its_failure_is_told() {
        let soon = Duration::from_secs(20);
        assert_eq!(run("echo $HOME$SYSTEMD_IGNORE_CHROOT", soon), Ok("1\n".to_owned()));
        assert!(run("exit 3", soon).is_err_and(|why| why.ends_with("exit status: 3")));
        let why = run("printf 'Job failed.\\n\\n\\033[31mSee log\\n' >&2; exit 1", soon);
        let why = why.expect_err("it failed");
        assert!(why.ends_with("exit status: 1: Job failed.; \\u{1b}[31mSee log"), "{why}");
        let long = run("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1", soon);
        assert!(long.is_err_and(|why| why.len() < 2000));
        let left = run("echo why >&2; sleep 20 >/dev/null & exit 1", soon).expect_err("it failed");
        assert!(left.contains("exit status: 1"), "{left}");
        let why = run("exec sleep 600", Duration::from_millis(50)).expect_err("it is ended");
        assert!(why.contains("has not ended"), "{why}");
    }

    #[test]
    fn programs_are_found_below_the_root() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir_all(dir.path().join("usr/bin")).expect("made");
        std::fs::write(dir.path().join("usr/bin/dockerd"), "").expect("written");
        let root = Root::open(dir.path()).expect("root");
        assert_eq!(find(&root, "dockerd"), Some("/usr/bin/dockerd".into()));
        assert_eq!(find(&root, "podman"), None);
    }
}
