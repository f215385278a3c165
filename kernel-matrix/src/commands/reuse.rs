//! Options that take cells out of a run: results that are reused, and sets that a registry has.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kernel_matrix::build_run::BuildRun;
use kernel_matrix::ending::Ending;
use kernel_matrix::push::published::Target;
use kernel_matrix::results::{CellResult, Digest, Key};
use kernel_matrix::reuse::{self, Earlier, kept};
use kernel_matrix::rules::Cell;
use longshore_core::image_reference::Reference;
use longshore_lab::host::cache::Cache;
use longshore_lab::host::error::Error;

use crate::print;

/// Options of a run that need not compile every cell.
#[derive(Debug, clap::Args)]
pub(crate) struct Reuse {
    /// Reuse outcomes in these results, too, for cells with the same key (repeatable). Outcomes of earlier runs on this
    /// machine are reused without it.
    #[arg(long, value_name = "RESULTS")]
    reuse: Vec<PathBuf>,
    /// Accept results for --reuse that the key did not seal: they are as trustworthy as the place of the file.
    #[arg(long, requires = "reuse")]
    reuse_unsealed: bool,
    /// Compile every cell, and reuse nothing.
    #[arg(long, conflicts_with = "reuse")]
    fresh: bool,
    /// Only cells whose set the registry does not have under the cell's key, where `push` puts it.
    #[arg(long, requires = "registry")]
    pub(super) changed_only: bool,
    /// Repository for --changed-only: HOST/REPOSITORY.
    #[arg(long, value_name = "REFERENCE", requires = "changed_only")]
    registry: Option<Reference>,
}

impl Reuse {
    /// Reads the results that may be reused.
    pub(super) fn earlier(&self, cache: &Cache, key: &Key) -> Result<Earlier, Error> {
        let mut earlier = Earlier::default();
        if self.fresh {
            return Ok(earlier);
        }
        for why in kept::add_to(&mut earlier, &cache.dir(kept::DIRECTORY), key)? {
            print(&why);
        }
        for path in &self.reuse {
            let (results, authenticity) = reuse::read(path, key, self.reuse_unsealed)?;
            earlier.add(results, &authenticity);
        }
        Ok(earlier)
    }

    /// Leaves out the cells whose set the registry has; returns the keys of the others.
    pub(super) fn leave_out_published(
        &self,
        cells: &mut Vec<&Cell>,
        builds: &BuildRun<'_>,
        ending: &Ending,
    ) -> Result<BTreeMap<String, Digest>, Error> {
        let mut keys = BTreeMap::new();
        let Some(reference) = &self.registry else { return Ok(keys) };
        let target = Target::from_reference(builds.program, reference)?;
        let (mut left, count) = (Vec::new(), cells.len());
        for cell in cells.drain(..) {
            if ending.signal().is_some() {
                return Ok(keys);
            }
            let Some(key) = builds.key_of(cell)? else {
                left.push(cell);
                continue;
            };
            if target.set(&key)?.is_none() {
                left.push(cell);
                keys.insert(cell.name.clone(), key);
            }
        }
        *cells = left;
        print(&format!("{} of {count} sets are in {reference}", count - cells.len()));
        Ok(keys)
    }
}

/// Finds outcomes for the cells of a run.
pub(super) struct Reuser {
    /// Outcomes.
    pub(super) earlier: Earlier,
    /// Keys that were asked for before.
    pub(super) keys: BTreeMap<String, Digest>,
}

impl Reuser {
    /// Returns the earlier outcome of a cell whose inputs are the same now.
    pub(super) fn outcome(
        &self,
        cell: &Cell,
        builds: &BuildRun<'_>,
    ) -> Result<Option<CellResult>, Error> {
        if !self.earlier.knows(&cell.name) {
            return Ok(None);
        }
        let key = match self.keys.get(&cell.name) {
            Some(key) => Some(key.clone()),
            None => builds.key_of(cell)?,
        };
        Ok(key.and_then(|key| self.earlier.outcome(&key, &cell.name)))
    }
}
