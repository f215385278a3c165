//! Loading of kernel modules, and their owners.

mod handover;
mod load;
mod readback;
pub(super) mod rules;

use std::collections::BTreeSet;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use handover::{NotTaken, hand_over};

use super::{
    Announces, ApplyResult, Bounds, Content, Deviation, EntryState, Intent, ModuleOrigin, Next,
    Progress, Properties, Recheck, StepKind, Tools, UndoResult, Watch,
};
use longshore_core::failure::Failure;
use longshore_core::finding::Code;
use longshore_core::module_parameters;
use longshore_host::facts::in_use::Held;
use longshore_host::verbs::refusal;
use longshore_host::verbs::{ModuleState, Stage};
use longshore_host::{Host, VerbError};

/// Parameter of nvidia by which its libraries make and change device nodes in any /dev, also a
/// container's (nv-reg.h). longshore, which makes the nodes, loads the driver without that, unless a
/// setting has the parameter.
pub const DEVICE_FILES: &str = "NVreg_ModifyDeviceFiles";

/// Module of the driver that cannot be loaded before the network driver is, and modules of which one is
/// loaded with every network driver: that of NVIDIA's adapters, and those that any vendor's driver for
/// RDMA (bnxt_re, irdma, efa) depends on.
const PEERMEM: (&str, &[&str]) = ("nvidia_peermem", &["mlx5_core", "ib_core", "ib_uverbs"]);

/// Load a kernel module; undone by unloading it, if this step loaded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("load module {name}{}", self.shown_version())]
pub struct LoadModule {
    /// Kernel name (underscores).
    pub name: String,
    /// Source of its file.
    pub origin: ModuleOrigin,
    /// Parameters as on insmod's command line.
    pub parameters: String,
    /// Version that the kernel must report afterwards.
    pub version: Option<String>,
    /// Srcversion that the kernel must report afterwards.
    pub srcversion: Option<String>,
}

/// The module was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLoaded {}

impl LoadModule {
    /// True if the module is of the driver's set, and not the kernel's own.
    pub fn is_of_driver(&self) -> bool {
        matches!(self.origin, ModuleOrigin::Driver { .. })
    }

    /// Returns the sha256 (hex) of a module of the driver; None for the kernel's own.
    pub fn digest(&self) -> Option<&str> {
        self.origin.digest()
    }

    /// Returns the modules of the network driver, of which one is to be loaded before; None for a module
    /// that every installation with it needs. Symbols of the network driver can be missing until then: its
    /// container may start after this one.
    pub fn loads_after(&self) -> Option<&'static [&'static str]> {
        Self::network_driver_of(&self.name).filter(|_| self.is_of_driver())
    }

    /// Returns the same by the module's name.
    pub fn network_driver_of(name: &str) -> Option<&'static [&'static str]> {
        let (peermem, after) = PEERMEM;
        (name == peermem).then_some(after)
    }

    /// True for a module whose load can be the one that another of the driver waits for.
    pub fn is_of_network_driver(name: &[u8]) -> bool {
        PEERMEM.1.iter().any(|module| module.as_bytes() == name)
    }

    /// Returns the parameters that the kernel is given. Those that no setting has are not compared with
    /// the loaded module's: without them it is the same driver.
    pub fn given(&self) -> String {
        let is_set =
            || module_parameters::split(&self.parameters).iter().any(|(n, _)| *n == DEVICE_FILES);
        if self.name != "nvidia" || !self.is_of_driver() || is_set() {
            return self.parameters.clone();
        }
        let blank = if self.parameters.is_empty() { "" } else { " " };
        format!("{DEVICE_FILES}=0{blank}{}", self.parameters)
    }

    fn shown_version(&self) -> String {
        self.version.as_ref().map_or_else(String::new, |version| format!(" {version}"))
    }

    fn state(&self, host: &dyn Host) -> Result<Option<ModuleState>, Failure> {
        host.module(&self.name).map_err(|e| refusal::explain(&self.name, &e))
    }

    /// Checks that the loaded module is the wanted one; `kernel_log` has the kernel's messages of the
    /// load.
    fn compare(
        &self,
        host: &dyn Host,
        state: &ModuleState,
        kernel_log: &[String],
    ) -> Result<(), Failure> {
        readback::versions(self, state)?;
        if self.is_of_driver() {
            readback::parameters(host, &self.name, &self.parameters, kernel_log)?;
        }
        Ok(())
    }
}

impl StepKind for LoadModule {
    type Before = NotLoaded;
    const WAS: &'static str = "not-loaded";

    fn subject(&self) -> String {
        self.name.clone()
    }

    fn planned(&self) -> String {
        let (name, parameters) = (&self.name, self.given());
        let from = match &self.origin {
            ModuleOrigin::Kernel { .. } => " (the kernel's own)".to_owned(),
            ModuleOrigin::Driver { .. } => self.shown_version(),
        };
        let blank = if parameters.is_empty() { "" } else { " " };
        format!("load {name}{from}{blank}{parameters}")
    }

