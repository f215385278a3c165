//! The list of kinds, and the two values made of it: [`Step`], and [`Recorded`] with the state
//! before the step.

use std::path::Path;

use serde::{Deserialize, Serialize, Serializer};

use super::{
    ApplyResult, Bind, Bounds, Deviation, Intent, LabelFiles, LinkNodes, LoadModule, MakeDir,
    MakeNodes, MountRoot, MountSysfs, MountTmpfs, Mounted, Observed, Progress, Properties,
    PublishSpec, RemoveLeftover, ReserveDevice, Share, StartDaemon, StepKind, Tools, UndoResult,
    UnloadConflicting, WriteFeatures, WriteParameter, WriteStatus,
};
use longshore_core::failure::Failure;
use longshore_host::Host;

/// Defines [`Step`] and [`Recorded`], which pass every question on to the kind's own [`StepKind`].
macro_rules! kinds {
    ($($kind:ident $name:literal $means:literal)+) => {
        /// One change to the host.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
        #[serde(tag = "do")]
        pub enum Step {
            $(#[doc = $means] #[serde(rename = $name)] $kind($kind),)+
        }

        /// One change to the host, with the state that was observed before it.
        #[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
        pub enum Recorded {
            $(#[doc = $means] $kind(Observed<$kind>),)+
        }

        $(impl $kind {
            /// Returns the step as one of this kind; None if it is of another.
            pub fn from_step(step: &Step) -> Option<&Self> {
                if let Step::$kind(step) = step { Some(step) } else { None }
            }

            /// Returns the recorded step as one of this kind; None if it is of another.
            pub fn recorded(recorded: &Recorded) -> Option<&Self> {
                if let Recorded::$kind(Observed { step, .. }) = recorded { Some(step) } else { None }
            }

            /// Returns the step with the state before it, for the journal.
            pub fn observed(self, before: <Self as StepKind>::Before) -> Recorded {
                Recorded::$kind(Observed { step: self, before })
            }
        })+

        impl Step {
            /// Names of all kinds.
            pub const KINDS: &[&str] = &[$($name),+];

            /// Returns the kind of step, as named in the journal's file: for labels and log fields.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$kind(_) => $name,)+ }
            }

            /// Returns the name that the state before such a step has in the journal's file.
            pub fn was(&self) -> &'static str {
                match self { $(Self::$kind(_) => <$kind as StepKind>::WAS,)+ }
            }

            /// Returns the changed part of the host: a module's name or a path.
            pub fn subject(&self) -> String {
                match self { $(Self::$kind(step) => step.subject(),)+ }
            }

            /// Returns the line of `longshore plan`.
            pub fn planned(&self) -> String {
                match self { $(Self::$kind(step) => step.planned(),)+ }
            }

            /// True if both steps leave the host the same.
            pub fn is_same(&self, other: &Step) -> bool {
                match self {
                    $(Self::$kind(step) => $kind::from_step(other).is_some_and(|other| step.is_same(other)),)+
                }
            }

            /// Returns the properties by which the engine and others treat it.
            pub fn properties(&self) -> Properties<'_> {
                match self { $(Self::$kind(step) => step.properties(),)+ }
            }

            /// Returns the step with the state before it; None where its result is already there.
            ///
            /// # Errors
            /// If the host cannot be inspected, or has another's work in the step's place.
            pub fn observe(&self, host: &dyn Host) -> Result<Option<Recorded>, Failure> {
                match self {
                    $(Self::$kind(step) => {
                        Ok(step.observe(host)?.map(|before| step.clone().observed(before)))
                    })+
                }
            }

            /// Checks that an agent can have written such a step.
            ///
            /// # Errors
            /// A message, if no agent writes it.
            pub fn check(&self, bounds: &Bounds) -> Result<(), String> {
                match self { $(Self::$kind(step) => step.check(bounds),)+ }
            }

            /// Returns the step with the state before it, as the journal's file has it.
            ///
            /// # Errors
            /// A message, if the recorded earlier state belongs to another kind of step.
            pub fn with_before(self, before: serde_json::Value) -> Result<Recorded, String> {
                if before.get("was").and_then(|was| was.as_str()) != Some(self.was()) {
                    return Err(NO_SUCH_STATE.to_owned());
                }
                match self {
                    $(Self::$kind(step) => {
                        let before = serde_json::from_value(before).map_err(|e| e.to_string())?;
                        Ok(step.observed(before))
                    })+
                }
            }
        }

        impl Recorded {
            /// Returns the step alone.
            pub fn step(&self) -> Step {
                match self { $(Self::$kind(it) => Step::$kind(it.step.clone()),)+ }
            }

            /// Returns the kind of step, as named in the journal's file.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$kind(_) => $name,)+ }
            }

            /// True if the other step leaves the host the same.
            pub fn is_same(&self, other: &Step) -> bool {
                match self {
                    $(Self::$kind(it) => $kind::from_step(other).is_some_and(|other| it.step.is_same(other)),)+
                }
            }

            /// Returns the properties by which the engine and others treat it.
            pub fn properties(&self) -> Properties<'_> {
                match self { $(Self::$kind(it) => it.step.properties(),)+ }
            }

            /// Carries out the step, and records its outcome.
            ///
            /// # Errors
            /// If it failed; an entry without an outcome may have been carried out in part.
            pub fn apply(&self, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
                match self { $(Self::$kind(it) => it.step.apply(&it.before, tools, intent),)+ }
            }

            /// True if the effect is (still) there and whole.
            ///
            /// # Errors
            /// If the host cannot be inspected.
            pub fn is_there(
                &self,
                progress: &Progress<'_>,
                host: &dyn Host,
            ) -> Result<bool, Failure> {
                match self { $(Self::$kind(it) => it.step.is_there(&it.before, progress, host),)+ }
            }

            /// Undoes the step, and returns the state that its entry is now in.
            ///
            /// # Errors
            /// If the host refused it.
            pub fn undo(&self, progress: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
                match self { $(Self::$kind(it) => it.step.undo(&it.before, progress, tools),)+ }
            }

            /// Describes what is there in place of the effect, if this was observed after it was
            /// carried out.
            pub fn seen(&self) -> Deviation {
                match self { $(Self::$kind(it) => it.step.seen(&it.before),)+ }
            }

            /// Returns the mount that the step made, if it made one.
            pub fn mounted(&self) -> Option<Mounted<'_>> {
                match self { $(Self::$kind(it) => it.step.mounted(&it.before),)+ }
            }

            /// True if everything that the step made is below `target`, and gone with a mount there.
            pub fn is_below(&self, target: &Path) -> bool {
                match self { $(Self::$kind(it) => it.step.is_below(&it.before, target),)+ }
            }

            /// Checks that an agent can have written such an entry.
            ///
            /// # Errors
            /// A message, if no agent writes it.
            pub fn check(&self, bounds: &Bounds) -> Result<(), String> {
                match self {
                    $(Self::$kind(it) => {
                        it.step.check(bounds)?;
                        it.step.check_before(&it.before, bounds)
                    })+
                }
            }
        }

        impl Serialize for Recorded {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$kind(Observed { step, before }) => {
                        let step = Do { kind: $name, step };
                        let before = Was { kind: <$kind as StepKind>::WAS, before };
                        Written { step, before }.serialize(serializer)
                    })+
                }
            }
        }
    };
}

