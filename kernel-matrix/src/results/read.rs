//! Reads and writes results.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::error::Category;

use super::seal::{Authenticity, Key};
use super::{FORMAT, Results};
use longshore_lab::host::disk;
use longshore_lab::host::error::{At, Error};

/// Largest size of results in bytes.
pub(crate) const FILE_BYTES: u64 = 64 << 20;

/// The part of results that all formats have.
#[derive(Deserialize)]
struct Head {
    format: Option<u64>,
}

impl Results {
    /// Reads results and checks their seal.
    ///
    /// # Errors
    /// The file cannot be read, is too large, cut off or no results of this format, contradicts itself,
    /// or was changed after this user sealed it.
    pub fn read(path: &Path, key: Option<&Key>) -> Result<(Self, Authenticity), Error> {
        let about = |why: String| Error::Unexpected(format!("results {}: {why}", path.display()));
        let bytes = bounded("results", path, FILE_BYTES)?;
        let results = Self::parse(&bytes).map_err(about)?;
        let authenticity = results.authenticity(key).map_err(|e| about(e.to_string()))?;
        Ok((results, authenticity))
    }

    /// Parses results and checks that they do not contradict themselves.
    ///
    /// # Errors
    /// They are cut off, of another format, or contradict themselves.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let head: Head = serde_json::from_slice(bytes).map_err(|e| explain(&e))?;
        match head.format {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(1) => {
                return Err(
                    "format 1, of `run --json`, has no kernels and drivers; run it again".into()
                );
            }
            Some(format) if format > u64::from(FORMAT) => {
                return Err(format!(
                    "format {format} is newer than {FORMAT}: use the program that wrote it"
                ));
            }
            Some(format) => {
                return Err(format!("format {format} is unknown, {FORMAT} is expected"));
            }
            None => return Err("the file states no format, so it has no results".into()),
        }
        let results: Self = serde_json::from_slice(bytes).map_err(|e| explain(&e))?;
        results.check()?;
        Ok(results)
    }

    /// Seals the results and writes them.
    ///
    /// # Errors
    /// They contradict themselves, or the file cannot be written.
    pub fn write(&mut self, path: &Path, key: &Key) -> Result<(), Error> {
        self.check().map_err(|why| Error::Unexpected(format!("results to write: {why}")))?;
        self.seal(key)?;
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::Unexpected(format!("the results as JSON: {e}")))?;
        bytes.push(b'\n');
        if bytes.len() as u64 > FILE_BYTES {
            return Err(too_large("results", path, FILE_BYTES));
        }
        disk::of_this_machine().write_atomically(path, &bytes).at("write", path)
    }
}

/// Reads a file of `what`, which has at most `most` bytes.
///
/// # Errors
/// It cannot be read, or is larger.
pub(crate) fn bounded(what: &str, path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let file = File::open(path).at("open", path)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).at("read", path)?;
    if bytes.len() as u64 > most {
        return Err(too_large(what, path, most));
    }
    Ok(bytes)
}

fn too_large(what: &str, path: &Path, most: u64) -> Error {
    Error::Unexpected(format!("{what} {}: larger than {} MiB", path.display(), most >> 20))
}

fn explain(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Eof => format!("the file is cut off after line {}", error.line()),
        Category::Syntax => format!("no JSON: {error}"),
        Category::Data | Category::Io => error.to_string(),
    }
}
