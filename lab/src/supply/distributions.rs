//! Archives and a build root of the shape of other distributions, made of a Debian suite's packages by
//! scripts of the project: such distributions' own archives are not available everywhere. And an archive with a
//! stand-in for the fabric manager, which Debian does not have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_debian::archive::upstream;

use crate::host::archives::Archives;
use crate::host::cache::Cache;
use crate::host::checkout::own_file;
use crate::host::error::{At, Error};
use crate::host::process::run;

const UBUNTU: &str = include_str!("../../../scripts/make-ubuntu-archive");
const EL: &str = include_str!("../../../scripts/make-el-root");
const SUITE: &str = include_str!("../../../scripts/suite");
const SIGNED: &str = include_str!("../../../scripts/signed-archive");
const FABRIC: &str = include_str!("../../../scripts/make-fabric-manager");
/// Source of the stand-in.
const FABRIC_MANAGER: &str = include_str!("fabric-manager.c");
/// Time limit: packages are fetched, unpacked and packed again.
const LIMIT: Duration = Duration::from_secs(1800);

/// Kernel and driver that an archive has packages for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contents<'a> {
    /// Suite of the packages that it is made of.
    pub suite: &'a str,
    /// `uname -r`.
    pub release: &'a str,
    /// Driver branch or version.
    pub driver: &'a str,
    /// Directory with finished modules, for an archive without headers and compiler.
    pub modules: Option<&'a Path>,
}

/// Makes archives as Ubuntu and NVIDIA have them, or returns the cached ones: a directory.
///
/// # Errors
/// The suite has no such kernel or driver, or the script failed.
pub(crate) fn ubuntu(
    cache: &Cache,
    archives: &Archives,
    contents: Contents<'_>,
) -> Result<PathBuf, Error> {
    let Contents { suite, release, driver, modules } = contents;
    let headers = archives.newest(&format!("linux-headers-{release}"), suite)?;
    let sources = archives.newest("nvidia-open-kernel-source", suite)?;
    let finished = modules.map_or(Ok(String::new()), digests)?;
    let inputs = [UBUNTU, SUITE, SIGNED, &headers.sha256, &sources.sha256, &finished];
    let made = cache.produce("ubuntu-archive", &inputs, |dir| {
        let script = own_file("scripts/make-ubuntu-archive")?;
        let mut command = Command::new(script);
        command.args([suite, release, driver]).arg(dir.join("archive")).args(modules);
        run(&mut command, LIMIT).map(drop)
    })?;
    Ok(made.join("archive"))
}

/// Makes a flat archive with a stand-in for the fabric manager of a suite's driver, or takes the cached one, and
/// returns a configuration that has it beside the host's archives.
///
/// # Errors
/// The suite has no such driver, the script failed, or the configuration cannot be written.
pub(crate) fn fabric_manager(
    cache: &Cache,
    archives: &Archives,
    suite: &str,
    branch: &str,
) -> Result<PathBuf, Error> {
    let version = archives.newest("nvidia-open-kernel-source", suite)?.version;
    let version = upstream(&version);
    if !version.starts_with(branch) {
        return Err(Error::Unexpected(format!("{suite} has the driver {version}, not {branch}")));
    }
    let made =
        cache.produce("fabric-manager", &[FABRIC, SIGNED, FABRIC_MANAGER, version], |dir| {
            let mut command = Command::new(own_file("scripts/make-fabric-manager")?);
            run(command.arg(version).arg(dir.join("archive")), LIMIT).map(drop)
        })?;
    let place = made.join("archive");
    let place = place.display();
    let text = format!(
        "[[archive]]\nurl = \"file://{place}\"\nsuites = [\"/\"]\nkeyring = \"{place}/key.gpg\"\n"
    );
    let config = cache.dir(&format!("fabric-manager-{version}.toml"));
    fs::write(&config, text).at("write", &config)?;
    Ok(config)
}

/// Writes a configuration with the archives that are at `archive` when it is read, and no other.
///
/// # Errors
/// It cannot be written.
pub(crate) fn configure(config: &Path, archive: &Path) -> Result<(), Error> {
    fs::write(config, configuration(archive)).at("write", config)
}

/// Makes a build root with the layout of Enterprise Linux, or returns the cached one, a tar archive.
///
/// # Errors
/// The suite has no such kernel, or the script failed.
pub(crate) fn el_root(
    cache: &Cache,
    archives: &Archives,
    suite: &str,
    release: &str,
) -> Result<PathBuf, Error> {
    let headers = archives.newest(&format!("linux-headers-{release}"), suite)?;
    let dir = cache.produce("el-root", &[EL, SUITE, &headers.sha256], |dir| {
        let mut command = Command::new(own_file("scripts/make-el-root")?);
        run(command.args([suite, release]).arg(dir.join("made")), LIMIT).map(drop)
    })?;
    Ok(dir.join("made/root.tar"))
}

fn configuration(archive: &Path) -> String {
    let place = archive.display();
    format!(
        "host-apt = false\n\n\
         [[archive]]\nurl = \"file://{place}/ubuntu\"\nsuites = [\"noble\"]\n\
         components = [\"main\", \"restricted\"]\nkeyring = \"{place}/key.gpg\"\n\n\
         [[archive]]\nurl = \"file://{place}/flat\"\nsuites = [\"/\"]\nkeyring = \"{place}/key.gpg\"\n"
    )
}

/// Returns names and digests of the files in `dir`.
fn digests(dir: &Path) -> Result<String, Error> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        let path = entry.at("list", dir)?.path();
        let digest = fs::File::open(&path).and_then(longshore_core::digest::digest_of);
        lines.push(format!("{} {}", path.display(), digest.at("read", &path)?));
    }
    lines.sort();
    Ok(lines.join("\n"))
}
