//! Pushing of the sets that passed to a registry.
//!
//! Each set is pushed under the tag of its cell's key first, signed and attested there, and then tagged for the agents:
//! whatever fails on the way, they find the set complete and signed, or not at all. All of it is done by `longshore
//! push` and `longshore attest`, which send nothing that the registry has, so that a push that ended early is continued
//! by the next one.

pub mod published;
pub(crate) mod test_result;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_modules::signature::key::SecretKey;

use crate::build_run::capture::capture;
use crate::build_run::verdict::failure_reason;
use crate::push::published::{Published, Target};
use crate::results::{CellResult, Digest, Line, ResolvedCell, Results, Run, Verdict};
use longshore_lab::host::error::{At, Error};
use test_result::TestResult;

/// Time limit of one push.
const LIMIT: Duration = Duration::from_secs(1800);
/// Maximum size of an output that is kept.
const MOST_OUTPUT: usize = 1 << 20;
/// Attestations that `longshore push --attest` makes.
const ATTESTED: [&str; 2] = ["provenance", "spdx"];
/// Attestation of the sets that guests passed with, made by `longshore attest`.
const TESTED: &str = "test-result";

/// A set that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Name of its cell.
    pub name: Line,
    /// Key of the cell that compiled it.
    pub key: Digest,
    /// sha256 of the set's key.
    pub set: Digest,
    /// Cells that booted the set and passed, whichever of them compiled it.
    pub test_result: TestResult,
    release: Line,
    driver: Line,
}

