//! Checks of the running kernel and of its own modules.

use super::{Checked, Input, passed, skipped};
use longshore_host::facts::Probe;

pub(super) fn kernel(input: &Input<'_>) -> Checked {
    let kernel = &input.look.facts.kernel;
    passed(format!("{} {}", kernel.release, kernel.version))
}

pub(super) fn loading_of_modules(input: &Input<'_>) -> Checked {
    match &input.look.facts.security.module_loading {
        Probe::Read(_) => passed("allowed"),
        Probe::Unreadable(why) => skipped(why),
    }
}

pub(super) fn own_modules(input: &Input<'_>) -> Checked {
    let facts = input.look.facts;
    let (files, builtin) = (facts.available.len(), facts.builtin.len());
    passed(format!(
        "{files} as files and {builtin} built in, by /lib/modules/{}",
        facts.kernel.release
    ))
}
