//! Work in the background: its priority, and the command line by which `run` starts it.

use std::ffi::OsString;
use std::io;

use clap::Parser;
use rustix::process::{Signal, nice, set_parent_process_death_signal};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use super::{Called, Cli, Command};
use crate::next_kernel::FetchCommand;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Lowest priority (setpriority(2)).
const NICEST: i32 = 19;
/// Stands for the kernel's release in a command line that is tried.
const RELEASE: &str = "0";

/// Gives this process, and all that it starts, the lowest priority, and ends it by SIGTERM when its parent
/// ends. To be called before there is a second thread.
///
/// # Errors
/// Exit code 1 where the kernel does not know the signal of a parent's end.
pub(super) fn begin() -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .or_fail(FailureKind::Bug, || "asking for a signal at the parent's end")?;
    // A seccomp filter may refuse both; the work is the same then.
    if let Err(error) = lowest_priority() {
        tracing::debug!("the work has a higher priority: {error}");
    }
    Ok(())
}

/// Sets the policy for idle processors, with which the kernel also serves the disk's requests last
/// (`task_nice_ioclass` in include/linux/ioprio.h), and the lowest priority.
fn lowest_priority() -> io::Result<()> {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    // It sets the priority, too: to 0.
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    nice(NICEST)?;
    set.map_err(|error| io::Error::other(format!("{error:?}")))
}

/// Returns the command line that fetches what a kernel needs with the flags of this process.
///
/// # Errors
/// Exit code 1 where the program is not known, or its flags are not those of `fetch`.
pub(super) fn fetch_command() -> Result<FetchCommand, Failure> {
    let program = std::env::current_exe().or_fail(FailureKind::Bug, || "finding the program")?;
    let line = match Called::by(std::env::args_os())? {
        Called::Longshore(line) => line,
        Called::SideCar(_) | Called::Completer(_) => Vec::new(),
    };
    let Some((before, after)) = fetch_line(&line) else {
        return Err(Failure::new(FailureKind::Bug, "the command line is not that of `run`"));
    };
    Ok(FetchCommand { program, before, after })
}

/// Replaces the command of a command line by `fetch`; returns the arguments before and after the kernel's
/// release. A value of a flag may be the same word.
fn fetch_line(line: &[OsString]) -> Option<(Vec<OsString>, Vec<OsString>)> {
    let is_command = |word: &OsString| word == "run" || word == "init";
    let places = (1..line.len()).filter(|at| line.get(*at).is_some_and(is_command));
    let divided = places.map(|at| {
        let (before, after) = line.split_at(at);
        let words = ["fetch", "--background", "--kernel"].map(OsString::from);
        let before = before.iter().cloned().chain(words).collect();
        (before, after.iter().skip(1).cloned().collect())
    });
    let fetches = |(before, after): &(Vec<OsString>, Vec<OsString>)| {
        let whole = before.iter().cloned().chain([RELEASE.into()]).chain(after.iter().cloned());
        let kernels = match Cli::try_parse_from(whole).map(|cli| cli.command) {
            Ok(Command::Fetch { kernels, background: true }) => kernels,
            _ => return false,
        };
        kernels == [RELEASE]
    };
    let (before, after) = divided.into_iter().find(fetches)?;
    Some((before.into_iter().skip(1).collect(), after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("longshore run", Some("fetch --background --kernel 6.9"))]
    #[case::init("longshore init", Some("fetch --background --kernel 6.9"))]
    #[case::flags_before(
        "longshore --store /s --jobs 2 run",
        Some("--store /s --jobs 2 fetch --background --kernel 6.9")
    )]
    #[case::flags_after(
        "longshore run --called-as-nvidia-driver --driver 550 --log-format json",
        Some(
            "fetch --background --kernel 6.9 --called-as-nvidia-driver --driver 550 --log-format json"
        )
    )]
    #[case::value_before(
        "longshore --archive-suite run run",
        Some("--archive-suite run fetch --background --kernel 6.9")
    )]
    #[case::value_after(
        "longshore run --archive-suite run",
        Some("fetch --background --kernel 6.9 --archive-suite run")
    )]
    #[case::another_command("longshore plan", None)]
    #[case::empty("", None)]
    fn command_lines(#[case] line: &str, #[case] wanted: Option<&str>) {
        let line: Vec<OsString> = line.split_ascii_whitespace().map(OsString::from).collect();
        let words = fetch_line(&line).map(|(before, after)| {
            let words = before.into_iter().chain(["6.9".into()]).chain(after);
            words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(words.as_deref(), wanted);
    }

    #[test]
    fn the_lowest_priority_is_that_of_the_thread_and_of_those_it_starts() {
        let policy = || -> String {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("read");
            let fields: Vec<&str> =
                stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            // Fields 19 and 41 (proc_pid_stat(5)), counted from the third.
            format!("{} {}", fields[16], fields[38])
        };
        let inherited = std::thread::spawn(move || {
            lowest_priority().expect("set");
            std::thread::spawn(policy).join().expect("ended")
        });
        assert_eq!(inherited.join().expect("ended"), "19 5");
    }
}
