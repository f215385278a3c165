//! `run` over rules.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use kernel_matrix::boot_run::BootRun;
use kernel_matrix::build_run::results;
use kernel_matrix::ending::Ending;
use kernel_matrix::results::{CellResult, Digest, Line, Run, Shard};
use kernel_matrix::rules::filter::{self, Filter};
use kernel_matrix::rules::lock::Lock;
use kernel_matrix::rules::{Cell, Rules};
use longshore_lab::cell::guests::Guests;
use longshore_lab::cell::supply::Supply;
use longshore_lab::guest::run_dir;
use longshore_lab::guest::workbench::{Agent, Workbench};
use longshore_lab::host::cache::Cache;
use longshore_lab::host::error::{At, Error};
use longshore_lab::judge::event::{Event, Sink};
use longshore_lab::run::show::{self, Detail};
use longshore_lab::vm::qemu::{self, Qemu};

use super::build::{self, Going, Inputs};
use super::{SealKey, resolve};
use crate::print;

/// Options of `run` that are for longshore's test cells alone.
const OF_TEST_CELLS: [&str; 2] = ["core", "json"];
/// Largest size of the cached kernels and user-mode trees, in GiB.
const CACHE_LIMIT: u32 = 20;

/// Options of `run` over rules.
#[derive(Debug, clap::Args)]
pub(crate) struct OverRules {
    /// Run cells of these rules: compiled, and booted where their scenario boots. The arguments are then filters, as of
    /// `list`. A filter, or an option that is for rules alone, takes kernel-matrix/rules.toml of the checkout that the
    /// working directory is in.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TEST_CELLS)]
    rules: Option<PathBuf>,
    /// Lock file with the resolved packages; by default matrix.lock in the cache.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TEST_CELLS)]
    lock: Option<PathBuf>,
    /// Use the packages of the lock file as they are; otherwise it is written anew first.
    #[arg(long, conflicts_with_all = OF_TEST_CELLS)]
    locked: bool,
    /// Only this part of the cells, I of 1 to N; all cells of a kernel are in one part.
    #[arg(long, value_name = "I/N", conflicts_with_all = OF_TEST_CELLS)]
    shard: Option<Shard>,
    /// Continue the run in the output directory that was ended early, with the same packages and cells.
    #[arg(long, requires = "locked")]
    resume: bool,
    /// Directory of results.json, the log of the run and the cells' logs; by default one in the cache.
    #[arg(long, value_name = "DIR", conflicts_with_all = OF_TEST_CELLS)]
    out: Option<PathBuf>,
    /// Largest size of the cached kernels and user-mode trees in GiB, by default 20; the longest unused go first.
    #[arg(long, value_name = "GIB", conflicts_with_all = OF_TEST_CELLS)]
    cache_limit: Option<u32>,
    #[command(flatten)]
    seal_key: SealKey,
}

impl OverRules {
    /// Returns the rules, if cells of rules are run: an argument is a filter, or an option is for them alone.
    ///
    /// # Errors
    /// No option names them, and the working directory is in no checkout.
    pub(crate) fn rules(&self, arguments: &[String]) -> Result<Option<PathBuf>, Error> {
        let has_option = self.lock.is_some() || self.locked || self.shard.is_some();
        let has_option = has_option || self.out.is_some() || self.cache_limit.is_some();
        // No cell's name has an equals sign.
        let has_filter = arguments.iter().any(|argument| argument.contains('='));
        let is_of_rules = self.rules.is_some() || has_option || has_filter;
        is_of_rules.then(|| super::rules_path(self.rules.as_deref())).transpose()
    }
}

/// Guests, agent and output of a run.
pub(crate) struct Means<'a> {
    pub(crate) guests: Guests,
    pub(crate) agent: Agent,
    /// Choice of QEMU and of the simulated GPU's backend.
    pub(crate) qemu: qemu::Options,
    pub(crate) jobs: NonZeroUsize,
    /// Events that are shown; None shows one line a cell.
    pub(crate) detail: Option<Detail>,
    pub(crate) ending: &'a Ending,
}

/// Cells of a run, and the run itself.
struct Selected<'a> {
    planned: Vec<&'a Cell>,
    cells: Vec<&'a Cell>,
    run: Run,
}

