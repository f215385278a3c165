//! `longshore status`: for people, scripts, and probes.

use crate::config::Config;
use crate::lifecycle::probe::{Question, probe};
use longshore_core::failure::{ExitCode, Failure};

use super::{print, print_json};

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Print in one line whether the driver is ready; exit code 30 where it is not
    #[arg(long, conflicts_with_all = ["json", "alive"])]
    ready: bool,
    /// Print in one line whether the agent is running and not stuck; exit code 30 where it is not
    #[arg(long, conflicts_with = "json")]
    alive: bool,
}

pub(super) fn status(config: &Config, asked: &Status) -> Result<ExitCode, Failure> {
    let question = match asked {
        Status { ready: true, .. } => Question::Ready,
        Status { alive: true, .. } => Question::Alive,
        Status { json, .. } => {
            let (report, record) = crate::status::status(config)?;
            if *json {
                print_json(&report)?
            } else {
                print(&report.render())?
            }
            return record.map(|()| ExitCode::Done);
        }
    };
    let (yes, why) = probe(&config.paths, question);
    print(&format!("{why}\n"))?;
    Ok(if yes { ExitCode::Done } else { ExitCode::NotReady })
}
