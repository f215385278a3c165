//! Verbs over the rules: the matrix of kernels and drivers.

mod build;
mod list;
mod push;
mod resolve;
mod reuse;
mod run;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use kernel_matrix::results::seal::RESULTS_KEY;
use kernel_matrix::results::{Key, Shard};
use kernel_matrix::rules::filter::Filter;
use longshore_lab::host::cache::Cache;
use longshore_lab::host::checkout;
use longshore_lab::host::error::Error;

pub(crate) use build::{Build, build};
pub(crate) use list::{List, list};
pub(crate) use push::{PushOptions, push};
pub(crate) use resolve::{Resolve, resolve};
pub(crate) use run::{Means, OverRules, run_rules};

/// The rules in a checkout.
const RULES: &str = "kernel-matrix/rules.toml";
/// The program in a checkout.
const PROGRAM: &str = "target/release/longshore";

/// Selection of cells of the rules.
#[derive(Debug, clap::Args)]
pub(crate) struct Selection {
    /// Only cells with this: kernel=6.12,7.* (as resolved), suite=, line=, kernel-flavour=, driver=550,
    /// flavour=open, rule=, scenario=, gpus=, name=. Several filters must all be met.
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

/// Key that seals results.
#[derive(Debug, clap::Args)]
pub(crate) struct SealKey {
    /// Key that seals results, and by which they are verified: 64 bytes, or 128 hex digits. Machines with the same key
    /// take each other's results. By default one of this user's, in the cache.
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
}

impl SealKey {
    /// Reads the key; makes that of the cache where there is none.
    pub(crate) fn read(&self, cache: &Cache) -> Result<Key, Error> {
        match &self.seal_key {
            Some(path) => Key::read(path),
            None => Key::read_or_make(&cache.dir(RESULTS_KEY)),
        }
    }
}

/// Returns the longshore program: the one given, else that of a release build of the checkout, else the one beside this
/// program.
fn longshore(given: Option<&Path>) -> Result<PathBuf, Error> {
    let what = "compile it by `cargo build --release -p longshore`, or name it by --longshore";
    let own = || checkout::root().map(|root| root.join(PROGRAM));
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("longshore"));
    let found = match given {
        Some(given) => Some(given.to_path_buf()).filter(|path| path.is_file()),
        None => [own(), beside()].into_iter().flatten().find(|path| path.is_file()),
    };
    let missing = given.map_or("longshore".into(), Path::to_string_lossy);
    found.ok_or_else(|| Error::Matrix(format!("there is no program {missing}: {what}")))
}

/// Returns the path of the rules, by default those of the checkout.
fn rules_path(given: Option<&Path>) -> Result<PathBuf, Error> {
    let own = || checkout::file(RULES, "name your rules by --rules");
    given.map_or_else(own, |given| Ok(given.to_path_buf()))
}

/// Passes each item to `act`, `jobs` at a time, until all are done or one is an error.
pub(crate) fn in_parallel<T: Sync>(
    items: &[T],
    jobs: NonZeroUsize,
    act: impl Fn(&T) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs.get().min(items.len()) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = act(item) {
                        next.store(items.len(), Ordering::Relaxed);
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
