//! Removes unneeded files from the store.
//!
//! Leftovers of processes that ended are always removed. Beyond a bound, the least recently used is
//! removed, but never what the host runs, nor what it ran before that. The caller has locked the
//! store exclusively (see [`Store::lock_exclusive`]), so no process is about to use what is removed.
//!
//! The order on the disk keeps the store consistent if this is interrupted anywhere: a set is
//! removed before the modules it names, and everything is renamed away as a whole before it is
//! removed.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::Serialize;

use super::history::{self, Taken};
use super::inventory::{Inventory, ItemKind, StoredItem};
use super::mounted;
use super::next_kernel;
use crate::journal;
use longshore_core::durable::write_failure;
use longshore_core::failure::Failure;
use longshore_core::paths::Paths;
use longshore_core::scratch::claim;
use longshore_core::store::Store;
use longshore_core::store::usage::StoreGuard;

/// Age at which recorded compile failures expire (see build::failure_cache).
const FAILURES_COUNT: Duration = Duration::from_secs(24 * 3600);

/// Files that are never removed, with the reason.
#[derive(Debug, Clone, Default)]
pub struct Needed {
    /// Modules that were loaded together, and why they are needed.
    modules: Vec<(BTreeSet<String>, &'static str)>,
    trees: HashMap<String, &'static str>,
    /// Trees that are exposed or mounted now.
    in_use: BTreeSet<String>,
}

const RUNS: &str = "the host runs it";
const RAN: &str = "the host ran it before";
const MOUNTED: &str = "it is mounted";
const BOOTS_NEXT: &str = "the next kernel of the host needs it";
/// A change of certificate needs the unsigned modules again, and only compiling could restore them.
const SIGNED_FROM: &str = "the host's modules were signed from it";

impl Needed {
    /// Collects what this host runs, by the agent's journal, by mounts, and by the store's history;
    /// what it ran before, and what a newer kernel that is installed needs at its first boot.
    ///
    /// # Errors
    /// Exit code 13 or 15 where the journal cannot be understood: then it is not known what runs.
    pub fn read(store: &Store, paths: &Paths) -> Result<Self, Failure> {
        let mut needed = Self::default();
        if let Some(state) = journal::read_state(paths)? {
            let live = state.entries.iter().filter(|entry| entry.is_live());
            let live =
                Taken::from_contents(live.filter_map(|entry| entry.step.properties().content));
            needed.in_use.extend(live.trees.iter().cloned());
            needed.add(live, RUNS);
            needed.add(Taken::by(&state.previous), RAN);
        }
        for (trees, why) in
            [(shown(store, &paths.driver_root), RUNS), (mounted::trees(&paths.root), MOUNTED)]
        {
            needed.in_use.extend(trees.iter().cloned());
            needed.add(Taken { trees, ..Taken::default() }, why);
        }
        for (why, was) in [RUNS, RAN].into_iter().zip(history::read(store)) {
            needed.add(Taken { modules: was.modules, trees: was.tree.into_iter().collect() }, why);
        }
        match next_kernel::taken(store, paths) {
            Ok(taken) => taken.into_iter().for_each(|taken| needed.add(taken, BOOTS_NEXT)),
            // It can be fetched again, and the host runs without it.
            Err(failure) => {
                tracing::warn!("what the next kernel needs may be removed: {}", failure.one_line())
            }
        }
        Ok(needed)
    }

    fn add(&mut self, taken: Taken, why: &'static str) {
        if !taken.modules.is_empty() {
            self.modules.push((taken.modules, why));
        }
        for tree in taken.trees {
            self.trees.entry(tree).or_insert(why);
        }
    }

    fn reason(&self, item: &StoredItem) -> Option<&'static str> {
        let name = item.path.file_name()?.to_str()?;
        // Sets may share modules: the loaded set is the one that has all of them.
        let is_taken = |taken: &BTreeSet<String>| taken.iter().all(|m| item.modules.contains(m));
        let why = |(_, why): &(_, &'static str)| *why;
        match item.kind {
            ItemKind::Modules => self.modules.iter().find(|(taken, _)| is_taken(taken)).map(why),
            // A module of a set whose description is lost.
            ItemKind::Download => {
                self.modules.iter().find(|(taken, _)| taken.contains(name)).map(why)
            }
            ItemKind::UserMode => self.trees.get(name).copied(),
            _ => None,
        }
    }

