//! Pushing of the sets that passed to a registry.
//!
//! Each set is pushed under the tag of its cell's key first, signed there, and then tagged for the agents: whatever
//! fails on the way, they find the set complete and signed, or not at all. All of it is done by `longshore push`,
//! which sends nothing that the registry has, so that a push that ended early is continued by the next one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_modules::signature::key::SecretKey;

use crate::build_run::verdict::failure_reason;
use crate::capture::capture;
use crate::error::{At, Error};
use crate::published::{Published, Target};
use crate::results::{CellResult, Digest, Line, ResolvedCell, Results, Verdict};

/// Time limit of one push.
const LIMIT: Duration = Duration::from_secs(1800);
/// Maximum size of an output that is kept.
const MOST_OUTPUT: usize = 1 << 20;
/// Attestations that `longshore push --attest` makes.
const ATTESTED: [&str; 2] = ["provenance", "spdx"];

/// A set that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Name of its cell.
    pub name: Line,
    /// Key of the cell that compiled it.
    pub key: Digest,
    /// sha256 of the set's key.
    pub set: Digest,
    release: Line,
    driver: Line,
}

impl Passed {
    /// Returns the set of a cell; None where the cell has none to push.
    ///
    /// # Errors
    /// The cell passed, and its result does not name its key or set.
    pub fn of(cell: &CellResult) -> Result<Option<Self>, String> {
        match cell.verdict {
            Verdict::Works {} | Verdict::WorksPatched { .. } | Verdict::Compiled { .. } => {}
            _ => return Ok(None),
        }
        if cell.unproven {
            let why =
                "it was taken from results that no key of this user's sealed: compile the cell";
            return Err(why.to_owned());
        }
        let unnamed = |what: &str| format!("its result has no {what}: run the cell again");
        let ResolvedCell { set, compile_key, kernel_release, driver_version, .. } =
            cell.resolved.as_ref().ok_or_else(|| unnamed("set"))?;
        let key = compile_key.as_ref().or(cell.key.as_ref());
        Ok(Some(Self {
            name: cell.name.clone(),
            key: key.cloned().ok_or_else(|| unnamed("key"))?,
            set: set.clone().ok_or_else(|| unnamed("set"))?,
            release: kernel_release.clone(),
            driver: driver_version.clone(),
        }))
    }
}

/// Outcome of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Pushed now.
    Pushed,
    /// The registry has it, signed where that is wanted.
    There,
    /// Not pushed, or not completely: agents find it under no tag, or as it was.
    Failed(String),
}

/// Key that signs, with the file of its public key.
pub struct Signer {
    secret: PathBuf,
    public: tempfile::NamedTempFile,
}

impl Signer {
    /// Reads the key; its password is in `COSIGN_PASSWORD`.
    ///
    /// # Errors
    /// It cannot be read, or its public key cannot be written to a temporary file.
    pub fn of(secret: &Path) -> Result<Self, Error> {
        let key = SecretKey::read(secret, std::env::var("COSIGN_PASSWORD").ok().as_deref())?;
        let dir = std::env::temp_dir();
        let public = tempfile::NamedTempFile::new().at("make a file in", &dir)?;
        std::fs::write(public.path(), key.public_pem()?).at("write", public.path())?;
        Ok(Self { secret: secret.to_path_buf(), public })
    }
}

/// A push to a registry.
pub struct Push<'a> {
    /// The registry.
    pub target: Target<'a>,
    /// Store with the sets.
    pub store: &'a Path,
    /// Key that signs.
    pub signer: Option<Signer>,
    /// Attestations of provenance and contents are pushed with each set.
    pub attests: bool,
}

