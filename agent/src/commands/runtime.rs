//! `runtime check`, `configure` and `revert`.

use std::path::{Path, PathBuf};

use super::{print, print_json};
use crate::config::Config;
use crate::runtimes::report::{Checked, Report};
use crate::runtimes::{HostRuntimes, Reverted, Target};
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::privileges;
use longshore_runtimes::{Edit, Runtime, State, difference, docker};

/// Arguments of `runtime`.
#[derive(Debug, Clone, clap::Subcommand)]
pub(super) enum RuntimeCommand {
    /// Check that the container runtimes of this host read CDI specs; change nothing
    Check {
        /// docker, containerd, crio or podman; by default all that this host has
        #[arg(value_name = "RUNTIME", value_parser = named)]
        runtimes: Vec<Runtime>,
        /// Configuration of the runtime, if it is not the usual file
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print the answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Let container runtimes read CDI specs; shows the edit, and makes it with --yes
    Configure {
        /// docker, containerd, crio or podman
        #[arg(required = true, value_name = "RUNTIME", value_parser = named)]
        runtimes: Vec<Runtime>,
        /// Configuration of the runtime, if it is not the usual file
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Make the edit
        #[arg(long)]
        yes: bool,
        /// Show the edit alone, and end with 0
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        /// Restart the runtime after the edit, or after an earlier edit since which it was not restarted
        #[arg(long, requires = "yes")]
        restart: bool,
    },
    /// Put back the configuration as it was before configure, byte for byte
    Revert {
        /// docker or containerd
        #[arg(required = true, value_name = "RUNTIME", value_parser = named)]
        runtimes: Vec<Runtime>,
        /// Lose edits that were made since
        #[arg(long)]
        force: bool,
        /// Restart the runtime afterwards, or after an earlier edit since which it was not restarted
        #[arg(long)]
        restart: bool,
    },
}

/// Consent to an edit.
#[derive(Debug, Clone, Copy)]
struct Consent {
    yes: bool,
    dry_run: bool,
    restart: bool,
}

fn named(name: &str) -> Result<Runtime, &'static str> {
    let found = Runtime::ALL.into_iter().find(|runtime| runtime.name() == name);
    found.ok_or("not one of docker, containerd, crio, podman")
}

/// Carries out the command on a thread that may change the host's root.
///
/// # Errors
/// Exit code 19 where a runtime does not read CDI specs, or its configuration is not edited or put back.
pub(super) async fn runtime(config: &Config, asked: RuntimeCommand) -> Result<ExitCode, Failure> {
    let host = HostRuntimes::open(config)?;
    let done = privileges::run_privileged(move || carry_out(&host, asked)).await;
    done.or_fail(FailureKind::Bug, || "asking the container runtimes")?
}

fn carry_out(host: &HostRuntimes, asked: RuntimeCommand) -> Result<ExitCode, Failure> {
    match asked {
        RuntimeCommand::Check { runtimes, file, json } => {
            one_file(&runtimes, file.as_ref())?;
            check(host, runtimes, file.as_deref(), json)
        }
        RuntimeCommand::Configure { runtimes, file, yes, dry_run, restart } => {
            one_file(&runtimes, file.as_ref())?;
            let consent = Consent { yes, dry_run, restart };
            each(&runtimes, |runtime| configure(host, runtime, file.as_deref(), consent))
        }
        RuntimeCommand::Revert { runtimes, force, restart } => {
            each(&runtimes, |runtime| revert(host, runtime, force, restart))
        }
    }
}

fn one_file(runtimes: &[Runtime], file: Option<&PathBuf>) -> Result<(), Failure> {
    let is_fit = |runtime: &Runtime| matches!(runtime, Runtime::Docker | Runtime::Containerd);
    match file {
        Some(path)
            if !path.is_absolute() || runtimes.len() != 1 || !runtimes.iter().all(is_fit) =>
        {
            let cause =
                "--file goes with one RUNTIME, docker or containerd, and is an absolute path";
            Err(Failure::new(FailureKind::Usage, cause))
        }
        _ => Ok(()),
    }
}

fn each(
    runtimes: &[Runtime],
    act: impl Fn(Runtime) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    runtimes.iter().try_for_each(|runtime| act(*runtime)).map(|()| ExitCode::Done)
}

