//! SELinux labels of the store's files.

use super::*;
use crate::steps::LabelFiles;
use rstest::rstest;
use std::path::PathBuf;

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

fn root(label: Option<&str>) -> [Step; 2] {
    let target = PathBuf::from("/run/nvidia/driver");
    [
        Step::MakeDir(MakeDir { path: target.clone() }),
        Step::MountRoot(MountRoot { target, label: label.map(str::to_owned) }),
    ]
}

/// An agent without labels, or a policy that came later, is no reason to mount anew under consumers.
#[rstest]
#[case::first_label(None, Some(LABEL))]
#[case::no_label_now(Some(LABEL), None)]
fn a_mount_that_is_there_stays_whatever_its_label(
    #[case] then: Option<&str>,
    #[case] now: Option<&str>,
) {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    for label in [then, now] {
        engine(&host).apply(&root(label), &mut journal, &CancelFlag::default()).unwrap();
    }
    assert_eq!(host.log().iter().filter(|act| act.starts_with("root ")).count(), 1);
    assert_eq!(journal.live().count(), 2);
}

/// A policy may refuse the agent's domain to label a mount.
#[test]
fn a_mount_whose_label_is_refused_is_made_without() {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    host.fails(Some(Fault::Refuse(2, Errno::EACCES)));
    engine(&host).apply(&root(Some(LABEL)), &mut journal, &CancelFlag::default()).unwrap();
    assert!(
        host.state().mounts.iter().any(|(_, target)| target == Path::new("/run/nvidia/driver"))
    );
}
