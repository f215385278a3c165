//! The log on standard error, as `LONGSHORE_LOG` and `LONGSHORE_LOG_FORMAT` want it.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::config::Env;
use crate::failure::{ExitCode, Failure};

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Starts the log; `format` is what the flag says.
///
/// # Errors
/// Exit code 2 where a variable makes no sense.
pub fn start(format: Option<LogFormat>, env: Env<'_>) -> Result<(), Failure> {
    let filter = filter(env)?;
    let terminal = std::io::stderr().is_terminal();
    let usual = if terminal { LogFormat::Pretty } else { LogFormat::Json };
    let format = format.or(format_from(env)?).unwrap_or(usual);
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say so on standard error, and panic where that is what is closed.
        .log_internal_errors(false)
        .with_target(false);
    match format {
        LogFormat::Pretty => builder.with_ansi(terminal).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

fn filter(env: Env<'_>) -> Result<EnvFilter, Failure> {
    let text = given(env, "LONGSHORE_LOG").unwrap_or_else(|| "info".to_owned());
    EnvFilter::try_new(&text).map_err(|e| {
        Failure::new(ExitCode::Usage, format!("environment variable LONGSHORE_LOG={text}"))
            .because(e)
            .remedy("give error, warn, info, debug or trace, or filters such as longshore=debug")
    })
}

fn format_from(env: Env<'_>) -> Result<Option<LogFormat>, Failure> {
    let Some(text) = given(env, "LONGSHORE_LOG_FORMAT") else { return Ok(None) };
    LogFormat::from_str(&text, true).map(Some).map_err(|_| {
        let cause = format!("environment variable LONGSHORE_LOG_FORMAT={text}");
        Failure::new(ExitCode::Usage, cause).remedy("give pretty or json")
    })
}

/// A variable's value; an empty one counts as absent.
fn given(env: Env<'_>, name: &str) -> Option<String> {
    env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", Some(None))]
    #[case("json", Some(Some(LogFormat::Json)))]
    #[case(" Pretty ", Some(Some(LogFormat::Pretty)))]
    #[case("xml", None)]
    fn formats(#[case] text: &str, #[case] wanted: Option<Option<LogFormat>>) {
        let env = |name: &str| (name == "LONGSHORE_LOG_FORMAT").then(|| text.to_owned());
        assert_eq!(format_from(&env).ok(), wanted);
    }

    #[rstest]
    #[case("", true)]
    #[case("debug", true)]
    #[case("warn,longshore::engine=debug", true)]
    #[case("longshore=loud", false)]
    fn filters(#[case] text: &str, #[case] wanted: bool) {
        let env = |name: &str| (name == "LONGSHORE_LOG").then(|| text.to_owned());
        assert_eq!(filter(&env).is_ok(), wanted);
    }
}
