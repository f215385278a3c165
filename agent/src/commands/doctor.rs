//! `longshore doctor`.

use clap::Args;

use super::{print, print_json};
use crate::config::Config;
use crate::doctor::{self, render};
use longshore_core::failure::{ExitCode, Failure};

/// Report everything that prevents, or will prevent, an installation on this host; change nothing
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Also check the configured archives, registries and mirrors
    #[arg(long)]
    online: bool,
}

/// Prints the report; returns the exit code that `run` would be refused with.
///
/// # Errors
/// As [`doctor::diagnose`].
pub(super) async fn doctor(config: &Config, asked: Doctor) -> Result<ExitCode, Failure> {
    let report = doctor::diagnose(config, asked.online).await?;
    if asked.json {
        print_json(&report)?;
    } else {
        print(&render(&report))?;
    }
    Ok(report.exit_code)
}
