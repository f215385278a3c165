//! A .run file with the layout of NVIDIA's, made of a suite's packages by scripts/make-run-file,
//! and a disk that carries it to a guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::host::archives::Archives;
use crate::host::cache::Cache;
use crate::host::checkout::own_file;
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::host::process::run;

const SCRIPT: &str = include_str!("../../../scripts/make-run-file");
const SUITE: &str = include_str!("../../../scripts/suite");
/// Time limit: half a gigabyte of packages is fetched, and half of that compressed.
const LIMIT: Duration = Duration::from_secs(1800);
/// Packages whose versions identify everything that the file is made of.
const MADE_OF: [&str; 3] = ["nvidia-open-kernel-source", "nvidia-kernel-source", "libcuda1"];
/// zstd, as unpacking xz takes an emulated machine minutes.
const COMPRESSION: &str = "zstd";

/// A .run file.
#[derive(Debug, Clone)]
pub struct RunFile {
    /// The file.
    pub path: PathBuf,
    /// Its sha256, hex.
    pub sha256: String,
    /// ext4 image with just this file.
    pub disk: PathBuf,
}

impl RunFile {
    /// Returns its name, which is the same on the disk.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Makes the .run file of a branch from a suite's packages, or returns the cached one.
///
/// # Errors
/// The suite has no such driver; the script or mke2fs failed.
pub(crate) fn make(
    cache: &Cache,
    archives: &Archives,
    suite: &str,
    branch: &str,
) -> Result<RunFile, Error> {
    let mut inputs = vec![[SCRIPT, SUITE].concat(), suite.to_owned(), COMPRESSION.to_owned()];
    for name in MADE_OF {
        inputs.push(archives.newest(name, suite)?.version);
    }
    let version = inputs[3].split('-').next().unwrap_or(branch).to_owned();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let dir = cache.produce("run-file", &inputs, |dir| fill(dir, suite, &version))?;
    let path = dir.join("media").join(format!("NVIDIA-Linux-x86_64-{version}.run"));
    let sha256 =
        fs::File::open(&path).and_then(longshore_core::digest::digest_of).at("read", &path)?;
    Ok(RunFile { path, sha256, disk: dir.join("media.ext4") })
}

fn fill(dir: &Path, suite: &str, version: &str) -> Result<(), Error> {
    let media = dir.join("media");
    fs::create_dir(&media).at("make", &media)?;
    let script = own_file("scripts/make-run-file")?;
    let file = media.join(format!("NVIDIA-Linux-x86_64-{version}.run"));
    run(
        Command::new(script).args([suite, version]).arg(&file).args([COMPRESSION, "nvidia"]),
        LIMIT,
    )?;
    disk::make(&media, &dir.join("media.ext4"), 1)
}
