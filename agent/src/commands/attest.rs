//! `attest`: statements about sets that are in a registry or a layout already.

use std::path::{Path, PathBuf};

use super::print;
use super::registry::{secret_key, to_push};
use super::verify::{named, sets_in};
use crate::config::Config;
use longshore_core::bounded_read;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::hex_of;
use longshore_modules::layout;
use longshore_modules::signature::attestation::Attestation;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::statement::PredicateType;
use longshore_modules::signature::{Evidence, Trust};

/// Maximum size of a file with a predicate.
const MAX_FILE: u64 = 1 << 20;

/// Arguments of `attest`.
#[derive(Debug, clap::Args)]
pub(super) struct Attest {
    /// Module set or other artifact in a registry (HOST/REPOSITORY@DIGEST) or in an image layout
    /// (DIRECTORY@DIGEST). A module set without its digest (HOST/REPOSITORY:TAG, or the only set of a
    /// directory) has to be signed with the same key already
    #[arg(value_name = "REFERENCE|DIRECTORY")]
    what: String,
    /// File with the statement's predicate, a JSON object
    #[arg(long, value_name = "FILE")]
    predicate: PathBuf,
    /// Type of the predicate: provenance, spdx, test-result, or the URI of a type
    #[arg(long = "type", value_name = "TYPE")]
    kind: PredicateType,
    /// Sign with this key: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(long, value_name = "FILE")]
    sign_key: PathBuf,
}

pub(super) async fn attest(config: &Config, asked: Attest) -> Result<ExitCode, Failure> {
    let predicate = predicate(&asked.predicate)?;
    let key = secret_key(&asked.sign_key)?;
    let (place, new) = match of_layout(&asked.what) {
        Some((dir, digest)) => in_layout(config, dir, digest, &asked.kind, predicate, &key)?,
        None => in_registry(config, &asked, predicate, &key).await?,
    };
    let kind = &asked.kind;
    let done = if new { "attested" } else { "was attested already" };
    print(&format!("{place}: {kind} {done}\n"))?;
    Ok(ExitCode::Done)
}

/// Returns the directory of a layout, and the digest of the set in it that is given.
pub(super) fn of_layout(what: &str) -> Option<(&Path, Option<&str>)> {
    if Path::new(what).is_dir() {
        return Some((Path::new(what), None));
    }
    let (dir, digest) = what.rsplit_once('@')?;
    let dir = Path::new(dir);
    (dir.is_dir() && hex_of(digest).is_some()).then_some((dir, Some(digest)))
}

/// Trust in one key, without any attestation.
fn trusting(key: &SecretKey) -> Trust {
    Trust::in_keys([key.public()])
}

/// Checks that a set which was not given by its digest is signed with the key already: whoever can
/// write to the place decides which set a tag names.
///
/// # Errors
/// Exit code 13 where it is not.
fn check_signed(
    place: &str,
    evidence: &Evidence,
    set: &ModuleSet,
    key: &SecretKey,
) -> Result<(), Failure> {
    evidence.verify(set, &[key.public()]).map(drop).map_err(|why| {
        let cause = format!("{place} was not given by its digest, and is not attested: {why}");
        Failure::new(FailureKind::Verification, cause).remedy(
            "give HOST/REPOSITORY@sha256:... or DIRECTORY@sha256:... of the set that you mean, or \
             sign it with this key first (`longshore push --sign-key`)",
        )
    })
}

/// Attests the set of a registry; returns its name, and false where it has the attestation already.
async fn in_registry(
    config: &Config,
    asked: &Attest,
    predicate: serde_json::Value,
    key: &SecretKey,
) -> Result<(String, bool), Failure> {
    let (reference, name) = named(&asked.what)?;
    let repository = &reference.repository;
    let registry = to_push(config, repository)?;
    let subject = match &reference.digest {
        // Any artifact: nobody but the caller has decided which one.
        Some(digest) => registry.manifest(digest).await?,
        None => {
            let set = registry.describe(&name).await?;
            let place = format!("{repository}@{}", set.digest());
            let evidence = registry.evidence(&set, &trusting(key)).await?;
            check_signed(&place, &evidence, &set.set, key)?;
            set.descriptor()
        }
    };
    let place = format!("{repository}@{}", subject.digest);
    let name = repository.name();
    let attestation = Attestation::make(key, &name, &subject.digest, &asked.kind, predicate)?;
    let new = registry.attest(&subject, &[attestation]).await?;
    Ok((place, new))
}

/// Attests the artifact of a layout with this digest, or its only set.
fn in_layout(
    config: &Config,
    dir: &Path,
    digest: Option<&str>,
    kind: &PredicateType,
    predicate: serde_json::Value,
    key: &SecretKey,
) -> Result<(String, bool), Failure> {
    let digest = match digest {
        Some(digest) => digest.to_owned(),
        None => only_signed_set(dir, key)?,
    };
    // A layout has no name in a registry; verification ignores it.
    let attestation = Attestation::make(key, "layout", &digest, kind, predicate)?;
    let (wait, disk) = (config.deadlines.lock, config.disk());
    let new = layout::add_attestations(dir, &digest, &[attestation], wait, disk)?;
    Ok((format!("{}@{digest}", dir.display()), new))
}

/// Returns the digest of the only set in a layout, which the key has to have signed.
fn only_signed_set(dir: &Path, key: &SecretKey) -> Result<String, Failure> {
    let sets = sets_in(dir)?;
    let [set] = &sets[..] else {
        let cause = format!("{} holds {} sets, and one is attested", dir.display(), sets.len());
        return Err(Failure::new(FailureKind::Usage, cause)
            .remedy("give the digest of one of its sets: DIRECTORY@sha256:..."));
    };
    let place = format!("{}@{}", dir.display(), set.manifest);
    let evidence = layout::evidence(dir, &set.manifest, &trusting(key))?;
    check_signed(&place, &evidence, &set.set, key)?;
    Ok(set.manifest.clone())
}

/// Reads a predicate.
fn predicate(path: &Path) -> Result<serde_json::Value, Failure> {
    let what = || format!("reading the predicate {}", path.display());
    let text = bounded_read::read_text(path, MAX_FILE).or_fail(FailureKind::Usage, what)?;
    serde_json::from_str(&text)
        .or_fail(FailureKind::Usage, what)
        .map_err(|failure| failure.remedy("give a file with one JSON object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::object(r#"{"result": "PASSED"}"#, true)]
    #[case::nothing("", false)]
    #[case::two("{} {}", false)]
    #[case::no_json("PASSED", false)]
    fn predicates_are_json(#[case] text: &str, #[case] valid: bool) {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("predicate.json");
        std::fs::write(&path, text).expect("writes");
        let read = predicate(&path);
        assert_eq!(read.is_ok(), valid);
        if let Err(failure) = read {
            assert_eq!(failure.code(), ExitCode::Usage);
            assert!(failure.remedy_text().is_some());
        }
    }
}
