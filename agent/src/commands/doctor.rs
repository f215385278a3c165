//! `longshore doctor`.

use clap::Args;

use super::{env, form, print_json, put_out};
use crate::config::Config;
use crate::doctor::{self, operator, render};
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
    /// Report instead which checks of NVIDIA's GPU operator this host passes, one after the other
    #[arg(long, conflicts_with = "online")]
    operator: bool,
    /// Digest of the driver's configuration in the operator's pod; by default DRIVER_CONFIG_DIGEST
    #[arg(long, value_name = "DIGEST", requires = "operator")]
    digest: Option<String>,
}

/// Prints the report; returns the exit code that `run` would be refused with.
///
/// # Errors
/// As [`doctor::diagnose`] and [`operator::diagnose`].
pub(super) async fn doctor(config: &Config, asked: Doctor) -> Result<ExitCode, Failure> {
    if asked.operator {
        let report = operator::diagnose(config, operator::Asked::from_env(&env, asked.digest))?;
        show(asked.json, &report, || operator::render(&report, form()))?;
        return Ok(report.exit_code);
    }
    let report = doctor::diagnose(config, asked.online).await?;
    show(asked.json, &report, || render(&report, form()))?;
    Ok(report.exit_code)
}

/// Prints a report, as JSON or as text.
fn show(
    json: bool,
    report: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if json { print_json(report) } else { put_out(&text()) }
}
