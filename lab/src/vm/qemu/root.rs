//! QEMU of a Debian suite, unpacked into the cache. Nothing of it is installed or configured on this
//! machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::host::apt::Root;
use crate::host::archives::Archives;
use crate::host::cache::Cache;
use crate::host::error::Error;
use crate::vm::platform::GUEST;

/// Start of a command line that runs a program with the /usr of another root, in a mount namespace
/// of its own: QEMU finds its loader, libraries, modules and firmware at the paths that it was
/// compiled with, and the files of the VM at theirs. The root, the program and its arguments follow.
/// With the program loader of the root alone QEMU loads modules of this machine's QEMU, and aborts.
pub(super) const ENTER: [&str; 5] =
    ["unshare", "--mount", "sh", "-ec", "mount --bind \"$0/usr\" /usr; exec \"$@\""];

/// Directory that a root's own takes the place of.
const HIDDEN: &str = "/usr";

/// Unpacks QEMU of `suite` with everything that it depends on, or returns the cached tree.
///
/// # Errors
/// No apt source of this machine serves the suite, its lists or packages cannot be had, or the cache
/// is in /usr.
pub(super) fn make(cache: &Cache, suite: &str) -> Result<PathBuf, Error> {
    let packages = cache.dir("packages");
    if packages.starts_with(HIDDEN) {
        return Err(Error::Matrix(format!(
            "the cache {} is in {HIDDEN}, which QEMU of another suite does not see: set \
             LONGSHORE_CACHE to a directory elsewhere",
            packages.display()
        )));
    }
    let archives = Archives::open_each(&packages, &BTreeMap::from([(suite.to_owned(), false)]))?;
    let version = archives.newest(GUEST.package, suite)?.version;
    let inputs = [suite, GUEST.package, &version];
    let dir = cache.produce("qemu", &inputs, |dir| unpack(dir, suite))?;
    Ok(dir.join("tree"))
}

fn unpack(dir: &Path, suite: &str) -> Result<(), Error> {
    let root = Root {
        suite,
        frozen: false,
        // Packages are unpacked only: none of their scripts runs.
        variant: "extract",
        packages: GUEST.package,
        // Backports are installed only where they are asked for.
        options: vec![format!("--aptopt=APT::Default-Release \"{suite}\"")],
    };
    root.make(&dir.join("tree")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_the_root_would_hide_is_refused() {
        let below = tempfile::tempdir_in("/usr").unwrap();
        let cache = Cache::at(below.path().join("cache")).unwrap();
        let error = make(&cache, "trixie-backports").unwrap_err().to_string();
        assert!(error.contains("LONGSHORE_CACHE"), "{error}");
    }
}
