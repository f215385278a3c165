//! Reading of the record, and the decision to trust it.

use std::io;
use std::path::{Path, PathBuf};

use super::private_dir::{NotOurs, PrivateDir};
use super::seal::{self, Key, Seal};
use super::state_file::{MOST_BYTES, NAME, SET_ASIDE};
use super::table::{self, Proof};
use super::{JournalEntry, State};
use crate::steps::LoadModule;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::paths::Paths;

/// A trusted record.
#[derive(Debug)]
pub(super) struct FoundRecord {
    pub(super) state: State,
    /// True if it is in the place of an earlier agent's record.
    pub(super) earlier: bool,
}

/// A record without the right seal, where others can write.
struct UnsealedRecord {
    path: PathBuf,
    text: Vec<u8>,
    why: &'static str,
}

/// An unsealed record that a person vouches for.
pub(super) struct VouchedRecord {
    pub(super) state: State,
    /// Its directory.
    pub(super) dir: PathBuf,
    /// Its file there.
    pub(super) name: &'static str,
}

/// Returns the record in its place, or in an earlier agent's; None if there is none, or if it is
/// [passed over](passed_over): where others can write, only a seal by this store's key is trusted.
/// Root in a container could put a record there before the first agent starts.
///
/// # Errors
/// 15 if it cannot be read; 13 if it cannot be parsed or is not trusted.
pub(super) fn find(paths: &Paths) -> Result<Option<FoundRecord>, Failure> {
    let Some((path, bytes)) = read(&paths.state, NAME)? else { return Ok(found_earlier(paths)) };
    if !paths.sealed {
        return checked(&path, &bytes, paths, Proof::Whole).map(Some);
    }
    match opened(&bytes, &paths.store)? {
        Ok(text) => checked(&path, text, paths, Proof::Whole).map(Some),
        Err(_) => Ok(None),
    }
}

fn found_earlier(paths: &Paths) -> Option<FoundRecord> {
    earlier(paths).unwrap_or_else(|failure| {
        tracing::debug!("{}", failure.one_line());
        None
    })
}

/// Returns the reason that a record is ignored, if one is.
pub(super) fn passed_over(paths: &Paths) -> Option<Failure> {
    match unsealed(paths, &[NAME, SET_ASIDE]) {
        Ok(Some(UnsealedRecord { path, why, .. })) => Some(ignored(&path, why)),
        Ok(None) => earlier(paths).err(),
        // Reading the record fails as well, and says so.
        Err(_) if paths.sealed => None,
        Err(failure) => Some(failure),
    }
}

/// True if the record in its place is to be passed over.
pub(super) fn is_unsealed(paths: &Paths) -> Result<bool, Failure> {
    Ok(paths.sealed && unsealed(paths, &[NAME])?.is_some())
}

/// Returns the unsealed record for a person who asked for it, reduced to what the closed lists of the
/// [table] permit. In its own place it has been set aside.
///
/// # Errors
/// As of [`find`].
pub(super) fn vouched(paths: &Paths) -> Result<Option<VouchedRecord>, Failure> {
    let names: &[_] = if paths.sealed { &[SET_ASIDE] } else { &[NAME, SET_ASIDE] };
    let Some(UnsealedRecord { path, text, .. }) = unsealed(paths, names)? else {
        return Ok(None);
    };
    let FoundRecord { state, .. } = checked(&path, &text, paths, Proof::Vouched)?;
    let name = if path.ends_with(NAME) { NAME } else { SET_ASIDE };
    let dir = path.parent().unwrap_or(&path).to_path_buf();
    Ok(Some(VouchedRecord { state, dir, name }))
}

/// Returns the first record of these names without the right seal, where others can write.
fn unsealed(paths: &Paths, names: &[&str]) -> Result<Option<UnsealedRecord>, Failure> {
    let shared = if paths.sealed { Some(&paths.state) } else { paths.earlier_state.as_ref() };
    let Some(dir) = shared else { return Ok(None) };
    for name in names {
        // Without a record there, no key is needed.
        let Some((path, bytes)) = read(dir, name)? else { continue };
        if let Err((text, why)) = opened(&bytes, &paths.store)? {
            return Ok(Some(UnsealedRecord { path, text: text.to_vec(), why }));
        }
    }
    Ok(None)
}

/// Text of a record without a seal of this store, and the reason.
type Unsealed<'a> = (&'a [u8], &'static str);

