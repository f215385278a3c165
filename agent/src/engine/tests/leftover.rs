//! Leftovers of a dead driver container, removed over a fake host and over real mounts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rstest::rstest;

use super::{FIRMWARE, SHORT_WAIT, engine, gpu_host, install};
use crate::engine::fake_images::FakeImages;
use crate::engine::{Engine, Stopped};
use crate::journal::{EntryState, Journal};
use crate::steps::{Leftover, RemoveLeftover, Step};
use crate::telemetry::Telemetry;
use longshore_core::cancel::CancelFlag;
use longshore_host::fake::{FakeHost, Fault};
use longshore_host::values::FileId;
use longshore_host::{Host, RealHost};

const ROOT: &str = "/run/nvidia/driver";
const PID: &str = "/run/nvidia/nvidia-driver.pid";
const THEIRS: FileId = FileId { device: 7, inode: 11, changed: 13 };

fn clean() -> FakeHost {
    let host = gpu_host();
    host.change(|state| {
        for dir in ["/run/nvidia", ROOT, "/container"] {
            state.dirs.insert(dir.into());
        }
    });
    host
}

/// Returns a host on which a container died that had mounted its root twice.
fn littered() -> (FakeHost, Vec<Step>) {
    let host = clean();
    host.change(|state| {
        state.mounts = vec![("/container".into(), ROOT.into()); 2];
        state.files.insert(PID.into(), THEIRS);
        state.parameters.insert(FIRMWARE.into(), "/fw".into());
    });
    let (device, inode) = host.dir(Path::new(ROOT)).unwrap().unwrap();
    let leftovers = [
        Leftover::Mount { target: ROOT.into(), device, inode },
        Leftover::Value { path: FIRMWARE.into(), value: "/fw".into() },
        Leftover::File { path: PID.into(), id: Some(THEIRS) },
    ];
    let mut steps = leftovers.map(|what| Step::RemoveLeftover(RemoveLeftover { what })).to_vec();
    steps.extend(install());
    (host, steps)
}

fn apply(host: &FakeHost, steps: &[Step], journal: &mut Journal) -> Result<(), Stopped> {
    engine(host).apply(steps, journal, &CancelFlag::default())
}

#[test]
fn leftovers_go_for_good_and_what_is_ours_is_undone_to_a_host_without_them() {
    let (host, steps) = littered();
    let mut journal = Journal::in_memory();
    apply(&host, &steps, &mut journal).unwrap();
    assert_eq!(host.mounts_on(Path::new(ROOT)).unwrap(), 1, "ours alone");
    let kept = |e: &&crate::journal::JournalEntry| matches!(e.state, EntryState::Kept(_));
    assert_eq!(journal.state().entries.iter().filter(kept).count(), 3);
    assert!(journal.live().all(|e| RemoveLeftover::recorded(&e.step).is_none()));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), clean().state());
}

#[rstest]
fn whoever_dies_on_the_way_is_followed_by_one_who_goes_on(
    #[values(Fault::DieBefore, Fault::DieAfter)] dies: fn(usize) -> Fault,
) {
    let (host, steps) = littered();
    host.fails(None);
    apply(&host, &steps, &mut Journal::in_memory()).unwrap();
    for at in 0..host.changes() {
        let (host, steps) = littered();
        let mut journal = Journal::in_memory();
        host.fails(Some(dies(at)));
        let died = catch_unwind(AssertUnwindSafe(|| apply(&host, &steps, &mut journal)));
        assert!(died.is_err(), "change {at}");
        host.fails(None);
        apply(&host, &steps, &mut journal).unwrap();
        engine(&host).undo(&mut journal).unwrap();
        assert_eq!(host.state(), clean().state(), "died at change {at}");
    }
}

#[test]
fn what_somebody_put_in_its_place_is_not_touched() {
    let (host, steps) = littered();
    host.change(|state| {
        state.dirs.insert("/other".into());
        state.mounts.push(("/other".into(), ROOT.into()));
        // NVIDIA's container opens the same file, and writes its pid into it.
        state.files.insert(PID.into(), FileId { changed: 14, ..THEIRS });
    });
    apply(&host, &steps[..1], &mut Journal::in_memory()).unwrap();
    assert_eq!(host.mounts_on(Path::new(ROOT)).unwrap(), 3);
    apply(&host, &steps[2..3], &mut Journal::in_memory()).unwrap();
    assert!(host.state().files.contains_key(Path::new(PID)));
    assert!(!host.log().iter().any(|verb| verb.starts_with("unlink")), "{:?}", host.log());
}

#[test]
fn what_becomes_anothers_after_the_plan_was_made_is_not_touched_either() {
    let (host, steps) = littered();
    let mut journal = Journal::in_memory();
    let theirs = host.share();
    host.at_point(move |_| {
        theirs.change(|state| {
            state.files.insert(PID.into(), FileId { inode: 12, ..THEIRS });
        });
    });
    apply(&host, &steps[1..3], &mut journal).unwrap();
    assert!(host.state().files.contains_key(Path::new(PID)));
}

/// A container's root on a mount point, mounted once per start; unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn twice() -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        let root = scene.0.path().join("root");
        std::fs::create_dir_all(root.join("dev")).unwrap();
        std::fs::create_dir(scene.target()).unwrap();
        std::fs::write(root.join("file"), "text").unwrap();
        for _ in 0..2 {
            scene.mount(Some(root.as_path()), &scene.target(), MsFlags::MS_BIND);
        }
        scene.mount(None, &scene.target().join("dev"), MsFlags::empty());
        scene
    }

    fn target(&self) -> PathBuf {
        self.0.path().join("driver")
    }

    fn mount(&self, source: Option<&Path>, target: &Path, flags: MsFlags) {
        mount(source, target, Some("tmpfs"), flags, None::<&str>).expect("this test wants root");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        while umount2(&self.target(), MntFlags::MNT_DETACH).is_ok() {}
    }
}

#[test]
fn a_real_mount_that_is_in_use_is_detached_as_often_as_it_was_mounted() {
    for covered in [false, true] {
        let scene = Mounted::twice();
        let target = scene.target();
        let mut held = std::fs::File::open(target.join("file")).unwrap();
        let host = RealHost::new(Path::new("/"));
        let (device, inode) = host.dir(&target).unwrap().unwrap();
        if covered {
            scene.mount(None, &target, MsFlags::empty());
        }
        let what = Leftover::Mount { target: target.clone(), device, inode };
        let (images, telemetry) = (FakeImages, Telemetry::default());
        let engine = Engine {
            host: &host,
            images: &images,
            in_use_wait: SHORT_WAIT,
            telemetry: &telemetry,
            refuses_missing_gpus: false,
        };
        let steps = [Step::RemoveLeftover(RemoveLeftover { what })];
        engine.apply(&steps, &mut Journal::in_memory(), &CancelFlag::default()).unwrap();
        assert_eq!(host.mounts_on(&target).unwrap(), if covered { 3 } else { 0 });
        let mut text = String::new();
        std::io::Read::read_to_string(&mut held, &mut text).unwrap();
        assert_eq!(text, "text", "who had it open has it still");
    }
}

#[test]
fn a_record_of_an_older_longshore_names_a_file_by_its_path_alone() {
    let text = format!("{{\"kind\":\"file\",\"path\":\"{PID}\"}}");
    let what: Leftover = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&what).unwrap(), text);
    let (host, _) = littered();
    let steps = [Step::RemoveLeftover(RemoveLeftover { what })];
    apply(&host, &steps, &mut Journal::in_memory()).unwrap();
    assert!(host.state().files.is_empty());
}