/// Compiles and boots the selected cells. True if each has a verdict, and none is red.
pub(crate) fn run_rules(
    options: &OverRules,
    rules: &Path,
    filters: &[String],
    means: Means<'_>,
) -> Result<bool, Error> {
    let cache = Cache::of_user()?;
    let rules = Rules::read(rules)?;
    let path = options.lock.clone().unwrap_or_else(|| cache.dir("matrix.lock"));
    let lock =
        if options.locked { Lock::read(&path)? } else { resolve::resolved(&cache, &rules, &path)? };
    let key = options.seal_key.read(&cache)?;
    let Selected { planned, cells, run } = select(options, &rules, &lock, filters, &means)?;
    let dir = options.out.clone().unwrap_or_else(|| cache.dir("run"));
    lock.covers(&cells)?;
    let ending = means.ending;
    let inputs = Inputs { rules: &rules, lock: &lock, cache: &cache, key: &key, dir: &dir, ending };
    let (store, program) = (cache.dir(Supply::Archive.store()), means.agent.program.clone());
    let builds = inputs.builds(&program, &store);
    let going = Going::begin(inputs, run, cells, options.resume)?;
    let suites = suites(&rules, &going.cells, &means.guests);
    run_dir::remove_leftovers(&cache)?;
    let workbench =
        Workbench::open_each(cache.clone(), means.guests, suites, means.agent, means.qemu)?;
    let cache_bytes = u64::from(options.cache_limit.unwrap_or(CACHE_LIMIT)) << 30;
    let boots = BootRun { builds, workbench: Mutex::new(workbench), cache_bytes };
    going.go(means.jobs, &planned, |cell| boot(&boots, means.detail, cell), shown)
}

/// Runs a cell, and shows its events meanwhile.
fn boot(boots: &BootRun<'_>, detail: Option<Detail>, cell: &Cell) -> Result<CellResult, Error> {
    let began = Instant::now();
    let take = |event: Event| {
        let shown = detail.and_then(|d| show::line(&event, began.elapsed(), d));
        if let Some(line) = shown {
            print(&line);
        }
    };
    boots.run(cell, &Sink::new(&cell.name, &take))
}

fn shown(cell: &Cell, result: &CellResult) -> String {
    let seconds = result.times.total_ms() / 1000;
    format!("{:56} {seconds:4} s {}", cell.name, results::one_line(&result.verdict))
}

fn select<'a>(
    options: &OverRules,
    rules: &'a Rules,
    lock: &Lock,
    filters: &[String],
    means: &Means<'_>,
) -> Result<Selected<'a>, Error> {
    let filters: Result<Vec<Filter>, String> = filters.iter().map(|text| text.parse()).collect();
    let filters = filters.map_err(Error::Matrix)?;
    let planned = filter::select(&rules.cells, &filters, None, Some(lock))?;
    let cells = filter::select(&rules.cells, &filters, options.shard, Some(lock))?;
    let agent = &means.agent;
    let mut run = build::run(lock, options.shard, &agent.program)?;
    if cells.iter().any(|cell| cell.scenario.boots()) {
        let image = std::fs::File::open(&agent.image)
            .and_then(Digest::of_all)
            .at("read the agent's image", &agent.image)?;
        run.agent.image = Some(image);
        let qemu = Qemu::find(&means.qemu, &Cache::of_user()?)?;
        run.machine.qemu = Line::new(&qemu.version.to_string());
        run.machine.backend = Line::new(qemu.backend.name());
    }
    Ok(Selected { planned, cells, run })
}

/// Returns the suites that guests are made from; true where lists past their expiry are accepted.
fn suites(rules: &Rules, cells: &[&Cell], guests: &Guests) -> BTreeMap<String, bool> {
    let booted = cells.iter().filter(|cell| cell.scenario.boots()).map(|cell| &cell.kernel.suite);
    let mut suites: BTreeMap<String, bool> =
        booted.map(|suite| (suite.clone(), rules.frozen.contains(suite))).collect();
    if !suites.is_empty() {
        *suites.entry(guests.default.suite.clone()).or_default() |= guests.default.archive_frozen;
    }
    suites
}
