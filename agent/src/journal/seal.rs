//! Seal of a record in a place where others can write: HMAC-SHA256 over its bytes, by a key in the
//! store. It proves that an agent with this store wrote them; not that they are the last it wrote.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use super::private_dir::PrivateDir;
use longshore_core::bounded_call;
use longshore_core::disk::Disk;

/// Name of the key, in the root of the store.
const NAME: &str = "record.key";
/// Beginning of the key's name while it is written.
const NEXT: &str = ".record.key.";
const BYTES: usize = 32;
/// Beginning of a sealed record's last line.
const LINE: &str = "seal hmac-sha256 ";
/// Prefix of the hashed bytes, so that nothing else that this key may come to seal passes for a
/// record.
const PURPOSE: &[u8] = b"longshore record 1\n";
/// Time limit for reading the key from the store.
const LIMIT: Duration = Duration::from_secs(10);

/// The key of a store.
#[derive(Clone)]
pub(super) struct Key(Arc<hmac::Key>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Result of checking a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// No seal.
    None,
    /// A seal by this key.
    Right,
    /// A seal by another key, or of other bytes.
    Wrong,
}

impl Key {
    /// Returns the key in the store; None if there is none.
    ///
    /// # Errors
    /// The kernel's error; a timeout if the store does not answer; also if others can have written
    /// the key, or it is not a valid one.
    pub(super) fn find(store: &Path) -> io::Result<Option<Self>> {
        in_time(store, |store| match PrivateDir::open(store) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            dir => read(&dir?),
        })
    }

    /// The same; makes the key if there is none.
    ///
    /// # Errors
    /// Like [`Key::find`], and if it cannot be written.
    pub(super) fn find_or_make(store: &Path, disk: Disk) -> io::Result<Self> {
        in_time(store, move |store| {
            let dir = PrivateDir::make(store)?;
            read(&dir)?.map_or_else(|| make(&dir, disk), Ok)
        })
    }

    /// Returns the bytes with a line that seals them.
    pub(super) fn seal(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let tag = self.tag(&bytes);
        bytes.extend(format!("{LINE}{}\n", longshore_core::digest::hex(tag.as_ref())).into_bytes());
        bytes
    }

    fn tag(&self, bytes: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(PURPOSE);
        context.update(bytes);
        context.sign()
    }

    fn is_tag(&self, tag: &[u8], bytes: &[u8]) -> bool {
        // `verify` compares in constant time.
        hmac::verify(&self.0, &[PURPOSE, bytes].concat(), tag).is_ok()
    }
}

/// Returns the bytes without their seal, and the result of checking it.
pub(super) fn opened<'a>(bytes: &'a [u8], key: Option<&Key>) -> (&'a [u8], Seal) {
    let Some((text, tag)) = parts(bytes) else { return (bytes, Seal::None) };
    let right = key.zip(tag).is_some_and(|(key, tag)| key.is_tag(&tag, text));
    (text, if right { Seal::Right } else { Seal::Wrong })
}

/// Returns the bytes before the seal's line, and the decoded seal if it is hexadecimal.
fn parts(bytes: &[u8]) -> Option<(&[u8], Option<Vec<u8>>)> {
    let without = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let at = without.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (text, line) = without.split_at_checked(at)?;
    let digits = line.strip_prefix(LINE.as_bytes())?;
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    Some((text, digits.chunks(2).map(pair).collect()))
}

fn in_time<T: Send + 'static>(
    store: &Path,
    look: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let store = store.to_path_buf();
    let look = move || {
        // The store may be a link; the files in it may not.
        let real = std::fs::canonicalize(&store).unwrap_or(store);
        look(&real)
    };
    bounded_call::in_time("record-key", LIMIT, look).unwrap_or_else(|| {
        let why = format!("the store does not answer within {LIMIT:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

fn read(dir: &PrivateDir) -> io::Result<Option<Key>> {
    let Some(bytes) = dir.read(NAME, BYTES as u64)? else { return Ok(None) };
    if bytes.len() != BYTES {
        return Err(io::Error::other(format!("{NAME} is no key: it has {} bytes", bytes.len())));
    }
    Ok(Some(key(&bytes)))
}

fn make(dir: &PrivateDir, disk: Disk) -> io::Result<Key> {
    let mut bytes = [0; BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
    let mut file = tempfile::Builder::new().prefix(NEXT).tempfile_in(dir.path())?;
    file.write_all(&bytes)?;
    disk.sync(file.as_file())?;
    match file.persist_noclobber(dir.path().join(NAME)) {
        Ok(_) => {}
        // Another agent made the store's key first: there is only one.
        Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e.error),
    }
    dir.sync(disk)?;
    read(dir)?.ok_or_else(|| io::Error::other(format!("{NAME} was removed again")))
}

fn key(bytes: &[u8]) -> Key {
    Key(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn the_page_about_deadlines_has_their_span() {
        longshore_core::testing::assert_in_page("The key that seals the record", LIMIT);
    }

    #[test]
    fn a_store_has_one_key_which_its_owner_alone_can_read() {
        let store = tempfile::tempdir().unwrap();
        assert!(Key::find(store.path()).unwrap().is_none());
        assert!(Key::find(&store.path().join("none")).unwrap().is_none());
        let sealed =
            Key::find_or_make(store.path(), Disk::default()).unwrap().seal(b"{}\n".to_vec());
        let again = Key::find_or_make(store.path(), Disk::default()).unwrap();
        assert_eq!(opened(&sealed, Some(&again)), (b"{}\n".as_slice(), Seal::Right));
        let found = fs::metadata(store.path().join(NAME)).unwrap();
        assert_eq!((found.mode() & 0o777, found.len()), (0o600, 32));
    }

    #[test]
    fn agents_that_make_it_at_once_have_the_same_key() {
        let store = tempfile::tempdir().unwrap();
        let make = || Key::find_or_make(store.path(), Disk::default()).unwrap().seal(Vec::new());
        let sealed: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(sealed.iter().all(|one| *one == sealed[0]));
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_key_that_others_can_have_written_or_that_is_none_is_refused() {
        let store = tempfile::tempdir().unwrap();
        drop(Key::find_or_make(store.path(), Disk::default()).unwrap());
        let file = store.path().join(NAME);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(Key::find(store.path()).is_err());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&file, "short").unwrap();
        assert!(Key::find_or_make(store.path(), Disk::default()).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"short");
    }

    #[test]
    fn one_byte_or_another_key_makes_a_seal_wrong() {
        let (ours, theirs) = (key(&[1; BYTES]), key(&[2; BYTES]));
        let sealed = ours.seal(b"{\"a\": 1}\n".to_vec());
        assert_eq!(opened(&sealed, Some(&ours)).1, Seal::Right);
        assert_eq!(opened(&sealed, Some(&theirs)).1, Seal::Wrong);
        assert_eq!(opened(&sealed, None).1, Seal::Wrong);
        assert_eq!(opened(b"{\"a\": 1}\n", Some(&ours)).1, Seal::None);
        for at in 0..sealed.len() - 1 {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_ne!(opened(&changed, Some(&ours)).1, Seal::Right, "byte {at}");
        }
        let longer = [sealed.as_slice(), sealed.as_slice()].concat();
        assert_eq!(opened(&longer, Some(&ours)).1, Seal::Wrong);
        for text in
            ["", "\n", "seal hmac-sha256 ", "seal hmac-sha256 0\n", "x\nseal hmac-sha256 zz"]
        {
            assert_ne!(opened(text.as_bytes(), Some(&ours)).1, Seal::Right, "{text}");
        }
    }
}
