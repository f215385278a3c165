//! The features file for Node Feature Discovery.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::steps::{Refreshed, WriteFeatures};
use longshore_host::fake::FakeState;
use rstest::rstest;

const DIR: &str = "/etc/kubernetes/node-feature-discovery/features.d";
const FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/longshore";

fn features(version: &str) -> WriteFeatures {
    WriteFeatures { host_root: "/".into(), version: version.into(), flavour: "open".into() }
}

fn step() -> Step {
    Step::WriteFeatures(features("535.261.03"))
}

/// Returns a host with the directory's parent, and the directory if `is_there`.
fn host_with(is_there: bool) -> FakeHost {
    let host = gpu_host();
    host.change(|state| {
        for dir in ["/etc", "/etc/kubernetes", "/etc/kubernetes/node-feature-discovery"] {
            state.dirs.insert(dir.into());
        }
        if is_there {
            state.dirs.insert(DIR.into());
        }
    });
    host
}

fn file(host: &FakeHost) -> Option<String> {
    let bytes = host.state().published.get(Path::new(FILE)).cloned();
    bytes.map(|bytes| String::from_utf8(bytes).unwrap())
}

fn apply(host: &FakeHost, journal: &mut Journal) {
    engine(host).apply(&[step()], journal, &CancelFlag::default()).unwrap();
}

#[rstest]
#[case::in_a_directory(true)]
#[case::with_its_directory(false)]
fn the_file_expires_and_its_undo_leaves_nothing(#[case] is_there: bool) {
    let host = host_with(is_there);
    let before = host.state();
    let mut journal = Journal::in_memory();
    apply(&host, &mut journal);
    let text = file(&host).unwrap();
    for line in [
        "longshore.dev/driver-version=535.261.03",
        "longshore.dev/flavour=open",
        "longshore.dev/state=ready",
        "nvidia.com/cuda.driver-version.full=535.261.03",
        "nvidia.com/cuda.driver-version.major=535",
        "nvidia.com/cuda.driver-version.minor=261",
        "nvidia.com/cuda.driver-version.revision=03",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let expiry = text.lines().find_map(|line| line.strip_prefix("# +expiry-time=")).unwrap();
    let expiry: jiff::Timestamp = expiry.parse().unwrap();
    assert!(expiry > jiff::Timestamp::now(), "{text}");
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_file_that_another_program_wrote_since_stays_and_is_not_refreshed() {
    let host = host_with(true);
    let mut journal = Journal::in_memory();
    apply(&host, &mut journal);
    host.change(|state| state.published.insert(FILE.into(), b"a=b\n".to_vec()));
    features("535.261.03").refresh(&host, "in-use").unwrap();
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(file(&host).as_deref(), Some("a=b\n"));
}

#[test]
fn a_file_that_was_removed_is_written_again_with_the_next_refresh() {
    let host = host_with(true);
    let mut journal = Journal::in_memory();
    apply(&host, &mut journal);
    let written = file(&host);
    host.change(|state| state.published.clear());
    features("535.261.03").refresh(&host, "in-use").unwrap();
    assert!(written.is_some() && file(&host).unwrap().contains("\nlongshore.dev/state=in-use\n"));
    assert!(engine(&host).holds(&[step()], &journal), "the state is no fault");
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(file(&host), None);
}

#[rstest]
#[case::there(|_: &mut FakeState| {}, 0)]
#[case::gone(|state: &mut FakeState| state.published.clear(), 1)]
#[case::of_another_driver(|state: &mut FakeState| {
    let bytes = state.published.get_mut(Path::new(FILE)).unwrap();
    *bytes = String::from_utf8_lossy(bytes).replace("535", "550").into_bytes();
}, 1)]
fn a_file_that_is_gone_is_found_by_the_next_recheck(
    #[case] change: fn(&mut FakeState),
    #[case] count: usize,
) {
    let host = host_with(true);
    let mut journal = Journal::in_memory();
    apply(&host, &mut journal);
    host.change(change);
    let (engine, entries) = (engine(&host), journal.live().cloned().collect::<Vec<_>>());
    let instances = engine.instances(&[step()], &entries).unwrap();
    let lost = engine.look_again(&[step()], &entries, &instances).lost;
    assert_eq!(lost.iter().filter(|lost| lost.repairable).count(), count);
}

/// A host without Node Feature Discovery is no reason to go without the driver.
#[test]
fn a_file_that_cannot_be_written_leaves_the_driver() {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    let steps = [vec![step()], install()].concat();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    assert!(host.state().loaded.contains_key("nvidia") && file(&host).is_none());
    assert!(journal.live().all(|entry| entry.step.kind() != "write-features"));
}

#[rstest]
fn an_agent_that_dies_in_it_leaves_nothing_that_is_not_undone(
    #[values(true, false)] is_there: bool,
) {
    for fault in (0..4).flat_map(|n| [Fault::DieBefore(n), Fault::DieAfter(n)]) {
        let host = host_with(is_there);
        let before = host.state();
        let mut journal = Journal::in_memory();
        host.fails(Some(fault));
        let ended = catch_unwind(AssertUnwindSafe(|| apply(&host, &mut journal)));
        host.fails(None);
        engine(&host).undo(&mut journal).unwrap();
        assert_eq!(host.state(), before, "{fault:?}, {}", ended.is_ok());
    }
}
