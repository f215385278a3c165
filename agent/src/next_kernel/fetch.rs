//! Preparation by a child process: this program's own `fetch`, so that the agent's memory stays small.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::telemetry::Unprepared;
use longshore_core::cancel::CancelFlag;
use longshore_core::sanitize::in_line;

/// Time for which the process may remove its unfinished files after SIGTERM; then it is killed.
const ENDING: Duration = Duration::from_secs(5);
/// Bytes of a line of its log; a longer one is divided.
const LONGEST_LINE: u64 = 16 << 10;

/// Command line that fetches what a kernel needs, with the settings of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchCommand {
    /// The program.
    pub program: PathBuf,
    /// Arguments before the kernel's release.
    pub before: Vec<OsString>,
    /// Arguments after it.
    pub after: Vec<OsString>,
}

impl FetchCommand {
    /// Runs it for the kernel `release`, with `driver` where no setting names one; its log goes to this
    /// process' log. Ends it once `stop` is set.
    ///
    /// # Errors
    /// The failure that it ended with.
    pub async fn run(
        &self,
        release: &str,
        driver: Option<&str>,
        stop: &CancelFlag,
    ) -> Result<(), Unprepared> {
        let mut child = self.start(release, driver).map_err(|error| {
            let program = self.program.display();
            Unprepared { cause: format!("{program} could not be started: {error}"), remedy: None }
        })?;
        let mut last = None;
        let ended = {
            let output = child.stderr.take();
            let mut copying = pin!(async {
                if let Some(output) = output {
                    last = copy_log(output, release).await;
                }
            });
            let ended = async {
                let ended = tokio::select! {
                    ended = child.wait() => ended,
                    () = &mut copying => return child.wait().await,
                };
                // A process that it left behind may have the pipe.
                if timeout(ENDING, copying).await.is_err() {
                    tracing::warn!("the log about kernel {release} has no end, and is left");
                }
                ended
            };
            tokio::select! {
                biased;
                () = stop.wait() => None,
                ended = ended => Some(ended),
            }
        };
        match ended {
            Some(Ok(status)) => judged(status, last),
            Some(Err(error)) => Err(unknown_end(&error)),
            None => end(&mut child).await,
        }
    }

    fn start(&self, release: &str, driver: Option<&str>) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.before).arg(release).args(&self.after);
        if let Some(version) = driver {
            command.arg("--driver").arg(version);
        }
        command
            .env("LONGSHORE_LOG_FORMAT", "json")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal is for the agent.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }
}

/// Ends the process: SIGTERM lets it remove its unfinished files.
async fn end(child: &mut Child) -> Result<(), Unprepared> {
    // Its id is its own until it was waited for.
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = kill(pid, Signal::SIGTERM)
    {
        tracing::warn!("signalling process {pid}, which prepares the next kernel: {error}");
    }
    if timeout(ENDING, child.wait()).await.is_err() {
        child.start_kill().map_err(|error| unknown_end(&error))?;
        // A process that waits for a disk ends only once the disk answers.
        if timeout(ENDING, child.wait()).await.is_err() {
            let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
            tracing::warn!(
                "process {pid}, which prepares the next kernel, does not end, and is left"
            );
        }
    }
    Err(Unprepared { cause: "it was ended".to_owned(), remedy: None })
}

fn unknown_end(error: &std::io::Error) -> Unprepared {
    Unprepared { cause: format!("the end of its process is not known: {error}"), remedy: None }
}

/// Returns the failure that the process reported last, where it did not succeed.
fn judged(status: ExitStatus, last: Option<LogLine>) -> Result<(), Unprepared> {
    if status.success() {
        return Ok(());
    }
    Err(match last {
        Some(line) => Unprepared { cause: line.message, remedy: line.remedy },
        None => Unprepared { cause: format!("fetch ended with {status}"), remedy: None },
    })
}

/// A line of a log in JSON.
#[derive(Debug, Deserialize)]
struct LogLine {
    #[serde(default)]
    level: String,
    message: String,
    #[serde(default)]
    remedy: Option<String>,
    /// That of the failure which the process ends with.
    #[serde(default)]
    exit_code: Option<u8>,
}

