//! The published CDI spec, and the links in /dev/char.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rstest::rstest;

use super::*;
use crate::journal::EntryState;
use longshore_core::finding::Code;
use longshore_host::fake::FakeState;

const SPEC: &str = "/var/run/cdi/longshore-nvidia.com-gpu.json";
const TEMPORARY: &str = "/var/run/cdi/.longshore-nvidia.com-gpu.json.tmp";

fn published(host: &FakeHost) -> Option<Vec<u8>> {
    host.state().published.get(Path::new(SPEC)).cloned()
}

fn live(journal: &Journal) -> Vec<crate::journal::JournalEntry> {
    journal.live().cloned().collect()
}

/// Returns the details of the steps that are no longer in effect.
fn lost(host: &FakeHost, journal: &Journal) -> Vec<Lost> {
    let (engine, entries) = (engine(host), live(journal));
    let instances = engine.instances(&install(), &entries).unwrap();
    engine.look_again(&install(), &entries, &instances).lost
}

#[test]
fn a_spec_is_published_last_and_removed_before_any_module() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let spec = longshore_cdi::Spec::from_json(&published(&host).unwrap()).unwrap();
    assert_eq!(spec.check(), Ok(()));
    let names: Vec<_> = spec.full_names().collect();
    assert_eq!(names, ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]);
    // Only announcements of the driver to the GPU operator follow.
    let last = host.log().into_iter().rfind(|line| !line.starts_with("status "));
    assert!(last.is_some_and(|line| line.starts_with("rename")), "{:?}", host.log());
    let count = host.log().len();
    engine(&host).undo(&mut journal).unwrap();
    let log = host.log().split_off(count);
    let at = |what: &str| log.iter().position(|line| line.starts_with(what)).unwrap();
    assert!(at("withdraw") < at("delete_module"), "{log:?}");
    assert!(!host.state().dirs.contains(Path::new("/var/run/cdi")));
}

#[test]
fn a_driver_in_use_keeps_its_spec() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let before = published(&host);
    host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let not = engine(&host).undo(&mut journal).unwrap_err();
    assert!(matches!(not, NotUndone::InUse(_)), "{not}");
    assert!(before.is_some());
    assert_eq!(published(&host), before);
}

/// A process opens the driver after the spec was removed, and before the module is unloaded.
#[test]
fn a_driver_that_is_opened_during_its_unload_gets_its_spec_back() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let before = published(&host);
    host.at_point(|host| {
        host.change(|state| {
            if !state.published.contains_key(Path::new(SPEC)) {
                state.references.insert("nvidia".to_owned(), 1);
            }
        });
    });
    let not = engine(&host).undo(&mut journal).unwrap_err();
    host.at_point(|_| {});
    assert!(matches!(not, NotUndone::InUse(_)), "{not}");
    assert!(before.is_some());
    assert_eq!(published(&host), before);
    host.change(|state| state.references.clear());
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(published(&host), None);
}

#[test]
fn a_spec_that_another_program_changed_is_found_and_left_to_it() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| state.published.insert(SPEC.into(), b"theirs".to_vec()));
    let found = lost(&host, &journal);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].step.properties().optional, Some(Code::CdiUnpublished));
    assert!(found[0].repairable && found[0].detail.contains("not the present driver's"));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(published(&host), Some(b"theirs".to_vec()));
    let is_kept =
        |entry: &&crate::journal::JournalEntry| matches!(entry.state, EntryState::Kept(_));
    let kept: Vec<_> = journal.state().entries.iter().filter(is_kept).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].step.kind(), "cdi-spec");
}

