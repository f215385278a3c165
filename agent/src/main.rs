//! Entry point: the one place where a failure is printed and the process exits.

use std::io::ErrorKind;
use std::process::ExitCode as ProcessExit;

use longshore::commands::{self, Called, CommandOutcome};
use longshore::lifecycle::{init, signals};
use longshore::logging::{Log, LogFormat};
use longshore::termination::TerminationRecord;
use longshore_build::sandbox;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::{privileges, program_version};
use longshore_debian::compression;
use longshore_fetch::http;
use longshore_host::real::kernel_call;
use nix::sys::stat::{Mode, umask};

fn main() -> ProcessExit {
    // Before anything else: this process reads foreign data, and has no rights by then.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == compression::SUBCOMMAND) {
        return ProcessExit::from(compression::decompress_main(std::env::args_os().skip(1)));
    }
    // Before anything else, too: this process reads the answers of servers, and has no rights by then.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == http::SUBCOMMAND) {
        return ProcessExit::from(http::fetch_main(std::env::args_os().skip(1)));
    }
    // Before any thread exists: the stages of the build sandbox change namespaces.
    if std::env::args_os().nth(1).is_some_and(|a| a.as_encoded_bytes().starts_with(b"__sandbox")) {
        // The parent thread blocks these signals; make and the compiler must not inherit that.
        signals::release();
        return ProcessExit::from(sandbox::sandbox_main(std::env::args_os().skip(1)));
    }
    signals::hold();
    // A signal meant for the agent must not interrupt the kernel call made for it, either.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == kernel_call::ARGUMENT) {
        return ProcessExit::from(kernel_call::kernel_call_main());
    }
    compression::decompress_by("/proc/self/exe");
    http::fetch_by("/proc/self/exe");
    let log = Log::default();
    // Also before any thread exists: threads inherit the capabilities of their creator.
    if let Err(error) = privileges::drop_unneeded() {
        let failure = Failure::new(FailureKind::Bug, "dropping capabilities").with_source(error);
        log.report(&failure);
        return ProcessExit::from(failure.code().number());
    }
    // The driver root is readable for all users, and the store is writable for the owner only,
    // whatever umask the parent process set.
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    let termination = TerminationRecord::default();
    let (termination_of_panic, log_of_panic) = (termination.clone(), log.clone());
    std::panic::set_hook(Box::new(move |info| {
        report_panic(info, &log_of_panic, &termination_of_panic);
    }));
    match init::as_process_one() {
        Ok(None) => {}
        Ok(Some(ended)) => {
            if let Some(name) = ended.signal_name() {
                // A killed agent cannot report this itself.
                commands::prepare_termination_record(&termination);
                termination.write_killed(ended.code, &name);
            }
            return ProcessExit::from(ended.code);
        }
        Err(failure) => {
            log.report(&failure);
            return ProcessExit::from(failure.code().number());
        }
    }
    let version = program_version!();
    let line = match Called::by(std::env::args_os()) {
        Ok(Called::Longshore(line)) => line,
        Ok(Called::Completer(words)) => return ended(commands::complete_for_kubectl(words), &log),
        Ok(Called::SideCar(command)) => {
            return ended(commands::execute_side_car(command, &log), &log);
        }
        Err(failure) => return ended(Err(failure), &log),
    };
    let cli = match commands::parse(line, version) {
        Ok(cli) => cli,
        Err(error) => return refuse(commands::without_secrets(error), &log),
    };
    match commands::execute(cli, version, &termination, &log) {
        Ok(CommandOutcome::Code(code)) => ProcessExit::from(code.number()),
        Ok(CommandOutcome::Stopped(signal)) => ProcessExit::from(commands::end_by(signal)),
        Err(failure) => {
            log.report(&failure);
            termination.write(&failure);
            ProcessExit::from(failure.code().number())
        }
    }
}

/// Ends a command that leaves no termination message.
fn ended(result: Result<ExitCode, Failure>, log: &Log) -> ProcessExit {
    let code = result.unwrap_or_else(|failure| {
        log.report(&failure);
        failure.code()
    });
    ProcessExit::from(code.number())
}

/// Reports a wrong command line, or prints the requested help page.
fn refuse(error: clap::Error, log: &Log) -> ProcessExit {
    match error {
        // A help page stays text: it does not go to a log.
        error if commands::is_wrong_usage(&error) && log.format() == LogFormat::Json => {
            let failure = commands::wrong_usage(&error);
            log.report(&failure);
            ProcessExit::from(failure.code().number())
        }
        error => {
            // clap's own text; its exit code is 2 for wrong usage, 0 for --help and --version.
            let code = error.exit_code();
            match error.print() {
                Err(e) if e.kind() != ErrorKind::BrokenPipe => ProcessExit::from(2),
                // A closed pipe is no failure: `longshore --help | head`.
                _ => ProcessExit::from(u8::try_from(code).unwrap_or(2)),
            }
        }
    }
}

/// Reports a panic, which is a fault in longshore, in the form of every other failure.
fn report_panic(info: &std::panic::PanicHookInfo<'_>, log: &Log, termination: &TerminationRecord) {
    let failure = Failure::new(FailureKind::Bug, format!("a fault in longshore: {info}"))
        .remedy("please report it with the log; `longshore unload` uninstalls what is on the host");
    log.report(&failure);
    termination.write(&failure);
    std::process::exit(ExitCode::Bug.number().into());
}
