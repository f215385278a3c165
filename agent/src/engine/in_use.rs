//! Whether the modules we loaded are used by anybody but each other, and by whom.

use std::collections::BTreeSet;
use std::fmt;

use super::Engine;
use crate::host::VerbError;
use crate::host::verbs::{DriverUser, ModuleState};
use crate::journal::{Entry, EntryState, Journal};
use crate::kernel::readback;
use crate::step::{ModuleOrigin, Step};

/// Which entries of the journal are to be undone.
pub type Going<'a> = &'a dyn Fn(&Entry) -> bool;

/// A module of ours that others use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Kernel name.
    pub module: String,
    /// Modules that hold it and that are not ours.
    pub modules: Vec<String>,
    /// References that no module explains: open files, mappings, the kernel itself.
    pub references: i64,
}

/// Why the driver cannot be removed: what is held, and the processes seen to hold it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// The driver's modules that are held.
    pub held: Vec<Held>,
    /// Processes with a device of the driver open or mapped.
    pub users: Vec<DriverUser>,
    /// Why the processes could not be looked at.
    pub unseen: Option<String>,
}

impl Engine<'_> {
    /// The driver's modules that are `going`, and that somebody else holds.
    ///
    /// Modules of the kernel's own that we loaded do not count: where somebody else came to use
    /// one, it is left to that one. Nor does a module that was put in the place of ours.
    pub(super) fn held_modules(
        &self,
        journal: &Journal,
        going: Going<'_>,
    ) -> Result<Vec<Held>, VerbError> {
        let names: BTreeSet<&str> = loads(journal, going).map(|(_, name, _)| name).collect();
        let mut all = Vec::new();
        for (entry, name, origin) in loads(journal, going) {
            if matches!(origin, ModuleOrigin::Driver { .. })
                && let Some(state) = self.host.module(name)?
                && is_ours(entry, &state)
                && let Some(held) = self.held(name, &names)?
            {
                all.push(held);
            }
        }
        Ok(all)
    }

    /// Adds who holds the modules. Who it is helps; that they are held is certain without.
    pub(super) fn in_use(&self, held: Vec<Held>) -> InUse {
        match self.host.driver_users() {
            Ok(users) => InUse { held, users, unseen: None },
            Err(error) => InUse { held, users: Vec::new(), unseen: Some(error.to_string()) },
        }
    }

    /// What holds one module, apart from `going`.
    pub(super) fn held(
        &self,
        name: &str,
        going: &BTreeSet<&str>,
    ) -> Result<Option<Held>, VerbError> {
        let Some(state) = self.host.module(name)? else { return Ok(None) };
        // A module that uses symbols of another holds exactly one reference to it
        // (kernel/module/main.c, ref_module).
        let references = state.refcount - state.holders.len() as i64;
        let mut modules = state.holders;
        modules.retain(|holder| !going.contains(holder.as_str()));
        let free = modules.is_empty() && references <= 0;
        Ok((!free).then(|| Held { module: name.to_owned(), modules, references }))
    }
}

/// Whether the module that is loaded is the one that the entry loaded. An entry that is done was
/// seen to have the versions it wants; with others it is what somebody put in its place.
pub(super) fn is_ours(entry: &Entry, state: &ModuleState) -> bool {
    entry.state != EntryState::Done || readback::versions(&entry.step, state).is_ok()
}

/// The live module loads of the journal that are `going`, oldest first.
pub(super) fn loads<'a>(
    journal: &'a Journal,
    going: Going<'a>,
) -> impl DoubleEndedIterator<Item = (&'a Entry, &'a str, &'a ModuleOrigin)> {
    journal.live().filter(move |e| going(e)).filter_map(|entry| match &entry.step {
        Step::LoadModule { name, origin, .. } => Some((entry, name.as_str(), origin)),
        _ => None,
    })
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is held", self.module)?;
        if !self.modules.is_empty() {
            write!(f, " by module {}", self.modules.join(", "))?;
        }
        if self.references > 0 {
            let and = if self.modules.is_empty() { "" } else { " and" };
            write!(f, "{and} by {} references of open devices", self.references)?;
        }
        Ok(())
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held: Vec<String> = self.held.iter().map(ToString::to_string).collect();
        write!(f, "{}", held.join("; "))?;
        for user in &self.users {
            write!(f, "; {user}")?;
        }
        if let Some(why) = &self.unseen {
            write!(f, "; which process holds it could not be seen: {why}")?;
        } else if self.users.is_empty() && self.held.iter().any(|h| h.references > 0) {
            write!(
                f,
                "; no process is seen to hold it: it may be in another PID namespace (share the \
                 host's), or the kernel itself (a console on the GPU's frame buffer)"
            )?;
        }
        Ok(())
    }
}