/// Opens a record in a place where others can write.
fn opened<'a>(bytes: &'a [u8], store: &Path) -> Result<Result<&'a [u8], Unsealed<'a>>, Failure> {
    let key = Key::find(store).map_err(|e| no_key(store, e))?;
    Ok(match (seal::opened(bytes, key.as_ref()), &key) {
        ((text, Seal::Right), _) => Ok(text),
        ((text, Seal::None), _) => Err((text, "it has no seal")),
        ((text, Seal::Wrong), Some(_)) => Err((text, "its seal is not by the key in this store")),
        ((text, Seal::Wrong), None) => Err((text, "it is sealed, and this store has no key")),
    })
}

/// Returns the record in the earlier place, if it has the seal of this store.
///
/// # Errors
/// The reason that it is not trusted. Others can put anything there, and must not stop an agent by
/// it.
fn earlier(paths: &Paths) -> Result<Option<FoundRecord>, Failure> {
    let Some(dir) = &paths.earlier_state else { return Ok(None) };
    let Some((path, bytes)) = read(dir, NAME)? else { return Ok(None) };
    match opened(&bytes, &paths.store)? {
        Ok(text) => {
            let found = checked(&path, text, paths, Proof::Whole)?;
            Ok(Some(FoundRecord { earlier: true, ..found }))
        }
        Err((_, why)) => Err(ignored(&path, why)),
    }
}

fn checked(path: &Path, text: &[u8], paths: &Paths, proof: Proof) -> Result<FoundRecord, Failure> {
    let mut state = super::parse_state(path, text)?;
    if proof == Proof::Vouched {
        trust_less(&mut state, paths);
    }
    table::check(&state, paths, proof).map_err(|why| forged(path, &why))?;
    Ok(FoundRecord { state, earlier: false })
}

/// Reduces a record without proof to the entries that the table can judge: no directories of its
/// own, no steps to come, and no modules of the host's kernel. The kernel modules that a driver
/// needs differ from kernel to kernel, so any name would pass; a real agent's stay loaded
/// instead, and are idle. It is never a whole driver to adopt.
fn trust_less(state: &mut State, paths: &Paths) {
    const FIRST_PROCESS: &str = "/proc/1/root";
    let is_known = |root: &Path| root == paths.host_root || root == Path::new(FIRST_PROCESS);
    state.host_root = state.host_root.take().filter(|root| is_known(&root.path));
    state.made_for.clear();
    state.previous.clear();
    state.refused = None;
    state.plan = None;
    state.whole = false;
    let is_kernels = |entry: &JournalEntry| {
        LoadModule::recorded(&entry.step).is_some_and(|module| !module.is_of_driver())
    };
    state.entries.retain(|entry| !is_kernels(entry));
}

/// Returns the bytes of the record of this name in `dir`, with its path; None if there is none.
fn read(dir: &Path, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>, Failure> {
    let path = dir.join(name);
    let opened = match PrivateDir::open(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened,
    };
    match opened.and_then(|dir| dir.read(name, MOST_BYTES)) {
        Ok(bytes) => Ok(bytes.map(|bytes| (path, bytes))),
        Err(e) if NotOurs::is_cause_of(&e) => Err(forged(&path, &e.to_string())),
        Err(e) => Err(unread(&path, e)),
    }
}

fn unread(path: &Path, error: io::Error) -> Failure {
    let remedy = "check the file system of --state-dir";
    super::inaccessible(format!("reading {}", path.display()), error, "--state-dir", remedy)
}

pub(super) fn no_key(store: &Path, error: io::Error) -> Failure {
    let cause = format!("reading the key that seals the record, in {}", store.display());
    let remedy = "only root may write to the store, which must be the last agent's (--store)";
    super::inaccessible(cause, error, "--store", remedy)
}

/// Reason that a record without the right seal is ignored.
fn ignored(path: &Path, why: &str) -> Failure {
    Failure::new(
        FailureKind::Verification,
        format!("{} is passed over: {why}", path.display()),
    )
    .remedy(
        "others may have written it, so nothing of it is undone, and a driver that is loaded is \
         adopted or refused as one without a record. If you know that an agent wrote it, whose \
         store is lost, run `longshore unload --take-over-unsealed`; else move the file away. A \
         reboot clears it, too (docs/internals/decisions/record-place.md)",
    )
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
