//! `runtime check`, `configure` and `revert`.

use std::path::{Path, PathBuf};

use super::print;
use crate::config::Config;
use crate::runtimes::{HostRuntimes, Reverted};
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::privileges;
use longshore_core::sanitize::in_line;
use longshore_runtimes::{Assessment, Edit, Runtime, State, difference, docker};

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
        RuntimeCommand::Check { runtimes, file } => {
            one_file(&runtimes, file.as_ref())?;
            check(host, runtimes, file)
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
    file: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let runtimes = if runtimes.is_empty() { host.found() } else { runtimes };
    if runtimes.is_empty() {
        let cause = "this host has none of docker, containerd, CRI-O and podman";
        return Err(Failure::new(FailureKind::Runtime, cause)
            .remedy("install one, or set host-root to the host's file system"));
    }
    let assess = |runtime| host.assess(runtime, file.as_deref());
    let assessed: Vec<Assessment> = runtimes.into_iter().map(assess).collect();
    print(&assessed.iter().map(line).collect::<String>())?;
    match assessed.iter().find(|assessment| !assessment.state.is_well()) {
        Some(assessment) => Err(failure(assessment)),
        None => Ok(ExitCode::Done),
    }
}

fn line(assessment: &Assessment) -> String {
    let word = match assessment.state {
        State::On { .. } => "on",
        State::Off { .. } => "off",
        State::Unused { .. } => "unused",
        State::Impossible { .. } => "no CDI",
        State::Refused { .. } => "unknown",
    };
    let name = assessment.version.map_or_else(
        || assessment.runtime.to_string(),
        |version| format!("{} {version}", assessment.runtime),
    );
    let mut text = format!("{name:<18}  {word:<7}  {}\n", in_line(assessment.state.reason()));
    for note in &assessment.notes {
        text.push_str(&format!("{:<18}  note     {}\n", "", in_line(note)));
    }
    text
}

fn failure(assessment: &Assessment) -> Failure {
    let Assessment { runtime, state, .. } = assessment;
    let remedy = match state {
        State::Impossible { remedy, .. } | State::Refused { remedy, .. } => remedy.clone(),
        _ => format!("`longshore runtime configure {runtime}` shows the edit"),
    };
    let cause = format!("{runtime} does not read CDI specs: {}", in_line(state.reason()));
    Failure::new(FailureKind::Runtime, cause).remedy(remedy)
}

fn configure(
    host: &HostRuntimes,
    runtime: Runtime,
    file: Option<&Path>,
    consent: Consent,
) -> Result<(), Failure> {
    host.check_is_hosts(runtime, file)?;
    let assessment = host.assess(runtime, file);
    let edit = match &assessment.state {
        State::Off { edit, .. } => edit,
        State::On { .. } if consent.restart => {
            print(&line(&assessment))?;
            return restart_pending(host, runtime);
        }
        state if state.is_well() => return print(&line(&assessment)),
        _ => return Err(failure(&assessment)),
    };
    let path = edit.path.to_string_lossy();
    print(&difference(&path, edit.before.as_deref(), Some(&edit.after)))?;
    match consent {
        Consent { dry_run: true, .. } => Ok(()),
        Consent { yes: true, restart, .. } => {
            host.configure(runtime, edit)?;
            tracing::info!("{path} is edited; `longshore runtime revert {runtime}` puts it back");
            follow_up(host, runtime, restart, &effect(runtime, edit))
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
        Reverted::Restored(difference) => {
            print(&difference)?;
            follow_up(host, runtime, restart, usual_effect(runtime))
        }
        Reverted::AsBefore => {
            print(&format!("{runtime}: its configuration is as it was before\n"))?;
            if restart { restart_pending(host, runtime) } else { Ok(()) }
        }
        Reverted::Nothing => {
            print(&format!("{runtime}: longshore has configured nothing\n"))?;
            if restart { restart_pending(host, runtime) } else { Ok(()) }
        }
    }
}

/// Restarts the runtime where it was not restarted since its configuration was changed.
fn restart_pending(host: &HostRuntimes, runtime: Runtime) -> Result<(), Failure> {
    match host.is_restart_pending(runtime)? {
        true => host.restart(runtime),
        false => print(&format!("{runtime}: no edit of longshore's waits for a restart\n")),
    }
}

/// Restarts the runtime if that was asked for, and else names the command and its effect.
fn follow_up(
    host: &HostRuntimes,
    runtime: Runtime,
    restart: bool,
    effect: &str,
) -> Result<(), Failure> {
    let Some(unit) = runtime.unit() else { return Ok(()) };
    if restart {
        return host.restart(runtime);
    }
    print(&format!("{runtime} reads it when it starts: `systemctl restart {unit}` ({effect})\n"))
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
