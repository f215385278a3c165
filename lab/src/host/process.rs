//! Programs that the harness runs: every one has a time limit, and bounds on its output
//! ([`crate::host::bounded_output`]).

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::host::bounded_output::{self, HeadTail, Lines, MOST_KEPT, QUEUED_LINES};
use crate::host::error::{At, Error};

/// Time limit for any tool that works on local files or fetches a few packages.
pub const LIMIT: Duration = Duration::from_secs(600);
/// Time limit for the output that a killed program left in its pipes.
const LEFT: Duration = Duration::from_secs(10);
/// Number of last output lines in an error.
const TAIL: usize = 12;

/// Runs a program that must succeed, and returns its output.
///
/// # Errors
/// It could not be started, did not end within `limit`, or did not exit with 0.
pub fn run(command: &mut Command, limit: Duration) -> Result<Vec<String>, Error> {
    run_with(command, limit, |_| ())
}

/// As [`run`], and calls `each` with every line of its output as it comes.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    command: &mut Command,
    limit: Duration,
    each: impl FnMut(&str),
) -> Result<Vec<String>, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let (code, said) = listen_with(command, limit, each)?;
    let how = match code {
        Some(0) => return Ok(said),
        Some(code) => format!("ended with {code}"),
        None => format!("was killed by a signal or after {} s", limit.as_secs()),
    };
    let tail = said[said.len().saturating_sub(TAIL)..].join("\n");
    Err(Error::Command { program, what: format!("{how}\n{tail}") })
}

/// Runs a program to its end, and returns its exit code and output: the first and the last lines of a
/// long one. After `limit` it is killed, and there is no code.
///
/// # Errors
/// The program cannot be started.
pub fn listen(command: &mut Command, limit: Duration) -> Result<(Option<i32>, Vec<String>), Error> {
    listen_with(command, limit, |_| ())
}

fn listen_with(
    command: &mut Command,
    limit: Duration,
    mut each: impl FnMut(&str),
) -> Result<(Option<i32>, Vec<String>), Error> {
    let (mut said, mut last) = (Vec::new(), HeadTail::new(MOST_KEPT));
    let ended = follow(command, limit, |_, line| {
        each(&line);
        said.extend(last.take(line));
    })?;
    said.extend(last.rest());
    Ok((ended.code, said))
}

/// A stream of a program's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// End of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Exit code; None where a signal ended it.
    pub code: Option<i32>,
    /// True if it was killed at the time limit.
    pub is_overdue: bool,
}

/// Runs a program to its end, or kills it after `limit`, and calls `each` with every line of its output as it
/// comes.
///
/// # Errors
/// The program cannot be started, or waited for.
pub fn follow(
    command: &Command,
    limit: Duration,
    mut each: impl FnMut(Stream, String),
) -> Result<Ended, Error> {
    let mut deadline = Instant::now() + limit;
    let program = Path::new(command.get_program()).to_path_buf();
    let mut child = like(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at("start", &program)?;
    let (say, heard) = mpsc::sync_channel(QUEUED_LINES);
    let streams: [(Stream, Option<Box<dyn Read + Send>>); 2] = [
        (Stream::Out, child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>)),
        (Stream::Err, child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>)),
    ];
    for (of, stream) in streams.into_iter().filter_map(|(of, stream)| Some((of, stream?))) {
        let say = say.clone();
        thread::spawn(move || {
            for line in Lines::new(stream).map_while(io::Result::ok) {
                if say.send((of, line)).is_err() {
                    return;
                }
            }
        });
    }
    drop(say);
    let mut is_overdue = false;
    loop {
        match bounded_output::receive(&heard, deadline) {
            Ok((of, line)) => each(of, line),
            Err(RecvTimeoutError::Timeout) if !is_overdue => {
                end(child.id());
                (is_overdue, deadline) = (true, Instant::now() + LEFT);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    let code = child.wait().at("wait for", &program)?.code().filter(|_| !is_overdue);
    Ok(Ended { code, is_overdue })
}

/// Returns a program that gets TERM when the thread that started it ends for any reason, and that
/// leads a process group of its own: Ctrl-C in a terminal is for the harness (see
/// `ending` of kernel-matrix).
pub fn bound(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program).process_group(0);
    command
}

/// Runs a program, and passes TERM on to its whole process group: the kernel signals the end of a
/// parent to its children only. Processes that ignore TERM are killed once the program has ended,
/// or after ten seconds, and the guard with them.
const GUARD: &str = r#"
"$@" &
child=$!
trap 'trap "" TERM; kill -TERM 0; { sleep 10; kill -KILL 0; } & wait "$child"; kill -KILL 0' TERM
wait "$child"
"#;

/// Returns the same command, bound, with all processes that it starts.
fn like(command: &Command) -> Command {
    let mut bound = bound(Path::new("sh"));
    bound.args(["-c", GUARD, "guard"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        bound.current_dir(dir);
    }
    bound
}

/// Kills a bound program and the processes that it started.
fn end(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        // Fails only where all of it has ended already.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> (Option<i32>, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        listen(&mut command, limit).unwrap()
    }

    #[test]
    fn code_and_lines_of_both_streams_are_had() {
        let (code, mut said) = sh("echo out; echo err >&2; exit 14", Duration::from_secs(60));
        said.sort();
        assert_eq!((code, said), (Some(14), vec!["err".to_owned(), "out".to_owned()]));
    }

    #[test]
    fn a_program_past_its_deadline_is_killed() {
        // The shell waits for a child, which must be killed too: its end of the pipe would stay
        // open.
        let (code, said) = sh("echo begun; sleep 600; echo ended", Duration::from_secs(3));
        assert_eq!((code, said), (None, vec!["begun".to_owned()]));
    }

    #[test]
    fn a_long_output_is_kept_within_its_bound_with_its_end() {
        let line = "x".repeat(1 << 14);
        let script = format!("echo begin; yes {line} | head -n 4096; echo end; exit 3");
        let (code, said) = sh(&script, Duration::from_secs(600));
        assert_eq!(
            (code, said[0].as_str(), said.last().unwrap().as_str()),
            (Some(3), "begin", "end")
        );
        assert!(said.iter().map(String::len).sum::<usize>() <= MOST_KEPT);
        assert_eq!(said.iter().filter(|line| line.ends_with("were left out]")).count(), 1);
    }

    #[test]
    fn a_program_that_writes_without_end_is_killed_at_its_deadline() {
        let (code, said) = sh("exec yes", Duration::from_secs(5));
        assert_eq!((code, said[0].as_str()), (None, "y"));
    }

    #[test]
    fn a_program_that_has_to_succeed_says_why_it_did_not() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo reason >&2; exit 3"]);
        let error = run(&mut command, Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("ended with 3") && error.contains("reason"), "{error}");
        let error = run(&mut Command::new("/nonexistent"), Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("/nonexistent"));
    }
}
