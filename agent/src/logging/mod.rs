//! The log on standard error, as set by flags, else by `LONGSHORE_LOG` and `LONGSHORE_LOG_FORMAT`, and the
//! failure that ends a command, in the same format.

mod about;
mod json_line;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{JsonFields, Writer, debug_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

pub use about::About;
use json_line::JsonLine;

use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::sanitize::printable;

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Pretty,
    /// One JSON object per line.
    Json,
}

/// Level from which on messages are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum LogLevel {
    /// Nothing but the failure that ends a command.
    Off,
    /// Errors.
    Error,
    /// Also warnings.
    Warn,
    /// Also progress.
    Info,
    /// Also messages for finding faults.
    Debug,
    /// Everything.
    Trace,
}

/// Amount that a flag asks for; its text is that of LONGSHORE_LOG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Volume {
    /// Everything from a level on.
    Level(LogLevel),
    /// Debug messages of longshore, and what libraries log at `info`.
    #[display("info,longshore=debug")]
    Verbose,
    /// Trace messages of longshore, and debug messages of libraries.
    #[display("debug,longshore=trace")]
    Trace,
}

/// This process' log; clones share format and fields.
#[derive(Debug, Clone, Default)]
pub struct Log {
    format: Arc<OnceLock<LogFormat>>,
    about: About,
}

impl Log {
    /// Fixes the format of all further lines; `format` is the flag's value.
    ///
    /// # Errors
    /// Exit code 2 where the variable is invalid.
    pub fn fix_format(&self, format: Option<LogFormat>, env: Env<'_>) -> Result<(), Failure> {
        let format = match format {
            Some(format) => format,
            None => format_from(env)?.unwrap_or_else(usual),
        };
        // A format fixed earlier stays.
        let _ = self.format.set(format);
        self.about.read(env);
        Ok(())
    }

    /// Starts the log; `volume` is the flags' value, which wins over the variable.
    ///
    /// # Errors
    /// Exit code 2 where the variable is needed and invalid.
    pub fn start(&self, volume: Option<Volume>, env: Env<'_>) -> Result<(), Failure> {
        let log = tracing_subscriber::registry().with(filter(volume, env)?);
        // Internal errors would go to standard error, and panic where that is closed.
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .with_target(false);
        match self.format() {
            LogFormat::Pretty => {
                let lines = lines.with_ansi(std::io::stderr().is_terminal());
                let lines = lines.fmt_fields(debug_fn(write_pretty));
                // A message has what its spans say.
                log.with(lines.with_filter(filter_fn(|of| of.is_event()))).init();
            }
            LogFormat::Json => {
                let lines = lines.fmt_fields(JsonFields::new());
                log.with(lines.event_format(JsonLine::new(&self.about))).init();
            }
        }
        Ok(())
    }

    /// Returns the fields of every line, for an agent that sets its driver.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the format; until it is fixed, that of the environment.
    pub fn format(&self) -> LogFormat {
        let of_environment = || format_from(&|name| std::env::var(name).ok()).ok().flatten();
        self.format.get().copied().or_else(of_environment).unwrap_or_else(usual)
    }