impl Push<'_> {
    /// Pushes a set, unless the registry has it.
    pub fn push(&self, passed: &Passed) -> Outcome {
        self.tried(passed).unwrap_or_else(|error| Outcome::Failed(error.to_string()))
    }

    fn tried(&self, passed: &Passed) -> Result<Outcome, Error> {
        let by_key = self.target.by_key(&passed.key);
        // Alone, without the agents' tag: that may have moved to the set of another cell, and this one stays.
        if let Some(found) = self.target.of_key(&passed.key)? {
            if found.set.key.digest() != passed.set.as_str() {
                let found = found.set.key.digest();
                let why = "remove the tag if this one is right";
                return Ok(Outcome::Failed(format!("{by_key} is of another set, {found}; {why}")));
            }
            if self.target.is_for_agents(&found)? && self.is_signed(&found)? {
                return Ok(Outcome::There);
            }
        }
        self.push_as(passed, &by_key)?;
        self.push_as(passed, &self.target.repository.to_string())?;
        Ok(Outcome::Pushed)
    }

    /// True if a set has the signature that is wanted.
    fn is_signed(&self, found: &Published) -> Result<bool, Error> {
        let Some(signer) = &self.signer else { return Ok(true) };
        let reference = format!("{}@{}", self.target.repository, found.digest);
        let mut command = Command::new(self.target.program);
        command.args(["verify", &reference, "--key"]).arg(signer.public.path());
        if self.attests {
            command.args(ATTESTED.iter().flat_map(|kind| ["--attestation", kind]));
        }
        let captured = capture(&command, LIMIT, MOST_OUTPUT)?;
        Ok(captured.code == Some(0))
    }

    fn push_as(&self, passed: &Passed, reference: &str) -> Result<(), Error> {
        let mut command = Command::new(self.target.program);
        command
            .args(["push", reference])
            // In one word: a text of the results is no option.
            .arg(format!("--set={}", passed.set.as_str()))
            .arg(format!("--kernel={}", passed.release))
            .arg(format!("--driver={}", passed.driver))
            .arg("--store")
            .arg(self.store)
            .env("LONGSHORE_LOG_FORMAT", "json");
        if let Some(signer) = &self.signer {
            command.arg("--sign-key").arg(&signer.secret);
            if self.attests {
                command.arg("--attest");
            }
        }
        let captured = capture(&command, LIMIT, MOST_OUTPUT)?;
        let why = match captured.code {
            Some(0) => return Ok(()),
            _ if captured.is_overdue => format!("it took more than {} s", LIMIT.as_secs()),
            _ => failure_reason(&captured.err.text())
                .unwrap_or_else(|| "longshore push ended without a reason".to_owned()),
        };
        Err(Error::Unexpected(format!("pushing to {reference}: {why}")))
    }
}

/// Returns the sets of these results that passed, each once, and the cells whose results do not name their set, or
/// whose set failed in the guest of another cell.
pub fn passed(all: &[Results]) -> (Vec<Passed>, Vec<(Line, String)>) {
    let (mut sets, mut unnamed): (Vec<Passed>, _) = (Vec::new(), Vec::new());
    let cells = || all.iter().flat_map(|results| &results.cells);
    let failed: Vec<(&Digest, &Line)> = cells().filter_map(failed_in_guest).collect();
    for cell in cells() {
        match Passed::of(cell) {
            Ok(Some(passed)) if sets.iter().any(|known| known.key == passed.key) => {}
            Ok(Some(passed)) if failed.iter().any(|(set, _)| **set == passed.set) => {
                let by = failed.iter().find(|(set, _)| **set == passed.set);
                let by = by.map_or("another cell", |(_, name)| name.as_str());
                unnamed.push((passed.name, format!("its modules failed in the guest of {by}")));
            }
            Ok(Some(passed)) => sets.push(passed),
            Ok(None) => {}
            Err(why) => unnamed.push((cell.name.clone(), why)),
        }
    }
    (sets, unnamed)
}

/// Returns the set of a cell whose guest failed with it, and the cell's name.
fn failed_in_guest(cell: &CellResult) -> Option<(&Digest, &Line)> {
    let failed = matches!(cell.verdict, Verdict::GuestEnded { .. } | Verdict::Faulty { .. });
    let set = cell.resolved.as_ref()?.set.as_ref()?;
    failed.then_some((set, &cell.name))
}

#[cfg(test)]
mod tests;
