//! Patches of a package of kernel sources that are left to whoever compiles: `debian/patches/series`.
//!
//! Debian's packages of the branches 390 to 470 have NVIDIA's sources as they were released, and beside them the
//! changes for newer kernels and for Debian's compiler, in quilt's layout. `debian/rules` of a module package, and
//! `dkms.conf` by its `PATCH` lines, apply all of them in the order of the series; 525 and newer are patched in the
//! package. The layout is quilt(1)'s, the meaning dpkg-source(1)'s (3.0 quilt): `#` begins a comment, and a
//! patch strips one directory of its paths (`-p1`).

use std::io;
use std::path::Path;

use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use crate::diff::{Diff, Edits, check_links, is_plain};
use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::root::{open_regular, read_up_to};

/// Directory of the patches, below that of the `Kbuild`.
const DIRECTORY: &str = "debian/patches";
/// The list of patches in it.
const SERIES: &str = "series";
/// Maximum size of the list; Debian's longest has 5 kB.
const MOST_SERIES: u64 = 64 << 10;
/// Maximum number of patches; Debian's longest series has 89.
const MOST_PATCHES: usize = 500;
/// Maximum size of a patch; Debian's largest has 30 kB.
const MOST_PATCH: u64 = 1 << 20;

/// The patches of a series, as they were applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackagingPatches {
    /// Number of patches.
    pub count: usize,
    /// sha256 (hex) over names and diffs, in the order of the series.
    pub sha256: String,
}

/// Applies the series of the unpacked `sources` of `package`, if they have one: all of its patches or none.
///
/// # Errors
/// Exit code 13 naming the patch where the series is damaged, does not fit the sources or leads out of them; 15
/// where a file cannot be written.
pub(crate) fn apply(package: &str, sources: &Path) -> Result<Option<PackagingPatches>, Failure> {
    let bad = |why: String| {
        let cause = format!("{package}: {DIRECTORY}/{why}");
        Failure::new(FailureKind::Verification, cause).remedy(
            "this package cannot be used; choose another driver, and report it to the archive",
        )
    };
    let names = series(sources).map_err(|why| bad(format!("{SERIES}: {why}")))?;
    if names.is_empty() {
        return Ok(None);
    }
    let (mut edits, mut digest) = (Edits::new(sources), Sha256::new());
    for name in &names {
        let bytes = read(sources, name, MOST_PATCH).map_err(|e| bad(format!("{name}: {e}")))?;
        let diff = Diff::parse(&bytes).map_err(|e| bad(format!("{name}: {e}")))?;
        for file in &diff.files {
            edits.add(file).map_err(|e| bad(format!("{name} does not fit the sources: {e}")))?;
        }
        digest.update(format!("{name}\0{}\0", hex(&Sha256::digest(&bytes))));
    }
    edits.write()?;
    tracing::info!(
        package,
        patches = names.len(),
        "applied the package's own {DIRECTORY}/{SERIES}"
    );
    Ok(Some(PackagingPatches { count: names.len(), sha256: hex(&digest.finalize()) }))
}

/// Returns the names in the series; empty where there is none.
fn series(sources: &Path) -> Result<Vec<String>, String> {
    let bytes = match read(sources, SERIES, MOST_SERIES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|e| e.to_string())?,
    };
    let text = String::from_utf8(bytes).map_err(|_| "it is no UTF-8 text".to_owned())?;
    let mut names: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some(name) = listed(line)? else { continue };
        if names.contains(&name) {
            return Err(format!("{name} is listed twice"));
        }
        if names.len() == MOST_PATCHES {
            return Err(format!("it lists more than {MOST_PATCHES} patches"));
        }
        names.push(name);
    }
    Ok(names)
}

/// Returns the patch that a line of the series names.
fn listed(line: &str) -> Result<Option<String>, String> {
    let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
    let Some(name) = words.next() else { return Ok(None) };
    if !is_plain(name) {
        return Err(format!("{name:?} is not a path below it"));
    }
    match words.find(|option| *option != "-p1") {
        Some(option) => Err(format!("the option {option:?} of {name} is not known")),
        None => Ok(Some(name.to_owned())),
    }
}

/// Reads a file of at most `most` bytes below the directory of the patches; a link on its path is refused.
fn read(sources: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let path = Path::new(DIRECTORY).join(name);
    check_links(sources, &path)?;
    let bytes = read_up_to(open_regular(&sources.join(path), OFlag::O_NOFOLLOW)?, most)?;
    bytes.ok_or_else(|| io::Error::other(format!("larger than {} KiB", most >> 10)))
}

#[cfg(test)]
mod tests;
