//! Commands of the command line, dispatched to the modules that implement them.

mod attest;
mod background;
mod build_root;
mod builder;
mod bundle;
pub mod called;
mod cdi;
mod configurations;
mod docker_args;
mod doctor;
mod environment;
mod evictor;
mod explain;
mod fleet;
mod help;
mod index;
mod list;
mod log_options;
mod output;
pub mod peermem;
mod plan;
mod registry;
mod runtime;
mod settings;
mod shell;
mod sign;
mod sign_modules;
mod status;
mod store_of_host;
mod supply;
mod upkeep;
mod usage;
mod verify;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use clap::{FromArgMatches, Parser, Subcommand};
use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, signal_name};
use signal_hook_tokio::Signals;

pub use called::Called;
pub use shell::complete_for_kubectl;
pub use usage::{is_wrong_usage, without_secrets, wrong_usage};

use self::configurations::Configurations;
use self::environment::{check_environment, check_unknown, env};
use self::log_options::LogFlags;
use self::output::{form, print, print_answer, print_json, put_out, verdict_of};
use self::peermem::SideCar;
use self::supply::{Layout, build, fetch, fetched};
use crate::build_lease::Claims;
use crate::cluster::{self, VersionUnknown};
use crate::config::{self, Config, Fragment, TerminationMessage};
use crate::fleet::DebugPods;
use crate::journal;
use crate::lifecycle::{self, signals};
use crate::logging::Log;
use crate::supplier::Provisioner;
use crate::support_table;
use crate::telemetry::Telemetry;
use crate::termination::TerminationRecord;
use longshore_core::environment::Env;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::kernel_id::is_release;
use longshore_core::program_version::ProgramVersion;
use longshore_core::small_stacks;

/// Installs an NVIDIA driver on a host from a container, and uninstalls it again.
#[derive(Debug, Parser)]
#[command(name = "longshore", version, about)]
pub struct Cli {
    /// Settings from flags.
    #[command(flatten)]
    settings: Fragment,
    /// Options of the log.
    #[command(flatten)]
    log: LogFlags,
    /// Command to run.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install the driver, stay until SIGTERM, and uninstall it
    #[command(alias = "init")]
    Run,
    /// Show what run would do on this host, and why
    Plan(plan::Plan),
    /// Report what prevents, or will prevent, an installation on this host
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    /// List the agent's settings, or show everything about one of them
    Settings(settings::Settings),
    /// Compile the driver's modules for any kernel into the store
    Build {
        /// Kernel release as uname -r gives it; by default this host's
        #[arg(long, value_name = "RELEASE", value_parser = release)]
        kernel: Option<String>,
        /// Also write the modules to this directory as an OCI image layout
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Sign the modules in the layout with this key: a cosign.key, its password in
        /// COSIGN_PASSWORD
        #[arg(long, value_name = "FILE", requires = "out")]
        sign_key: Option<PathBuf>,
        /// Attest the modules in the layout, too: provenance and a bill of materials, signed with the
        /// same key
        #[arg(long, requires = "sign_key")]
        attest: bool,
        /// Compile even where the same build failed a short while ago
        #[arg(long)]
        retry: bool,
        /// Compile nothing, and print the digest of everything that the outcome depends on
        #[arg(long, conflicts_with_all = ["out", "retry"])]
        print_inputs: bool,
    },
    /// Compile, sign and push the modules that a fleet's kernels need, until SIGTERM
    Builder(builder::Builder),
    /// List the kernels and compilers in a build root
    #[command(subcommand)]
    BuildRoot(build_root::BuildRootCommand),
    /// Sign built modules for kernels that require it (Secure Boot), here or elsewhere
    SignModules(sign_modules::SignModules),
    /// Push built modules to an OCI registry, sign and attest them
    Push(registry::Push),
    /// Sign a statement about modules in a registry or layout: a test's result
    Attest(attest::Attest),
    /// Sign an artifact in a registry or layout, or a file, as cosign does
    Sign(sign::Sign),
    /// Verify signature and attestations of modules in a registry or layout
    Verify(verify::Verify),
    /// List the module sets in an OCI registry that are for a kernel, or under a tag
    List(list::List),
    /// Write the signed list of a registry's current module sets, or show it
    Index(index::Index),
    /// Download or compile everything a host needs into the store, and install nothing
    Fetch {
        /// Kernel release as uname -r gives it; by default this host's (repeatable)
        #[arg(long = "kernel", value_name = "RELEASE", value_parser = release)]
        kernels: Vec<String>,
        /// At the lowest priority, and no longer than the process lives that started this one
        #[arg(long, hide = true)]
        background: bool,
    },
    /// Write everything a driver needs into one file, for hosts without a network
    Bundle(bundle::Bundle),
    /// Import a bundle into the store
    Import(bundle::Import),
    /// Remove what is no longer needed from the store
    Gc(upkeep::Gc),
    /// Check the store
    #[command(subcommand)]
    Store(upkeep::StoreCommand),
    /// Uninstall what an agent that has ended left on the host
    Unload {
        /// Then undo a record that no seal proves, of an agent whose store is lost: root in a container
        /// can have written it
        #[arg(long)]
        take_over_unsealed: bool,
    },
    /// Show what is installed on the host, and what the agent is doing
    Status(status::Status),
    /// Show the driver on all nodes of a Kubernetes cluster, by kubectl or in a pod
    #[command(subcommand)]
    Fleet(fleet::FleetCommand),
    /// Cordon nodes and evict pods at the agents' request, in a pod of a cluster
    Evictor(evictor::EvictorArgs),
    /// Show the GPUs that container runtimes can give to containers (CDI)
    #[command(subcommand)]
    Cdi(cdi::Cdi),
    /// Let container runtimes (docker, containerd) read CDI specs
    #[command(subcommand)]
    Runtime(runtime::RuntimeCommand),
    /// Print options of `docker run` for GPUs, for docker before 25 without CDI
    DockerArgs(docker_args::DockerArgs),
    /// Print the completions of commands and options for a shell
    Completions(shell::Completions),
    /// Write manual pages
    Man(shell::Man),
}

