//! `longshore plan`.

use super::{print, print_answer, release};
use crate::config::Config;
use crate::plan::{self, render, render_for_kernel};
use crate::supplier::Inventory;
use longshore_core::failure::{ExitCode, Failure};
use longshore_host::HostFacts;

/// Format of the JSON.
const FORMAT: u32 = 1;

/// Show what run would do on this host, and why
#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Show instead if the driver would be available with this kernel (uname -r) on this host, and compile nothing
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    kernel: Option<String>,
}

/// Prints the plan; returns the exit code that `run` would be refused with, also with the other kernel.
///
/// # Errors
/// Failures that make planning impossible.
pub(super) async fn plan(config: &Config, asked: Plan) -> Result<ExitCode, Failure> {
    let inventory = Inventory::for_looking(config);
    let (facts, plan, render): (HostFacts, plan::Plan, fn(&plan::Plan, &HostFacts) -> String) =
        match &asked.kernel {
            None => {
                let (facts, plan) = inventory.decide().await?;
                (facts, plan, render)
            }
            Some(kernel) => {
                let (facts, plan) = inventory.decide_for(kernel).await?;
                (facts, plan, render_for_kernel)
            }
        };
    if asked.json {
        print_answer(FORMAT, plan.verdict(), plan.exit_code(), &plan)?;
    } else {
        print(&render(&plan, &facts))?;
    }
    // The plan already holds the reason; scripts get the exit code that `run` would end with.
    Ok(plan.exit_code())
}
