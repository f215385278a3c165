//! A journal that can no longer be written.

use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

use super::{engine, failed, gpu_host, install};
use crate::engine::*;
use crate::journal::{EntryState, Point};
use crate::steps::LoadModule;
use longshore_core::paths::Paths;

#[test]
fn a_step_the_journal_cannot_record_is_not_begun() {
    let host = gpu_host();
    let (dir, mut journal) = journal_on_disk();
    dir.close().unwrap();
    let stopped = engine(&host).apply(&install(), &mut journal, &CancelFlag::default());
    assert_eq!(failed(stopped).code(), ExitCode::Preflight);
    assert!(host.log().is_empty());
}

#[test]
fn what_the_journal_cannot_record_is_undone_all_the_same() {
    let host = gpu_host();
    let before = host.state();
    let (dir, mut journal) = journal_on_disk();
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    dir.close().unwrap();
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// The last step has its outcome, and no next step's intent would write that.
#[test]
fn a_last_step_that_the_journal_cannot_record_is_undone() {
    let host = gpu_host();
    let before = host.state();
    let (dir, mut journal) = journal_on_disk();
    let writes = AtomicUsize::new(0);
    // The steps for nouveau have no effect on this host, and no entry.
    let intents = install().len() - super::nouveau::steps().len();
    journal.at_point(Box::new(move |point| {
        let begun = point == Point::Begun;
        let writes = writes.fetch_add(usize::from(begun), Ordering::Relaxed);
        if begun && writes == intents { Err(Errno::ENOSPC.into()) } else { Ok(()) }
    }));
    let stopped = engine(&host).apply(&install(), &mut journal, &CancelFlag::default());
    assert_eq!(failed(stopped).code(), ExitCode::Preflight);
    assert_eq!(host.state(), before);
    drop(dir);
}

/// A driver that a process opens while it is unloaded is loaded again: the record then has the
/// number of our loading of each module.
#[test]
fn what_is_put_back_is_on_disk_as_it_is() {
    let host = gpu_host();
    let (dir, mut journal) = journal_on_disk();
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    host.on_look(|state, _| {
        if !state.loaded.contains_key("nvidia_uvm") {
            state.references.insert("nvidia".to_owned(), 1);
        }
    });
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert_eq!(failure.code(), ExitCode::InUse);
    let written = crate::journal::read_state(&paths(&dir)).unwrap().unwrap();
    assert_eq!(&written.entries, &journal.state().entries);
    let instances = host.state().instances;
    for entry in written.entries.iter().filter(|entry| entry.is_live()) {
        assert_eq!(entry.state, EntryState::Done, "{entry:?}");
        if let Some(LoadModule { name, .. }) = LoadModule::recorded(&entry.step) {
            assert_eq!(entry.instance, instances.get(name).copied(), "{name}");
        }
    }
}

fn journal_on_disk() -> (tempfile::TempDir, Journal) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(&paths(&dir), Disk::default()).unwrap();
    (dir, journal)
}

fn paths(dir: &tempfile::TempDir) -> Paths {
    Paths { state: dir.path().to_path_buf(), ..Paths::below(dir.path()) }
}
