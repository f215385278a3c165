//! `build`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kernel_matrix::build_run::BuildRun;
use kernel_matrix::build_run::log::{RESULTS, RunLog};
use kernel_matrix::build_run::results;
use kernel_matrix::ending::Ending;
use kernel_matrix::results::{
    AgentUsed, CellResult, Digest, Key, Line, Machine, Results, Run, Shard,
};
use kernel_matrix::reuse::kept;
use kernel_matrix::rules::filter;
use kernel_matrix::rules::lock::Lock;
use kernel_matrix::rules::{Cell, Rules};
use longshore_lab::cell::supply::Supply;
use longshore_lab::host::cache::Cache;
use longshore_lab::host::checkout;
use longshore_lab::host::error::{At, Error};
use longshore_lab::host::process;

use super::reuse::{Reuse, Reuser};
use super::{LockFile, SealKey, Selection, in_parallel, longshore};
use crate::print;

/// Time limit of a build: a slow machine's, with the download of a toolchain.
pub(super) const LIMIT: Duration = Duration::from_secs(3600);
/// Bytes of a run's nonce.
const NONCE: usize = 16;

/// Options of `build`.
#[derive(Debug, clap::Args)]
pub(crate) struct Build {
    #[command(flatten)]
    selection: Selection,
    /// Rules; by default kernel-matrix/rules.toml of the checkout that the working directory is in.
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
    #[command(flatten)]
    reuse: Reuse,
    #[command(flatten)]
    seal_key: SealKey,
    /// Number of cells compiled at a time. One compile uses all processors.
    #[arg(long, default_value = "1")]
    jobs: NonZeroUsize,
    /// Directory of results.json, the log of the run and the cells' logs; by default one in the cache.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// longshore program; by default that of `cargo build --release` in the checkout that the working directory is in,
    /// or the one beside this program.
    #[arg(long, value_name = "FILE")]
    longshore: Option<PathBuf>,
}

/// A run over the rules that is going on.
struct Going<'a> {
    builds: BuildRun<'a>,
    reuser: Reuser,
    log: Mutex<(RunLog<'a>, Vec<CellResult>)>,
    ending: &'a Ending,
}

/// Compiles the selected cells. True if each has a verdict, and none is a fault.
pub(crate) fn build(options: &Build, ending: &Ending) -> Result<bool, Error> {
    let cache = Cache::of_user()?;
    let rules = Rules::read(&super::rules_path(options.rules.as_deref())?)?;
    let lock = lock(options, &cache, &rules)?;
    let compiled = rules.compiled();
    let program = longshore(options.longshore.as_deref())?;
    let dir = options.out.clone().unwrap_or_else(|| cache.dir("build"));
    let store = cache.dir(Supply::Archive.store());
    let builds = BuildRun {
        lock: &lock,
        archives: &rules.archives,
        program: &program,
        store: &store,
        dir: &dir,
        limit: LIMIT,
    };
    let key = options.seal_key.read(&cache)?;
    let earlier = options.reuse.earlier(&cache, &key)?;
    let Chosen { planned, mut cells, keys } = Chosen::of(options, &compiled, &builds, ending)?;
    if ending.signal().is_some() {
        return Ok(false);
    }
    let count = cells.len();
    lock.covers(&cells)?;
    let changed_only = options.reuse.is_changed_only();
    let run = Run { changed_only, ..run(&lock, options.selection.shard, &program)? };
    let (log, run, done) = open_log(&dir, run, &cells, options.resume, &key)?;
    cells.retain(|cell| !done.iter().any(|result| result.name.as_str() == cell.name));
    let reuser = Reuser { earlier, keys };
    let going = Going { builds, reuser, log: Mutex::new((log, done)), ending };
    let ended = in_parallel(&cells, options.jobs, |cell| going.one(cell));
    // The log keeps other runs away from its directory.
    let (_log, done) = going.log.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut results = results::results(&rules, &lock, run, &planned, done);
    results.run.complete = results.cells.len() == count;
    results.run.ended = Timestamp::now();
    write(&mut results, &cache, &key, &dir)?;
    ended?;
    let is_fault = |cell: &CellResult| cell.verdict.may_be_of_machine();
    Ok(results.run.complete && !results.cells.iter().any(is_fault))
}

/// Cells of a run.
struct Chosen<'r> {
    /// Cells in the results: those of all shards.
    planned: Vec<&'r Cell>,
    /// Cells of this run.
    cells: Vec<&'r Cell>,
    /// Keys that are known.
    keys: BTreeMap<String, Digest>,
}

