//! Check of the modules for the kernel of the next boot.

use super::{Checked, HIDDEN, Input, passed, skipped};
use crate::config::NextKernelMode;
use crate::doctor::Look;
use crate::next_kernel;
use crate::plan;
use crate::supplier::at_boot_of;
use longshore_core::failure::Failure;
use longshore_core::finding::{Code, Finding};

/// Looks for a newer kernel that is installed, and for everything it needs in the store.
pub(super) fn next_kernel(input: &Input<'_>) -> Checked {
    let look = input.look;
    let (facts, mode) = (look.facts, look.config.next_kernel());
    if matches!(mode, NextKernelMode::Off) {
        return skipped("next-kernel is off");
    }
    if look.hidden {
        return skipped(HIDDEN);
    }
    if facts.installed_kernels.is_empty() {
        let unread = facts.unread.installed_kernels.as_deref();
        return skipped(unread.unwrap_or("the host shows no kernels"));
    }
    let Some(release) = next_kernel::next(&facts.kernel.release, &facts.installed_kernels) else {
        return passed(format!("{}, the running one, is the newest", facts.kernel.release));
    };
    match look.has_modules(release) {
        Ok(true) => passed(format!("{release}: ready")),
        Ok(false) => Checked::Found(vec![missing(mode, release)]),
        Err(failure) => skipped(failure.one_line()),
    }
}

/// Returns the finding about missing modules; an agent prepares them by itself where it may.
fn missing(mode: NextKernelMode, release: &str) -> Finding {
    let detail = format!(
        "kernel {release} is installed and not booted, and the store lacks something for it"
    );
    match mode {
        NextKernelMode::Prepare => Finding::note(Code::NextKernelUnprepared, detail),
        _ => Finding::warning(Code::NextKernelUnprepared, detail),
    }
}

impl Look<'_> {
    /// True if the store has everything that an agent needs with the kernel `release`.
    fn has_modules(&self, release: &str) -> Result<bool, Failure> {
        let facts = at_boot_of(self.facts.clone(), &self.config.paths, release);
        let catalog = self.available_for(&facts)?;
        plan::is_stored(self.config, &facts, &catalog)
    }
}
