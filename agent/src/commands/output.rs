//! Standard output of the commands.

use std::io::Write;

use super::env;
use crate::console::Form;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::finding::Verdict;
use longshore_core::sanitize::printable;

pub(super) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .or_fail(FailureKind::Bug, || "writing the answer as JSON")?;
    put_out(&format!("{text}\n"))
}

/// Returns verdict and exit code of a command that prints its answer and then ends with this failure; without one,
/// an answer that is not all well (`is_well`) is a warning.
pub(super) fn verdict_of(failure: Option<&Failure>, is_well: bool) -> (Verdict, ExitCode) {
    match failure {
        Some(failure) => (Verdict::Refused, failure.code()),
        None if is_well => (Verdict::Passed, ExitCode::Done),
        None => (Verdict::Warned, ExitCode::Done),
    }
}

/// JSON of a command: its format, verdict and exit code before all else.
#[derive(serde::Serialize)]
struct JsonOutput<'a, T> {
    format: u32,
    verdict: Verdict,
    exit_code: u8,
    #[serde(flatten)]
    body: &'a T,
}

/// Prints an answer as JSON. `format` changes where a key's meaning does, or one is gone.
pub(super) fn print_answer(
    format: u32,
    verdict: Verdict,
    exit_code: ExitCode,
    body: &impl serde::Serialize,
) -> Result<(), Failure> {
    print_json(&JsonOutput { format, verdict, exit_code: exit_code.number(), body })
}

/// Returns the form of text on standard output.
pub(super) fn form() -> Form {
    Form::for_stdout(&std::io::stdout(), &env)
}

pub(super) fn print(text: &str) -> Result<(), Failure> {
    put_out(&printable(text))
}

/// Prints text of this program that has styles: they are left out where standard output is no terminal.
pub(super) fn print_styled(text: &str) -> Result<(), Failure> {
    let choice = anstream::AutoStream::choice(&std::io::stdout());
    match choice {
        anstream::ColorChoice::Never => put_out(&anstream::adapter::strip_str(text).to_string()),
        _ => put_out(text),
    }
}

pub(super) fn put_out(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe: `longshore plan | head`.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other
            .or_fail(FailureKind::Usage, || "writing to standard output")
            .map_err(|failure| failure.remedy("the command succeeded; only its output is lost")),
    }
}
