//! Steps that change a host. Each is one entry of the journal, and can be observed, carried out and
//! undone.
//!
//! Everything about one kind of step is in its file, behind the trait [`StepKind`]; `list.rs` has the
//! one list of kinds. The order of steps, the journal and the waiting for users are the engine's.

mod bounds;
mod daemon;
mod directory;
mod exposing;
mod features;
mod images;
mod intent;
mod kind;
mod label;
mod leftover;
mod link;
mod list;
mod module;
mod mount;
mod node;
mod parameter;
mod properties;
mod reserve;
mod spec;
mod status_file;
mod unload;

pub use bounds::{Bounds, Unproved, is_below_root, is_plain};
pub use daemon::{NoDaemon, StartDaemon};
pub use directory::{MakeDir, MissingDirs};
pub(crate) use exposing::{NEEDS_REBOOT, exposing};
pub use features::{FeaturesBefore, WriteFeatures};
pub use images::{Images, ModuleFile, ModuleOrigin};
pub use intent::{Applied, Entries, EntryState, Intent};
pub use kind::{
    ApplyResult, Daemons, Deviation, Mounted, MountedFrom, Observed, Progress, StepKind, Tools,
    UndoResult,
};
pub use label::{LabelFiles, OtherLabels};
pub use leftover::{Leftover, RemoveLeftover, StillThere};
pub use link::{LinkBefore, LinkNodes, Links};
pub(crate) use list::NO_SUCH_STATE;
pub use list::{Recorded, Step};
pub use module::{DEVICE_FILES, LoadModule, NotLoaded};
pub(crate) use module::{held, is_owned};
pub use mount::{Bind, MountRoot, MountSysfs, MountTmpfs, Mounts, Share};
pub(crate) use mount::{TREE_DIRS, is_replaced};
pub use node::{MakeNodes, NodeBefore, Nodes};

impl Step {
    /// Returns the kernel name of the module that the step loads or unloads.
    pub fn module(&self) -> Option<&str> {
        let loads = LoadModule::from_step(self).map(|load| load.name.as_str());
        loads.or_else(|| UnloadConflicting::from_step(self).map(|unload| unload.name.as_str()))
    }
}

pub use parameter::{Value, WriteParameter};
pub use properties::{Announces, Content, Next, Properties, Recheck, Refresh, Refreshed, Watch};
pub use reserve::{BoundElsewhere, ReserveDevice};
pub use spec::{NotPublished, PublishSpec};
pub use status_file::{StatusBefore, WriteStatus};
pub use unload::{UnloadConflicting, WasLoaded};
