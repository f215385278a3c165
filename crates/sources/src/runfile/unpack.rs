//! Unpacks the wanted files of a .run file from its bytes as they arrive.

use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::header::{self, Header};
use crate::place::is_wanted;
use crate::tarball::{self, Limits, TarballEntry};
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_debian::faults::bad;

/// Maximum unpacked size of a .run file: those of today have less than 1.5 GiB.
pub const MOST_UNPACKED: u64 = 4 << 30;
/// Maximum number of files: those of today have less than 3000.
pub const MOST_FILES: usize = 100_000;
/// Maximum length of a path and of a link's target: the system's limit is four times that.
const LONGEST_PATH: usize = 1024;
/// Maximum depth of a path: those of today are below 10.
const DEEPEST: usize = 64;

/// Remedy for a file with the expected digest that cannot be unpacked.
pub const REMEDY: &str = "get the file from NVIDIA again; if its sha256 is the published one, take \
                      the driver from an archive and report this";

/// An unpacked, unverified file. Dropping it removes it.
pub struct Unpacked {
    /// Holds `tree/`.
    pub dir: ScratchDir,
    /// Its header; empty for a foreign script's.
    pub header: Header,
}

impl Unpacked {
    pub(crate) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }
}

/// Reads a .run file from its first byte to the end of its payload.
///
/// # Errors
/// Exit code 13 naming `name` for a file that is truncated, damaged, of an unknown form, or has
/// forbidden contents; 15 where the store cannot be written.
pub(crate) fn unpack(
    name: &str,
    from: &mut dyn Read,
    store: &Store,
    most: u64,
) -> Result<Unpacked, Failure> {
    let dir = claim(store, "driver")?;
    let mut from = BufReader::with_capacity(1 << 16, from);
    let header = header::read(&mut from).map_err(|fault| {
        Failure::new(FailureKind::Verification, format!("{name} is of an unknown form"))
            .with_source(fault)
            .remedy(REMEDY)
    })?;
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).map_err(|e| write_failure(&tree, e))?;
    unpack_payload(name, from, &tree, most).map_err(|failure| match failure.kind() {
        FailureKind::Verification => failure.remedy(REMEDY),
        _ => failure,
    })?;
    Ok(Unpacked { dir, header })
}

fn unpack_payload(
    name: &str,
    from: BufReader<&mut dyn Read>,
    into: &Path,
    most: u64,
) -> Result<(), Failure> {
    let mut check = |entry: &TarballEntry<'_, '_>| {
        check_path(name, &entry.path_bytes())?;
        check_kind(name, entry)
    };
    let limits = Limits { bytes: most, files: MOST_FILES };
    tarball::unpack(name, from, into, limits, &mut check, &mut wanted)
}

/// Checks a path before any directory of it is created: the file's digest is not known yet.
pub fn check_path(name: &str, path: &[u8]) -> Result<(), Failure> {
    if path.len() > LONGEST_PATH {
        return Err(bad(name, &format!("it holds a path of more than {LONGEST_PATH} bytes")));
    }
    if path.split(|b| *b == b'/').count() > DEEPEST {
        return Err(bad(name, &format!("it holds a path of more than {DEEPEST} directories")));
    }
    Ok(())
}

/// Checks that a driver consists of files, directories and links to files beside them, and of
/// nothing else.
fn check_kind(name: &str, entry: &TarballEntry<'_, '_>) -> Result<(), Failure> {
    let kind = entry.header().entry_type();
    let path = || String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    if kind.is_block_special() || kind.is_character_special() || kind.is_fifo() {
        return Err(bad(name, &format!("{} is a device node or a pipe", path())));
    }
    // A sparse entry of a few bytes can declare any number of zeros to write, which no read limit
    // bounds.
    if kind.is_gnu_sparse() {
        return Err(bad(name, &format!("{} is a sparse file", path())));
    }
    let target = entry.link_name_bytes().unwrap_or_default();
    check_path(name, &target)?;
    let has_parent = target.split(|b| *b == b'/').any(|part| part == b"..");
    if (kind.is_symlink() || kind.is_hard_link()) && (target.starts_with(b"/") || has_parent) {
        let target = String::from_utf8_lossy(&target).into_owned();
        return Err(bad(name, &format!("{} is a link to {target}, which is outside", path())));
    }
    Ok(())
}

/// Leaves out files that no supported host needs: 32-bit and graphics libraries, the installer, the
/// documentation. The installer's manifest is not known yet.
pub fn wanted(path: &Path) -> Option<PathBuf> {
    let text = path.to_str()?;
    let kept = match text.split_once('/') {
        Some((dir, name)) => match dir {
            "kernel" | "kernel-open" => true,
            "firmware" => name.ends_with(".bin"),
            "supported-gpus" => name == "supported-gpus.json",
            _ => false,
        },
        None => text == ".manifest" || is_wanted(text),
    };
    kept.then(|| path.to_path_buf())
}
