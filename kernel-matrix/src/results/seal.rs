//! Seal of results: an HMAC by a key that only the user of the cache can read.
//!
//! A verdict counts, for reuse and for "sealed" in the report, only under this user's key. Results of
//! other machines are shown, with a note that nothing vouches for them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::Results;
use super::text::Digest;
use longshore_lab::host::error::{At, Error};

/// Name of the key's file in the cache.
pub const RESULTS_KEY: &str = "results.key";

/// Block size of SHA-256, so that HMAC takes the key as it is.
const KEY_BYTES: usize = 64;

/// Part of the authenticated text that keeps the key's other uses apart.
const PURPOSE: &[u8] = b"kernel-matrix results 2\n";

/// Seal of results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Seal {
    /// Identifier of the key.
    pub key: Digest,
    /// HMAC-SHA256 of the results without their seal, as compact JSON.
    pub hmac: Digest,
}

/// Result of the check of a seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authenticity {
    /// Sealed by this user's key.
    Sealed,
    /// Not sealed, or by another key.
    Unproven(String),
}

/// Key of a user's seals.
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// Reads the key of this path; makes one where there is none.
    ///
    /// # Errors
    /// It cannot be read or made; others may read it, or it is no key.
    pub fn read_or_make(path: &Path) -> Result<Self, Error> {
        match Self::read(path) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Self::make(path)?;
                Self::read(path)
            }
            other => other,
        }
    }

    /// Reads the key of this path.
    ///
    /// # Errors
    /// There is none, others may read it, or it is no key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).at("open", path)?;
        let meta = file.metadata().at("look at", path)?;
        let refused = |why: &str| Err(Error::Unexpected(format!("key {}: {why}", path.display())));
        if meta.permissions().mode() & 0o077 != 0 || meta.uid() != geteuid().as_raw() {
            return refused("others can read or write it: remove it, and a new one is made");
        }
        let mut bytes = Vec::new();
        file.take(2 * KEY_BYTES as u64 + 2).read_to_end(&mut bytes).at("read", path)?;
        match key_of(&bytes) {
            Some(key) => Ok(Self(key)),
            None => refused(
                "it has neither 64 bytes nor 128 hex digits: remove it, and a new one is made in the cache",
            ),
        }
    }

    /// Makes a key; keeps the one that another process makes meanwhile.
    fn make(path: &Path) -> Result<(), Error> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)
            .map_err(|e| Error::Unexpected(format!("no random numbers for a key: {e}")))?;
        let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .at("make", &unfinished)?;
        file.write_all(&key).and_then(|()| file.sync_all()).at("write", &unfinished)?;
        let linked = fs::hard_link(&unfinished, path);
        fs::remove_file(&unfinished).at("remove", &unfinished)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.at("make", path),
        }
    }

    /// Returns the HMAC of a text.
    pub fn hmac(&self, text: &[u8]) -> Digest {
        let mut mac = Hmac::<Sha256>::new(&self.0.into());
        mac.update(text);
        Digest::from_sha256(&mac.finalize().into_bytes().into())
    }

    fn id(&self) -> Digest {
        self.hmac(b"identifier")
    }
}

/// Returns a key of 64 bytes, or of 128 hex digits with or without a line's end, as a CI keeps secrets.
fn key_of(bytes: &[u8]) -> Option<[u8; KEY_BYTES]> {
    if let Ok(key) = bytes.try_into() {
        return Some(key);
    }
    let digits = std::str::from_utf8(bytes.strip_suffix(b"\n").unwrap_or(bytes)).ok()?;
    if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(key)
}

impl Results {
    /// Seals the results as they are.
    ///
    /// # Errors
    /// They cannot be written as JSON.
    pub fn seal(&mut self, key: &Key) -> Result<(), Error> {
        let hmac = self.seal_hmac(key)?;
        self.seal = Some(Seal { key: key.id(), hmac });
        Ok(())
    }

    /// Checks the seal.
    ///
    /// # Errors
    /// It is of this key, and the results were changed since.
    pub fn authenticity(&self, key: Option<&Key>) -> Result<Authenticity, Error> {
        let unproven = |why: &str| Ok(Authenticity::Unproven(why.to_owned()));
        let Some(seal) = &self.seal else { return unproven("they have no seal") };
        let Some(key) = key else { return unproven("no key to check their seal with") };
        if seal.key != key.id() {
            return unproven("they were sealed on another machine, or by another user");
        }
        if self.seal_hmac(key)? == seal.hmac {
            return Ok(Authenticity::Sealed);
        }
        let id = &self.run.id;
        Err(Error::Unexpected(format!("results of run {id} were changed after they were sealed")))
    }

    fn seal_hmac(&self, key: &Key) -> Result<Digest, Error> {
        let bare = Self { seal: None, ..self.clone() };
        let mut text = PURPOSE.to_vec();
        serde_json::to_writer(&mut text, &bare)
            .map_err(|e| Error::Unexpected(format!("the results as JSON: {e}")))?;
        Ok(key.hmac(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_seal_holds_for_the_sealed_results_alone() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key::read_or_make(&dir.path().join("key")).unwrap();
        let mut results = sample::results();
        results.seal(&key).unwrap();
        assert_eq!(results.authenticity(Some(&key)).unwrap(), Authenticity::Sealed);
        results.cells[0].verdict = super::super::Verdict::Works {};
        results.cells[1].verdict = super::super::Verdict::Works {};
        let error = results.authenticity(Some(&key)).unwrap_err().to_string();
        assert!(error.contains("changed after they were sealed"), "{error}");
    }

    #[test]
    fn a_seal_of_another_key_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ["a", "b"].map(|name| Key::read_or_make(&dir.path().join(name)).unwrap());
        let mut results = sample::results();
        assert!(matches!(results.authenticity(Some(&keys[1])), Ok(Authenticity::Unproven(_))));
        results.seal(&keys[0]).unwrap();
        assert!(matches!(results.authenticity(Some(&keys[1])), Ok(Authenticity::Unproven(_))));
        assert!(matches!(results.authenticity(None), Ok(Authenticity::Unproven(_))));
    }

    #[test]
    fn a_key_is_read_as_bytes_and_as_hex_digits() {
        let hex = "0a".repeat(KEY_BYTES);
        for (bytes, is_key) in [
            ([10; KEY_BYTES].to_vec(), true),
            (hex.clone().into_bytes(), true),
            (format!("{hex}\n").into_bytes(), true),
            (format!("{hex}\n\n").into_bytes(), false),
            (hex.replace('a', "g").into_bytes(), false),
            (hex.as_bytes()[2..].to_vec(), false),
            (vec![10; KEY_BYTES + 1], false),
            (Vec::new(), false),
        ] {
            assert_eq!(key_of(&bytes), is_key.then_some([10; KEY_BYTES]), "{bytes:?}");
        }
    }

    #[test]
    fn a_key_is_made_once_and_for_its_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let made = Key::read_or_make(&path).unwrap().id();
        assert_eq!(Key::read_or_make(&path).unwrap().id(), made);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Key::read_or_make(&path).err().unwrap().to_string();
        assert!(error.contains("others can read"), "{error}");
    }
}
