//! Comparison of the store's modules with the running kernel: vermagic and symbol CRCs, before
//! anything on the host is changed.
//!
//! Modules compiled here were linked against the CRCs of this kernel's headers, and a set that fits
//! once always fits: `fits.json` in the store lists both, and they are not compared again. Of all
//! others a few kilobytes per module are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use object::ReadCache;

use crate::catalog::{AvailableSet, Fit};
use crate::config::Config;
use crate::engine::image::unpack;
use longshore_core::module_dir::module_dir;
use longshore_core::root::Root;
use longshore_core::sanitize::in_line;
use longshore_core::store::Store;
use longshore_host::HostFacts;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::kernel::symbols::{
    Crcs, Differing, Imports, differing, imports, same_options, symvers,
};
use longshore_modules::sets::SetStore;

/// Time limit for reading the kernel's own modules, for symbols that no headers list.
const READING: Duration = Duration::from_secs(1);
/// Upper bound of the number of those modules.
const MOST_MODULES: usize = 128;
/// Upper bound of a module file's size.
const LARGEST: u64 = 64 << 20;
/// Number of symbols that a finding names.
const MOST_SYMBOLS: usize = 18;

/// Compares the store's sets for this kernel with it; returns the results by name in the store,
/// without sets that are known to fit.
pub(super) fn fits_of(
    config: &Config,
    facts: &HostFacts,
    store: &Store,
    sets: &[AvailableSet],
) -> BTreeMap<String, Fit> {
    let mut fits = BTreeMap::new();
    if config.paths.is_captured() {
        return fits;
    }
    let is_for_kernel = |available: &&AvailableSet| {
        available.place.is_store() && available.set.key.is_for(&facts.kernel.id())
    };
    let known = store.known_to_fit();
    let mut learnt = BTreeSet::new();
    for available in sets.iter().filter(is_for_kernel) {
        let name = available.set.key.file_stem();
        // Modules for an unknown build may fit the one and not the next.
        let is_of_build = available.set.key.kernel_build().is_some();
        if is_of_build && known.contains(&name) {
            continue;
        }
        let fit = Host { config, facts }.fit(&available.set, store);
        if is_of_build && matches!(fit, Fit::Fits { .. }) {
            learnt.insert(name.clone());
        }
        fits.insert(name, fit);
    }
    if !learnt.is_empty() {
        store.note_fits(learnt);
    }
    fits
}

/// Host whose kernel is to load the modules.
pub(super) struct Host<'a> {
    pub(super) config: &'a Config,
    pub(super) facts: &'a HostFacts,
}

/// Vermagic and CRCs of the kernel's own modules.
#[derive(Default)]
struct OwnModules {
    vermagic: Option<String>,
    crcs: Crcs,
}

