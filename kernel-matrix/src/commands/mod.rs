//! Verbs over the rules: the matrix of kernels and drivers.

mod build;
mod list;
mod resolve;

use std::path::{Path, PathBuf};

use kernel_matrix::cache::Cache;
use kernel_matrix::error::Error;
use kernel_matrix::results::Shard;
use kernel_matrix::rules::filter::Filter;

pub(crate) use build::{Build, build};
pub(crate) use list::{List, list};
pub(crate) use resolve::{Resolve, resolve};

/// The rules in this checkout.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/rules.toml");

/// Selection of cells of the rules.
#[derive(Debug, clap::Args)]
pub(crate) struct Selection {
    /// Only cells with this: kernel=6.12,7.* (as resolved), suite=, line=, kernel-flavour=, driver=550,
    /// flavour=open, rule=, name=. Several filters must all be met.
    #[arg(value_name = "KEY=PATTERN")]
    filters: Vec<Filter>,
    /// Only this part of the cells, I of 1 to N; all cells of a kernel are in one part.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
}

/// Place of the lock file.
#[derive(Debug, clap::Args)]
pub(crate) struct LockFile {
    /// Lock file with the resolved packages; by default matrix.lock in the cache.
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
}

impl LockFile {
    fn path(&self, cache: &Cache) -> PathBuf {
        self.lock.clone().unwrap_or_else(|| cache.dir("matrix.lock"))
    }
}

/// Returns the path of the rules, by default those of this checkout.
fn rules_path(given: Option<&Path>) -> &Path {
    given.unwrap_or(Path::new(RULES))
}

fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Error::Unexpected(format!("the list has no form in JSON: {e}")))
}
