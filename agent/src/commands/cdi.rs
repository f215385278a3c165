//! `cdi show` and `cdi list`: specs of GPUs for container runtimes. Both only read.

use std::io;

use super::{print, put_out};
use crate::cdi::{self, listing};
use crate::config::Config;
use crate::status::{LOOK, hangs};
use longshore_cdi::Spec;
use longshore_core::bounded_call;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_host::RealHost;

/// Arguments of `cdi`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Cdi {
    /// Print the CDI spec of the driver that this host has now
    Show {
        /// As JSON, which is the default
        #[arg(long)]
        json: bool,
    },
    /// List the devices of all CDI specs on this host, each with its file
    List,
}

pub(super) fn cdi(config: &Config, asked: &Cdi) -> Result<ExitCode, Failure> {
    match asked {
        // JSON is the only form.
        Cdi::Show { json: _ } => show(config),
        Cdi::List => list(config),
    }
}

/// Makes the spec of this host's driver.
pub(super) fn spec(config: &Config) -> Result<Spec, Failure> {
    let (paths, capabilities) = (config.paths.clone(), config.cdi_capabilities.clone());
    in_time(move || cdi::of_host(&paths, &capabilities, &RealHost::new(&paths.root)))
}

fn show(config: &Config) -> Result<ExitCode, Failure> {
    let spec = spec(config)?;
    put_out(&spec.to_json().or_fail(FailureKind::Bug, || "writing the spec as JSON")?)?;
    Ok(ExitCode::Done)
}

fn list(config: &Config) -> Result<ExitCode, Failure> {
    let host_root = config.paths.host_root.clone();
    let files = in_time(move || listing::read(&host_root))?;
    if files.is_empty() {
        tracing::info!("no CDI spec is in {}", listing::DIRECTORIES.join(" or "));
    }
    print(&listing::render(&files))?;
    listing::failure(&files).map_or(Ok(ExitCode::Done), Err)
}

/// Reads the host with the time limit of `longshore status`: a mount or device of it may hang.
fn in_time<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let looked = bounded_call::in_time("cdi", LOOK, move || io::Result::Ok(look()));
    looked.ok_or_else(hangs)?.or_fail(FailureKind::Preflight, || "looking at the host")?
}
