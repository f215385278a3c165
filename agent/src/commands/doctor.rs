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
        return of_operator(config, asked);
    }
    let report = doctor::diagnose(config, asked.online).await?;
    if asked.json {
        print_json(&report)?;
    } else {
        put_out(&render(&report, form()))?;
    }
    Ok(report.exit_code)
}

fn of_operator(config: &Config, asked: Doctor) -> Result<ExitCode, Failure> {
    let report = operator::diagnose(config, operator::Asked::of(&env, asked.digest))?;
    if asked.json {
        print_json(&report)?;
    } else {
        put_out(&operator::render(&report, form()))?;
    }
    Ok(report.exit_code)
}
