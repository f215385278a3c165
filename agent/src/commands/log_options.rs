//! Options of the log, which every command takes.

use clap::{Args, Parser};

use crate::logging::{LogFormat, LogLevel, Volume};

/// Options of the log. They win over LONGSHORE_LOG and LONGSHORE_LOG_FORMAT.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct LogFlags {
    /// Log more: debug messages, or (-vv) trace messages
    #[arg(short, long, global = true, hide = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Log less: warnings, errors; or (-qq) errors alone
    #[arg(short, long, global = true, hide = true, action = clap::ArgAction::Count, conflicts_with = "verbose")]
    quiet: u8,
    /// Log from off, error, warn, info, debug or trace on
    #[arg(long, value_name = "LEVEL", global = true, hide = true, value_enum,
          conflicts_with_all = ["verbose", "quiet"])]
    log_level: Option<LogLevel>,
    /// Log as text (pretty) or json; pretty on a terminal
    #[arg(long, value_name = "FORMAT", global = true, hide = true, value_enum)]
    log_format: Option<LogFormat>,
}

/// The options alone, for the texts of help pages.
#[derive(Debug, Parser)]
#[command(disable_help_flag = true)]
pub(super) struct LogOptions {
    #[command(flatten)]
    flags: LogFlags,
}

impl LogFlags {
    /// Returns the format, where it is given.
    pub(super) fn format(self) -> Option<LogFormat> {
        self.log_format
    }

    /// Returns the amount that is logged, where it is given.
    pub(super) fn volume(self) -> Option<Volume> {
        match (self.log_level, self.verbose, self.quiet) {
            (Some(level), ..) => Some(Volume::Level(level)),
            (None, 0, 0) => None,
            (None, 1, _) => Some(Volume::Verbose),
            (None, 2.., _) => Some(Volume::Trace),
            (None, 0, 1) => Some(Volume::Level(LogLevel::Warn)),
            (None, 0, 2..) => Some(Volume::Level(LogLevel::Error)),
        }
    }
}