    /// The reason why an item is useless in any case.
    fn refuse(&self, item: &StoredItem, now: SystemTime) -> Option<&'static str> {
        let name = item.path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        match item.kind {
            ItemKind::UserMode if item.is_damaged && !self.in_use.contains(name) => {
                Some("it is damaged, and not in use")
            }
            _ => refuse(item, now),
        }
    }
}

/// The tree that is mounted in the driver root, or on it, as agents of before mounted it: the mount
/// has the same directory inode.
fn shown(store: &Store, driver_root: &Path) -> BTreeSet<String> {
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let mounted = ["", "usr"].map(|dir| (dir, id(&driver_root.join(dir))));
    let is_it = |entry: &fs::DirEntry| {
        let root = entry.path().join("root");
        mounted.iter().any(|(dir, mounted)| mounted.is_some() && id(&root.join(dir)) == *mounted)
    };
    let trees = fs::read_dir(store.dir("userspace")).into_iter().flatten().flatten();
    trees.filter(is_it).filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Result of a collection, or its preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The store.
    pub store: PathBuf,
    /// True if nothing was removed and this is a preview.
    pub dry_run: bool,
    /// Size limit of the store in bytes; None is no limit.
    pub bound: Option<u64>,
    /// Bytes on the disk before.
    pub before: u64,
    /// Bytes on the disk after.
    pub after: u64,
    /// Removed items, in order of removal.
    pub removed: Vec<Line>,
    /// Kept items, last used first.
    pub kept: Vec<Line>,
}

/// One item of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Its kind.
    pub kind: ItemKind,
    /// Relative to the store.
    pub path: PathBuf,
    /// Bytes that it freed, or occupies.
    pub bytes: u64,
    /// Time of last use, as far as that is known.
    pub last_used: Timestamp,
    /// The reason for removing or keeping it.
    pub reason: &'static str,
}

/// A decided collection; [`Decision::carry_out`] executes it.
#[derive(Debug)]
pub struct Decision {
    report: Report,
    going: Vec<StoredItem>,
    /// Modules of sets that are kept.
    staying: BTreeSet<String>,
}

/// Decides what to remove: reads the store and changes nothing.
///
/// # Errors
/// Exit code 15 where the store cannot be listed.
pub fn decide(
    store: &Store,
    needed: &Needed,
    bound: Option<u64>,
    now: SystemTime,
) -> Result<Decision, Failure> {
    let mut inventory = Inventory::read(store)?;
    let mut items = std::mem::take(&mut inventory.items);
    let before = inventory.size();
    items.sort_by(|a, b| (a.used, a.kind, &a.path).cmp(&(b.used, b.kind, &b.path)));
    // Items that are removed in any case come first: that may already be enough.
    let (always, rest): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| needed.refuse(item, now).is_some());
    let mut decision = Decision {
        report: Report {
            store: store.root().to_path_buf(),
            dry_run: true,
            bound,
            before,
            after: before,
            removed: Vec::new(),
            kept: Vec::new(),
        },
        going: Vec::new(),
        staying: BTreeSet::new(),
    };
    for item in always {
        let why = needed.refuse(&item, now).unwrap_or_default();
        decision.removes(item, &mut inventory, why);
    }
    let needed_sets = rest.iter().filter(|item| needed.reason(item).is_some());
    let signed_from: BTreeSet<_> = needed_sets.filter_map(|i| i.signed_from.clone()).collect();
    for item in rest {
        let is_base = signed_from.contains(&item.path);
        let needed = needed.reason(&item).or(is_base.then_some(SIGNED_FROM));
        let fits = bound.is_none_or(|bound| decision.report.after <= bound);
        match needed {
            Some(why) => decision.keeps(item, why),
            None if fits => decision.keeps(item, "it is within the bound"),
            None => decision.removes(item, &mut inventory, "least recently used"),
        }
    }
    decision.report.kept.reverse();
    Ok(decision)
}

