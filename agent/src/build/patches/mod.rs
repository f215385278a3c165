//! Compatibility patches: what a driver's sources need to compile for a kernel they do not know, or
//! to do no harm to any.
//!
//! A patch is a folder, `NAME/patch.toml` and `NAME/patch.diff`. It is applied to the copy of the
//! sources that is compiled where the driver is one of those it is for and every probe of the
//! kernel's headers and of the sources themselves holds. A kernel's version is never asked:
//! distributions carry changes back. See docs/patches.md.

mod apply;
pub mod diff;
pub(super) mod memory;
pub mod probe;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

pub(super) use apply::apply;

use crate::config::PatchConfig;
use crate::digest::hex;
use crate::failure::{ExitCode, Failure};
use crate::flavour::Flavour;
use crate::source::version;
use diff::Diff;
use probe::Probe;

const DESCRIPTION: &str = "patch.toml";
const CHANGE: &str = "patch.diff";

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// The patches that come with longshore: name, description, diff.
        const SHIPPED: &[(&str, &str, &[u8])] = &[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/patches/", $name, "/patch.toml")),
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/patches/", $name, "/patch.diff")),
        )),*];
    };
}

shipped!["list-only-opened-files", "pci-resize-resource-exclude-bars"];

/// One patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The folder's name.
    pub name: String,
    /// sha256 (hex) of its diff.
    pub sha256: String,
    /// What it is for, and when it is applied.
    pub about: About,
    /// The change.
    pub diff: Diff,
}

/// patch.toml.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Why it is needed, for a person.
    pub reason: String,
    /// Where that is known from: a kernel commit, a header.
    pub origin: String,
    /// Flavours it is for.
    pub flavours: Vec<Flavour>,
    /// Drivers it is for.
    pub driver: Versions,
    /// Questions to the kernel's headers; paths as in the kernel's sources. All have to hold. None
    /// where a fault is the driver's own, whatever the kernel.
    #[serde(default)]
    pub kernel: Vec<Probe>,
    /// Questions to the driver's sources, below the directory of their `Kbuild`. All have to hold.
    #[serde(default)]
    pub source: Vec<Probe>,
}

/// A range of driver versions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// The first it is for.
    pub from: String,
    /// The first it is no longer for.
    pub below: String,
}

/// Name -> sha256 (hex) of the diff: what the key of a set says.
pub type Applied = BTreeMap<String, String>;

impl Patch {
    fn parse(name: &str, about: &str, change: &[u8]) -> Result<Self, String> {
        let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.starts_with(['.', '-']) || !name.chars().all(letters) {
            return Err(format!("{name:?} is no name for a patch"));
        }
        let about: About =
            toml::from_str(about).map_err(|e| format!("{DESCRIPTION}: {}", e.message()))?;
        if about.kernel.is_empty() && about.source.is_empty() {
            return Err(format!("{DESCRIPTION}: without a probe"));
        }
        if let Some(fault) = about.kernel.iter().chain(&about.source).find_map(Probe::fault) {
            return Err(format!("{DESCRIPTION}: {fault}"));
        }
        let diff = Diff::parse(change).map_err(|e| format!("{CHANGE}: {e}"))?;
        let sha256 = hex(&Sha256::digest(change));
        Ok(Self { name: name.to_owned(), sha256, about, diff })
    }

    /// Whether it is for this driver at all.
    fn is_for(&self, driver: &str, flavour: Flavour) -> bool {
        let Versions { from, below } = &self.about.driver;
        version::compare(driver, from).is_ge()
            && version::compare(driver, below).is_lt()
            && self.about.flavours.contains(&flavour)
    }

    fn holds(&self, headers: &[&Path], sources: &Path) -> Result<bool, Failure> {
        let all = |probes: &[Probe], directories: &[&Path]| -> std::io::Result<bool> {
            for probe in probes {
                if !probe.holds(directories)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let both = || Ok(all(&self.about.kernel, headers)? && all(&self.about.source, &[sources])?);
        both().map_err(|e: std::io::Error| {
            Failure::new(ExitCode::Verification, format!("asking for the patch {}", self.name))
                .because(e)
        })
    }
}

/// The patches for this driver that are not switched off, by name. A patch of the user's takes the
/// place of one of the same name that comes with longshore.
///
/// # Errors
/// Exit code 2 where a folder of the user's cannot be read or holds something else than patches.
pub(super) fn candidates(
    config: &PatchConfig,
    driver: &str,
    flavour: Flavour,
) -> Result<Vec<Patch>, Failure> {
    if !config.apply {
        return Ok(Vec::new());
    }
    let mut patches = shipped()?;
    let known: Vec<String> = patches.keys().cloned().collect();
    for dir in &config.dirs {
        for patch in read_dir(dir)? {
            if known.contains(&patch.name) {
                tracing::info!(patch = patch.name, dir = %dir.display(), "takes the place of ours");
            }
            patches.insert(patch.name.clone(), patch);
        }
    }
    for name in config.off.iter().filter(|name| !patches.contains_key(*name)) {
        tracing::warn!(patch = name, "there is no such patch to switch off");
    }
    patches.retain(|name, patch| !config.off.contains(name) && patch.is_for(driver, flavour));
    Ok(patches.into_values().collect())
}

fn shipped() -> Result<BTreeMap<String, Patch>, Failure> {
    let parse = |(name, about, change): &(&str, &str, &[u8])| {
        let patch = Patch::parse(name, about, change)
            .map_err(|what| Failure::new(ExitCode::Bug, format!("the patch {name}: {what}")))?;
        Ok((patch.name.clone(), patch))
    };
    SHIPPED.iter().map(parse).collect()
}

/// The patches in a folder of the user's: every directory in it is one.
fn read_dir(dir: &Path) -> Result<Vec<Patch>, Failure> {
    let wrong = |what: String| {
        Failure::new(ExitCode::Usage, what)
            .remedy("correct it, or leave the folder out; docs/patches.md says what a patch is")
    };
    let reading = || format!("reading the patches in {}", dir.display());
    let list = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut folders = list().map_err(|e| wrong(reading()).because(e))?;
    // What a mounted ConfigMap has beside the patches begins with a dot.
    let shown =
        |p: &PathBuf| p.file_name().is_some_and(|n| !n.as_encoded_bytes().starts_with(b"."));
    folders.retain(|p| p.is_dir() && shown(p));
    folders.sort();
    let read = |folder: &PathBuf| {
        let file = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).map_err(|e| wrong(format!("reading {}", path.display())).because(e))
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let about = String::from_utf8_lossy(&file(DESCRIPTION)?).into_owned();
        Patch::parse(&name, &about, &file(CHANGE)?)
            .map_err(|what| wrong(format!("the patch {}: {what}", folder.display())))
    };
    folders.iter().map(read).collect()
}

/// Those of `candidates` whose probes all hold. `headers` are the kernel's source and output
/// directories, in which a header is looked for in this order.
///
/// # Errors
/// Exit code 13 where a file that is asked about cannot be read.
pub(super) fn select(
    candidates: &[Patch],
    headers: &[&Path],
    sources: &Path,
) -> Result<Vec<Patch>, Failure> {
    let mut selected = Vec::new();
    for patch in candidates {
        if patch.holds(headers, sources)? {
            selected.push(patch.clone());
        }
    }
    Ok(selected)
}

/// What the key says of these patches.
pub(super) fn named(patches: &[Patch]) -> Applied {
    patches.iter().map(|p| (p.name.clone(), p.sha256.clone())).collect()
}

#[cfg(test)]
mod tests;