kinds! {
    MakeDir "make-dir" "Make a directory and its missing parents."
    WriteParameter "write-parameter" "Write a value to a file below /sys or /proc."
    LoadModule "load-module" "Load a kernel module."
    MountRoot "mount-root" "Mount the first level of a driver root."
    Bind "bind" "Mount a directory of an assembled tree of the store."
    MountSysfs "mount-sysfs" "Mount sysfs in the driver root."
    MountTmpfs "mount-tmpfs" "Mount a small tmpfs for device nodes."
    RemoveLeftover "remove-leftover" "Remove a leftover of NVIDIA's dead driver container."
    Share "share" "Bind-mount a directory of longshore's on a second path."
    StartDaemon "start-daemon" "Start a daemon of the driver."
    MakeNodes "make-nodes" "Make the character device nodes of a loaded driver."
    ReserveDevice "reserve-device" "Reserve a GPU for NVIDIA's driver."
    UnloadConflicting "unload-conflicting" "Unload a driver of the kernel's own that nobody uses."
    LinkNodes "link-nodes" "Make the links to these nodes in /dev/char."
    PublishSpec "cdi-spec" "Publish the CDI spec of a driver."
    LabelFiles "label-files" "Give files of the store an SELinux label."
    WriteStatus "write-status" "Write a file by which the GPU operator follows the driver."
    WriteFeatures "write-features" "Write the features file of Node Feature Discovery."
}

/// Refusal of a state that belongs to another kind of step.
pub(crate) const NO_SUCH_STATE: &str = "the recorded earlier state belongs to another kind of step";

/// A step and the state before it, as in the journal's file.
#[derive(Serialize)]
struct Written<'a, S, B> {
    step: Do<'a, S>,
    before: Was<'a, B>,
}

#[derive(Serialize)]
struct Do<'a, S> {
    #[serde(rename = "do")]
    kind: &'static str,
    #[serde(flatten)]
    step: &'a S,
}

#[derive(Serialize)]
struct Was<'a, B> {
    #[serde(rename = "was")]
    kind: &'static str,
    #[serde(flatten)]
    before: &'a B,
}
