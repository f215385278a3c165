//! Packages of one driver version, tried one after the other: where a package does not compile for this kernel, an
//! earlier revision of the same version may, and where one holds no sources, its successor does.

use jiff::Timestamp;

use super::inputs::Inputs;
use super::{Failed, KnownFailure, Request, build_from};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_modules::artifact::ModuleSet;
use longshore_sources::driver::{self, AvailableDriver};

/// Builds the set of `request`, or returns the store's set of the same inputs. Where the driver's package does not
/// compile for a reason that lies in its sources, the older revisions of the same version are tried, newest first.
///
/// Dropping the future kills the compiler and removes unfinished files.
///
/// # Errors
/// Exit code 2 for modules the driver does not have, 11 without headers or compiler, 12 for
/// downloads, 13 for damaged packages, 14 where it does not compile, 15 without space. Where no revision compiles, the
/// failure of the first.
pub async fn build(
    request: &Request,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<ModuleSet, Failed> {
    let mut request = request.clone();
    let mut refused = Refused::default();
    loop {
        let failed = match build_from(&request, archive, store, progress).await {
            Ok(set) => return Ok(set),
            Err(failed) => failed,
        };
        let next = next_package(&failed.failure, &request.driver, archive, store);
        let Some(next) = next else { return Err(refused.ended(failed, &request.driver)) };
        let (this, other) = (request.driver.package_name(), next.package_name());
        tracing::warn!("continuing with {other} instead of {this}: {}", failed.failure.one_line());
        if is_of_inputs(&failed.failure) {
            refused.add(failed, this);
        }
        request.driver = next;
    }
}

/// Returns the package to continue with after `failure`.
fn next_package(
    failure: &Failure,
    driver: &AvailableDriver,
    archive: &Archive,
    store: &Store,
) -> Option<AvailableDriver> {
    match failure.kind() {
        FailureKind::Verification => driver::instead_of(driver, archive, store),
        _ if is_of_inputs(failure) => {
            driver::older_revisions(driver, &driver::drivers(archive)).into_iter().next()
        }
        _ => None,
    }
}

/// True for a compile that failed for the compiled inputs alone: another revision of the driver is another input.
fn is_of_inputs(failure: &Failure) -> bool {
    failure.compile_class().is_some_and(|class| class.of_inputs)
}

/// Revisions that do not compile.
#[derive(Default)]
struct Refused {
    /// Failure of the first, which is the one to report.
    first: Option<Failed>,
    /// Packages of the later ones.
    later: Vec<String>,
}

impl Refused {
    fn add(&mut self, failed: Failed, package: String) {
        match self.first {
            None => self.first = Some(failed),
            Some(_) => self.later.push(package),
        }
    }

    /// Returns the failure of a build whose last attempt, with the package of `driver`, ended as `last`.
    fn ended(mut self, last: Failed, driver: &AvailableDriver) -> Failed {
        let Some(first) = self.first.take() else { return last };
        if is_of_inputs(&last.failure) {
            self.later.push(driver.package_name());
        } else {
            tracing::warn!("{}: {}", driver.package_name(), last.failure.one_line());
        }
        if self.later.is_empty() {
            return first;
        }
        let too = format!("does not compile either: {}", self.later.join(", "));
        Failed { failure: first.failure.with_consequence(too), known: first.known }
    }
}

/// Returns the first failure in `reported`, reported by other hosts, that this build would end with
/// too, if the reports are true: nothing is remembered of them. None where a revision of the driver is left that none
/// of them tried.
///
/// # Errors
/// As [`build`] until it compiles.
pub async fn predict_failure(
    request: &Request,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
    reported: &[KnownFailure],
) -> Result<Option<Failure>, Failure> {
    let older = driver::older_revisions(&request.driver, &driver::drivers(archive));
    let mut first = None;
    for driver in std::iter::once(request.driver.clone()).chain(older) {
        let request = Request { driver, ..request.clone() };
        let predicted = predict_for(&request, archive, store, progress, reported).await?;
        let Some(failure) = predicted else { return Ok(None) };
        first.get_or_insert(failure);
    }
    Ok(first)
}

/// Predicts the failure of exactly the driver's package that `request` names.
async fn predict_for(
    request: &Request,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
    reported: &[KnownFailure],
) -> Result<Option<Failure>, Failure> {
    let inputs = Inputs::resolve(request, archive, store, progress).await?;
    let (attempt, now) = (inputs.attempt(request), Timestamp::now());
    let is_ours = |known: &&KnownFailure| known.inputs == attempt.inputs && known.is_current(now);
    let Some(known) = reported.iter().find(is_ours) else { return Ok(None) };
    Ok(Some(known.failure(now)))
}
