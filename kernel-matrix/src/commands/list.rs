//! `list` over rules.

use std::path::PathBuf;

use kernel_matrix::rules::filter;
use kernel_matrix::rules::lock::Lock;
use kernel_matrix::rules::{Cell, Driver, Excluded, Kernel, Rules};
use longshore_lab::host::cache::Cache;
use longshore_lab::host::error::Error;
use serde::Serialize;

use super::{LockFile, Selection};
use crate::print;

/// Options of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// List the cells of these rules instead of longshore's test cells. A filter, --shard, --lock or --json takes those of
    /// kernel-matrix/rules.toml of the checkout that the working directory is in.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    lock: LockFile,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl List {
    /// True if the cells of rules are listed.
    pub(crate) fn is_of_rules(&self) -> bool {
        let Selection { filters, shard } = &self.selection;
        let is_selected = !filters.is_empty() || shard.is_some() || self.lock.lock.is_some();
        self.rules.is_some() || is_selected || self.json
    }
}

/// JSON output, for programs that share out the work.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Listed<'a> {
    format: u32,
    kernels: &'a [Kernel],
    drivers: &'a [Driver],
    excluded: &'a [Excluded],
    cells: &'a [&'a Cell],
}

/// Lists the cells of rules.
pub(crate) fn list(options: &List) -> Result<bool, Error> {
    let rules = Rules::read(&super::rules_path(options.rules.as_deref())?)?;
    let lock_path = options.lock.path(&Cache::of_user()?);
    let lock = if lock_path.exists() { Some(Lock::read(&lock_path)?) } else { None };
    let Selection { filters, shard } = &options.selection;
    let cells = filter::select(&rules.cells, filters, *shard, lock.as_ref())?;
    if options.json {
        let Rules { kernels, drivers, excluded, .. } = &rules;
        let listed = Listed { format: 1, kernels, drivers, excluded, cells: &cells };
        let text = serde_json::to_string_pretty(&listed);
        let no_form = |e| Error::Unexpected(format!("the list has no form in JSON: {e}"));
        print(&text.map_err(no_form)?);
        return Ok(true);
    }
    for cell in &cells {
        let release = lock.as_ref().and_then(|lock| lock.kernel(&cell.kernel.id));
        print(&describe(cell, release.map_or("", |kernel| &kernel.release)));
    }
    for excluded in &rules.excluded {
        print(&format!("{} cells excluded: {}", excluded.cells.len(), excluded.reason));
    }
    print(&format!(
        "{} of {} cells: {} kernels, {} drivers",
        cells.len(),
        rules.cells.len(),
        rules.kernels.len(),
        rules.drivers.len()
    ));
    Ok(true)
}

fn describe(cell: &Cell, release: &str) -> String {
    let (kernel, driver) = (&cell.kernel, &cell.driver);
    let line = format!(
        "{:48} {} of {}, {} {}, rule {} {release}",
        cell.name,
        kernel.named.as_ref().map_or(&kernel.package, |named| &named.release),
        kernel.suite,
        driver.branch,
        driver.flavour,
        cell.rule,
    );
    line.trim_end().to_owned()
}
