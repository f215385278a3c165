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
