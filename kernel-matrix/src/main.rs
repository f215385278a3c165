//! Boots real kernels with a simulated NVIDIA GPU and runs the longshore image in them.

mod commands;
#[cfg(test)]
mod pages;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use kernel_matrix::ending::Ending;
use longshore_lab::cell::Cell;
use longshore_lab::cell::guests::Guests;
use longshore_lab::guest::workbench::{Agent, Workbench};
use longshore_lab::host::cache::Cache;
use longshore_lab::host::checkout;
use longshore_lab::host::error::Error;
use longshore_lab::host::process;
use longshore_lab::judge::event::{Event, Outcome, Sink, What};
use longshore_lab::run::heartbeat::Heartbeat;
use longshore_lab::run::matrix::Matrix;
use longshore_lab::run::report::Report;
use longshore_lab::run::show::Detail;
use longshore_lab::scenarios;
use longshore_lab::vm::qemu;

/// Time limit for an optimised build of everything on a slow machine.
const IMAGE_LIMIT: Duration = Duration::from_secs(3600);

/// Boots real kernels with a simulated NVIDIA GPU and runs the longshore image in them.
#[derive(Debug, Parser)]
#[command(name = "kernel-matrix", version = longshore_core::program_version!().to_string())]
struct Line {
    /// File that declares longshore's test cells; by default lab/matrix.toml of the checkout that the working
    /// directory is in.
    #[arg(long, global = true, value_name = "FILE")]
    matrix: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists longshore's test cells, or with --rules or filters those of the matrix of kernels and drivers.
    List(commands::List),
    /// Looks up every kernel and driver of the rules in the archives, and writes a lock file.
    Resolve(commands::Resolve),
    /// Compiles cells of the rules, and explains each outcome. Exits with 1 unless every cell has a
    /// verdict that is no fault of the harness.
    Build(commands::Build),
    /// Runs cells, all of them if none is named. Exits with 1 unless every cell passed.
    Run(Run),
    /// Measures the times from start to Ready and from SIGTERM to exit in a cell's VM, beside
    /// modprobe and rmmod of the same files.
    Time {
        /// Name of the cell.
        #[arg(default_value = "bookworm-535-open")]
        cell: String,
        /// First measure the same in a VM whose clock counts instructions, 2 ns each.
        #[arg(long)]
        icount: bool,
        #[command(flatten)]
        vm: VmOptions,
    },
    /// Measures the idle agent's resource use in a cell's VM over five minutes without requests,
    /// and the time of its end beside rmmod.
    Rest {
        /// Name of the cell.
        #[arg(default_value = "bookworm-535-open")]
        cell: String,
        #[command(flatten)]
        vm: VmOptions,
    },
    /// Pushes the module sets of all cells that passed to an OCI registry. Exits with 1 unless the registry has every
    /// one of them.
    Push(commands::PushOptions),
    /// Writes the report on a run, of all its shards. Exits with 2 if results cannot be used.
    Report {
        #[command(flatten)]
        options: kernel_matrix::report::Options,
        #[command(flatten)]
        seal_key: commands::SealKey,
    },
    /// Boots a cell's VM with a shell on this terminal instead of its scenario; end it with
    /// `/run/matrix/busybox poweroff -f`, or Ctrl-A X.
    Shell {
        /// Name of the cell.
        cell: String,
        #[command(flatten)]
        vm: VmOptions,
    },
}

#[derive(Debug, clap::Args)]
struct VmOptions {
    /// OCI archive with the agent's image; by default scripts/image of the checkout makes it.
    #[arg(long, requires = "longshore")]
    image: Option<PathBuf>,
    /// longshore program for this machine, the same as in the image.
    #[arg(long, requires = "image")]
    longshore: Option<PathBuf>,
    #[command(flatten)]
    qemu: qemu::Options,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Names of cells; over rules filters: KEY=PATTERN.
    cells: Vec<String>,
    #[command(flatten)]
    over_rules: commands::OverRules,
    /// Run the core set: the cells that CI runs after every change.
    #[arg(long, conflicts_with = "cells")]
    core: bool,
    /// Write the results here as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Number of cells run at a time, by default the number of processors; each VM has one virtual
    /// CPU and 2 GiB of memory. Drivers are compiled one after the other.
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    vm: VmOptions,
    /// Show the guests' reports for people, and the agent's log.
    #[arg(long)]
    show: bool,
    /// Show the guests' consoles.
    #[arg(long)]
    console: bool,
}