/// The reason why an item is useless, whatever this host runs.
fn refuse(item: &StoredItem, now: SystemTime) -> Option<&'static str> {
    let age = now.duration_since(item.used).unwrap_or_default();
    match item.kind {
        ItemKind::Leftover => Some("no process works on it"),
        ItemKind::Record if item.path.starts_with("failures") && age > FAILURES_COUNT => {
            Some("it has expired")
        }
        _ => None,
    }
}

impl Decision {
    fn removes(&mut self, item: StoredItem, inventory: &mut Inventory, why: &'static str) {
        let freed = inventory.forget(&item);
        self.report.after = self.report.after.saturating_sub(freed);
        self.report.removed.push(line(&item, freed, why));
        self.going.push(item);
    }

    fn keeps(&mut self, item: StoredItem, why: &'static str) {
        self.staying.extend(item.modules.iter().cloned());
        self.report.kept.push(line(&item, Inventory::size_of(&item), why));
    }

    /// The planned removals.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Executes the decision. The exclusive lock `alone` is needed only while everything is renamed
    /// away; it is released then, and the removal, which can take minutes on a busy disk, follows.
    ///
    /// # Errors
    /// Exit code 15 naming what could not be removed; the store is consistent nevertheless.
    pub fn carry_out(self, store: &Store, alone: StoreGuard) -> Result<Report, Failure> {
        self.carry_out_with(store, alone, &mut |act| act())
    }

    /// Executes it with every change of the disk passed to `act`, which may fail instead: for
    /// tests.
    fn carry_out_with(
        self,
        store: &Store,
        alone: StoreGuard,
        act: &mut Act<'_>,
    ) -> Result<Report, Failure> {
        let Self { mut report, going, staying } = self;
        // Removed by this process, or by the next collection.
        let aside = claim(store, "gc")?;
        let mut mover = Mover { store, aside: aside.path(), moved: 0, act };
        for (number, item) in going.iter().enumerate() {
            // A module that a later set of the list also names is removed with that set.
            let later = || going[number + 1..].iter().flat_map(|later| &later.modules);
            let stays = |module: &String| staying.contains(module) || later().any(|l| l == module);
            let modules: Vec<_> = item.modules.iter().filter(|module| !stays(module)).collect();
            mover.remove(item, &modules).map_err(|(path, error)| write_failure(&path, error))?;
        }
        drop(alone);
        let path = aside.path().to_path_buf();
        aside.close().map_err(|e| write_failure(&path, e))?;
        report.dry_run = false;
        Ok(report)
    }
}

/// Executes a change of the disk.
type Act<'a> = dyn FnMut(&dyn Fn() -> io::Result<()>) -> io::Result<()> + 'a;

/// Renames items away from their places.
struct Mover<'a, 'b> {
    store: &'a Store,
    aside: &'a Path,
    moved: usize,
    act: &'a mut Act<'b>,
}

impl Mover<'_, '_> {
    fn remove(
        &mut self,
        item: &StoredItem,
        modules: &[&String],
    ) -> Result<(), (PathBuf, io::Error)> {
        self.put_aside(&self.store.root().join(&item.path))?;
        if !modules.is_empty() {
            // The removal of the set must reach the disk before that of its modules.
            let sets = self.store.dir("sets");
            let sync = || self.store.disk().sync(&File::open(&sets)?);
            (self.act)(&sync).map_err(|e| (sets.clone(), e))?;
        }
        for module in modules {
            self.put_aside(&self.store.blob_path(module))?;
        }
        for beside in &item.beside {
            self.put_aside(&self.store.root().join(beside))?;
        }
        Ok(())
    }

    fn put_aside(&mut self, path: &Path) -> Result<(), (PathBuf, io::Error)> {
        let to = self.aside.join(self.moved.to_string());
        self.moved += 1;
        let rename = || match fs::rename(path, &to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        (self.act)(&rename).map_err(|e| (path.to_path_buf(), e))
    }
}

fn line(item: &StoredItem, bytes: u64, reason: &'static str) -> Line {
    let last_used = Timestamp::try_from(item.used).unwrap_or_default();
    Line { kind: item.kind, path: item.path.clone(), bytes, last_used, reason }
}

#[cfg(test)]
mod tests;
