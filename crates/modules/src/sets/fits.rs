//! Record of the sets that are known to fit the kernel they are for.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use longshore_core::store::Store;

/// Path below the store's root.
const FITS: &str = "fits.json";
/// Format version of the file; another version counts as no file.
const FORMAT: u32 = 1;
/// Size limit of the file; a set's name has some eighty bytes.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    sets: BTreeSet<String>,
}

/// See [`SetStore::known_to_fit`](super::SetStore::known_to_fit).
pub(super) fn known(store: &Store) -> BTreeSet<String> {
    let read = || -> Option<Record> {
        let mut bytes = Vec::new();
        let file = File::open(store.dir(FITS)).ok()?;
        file.take(LARGEST).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    let record = read().filter(|record| record.format == FORMAT);
    record.map(|record| record.sets).unwrap_or_default()
}

/// See [`SetStore::note_fits`](super::SetStore::note_fits).
pub(super) fn note(store: &Store, sets: impl IntoIterator<Item = String>) {
    let mut all = known(store);
    all.extend(sets);
    all.retain(|name| store.dir("sets").join(format!("{name}.json")).is_file());
    let bytes = serde_json::to_vec(&Record { format: FORMAT, sets: all }).unwrap_or_default();
    if let Err(failure) = store.write_file(Path::new(FITS), &bytes) {
        tracing::debug!("symbols will be compared again: {}", failure.one_line());
    }
}
