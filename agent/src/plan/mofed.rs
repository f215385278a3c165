//! The plan's part for MOFED's headers, which nvidia_peermem is compiled against (docs/cluster/gpu-operator.md).

use super::values::Reason;
use crate::catalog::Catalog;
use crate::config::Config;
use longshore_build::mofed::Mofed;
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::Probe;
use longshore_modules::artifact::ModuleSet;

/// Returns the headers that a compile takes.
pub(super) fn headers(catalog: &Catalog) -> Option<&Mofed> {
    match &catalog.mofed {
        Probe::Read(found) => found.as_ref(),
        Probe::Unreadable(_) => None,
    }
}

/// True if the set was compiled without the headers that are available.
pub(super) fn lacks(catalog: &Catalog, set: &ModuleSet) -> bool {
    headers(catalog).is_some_and(|mofed| !mofed.is_in(&set.key))
}

/// True if a set gives way to a compile with the headers. Where sets come from elsewhere they fit without:
/// the store does not tell them from those that were compiled here.
pub fn gives_way(config: &Config, catalog: &Catalog, set: &ModuleSet) -> bool {
    compiles_all(config) && lacks(catalog, set)
}

/// True if there are headers that a package's modules lack, and a compile takes them.
pub(super) fn is_missed(config: &Config, catalog: &Catalog) -> bool {
    compiles_all(config) && headers(catalog).is_some()
}

/// True if all sets of this host are compiled on it.
pub(super) fn compiles_all(config: &Config) -> bool {
    let takes_others = !config.prebuilt.is_empty() || !config.registries.is_empty();
    config.may_compile() && !takes_others && config.publish.is_none()
}

/// Returns the finding about a set that is used without the headers.
pub(super) fn left_out(catalog: &Catalog, set: &ModuleSet) -> Option<Finding> {
    let mofed = headers(catalog).filter(|mofed| !mofed.is_in(&set.key))?;
    let seen = format!(
        "the set of modules was compiled without MOFED's headers in {}",
        mofed.place().display()
    );
    Some(Finding::warning(Code::MofedLeftOut, seen))
}

/// Returns the finding about headers that are unusable.
pub(super) fn unusable(catalog: &Catalog) -> Option<Finding> {
    let Probe::Unreadable(why) = &catalog.mofed else { return None };
    let seen = format!("MOFED's headers are unusable: {why}");
    Some(Finding::warning(Code::MofedLeftOut, seen))
}

/// Returns the reason for a compile with the headers.
pub(super) fn reason(mofed: &Mofed) -> Reason {
    let (_, digest) = mofed.keyed();
    let reason = format!(
        "nvidia_peermem is compiled against {} (sha256 {}); unsigned, so the modules are not published",
        mofed.place().display(),
        digest.get(..12).unwrap_or_default()
    );
    Reason::new("MOFED's headers", reason)
}
