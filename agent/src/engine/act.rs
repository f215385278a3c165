//! Carrying out of one step: observe, record the intent, act, verify.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::undo::NEEDS_REBOOT;
use super::{Engine, Outcome};
use crate::cancel::CancelFlag;
use crate::engine::readback;
use crate::failure::{ExitCode, Failure};
use crate::host::daemon::Answers;
use crate::host::refusal;
use crate::host::verbs::{Node, NodeKeeper, TMPFS_SOURCE, WantedNode};
use crate::host::{Host, VerbError};
use crate::journal::{Before, Entry, EntryState, Journal, NodeBefore};
use crate::step::{ModuleOrigin, Step};

impl Engine<'_> {
    /// Carries out one step; its completion is [settled](Journal::settle).
    pub(super) fn act(
        &self,
        step: &Step,
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<Outcome, Failure> {
        // If another program removed the effect of an earlier entry, the step is done anew as an
        // entry of its own: undoing both, newest first, ends where undoing one would.
        let ours = journal.live().rfind(|e| e.step.is_same(step)).cloned();
        if let Some(entry) = &ours
            && self.is_so(entry)?
        {
            if matches!(step, Step::RemoveLeftover { .. }) {
                journal.settle(entry.seq, done(step));
            } else if entry.state != EntryState::Done {
                journal.settle_done(entry.seq, self.instance(step)?);
            }
            return Ok(Outcome::StillOurs);
        }
        // The remains of a daemon are found by its entry's mark.
        if let (Some(entry), Step::StartDaemon { .. }) = (&ours, step) {
            // It has no intent of its own, and may take long.
            journal.flush()?;
            self.carry_out(step, &entry.before, cancel)?;
            journal.settle(entry.seq, EntryState::Done);
            return Ok(Outcome::Done);
        }
        let Some(before) = self.observe(step)? else {
            return Ok(Outcome::NotOurs);
        };
        let seq = journal.intend(step.clone(), before.clone())?;
        if matches!(step, Step::LoadModule { .. }) {
            return self.load(step, seq, journal);
        }
        self.carry_out(step, &before, cancel)?;
        journal.settle(seq, done(step));
        Ok(Outcome::Done)
    }

    /// Returns the number of this loading of the step's module.
    fn instance(&self, step: &Step) -> Result<Option<u64>, Failure> {
        let Step::LoadModule { name, .. } = step else { return Ok(None) };
        let state = self.host.module(name).map_err(|e| refusal::explain(name, &e))?;
        Ok(state.and_then(|state| state.instance))
    }

    /// Checks that everything the steps made is there and whole: nodes with the right numbers,
    /// mounts, parameters, modules.
    pub(super) fn verify(&self, steps: &[Step], journal: &Journal) -> Result<(), Failure> {
        for step in steps.iter().filter(|step| is_verified(step)) {
            let ours = match journal.live().rfind(|e| e.step.is_same(step)) {
                Some(entry) => self.is_so(entry)?,
                None => false,
            };
            if !ours && self.observe(step)?.is_some_and(|before| is_absent(step, &before)) {
                let cause = format!("{step}: succeeded, but its effect has disappeared since");
                return Err(Failure::new(ExitCode::Expose, cause)
                    .remedy("something else on this host changes the same: see its log"));
            }
        }
        Ok(())
    }

    /// Returns the state before the step; None where the step's result is already there.
    pub(super) fn observe(&self, step: &Step) -> Result<Option<Before>, Failure> {
        match step {
            Step::MakeDir { path } => {
                let dirs = missing_dirs(self.host, path).map_err(exposing)?;
                Ok((!dirs.is_empty()).then_some(Before::MissingDirs { dirs }))
            }
            Step::WriteParameter { path, value } => self.observe_parameter(path, value),
            Step::LoadModule { .. } => self.observe_module(step),
            Step::RemoveLeftover { what } => {
                let there = self.has_leftover(what).map_err(exposing)?;
                Ok(there.then_some(Before::Leftover))
            }
            Step::StartDaemon { daemon } => self.observe_daemon(daemon),
            Step::Bind { target, .. }
            | Step::Share { target, .. }
            | Step::MountTmpfs { target } => {
                let count = self.host.mounts_on(target).map_err(exposing)?;
                let there = count > 0 && self.shows(step).map_err(exposing)?;
                Ok((!there).then_some(Before::Mounts { count }))
            }
            Step::MakeNodes { dirs } => self.observe_nodes(dirs),
        }
    }

    /// True if the step's own mount is already on its target, as an agent with a lost journal
    /// leaves it: a second mount on top would be of no use.
    fn shows(&self, step: &Step) -> Result<bool, VerbError> {
        match step {
            Step::Bind { source, target } | Step::Share { source, target } => {
                let source = self.host.dir(source)?;
                Ok(source.is_some() && source == self.host.dir(target)?)
            }
            Step::MountTmpfs { target } => {
                Ok(self.host.mount_source(target)?.as_deref() == Some(TMPFS_SOURCE))
            }
            _ => Ok(false),
        }
    }

    fn observe_parameter(&self, path: &Path, value: &str) -> Result<Option<Before>, Failure> {
        match self.host.parameter(path).map_err(exposing)? {
            Some(there) if there == value => Ok(None),
            Some(value) => Ok(Some(Before::Value { value })),
            None => Err(Failure::new(
                ExitCode::Expose,
                format!("{}: this kernel has no such file", path.display()),
            )
            .remedy("check that the host's /sys is mounted in the container")),
        }
    }

    fn observe_module(&self, step: &Step) -> Result<Option<Before>, Failure> {
        let Step::LoadModule { name, origin, parameters, .. } = step else { return Ok(None) };
        let state = self.host.module(name).map_err(|e| refusal::explain(name, &e))?;
        let Some(state) = state else { return Ok(Some(Before::NotLoaded)) };
        // Loaded by another program: accepted if its versions and parameters are the wanted ones.
        readback::versions(step, &state)?;
        if matches!(origin, ModuleOrigin::Driver { .. }) {
            readback::parameters(self.host, name, parameters, &[])?;
        }
        Ok(None)
    }

    /// Returns the nodes that are missing, are another device's, or have other permissions than
    /// they should.
    fn observe_nodes(&self, dirs: &[PathBuf]) -> Result<Option<Before>, Failure> {
        let wanted = self.host.wanted_nodes().map_err(exposing)?;
        if wanted.is_empty() {
            return Err(Failure::new(
                ExitCode::Expose,
                "making device nodes: no NVIDIA driver is loaded, so none are known",
            ));
        }
        let mut nodes = Vec::new();
        let mut missing = BTreeSet::new();
        let dirs = distinct_dirs(self.host, dirs)?;
        for dir in &dirs {
            let source = self.host.mount_source(dir).map_err(exposing)?;
            let own = source.as_deref() == Some(TMPFS_SOURCE);
            for wanted in &wanted {
                let node = self.node_before(dir, own, wanted, &dirs).map_err(exposing)?;
                let Some(node) = node else { continue };
                if let Some(parent) = node.path.parent() {
                    missing.extend(missing_dirs(self.host, parent).map_err(exposing)?);
                }
                nodes.push(node);
            }
        }
        // A set of paths is in order outermost first.
        let missing_dirs = missing.into_iter().collect();
        Ok((!nodes.is_empty()).then_some(Before::Nodes { missing_dirs, nodes }))
    }

    /// Returns the node to make or change in `dir`, which is a tmpfs of ours if `own`; None if it
    /// is as it should be, or another program maintains it.
    fn node_before(
        &self,
        dir: &Path,
        own: bool,
        wanted: &WantedNode,
        dirs: &[&PathBuf],
    ) -> Result<Option<NodeBefore>, VerbError> {
        let made = match (wanted.keeper, own) {
            (NodeKeeper::Installer, _) | (NodeKeeper::Kernel, false) => wanted.node,
            (NodeKeeper::Kernel, true) | (NodeKeeper::Admin, false) => return Ok(None),
            (NodeKeeper::Admin, true) => match self.node_of_admin(dir, wanted, dirs)? {
                Some(theirs) => theirs,
                None => return Ok(None),
            },
        };
        let path = dir.join(&wanted.name);
        let was = self.host.node(&path)?;
        let right = match wanted.keeper {
            NodeKeeper::Kernel => was.is_some_and(|was| was.same_device(&made)),
            _ => was == Some(made),
        };
        Ok((!right).then_some(NodeBefore { path, made, was }))
    }

    /// Returns the same device's node in another /dev, with the permissions that the host's
    /// administrator gave it.
    fn node_of_admin(
        &self,
        own: &Path,
        wanted: &WantedNode,
        dirs: &[&PathBuf],
    ) -> Result<Option<Node>, VerbError> {
        for dir in dirs.iter().filter(|dir| dir.as_path() != own) {
            let there = self.host.node(&dir.join(&wanted.name))?;
            if let Some(there) = there.filter(|there| there.same_device(&wanted.node)) {
                return Ok(Some(there));
            }
        }
        Ok(None)
    }

    fn carry_out(&self, step: &Step, before: &Before, cancel: &CancelFlag) -> Result<(), Failure> {
        match (step, before) {
            (Step::MakeDir { .. }, Before::MissingDirs { dirs }) => {
                dirs.iter().try_for_each(|d| self.host.make_dir(d)).map_err(exposing)
            }
            (Step::WriteParameter { path, value }, _) => self.write(path, value),
            (Step::RemoveLeftover { what }, _) => self.remove_leftover(what),
            (Step::Bind { source, target }, _) => {
                self.images.check_tree(source)?;
                self.host.bind_read_only(source, target).map_err(exposing)
            }
            (Step::Share { source, target }, _) => self.host.bind(source, target).map_err(exposing),
            (Step::StartDaemon { daemon }, Before::NoDaemon { mark }) => {
                self.start_daemon(daemon, mark, cancel)
            }
            (Step::MountTmpfs { target }, _) => self.host.mount_tmpfs(target).map_err(exposing),
            (Step::MakeNodes { .. }, Before::Nodes { missing_dirs, nodes }) => {
                self.make_nodes(missing_dirs, nodes).map_err(exposing)
            }
            // Without `before` in the message: it may be a daemon's mark.
            (step, _) => Err(Failure::new(
                ExitCode::Bug,
                format!("{step}: the recorded state before it does not fit such a step"),
            )),
        }
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), Failure> {
        self.host.write_parameter(path, value).map_err(exposing)?;
        let there = self.host.parameter(path).map_err(exposing)?;
        if there.as_deref() == Some(value) {
            return Ok(());
        }
        Err(Failure::new(
            ExitCode::Expose,
            format!("{}: wrote {value:?}, and it now reads {there:?}", path.display()),
        ))
    }

    fn make_nodes(&self, dirs: &[PathBuf], nodes: &[NodeBefore]) -> Result<(), VerbError> {
        dirs.iter().try_for_each(|d| self.host.make_dir(d))?;
        let fresh = nodes.iter().filter(|node| node.was.is_none());
        let fresh: Vec<_> = fresh.map(|node| (node.path.clone(), node.made)).collect();
        let made = match self.host.make_nodes(&fresh) {
            Err(e) if e.unanswered.is_some() => return Err(e),
            // Making them one by one shows which one fails, and whether that matters; the ones
            // already made return EEXIST.
            made => made.inspect_err(|e| tracing::debug!("{e}: making them one by one")).is_ok(),
        };
        for node in nodes.iter().filter(|node| !made || node.was.is_some()) {
            match node.was {
                Some(was) if was.same_device(&node.made) => {
                    self.put_right(node)?;
                    continue;
                }
                Some(_) => self.host.remove_file(&node.path)?,
                None => {}
            }
            let made = self.host.make_node(&node.path, node.made);
            if !self.somebody_was_faster(&made, node)? {
                made?;
            }
        }
        Ok(())
    }

    /// True if the host's device manager made the same node after it was found missing; its
    /// permissions are then corrected.
    fn somebody_was_faster(
        &self,
        made: &Result<(), VerbError>,
        node: &NodeBefore,
    ) -> Result<bool, VerbError> {
        let theirs = match made {
            Err(e) if e.errno == Errno::EEXIST => self.host.node(&node.path)?,
            _ => None,
        };
        let theirs = theirs.filter(|theirs| theirs.same_device(&node.made));
        if theirs.is_some_and(|theirs| theirs != node.made) {
            self.put_right(node)?;
        }
        Ok(theirs.is_some())
    }

    /// Sets mode and owner of an existing node. Where that is not allowed, only warns: its maker
    /// set them, and the driver can be used all the same.
    fn put_right(&self, node: &NodeBefore) -> Result<(), VerbError> {
        const NOT_ALLOWED: [Errno; 3] = [Errno::EPERM, Errno::EACCES, Errno::EROFS];
        match self.host.set_node(&node.path, node.made) {
            Err(e) if e.unanswered.is_none() && NOT_ALLOWED.contains(&e.errno) => {
                tracing::warn!(
                    "{e}: leaving mode and owner as they are (CAP_CHOWN and CAP_FOWNER allow it)"
                );
                Ok(())
            }
            set => set,
        }
    }

    /// True if the entry's effect is (still) there and whole.
    pub(super) fn is_so(&self, entry: &Entry) -> Result<bool, Failure> {
        match (&entry.step, &entry.before) {
            // The content of a mount is visible only through it, and any mount beyond ours is
            // another program's, so the check is a count above the one before.
            (
                Step::Bind { target, .. }
                | Step::Share { target, .. }
                | Step::MountTmpfs { target },
                Before::Mounts { count },
            ) => Ok(self.host.mounts_on(target).map_err(exposing)? > *count),
            (Step::StartDaemon { daemon }, Before::NoDaemon { mark }) => {
                let seen = self.host.daemon(daemon, mark).map_err(exposing)?;
                Ok(seen.answers == Answers::Ours)
            }
            (Step::LoadModule { name, .. }, _) => {
                let state = self.host.module(name).map_err(|e| refusal::explain(name, &e))?;
                Ok(state.is_some_and(|state| self.is_ours(entry, &state)))
            }
            (step, _) => Ok(self.observe(step)?.is_none()),
        }
    }
}