/// Copies the log of the process to the own one, and returns the failure that it ends with.
async fn copy_log(output: ChildStderr, release: &str) -> Option<LogLine> {
    let mut output = BufReader::new(output);
    let (mut bytes, mut failure) = (Vec::new(), None);
    loop {
        bytes.clear();
        let read = (&mut output).take(LONGEST_LINE).read_until(b'\n', &mut bytes).await;
        if !matches!(read, Ok(count) if count > 0) {
            return failure;
        }
        let line = String::from_utf8_lossy(&bytes);
        match serde_json::from_str::<LogLine>(&line) {
            // It is logged with the outcome.
            Ok(line) if line.exit_code.is_some() => failure = Some(line),
            Ok(line) => log(release, &line.level, &line.message),
            Err(_) => log(release, "INFO", line.trim_end()),
        }
    }
}

fn log(kernel: &str, level: &str, message: &str) {
    let message = in_line(message);
    match level {
        "ERROR" | "WARN" => tracing::warn!(kernel, "kernel {kernel}: {message}"),
        "INFO" => tracing::info!(kernel, "kernel {kernel}: {message}"),
        _ => tracing::debug!(kernel, "kernel {kernel}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A stand-in for this program: a shell with this script, which gets the release as `$1`.
    fn stand_in(script: &str) -> FetchCommand {
        let before = ["-c", script, "sh"].map(OsString::from).to_vec();
        FetchCommand { program: "/bin/sh".into(), before, after: Vec::new() }
    }

    #[test]
    fn the_page_about_deadlines_has_the_wait() {
        longshore_core::testing::assert_in_page("prepares the [next kernel]", ENDING);
    }

    fn failure(cause: &str, remedy: Option<&str>) -> Unprepared {
        Unprepared { cause: cause.to_owned(), remedy: remedy.map(str::to_owned) }
    }

    #[rstest]
    #[case::success("test \"$1\" = 6.9", Ok(()))]
    #[case::the_driver_of_the_image("test \"$2 $3\" = '--driver 550'", Ok(()))]
    #[case::silent_failure("exit 3", Err(failure("fetch ended with exit status: 3", None)))]
    #[case::a_process_left_with_the_log("sleep 60 & echo '{\"message\":\"a\"}' >&2", Ok(()))]
    #[case::failure(
        "echo '{\"level\":\"INFO\",\"message\":\"a\"}' >&2; echo no json >&2
         echo '{\"level\":\"ERROR\",\"message\":\"no headers\",\"exit_code\":11,\"remedy\":\"add them\"}' >&2
         exit 11",
        Err(failure("no headers", Some("add them")))
    )]
    #[tokio::test]
    async fn ends(#[case] script: &str, #[case] wanted: Result<(), Unprepared>) {
        let ended = stand_in(script).run("6.9", Some("550"), &CancelFlag::default()).await;
        assert_eq!(ended, wanted);
    }

    #[tokio::test]
    async fn a_program_that_is_none_is_a_failure() {
        let command = FetchCommand { program: "/nowhere".into(), ..stand_in("") };
        let ended = command.run("6.9", None, &CancelFlag::default()).await.expect_err("fails");
        assert!(ended.cause.starts_with("/nowhere could not be started: "), "{}", ended.cause);
    }

    #[tokio::test]
    async fn a_stop_ends_the_process_by_sigterm() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (begun, ended) = (dir.path().join("begun"), dir.path().join("ended"));
        let script = format!(
            "trap 'echo > {}; exit 1' TERM; echo > {}; while :; do sleep 0.01; done",
            ended.display(),
            begun.display()
        );
        let (command, stop) = (stand_in(&script), CancelFlag::default());
        let stops = async {
            while !begun.exists() {
                tokio::task::yield_now().await;
            }
            stop.set();
        };
        let (result, ()) = tokio::join!(command.run("6.9", None, &stop), stops);
        assert_eq!(result, Err(failure("it was ended", None)));
        assert!(ended.exists());
    }
}
