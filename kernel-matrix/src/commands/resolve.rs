//! `resolve`.

use std::path::{Path, PathBuf};

use kernel_matrix::rules::Rules;
use kernel_matrix::rules::lock::{Lock, LockedDriver, LockedKernel};
use kernel_matrix::rules::resolve::{Resolver, check_outages};
use longshore_lab::cell::supply::Supply;
use longshore_lab::host::archives::Archives;
use longshore_lab::host::cache::Cache;
use longshore_lab::host::error::Error;

use super::LockFile;
use crate::print;

/// Options of `resolve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Resolve {
    /// Rules; by default kernel-matrix/rules.toml of the checkout that the working directory is in.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    lock: LockFile,
}

/// Resolves the rules, writes the lock and prints it.
pub(crate) fn resolve(options: &Resolve) -> Result<bool, Error> {
    let cache = Cache::of_user()?;
    let rules = Rules::read(&super::rules_path(options.rules.as_deref())?)?;
    let path = options.lock.path(&cache);
    let lock = resolved(&cache, &rules, &path)?;
    for suite in &lock.suites {
        if let Some(why) = &suite.unavailable {
            print(&format!("suite {}: {why}", suite.suite));
        }
    }
    lock.kernels.iter().for_each(|kernel| print(&kernel_line(kernel)));
    lock.drivers.iter().for_each(|driver| print(&driver_line(driver)));
    print(&format!("written to {}", path.display()));
    Ok(true)
}

/// Resolves the rules against the archives of today, and writes the lock; leaves it as it was where they do not
/// answer.
pub(super) fn resolved(cache: &Cache, rules: &Rules, path: &Path) -> Result<Lock, Error> {
    let suites = rules.suites().into_iter().map(|s| (s.clone(), rules.frozen.contains(&s)));
    // The store of the compiles, which need the same headers.
    let store = cache.dir(Supply::Archive.store());
    let archives = Archives::open_with(&store, &suites.collect(), &rules.archives)?;
    let lock = Resolver { archives: &archives }.resolve(rules, &mut |kernel| {
        print(&format!("resolving {kernel}"));
    });
    check_outages(&lock)?;
    lock.write(path)?;
    Ok(lock)
}

fn kernel_line(kernel: &LockedKernel) -> String {
    let version = kernel.image.as_ref().map_or("", |image| &image.version);
    let state = match &kernel.unavailable {
        None => format!("{} header packages", kernel.headers.len()),
        Some(missing) => format!("UNAVAILABLE {}: {}", missing.part, missing.why),
    };
    format!("kernel {:28} {} {version}, {state}", kernel.id, kernel.release)
}

fn driver_line(driver: &LockedDriver) -> String {
    let revisions: Vec<String> = driver
        .revisions
        .iter()
        .map(|of| format!("{} {} ({})", of.package, of.version, of.suite))
        .collect();
    let state = match &driver.unavailable {
        None => revisions.join(", "),
        Some(missing) => format!("UNAVAILABLE {}: {}", missing.part, missing.why),
    };
    format!("driver {:16} {state}", driver.id)
}
