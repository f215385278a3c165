//! Compatibility patches: changes that a driver's sources need to compile for a newer kernel, or to
//! fix a fault on every kernel.
//!
//! A patch is a folder, `NAME/patch.toml` and `NAME/patch.diff`. It is applied to the compiled copy
//! of the sources if the driver is one it is for and every probe of the kernel's headers and of the
//! sources holds. The kernel's version is never compared: distributions backport changes. See
//! docs/supply-chain/patches.md.

mod apply;
pub(super) mod memory;
pub mod probe;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

pub(super) use apply::apply;

use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::ownership;
use longshore_core::root::Root;
use longshore_debian::version;
use longshore_modules::artifact::PACKAGING_PATCHES;
use longshore_sources::diff::Diff;
use probe::Probe;

const DESCRIPTION: &str = "patch.toml";
const CHANGE: &str = "patch.diff";

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// The patches built into longshore: name, description, diff.
        const SHIPPED: &[(&str, &str, &[u8])] = &[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/patches/", $name, "/patch.toml")),
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/patches/", $name, "/patch.diff")),
        )),*];
    };
}

shipped![
    "acpi-driver-gone",
    "dma-map-phys",
    "drm-atomic-commit",
    "in-irq-gone",
    "list-only-opened-files",
    "of-gpio-gone",
    "pci-resize-resource-exclude-bars",
    "strncpy-gone",
    "uvm-coherent-folio-free",
    "uvm-hmm-off",
    "uvm-p2p-folio-free",
    "vma-flags-by-function",
    "vma-flags-by-word",
];

/// Selection of the compatibility patches that a compile may apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchConfig {
    /// True if patches are applied.
    pub apply: bool,
    /// Names of patches that are not applied.
    pub off: Vec<String>,
    /// Directories with the user's own patches.
    pub dirs: Vec<PathBuf>,
}

impl PatchConfig {
    /// True if modules built with patches of these names may be used. Those of the driver's package are part of its
    /// sources, and not switched off here.
    pub fn allows<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> bool {
        let mut selected = names.into_iter().filter(|name| *name != PACKAGING_PATCHES);
        selected.all(|name| self.apply && !self.off.contains(name))
    }
}

impl Default for PatchConfig {
    fn default() -> Self {
        Self { apply: true, off: Vec::new(), dirs: Vec::new() }
    }
}

/// One patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The folder's name.
    pub name: String,
    /// sha256 (hex) of its diff.
    pub sha256: String,
    /// Its description and conditions.
    pub about: About,
    /// The change.
    pub diff: Diff,
}

/// patch.toml.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Reason for the patch.
    pub reason: String,
    /// Source of that fact: a kernel commit, a header.
    pub origin: String,
    /// Flavours it applies to.
    pub flavours: Vec<Flavour>,
    /// Drivers it applies to.
    pub driver: Versions,
    /// Probes of the kernel's headers; paths as in the kernel's sources. All must hold. Empty for a
    /// fault of the driver's own, on any kernel.
    #[serde(default)]
    pub kernel: Vec<Probe>,
    /// Probes of the driver's sources, below the directory of their `Kbuild`. All must hold.
    #[serde(default)]
    pub source: Vec<Probe>,
}

/// A range of driver versions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// First version of the range.
    pub from: String,
    /// First version after the range; None where the probes of the sources tell.
    pub below: Option<String>,
}

/// Name -> sha256 (hex) of the diff, as in a set's key.
pub type Applied = BTreeMap<String, String>;