impl Run {
    fn jobs(&self) -> NonZeroUsize {
        let processors = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.jobs.unwrap_or_else(processors)
    }
}

fn main() -> ExitCode {
    let line = Line::parse();
    let ending = match Ending::heed() {
        Ok(ending) => ending,
        Err(error) => {
            complain(&error);
            return ExitCode::from(2);
        }
    };
    let ended = go(line, &ending);
    if let Some(signal) = ending.signal() {
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain(&error);
            ExitCode::from(2)
        }
    }
}

fn go(line: Line, ending: &Ending) -> Result<bool, Error> {
    let Line { matrix, verb } = line;
    let matrix = || match &matrix {
        Some(path) => Matrix::read(path),
        None => Matrix::read(&checkout::file("lab/matrix.toml", "name yours by --matrix")?),
    };
    match verb {
        Verb::Report { options, seal_key } => report(&options, &seal_key),
        Verb::List(list) if list.is_of_rules() => commands::list(&list),
        Verb::List(_) => {
            for cell in &matrix()?.cells {
                print(&describe(cell));
            }
            Ok(true)
        }
        Verb::Resolve(options) => commands::resolve(&options),
        Verb::Build(options) => commands::build(&options, ending),
        Verb::Push(options) => commands::push(&options, ending),
        Verb::Run(options) => match options.over_rules.rules(&options.cells)? {
            Some(rules) => run_rules(&rules, matrix()?.guests(), &options, ending),
            None => run(matrix()?, &options, ending),
        },
        Verb::Time { cell, icount: true, vm } => {
            let count = longshore_lab::run::time_and_count;
            let [counted, timed] = alone(matrix()?, &cell, &vm, count)?;
            print(&counted.executed());
            print(&timed.table());
            Ok(true)
        }
        Verb::Time { cell, icount: false, vm } => {
            let timing = alone(matrix()?, &cell, &vm, longshore_lab::run::time)?;
            print(&timing.table());
            Ok(true)
        }
        Verb::Rest { cell, vm } => {
            let rest = alone(matrix()?, &cell, &vm, longshore_lab::run::rest)?;
            print(&rest.table());
            Ok(true)
        }
        Verb::Shell { cell, vm } => {
            alone(matrix()?, &cell, &vm, longshore_lab::run::shell).map(|()| true)
        }
    }
}

fn report(
    options: &kernel_matrix::report::Options,
    seal_key: &commands::SealKey,
) -> Result<bool, Error> {
    let key = seal_key.read(&Cache::of_user()?)?;
    let reported = kernel_matrix::report::report(options, Some(&key))?;
    print(&reported.summary);
    Ok(reported.is_good)
}

fn describe(cell: &Cell) -> String {
    let scenario = scenarios::named(&cell.scenario).map(|scenario| format!("{scenario:?}"));
    let gpus: Vec<String> = cell.gpus.iter().map(ToString::to_string).collect();
    format!(
        "{:40} {:4} {}: {} of {}, {} {} from {:?}, gpus [{}], exit {}",
        cell.name,
        if cell.core { "core" } else { "" },
        scenario.unwrap_or_default(),
        cell.kernel.package,
        cell.kernel.suite,
        cell.driver.branch,
        cell.driver.flavour,
        cell.from,
        gpus.join(", "),
        cell.exit
    )
}

/// Runs cells of rules, in the guests of matrix.toml.
fn run_rules(rules: &Path, guests: Guests, options: &Run, ending: &Ending) -> Result<bool, Error> {
    let detail = Detail { looks: options.show, console: options.console };
    let means = commands::Means {
        guests,
        agent: agent(&options.vm)?,
        qemu: options.vm.qemu.clone(),
        jobs: options.jobs(),
        detail: (detail != Detail::default()).then_some(detail),
        ending,
    };
    commands::run_rules(&options.over_rules, rules, &options.cells, means)
}