impl Passed {
    /// Returns the set of a cell, without its test result; None where the cell has none to push.
    ///
    /// # Errors
    /// The cell passed, and its result does not name its key or set, or its run not its program.
    fn from_cell(run: &Run, cell: &CellResult) -> Result<Option<Self>, String> {
        match cell.verdict {
            Verdict::Works {} | Verdict::WorksPatched { .. } | Verdict::Compiled { .. } => {}
            _ => return Ok(None),
        }
        if cell.unproven {
            let why =
                "it was taken from results that no key of this user's sealed: compile the cell";
            return Err(why.to_owned());
        }
        run.agent.check_origin()?;
        let unnamed = |what: &str| format!("its result has no {what}: run the cell again");
        let ResolvedCell { set, compile_key, kernel_release, driver_version, .. } =
            cell.resolved.as_ref().ok_or_else(|| unnamed("set"))?;
        let key = compile_key.as_ref().or(cell.key.as_ref());
        Ok(Some(Self {
            name: cell.name.clone(),
            key: key.cloned().ok_or_else(|| unnamed("key"))?,
            set: set.clone().ok_or_else(|| unnamed("set"))?,
            test_result: TestResult::default(),
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
    /// The registry has it, signed and attested where that is wanted.
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
    pub fn from_key_file(secret: &Path) -> Result<Self, Error> {
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
    /// Provenance, contents and test result of each set are attested.
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
            if self.target.is_for_agents(&found)? && self.is_signed(passed, &found)? {
                return Ok(Outcome::There);
            }
        }
        let said = self.push_as(passed, &by_key)?;
        if self.attests && !passed.test_result.is_empty() {
            self.attest(passed, &by_digest(&said, &by_key, &self.target)?)?;
        }
        self.push_as(passed, &self.target.repository.to_string())?;
        Ok(Outcome::Pushed)
    }

    /// True if a set has the signature and the attestations that are wanted.
    fn is_signed(&self, passed: &Passed, found: &Published) -> Result<bool, Error> {
        let Some(signer) = &self.signer else { return Ok(true) };
        let reference = format!("{}@{}", self.target.repository, found.digest);
        let mut command = Command::new(self.target.program);
        command.args(["verify", &reference, "--key"]).arg(signer.public.path());
        if self.attests {
            let tested = (!passed.test_result.is_empty()).then_some(TESTED);
            let wanted = ATTESTED.into_iter().chain(tested);
            command.args(wanted.flat_map(|kind| ["--attestation", kind]));
        }
        let captured = capture(&command, LIMIT, MOST_OUTPUT)?;
        Ok(captured.code == Some(0))
    }

    /// Pushes a set to a reference, with its attestations of provenance and contents; returns the program's output.
    fn push_as(&self, passed: &Passed, reference: &str) -> Result<String, Error> {
        let mut command = Command::new(self.target.program);
        command
            .args(["push", reference])
            // In one word: a text of the results is no option.
            .arg(format!("--set={}", passed.set.as_str()))
            .arg(format!("--kernel={}", passed.release))
            .arg(format!("--driver={}", passed.driver))
            .arg("--store")
            .arg(self.store);
        if let Some(signer) = &self.signer {
            command.arg("--sign-key").arg(&signer.secret);
            if self.attests {
                command.arg("--attest");
            }
        }
        run(&mut command, &format!("pushing to {reference}"))
    }

    /// Attests the test result of the set with this reference.
    fn attest(&self, passed: &Passed, reference: &str) -> Result<(), Error> {
        let Some(signer) = &self.signer else { return Ok(()) };
        let dir = std::env::temp_dir();
        let file = tempfile::NamedTempFile::new().at("make a file in", &dir)?;
        let predicate = passed.test_result.predicate().to_string();
        std::fs::write(file.path(), predicate).at("write", file.path())?;
        let mut command = Command::new(self.target.program);
        command.args(["attest", reference, "--type", TESTED, "--predicate"]).arg(file.path());
        command.arg("--sign-key").arg(&signer.secret);
        run(&mut command, &format!("attesting the test result of {reference}")).map(drop)
    }
}

/// Runs longshore, which does `what`, and returns its output.
fn run(command: &mut Command, what: &str) -> Result<String, Error> {
    let captured = capture(command.env("LONGSHORE_LOG_FORMAT", "json"), LIMIT, MOST_OUTPUT)?;
    let why = match captured.code {
        Some(0) => return Ok(captured.out.text()),
        _ if captured.is_overdue => format!("it took more than {} s", LIMIT.as_secs()),
        _ => failure_reason(&captured.err.text())
            .unwrap_or_else(|| "longshore ended without a reason".to_owned()),
    };
    Err(Error::Unexpected(format!("{what}: {why}")))
}

/// Returns the pushed set's reference by its digest, which `longshore push` computes of the store's set and prints
/// after the tag: the tag may name another set by now.
fn by_digest(said: &str, tagged: &str, target: &Target<'_>) -> Result<String, Error> {
    let of = |line: &str| {
        Some(line.strip_prefix(tagged)?.strip_prefix('@')?.split(' ').next()?.to_owned())
    };
    let digest = said.lines().find_map(of).ok_or_else(|| {
        Error::Unexpected(format!("pushing to {tagged}: longshore push printed no digest: {said}"))
    })?;
    Ok(format!("{}@{digest}", target.repository))
}

/// Returns the sets of these results that passed, each once for each key, with the test results of all cells that
/// booted it; and the cells whose results do not name their set, or whose set failed in the guest of another cell.
pub fn passed(all: &[Results]) -> (Vec<Passed>, Vec<(Line, String)>) {
    let (mut sets, mut unnamed): (Vec<Passed>, _) = (Vec::new(), Vec::new());
    let mut tested: BTreeMap<Digest, TestResult> = BTreeMap::new();
    let cells = || all.iter().flat_map(|from| from.cells.iter().map(|cell| (&from.run, cell)));
    let failed: Vec<(&Digest, &Line)> = cells().filter_map(|(_, c)| failed_in_guest(c)).collect();
    for (run, cell) in cells() {
        let passed = match Passed::from_cell(run, cell) {
            Ok(Some(passed)) => passed,
            Ok(None) => continue,
            Err(why) => {
                unnamed.push((cell.name.clone(), why));
                continue;
            }
        };
        if let Some((_, by)) = failed.iter().find(|(set, _)| **set == passed.set) {
            unnamed.push((passed.name, format!("its modules failed in the guest of {by}")));
            continue;
        }
        tested.entry(passed.set.clone()).or_default().add(run, cell);
        // Another set under the same key is kept: the push reports it, as the registry has one of them.
        if !sets.iter().any(|known| known.key == passed.key && known.set == passed.set) {
            sets.push(passed);
        }
    }
    for passed in &mut sets {
        passed.test_result = tested.get(&passed.set).cloned().unwrap_or_default();
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
