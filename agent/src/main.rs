//! The command line: the one place where a failure is printed and the process exits.

use std::process::ExitCode as ProcessExit;

use clap::Parser;
use longshore::build::sandbox;
use longshore::commands::{self, Cli};
use longshore::lifecycle::init;

fn main() -> ProcessExit {
    // Before any thread exists: the stages of the build sandbox change namespaces.
    if std::env::args_os().nth(1).is_some_and(|a| a.as_encoded_bytes().starts_with(b"__sandbox")) {
        return ProcessExit::from(sandbox::sandbox_main(std::env::args_os().skip(1)));
    }
    match init::as_process_one() {
        Ok(None) => {}
        Ok(Some(code)) => return ProcessExit::from(code),
        Err(failure) => {
            commands::report(&failure);
            return ProcessExit::from(failure.code().number());
        }
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own text; its exit code for wrong usage is 2, for --help and --version 0.
            let code = error.exit_code();
            return match error.print() {
                Ok(()) => ProcessExit::from(u8::try_from(code).unwrap_or(2)),
                Err(_) => ProcessExit::from(2),
            };
        }
    };
    match commands::execute(cli) {
        Ok(code) => ProcessExit::from(code.number()),
        Err(failure) => {
            commands::report(&failure);
            ProcessExit::from(failure.code().number())
        }
    }
}
