//! Making of device nodes.

mod make;
mod rules;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bounds::given;
use super::{
    Announces, ApplyResult, Bounds, Deviation, Intent, Next, Progress, Properties, Recheck,
    StepKind, Tools, UndoResult, Watch, directory, exposing,
};
use longshore_core::failure::Failure;
use longshore_host::values::Node;
use longshore_host::{Host, VerbError};

pub(super) use rules::is_node_name;

/// Number of paths that are named in one line.
const NAMED: usize = 4;

/// Make the character device nodes of a loaded driver; undone by removing those made.
///
/// Majors are known only once the driver is loaded, so the step names the directories and the
/// journal the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("make device nodes in {}", self.listed(" and "))]
pub struct MakeNodes {
    /// Directories for the nodes, for example `/dev` of the host and of the driver root.
    pub dirs: Vec<PathBuf>,
    /// True if the nodes of a driver that was loaded with NVreg_ModifyDeviceFiles=0 are the
    /// administrator's: a setting asked for it, or another program loaded the driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_to_admin: bool,
}

/// Directories that were missing, and nodes that were missing, another device's, or had other
/// permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// Absolute paths, outermost first.
    pub missing_dirs: Vec<PathBuf>,
    /// The nodes to be made or changed.
    pub nodes: Vec<NodeBefore>,
}

/// A node to be made, and its state before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBefore {
    /// Absolute path.
    pub path: PathBuf,
    /// The node to make.
    pub made: Node,
    /// The node before, if there was one.
    pub was: Option<Node>,
}

impl NodeBefore {
    /// True if the node was there, and only its permissions were others.
    fn was_same_device(&self) -> bool {
        self.was.is_some_and(|was| was.same_device(&self.made))
    }
}

impl MakeNodes {
    fn listed(&self, separator: &str) -> String {
        let dirs: Vec<_> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        dirs.join(separator)
    }
}

impl StepKind for MakeNodes {
    type Before = Nodes;
    const WAS: &'static str = "nodes";

    fn subject(&self) -> String {
        self.listed(",")
    }

    fn planned(&self) -> String {
        format!("make device nodes in {}", self.listed(", "))
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: None,
            // Node numbers are those of the loaded driver: nodes of another driver are not ours to
            // make.
            recheck: Recheck::WhileLoaded,
            carries_daemons: true,
            // Another driver has other numbers, and may have fewer devices.
            next: Next::WantedUnlessReplaced("nvidia"),
            content: None,
            watch: Watch::Nodes(&self.dirs),
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<Nodes>, Failure> {
        make::observe(host, self)
    }

    fn apply(&self, before: &Nodes, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        make::nodes(tools.host, before).map_err(exposing)?;
        Ok(intent.done())
    }

    fn undo(&self, before: &Nodes, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        before.nodes.iter().rev().try_for_each(|node| undo(tools.host, node))?;
        directory::remove(tools.host, &before.missing_dirs)
    }

    /// Device nodes with other permissions are there: a device manager that sets them after us is
    /// no reason to uninstall the driver, nor to fight it.
    fn seen(&self, now: &Nodes) -> Deviation {
        let changed = now.nodes.iter().filter(|node| node.was_same_device());
        let changed: Vec<String> = changed
            .map(|node| {
                let path = node.path.display();
                format!("something else on this host changes mode or owner of {path}")
            })
            .collect();
        let is_gone = changed.len() < now.nodes.len();
        let named = listed_first(now.nodes.iter().map(|node| &node.path));
        let gone = || format!("device nodes are missing or wrong: {named}");
        Deviation { gone: is_gone.then(gone), changed }
    }

    fn is_below(&self, before: &Nodes, target: &Path) -> bool {
        let is_inside = |path: &PathBuf| directory::is_inside(target, path);
        before.missing_dirs.iter().all(is_inside)
            && before.nodes.iter().all(|node| is_inside(&node.path))
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        self.dirs.iter().try_for_each(|dir| given(bounds.devs.contains(dir), dir))
    }

    fn check_before(&self, before: &Nodes, bounds: &Bounds) -> Result<(), String> {
        before.nodes.iter().try_for_each(|node| rules::node(&self.dirs, node, bounds))?;
        before.missing_dirs.iter().try_for_each(|dir| rules::missing_below(&self.dirs, dir))
    }
}

/// Returns the first of these paths in one line, with the number of the others.
pub(super) fn listed_first<'a>(paths: impl ExactSizeIterator<Item = &'a PathBuf>) -> String {
    let more = paths.len().saturating_sub(NAMED);
    let named: Vec<_> = paths.take(NAMED).map(|path| path.display().to_string()).collect();
    let named = named.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

fn undo(host: &dyn Host, node: &NodeBefore) -> Result<(), VerbError> {
    let there = host.node(&node.path)?;
    match (there, node.was) {
        // Only its permissions were changed, and are restored unless another program changed them
        // after us.
        (Some(there), Some(was)) if was.same_device(&node.made) => {
            let ours = there != was && there.is_between(&was, &node.made);
            return if ours { host.set_node(&node.path, was) } else { Ok(()) };
        }
        (None, Some(was)) if was.same_device(&node.made) => return Ok(()),
        (Some(there), _) if there.same_device(&node.made) => host.remove_file(&node.path)?,
        (Some(_), _) => return Ok(()),
        (None, _) => {}
    }
    node.was.map_or(Ok(()), |was| host.make_node(&node.path, was))
}
