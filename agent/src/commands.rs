//! The commands: what a person or a pod spec asks for, handed to the rooms that do it.

mod registry;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::config::{self, Config, Fragment};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::lifecycle;
use crate::supplier::Supplier;

/// Puts an NVIDIA driver on a host from a container, and takes it off again.
#[derive(Debug, Parser)]
#[command(name = "longshore", version, about)]
pub struct Cli {
    /// Settings from flags.
    #[command(flatten)]
    settings: Fragment,
    /// How the log is written; pretty on a terminal, JSON elsewhere
    #[arg(long, global = true, value_enum, env = "LONGSHORE_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install the driver, stay until SIGTERM, and take it off again
    #[command(alias = "init")]
    Run,
    /// Show what run would do on this host, and why
    Plan {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Compile the driver's modules for any kernel into the store
    Build {
        /// Kernel release as uname -r gives it; this host's where absent
        #[arg(long, value_name = "RELEASE")]
        kernel: Option<String>,
        /// Also write the modules to this directory as an OCI image layout
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Sign what goes into the layout with this key: a cosign.key, its password in
        /// COSIGN_PASSWORD
        #[arg(long, value_name = "FILE", requires = "out")]
        sign_key: Option<PathBuf>,
        /// Compile even where the same failed a short while ago
        #[arg(long)]
        retry: bool,
    },
    /// Put built modules into an OCI registry, and sign them
    Push(registry::Push),
    /// Verify the signature of modules in an OCI registry or image layout
    Verify(registry::Verify),
    /// Make a key pair to sign with, as cosign makes them
    GenerateKeyPair(registry::GenerateKeyPair),
    /// Bring everything a host needs into the store and install nothing
    Fetch {
        /// Kernel release as uname -r gives it; this host's where absent
        #[arg(long, value_name = "RELEASE")]
        kernel: Option<String>,
    },
    /// Take off what an agent that has ended left on the host
    Unload,
    /// Show what is on the host and what the agent is at
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Carries out a command line.
///
/// # Errors
/// The failure to report and exit with.
pub fn execute(cli: Cli) -> Result<ExitCode, Failure> {
    start_log(cli.log_format);
    let env = |name: &str| std::env::var(name).ok();
    let config = config::load(cli.settings, &env, Some(Path::new(config::DEFAULT_FILE)))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .or_fail(ExitCode::Bug, || "starting the runtime")?;
    let result = runtime.block_on(dispatch(cli.command, &config));
    // What was cancelled may have left a thread unpacking or hashing: the exit does not wait for it.
    runtime.shutdown_background();
    result
}

async fn dispatch(command: Command, config: &Config) -> Result<ExitCode, Failure> {
    match command {
        Command::Run => lifecycle::run(config, &Supplier::new(config)).await,
        Command::Plan { json } => plan(config, json).await,
        Command::Build { kernel, out, sign_key, retry } => {
            build(config, kernel, out, sign_key, retry).await
        }
        Command::Push(push) => registry::push(config, push).await,
        Command::Verify(verify) => registry::verify(config, verify).await,
        Command::GenerateKeyPair(generate) => registry::generate_key_pair(&generate),
        Command::Fetch { kernel } => fetch(config, kernel).await,
        Command::Unload => lifecycle::unload(config).await,
        Command::Status { json } => status(config, json),
    }
}

async fn plan(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let (facts, plan) = Supplier::new(config).decide().await?;
    if json {
        print_json(&plan)?;
    } else {
        print(&crate::plan::render(&plan, &facts))?;
    }
    // The plan has already said why; a script sees the exit code `run` would end with.
    Ok(plan.refusal().map_or(ExitCode::Done, |failure| failure.code()))
}

async fn build(
    config: &Config,
    kernel: Option<String>,
    out: Option<PathBuf>,
    sign_key: Option<PathBuf>,
    retry: bool,
) -> Result<ExitCode, Failure> {
    let key = sign_key.as_deref().map(registry::secret_key).transpose()?;
    let supplier = Supplier::new(config).retrying(retry);
    let set = supplier.build(kernel.as_deref()).await?;
    if let Some(dir) = out {
        let manifest = crate::artifact::layout::export(&set, &supplier.store()?, &dir)?;
        if let Some(key) = &key {
            registry::sign_layout(&dir, &manifest, key)?;
        }
        print(&format!("{}@{manifest}\n", dir.display()))?;
    }
    print_json(&set)?;
    Ok(ExitCode::Done)
}

async fn fetch(config: &Config, kernel: Option<String>) -> Result<ExitCode, Failure> {
    let supplier = Supplier::new(config);
    let (set, tree) = supplier.fetch(kernel.as_deref()).await?;
    print(&format!(
        "driver {} ({}) for {}: {} modules, user-mode tree {}\n",
        set.key.driver_version,
        set.key.flavour,
        set.key.kernel_release,
        set.modules.len(),
        tree.root.display()
    ))?;
    Ok(ExitCode::Done)
}

fn status(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let report = lifecycle::status(config)?;
    if json {
        print_json(&report)?
    } else {
        print(&report.render())?
    }
    Ok(ExitCode::Done)
}

/// Prints a failure once, whole, on standard error.
pub fn report(failure: &Failure) {
    // Where standard error is closed nobody is left to tell; the exit code still says it.
    let _ = writeln!(std::io::stderr(), "{}", failure.report());
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .or_fail(ExitCode::Bug, || "writing the answer as JSON")?;
    print(&format!("{text}\n"))
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has seen enough: `longshore plan | head`.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.or_fail(ExitCode::Usage, || "writing to standard output"),
    }
}

fn start_log(format: Option<LogFormat>) {
    let filter =
        EnvFilter::try_from_env("LONGSHORE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match format.unwrap_or(if terminal { LogFormat::Pretty } else { LogFormat::Json }) {
        LogFormat::Pretty => builder.with_ansi(terminal).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_gpu_operator_says_init() {
        let cli = Cli::try_parse_from(["nvidia-driver", "init"]).expect("parses");
        assert!(matches!(cli.command, Command::Run));
    }
}
