//! Support table of a file or an artifact: its signature, its age, and the configuration that follows from it.

mod artifact;
mod signed;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::signed::{SignedTable, verify};
use crate::config::{Config, StorePlace, SupportTableSource};
use longshore_core::day::Day;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;
use longshore_host::facts::pci;
use longshore_modules::sets::index_versions::IndexVersions;
use longshore_support::{SupportTable, TableHead};

/// Name under which the issue of the newest table is kept beside the versions of registries' indexes.
const REMEMBERED: &str = "support-table";

/// Time between two looks for another table of an artifact, spread over its last quarter.
const LOOKS: Duration = Duration::from_secs(60 * 60);

/// Returns the configuration of this host: with the table of its file or artifact, and the driver of the rule for its GPUs.
/// With `remembers` the issue of the table is kept in the store, so that an older one is refused from then on, and the
/// table of an artifact itself.
///
/// # Errors
/// Exit code 2 where the file cannot be read, the table contradicts itself, or no key may sign it, or a rule is for no GPU;
/// 12 where an artifact cannot be fetched, and none of its place was kept; 13 where it is unsigned, or older than one that
/// was used before; 15 where that cannot be kept.
pub(crate) async fn settled(config: Config, remembers: bool) -> Result<Config, Failure> {
    settled_on(Day::today(), config, remembers).await
}

async fn settled_on(today: Day, mut config: Config, remembers: bool) -> Result<Config, Failure> {
    if let Some(source) = &config.support.source {
        let acceptance = Acceptance { config: &config, kept_on: remembers.then_some(today) };
        let table = match source {
            SupportTableSource::File(file) => {
                acceptance.remember(acceptance.check(&SignedTable::read(file)?)?)?
            }
            SupportTableSource::Artifact(reference) => {
                let fetched = artifact::fetch(&acceptance, reference);
                artifact::table(&acceptance, reference, fetched).await?
            }
        };
        config.support.table = Arc::new(table);
    }
    if config.driver_rules.rules.is_empty() {
        return Ok(config);
    }
    // A plan reads the bus, too, and reports one that cannot be read.
    let devices = pci::devices(&config.paths.root).unwrap_or_default();
    Ok(config.for_devices(&devices))
}

/// Returns the time until the next look for another table, spread so that the nodes of a fleet do not ask at once.
pub(crate) fn until_look() -> Duration {
    LOOKS.mul_f64(0.75 + fastrand::f64() / 4.0)
}

/// True if the artifact of the running configuration has another table than that, and one that counts; false where the
/// configuration names none.
pub(crate) async fn has_changed(running: &Config) -> bool {
    match &running.support.source {
        Some(SupportTableSource::Artifact(reference)) => {
            let acceptance = Acceptance { config: running, kept_on: None };
            artifact::has_changed(running, reference, artifact::fetch(&acceptance, reference)).await
        }
        Some(SupportTableSource::File(_)) | None => false,
    }
}

/// Conditions under which a table counts on this host.
struct Acceptance<'a> {
    config: &'a Config,
    /// Day on which the issue of a table is kept: an issue of a later day is kept as one of that day, so that a wrong day
    /// does not shut out the tables after it. None keeps nothing.
    kept_on: Option<Day>,
}

/// A table that counts.
struct Counting {
    table: SupportTable,
    /// Place that it comes from.
    place: String,
    /// Its own day of issue: a replacing table that is older than the built-in one gives way to that.
    issued: Day,
}

impl Acceptance<'_> {
    /// Checks the signature, the contents and the age of a table, and that it has the GPUs of the rules.
    fn check(&self, signed: &SignedTable) -> Result<Counting, Failure> {
        let place = &signed.place;
        verify(self.config, signed)?;
        let built_in = SupportTable::built_in()?;
        let named = |failure: Failure| {
            let remedy = failure.remedy_text().map(str::to_owned);
            let failure = Failure::new(failure.kind(), format!("{place}: {failure}"));
            remedy.into_iter().fold(failure, Failure::remedy)
        };
        let TableHead { issued, extends } = TableHead::read(&signed.text).map_err(named)?;
        let table = built_in.merged(&signed.text).map_err(named)?;
        self.config.driver_rules.check(&table)?;
        let versions = IndexVersions::new(&Store::at(&store(self.config), self.config.disk()));
        let newest = match self.kept_on {
            Some(_) => versions.highest(REMEMBERED)?,
            None => versions.highest_to_look(REMEMBERED)?,
        };
        let newest = newest.unwrap_or_default();
        if issued.number() < newest {
            return Err(outdated(place, issued, newest));
        }
        if !extends && issued < built_in.issued() {
            tracing::warn!(
                "the support table {place} of {issued} is older than the built-in one of {}, which is used",
                built_in.issued()
            );
        }
        Ok(Counting { table, place: place.clone(), issued })
    }

    /// Keeps the issue of a table, where this keeps any.
    fn remember(&self, counting: Counting) -> Result<SupportTable, Failure> {
        let Counting { table, place, issued } = counting;
        let Some(today) = self.kept_on else { return Ok(table) };
        let store = Store::open(&store(self.config), self.config.disk())?;
        let newest = IndexVersions::new(&store).remember(REMEMBERED, issued.min(today).number())?;
        // Another process may have used a newer one since the check.
        if issued.number() < newest { Err(outdated(&place, issued, newest)) } else { Ok(table) }
    }
}

fn outdated(place: &str, issued: Day, newest: u64) -> Failure {
    let cause = format!(
        "the support table {place} of {issued} is older than one that was used before ({newest})"
    );
    Failure::new(FailureKind::Verification, cause)
        .remedy(
            "put the newest table there; an older one can hide a vulnerability. To go back to older rows, issue them under \
             a new day",
        )
}

/// Returns the directory of the store: the host's where `run` will attach that.
fn store(config: &Config) -> PathBuf {
    let paths = &config.paths;
    match config.store_place {
        StorePlace::ToAttach => {
            paths.host_root.join(paths.store.strip_prefix("/").unwrap_or(&paths.store))
        }
        _ => paths.store.clone(),
    }
}

#[cfg(test)]
mod tests;