/// Returns an entry's state after its step was carried out.
fn done(step: &Step) -> EntryState {
    match step {
        Step::RemoveLeftover { .. } => {
            EntryState::Kept("a dead container's leftover is not restored".to_owned())
        }
        _ => EntryState::Done,
    }
}

/// True if a step's result is verified in the end. A driver is ready without a daemon that it can
/// do without, and the place of a leftover is taken by now.
fn is_verified(step: &Step) -> bool {
    match step {
        Step::StartDaemon { daemon } => daemon.required,
        Step::RemoveLeftover { .. } => false,
        _ => true,
    }
}

/// True if a step's effect is absent, by the state observed before it; warns of nodes that are
/// there with other permissions.
fn is_absent(step: &Step, before: &Before) -> bool {
    if let Before::Nodes { nodes, .. } = before {
        for node in nodes.iter().filter(|node| has_other_permissions(node)) {
            tracing::warn!(
                "{step}: something else on this host changes mode or owner of {}",
                node.path.display()
            );
        }
    }
    is_lost(before)
}

/// True if an effect is lost, by the state observed in its place. Device nodes with other
/// permissions are there: a device manager that sets them after us is no reason to uninstall the
/// driver, nor to fight it.
pub(super) fn is_lost(before: &Before) -> bool {
    let Before::Nodes { nodes, .. } = before else { return true };
    !nodes.iter().all(has_other_permissions)
}

