//! Support table of an artifact in a registry, and the copy of it that the store keeps.
//!
//! The last table that counted is kept, with its signature: a host whose registry is away, or has a table that does not
//! count, goes on with it. It is checked at each use like one that was fetched.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::signed::{LONGEST_SIGNATURE, MOST_BYTES, SignedTable, keys, unsigned};
use super::{Acceptance, Counting, store};
use crate::config::Config;
use crate::config::SUPPORT_TABLE_SCHEME as SCHEME;
use crate::open_registry::open_registry;
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::image_reference::Reference;
use longshore_core::store::Store;
use longshore_fetch::http::UnreachableHosts;
use longshore_modules::registry::files::Files;
use longshore_support::SupportTable;

/// Name of the kept table in the store.
const KEPT: &str = "support-table.json";
/// Version of that file's format.
const FORMAT: u32 = 1;
/// Maximum size of that file: escapes of JSON make a text longer.
const MOST_KEPT: u64 = 8 * MOST_BYTES;

/// Time limit of a download: `run` handles no signal before it has the table.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: u32,
    table: SignedTable,
}

/// A table that counts, with what the store keeps of it.
pub(super) type Fetched = (Counting, SignedTable);

/// Returns the table that counts: the one that `fetched` brings, else the kept one of the same place, with a warning.
pub(super) async fn table(
    acceptance: &Acceptance<'_>,
    reference: &Reference,
    fetched: impl Future<Output = Result<Fetched, Failure>>,
) -> Result<SupportTable, Failure> {
    let kept = kept(acceptance.config, reference);
    let failure = match within_limit(reference, fetched).await {
        Ok((counting, signed)) => {
            // Before its issue is: a kept table that is older than that would not count.
            if acceptance.kept_on.is_some() && kept.as_ref() != Some(&signed) {
                keep(acceptance.config, signed)?;
            }
            return acceptance.remember(counting);
        }
        Err(failure) => failure,
    };
    match kept.map(|signed| acceptance.check(&signed)) {
        Some(Ok(Counting { table, .. })) => {
            tracing::warn!(
                "the support table of {} that the store keeps is used: {}",
                table.issued(),
                failure.one_line()
            );
            Ok(table)
        }
        Some(Err(of_kept)) => {
            tracing::warn!(
                "the support table that the store keeps does not count: {}",
                of_kept.one_line()
            );
            Err(failure)
        }
        None => Err(failure),
    }
}

async fn within_limit(
    reference: &Reference,
    fetched: impl Future<Output = Result<Fetched, Failure>>,
) -> Result<Fetched, Failure> {
    tokio::time::timeout(LIMIT, fetched).await.unwrap_or_else(|_| {
        let cause =
            format!("the support table {SCHEME}{reference} was not fetched within {LIMIT:?}");
        Err(Failure::new(FailureKind::Download, cause)
            .remedy("check that this host reaches the registry, and its proxy settings"))
    })
}

/// True if the artifact has another table than the configuration, and one that counts.
pub(super) async fn has_changed(
    config: &Config,
    reference: &Reference,
    fetched: impl Future<Output = Result<Fetched, Failure>>,
) -> bool {
    // The artifact of a digest is the same for ever.
    if reference.digest.is_some() {
        return false;
    }
    match within_limit(reference, fetched).await {
        Ok((Counting { table, .. }, _)) if table == *config.support.table => false,
        Ok((Counting { table, place, .. }, _)) => {
            tracing::info!("{place} has another support table, of {}", table.issued());
            true
        }
        Err(failure) if failure.kind() == FailureKind::Download => {
            tracing::debug!("looking for another support table: {}", failure.one_line());
            false
        }
        Err(failure) => {
            tracing::warn!("the support table does not count: {}", failure.one_line());
            false
        }
    }
}

/// Fetches the table of an artifact, and its signature, from the first repository whose table counts.
///
/// # Errors
/// Exit code 2 where no key may sign it, or it contradicts itself; 12 where it cannot be fetched; 13 where the artifact is no
/// table with a signature that counts.
pub(super) async fn fetch(
    acceptance: &Acceptance<'_>,
    reference: &Reference,
) -> Result<Fetched, Failure> {
    let place = format!("{SCHEME}{reference}");
    // A configuration without a key is wrong whatever the registry has.
    keys(acceptance.config, &place)?;
    let fetching = |failure: Failure| {
        let remedy = failure.remedy_text().map(str::to_owned);
        let cause = format!("fetching the support table {place}");
        let named = Failure::new(failure.kind(), cause).with_source(failure);
        remedy.into_iter().fold(named, Failure::remedy)
    };
    let away = UnreachableHosts::default();
    let registry =
        open_registry(acceptance.config, &away, &reference.repository).map_err(fetching)?;
    let name = reference.digest.as_deref().or(reference.tag.as_deref()).unwrap_or_default();
    let judge = |files| {
        let signed = of_files(&place, &files)?;
        Ok((acceptance.check(&signed)?, signed))
    };
    registry.files(name, MOST_BYTES, judge).await.map_err(fetching)
}

/// Returns the only file `NAME.toml`, with the signature `NAME.toml.sig`.
fn of_files(place: &str, files: &Files) -> Result<SignedTable, Failure> {
    let no_table = |what: &str| {
        let cause = format!("{place} is no support table: {what}");
        Failure::new(FailureKind::Verification, cause).remedy(
            "push a table and its signature as one artifact: `oras push HOST/REPOSITORY:TAG support.toml \
             support.toml.sig`",
        )
    };
    let mut tables = files.iter().filter(|(name, _)| name.ends_with(".toml"));
    let (Some((name, table)), None) = (tables.next(), tables.next()) else {
        return Err(no_table("not exactly one of its files is named NAME.toml"));
    };
    let signature_name = format!("{name}.sig");
    let signature = files.get(&signature_name).ok_or_else(|| {
        let cause = format!("the support table {place} has no signature: no file {signature_name}");
        unsigned(place, cause)
    })?;
    if signature.len() > LONGEST_SIGNATURE {
        let size = signature.len();
        return Err(no_table(&format!(
            "{signature_name:?} has {size} bytes, more than {LONGEST_SIGNATURE}"
        )));
    }
    let text_of = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(no_table(&format!("{name:?} is no text"))),
    };
    let (text, signature) = (text_of(name, table)?, text_of(&signature_name, signature)?);
    Ok(SignedTable { place: place.to_owned(), text, signature })
}

/// Returns the kept table of a place; None where there is none of it that can be read.
fn kept(config: &Config, reference: &Reference) -> Option<SignedTable> {
    let path = store(config).join(KEPT);
    let bytes = match bounded_read::read(&path, MOST_KEPT) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        // A store that this user may not read is empty for a command that only looks.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            tracing::debug!("reading the kept support table {}: {error}", path.display());
            return None;
        }
        Err(error) => {
            tracing::warn!("reading the kept support table {}: {error}", path.display());
            return None;
        }
    };
    match serde_json::from_slice::<Kept>(&bytes) {
        Ok(kept) if kept.format == FORMAT => {
            Some(kept.table).filter(|table| table.place == format!("{SCHEME}{reference}"))
        }
        Ok(_) => None,
        Err(error) => {
            tracing::warn!("reading the kept support table {}: {error}", path.display());
            None
        }
    }
}

fn keep(config: &Config, table: SignedTable) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(&Kept { format: FORMAT, table })
        .or_fail(FailureKind::Bug, || "writing the support table to keep")?;
    Store::open(&store(config), config.disk())?.write_file(Path::new(KEPT), &bytes)
}

#[cfg(test)]
mod tests;