    /// Reports the failure that the process ends with, once and whole, whatever the log level is.
    pub fn report(&self, failure: &Failure) {
        let text = match self.format() {
            LogFormat::Pretty => printable(&failure.report()).into_owned(),
            LogFormat::Json => line_of(failure, Timestamp::now(), self.about.fields()),
        };
        // With standard error closed, only the exit code remains.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Returns the default: text on a terminal, JSON elsewhere.
fn usual() -> LogFormat {
    if std::io::stderr().is_terminal() { LogFormat::Pretty } else { LogFormat::Json }
}

/// A failure as a line of the log.
#[derive(Serialize)]
struct FailureLine<'a> {
    timestamp: String,
    level: &'static str,
    /// Cause and chain, as in the record of the last failure.
    message: String,
    exit_code: u8,
    cause: String,
    /// Chain alone, outermost first.
    caused_by: Vec<String>,
    remedy: &'a str,
    /// Class of a failed compile.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
    /// Interface or header that the class is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// Fields of every line.
    #[serde(flatten)]
    about: BTreeMap<&'static str, String>,
}

fn line_of(failure: &Failure, at: Timestamp, about: Vec<(&'static str, String)>) -> String {
    let class = failure.compile_class();
    let line = FailureLine {
        // In tracing_subscriber's format.
        timestamp: at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        level: "ERROR",
        message: failure.one_line(),
        exit_code: failure.code().number(),
        cause: failure.to_string(),
        caused_by: failure.chain().map(ToString::to_string).collect(),
        remedy: failure.remedy_or_default(),
        class: class.map(|of| of.class.as_str()),
        name: class.and_then(|of| of.name.as_deref()),
        about: about.into_iter().collect(),
    };
    // Serializing texts and numbers does not fail.
    serde_json::to_string(&line).unwrap_or_else(|_| failure.report())
}

/// Fields whose content is in the message already; only JSON shows them.
const IN_MESSAGE: [&str; 11] = [
    "step", "module", "what", "outcome", "seconds", "phase", "last", "driver", "ms", "listen",
    "code",
];

fn write_pretty(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    // Only tracing's own visitor escapes control characters by itself.
    let shown = || format!("{value:?}");
    match field.name() {
        "message" => writer.write_str(&printable(&shown())),
        name if IN_MESSAGE.contains(&name) => Ok(()),
        name => write!(writer, " {name}={}", printable(&shown())),
    }
}

/// Level of programs' parts that warn about what is usual: the pgp crate about each signature of a host's keyring that
/// it does not know. A filter of LONGSHORE_LOG for the same target goes first.
const QUIET: &str = "pgp=error";

fn filter(volume: Option<Volume>, env: Env<'_>) -> Result<EnvFilter, Failure> {
    // Asked for in any case: it is a known variable.
    let variable = given(env, "LONGSHORE_LOG");
    let text = volume.map(|volume| volume.to_string()).or(variable);
    let text = text.unwrap_or_else(|| "info".to_owned());
    EnvFilter::try_new(format!("{QUIET},{text}")).map_err(|e| {
        Failure::new(FailureKind::Usage, format!("environment variable LONGSHORE_LOG={text}"))
            .with_source(e)
            .remedy("give error, warn, info, debug or trace, or filters such as longshore=debug")
    })
}

fn format_from(env: Env<'_>) -> Result<Option<LogFormat>, Failure> {
    let Some(text) = given(env, "LONGSHORE_LOG_FORMAT") else { return Ok(None) };
    LogFormat::from_str(&text, true).map(Some).map_err(|_| {
        let cause = format!("environment variable LONGSHORE_LOG_FORMAT={text}");
        Failure::new(FailureKind::Usage, cause).remedy("give pretty or json")
    })
}

/// Returns a variable's value; an empty one counts as absent.
fn given(env: Env<'_>, name: &str) -> Option<String> {
    env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::CompileClass;
    use rstest::rstest;

    /// Log output, shared with the log.
    #[derive(Clone, Default)]
    pub(super) struct Written(pub(super) std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

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
            let said = "\x1b[2Jready\r";
            tracing::warn!(%said, "nvidia-persistenced: {said}");
        });
        let text = String::from_utf8(written.0.lock().expect("lock").clone()).expect("text");
        let expected = " INFO loaded nvidia\n INFO taken from earlier builds answered=3\n \
                        WARN nvidia-persistenced: \\u{1b}[2Jready\\r said=\\u{1b}[2Jready\\r\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_failure_is_one_line_of_the_log() {
        let failure = Failure::new(FailureKind::Preflight, "writing /store/a:\ntwice")
            .with_source(std::io::Error::from_raw_os_error(28))
            .remedy("free \"some\" space");
        let at = Timestamp::from_microsecond(1_763_661_600_000_042).expect("a time");
        assert_eq!(
            line_of(&failure, at, vec![("node", "gpu-1".to_owned())]),
            "{\"timestamp\":\"2025-11-20T18:00:00.000042Z\",\"level\":\"ERROR\",\
             \"message\":\"writing /store/a:\\ntwice: No space left on device (os error 28)\",\
             \"exit_code\":15,\"cause\":\"writing /store/a:\\ntwice\",\
             \"caused_by\":[\"No space left on device (os error 28)\"],\
             \"remedy\":\"free \\\"some\\\" space\",\"node\":\"gpu-1\"}"
        );
    }