    /// Modules are the same where the kernel cannot distinguish them: file location and signer may
    /// differ.
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
            && self.is_of_driver() == other.is_of_driver()
            && self.version == other.version
            && self.srcversion == other.srcversion
            && module_parameters::same_parameters(&self.parameters, &other.parameters)
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: self.loads_after().map(|_| Code::PeermemMissing),
            // The engine compares the driver's other modules by their loadings, and the kernel's own
            // cannot be unloaded while the driver uses them.
            recheck: match self.loads_after() {
                Some(_) => Recheck::WhileLoaded,
                None => Recheck::Never,
            },
            carries_daemons: self.is_of_driver(),
            next: match self.is_of_driver() {
                true => Next::UnlessReplaced(&self.name),
                false => Next::AnyDriver,
            },
            content: Some(Content::Module { name: &self.name, origin: &self.origin }),
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<NotLoaded>, Failure> {
        let Some(state) = self.state(host)? else { return Ok(Some(NotLoaded {})) };
        // Loaded by another program: accepted if its versions and parameters are the wanted ones.
        self.compare(host, &state, &[])?;
        Ok(None)
    }

    fn apply(&self, _: &NotLoaded, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        load::load(self, tools, intent)
    }

    fn is_there(
        &self,
        _: &NotLoaded,
        progress: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        Ok(self.state(host)?.is_some_and(|state| is_owned(self, progress, host, &state)))
    }

    fn undo(&self, _: &NotLoaded, progress: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        unload(self, progress, tools.host)
    }

    fn seen(&self, _: &NotLoaded) -> Deviation {
        Deviation::gone(format!("{} is not loaded", self.name))
    }

    fn check(&self, _: &Bounds) -> Result<(), String> {
        rules::check(self)
    }
}

/// Loads a module of the kernel's own again that was unloaded; one that another program loaded
/// meanwhile counts as loaded.
pub(super) fn load_again(step: &LoadModule, tools: &Tools<'_>) -> Result<(), VerbError> {
    match hand_over(step, tools) {
        Ok(_) => Ok(()),
        Err(NotTaken::Refused(e)) if e.errno == Errno::EEXIST => Ok(()),
        Err(NotTaken::Refused(e)) => Err(e),
        Err(NotTaken::Absent(failure)) => {
            let subject = format!("{}: {}", step.name, failure.one_line());
            Err(VerbError::new("load", subject, Errno::ENOENT))
        }
    }
}

fn unload(step: &LoadModule, progress: &Progress<'_>, host: &dyn Host) -> UndoResult {
    let name = step.name.as_str();
    let Some(state) = host.module(name)? else { return Ok(EntryState::Undone) };
    if !is_owned(step, progress, host, &state) {
        let why = "another program loaded it since";
        tracing::warn!("{name} stays loaded: {why}");
        return Ok(EntryState::Kept(why.to_owned()));
    }
    match host.unload_module(name) {
        Ok(()) => Ok(EntryState::Undone),
        Err(e) if e.errno == Errno::ENOENT => Ok(EntryState::Undone),
        // A module of the kernel's own that another program came to use, or that cannot be
        // unloaded at all (EBUSY): it does no harm, and unloading it would.
        Err(e)
            if !step.is_of_driver()
                && matches!(e.errno, Errno::EAGAIN | Errno::EBUSY)
                && state.stage == Stage::Live =>
        {
            let why = match held(host, name, &BTreeSet::new())? {
                Some(held) => held.to_string(),
                None => e.to_string(),
            };
            tracing::warn!("{name} stays loaded: {why}");
            Ok(EntryState::Kept(why))
        }
        Err(e) => Err(e),
    }
}

/// True if the loaded module is the one that the entry loaded (docs/internals/decisions/whose-module.md).
///
/// An entry that is done has the number of its loading; one that an older longshore wrote has the
/// versions alone. An intent whose agent died may have been carried out: a module with the intended
/// versions and parameters is taken for ours.
pub(crate) fn is_owned(
    step: &LoadModule,
    progress: &Progress<'_>,
    host: &dyn Host,
    state: &ModuleState,
) -> bool {
    let same_build = readback::versions(step, state).is_ok();
    match (progress.state, progress.instance, state.instance) {
        (EntryState::Done, Some(ours), Some(there)) => ours == there,
        (EntryState::Done, ..) => same_build,
        (EntryState::Intended | EntryState::Undone | EntryState::Kept(_), ..) => {
            let given = !step.is_of_driver()
                || readback::parameters(host, &step.name, &step.parameters, &[]).is_ok();
            same_build && given
        }
    }
}

/// Returns the holders of one module, apart from `going`.
pub(crate) fn held(
    host: &dyn Host,
    name: &str,
    going: &BTreeSet<&str>,
) -> Result<Option<Held>, VerbError> {
    let Some(state) = host.module(name)? else { return Ok(None) };
    // A module that uses symbols of another holds exactly one reference to it
    // (kernel/module/main.c, ref_module).
    let references = state.refcount - state.holders.len() as i64;
    let mut modules = state.holders;
    modules.retain(|holder| !going.contains(holder.as_str()));
    let free = modules.is_empty() && references <= 0;
    Ok((!free).then(|| Held { module: name.to_owned(), modules, references }))
}

#[cfg(test)]
mod tests;
