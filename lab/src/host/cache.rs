//! Cache of products that take long to make and depend on known inputs only: made once, kept
//! outside the repository, named by the digest of their inputs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{Flock, FlockArg};

use crate::host::error::{At, Error};

/// A directory of finished products.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens `$LONGSHORE_CACHE`, else `$XDG_CACHE_HOME/longshore`, else `~/.cache/longshore`.
    ///
    /// # Errors
    /// None of the variables is set, or the directory cannot be made.
    pub fn of_user() -> Result<Self, Error> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = var("LONGSHORE_CACHE")
            .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("longshore")))
            .or_else(|| var("HOME").map(|dir| dir.join(".cache/longshore")))
            .ok_or_else(|| Error::Matrix("neither LONGSHORE_CACHE nor HOME is set".into()))?;
        Self::at(root.join("matrix"))
    }

    /// Opens a cache in this directory.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn at(root: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&root).at("make", &root)?;
        Ok(Self { root })
    }

    /// Returns a directory in the cache that is kept from run to run.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the finished `kind` made of `inputs`; where there is none yet, `make` fills an empty
    /// directory. Waits for another process that makes the same product.
    ///
    /// # Errors
    /// The error of `make`; nothing is left then.
    pub fn produce(
        &self,
        kind: &str,
        inputs: &[&str],
        make: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        self.produce_held(kind, inputs, make).map(|(finished, _)| finished)
    }

    /// As [`Cache::produce`], and keeps the product from being removed until the second value is dropped.
    ///
    /// # Errors
    /// As [`Cache::produce`].
    pub fn produce_held(
        &self,
        kind: &str,
        inputs: &[&str],
        make: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(PathBuf, Held), Error> {
        let name = format!("{kind}-{}", &digest(inputs)[..16]);
        let finished = self.root.join(&name);
        let mut make = Some(make);
        loop {
            let shared = self.locked(&name, FlockArg::LockShared)?;
            if finished.exists() {
                // The modification time is the time of last use, by which `prune` removes. A cache that
                // cannot be written to still serves.
                let now = SystemTime::now();
                let _ = fs::File::open(&finished).and_then(|dir| dir.set_modified(now));
                return Ok((finished, Held { _lock: shared }));
            }
            drop(shared);
            match make.take() {
                Some(make) => self.make(&name, &finished, make)?,
                None => {
                    let path = finished.display();
                    return Err(Error::Unexpected(format!(
                        "{path} was removed at once; run again"
                    )));
                }
            }
        }
    }

    /// Makes a product unless another process has made it meanwhile.
    fn make(
        &self,
        name: &str,
        finished: &Path,
        make: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _held = self.lock(name)?;
        if finished.exists() {
            return Ok(());
        }
        let unfinished = self.root.join(format!("{name}.unfinished"));
        remove(&unfinished)?;
        fs::create_dir(&unfinished).at("make", &unfinished)?;
        if let Err(error) = make(&unfinished) {
            remove(&unfinished)?;
            return Err(error);
        }
        fs::rename(&unfinished, finished).at("finish", finished)
    }

    /// Removes the products of these kinds that were unused for longest, until all of them together take
    /// no more than `bytes` on disk. Those in use stay.
    ///
    /// # Errors
    /// The cache cannot be read, or something cannot be removed.
    pub fn bound(&self, kinds: &[&str], bytes: u64) -> Result<(), Error> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root).at("read", &self.root)? {
            let entry = entry.at("read", &self.root)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = name.rsplit_once('-').map_or("", |(kind, _)| kind);
            if is_product(&name) && kinds.contains(&kind) {
                let path = entry.path();
                let used = fs::metadata(&path).and_then(|m| m.modified()).at("inspect", &path);
                // Another process may remove it meanwhile.
                match used.and_then(|used| Ok((used, bytes_on_disk(&path)?))) {
                    Ok((used, size)) => found.push((used, size, name)),
                    Err(error) if path.exists() => return Err(error),
                    Err(_) => {}
                }
            }
        }
        found.sort();
        let mut total: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, name) in found {
            if total <= bytes {
                break;
            }
            if let Some(_held) = self.try_lock(&name)? {
                self.remove(&name)?;
                total -= size;
            }
        }
        Ok(())
    }

    /// Removes products unused for `unused`, and unfinished ones of a run that was killed. The lock
    /// file stays: removing it would let two processes hold the lock.
    ///
    /// # Errors
    /// The cache cannot be read, or something cannot be removed.
    pub fn prune(&self, unused: Duration) -> Result<(), Error> {
        for entry in fs::read_dir(&self.root).at("read", &self.root)? {
            let path = entry.at("read", &self.root)?.path();
            let is_lock = path.extension().is_some_and(|e| e == "lock");
            let Some(name) = path.file_stem().and_then(|n| n.to_str()).filter(|_| is_lock) else {
                continue;
            };
            let finished = self.root.join(name);
            if !is_product(name) || !is_older(&finished, unused) {
                continue;
            }
            let file = fs::File::open(&path).at("open", &path)?;
            // A failed lock means that another process uses it.
            if let Ok(_held) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                self.remove(name)?;
            }
        }
        Ok(())
    }

    /// Removes a product whose lock is held. It is unfinished before the first of its files is gone, so that none
    /// counts as finished after a removal that was ended.
    fn remove(&self, name: &str) -> Result<(), Error> {
        let (finished, unfinished) =
            (self.root.join(name), self.root.join(format!("{name}.unfinished")));
        remove(&unfinished)?;
        match fs::rename(&finished, &unfinished) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other.at("remove", &finished)?,
        }
        remove(&unfinished)
    }

    /// Locks `name` until the result is dropped.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub fn lock(&self, name: &str) -> Result<Flock<fs::File>, Error> {
        self.locked(name, FlockArg::LockExclusive)
    }

    /// Locks `name` unless another holds it.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub fn try_lock(&self, name: &str) -> Result<Option<Flock<fs::File>>, Error> {
        let path = self.root.join(format!("{name}.lock"));
        let file = fs::File::create(&path).at("make", &path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => Ok(Some(held)),
            Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(error).at("lock", &path),
        }
    }

    fn locked(&self, name: &str, how: FlockArg) -> Result<Flock<fs::File>, Error> {
        let path = self.root.join(format!("{name}.lock"));
        let file = fs::File::create(&path).at("make", &path)?;
        Flock::lock(file, how).map_err(|(_, e)| e).at("lock", &path)
    }
}

