//! Check of the modules for the kernel of the next boot.

use super::checks::HIDDEN;
use super::{Look, Text};
use crate::config::NextKernelMode;
use crate::next_kernel;
use crate::plan;
use crate::supplier::at_boot_of;
use longshore_core::failure::Failure;
use longshore_core::finding::{Code, Finding};

/// Finding and text of the check.
pub(super) struct Checked {
    pub(super) finding: Option<Finding>,
    pub(super) text: Text,
}

/// Looks for a newer kernel that is installed, and for everything it needs in the store.
pub(super) fn look(look: &Look<'_>) -> Checked {
    let facts = look.facts;
    let unread = facts.unread.get("installed-kernels");
    let skipped = match look.config.next_kernel() {
        NextKernelMode::Off => Some("next-kernel is off".to_owned()),
        _ if look.hidden => Some(HIDDEN.to_owned()),
        _ if facts.installed_kernels.is_empty() => {
            Some(unread.cloned().unwrap_or_else(|| "the host shows no kernels".to_owned()))
        }
        _ => None,
    };
    if let Some(why) = skipped {
        return Checked { finding: None, text: Err(why) };
    }
    let Some(release) = next_kernel::next(&facts.kernel.release, &facts.installed_kernels) else {
        let text = Ok(format!("{}, the running one, is the newest", facts.kernel.release));
        return Checked { finding: None, text };
    };
    match look.has_modules(release) {
        Ok(true) => Checked { finding: None, text: Ok(format!("{release}: ready")) },
        Ok(false) => {
            let finding = missing(look.config.next_kernel(), release);
            Checked { finding: Some(finding), text: Ok(String::new()) }
        }
        Err(failure) => Checked { finding: None, text: Err(failure.one_line()) },
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
        let catalog = self.at_hand_for(&facts)?;
        plan::is_stored(self.config, &facts, &catalog)
    }
}