fn run(matrix: Matrix, options: &Run, ending: &Ending) -> Result<bool, Error> {
    let began = Instant::now();
    let chosen = if options.core { matrix.core() } else { matrix.select(&options.cells)? };
    let cells: Vec<Cell> = chosen.into_iter().cloned().collect();
    let cells: Vec<&Cell> = cells.iter().collect();
    let report = Mutex::new((Report::new(&cells), BTreeMap::new()));
    let heartbeat = options.show.then(|| Heartbeat::begin(print));
    let detail = Detail { looks: options.show, console: options.console };
    let take = |event: Event| {
        let mut held = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (report, starts): &mut (Report, BTreeMap<String, Instant>) = &mut held;
        let after = starts.entry(event.cell.clone()).or_insert_with(Instant::now).elapsed();
        let line = longshore_lab::run::show::line(&event, after, detail);
        if let Some(heartbeat) = &heartbeat {
            heartbeat.take(&event, line.as_deref());
        }
        if let Some(line) = line {
            print(&line);
        }
        report.take(&event, after);
    };
    match open(matrix.guests(), &cells, &options.vm) {
        Ok(workbench) => {
            let workbench = Mutex::new(workbench);
            commands::in_parallel(&cells, options.jobs(), |cell| {
                if ending.signal().is_none() {
                    longshore_lab::run::run(cell, &workbench, &Sink::new(&cell.name, &take));
                }
                Ok(())
            })?;
        }
        Err(error) => cells.iter().for_each(|cell| {
            let outcome = Outcome::NotRun(error.to_string());
            Sink::new(&cell.name, &take).tell(What::Verdict(outcome));
        }),
    }
    let (mut report, _) = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.finish(began.elapsed());
    print(&report.table());
    if let Some(path) = &options.json {
        report.write(path)?;
    }
    Ok(report.is_good())
}

/// Runs `act` on one cell, and shows its events meanwhile.
fn alone<T>(
    matrix: Matrix,
    name: &str,
    options: &VmOptions,
    act: impl FnOnce(&Cell, Workbench, &Sink<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let cell = matrix.select(&[name.to_owned()])?[0].clone();
    let workbench = open(matrix.guests(), &[&cell], options)?;
    let began = Instant::now();
    let take = |event: Event| {
        if let Some(line) =
            longshore_lab::run::show::line(&event, began.elapsed(), Detail::default())
        {
            print(&line);
        }
    };
    act(&cell, workbench, &Sink::new(name, &take))
}

fn open(guests: Guests, cells: &[&Cell], options: &VmOptions) -> Result<Workbench, Error> {
    let agent = agent(options)?;
    Workbench::open(Cache::of_user()?, guests, cells, agent, options.qemu.clone())
}

/// Returns the agent's image and program: those given, else the result of the checkout's
/// scripts/image.
fn agent(options: &VmOptions) -> Result<Agent, Error> {
    if let (Some(image), Some(program)) = (&options.image, &options.longshore) {
        return Ok(Agent { image: image.clone(), program: program.clone() });
    }
    let of_checkout =
        |path| checkout::file(path, "name image and program by --image and --longshore");
    let mut script = Command::new(of_checkout("scripts/image")?);
    process::run(script.arg("--release"), IMAGE_LIMIT)?;
    let [image, program] = ["out/image.tar", "target/release/longshore"].map(of_checkout);
    Ok(Agent { image: image?, program: program? })
}

#[allow(clippy::print_stdout)]
fn print(line: &str) {
    println!("{line}");
}

#[allow(clippy::print_stderr)]
fn complain(error: &Error) {
    let text = format!("kernel-matrix: {error}");
    // The error can contain output of a guest or a program.
    eprintln!("{}", longshore_core::sanitize::printable(&text));
}
