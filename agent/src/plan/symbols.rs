//! Check of vermagic and symbols of the modules to be loaded against the kernel's.

use super::values::{Reason, Supply};
use crate::catalog::{Catalog, Fit};
use longshore_core::finding::{Code, Finding};

/// Returns the finding, and what was compared. A set that is known to fit, or that is not in the
/// store yet, is not checked: planning is repeated once it is there.
pub(super) fn judged(catalog: &Catalog, supply: &Supply<'_>) -> (Option<Finding>, Option<Reason>) {
    let fit = supply.set.and_then(|set| catalog.fits.get(&set.key.file_stem()));
    let reason = |reason: String| Some(Reason::new("symbols of the modules", reason));
    let is_of_build = supply.set.is_none_or(|set| set.key.kernel_build().is_some());
    match fit {
        None => (None, None),
        Some(fit) if !is_of_build && !fit.compares_symbols() => {
            let why = match fit {
                Fit::Unchecked { why } => why,
                _ => "they name no CRCs of symbols",
            };
            let seen = format!(
                "the build of the kernel that the modules are for is not known, and they could not be compared \
                 with this one: {why}"
            );
            (Some(Finding::refusal(Code::SymbolsDiffer, seen)), None)
        }
        Some(Fit::Fits { symbols: 0, .. }) => {
            (None, reason("the modules name no CRCs; their vermagic is the kernel's".to_owned()))
        }
        Some(Fit::Fits { place, symbols }) => {
            (None, reason(format!("{symbols} have the CRCs that {place} names")))
        }
        Some(Fit::Unchecked { why }) => (None, reason(format!("not checked: {why}"))),
        Some(Fit::Differs { place, lines, more }) => {
            let more = match more {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let seen = format!(
                "the modules were compiled for another build of this kernel (compared with {place}): \
                 {}{more}",
                lines.join("; ")
            );
            (Some(Finding::refusal(Code::SymbolsDiffer, seen)), None)
        }
    }
}