fn has_other_permissions(node: &NodeBefore) -> bool {
    node.was.is_some_and(|was| was.same_device(&node.made))
}

/// Returns the missing ones of `path` and its parent directories, outermost first.
fn missing_dirs(host: &dyn Host, path: &Path) -> Result<Vec<PathBuf>, VerbError> {
    let mut missing = Vec::new();
    for dir in path.ancestors() {
        if host.has_dir(dir)? {
            break;
        }
        missing.push(dir.to_path_buf());
    }
    missing.reverse();
    Ok(missing)
}

/// `dirs` without those that are another one under a second path: the host's /dev and a
/// container's can be the same.
fn distinct_dirs<'a>(host: &dyn Host, dirs: &'a [PathBuf]) -> Result<Vec<&'a PathBuf>, Failure> {
    let mut seen = BTreeSet::new();
    let mut distinct = Vec::new();
    for dir in dirs {
        let id = host.dir(dir).map_err(exposing)?.ok_or_else(|| {
            Failure::new(
                ExitCode::Expose,
                format!("making device nodes: {} is no directory", dir.display()),
            )
        })?;
        if seen.insert(id) {
            distinct.push(dir);
        }
    }
    Ok(distinct)
}

/// Failure of a verb that exposes the driver to the host.
pub(super) fn exposing(error: VerbError) -> Failure {
    if error.unanswered.is_some() {
        return Failure::new(ExitCode::RolledBack, "exposing the driver to the host")
            .because(error)
            .remedy(NEEDS_REBOOT);
    }
    let remedy = match error.errno {
        Errno::EROFS | Errno::EPERM | Errno::EACCES => {
            "run the container privileged, with the host's /dev, /sys and /run/nvidia"
        }
        Errno::ENOSPC => "free space on the file system of the path",
        Errno::EEXIST => "another file is in the way: inspect it and move it away",
        _ => "look at the path on the host; `longshore plan` shows which paths longshore needs",
    };
    Failure::new(ExitCode::Expose, "exposing the driver to the host").because(error).remedy(remedy)
}
