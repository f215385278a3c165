//! `build`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kernel_matrix::build_run::BuildRun;
use kernel_matrix::build_run::log::RunLog;
use kernel_matrix::build_run::results;
use kernel_matrix::cache::Cache;
use kernel_matrix::ending::Ending;
use kernel_matrix::error::Error;
use kernel_matrix::matrix::Supply;
use kernel_matrix::process;
use kernel_matrix::results::seal::RESULTS_KEY;
use kernel_matrix::results::{
    AgentUsed, CellResult, Digest, Key, Line, Machine, Results, Run, Verdict,
};
use kernel_matrix::rules::filter;
use kernel_matrix::rules::lock::Lock;
use kernel_matrix::rules::{Cell, Rules};

use super::{LockFile, Selection};
use crate::print;

/// Time limit of a build: a slow machine's, with the download of a toolchain.
const LIMIT: Duration = Duration::from_secs(3600);
/// Bytes of a run's nonce.
const NONCE: usize = 16;

/// Options of `build`.
#[derive(Debug, clap::Args)]
pub(crate) struct Build {
    #[command(flatten)]
    selection: Selection,
    /// Rules; by default kernel-matrix/rules.toml.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    lock: LockFile,
    /// Use the packages of the lock file as they are; otherwise it is written anew first.
    #[arg(long)]
    locked: bool,
    /// Continue the run in this directory that was ended early, with the same packages and cells.
    #[arg(long, requires = "locked")]
    resume: bool,
    /// Number of cells compiled at a time. One compile uses all processors.
    #[arg(long, default_value = "1")]
    jobs: NonZeroUsize,
    /// Directory of results.json, the log of the run and the cells' logs; by default one in the cache.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// longshore program; by default that of `cargo build --release` in this checkout.
    #[arg(long, value_name = "FILE")]
    longshore: Option<PathBuf>,
}

/// A run over the rules that is going on.
struct Going<'a> {
    builds: BuildRun<'a>,
    log: Mutex<(RunLog, Vec<CellResult>)>,
    ending: &'a Ending,
}

/// Compiles the selected cells. True if each has a verdict, and none is a fault.
pub(crate) fn build(options: &Build, ending: &Ending) -> Result<bool, Error> {
    let cache = Cache::of_user()?;
    let rules = Rules::read(super::rules_path(options.rules.as_deref()))?;
    let lock = lock(options, &cache, &rules)?;
    let Selection { filters, shard } = &options.selection;
    let planned = filter::select(&rules.cells, filters, None, Some(&lock))?;
    let mut cells = filter::select(&rules.cells, filters, *shard, Some(&lock))?;
    let count = cells.len();
    let names: Vec<Line> = cells.iter().map(|cell| Line::new(&cell.name)).collect();
    let program = program(options.longshore.as_deref())?;
    let dir = options.out.clone().unwrap_or_else(|| cache.dir("build"));
    let began = run(&lock, options, &program)?;
    let path = dir.join("run.jsonl");
    let (log, run, done) = if options.resume {
        RunLog::resume(&path, &began, &names)?
    } else {
        (RunLog::begin(&path, &began, names)?, began, Vec::new())
    };
    cells.retain(|cell| !done.iter().any(|result| result.name.as_str() == cell.name));
    if options.resume {
        print(&format!("resuming run {}: {} cells are done", run.id, done.len()));
    }
    let store = cache.dir(Supply::Archive.store());
    let builds =
        BuildRun { lock: &lock, program: &program, store: &store, dir: &dir, limit: LIMIT };
    let going = Going { builds, log: Mutex::new((log, done)), ending };
    going.all(&cells, options.jobs)?;
    let (_, done) = going.log.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut results = results::results(&rules, &lock, run, &planned, done);
    results.run.complete = results.cells.len() == count;
    results.run.ended = Timestamp::now();
    write(&mut results, &cache, &dir)?;
    let is_fault =
        |cell: &CellResult| matches!(cell.verdict, Verdict::Faulty { .. } | Verdict::NotRun { .. });
    Ok(results.run.complete && !results.cells.iter().any(is_fault))
}

fn lock(options: &Build, cache: &Cache, rules: &Rules) -> Result<Lock, Error> {
    let path = options.lock.path(cache);
    if options.locked { Lock::read(&path) } else { super::resolve::resolved(cache, rules, &path) }
}

fn write(results: &mut Results, cache: &Cache, dir: &Path) -> Result<(), Error> {
    let path = dir.join("results.json");
    results.write(&path, &Key::of(&cache.dir(RESULTS_KEY))?)?;
    let state = if results.run.complete { "" } else { "; the run is not complete" };
    print(&format!("{}{state}", results::summary(&results.cells)));
    print(&format!("written to {}", path.display()));
    Ok(())
}

/// Returns the run that begins now.
fn run(lock: &Lock, options: &Build, program: &Path) -> Result<Run, Error> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce)
        .map_err(|e| Error::Unexpected(format!("no random numbers for a run: {e}")))?;
    let nonce = longshore_core::digest::hex(&nonce);
    let began = Timestamp::now();
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).get();
    let version = process::run(Command::new(program).arg("--version"), process::LIMIT)?;
    Ok(Run {
        id: Line::new(&format!("{}-{}", began.strftime("%Y%m%dT%H%M%SZ"), &nonce[..8])),
        nonce: Line::new(&nonce),
        began,
        ended: began,
        complete: false,
        machine: Machine {
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            qemu: Line::default(),
            backend: Line::default(),
        },
        agent: AgentUsed { version: Line::new(&version.join(" ")), image: None },
        lock: Some(Digest::try_from(lock.digest()?).map_err(Error::Unexpected)?),
        shard: options.selection.shard,
    })
}

/// Returns the longshore program.
fn program(given: Option<&Path>) -> Result<PathBuf, Error> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/longshore");
    let program = given.map_or(own, Path::to_path_buf);
    if program.is_file() {
        return Ok(program);
    }
    let what = "compile it by `cargo build --release -p longshore`, or name it by --longshore";
    Err(Error::Matrix(format!("there is no program {}: {what}", program.display())))
}

impl Going<'_> {
    /// Compiles cells, `jobs` at a time, until all are done or a signal comes.
    fn all(&self, cells: &[&Cell], jobs: NonZeroUsize) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..jobs.get().min(cells.len()) {
                scope.spawn(|| {
                    while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.one(cell) {
                            next.store(cells.len(), Ordering::Relaxed);
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        }
                    }
                });
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn one(&self, cell: &Cell) -> Result<(), Error> {
        if self.ending.signal().is_some() {
            return Ok(());
        }
        let result = self.builds.build(cell)?;
        // A build that the signal ended has no verdict.
        if self.ending.signal().is_some() {
            return Ok(());
        }
        let mut held = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, done) = &mut *held;
        log.add(&result)?;
        let seconds = result.times.total_ms() / 1000;
        print(&format!("{:48} {seconds:4} s {}", cell.name, results::one_line(&result.verdict)));
        done.push(result);
        Ok(())
    }
}
