//! Directories of ours that were replaced by a link, on a real file system.

use std::fs;
use std::os::unix::fs::symlink;

use super::SHORT_WAIT;
use crate::engine::fake_images::FakeImages;
use crate::engine::*;
use crate::journal::EntryState;
use crate::steps::MakeDir;
use longshore_host::RealHost;

#[test]
fn a_driver_root_that_became_a_link_stays_and_so_does_what_it_leads_to() {
    let dir = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (dir.path().join("run/nvidia/driver"), dir.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    let host = RealHost::new(dir.path());
    let telemetry = Box::leak(Box::default());
    let engine = Engine {
        host: &host,
        images: &FakeImages,
        in_use_wait: SHORT_WAIT,
        telemetry,
        refuses_missing_gpus: false,
    };
    let mut journal = Journal::in_memory();
    let steps = [Step::MakeDir(MakeDir { path: "/run/nvidia/driver".into() })];
    engine.apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    fs::remove_dir(&root).unwrap();
    symlink(&elsewhere, &root).unwrap();
    engine.undo(&mut journal).unwrap();
    assert!(root.is_symlink() && elsewhere.is_dir(), "neither is ours");
    assert!(matches!(journal.state().entries[0].state, EntryState::Kept(_)));
    assert_eq!(journal.live().count(), 0, "there is nothing left to undo");
}
