//! Reading of the record, and the decision to trust it.

use std::io;
use std::path::{Path, PathBuf};

use super::private_dir::{NotOurs, PrivateDir};
use super::seal::{self, Key, Seal};
use super::state_file::{MOST_BYTES, NAME};
use super::table::{self, Proof};
use super::{Entry, State};
use crate::steps::LoadModule;
use longshore_core::durable::write_remedy;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::paths::Paths;

/// A trusted record.
#[derive(Debug)]
pub(super) struct FoundRecord {
    pub(super) state: State,
    /// True if it is in the place of an earlier agent's record.
    pub(super) earlier: bool,
}

/// Returns the record in its place, or in an earlier agent's; None if there is none, or if one in
/// the earlier place is [passed over](passed_over).
///
/// # Errors
/// 15 if it cannot be read; 13 if it cannot be parsed or is not trusted.
pub(super) fn find(paths: &Paths) -> Result<Option<FoundRecord>, Failure> {
    if let Some((path, bytes)) = read(&paths.state)? {
        let (text, proof) = match paths.sealed {
            true => unsealed(&path, &bytes, &paths.store)?,
            false => (&bytes[..], Proof::Whole),
        };
        return checked(&path, text, paths, proof).map(Some);
    }
    match earlier(paths) {
        Ok(found) => Ok(found),
        Err(failure) => {
            tracing::debug!("{}", failure.one_line());
            Ok(None)
        }
    }
}

/// Returns the reason that a record in the earlier place is ignored, if one is.
pub(super) fn passed_over(paths: &Paths) -> Option<Failure> {
    earlier(paths).err()
}

/// Opens a record in a place where others can write: only its seal is trusted. A record without a
/// seal is an older agent's, as long as no agent that seals has run.
fn unsealed<'a>(path: &Path, bytes: &'a [u8], store: &Path) -> Result<(&'a [u8], Proof), Failure> {
    let key = Key::find(store).map_err(|e| no_key(store, e))?;
    match (seal::opened(bytes, key.as_ref()), &key) {
        ((text, Seal::Right), _) => Ok((text, Proof::Whole)),
        ((text, Seal::None), None) => Ok((text, Proof::None)),
        ((_, Seal::None), Some(_)) => Err(forged(path, "it has no seal")),
        ((_, Seal::Wrong), Some(_)) => {
            Err(forged(path, "its seal is not by the key in this store"))
        }
        ((_, Seal::Wrong), None) => Err(forged(path, "it is sealed, and this store has no key")),
    }
}

/// Returns the record in the earlier place. It is trusted if it has the seal of this store, or no
/// seal and no agent that seals ever ran with this store.
///
/// # Errors
/// The reason that it is not trusted. Others can put anything there, and must not stop an agent by
/// it.
fn earlier(paths: &Paths) -> Result<Option<FoundRecord>, Failure> {
    let Some(dir) = &paths.earlier_state else { return Ok(None) };
    // Without a record there, no key is needed.
    let Some((path, bytes)) = read(dir)? else { return Ok(None) };
    let key = Key::find(&paths.store).map_err(|e| no_key(&paths.store, e))?;
    match (seal::opened(&bytes, key.as_ref()), &key) {
        ((text, Seal::Right), _) => earlier_one(checked(&path, text, paths, Proof::Whole)),
        ((text, Seal::None), None) => earlier_one(checked(&path, text, paths, Proof::None)),
        _ => Err(forged(&path, "it has no seal by the key in this store")),
    }
}

fn earlier_one(found: Result<FoundRecord, Failure>) -> Result<Option<FoundRecord>, Failure> {
    found.map(|found| Some(FoundRecord { earlier: true, ..found }))
}

fn checked(path: &Path, text: &[u8], paths: &Paths, proof: Proof) -> Result<FoundRecord, Failure> {
    let mut state = super::parse_state(path, text)?;
    if proof == Proof::None {
        trust_less(&mut state, paths);
    }
    table::check(&state, paths, proof).map_err(|why| forged(path, &why))?;
    Ok(FoundRecord { state, earlier: false })
}

/// Reduces a record without proof to the entries that the table can judge: no directories of its
/// own, no steps to come, and no modules of the host's kernel. The kernel modules that a driver
/// needs differ from kernel to kernel, so any name would pass; an older agent's stay loaded
/// instead, and are idle.
fn trust_less(state: &mut State, paths: &Paths) {
    const FIRST_PROCESS: &str = "/proc/1/root";
    let is_known = |root: &Path| root == paths.host_root || root == Path::new(FIRST_PROCESS);
    state.host_root = state.host_root.take().filter(|root| is_known(&root.path));
    state.made_for.clear();
    state.previous.clear();
    state.refused = None;
    let is_kernels = |entry: &Entry| {
        LoadModule::recorded(&entry.step).is_some_and(|module| !module.is_of_driver())
    };
    state.entries.retain(|entry| !is_kernels(entry));
}

/// Returns the bytes of the record in `dir`, with its path; None if there is none.
fn read(dir: &Path) -> Result<Option<(PathBuf, Vec<u8>)>, Failure> {
    let path = dir.join(NAME);
    let opened = match PrivateDir::open(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened,
    };
    match opened.and_then(|dir| dir.read(NAME, MOST_BYTES)) {
        Ok(bytes) => Ok(bytes.map(|bytes| (path, bytes))),
        Err(e) if NotOurs::is_cause_of(&e) => Err(forged(&path, &e.to_string())),
        Err(e) => Err(unread(&path, e)),
    }
}

fn unread(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--state-dir")
        .unwrap_or_else(|| "check the file system of --state-dir".to_owned());
    Failure::new(FailureKind::Preflight, format!("reading {}", path.display()))
        .with_source(error)
        .remedy(remedy)
}

pub(super) fn no_key(store: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--store").unwrap_or_else(|| {
        "only root may write to the store, which must be the last agent's (--store)".to_owned()
    });
    Failure::new(
        FailureKind::Preflight,
        format!("reading the key that seals the record, in {}", store.display()),
    )
    .with_source(error)
    .remedy(remedy)
}

pub(super) fn forged(path: &Path, why: &str) -> Failure {
    Failure::new(
        FailureKind::Verification,
        format!("{} is not trusted: {why}", path.display()),
    )
    .remedy(
        "others may have written it, so nothing of it is undone: find out who did, look at what is \
         loaded and mounted and remove by hand what is longshore's, move the file away and start \
         again; a reboot clears it, too. Where it is an agent's of another store or version, run \
         `longshore unload` with that one first (docs/internals/decisions/record-place.md)",
    )
}