#[rstest]
#[case::removed(|state: &mut FakeState| drop(state.published.remove(Path::new(SPEC))))]
#[case::altered(|state: &mut FakeState| drop(state.published.insert(SPEC.into(), b"{".to_vec())))]
#[case::directory_removed(|state: &mut FakeState| {
    state.published.clear();
    state.dirs.remove(Path::new("/var/run/cdi"));
})]
fn a_damaged_spec_is_published_again_and_removed_in_the_end(#[case] damage: fn(&mut FakeState)) {
    let host = gpu_host();
    let before = host.state();
    let mut journal = installed(&host);
    let right = published(&host);
    host.change(damage);
    let steps: Vec<Step> = lost(&host, &journal).into_iter().map(|lost| lost.step).collect();
    assert_eq!(steps, [super::spec()]);
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    assert_eq!(published(&host), right);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// A full or read-only file system is no reason to go without the driver.
#[test]
fn a_spec_that_cannot_be_written_leaves_the_driver_and_nothing_half_done() {
    let host = gpu_host();
    let before = host.state();
    host.publishes_nothing(Some(Errno::ENOSPC));
    let mut journal = installed(&host);
    assert_eq!(host.state().published, BTreeMap::new());
    assert!(!host.state().dirs.contains(Path::new("/var/run/cdi")));
    assert!(!engine(&host).holds(&install(), &journal));
    assert_eq!(lost(&host, &journal).len(), 1);
    assert!(live(&journal).iter().all(|entry| entry.step.kind() != "cdi-spec"));
    host.publishes_nothing(None);
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    assert!(published(&host).is_some());
    assert!(engine(&host).holds(&install(), &journal));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_driver_without_a_gpu_is_installed_without_a_spec() {
    let host = gpu_host();
    host.change(|state| state.gpus.clear());
    let mut journal = installed(&host);
    assert_eq!(published(&host), None);
    let found = lost(&host, &journal);
    assert_eq!(found.len(), 1);
    assert!(!found[0].repairable && found[0].detail.contains("drives no GPU"), "{found:?}");
    engine(&host).undo(&mut journal).unwrap();
}

/// The record of the agent that wrote it is lost.
#[test]
fn a_spec_of_an_agent_without_a_record_is_taken_over() {
    let host = gpu_host();
    host.change(|state| {
        state.dirs.insert("/var/run/cdi".into());
        for path in [SPEC, TEMPORARY] {
            state.published.insert(path.into(), b"an older one".to_vec());
        }
    });
    let mut journal = installed(&host);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().published, BTreeMap::new());
    assert!(host.state().dirs.contains(Path::new("/var/run/cdi")), "it was there before");
}

#[test]
fn a_directory_that_others_use_stays() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let theirs: PathBuf = "/var/run/cdi/theirs.json".into();
    host.change(|state| state.published.insert(theirs.clone(), b"{}".to_vec()));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().published.into_keys().collect::<Vec<_>>(), [theirs]);
}

#[test]
fn links_of_others_that_are_right_stay_and_stale_ones_come_back() {
    let host = gpu_host();
    let link = |name: &str| PathBuf::from(format!("/dev/char/{name}"));
    host.change(|state| {
        state.dirs.insert("/dev/char".into());
        state.links.insert(link("195:0"), "/dev/nvidia0".into());
        state.links.insert(link("195:255"), "../nvidiactl".into());
        state.links.insert(link("511:0"), "../nvidia-caps/nvidia-cap1".into());
    });
    let before = host.state();
    let mut journal = installed(&host);
    let links = host.state().links;
    assert_eq!(links[&link("195:0")], Path::new("/dev/nvidia0"));
    assert_eq!(links[&link("511:0")], Path::new("../nvidia-uvm"));
    assert_eq!(links[&link("236:1")], Path::new("../nvidia-caps/nvidia-cap1"));
    assert_eq!(links.len(), 5);
    host.change(|state| state.links.remove(&link("195:254")));
    let found = lost(&host, &journal);
    assert_eq!(found.len(), 1);
    assert!(found[0].detail.ends_with("wrong: /dev/char/195:254"), "{found:?}");
    let steps: Vec<Step> = found.into_iter().map(|lost| lost.step).collect();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    assert_eq!(host.state().links, links);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// Loaded without the parameter by another program, or by an older agent: the same driver.
#[test]
fn nvidia_that_is_loaded_with_device_files_is_the_wanted_one() {
    let host = gpu_host();
    host.change(|state| {
        for name in ["drm", "ipmi_msghandler"] {
            state.loaded.insert(name.to_owned(), String::new());
        }
        state.loaded.insert("nvidia".to_owned(), "NVreg_ModifyDeviceFiles=1".to_owned());
    });
    assert!(load("nvidia").observe(&host).unwrap().is_none());
}