/// A product in use, which is not removed from the cache.
#[derive(Debug)]
pub struct Held {
    _lock: Flock<fs::File>,
}

/// Returns the space that a directory's files take on disk: images are sparse.
fn bytes_on_disk(dir: &Path) -> Result<u64, Error> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        let metadata = fs::symlink_metadata(&path).at("inspect", &path)?;
        bytes += if metadata.is_dir() { bytes_on_disk(&path)? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

/// True if `name` has the form that [`Cache::produce`] gives: `KIND-` and 16 digits of a digest.
fn is_product(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, digest)| {
        digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// True if a directory was last used longer ago than `than`, or does not exist.
fn is_older(dir: &Path, than: Duration) -> bool {
    let modified = fs::metadata(dir).and_then(|m| m.modified());
    modified.map_or(true, |at| at.elapsed().is_ok_and(|age| age > than))
}

fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.at("remove", dir),
    }
}

/// Returns the sha256 (hex) of the inputs, each with its length so that they cannot run into one
/// another.
pub fn digest(inputs: &[&str]) -> String {
    let text: String = inputs.iter().map(|i| format!("{}:{i}\n", i.len())).collect();
    longshore_core::digest::digest_of(text.as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_made_once_per_inputs() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("c")).unwrap();
        let make = |into: &Path| fs::write(into.join("f"), "x").at("write", into);
        let first = cache.produce("k", &["a", "b"], make).unwrap();
        let again = cache
            .produce("k", &["a", "b"], |_| Err(Error::Unexpected("made again".into())))
            .unwrap();
        let other = cache.produce("k", &["ab"], make).unwrap();
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert!(other.join("f").exists());
    }

    #[test]
    fn only_what_is_long_unused_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().into()).unwrap();
        let make = |into: &Path| fs::write(into.join("f"), "x").at("write", into);
        let [old, used, held] =
            ["old", "used", "held"].map(|i| cache.produce("k", &[i], make).unwrap());
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        for path in [&old, &used, &held] {
            fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        fs::create_dir(dir.path().join("store")).unwrap();
        let _store = cache.lock("store").unwrap();
        cache.produce("k", &["used"], make).unwrap();
        let _held = cache.lock(held.file_name().unwrap().to_str().unwrap()).unwrap();
        cache.prune(Duration::from_secs(500)).unwrap();
        assert!(!old.exists() && used.exists() && held.exists());
        assert!(dir.path().join("store").exists());
    }

    #[test]
    fn the_cache_is_bounded_and_products_in_use_stay() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().into()).unwrap();
        let make = |into: &Path| fs::write(into.join("f"), [1; 100_000]).at("write", into);
        let made = |input: &str| cache.produce_held("seed", &[input], make).unwrap();
        let (old, in_use, new) = (made("old").0, made("in use"), made("new").0);
        let other = cache.produce("rootfs", &["a"], make).unwrap();
        for (age, path) in [(300, &in_use.0), (200, &old), (100, &new), (400, &other)] {
            let then = SystemTime::now() - Duration::from_secs(age);
            fs::File::open(path).unwrap().set_modified(then).unwrap();
        }
        let exists = || [&old, &in_use.0, &new, &other].map(|path| path.exists());
        cache.bound(&["seed"], 1 << 20).unwrap();
        assert_eq!(exists(), [true; 4], "there is room");
        cache.bound(&["seed"], 250_000).unwrap();
        assert_eq!(exists(), [false, true, true, true], "the oldest that is not in use goes first");
        // A product in use is found by others meanwhile, and goes once it is not.
        assert_eq!(made("in use").0, in_use.0);
        drop(in_use);
        cache.bound(&["seed"], 0).unwrap();
        assert!(!new.exists() && other.exists());
    }

    #[test]
    fn a_failure_leaves_nothing_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().into()).unwrap();
        let failed = cache.produce("k", &["a"], |into| {
            fs::write(into.join("half"), "").at("write", into)?;
            Err(Error::Unexpected("no".into()))
        });
        assert!(failed.is_err());
        let made = cache.produce("k", &["a"], |_| Ok(())).unwrap();
        assert!(!made.join("half").exists());
    }
}
