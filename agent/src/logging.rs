//! The log on standard error, as `LONGSHORE_LOG` and `LONGSHORE_LOG_FORMAT` want it.

use std::fmt;
use std::io::IsTerminal;

use clap::ValueEnum;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

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
        LogFormat::Pretty => {
            builder.with_ansi(terminal).fmt_fields(debug_fn(write_pretty)).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Fields that the message has in words already: for machines, which read JSON.
const IN_WORDS: [&str; 10] =
    ["step", "what", "outcome", "seconds", "phase", "last", "driver", "ms", "listen", "code"];

fn write_pretty(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name if IN_WORDS.contains(&name) => Ok(()),
        name => write!(writer, " {name}={value:?}"),
    }
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

    /// What is logged, shared with the log.
    #[derive(Clone, Default)]
    struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("lock").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn people_read_what_is_said_and_only_the_fields_that_it_does_not_say() {
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .fmt_fields(debug_fn(write_pretty))
            .finish();
        tracing::subscriber::with_default(log, || {
            let (step, seconds) = ("load-module", 0.1);
            tracing::info!(step, what = "nvidia", outcome = %"done", seconds, "loaded nvidia");
            tracing::info!(answered = 3, "taken from earlier builds");
        });
        let text = String::from_utf8(written.0.lock().expect("lock").clone()).expect("text");
        assert_eq!(text, " INFO loaded nvidia\n INFO taken from earlier builds answered=3\n");
    }

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