/// End of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    /// Exited with this code.
    Code(ExitCode),
    /// Stopped by this signal; unfinished work was removed.
    Stopped(i32),
}

/// Time limit for the threads of stopped work, which remove their unfinished files. The next build
/// removes what they cannot remove in that time.
const CLEANING: Duration = Duration::from_secs(3);

/// Time limit for telling other hosts, at the end, that nothing is compiled for them here.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// Parses a command line, the program's name first. `version` is the answer to `--version`.
///
/// # Errors
/// A wrong command line, or a page that it asks for.
pub fn parse(line: Vec<OsString>, version: ProgramVersion) -> Result<Cli, clap::Error> {
    let mut command = help::command_line(version.to_string());
    let mut matches = command.try_get_matches_from_mut(line)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Runs a command that needs neither a host nor a configuration; None for another one.
fn without_configuration(
    command: &Command,
    version: ProgramVersion,
) -> Option<Result<ExitCode, Failure>> {
    match command {
        Command::Explain(asked) => Some(explain::explain(asked)),
        Command::Settings(asked) => Some(settings::settings(asked)),
        Command::Completions(asked) => Some(shell::completions(asked)),
        Command::Man(asked) => Some(shell::man(asked, version)),
        _ => None,
    }
}

/// Runs a command line.
///
/// # Errors
/// The failure to report and exit with.
pub fn execute(
    cli: Cli,
    version: ProgramVersion,
    termination: &TerminationRecord,
    log: &Log,
) -> Result<CommandOutcome, Failure> {
    if matches!(cli.command, Command::Run) {
        termination.leave_message(usual_message(&cli.settings));
    }
    let asked = RefCell::new(BTreeSet::new());
    let env = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        std::env::var(name).ok()
    };
    log.fix_format(cli.log.format(), &env)?;
    // A wrong configuration is what may have to be explained: none is read.
    if let Some(ended) = without_configuration(&cli.command, version) {
        return ended.map(CommandOutcome::Code);
    }
    if let Command::Status(asked) = &cli.command
        && let Some(ended) = status::at_once(&cli.settings, &env, asked)
    {
        return ended.map(CommandOutcome::Code);
    }
    if let Command::Builder(asked) = &cli.command
        && let Some(ended) = builder::at_once(&cli.settings, &env, asked)
    {
        return ended.map(CommandOutcome::Code);
    }
    check_environment()?;
    log.start(cli.log.volume(), &env)?;
    let flags = cli.settings;
    let mut config = load(&flags, &env)?;
    check_unknown(&asked.into_inner())?;
    let telemetry = Telemetry::logged(log.about());
    if matches!(cli.command, Command::Run) {
        termination.leave_message(config.termination_message.clone());
    }
    if matches!(cli.command, Command::Fetch { background: true, .. }) {
        background::begin()?;
    }
    config.store_place = store_of_host::prepare(&cli.command, &config)?;
    if reads_record(&cli.command) && !config.paths.is_captured() {
        journal::warn_of_passed_over(&config.paths);
    }
    match cli.command {
        Command::Run | Command::Unload { .. } => termination.keep_record(&config, &telemetry),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_stack_size(small_stacks::STACK)
        .enable_all()
        .build()
        .or_fail(FailureKind::Preflight, || "starting threads")
        .map_err(|failure| {
            failure.remedy("raise the limits on open files and processes (ulimit)")
        })?;
    if chooses_driver(&cli.command) {
        let is_kept = matches!(cli.command, Command::Run);
        if !is_kept {
            // A command that looks dies by a signal while it fetches the table.
            signals::release();
        }
        config = runtime.block_on(support_table::settled(config, is_kept))?;
    }
    // `run` asks itself: it waits for an API server that does not answer.
    if matches!(cli.command, Command::Plan(_)) && !config.driver.is_named {
        let of_pod = runtime.block_on(image_version(&config));
        config.take_image_version(of_pod.map_err(VersionUnknown::into_failure)?);
    }
    let claims = Claims::default();
    let (log, termination) = (log.clone(), termination.clone());
    // The thread below cannot return in that case: this closure reports the failure and ends the
    // process.
    let stuck = move |failure: &Failure| {
        log.report(failure);
        termination.write(failure);
        std::process::exit(failure.code().number().into());
    };
    let result = runtime.block_on(async {
        let result = dispatch(cli.command, flags, &config, &telemetry, &claims, stuck).await;
        claims.all_released(RELEASE_LIMIT).await;
        result
    });
    // Cancelled work may have left a thread that unpacks or hashes.
    runtime.shutdown_timeout(CLEANING);
    result
}

/// True for a command by which a person inspects the host, or that keeps what a record names. Those that
/// open the record for changes warn themselves.
fn reads_record(command: &Command) -> bool {
    match command {
        Command::Status(asked) => !asked.is_probe(),
        Command::Plan(_) | Command::Doctor(_) | Command::Gc(_) => true,
        _ => false,
    }
}

/// True for a command that chooses a driver, or shows the choice: it needs the support table and this host's GPUs.
fn chooses_driver(command: &Command) -> bool {
    matches!(
        command,
        Command::Run
            | Command::Plan(_)
            | Command::Doctor(_)
            | Command::Build { .. }
            | Command::Builder(_)
            | Command::Fetch { .. }
            | Command::Bundle(_)
    )
}

/// Reads the current configuration.
fn load(flags: &Fragment, env: Env<'_>) -> Result<Config, Failure> {
    config::load(flags.clone(), env, Some(&config::usual_file()))
}

/// Asks the cluster for the version in the tag of the own pod's image.
async fn image_version(config: &Config) -> Result<Option<String>, VersionUnknown> {
    let asked = cluster::driver_version(&env, config.operator.enabled);
    asked.await
}

async fn dispatch(
    command: Command,
    flags: Fragment,
    config: &Config,
    telemetry: &Telemetry,
    claims: &Claims,
    stuck: impl FnOnce(&Failure) + Send + 'static,
) -> Result<CommandOutcome, Failure> {
    if !matches!(command, Command::Run) {
        // All other commands die by a signal as usual; `run` keeps its handlers.
        signals::release();
    }
    match command {
        Command::Run => {
            let configurations = Configurations::new(flags, config, telemetry, claims);
            let fetch = background::fetch_command()?;
            let run = lifecycle::run(config.clone(), configurations, telemetry, fetch, stuck);
            let ended = run.await;
            ended.map(CommandOutcome::Code)
        }
        Command::Plan(asked) => stoppable(plan::plan(config, asked)).await,
        Command::Explain(_) | Command::Settings(_) | Command::Completions(_) | Command::Man(_) => {
            Err(Failure::new(FailureKind::Bug, "a command without a configuration got one"))
        }
        Command::Doctor(asked) => stoppable(doctor::doctor(config, asked)).await,
        Command::Build { kernel, print_inputs: true, .. } => {
            stoppable(supply::print_inputs(&Provisioner::new(config), kernel)).await
        }
        Command::Build { kernel, out, sign_key, attest, retry, .. } => {
            let provisioner = Provisioner::new(config).retrying(retry).claiming(claims);
            let layout = out.map(|dir| Layout { dir, sign_key, attest });
            stoppable(build(config, &provisioner, kernel, layout)).await
        }
        Command::Builder(asked) => {
            let stays = asked.stays();
            match stoppable(builder::builder(config, telemetry, asked)).await {
                // A stop is how it ends.
                Ok(CommandOutcome::Stopped(_)) if stays => Ok(CommandOutcome::Code(ExitCode::Done)),
                ended => ended,
            }
        }
        Command::BuildRoot(asked) => stoppable(build_root::build_root(config, asked)).await,
        Command::SignModules(asked) => stoppable(sign_modules::sign_modules(config, asked)).await,
        Command::Push(push) => stoppable(registry::push(config, push)).await,
        Command::List(list) => stoppable(list::list(config, list)).await,
        Command::Index(asked) => stoppable(index::index(config, asked)).await,
        Command::Attest(asked) => stoppable(attest::attest(config, asked)).await,
        Command::Sign(asked) => stoppable(sign::sign(config, asked)).await,
        Command::Verify(asked) => stoppable(verify::verify(config, asked)).await,
        Command::Fetch { kernels, .. } => stoppable(fetch(config, claims, &kernels)).await,
        Command::Bundle(asked) => {
            let provisioner = Provisioner::new(config).claiming(claims);
            stoppable(bundle::bundle(&provisioner, asked)).await
        }
        Command::Import(asked) => stoppable(bundle::import(config, asked)).await,
        Command::Gc(asked) => stoppable(upkeep::gc(config, asked)).await,
        Command::Store(what) => stoppable(upkeep::of_store(config, what)).await,
        Command::Unload { take_over_unsealed } => {
            let unloaded = lifecycle::unload(config, take_over_unsealed, telemetry).await;
            unloaded.map(CommandOutcome::Code)
        }
        Command::Status(asked) => stoppable(status::status(config, asked)).await,
        Command::Fleet(asked) => {
            let pods = DebugPods::default();
            let ended =
                stoppable_by(&[SIGTERM, SIGINT, SIGHUP], fleet::fleet(&flags, asked, &pods)).await;
            // Also after a signal.
            pods.delete().await;
            ended
        }
        Command::Evictor(asked) => evictor::evictor(config, asked).await,
        Command::Cdi(asked) => cdi::cdi(config, &asked).map(CommandOutcome::Code),
        Command::Runtime(asked) => runtime::runtime(config, asked).await.map(CommandOutcome::Code),
        Command::DockerArgs(asked) => {
            docker_args::docker_args(config, &asked).map(CommandOutcome::Code)
        }
    }
}

/// Runs `work`, which changes only the store, until it ends or SIGTERM or SIGINT cancels it.
async fn stoppable(
    work: impl Future<Output = Result<ExitCode, Failure>>,
) -> Result<CommandOutcome, Failure> {
    stoppable_by(&[SIGTERM, SIGINT], work).await
}

/// As [`stoppable`], with other signals. One that is ignored, as SIGHUP below nohup(1), stays ignored.
async fn stoppable_by(
    signals: &[i32],
    work: impl Future<Output = Result<ExitCode, Failure>>,
) -> Result<CommandOutcome, Failure> {
    let signals = signals.iter().filter(|signal| !signals::is_ignored(**signal));
    let mut signals =
        Signals::new(signals).or_fail(FailureKind::Bug, || "setting signal handlers")?;
    tokio::select! {
        biased;
        Some(signal) = signals.next() => {
            let name = signal_name(signal).unwrap_or("a signal");
            tracing::warn!("{name}: stopped; unfinished work is removed");
            Ok(CommandOutcome::Stopped(signal))
        }
        ended = work => ended.map(CommandOutcome::Code),
    }
}

/// Ends this process by the signal that stopped it, so that its parent sees that; returns the exit
/// code where the signal does not end it.
pub fn end_by(signal: i32) -> u8 {
    // Process 1 would abort: the kernel does not deliver signals without a handler to it.
    if std::process::id() != 1 {
        // Returns only on failure.
        let _ = emulate_default_handler(signal);
    }
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Parses a kernel release.
fn release(text: &str) -> Result<String, &'static str> {
    match is_release(text) {
        true => Ok(text.to_owned()),
        false => Err("not a kernel release as uname -r gives it, for example 6.1.0-50-amd64"),
    }
}

/// Runs a command of the operator's side container.
///
/// # Errors
/// The failure to report and exit with.
pub fn execute_side_car(command: SideCar, log: &Log) -> Result<ExitCode, Failure> {
    log.fix_format(None, &env)?;
    log.start(None, &env)?;
    command.run()
}

/// Returns the termination message's path from a flag or the environment alone, for failures before
/// the configuration is read.
fn usual_message(settings: &Fragment) -> Option<PathBuf> {
    let of_environment = || std::env::var("LONGSHORE_TERMINATION_MESSAGE").ok()?.parse().ok();
    let given = settings.termination_message.clone().or_else(of_environment);
    TerminationMessage::path_of(given.as_ref())
}

/// Sets the termination message and failure record for an agent that was started as a child of this
/// process.
pub fn prepare_termination_record(termination: &TerminationRecord) {
    let Ok(Called::Longshore(line)) = Called::by(std::env::args_os()) else { return };
    let Ok(cli) = Cli::try_parse_from(line) else { return };
    if !matches!(cli.command, Command::Run) {
        return;
    }
    termination.leave_message(usual_message(&cli.settings));
    let config = config::load(cli.settings, &env, Some(&config::usual_file()));
    if let Ok(config) = config {
        termination.leave_message(config.termination_message.clone());
        termination.keep_record(&config, &Telemetry::default());
    }
}

#[cfg(test)]
mod pages;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    /// clap would confuse the two, and panic where their types differ.
    #[test]
    fn no_command_has_an_argument_with_the_id_of_a_setting() {
        use clap::CommandFactory;
        let cli = Cli::command();
        let settings: BTreeSet<_> = cli.get_arguments().map(|argument| argument.get_id()).collect();
        for command in cli.get_subcommands() {
            for argument in command.get_arguments() {
                let (name, id) = (command.get_name(), argument.get_id());
                assert!(!settings.contains(id), "{name}: {id}");
            }
        }
    }

    #[test]
    fn a_fleet_s_plan_takes_the_driver_of_the_settings() {
        let words = ["longshore", "fleet", "plan", "--driver", "550", "--context", "test"];
        let cli = Cli::try_parse_from(words).expect("parses");
        assert_eq!(cli.settings.driver.as_ref().and_then(|d| d.version()), Some("550"));
        assert!(matches!(cli.command, Command::Fleet(fleet::FleetCommand::Plan { .. })));
    }

    #[test]
    fn the_gpu_operator_says_init() {
        let cli = Cli::try_parse_from(["nvidia-driver", "init"]).expect("parses");
        assert!(matches!(cli.command, Command::Run));
    }
}
