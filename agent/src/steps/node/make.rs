//! Nodes to be made in each directory, and their making.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::super::{directory, exposing};
use super::{MakeNodes, NodeBefore, Nodes};
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::values::{Node, NodeKeeper, TMPFS_SOURCE, WantedNode};
use longshore_host::{Host, VerbError};

/// Returns the nodes that are missing, are another device's, or have other permissions than they
/// should.
pub(super) fn observe(host: &dyn Host, step: &MakeNodes) -> Result<Option<Nodes>, Failure> {
    let mut wanted = host.wanted_nodes().map_err(exposing)?;
    for node in wanted.iter_mut().filter(|node| node.keeper == NodeKeeper::Loader) {
        node.keeper = if step.left_to_admin { NodeKeeper::Admin } else { NodeKeeper::Installer };
    }
    if wanted.is_empty() {
        return Err(Failure::new(
            FailureKind::Expose,
            "making device nodes: no NVIDIA driver is loaded, so none are known",
        ));
    }
    let mut nodes = Vec::new();
    let mut missing = BTreeSet::new();
    let dirs = distinct(host, &step.dirs)?;
    for dir in &dirs {
        let source = host.mount_source(dir).map_err(exposing)?;
        let own = source.as_deref() == Some(TMPFS_SOURCE);
        for wanted in &wanted {
            let node = before(host, dir, own, wanted, &dirs).map_err(exposing)?;
            let Some(node) = node else { continue };
            if let Some(parent) = node.path.parent() {
                missing.extend(directory::missing(host, parent).map_err(exposing)?);
            }
            nodes.push(node);
        }
    }
    // A set of paths is in order outermost first.
    let missing_dirs = missing.into_iter().collect();
    Ok((!nodes.is_empty()).then_some(Nodes { missing_dirs, nodes }))
}

/// Returns the node to make or change in `dir`, which is a tmpfs of ours if `own`; None if it is as
/// it should be, or another program maintains it.
fn before(
    host: &dyn Host,
    dir: &Path,
    own: bool,
    wanted: &WantedNode,
    dirs: &[&PathBuf],
) -> Result<Option<NodeBefore>, VerbError> {
    let made = match (wanted.keeper, own) {
        (NodeKeeper::Installer, _) | (NodeKeeper::Kernel, false) => wanted.node,
        (NodeKeeper::Kernel, true) | (NodeKeeper::Admin | NodeKeeper::Loader, false) => {
            return Ok(None);
        }
        (NodeKeeper::Admin | NodeKeeper::Loader, true) => {
            match of_admin(host, dir, wanted, dirs)? {
                Some(theirs) => theirs,
                None => return Ok(None),
            }
        }
    };
    let path = dir.join(&wanted.name);
    let was = host.node(&path)?;
    let right = match wanted.keeper {
        NodeKeeper::Kernel => was.is_some_and(|was| was.same_device(&made)),
        NodeKeeper::Installer | NodeKeeper::Admin | NodeKeeper::Loader => was == Some(made),
    };
    Ok((!right).then_some(NodeBefore { path, made, was }))
}

/// Returns the same device's node in another /dev, with the permissions that the host's
/// administrator gave it.
fn of_admin(
    host: &dyn Host,
    own: &Path,
    wanted: &WantedNode,
    dirs: &[&PathBuf],
) -> Result<Option<Node>, VerbError> {
    for dir in dirs.iter().filter(|dir| dir.as_path() != own) {
        let there = host.node(&dir.join(&wanted.name))?;
        if let Some(there) = there.filter(|there| there.same_device(&wanted.node)) {
            return Ok(Some(there));
        }
    }
    Ok(None)
}

/// `dirs` without those that are another one under a second path: the host's /dev and a
/// container's can be the same.
fn distinct<'a>(host: &dyn Host, dirs: &'a [PathBuf]) -> Result<Vec<&'a PathBuf>, Failure> {
    let mut seen = BTreeSet::new();
    let mut distinct = Vec::new();
    for dir in dirs {
        let id = host.dir(dir).map_err(exposing)?.ok_or_else(|| {
            Failure::new(
                FailureKind::Expose,
                format!("making device nodes: {} is no directory", dir.display()),
            )
        })?;
        if seen.insert(id) {
            distinct.push(dir);
        }
    }
    Ok(distinct)
}

/// Makes or changes the nodes, after the directories that were missing.
pub(super) fn nodes(host: &dyn Host, before: &Nodes) -> Result<(), VerbError> {
    let Nodes { missing_dirs, nodes } = before;
    missing_dirs.iter().try_for_each(|d| host.make_dir(d))?;
    let fresh = nodes.iter().filter(|node| node.was.is_none());
    let fresh: Vec<_> = fresh.map(|node| (node.path.clone(), node.made)).collect();
    let made = match host.make_nodes(&fresh) {
        Err(e) if e.unanswered.is_some() => return Err(e),
        // Making them one by one shows which one fails, and whether that matters; the ones
        // already made return EEXIST.
        made => made.inspect_err(|e| tracing::debug!("{e}: making them one by one")).is_ok(),
    };
    for node in nodes.iter().filter(|node| !made || node.was.is_some()) {
        match node.was {
            Some(was) if was.same_device(&node.made) => {
                put_right(host, node)?;
                continue;
            }
            Some(_) => host.remove_file(&node.path)?,
            None => {}
        }
        let made = host.make_node(&node.path, node.made);
        if !somebody_was_faster(host, &made, node)? {
            made?;
        }
    }
    Ok(())
}

/// True if the host's device manager made the same node after it was found missing; its
/// permissions are then corrected.
fn somebody_was_faster(
    host: &dyn Host,
    made: &Result<(), VerbError>,
    node: &NodeBefore,
) -> Result<bool, VerbError> {
    let theirs = match made {
        Err(e) if e.errno == Errno::EEXIST => host.node(&node.path)?,
        Ok(()) | Err(_) => None,
    };
    let theirs = theirs.filter(|theirs| theirs.same_device(&node.made));
    if theirs.is_some_and(|theirs| theirs != node.made) {
        put_right(host, node)?;
    }
    Ok(theirs.is_some())
}

/// Sets mode and owner of an existing node. Where that is not allowed, only warns: its maker
/// set them, and the driver can be used all the same.
fn put_right(host: &dyn Host, node: &NodeBefore) -> Result<(), VerbError> {
    const NOT_ALLOWED: [Errno; 3] = [Errno::EPERM, Errno::EACCES, Errno::EROFS];
    match host.set_node(&node.path, node.made) {
        Err(e) if e.unanswered.is_none() && NOT_ALLOWED.contains(&e.errno) => {
            tracing::warn!(
                "{e}: leaving mode and owner as they are (CAP_CHOWN and CAP_FOWNER allow it)"
            );
            Ok(())
        }
        set => set,
    }
}