fn check(
    host: &HostRuntimes,
    runtimes: Vec<Runtime>,
    file: Option<&Path>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let targets: Vec<Target> = match (runtimes.first(), file) {
        (None, _) => host.found(),
        (Some(runtime), Some(_)) => vec![host.target(*runtime, file)?],
        (Some(_), None) => {
            runtimes.into_iter().flat_map(|runtime| host.of_runtime(runtime)).collect()
        }
    };
    let checked: Vec<Checked> = targets.into_iter().map(|target| assessed(host, target)).collect();
    let failure = match checked.iter().find(|one| !one.assessment.state.is_well()) {
        Some(one) => Some(one.failure()),
        None if checked.is_empty() => {
            let cause = "this host has none of docker, containerd, CRI-O and podman, also not those of k3s, \
                         RKE2, k0s, microk8s and docker's snap";
            let remedy = "install one, or set host-root to the host's file system";
            Some(Failure::new(FailureKind::Runtime, cause).remedy(remedy))
        }
        None => None,
    };
    match json {
        true => print_json(&Report::from_checked(&checked))?,
        false => print(&checked.iter().map(Checked::line).collect::<String>())?,
    }
    failure.map_or(Ok(ExitCode::Done), Err)
}

fn assessed(host: &HostRuntimes, target: Target) -> Checked {
    let assessment = host.assess(&target);
    Checked { target, assessment }
}

fn configure(
    host: &HostRuntimes,
    runtime: Runtime,
    file: Option<&Path>,
    consent: Consent,
) -> Result<(), Failure> {
    let checked = assessed(host, host.target(runtime, file)?);
    let Checked { target, assessment } = &checked;
    host.check_is_hosts(runtime, target.edited_path(assessment))?;
    let edit = match (&assessment.state, assessment.state.edit()) {
        (_, Some(edit)) => edit,
        (State::On { .. }, None) if consent.restart => {
            print(&checked.line())?;
            let pending = host.pending_restarts(runtime)?;
            let here = pending.into_iter().filter(|one| one.restart == target.restart);
            return restart_all(host, runtime, &here.collect::<Vec<_>>());
        }
        (state, None) if state.is_well() => return print(&checked.line()),
        _ => return Err(checked.failure()),
    };
    let path = edit.path.to_string_lossy();
    print(&difference(&path, edit.before.as_deref(), Some(&edit.after)))?;
    match consent {
        Consent { dry_run: true, .. } => Ok(()),
        Consent { yes: true, restart, .. } => {
            host.configure(target, edit)?;
            tracing::info!("{path} is edited; `longshore runtime revert {runtime}` puts it back");
            follow_up(host, target, restart, &effect(runtime, edit))
        }
        _ => Err(Failure::new(
            FailureKind::Runtime,
            format!("{path} was not edited: --yes is missing"),
        )
        .remedy("repeat the command with --yes, or with --dry-run to see the difference alone")),
    }
}

fn revert(
    host: &HostRuntimes,
    runtime: Runtime,
    force: bool,
    restart: bool,
) -> Result<(), Failure> {
    match host.revert(runtime, force)? {
        Reverted::Restored { path, difference } => {
            print(&difference)?;
            let target = host.target(runtime, Some(&path))?;
            return follow_up(host, &target, restart, usual_effect(runtime));
        }
        Reverted::AsBefore => {
            print(&format!("{runtime}: its configuration is as it was before\n"))?;
        }
        Reverted::Nothing => print(&format!("{runtime}: longshore has configured nothing\n"))?,
    }
    match restart {
        true => restart_all(host, runtime, &host.pending_restarts(runtime)?),
        false => Ok(()),
    }
}

/// Restarts those whose configuration was changed since they were restarted.
fn restart_all(host: &HostRuntimes, runtime: Runtime, pending: &[Target]) -> Result<(), Failure> {
    if pending.is_empty() {
        return print(&format!("{runtime}: no edit of longshore's waits for a restart\n"));
    }
    pending.iter().try_for_each(|target| host.restart(target))
}

/// Restarts the runtime if that was asked for, and else names the command and its effect.
fn follow_up(
    host: &HostRuntimes,
    target: &Target,
    restart: bool,
    effect: &str,
) -> Result<(), Failure> {
    let Some(command) = target.restart.command() else { return Ok(()) };
    if restart {
        return host.restart(target);
    }
    print(&format!("{} reads it when it starts: `{command}` ({effect})\n", target.runtime()))
}

fn effect(runtime: Runtime, edit: &Edit) -> String {
    match runtime {
        Runtime::Docker if docker::keeps_containers(&edit.after) => {
            "its containers go on, by live-restore".to_owned()
        }
        _ => usual_effect(runtime).to_owned(),
    }
}

fn usual_effect(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Docker => "which stops its running containers, unless live-restore is set",
        _ => "its running containers go on",
    }
}
