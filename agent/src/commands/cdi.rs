//! `cdi show` and `cdi list`: specs of GPUs for container runtimes. Both only read.

use std::io;

use super::{print, print_answer, put_out, verdict_of};
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
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Format of the JSON of `list`.
const FORMAT: u32 = 1;

pub(super) fn cdi(config: &Config, asked: &Cdi) -> Result<ExitCode, Failure> {
    match asked {
        // JSON is the only form.
        Cdi::Show { json: _ } => show(config),
        Cdi::List { json } => list(config, *json),
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

fn list(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let host_root = config.paths.host_root.clone();
    let files = in_time(move || listing::read(&host_root))?;
    let failure = listing::failure(&files);
    if json {
        let rows = listing::rows(&files);
        let (verdict, code) = verdict_of(failure.as_ref(), rows.is_usable());
        print_answer(FORMAT, verdict, code, &rows)?;
    } else {
        print(&listing::render(&files))?;
    }
    failure.map_or(Ok(ExitCode::Done), Err)
}

/// Reads the host with the time limit of `longshore status`: a mount or device of it may hang.
fn in_time<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let looked = bounded_call::in_time("cdi", LOOK, move || io::Result::Ok(look()));
    looked.ok_or_else(hangs)?.or_fail(FailureKind::Preflight, || "looking at the host")?
}
