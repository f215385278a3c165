//! Support table of an artifact in a registry, and the copy of it that the store keeps.
//!
//! The last table that counted is kept, with its signature: a host whose registry is away, or has a table that does not
//! count, goes on with it. It is checked at each use like one that was fetched.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::signed::{MOST_BYTES, SignedTable, unsigned};
use super::{Acceptance, Counting, store};
use crate::config::Config;
use crate::supplier::open_registry::open_registry;
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::image_reference::Reference;
use longshore_core::store::Store;
use longshore_fetch::http::UnreachableHosts;
use longshore_support::SupportTable;

/// Name of the kept table in the store.
const KEPT: &str = "support-table.json";
/// Version of that file's format.
const FORMAT: u32 = 1;
/// Maximum size of that file: escapes of JSON make a text longer.
const MOST_KEPT: u64 = 8 * MOST_BYTES;

/// Time limit of a download where there is a kept table.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: u32,
    table: SignedTable,
}

/// Returns the table that counts: the one that `fetched` brings, else the kept one of the same place, with a warning.
pub(super) async fn table(
    acceptance: &Acceptance<'_>,
    reference: &Reference,
    fetched: impl Future<Output = Result<SignedTable, Failure>>,
) -> Result<SupportTable, Failure> {
    let kept = kept(acceptance.config, reference);
    let fetched = within_limit(kept.is_some(), fetched).await;
    let counting = fetched.and_then(|signed| Ok((acceptance.check(&signed)?, signed)));
    let failure = match counting {
        Ok((table, signed)) => {
            // Before its issue is: a kept table that is older than that would not count.
            if acceptance.kept_on.is_some() && kept.as_ref() != Some(&signed) {
                keep(acceptance.config, signed)?;
            }
            return acceptance.remember(table);
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
    is_limited: bool,
    fetched: impl Future<Output = Result<SignedTable, Failure>>,
) -> Result<SignedTable, Failure> {
    if !is_limited {
        return fetched.await;
    }
    tokio::time::timeout(LIMIT, fetched).await.unwrap_or_else(|_| {
        let cause = format!("the support table's registry did not answer within {LIMIT:?}");
        Err(Failure::new(FailureKind::Download, cause))
    })
}

/// True if the artifact has another table than the kept one, and one that counts.
pub(super) async fn has_changed(
    config: &Config,
    reference: &Reference,
    fetched: impl Future<Output = Result<SignedTable, Failure>>,
) -> bool {
    let signed = match within_limit(true, fetched).await {
        Ok(signed) if kept(config, reference).as_ref() == Some(&signed) => return false,
        Ok(signed) => signed,
        Err(failure) => {
            tracing::debug!("looking for another support table: {}", failure.one_line());
            return false;
        }
    };
    match (Acceptance { config, kept_on: None }).check(&signed) {
        Ok(Counting { table, place, .. }) => {
            tracing::info!("{place} has another support table, of {}", table.issued());
            true
        }
        Err(failure) => {
            tracing::warn!("the support table does not count: {}", failure.one_line());
            false
        }
    }
}

/// Fetches the table of an artifact, and its signature.
///
/// # Errors
/// Exit code 12 where it cannot be fetched, 13 where the artifact is no table with a signature.
pub(super) async fn fetch(config: &Config, reference: &Reference) -> Result<SignedTable, Failure> {
    let registry = open_registry(config, &UnreachableHosts::default(), &reference.repository)?;
    let name = reference.digest.as_deref().or(reference.tag.as_deref()).unwrap_or_default();
    let files = registry.files(name, MOST_BYTES).await?;
    of_files(format!("oci://{reference}"), files)
}

/// Returns the only file `NAME.toml`, with the signature `NAME.toml.sig`.
fn of_files(place: String, files: BTreeMap<String, Vec<u8>>) -> Result<SignedTable, Failure> {
    let no_table = |what: &str| {
        let cause = format!("{place} is no support table: {what}");
        Failure::new(FailureKind::Verification, cause).remedy(
            "push a table and its signature as one artifact: `oras push HOST/REPOSITORY:TAG support.toml \
             support.toml.sig`",
        )
    };
    let mut names = files.keys().filter(|name| name.ends_with(".toml"));
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(no_table("not exactly one of its files is named NAME.toml"));
    };
    let text_of = |name: &str| {
        let bytes = files.get(name)?;
        Some(
            String::from_utf8(bytes.clone()).map_err(|_| no_table(&format!("{name:?} is no text"))),
        )
    };
    let signature = text_of(&format!("{name}.sig")).ok_or_else(|| {
        unsigned(&place, format!("the support table {place} has no signature: no file {name}.sig"))
    })??;
    let text = text_of(name).ok_or_else(|| no_table("it has no files"))??;
    Ok(SignedTable { place, text, signature })
}

/// Returns the kept table of a place; None where there is none of it that can be read.
fn kept(config: &Config, reference: &Reference) -> Option<SignedTable> {
    let path = store(config).join(KEPT);
    let bytes = match bounded_read::read(&path, MOST_KEPT) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!("reading the kept support table {}: {error}", path.display());
            return None;
        }
    };
    match serde_json::from_slice::<Kept>(&bytes) {
        Ok(kept) if kept.format == FORMAT => {
            Some(kept.table).filter(|table| table.place == format!("oci://{reference}"))
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
