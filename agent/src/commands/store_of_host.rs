//! The host's directory as the store, where the container has no mount for it: attached for the
//! commands that use the store, tried out for those that only plan
//! (docs/internals/decisions/store-of-the-host.md).

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Command;
use crate::config::{Config, StoreChoice, StorePlace};
use longshore_core::bounded_call;
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::real::kernel_call::KernelCalls;
use longshore_host::real::mount_from_host::{HostDir, HostNamespace, NotAttached};

/// Reason of a store in the container whose contents must not be covered.
const FILLED: &str = "the container's own directory has module sets or user-mode trees already";

/// Use that a command makes of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreUse {
    /// Reads and writes it.
    Required,
    /// Reads it where that helps.
    Optional,
    /// Says what another command would do with it.
    Foreseen,
    Unused,
}

/// Returns the place of the store for a command; attaches the host's directory if the command uses it.
/// To be called before anything opens the store.
///
/// # Errors
/// Exit code 15 where the host's disk or the kernel does not answer.
pub(super) fn prepare(command: &Command, config: &Config) -> Result<StorePlace, Failure> {
    let usage = use_by(command);
    if usage == StoreUse::Unused {
        return Ok(StorePlace::default());
    }
    let path = match attachable(config) {
        Ok(path) => path,
        Err(StorePlace::InContainer(why)) if usage != StoreUse::Foreseen => {
            return Ok(in_container(why));
        }
        Err(place) => return Ok(place),
    };
    match usage {
        StoreUse::Foreseen => Ok(StorePlace::ToAttach),
        StoreUse::Optional => {
            Ok(attached(config, path).unwrap_or_else(|failure| in_container(failure.one_line())))
        }
        StoreUse::Required | StoreUse::Unused => attached(config, path),
    }
}

fn use_by(command: &Command) -> StoreUse {
    match command {
        Command::Run
        | Command::Build { .. }
        | Command::Builder(_)
        | Command::BuildRoot(_)
        | Command::SignModules(_)
        | Command::Push(_)
        | Command::Fetch { .. }
        | Command::Bundle(_)
        | Command::Import(_)
        | Command::Gc(_)
        | Command::Store(_) => StoreUse::Required,
        // An unreachable store is no reason to leave the driver on a host.
        Command::Unload { .. } => StoreUse::Optional,
        Command::Plan { .. } | Command::Doctor(_) => StoreUse::Foreseen,
        Command::Attest(_)
        | Command::Sign(_)
        | Command::Verify(_)
        | Command::List(_)
        | Command::Index(_)
        | Command::Status(_)
        | Command::Explain(_)
        | Command::Settings(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Fleet(_)
        | Command::Evictor(_)
        | Command::Cdi(_)
        | Command::Runtime(_)
        | Command::DockerArgs(_) => StoreUse::Unused,
    }
}

/// Returns the path on which the host's directory can be attached, else the place of the store. Only
/// tries it out, and changes nothing.
fn attachable(config: &Config) -> Result<PathBuf, StorePlace> {
    let limit = config.deadlines.load;
    let path = match StoreChoice::choose(&config.paths, limit) {
        StoreChoice::AsItIs => return Err(StorePlace::AsItIs),
        StoreChoice::Filled => return Err(StorePlace::InContainer(FILLED.into())),
        StoreChoice::Host(path) => path,
    };
    let wanted = path.clone();
    let open = move || HostNamespace::of_process_1().nearest(&wanted);
    let tried = |dir: HostDir| dir.try_out(&calls(config)).map_err(|refused| refused.to_string());
    let tried = match bounded_call::in_time("host-store", limit, open) {
        None => Err(NotAttached::Unanswered(limit).to_string()),
        Some(opened) => opened.map_err(|error| error.to_string()).and_then(tried),
    };
    tried.map_err(StorePlace::InContainer).map(|()| path)
}

fn attached(config: &Config, path: PathBuf) -> Result<StorePlace, Failure> {
    let limit = config.deadlines.load;
    let wanted = path.clone();
    let make = move || {
        make_mount_point(&wanted)?;
        HostNamespace::of_process_1().make(&wanted)
    };
    let dir = match bounded_call::in_time("host-store", limit, make) {
        None => return Err(unanswered(&path, limit)),
        Some(Err(error)) => return Ok(in_container(error)),
        Some(Ok(dir)) => dir,
    };
    match dir.attach(&path, &calls(config)) {
        Ok(()) => {
            tracing::info!(
                "the store is the host's {}, attached through process 1",
                path.display()
            );
            Ok(StorePlace::Attached)
        }
        Err(NotAttached::Unanswered(waited)) => Err(unanswered(&path, waited)),
        Err(refused) => Ok(in_container(refused)),
    }
}

/// A child process makes the calls: they can hang with the host's disk.
fn calls(config: &Config) -> KernelCalls {
    KernelCalls::by_child(None, config.deadlines.load, config.deadlines.unload)
}

/// Makes the container's directory, as the store makes it.
fn make_mount_point(path: &Path) -> io::Result<()> {
    let make = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        DirBuilder::new().mode(0o700).create(path)
    };
    match make() {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(io::Error::new(error.kind(), format!("making {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

fn in_container(why: impl ToString) -> StorePlace {
    let why = why.to_string();
    tracing::warn!("the store is in the container's own file system, and ends with it: {why}");
    StorePlace::InContainer(why)
}

/// Makes the failure of a mount that may still come, over a store in use.
fn unanswered(path: &Path, waited: Duration) -> Failure {
    let cause = format!(
        "attaching the host's {} through process 1 has not come to its end in {} s: the kernel or the \
         host's disk does not answer",
        path.display(),
        waited.as_secs_f64()
    );
    Failure::new(FailureKind::Preflight, cause).remedy(
        "see the kernel's log (dmesg) for what does not answer; where the host is only slow, give it \
         more time (load-deadline)",
    )
}
