//! Digest of the sources that decide how modules are compiled: outcomes of other sources are not this program's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Directories below this crate's. longshore-debian selects the packages of a build root and unpacks them,
/// longshore-sources finds headers and unpacks the driver's sources and applies its packaging's patches; the other
/// crates have no part in a compile that a digest of the inputs would not show, as it shows the patches that may be
/// applied.
const SOURCES: [&str; 3] = ["src", "../debian/src", "../sources/src"];

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for dir in SOURCES {
        println!("cargo:rerun-if-changed={dir}");
        collect(Path::new(dir), &mut files)?;
    }
    files.sort();
    let mut all = Sha256::new();
    for file in &files {
        let contents = Sha256::digest(fs::read(file)?);
        all.update(format!("{} ", file.display()));
        all.update(contents);
    }
    let hex: String = all.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("cargo:rustc-env=LONGSHORE_BUILD_SOURCES={hex}");
    Ok(())
}

/// Adds the files below `dir`, without those that are tests alone.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default();
        if stem == "tests" || stem == "testing" || stem == "testdata" {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
