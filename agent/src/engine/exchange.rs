//! Replacement of an installed driver by another: verifies that the new one is available before it
//! uninstalls the old one, and reinstalls the old one where the new one fails.

use std::collections::BTreeSet;
use std::path::Path;

use super::not_undone::not_looked;
use super::{Engine, Going, Left, NotUndone, Stopped};
use crate::engine::image::Images;
use crate::journal::{Journal, JournalEntry};
use crate::steps::{Content, MountedFrom, NEEDS_REBOOT, Next, Step, WriteStatus};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::facts::in_use::InUse;

/// Reason that the wanted driver did not replace the installed one.
#[derive(Debug)]
pub enum NotExchanged {
    /// The installed driver is in use: nothing was changed.
    InUse(InUse),
    /// The cancel flag was set; the old driver is uninstalled, the new one not installed.
    Cancelled,
    /// The new driver failed, and the old one was never uninstalled.
    Kept(Failure),
    /// The new driver failed, and the old one is installed again.
    RolledBack(Failure),
    /// The new driver failed, and the old one could not be reinstalled whole.
    Lost(Failure),
}

impl Engine<'_> {
    /// Undoes the entries that are `going` and carries `steps` out. Where that fails, carries out
    /// the journal's `previous` steps again.
    ///
    /// Blocks.
    ///
    /// # Errors
    /// [`NotExchanged`].
    pub fn exchange(
        &self,
        going: Going<'_>,
        steps: &[Step],
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<(), NotExchanged> {
        let was_whole = journal.state().whole;
        if let Err(failure) = verify_available(self.images, &journal.state().previous) {
            tracing::warn!("no way back to the installed driver: {}", failure.one_line());
        }
        let done = verify_available(self.images, steps).and_then(|()| {
            match self.replace_free(going, journal) {
                Ok(()) => Ok(None),
                Err(NotUndone::InUse(in_use)) => Ok(Some(NotExchanged::InUse(in_use))),
                Err(NotUndone::Left(left)) => Err(not_uninstalled(&left)),
            }
        });
        let why = match done {
            // The daemons were ended, because they use the modules to unload; and another program
            // may have removed its mounts since the last agent ended.
            Ok(Some(in_use)) if was_whole => {
                return Err(self.bring_back(journal).map_or_else(NotExchanged::Lost, |()| in_use));
            }
            Ok(Some(in_use)) => {
                self.bring_back_rest(journal);
                return Err(in_use);
            }
            Err(failure) => failure,
            Ok(None) => match self.apply(steps, journal, cancel) {
                Ok(()) => return Ok(()),
                Err(Stopped::Cancelled) => return Err(NotExchanged::Cancelled),
                Err(Stopped::Failed(failure)) => failure,
            },
        };
        // Nothing to reinstall if nothing was undone yet.
        Err(if journal.state().whole {
            NotExchanged::Kept(why)
        } else {
            self.go_back(why, journal)
        })
    }

    /// Undoes the entries that are `going`, unless other modules hold the driver: its daemons would
    /// be ended for nothing.
    fn replace_free(&self, going: Going<'_>, journal: &mut Journal) -> Result<(), NotUndone> {
        let held = self.held_by_modules(journal, going).map_err(|e| not_looked(&e))?;
        if !held.is_empty() {
            return Err(NotUndone::InUse(self.in_use(held)));
        }
        self.undo_those(going, journal)
    }

    /// Reinstalls the previous driver; a request to stop is handled afterwards.
    fn go_back(&self, why: Failure, journal: &mut Journal) -> NotExchanged {
        let before = journal.state().previous.clone();
        if before.is_empty() {
            return NotExchanged::Lost(why);
        }
        tracing::warn!("a step failed, reinstalling the previous driver: {why}");
        let version = journal.state().plan.as_ref().map(|plan| plan.driver_version.clone());
        let name = version.map_or_else(|| "the driver".to_owned(), |v| format!("driver {v}"));
        let back = self.make_room(&before, journal).and_then(|()| self.bring_back(journal));
        match back {
            Ok(()) => NotExchanged::RolledBack(
                why.with_consequence(format!("{name}, which was live before, is back")),
            ),
            Err(failure) => NotExchanged::Lost(lost(&why, &name, &failure)),
        }
    }

    /// Carries out again the journal's `previous` steps that are not in effect.
    fn bring_back(&self, journal: &mut Journal) -> Result<(), Failure> {
        let is_needed = |step: &&Step| {
            WriteStatus::from_step(step).is_none_or(|announcement| !announcement.is_confirmation())
        };
        let before: Vec<Step> =
            journal.state().previous.iter().filter(is_needed).cloned().collect();
        // It was Ready with the GPUs that it had.
        let forgiving = Self { refuses_missing_gpus: false, ..*self };
        match forgiving.apply(&before, journal, &CancelFlag::default()) {
            Ok(()) => {
                self.confirm_again(journal);
                journal.restored()
            }
            Err(Stopped::Failed(failure)) => Err(failure),
            Err(Stopped::Cancelled) => Err(Failure::new(
                FailureKind::Bug,
                "reinstalling the previous driver was cancelled",
            )),
        }
    }

    /// Carries out the rest of the `previous` steps of a driver that is in use: an agent died during a
    /// change, or while it brought that driver back. Only warns where that is not possible, as where
    /// the driver in use is the next one already.
    fn bring_back_rest(&self, journal: &mut Journal) {
        let before = journal.state().previous.clone();
        if before.is_empty() {
            return;
        }
        let back = self.make_room(&before, journal).and_then(|()| self.bring_back(journal));
        if let Err(failure) = back {
            tracing::warn!("the driver in use is not whole: {}", failure.one_line());
        }
    }

    /// Undoes what an agent that died during the change had already made of the new driver.
    fn make_room(&self, before: &[Step], journal: &mut Journal) -> Result<(), Failure> {
        let stays = |entry: &JournalEntry| match entry.step.properties().next {
            Next::AnyDriver | Next::Overwritten(_) => true,
            // The new driver's spec is not to outlast it.
            Next::RewrittenUnlessReplaced(..) => false,
            Next::Wanted | Next::WantedUnlessReplaced(_) | Next::UnlessReplaced(_) => {
                before.iter().any(|was| entry.step.is_same(was))
            }
        };
        let entries = journal.live().filter(|entry| !stays(entry));
        let going = with_mounts_on(journal, entries.map(|entry| entry.seq).collect());
        self.undo_those(&|entry| going.contains(&entry.seq), journal)
            .map_err(NotUndone::into_failure)
    }
}

