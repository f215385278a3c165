//! Loading of a module, and the record of its owner.

use nix::errno::Errno;

use super::super::{ApplyResult, Intent, NEEDS_REBOOT, Tools};
use super::LoadModule;
use super::handover::{NotTaken, hand_over};
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::verbs::refusal;
use longshore_host::{Host, VerbError};

const UNLOADED_BY_OTHERS: &str = "find out what loads and unloads it on this host, and stop that";

/// Loads the module, and compares the kernel's account of it with the wanted module.
///
/// A module that the kernel refused is not ours, if another program loads it next; a load without
/// an answer may still succeed, and stays intended.
pub(super) fn load(step: &LoadModule, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
    let name = step.name.as_str();
    let taken = match hand_over(step, tools) {
        Ok(taken) => taken,
        Err(NotTaken::Absent(failure)) => {
            intent.not_done();
            return Err(failure);
        }
        Err(NotTaken::Refused(e)) if e.unanswered.is_some() => return Err(wedged(name, &e)),
        Err(NotTaken::Refused(e)) if e.errno == Errno::EEXIST => {
            return somebody_loaded(step, tools.host, intent);
        }
        Err(NotTaken::Refused(e)) => {
            intent.not_done();
            return Err(refusal::explain(name, &e));
        }
    };
    let Some(state) = step.state(tools.host)? else {
        intent.not_done();
        let cause = format!("the kernel accepted {name}, but does not list it as loaded");
        return Err(Failure::new(FailureKind::KernelRefused, cause).remedy(UNLOADED_BY_OTHERS));
    };
    // Recorded before any comparison: the module is ours even if it is not the wanted one. A
    // failure is written before anything is undone.
    let applied = intent.loaded(state.instance);
    taken.file.map_or(Ok(()), |file| file.check_unwritten())?;
    step.compare(tools.host, &state, &taken.kernel_log)?;
    Ok(applied)
}

/// Handles a module that another program, for example udev by its alias, loaded after it was found
/// missing: it stays that program's, and is used if it is the wanted one.
fn somebody_loaded(step: &LoadModule, host: &dyn Host, intent: Intent<'_>) -> ApplyResult {
    let name = step.name.as_str();
    let applied = intent.left_to_others("another program loaded it just before us")?;
    tracing::warn!("{name}: another program loaded it just before us");
    let Some(state) = step.state(host)? else {
        let cause = format!("{name}: another program loaded and unloaded it meanwhile");
        return Err(Failure::new(FailureKind::KernelRefused, cause).remedy(UNLOADED_BY_OTHERS));
    };
    step.compare(host, &state, &[])?;
    Ok(applied)
}

/// Failure of a load that did not return.
fn wedged(name: &str, error: &VerbError) -> Failure {
    Failure::new(FailureKind::KernelRefused, format!("{name}: its init function hangs"))
        .with_source(error.to_string())
        .remedy(NEEDS_REBOOT)
}
