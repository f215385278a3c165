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
use kernel_matrix::report;
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
const LIMIT: Duration = Duration::from_secs(3600);
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
    /// Write the report on the run here as one HTML page, as `report` does; a failed cell does not keep it from that.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// longshore program; by default that of `cargo build --release` in the checkout that the working directory is in,
    /// or the one beside this program.
    #[arg(long, value_name = "FILE")]
    longshore: Option<PathBuf>,
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
    let key = options.seal_key.read(&cache)?;
    let inputs = Inputs { rules: &rules, lock: &lock, cache: &cache, key: &key, dir: &dir, ending };
    let builds = inputs.builds(&program, &store);
    let earlier = options.reuse.earlier(&cache, &key)?;
    let Chosen { planned, cells, keys } = Chosen::choose(options, &compiled, &builds, ending)?;
    if ending.signal().is_some() {
        return Ok(false);
    }
    lock.covers(&cells)?;
    let changed_only = options.reuse.changed_only;
    let run = Run { changed_only, ..run(&lock, options.selection.shard, &program)? };
    let going = Going::begin(inputs, run, cells, options.resume)?;
    let reuser = Reuser { earlier, keys };
    let compile = |cell: &Cell| match reuser.outcome(cell, &builds)? {
        Some(result) => Ok(result),
        None => builds.build(cell),
    };
    let is_good = going.go(options.jobs, &planned, compile, shown)?;
    if let Some(html) = &options.html {
        let page = report::Options::page_of(dir.join(RESULTS), html.clone());
        print(&report::report(&page, Some(&key))?.summary);
        print(&format!("page written to {}", html.display()));
    }
    Ok(is_good)
}

fn shown(cell: &Cell, result: &CellResult) -> String {
    let verdict = results::one_line(&result.verdict);
    let seconds = result.times.total_ms() / 1000;
    match &result.reused_from {
        Some(run) => format!("{:48} reused {verdict} (of {run})", cell.name),
        None => format!("{:48} {seconds:4} s {verdict}", cell.name),
    }
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
    fn choose(
        options: &Build,
        compiled: &'r [Cell],
        builds: &BuildRun<'_>,
        ending: &Ending,
    ) -> Result<Self, Error> {
        let Selection { filters, shard } = &options.selection;
        let planned = filter::select(compiled, filters, None, Some(builds.lock))?;
        let mut cells = filter::select(compiled, filters, *shard, Some(builds.lock))?;
        if !options.reuse.changed_only {
            return Ok(Self { planned, cells, keys: BTreeMap::new() });
        }
        // Each shard asks for its own cells alone.
        let keys = options.reuse.leave_out_published(&mut cells, builds, ending)?;
        Ok(Self { planned: cells.clone(), cells, keys })
    }
}

fn lock(options: &Build, cache: &Cache, rules: &Rules) -> Result<Lock, Error> {
    let path = options.lock.path(cache);
    if options.locked { Lock::read(&path) } else { super::resolve::resolved(cache, rules, &path) }
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

/// Inputs of a run over rules, and the place of its results.
pub(super) struct Inputs<'a> {
    pub(super) rules: &'a Rules,
    pub(super) lock: &'a Lock,
    pub(super) cache: &'a Cache,
    /// Key that seals the results.
    pub(super) key: &'a Key,
    pub(super) dir: &'a Path,
    pub(super) ending: &'a Ending,
}

impl<'a> Inputs<'a> {
    /// Returns the settings of its compiles by this program, with this store.
    pub(super) fn builds(&self, program: &'a Path, store: &'a Path) -> BuildRun<'a> {
        let (lock, archives, dir) = (self.lock, &self.rules.archives, self.dir);
        BuildRun { lock, archives, program, store, dir, limit: LIMIT }
    }
}

/// A run over rules that is going on.
pub(super) struct Going<'a> {
    inputs: Inputs<'a>,
    run: Run,
    /// Number of all its cells.
    count: usize,
    /// Cells without a result.
    pub(super) cells: Vec<&'a Cell>,
    /// Log, which keeps other runs away from its directory, and results so far.
    log: Mutex<(RunLog<'a>, Vec<CellResult>)>,
}

impl<'a> Going<'a> {
    /// Begins a run of these cells, or resumes it, with its results so far.
    pub(super) fn begin(
        inputs: Inputs<'a>,
        run: Run,
        mut cells: Vec<&'a Cell>,
        is_resumed: bool,
    ) -> Result<Self, Error> {
        let names: Vec<Line> = cells.iter().map(|cell| Line::new(&cell.name)).collect();
        let (path, count) = (inputs.dir.join("run.jsonl"), cells.len());
        let (log, run, done) = if is_resumed {
            let (log, run, done) = RunLog::resume(&path, &run, &names, inputs.key)?;
            print(&format!("resuming run {}: {} cells are done", run.id, done.len()));
            (log, run, done)
        } else {
            (RunLog::begin(&path, &run, names, inputs.key)?, run, Vec::new())
        };
        cells.retain(|cell| !done.iter().any(|result| result.name.as_str() == cell.name));
        Ok(Self { inputs, run, count, cells, log: Mutex::new((log, done)) })
    }

    /// Passes each cell to `act`, `jobs` at a time, prints its result as `shown` has it, and writes the results. True if
    /// each cell has a verdict, and none is a fault.
    pub(super) fn go(
        self,
        jobs: NonZeroUsize,
        planned: &[&Cell],
        act: impl Fn(&Cell) -> Result<CellResult, Error> + Sync,
        shown: impl Fn(&Cell, &CellResult) -> String + Sync,
    ) -> Result<bool, Error> {
        let ended = in_parallel(&self.cells, jobs, |cell| self.one(cell, &act, &shown));
        let Inputs { rules, lock, cache, key, dir, .. } = self.inputs;
        let (_log, done) = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut results = results::results(rules, lock, self.run, planned, done);
        results.run.complete = results.cells.len() == self.count;
        results.run.ended = Timestamp::now();
        write(&mut results, cache, key, dir)?;
        ended?;
        let is_fault = |cell: &CellResult| cell.verdict.may_be_of_machine();
        Ok(results.run.complete && !results.cells.iter().any(is_fault))
    }

    fn one(
        &self,
        cell: &Cell,
        act: impl Fn(&Cell) -> Result<CellResult, Error>,
        shown: impl Fn(&Cell, &CellResult) -> String,
    ) -> Result<(), Error> {
        let is_ended = || self.inputs.ending.signal().is_some();
        if is_ended() {
            return Ok(());
        }
        let result = act(cell)?;
        // A cell that the signal ended has no verdict.
        if is_ended() {
            return Ok(());
        }
        let mut held = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, done) = &mut *held;
        log.add(&result)?;
        print(&shown(cell, &result));
        done.push(result);
        Ok(())
    }
}

/// Writes the results of a run, and prints their summary.
fn write(results: &mut Results, cache: &Cache, key: &Key, dir: &Path) -> Result<(), Error> {
    let path = dir.join(RESULTS);
    results.write(&path, key)?;
    kept::keep(results, &path, &cache.dir(kept::DIRECTORY))?;
    let state = if results.run.complete { "" } else { "; the run is not complete" };
    print(&format!("{}{state}", results::summary(&results.cells)));
    print(&format!("written to {}", path.display()));
    Ok(())
}