    #[rstest]
    #[case::with_a_name(Some("strncpy"), ",\"class\":\"interface-gone\",\"name\":\"strncpy\"}")]
    #[case::without(None, ",\"class\":\"interface-gone\"}")]
    fn a_failed_compile_has_its_class_in_the_log(#[case] name: Option<&str>, #[case] end: &str) {
        let name = name.map(str::to_owned);
        let class = CompileClass { class: "interface-gone".into(), name, of_inputs: true };
        let failure = Failure::new(FailureKind::Compile, "a").with_compile_class(class);
        let line = line_of(&failure, Timestamp::UNIX_EPOCH, Vec::new());
        assert!(line.ends_with(end), "{line}");
    }

    #[rstest]
    #[case(None, "pretty", Some(LogFormat::Pretty))]
    #[case(Some(LogFormat::Json), "pretty", Some(LogFormat::Json))]
    #[case(Some(LogFormat::Json), "xml", Some(LogFormat::Json))]
    #[case(None, "xml", None)]
    fn the_flag_wins_and_a_fixed_format_stays(
        #[case] flag: Option<LogFormat>,
        #[case] text: &str,
        #[case] wanted: Option<LogFormat>,
    ) {
        let env = |name: &str| (name == "LONGSHORE_LOG_FORMAT").then(|| text.to_owned());
        let log = Log::default();
        assert_eq!(log.fix_format(flag, &env).ok().map(|()| log.format()), wanted);
        if wanted.is_some() {
            log.clone().fix_format(Some(LogFormat::Pretty), &env).expect("fixed");
            assert_eq!(Some(log.format()), wanted);
        }
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
        assert_eq!(filter(None, &env).is_ok(), wanted);
    }

    /// True if a log with this filter has something of what `say` logs.
    fn is_written(volume: Option<Volume>, text: &str, say: impl FnOnce()) -> bool {
        let env = |name: &str| (name == "LONGSHORE_LOG").then(|| text.to_owned());
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter(volume, &env).expect("a filter"))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, say);
        !written.0.lock().expect("lock").is_empty()
    }

    #[rstest]
    #[case("", false)]
    #[case("warn", false)]
    #[case("trace", false)]
    #[case("info,pgp=warn", true)]
    fn warnings_about_foreign_signatures_in_a_keyring_are_left_out_unless_they_are_wanted(
        #[case] text: &str,
        #[case] shown: bool,
    ) {
        let said = || {
            tracing::warn!(target: "pgp::composed::signed_key::public", "ignoring a signature");
        };
        assert_eq!(is_written(None, text, said), shown);
    }

    #[rstest]
    #[case::more(Some(Volume::Verbose), "off", true)]
    #[case::level(Some(Volume::Level(LogLevel::Debug)), "warn", true)]
    #[case::less(Some(Volume::Level(LogLevel::Warn)), "debug", false)]
    #[case::not_read(Some(Volume::Verbose), "longshore=loud", true)]
    #[case::variable(None, "debug", true)]
    #[case::neither(None, "", false)]
    fn flags_win_over_the_variable(
        #[case] volume: Option<Volume>,
        #[case] text: &str,
        #[case] shown: bool,
    ) {
        let said = || tracing::debug!(target: "longshore_fetch::http", "connected");
        assert_eq!(is_written(volume, text, said), shown);
    }

    /// The crates' names begin with the program's, and a filter's target is a prefix.
    #[rstest]
    #[case("longshore=debug", true)]
    #[case("longshore_fetch=debug", true)]
    #[case("longshore_host=debug", false)]
    #[case("info", false)]
    fn a_filter_for_the_program_is_one_for_each_of_its_crates(
        #[case] text: &str,
        #[case] shown: bool,
    ) {
        let said = || tracing::debug!(target: "longshore_fetch::http", "connected");
        assert_eq!(is_written(None, text, said), shown);
    }
}