impl<'r> Chosen<'r> {
    fn of(
        options: &Build,
        compiled: &'r [Cell],
        builds: &BuildRun<'_>,
        ending: &Ending,
    ) -> Result<Self, Error> {
        let Selection { filters, shard } = &options.selection;
        let planned = filter::select(compiled, filters, None, Some(builds.lock))?;
        let mut cells = filter::select(compiled, filters, *shard, Some(builds.lock))?;
        if !options.reuse.is_changed_only() {
            return Ok(Self { planned, cells, keys: BTreeMap::new() });
        }
        // Each shard asks for its own cells alone.
        let keys = options.reuse.leave_out_published(&mut cells, builds, ending)?;
        Ok(Self { planned: cells.clone(), cells, keys })
    }
}

/// Begins the log of a run over these cells in `dir`, or resumes it: with the run and its results so far.
pub(super) fn open_log<'k>(
    dir: &Path,
    run: Run,
    cells: &[&Cell],
    is_resumed: bool,
    key: &'k Key,
) -> Result<(RunLog<'k>, Run, Vec<CellResult>), Error> {
    let names: Vec<Line> = cells.iter().map(|cell| Line::new(&cell.name)).collect();
    let path = dir.join("run.jsonl");
    if !is_resumed {
        return Ok((RunLog::begin(&path, &run, names, key)?, run, Vec::new()));
    }
    let (log, run, done) = RunLog::resume(&path, &run, &names, key)?;
    print(&format!("resuming run {}: {} cells are done", run.id, done.len()));
    Ok((log, run, done))
}

fn lock(options: &Build, cache: &Cache, rules: &Rules) -> Result<Lock, Error> {
    let path = options.lock.path(cache);
    if options.locked { Lock::read(&path) } else { super::resolve::resolved(cache, rules, &path) }
}

/// Writes the results of a run, and prints their summary.
pub(super) fn write(
    results: &mut Results,
    cache: &Cache,
    key: &Key,
    dir: &Path,
) -> Result<(), Error> {
    let path = dir.join(RESULTS);
    results.write(&path, key)?;
    kept::keep(results, &path, &cache.dir(kept::DIRECTORY))?;
    let state = if results.run.complete { "" } else { "; the run is not complete" };
    print(&format!("{}{state}", results::summary(&results.cells)));
    print(&format!("written to {}", path.display()));
    Ok(())
}

/// Returns the run that begins now.
pub(super) fn run(lock: &Lock, shard: Option<Shard>, program: &Path) -> Result<Run, Error> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce)
        .map_err(|e| Error::Unexpected(format!("no random numbers for a run: {e}")))?;
    let nonce = longshore_core::digest::hex(&nonce);
    let began = Timestamp::now();
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).get();
    let version = process::run(Command::new(program).arg("--version"), process::LIMIT)?.join(" ");
    let version = version.strip_prefix("longshore ").unwrap_or(&version);
    let sha256 = std::fs::File::open(program).and_then(Digest::of_all).at("read", program)?;
    Ok(Run {
        id: Line::new(&format!("{}-{}", began.strftime("%Y%m%dT%H%M%SZ"), &nonce[..8])),
        nonce: Line::new(&nonce),
        began,
        ended: began,
        complete: false,
        changed_only: false,
        machine: Machine {
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            qemu: Line::default(),
            backend: Line::default(),
        },
        agent: AgentUsed {
            version: Line::new(version),
            program: Some(sha256),
            commit: checkout::root()
                .and_then(|root| checkout::commit(&root))
                .map(|c| Line::new(&c)),
            image: None,
        },
        lock: Some(Digest::try_from(lock.digest()?).map_err(Error::Unexpected)?),
        shard,
    })
}

impl Going<'_> {
    fn one(&self, cell: &Cell) -> Result<(), Error> {
        if self.ending.signal().is_some() {
            return Ok(());
        }
        let reused = self.reuser.outcome(cell, &self.builds)?;
        let result = match reused {
            Some(result) => result,
            None => self.builds.build(cell)?,
        };
        // A build that the signal ended has no verdict.
        if self.ending.signal().is_some() {
            return Ok(());
        }
        let mut held = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, done) = &mut *held;
        log.add(&result)?;
        let verdict = results::one_line(&result.verdict);
        match &result.reused_from {
            Some(run) => print(&format!("{:48} reused {verdict} (of {run})", cell.name)),
            None => {
                let seconds = result.times.total_ms() / 1000;
                print(&format!("{:48} {seconds:4} s {verdict}", cell.name));
            }
        }
        done.push(result);
        Ok(())
    }
}
