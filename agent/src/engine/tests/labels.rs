//! SELinux labels of the store's files.

use super::*;
use crate::steps::LabelFiles;

const LABEL: &str = "system_u:object_r:container_ro_file_t:s0";

fn step() -> Step {
    Step::LabelFiles(LabelFiles { paths: vec!["/store/tree".into()], label: LABEL.into() })
}

#[test]
fn labels_are_made_once_and_stay() {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    for _ in 0..2 {
        engine(&host).apply(&[step()], &mut journal, &CancelFlag::default()).unwrap();
    }
    assert_eq!(host.log(), ["label /store/tree"]);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().labels[Path::new("/store/tree")], LABEL);
}

/// A file system without labels is no reason to go without the driver.
#[test]
fn files_that_cannot_be_labelled_leave_the_driver() {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    host.fails(Some(Fault::Refuse(0, Errno::EOPNOTSUPP)));
    let steps = [vec![step()], install()].concat();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    assert!(host.state().loaded.contains_key("nvidia") && host.state().labels.is_empty());
    assert!(journal.live().all(|entry| entry.step.kind() != "label-files"));
    engine(&host).undo(&mut journal).unwrap();
    assert!(host.state().loaded.is_empty());
}