impl Patch {
    fn parse(name: &str, about: &str, change: &[u8]) -> Result<Self, String> {
        let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.starts_with(['.', '-']) || !name.chars().all(letters) || name == PACKAGING_PATCHES {
            return Err(format!("{name:?} is not a name for a patch"));
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

    /// True if the patch is for this driver.
    fn is_for(&self, driver: &str, flavour: Flavour) -> bool {
        let Versions { from, below } = &self.about.driver;
        version::compare(driver, from).is_ge()
            && below.as_ref().is_none_or(|below| version::compare(driver, below).is_lt())
            && self.about.flavours.contains(&flavour)
    }

    fn holds(&self, root: &Path, headers: &[&Path], sources: &Path) -> Result<bool, Failure> {
        let all = |probes: &[Probe], root: &Path, directories: &[&Path]| -> io::Result<bool> {
            let root = Root::open(root)?;
            for probe in probes {
                if !probe.holds(&root, directories)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let both = || {
            Ok(all(&self.about.kernel, root, headers)?
                && all(&self.about.source, sources, &[Path::new("")])?)
        };
        both().map_err(|e: io::Error| {
            Failure::new(FailureKind::Verification, format!("asking for the patch {}", self.name))
                .with_source(e)
        })
    }
}

/// Returns the patches for this driver that are not switched off, by name. A user's patch replaces
/// longshore's patch of the same name.
///
/// # Errors
/// Exit code 2 where a user's folder cannot be read or holds anything other than patches, 13 where others than root
/// may write to them.
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
                tracing::info!(patch = patch.name, dir = %dir.display(), "replaces longshore's patch");
            }
            patches.insert(patch.name.clone(), patch);
        }
    }
    for name in config.off.iter().filter(|name| !patches.contains_key(*name)) {
        tracing::warn!(patch = name, "no such patch; it cannot be switched off");
    }
    patches.retain(|name, patch| !config.off.contains(name) && patch.is_for(driver, flavour));
    Ok(patches.into_values().collect())
}

fn shipped() -> Result<BTreeMap<String, Patch>, Failure> {
    let parse = |(name, about, change): &(&str, &str, &[u8])| {
        let patch = Patch::parse(name, about, change)
            .map_err(|what| Failure::new(FailureKind::Bug, format!("the patch {name}: {what}")))?;
        Ok((patch.name.clone(), patch))
    };
    SHIPPED.iter().map(parse).collect()
}

/// Remedy for a user's folder that cannot be read, or holds anything other than patches.
const FOLDER: &str =
    "correct it, or leave the folder out: a patch is a folder with patch.toml and patch.diff";

/// Reads the patches in a user's folder: every directory in it is one. Nobody but root may write to it, to its
/// patches, or on the way to them.
fn read_dir(dir: &Path) -> Result<Vec<Patch>, Failure> {
    let wrong = |what: String| Failure::new(FailureKind::Usage, what).remedy(FOLDER);
    let list = || -> io::Result<Vec<PathBuf>> {
        let dir = std::path::absolute(dir)?;
        ownership::directory(Path::new("/"), &dir)?;
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut folders =
        list().map_err(|e| refused(format!("reading the patches in {}", dir.display()), e))?;
    // A mounted ConfigMap has other entries beside the patches, with a leading dot.
    let shown =
        |p: &PathBuf| p.file_name().is_some_and(|n| !n.as_encoded_bytes().starts_with(b"."));
    folders.retain(|p| p.is_dir() && shown(p));
    folders.sort();
    let read = |folder: &PathBuf| {
        let file = |name: &str| {
            let path = folder.join(name);
            ownership::way(Path::new("/"), &path)
                .and_then(|_| fs::read(&path))
                .map_err(|e| refused(format!("reading {}", path.display()), e))
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let about = String::from_utf8_lossy(&file(DESCRIPTION)?).into_owned();
        Patch::parse(&name, &about, &file(CHANGE)?)
            .map_err(|what| wrong(format!("the patch {}: {what}", folder.display())))
    };
    folders.iter().map(read).collect()
}

/// Returns the failure to read a user's patches: exit code 13 where others than root may write to them, else 2.
fn refused(what: String, error: io::Error) -> Failure {
    let kind = match ownership::untrusted(&error) {
        Some(_) => FailureKind::Verification,
        None => FailureKind::Usage,
    };
    ownership::failure(kind, what, error, FOLDER)
}

/// Returns those of `candidates` whose probes all hold. `headers` are the kernel's source and
/// output directories inside the build root `root`, searched for a header in this order.
///
/// # Errors
/// Exit code 13 where a probed file cannot be read.
pub(super) fn select(
    candidates: &[Patch],
    root: &Path,
    headers: &[&Path],
    sources: &Path,
) -> Result<Vec<Patch>, Failure> {
    let mut selected = Vec::new();
    for patch in candidates {
        if patch.holds(root, headers, sources)? {
            selected.push(patch.clone());
        }
    }
    Ok(selected)
}

/// Returns the patches as they stand in a set's key.
pub(super) fn named(patches: &[Patch]) -> Applied {
    patches.iter().map(|p| (p.name.clone(), p.sha256.clone())).collect()
}

#[cfg(test)]
mod tests;
