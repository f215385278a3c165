//! Unloading of a driver of the kernel's own that is bound to the GPUs and that nobody uses.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::module::{load_again, rules};
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, LoadModule, ModuleOrigin,
    NEEDS_REBOOT, Next, Progress, Properties, Recheck, StepKind, Tools, UndoResult, Watch, held,
};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_host::facts::conflicting;
use longshore_host::facts::in_use::Held;
use longshore_host::verbs::Stage;
use longshore_host::{Host, VerbError};

/// Module that has to be unloaded before another driver takes its devices.
const NVIDIA: &str = "nvidia";

/// Unload a driver of the kernel's own; undone by loading it again from its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("unload {name}, which nobody uses")]
pub struct UnloadConflicting {
    /// Kernel name.
    pub name: String,
    /// Path of its file relative to `/lib/modules/RELEASE`.
    pub file: PathBuf,
    /// Parameters that it had, as on insmod's command line.
    pub parameters: String,
}

/// The module was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WasLoaded {}

impl UnloadConflicting {
    fn as_load(&self) -> LoadModule {
        LoadModule {
            name: self.name.clone(),
            origin: ModuleOrigin::Kernel { file: self.file.clone() },
            parameters: self.parameters.clone(),
            version: None,
            srcversion: None,
        }
    }

    fn failed(&self, error: VerbError) -> Failure {
        let hangs = error.unanswered.is_some();
        let by_hand =
            format!("end the users of {0}, or unload it by hand: modprobe -r {0}", self.name);
        let (kind, remedy) = match hangs {
            true => (FailureKind::RolledBack, NEEDS_REBOOT),
            false => (FailureKind::Preflight, by_hand.as_str()),
        };
        Failure::new(kind, self.to_string()).with_source(error).remedy(remedy)
    }

    /// A module whose exit function has not come back is still to be loaded again.
    fn still_there(&self, stage: Stage) -> UndoResult {
        match stage {
            Stage::Going => {
                let subject = format!("{} (called before)", self.name);
                Err(VerbError::unanswered("delete_module", subject, Duration::ZERO))
            }
            Stage::Coming | Stage::Live => Ok(EntryState::Undone),
        }
    }

    fn in_use(&self, held: &Held) -> Failure {
        let cause = format!("{held}, and was unused when the host was read");
        Failure::new(FailureKind::Preflight, cause)
            .remedy(format!("end the users of {}, then start longshore again", self.name))
    }

    fn held(&self, host: &dyn Host) -> Result<Option<Held>, Failure> {
        held(host, &self.name, &BTreeSet::new()).map_err(|e| self.failed(e))
    }

    /// Refuses while a console is on one of its GPUs: the kernel would detach it without a word.
    fn check_consoles(&self, host: &dyn Host) -> Result<(), Failure> {
        let name = &self.name;
        let consoles = conflicting::consoles_of(host.root(), name)
            .or_fail(FailureKind::Preflight, || format!("reading the consoles on {name}"))?;
        let Some(console) = consoles.first() else { return Ok(()) };
        let cause = format!(
            "{name} is in use: console {}, and was unused when the host was read",
            consoles.join("; console ")
        );
        let remedy = format!(
            "detach the console (`{}`), then start longshore again",
            conflicting::detaching(console)
        );
        Err(Failure::new(FailureKind::Preflight, cause).remedy(remedy))
    }
}

impl StepKind for UnloadConflicting {
    type Before = WasLoaded;
    const WAS: &'static str = "loaded";

    fn subject(&self) -> String {
        self.name.clone()
    }

    fn planned(&self) -> String {
        let Self { name, parameters, .. } = self;
        let blank = if parameters.is_empty() { "" } else { " " };
        format!("unload {name} (loaded again on removal{blank}{parameters})")
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            // Another program may load it again: reserved devices are not bound to it.
            verified: false,
            optional: None,
            recheck: Recheck::Never,
            carries_daemons: false,
            next: Next::AnyDriver,
            content: None,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<WasLoaded>, Failure> {
        if host.module(&self.name).map_err(|e| self.failed(e))?.is_none() {
            return Ok(None);
        }
        if let Some(held) = self.held(host)? {
            return Err(self.in_use(&held));
        }
        self.check_consoles(host)?;
        Ok(Some(WasLoaded {}))
    }

    fn apply(&self, _: &WasLoaded, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        if let Err(failure) = self.check_consoles(tools.host) {
            intent.not_done();
            return Err(failure);
        }
        match tools.host.unload_module(&self.name) {
            Ok(()) => Ok(intent.done()),
            Err(e) if e.errno == Errno::ENOENT => {
                intent.left_to_others("another program unloaded it just before us")
            }
            Err(e) if e.unanswered.is_some() => Err(self.failed(e)),
            Err(e) => {
                intent.not_done();
                Err(self.held(tools.host)?.map_or_else(|| self.failed(e), |h| self.in_use(&h)))
            }
        }
    }

    fn is_there(&self, _: &WasLoaded, _: &Progress<'_>, host: &dyn Host) -> Result<bool, Failure> {
        Ok(host.module(&self.name).map_err(|e| self.failed(e))?.is_none())
    }

    fn undo(&self, _: &WasLoaded, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        if let Some(there) = tools.host.module(&self.name)? {
            return self.still_there(there.stage);
        }
        if tools.host.module(NVIDIA)?.is_some() {
            return Ok(EntryState::Kept(format!("{NVIDIA} is loaded")));
        }
        load_again(&self.as_load(), tools)?;
        Ok(EntryState::Undone)
    }

    fn seen(&self, _: &WasLoaded) -> Deviation {
        Deviation::gone(format!("{} is loaded", self.name))
    }

    fn check(&self, _: &Bounds) -> Result<(), String> {
        if !conflicting::MODULES.contains(&self.name.as_str()) {
            return Err(format!("no module is unloaded as {:?} is", self.name));
        }
        rules::check(&self.as_load())
    }
}
