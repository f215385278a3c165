//! Wrong command lines, as lines of the log.

use clap::error::{ContextKind, ContextValue};

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted;

/// True if clap reports a wrong command line, and not a help page that was requested.
pub fn is_wrong_usage(error: &clap::Error) -> bool {
    let page = clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    error.use_stderr() && error.kind() != page
}

/// Returns the error without the secrets of URLs on the command line.
pub fn without_secrets(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg] {
        if let Some(ContextValue::String(text)) = error.get(kind)
            && text.contains(['@', '?'])
        {
            let text = redacted(text);
            error.insert(kind, ContextValue::String(text));
        }
    }
    error
}

/// Returns a wrong command line, as reported by clap, as a failure.
pub fn wrong_usage(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let text = text.split("\nUsage: ").next().unwrap_or_default();
    let text = text.split("\nFor more information").next().unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let cause = lines.join("; ");
    let cause = cause.strip_prefix("error: ").unwrap_or(&cause);
    Failure::new(FailureKind::Usage, cause).remedy("see `longshore --help`")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Cli;
    use super::*;
    use longshore_core::failure::ExitCode;

    #[test]
    fn a_token_on_the_command_line_is_not_shown() {
        for arguments in [
            &["longshore", "plan", "--registry", "https://secret@registry.example.com/a"][..],
            &["longshore", "plan", "https://secret@registry.example.com/a?secret"],
        ] {
            let error = without_secrets(Cli::try_parse_from(arguments).expect_err("wrong"));
            let text = error.render().to_string();
            assert!(text.contains("registry.example.com"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn wrong_usage_is_told_without_clap_s_page() {
        for (arguments, cause) in [
            (&["longshore", "x"][..], "unrecognized subcommand 'x'"),
            (&["longshore", "plan", "--jason"], "unexpected argument '--jason' found; tip: "),
            (&["longshore", "build", "--kernel", "-"], "not a kernel release"),
        ] {
            let failure = wrong_usage(&Cli::try_parse_from(arguments).expect_err("wrong"));
            let text = failure.to_string();
            assert!(text.contains(cause) && !text.contains('\n'), "{text}");
            assert!(!text.contains("Usage") && !text.starts_with("error"), "{text}");
            assert_eq!(failure.code(), ExitCode::Usage);
        }
    }
}
