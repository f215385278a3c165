//! Record of the sets that are known to fit the kernel they are for.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Store;
use crate::artifact::ModuleSet;

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

impl Store {
    /// Returns the names of sets whose symbols and vermagic match the kernel in their key; empty if
    /// the record cannot be read.
    pub fn known_to_fit(&self) -> BTreeSet<String> {
        let read = || -> Option<Record> {
            let mut bytes = Vec::new();
            let file = File::open(self.dir(FITS)).ok()?;
            file.take(LARGEST).read_to_end(&mut bytes).ok()?;
            serde_json::from_slice(&bytes).ok()
        };
        let record = read().filter(|record| record.format == FORMAT);
        record.map(|record| record.sets).unwrap_or_default()
    }

    /// Records the names of sets that fit, and drops those that are gone. If that cannot be written
    /// they are compared again.
    pub fn note_fits(&self, sets: impl IntoIterator<Item = String>) {
        let mut all = self.known_to_fit();
        all.extend(sets);
        all.retain(|name| self.dir("sets").join(format!("{name}.json")).is_file());
        let bytes = serde_json::to_vec(&Record { format: FORMAT, sets: all }).unwrap_or_default();
        if let Err(failure) = self.write_file(Path::new(FITS), &bytes) {
            tracing::debug!("symbols will be compared again: {}", failure.one_line());
        }
    }

    /// Records a set that was compiled here: against the headers of the kernel in its key.
    pub fn note_compiled(&self, set: &ModuleSet) {
        self.note_fits([set.key.file_stem()]);
    }
}
