//! `longshore plan`.

use super::{form, print_answer, put_out, release};
use crate::config::Config;
use crate::plan::{View, render, render_for_kernel};
use crate::supplier::Inventory;
use longshore_core::failure::{ExitCode, Failure};

/// Format of the JSON. In format 1 a choice stood in the topic of its reason.
const FORMAT: u32 = 2;

/// Show what run would do on this host, and why
#[derive(Debug, clap::Args)]
pub(super) struct Plan {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// List the steps of a refused plan, too
    #[arg(long, conflicts_with = "json")]
    steps: bool,
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
    let (facts, plan) = match &asked.kernel {
        None => inventory.decide().await?,
        Some(kernel) => inventory.decide_for(kernel).await?,
    };
    if asked.json {
        print_answer(FORMAT, plan.verdict(), plan.exit_code(), &plan)?;
    } else {
        let table = config.support.table.as_ref();
        let view = View { form: form(), steps: asked.steps, table };
        let render = if asked.kernel.is_some() { render_for_kernel } else { render };
        put_out(&render(&plan, &facts, view))?;
    }
    // The plan already holds the reason; scripts get the exit code that `run` would end with.
    Ok(plan.exit_code())
}
