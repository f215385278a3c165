//! Cache of products that take long to make and depend on known inputs only: made once, kept
//! outside the repository, named by the digest of their inputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{Flock, FlockArg};

use crate::error::{At, Error};

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
        let name = format!("{kind}-{}", &digest(inputs)[..16]);
        let finished = self.root.join(&name);
        let _held = self.lock(&name)?;
        if finished.exists() {
            // The modification time is the time of last use, by which `prune` removes. A cache that
            // cannot be written to still serves.
            let _ = fs::File::open(&finished).and_then(|dir| dir.set_modified(SystemTime::now()));
            return Ok(finished);
        }
        let unfinished = self.root.join(format!("{name}.unfinished"));
        remove(&unfinished)?;
        fs::create_dir(&unfinished).at("make", &unfinished)?;
        if let Err(error) = make(&unfinished) {
            remove(&unfinished)?;
            return Err(error);
        }
        fs::rename(&unfinished, &finished).at("finish", &finished)?;
        Ok(finished)
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
                remove(&finished)?;
                remove(&self.root.join(format!("{name}.unfinished")))?;
            }
        }
        Ok(())
    }

    /// Locks `name` until the result is dropped.
    ///
    /// # Errors
    /// The lock file cannot be made.
    pub fn lock(&self, name: &str) -> Result<Flock<fs::File>, Error> {
        let path = self.root.join(format!("{name}.lock"));
        let file = fs::File::create(&path).at("make", &path)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e).at("lock", &path)
    }
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