impl Host<'_> {
    /// Compares the modules of a set, which are in the store.
    pub(super) fn fit(&self, set: &ModuleSet, store: &Store) -> Fit {
        let mut modules = Vec::new();
        for module in &set.modules {
            let file = File::open(store.blob_path(&module.sha256)).map_err(|e| e.to_string());
            match file.and_then(of_file) {
                Ok(imports) => modules.push((module.file.as_str(), imports)),
                Err(why) => return Fit::Unchecked { why: format!("{}: {why}", module.file) },
            }
        }
        let wanted = modules.iter().flat_map(|(_, m)| m.crcs.keys().map(String::as_str));
        let wanted: BTreeSet<&str> = wanted.collect();
        let headers = self.symvers();
        // With headers available, one module suffices to read the kernel's vermagic.
        let unknown = if headers.is_some() { BTreeSet::new() } else { wanted.clone() };
        let mut own = self.own_modules(unknown);
        let (place, kernel) = match headers {
            Some((place, crcs)) => (place, crcs),
            None if own.crcs.is_empty() && own.vermagic.is_none() => {
                let release = &self.facts.kernel.release;
                let why = format!(
                    "neither Module.symvers nor modules of {release} are available for the \
                     comparison"
                );
                return Fit::Unchecked { why };
            }
            None => ("the host's own modules".to_owned(), own.crcs.clone()),
        };
        let mut others: Vec<_> = differing_of(&modules, &kernel);
        if !others.is_empty() && place != "the host's own modules" {
            // Headers may be of another build than the running kernel; its own modules are not.
            own = self.own_modules(others.iter().map(|(_, d)| d.symbol.as_str()).collect());
            others.retain(|(_, d)| own.crcs.get(&d.symbol) != Some(&d.wanted));
        }
        let mut lines = other_magics(&modules, own.vermagic.as_deref());
        lines.extend(others.iter().take(MOST_SYMBOLS).map(|(file, d)| {
            let symbol = in_line(&d.symbol);
            format!("{file}: {symbol} wants {:#010x}, the kernel has {:#010x}", d.wanted, d.kernel)
        }));
        if lines.is_empty() {
            let symbols = wanted.iter().filter(|symbol| kernel.contains_key(**symbol)).count();
            if symbols == 0 && !wanted.is_empty() {
                return Fit::Unchecked { why: format!("{place}: none of their symbols is in it") };
            }
            return Fit::Fits { place, symbols };
        }
        lines.truncate(MOST_SYMBOLS);
        let more = others.len().saturating_sub(MOST_SYMBOLS);
        Fit::Differs { place, lines, more }
    }

    /// Returns the CRCs of the kernel's headers on this host: below /lib/modules, or at the
    /// configured path.
    fn symvers(&self) -> Option<(String, Crcs)> {
        let release = &self.facts.kernel.release;
        let build = PathBuf::from("lib/modules").join(release).join("build");
        let tree = PathBuf::from("usr/src").join(format!("linux-headers-{release}"));
        let given = self.config.headers.iter().filter(|dir| dir.is_dir());
        let below = |dir: &PathBuf| {
            [PathBuf::new(), build.clone(), tree.clone()].map(|at| (dir.clone(), at))
        };
        let host = (self.config.paths.host_root.clone(), build.clone());
        let places = given.flat_map(below).chain([host]);
        for (root, dir) in places {
            let Ok(root) = Root::open(&root) else { continue };
            let of_kernel = root.read_to_string(dir.join("include/config/kernel.release"));
            if of_kernel.is_ok_and(|found| found.trim() != release) {
                continue;
            }
            let Ok(text) = root.read_to_string(dir.join("Module.symvers")) else { continue };
            let crcs = symvers(&text);
            if !crcs.is_empty() {
                let place = root.display(dir.join("Module.symvers"));
                return Some((place.display().to_string(), crcs));
            }
        }
        None
    }

    /// Reads the CRCs of `symbols` from the kernel's own modules, until all are found or a bound is
    /// reached; and their vermagic.
    fn own_modules(&self, mut symbols: BTreeSet<&str>) -> OwnModules {
        let mut own = OwnModules::default();
        let Ok(root) = Root::open(&self.config.paths.host_root) else { return own };
        let dir = module_dir(&root, &self.facts.kernel.release);
        let mut files: Vec<_> = self.facts.available.iter().map(|module| module.file).collect();
        // Modules of another driver that are installed among the kernel's do not count.
        let is_nvidias =
            |file: &str| file.rsplit('/').next().is_some_and(|n| n.starts_with("nvidia"));
        files.retain(|file| file.starts_with("kernel/") && !is_nvidias(file));
        files.sort_by_key(|file| likelihood(file));
        let until = Instant::now() + READING;
        for file in files.into_iter().take(MOST_MODULES) {
            if own.vermagic.is_some() && (symbols.is_empty() || Instant::now() > until) {
                break;
            }
            let Ok(found) = root.file(dir.join(file)).map_err(|e| e.to_string()).and_then(of_file)
            else {
                continue;
            };
            own.vermagic = own.vermagic.or(found.vermagic);
            for (symbol, crc) in found.crcs {
                if symbols.remove(symbol.as_str()) {
                    own.crcs.insert(symbol, crc);
                }
            }
        }
        own
    }
}

/// Ranks modules: those that import many symbols that GPU drivers import come first.
fn likelihood(file: &str) -> usize {
    const LIKELY: [&str; 6] = [
        "kernel/drivers/gpu/drm/drm.ko",
        "kernel/drivers/gpu/drm/nouveau",
        "kernel/drivers/gpu/drm/amd",
        "kernel/drivers/gpu/drm",
        "kernel/drivers/net/ethernet/mellanox",
        "kernel/drivers/infiniband/core",
    ];
    LIKELY.iter().position(|likely| file.starts_with(likely)).unwrap_or(LIKELY.len())
}

fn differing_of<'a>(modules: &[(&'a str, Imports)], kernel: &Crcs) -> Vec<(&'a str, Differing)> {
    let of = |&(file, ref imports): &(&'a str, Imports)| {
        differing(&imports.crcs, kernel).into_iter().map(move |differing| (file, differing))
    };
    modules.iter().flat_map(of).collect()
}

/// Returns a line for each module whose vermagic differs from that of the kernel's own modules.
fn other_magics(modules: &[(&str, Imports)], own: Option<&str>) -> Vec<String> {
    let Some(own) = own else { return Vec::new() };
    let line = |(file, imports): &(&str, Imports)| {
        let found = imports.vermagic.as_deref().unwrap_or_default();
        let (found_line, own_line) = (in_line(found.trim()), in_line(own.trim()));
        (!same_options(found, own))
            .then(|| format!("{file}: vermagic is {found_line:?}, the kernel's is {own_line:?}"))
    };
    modules.iter().filter_map(line).collect()
}

/// Reads the imports of the module in an open file. A compressed file is read whole.
fn of_file(mut file: File) -> Result<Imports, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|e| e.to_string())?;
    if magic == *b"\x7fELF" {
        return imports(&ReadCache::new(file));
    }
    if size > LARGEST {
        return Err(format!("it has {size} bytes"));
    }
    let mut bytes = magic.to_vec();
    file.take(LARGEST).read_to_end(&mut bytes).map_err(|e: io::Error| e.to_string())?;
    let image = unpack(Path::new("it"), bytes).map_err(|failure| failure.one_line())?;
    imports(image.as_slice())
}

#[cfg(test)]
mod tests;
