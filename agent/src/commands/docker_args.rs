//! `docker-args`: the options of `docker run` for the GPUs of this host. It only reads.

use super::{cdi, put_out};
use crate::cdi::docker_args::{Gpus, options};
use crate::config::Config;
use longshore_core::failure::{ExitCode, Failure};

/// Arguments of `docker-args`.
#[derive(Debug, clap::Args)]
pub(super) struct DockerArgs {
    /// GPUs as docker's own option names them: all, a number, or "device=0,1"
    #[arg(long, value_name = "GPUS")]
    gpus: Gpus,
}

/// Prints the options in one line.
///
/// # Errors
/// As `cdi show`; exit code 2 where there is no such GPU.
pub(super) fn docker_args(config: &Config, asked: &DockerArgs) -> Result<ExitCode, Failure> {
    let spec = cdi::spec(config)?;
    put_out(&format!("{}\n", options(&spec, &asked.gpus)?))?;
    Ok(ExitCode::Done)
}
