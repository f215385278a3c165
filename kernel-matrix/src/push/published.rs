//! Module sets in a registry, found by a cell's key.
//!
//! A set's own tag, DRIVER-FLAVOUR-RELEASE-ARCH, tells nothing of patches, compiler or longshore. So a pushed set has a
//! second tag, `key-` and the cell's key, on the same manifest. Agents search by the first tag alone.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longshore_core::image_reference::{Reference, Repository};
use longshore_modules::artifact::{ModuleKey, ModuleSet};
use serde::Deserialize;

use crate::build_run::capture::capture;
use crate::build_run::verdict::failure_reason;
use crate::results::Digest;
use longshore_lab::host::error::Error;

/// Time limit of a request; longshore has its own for each transfer.
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum size of an answer that is kept.
const MOST_OUTPUT: usize = 8 << 20;

/// Answer of `longshore list`.
#[derive(Debug, Deserialize)]
struct Listed {
    sets: Vec<Published>,
}

/// A set in a registry.
#[derive(Debug, Clone, Deserialize)]
pub struct Published {
    /// `sha256:...` of its manifest.
    pub digest: String,
    /// The set.
    pub set: ModuleSet,
}

/// A repository of module sets, which longshore queries.
#[derive(Debug, Clone)]
pub struct Target<'a> {
    /// The longshore program.
    pub program: &'a Path,
    /// The repository.
    pub repository: Repository,
}

impl<'a> Target<'a> {
    /// Returns the repository of this reference.
    ///
    /// # Errors
    /// The reference has a tag or a digest: these follow from the cells.
    pub fn from_reference(program: &'a Path, reference: &Reference) -> Result<Self, Error> {
        if reference.tag.is_some() || reference.digest.is_some() {
            let why = "leave tag and digest out, they follow from the cells";
            return Err(Error::Matrix(format!("registry {reference}: {why}")));
        }
        Ok(Self { program, repository: reference.repository.clone() })
    }

    /// Returns the reference of the set of a cell.
    pub fn by_key(&self, key: &Digest) -> String {
        format!("{}:key-{}", self.repository, key.as_str())
    }

    /// Returns the set under the tag of the cell with this key; None if the registry has no such tag.
    ///
    /// # Errors
    /// The registry cannot be asked, or has something else under the tag.
    pub fn of_key(&self, key: &Digest) -> Result<Option<Published>, Error> {
        self.look_up(&self.by_key(key))
    }

    /// True if agents find this very manifest by the tag of its set.
    ///
    /// # Errors
    /// The registry cannot be asked, or has something else under the tag.
    pub fn is_for_agents(&self, found: &Published) -> Result<bool, Error> {
        let tag: String = ModuleKey::tag(&found.set.key);
        let searched = self.look_up(&format!("{}:{tag}", self.repository))?;
        Ok(searched.is_some_and(|searched| searched.digest == found.digest))
    }

    /// Returns the set of the cell with this key; None if the registry does not have it, or has another one under the
    /// tag by which agents search.
    ///
    /// # Errors
    /// The registry cannot be asked, or has something else under such a tag.
    pub fn set(&self, key: &Digest) -> Result<Option<Published>, Error> {
        let Some(found) = self.of_key(key)? else { return Ok(None) };
        Ok(self.is_for_agents(&found)?.then_some(found))
    }

    fn look_up(&self, reference: &str) -> Result<Option<Published>, Error> {
        let mut command = Command::new(self.program);
        command.args(["list", reference]).env("LONGSHORE_LOG_FORMAT", "json");
        let captured = capture(&command, LIMIT, MOST_OUTPUT)?;
        if captured.code != Some(0) {
            let why = failure_reason(&captured.err.text());
            let why = why.unwrap_or_else(|| "longshore list did not end".to_owned());
            return Err(Error::Unexpected(format!("asking for {reference}: {why}")));
        }
        let listed: Listed = serde_json::from_str(&captured.out.text())
            .map_err(|e| Error::Unexpected(format!("longshore list {reference}: {e}")))?;
        Ok(listed.sets.into_iter().next())
    }
}