/// Returns these entries of the journal, and the mounts on top of their mounts, which go with them.
pub fn with_mounts_on(journal: &Journal, going: BTreeSet<u64>) -> BTreeSet<u64> {
    let goes = journal.live().filter(|entry| going.contains(&entry.seq));
    let gone: Vec<&Path> = goes.filter_map(|entry| entry.step.mounted()?.point()).collect();
    let lies_on = |entry: &&JournalEntry| {
        let place = entry.step.mounted().map(|mount| match mount.from {
            MountedFrom::Directory(source) => source,
            MountedFrom::Tree(_) | MountedFrom::Fresh(_) => mount.target,
        });
        place.is_some_and(|on| gone.iter().any(|gone| on.starts_with(gone)))
    };
    let on_them: Vec<u64> = journal.live().filter(lies_on).map(|entry| entry.seq).collect();
    going.into_iter().chain(on_them).collect()
}

fn not_uninstalled(left: &[Left]) -> Failure {
    let not = NotUndone::Left(left.to_vec());
    let failure =
        Failure::new(FailureKind::RolledBack, format!("uninstalling the previous driver: {not}"));
    if not.needs_reboot() { failure.remedy(NEEDS_REBOOT) } else { failure }
}

/// The error pair: why the new driver failed, and why the old one could not be reinstalled.
fn lost(why: &Failure, name: &str, failure: &Failure) -> Failure {
    let cause = format!(
        "{}; {name}, which was live before, could not be brought back: {}",
        why.one_line(),
        failure.one_line()
    );
    Failure::new(FailureKind::RolledBack, cause)
        .remedy("remove the cause, run `longshore unload`, and start it again")
}

/// Verifies that every store content that `steps` use is there and intact.
///
/// Blocks: reads and hashes content that was not read before.
///
/// # Errors
/// 13 if something is missing or changed, with its name and path.
pub fn verify_available(images: &dyn Images, steps: &[Step]) -> Result<(), Failure> {
    for content in steps.iter().filter_map(|step| step.properties().content) {
        match content {
            Content::Module { name, origin } => {
                if images.file(name, origin)?.is_none() {
                    images.image(name, origin)?;
                }
            }
            Content::Tree(tree) => images.check_tree(tree)?,
        }
    }
    Ok(())
}
