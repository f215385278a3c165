//! Event sources, tested on the running kernel. The clock is paused: an event is there as soon as the call that
//! caused it returns, so time passes only once none is left, and silence takes no time.

use std::cell::Cell;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, getsockname, sendto,
    socket,
};
use tokio::time::timeout;

use super::places::Reported;
use super::*;
use crate::steps::{MakeNodes, PublishSpec, WriteParameter};

const AMPLE: Duration = Duration::from_secs(60);
/// Time limit of a wait that proves silence.
const SOON: Duration = Duration::from_millis(100);

fn of_nodes(dir: &Path) -> Vec<Step> {
    vec![Step::MakeNodes(MakeNodes { dirs: vec![dir.to_path_buf()], left_to_admin: false })]
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_or_goes_or_changes_is_told_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut places = Places::open().unwrap();
    places.arm(&of_nodes(dir.path()));
    let node = dir.path().join("nvidia0");
    let acts: [(&dyn Fn(), bool); 5] = [
        (&|| fs::write(dir.path().join("tty"), "").unwrap(), false),
        (&|| fs::write(&node, "").unwrap(), true),
        (
            &|| {
                fs::set_permissions(&node, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                    .unwrap()
            },
            true,
        ),
        (&|| fs::rename(&node, dir.path().join("moved")).unwrap(), true),
        (&|| fs::remove_file(dir.path().join("moved")).unwrap(), false),
    ];
    for (act, wanted) in acts {
        act();
        let guard = timeout(AMPLE, places::readable(Some(&places))).await.unwrap();
        assert_eq!(places::read(guard).driver, wanted);
        assert!(timeout(SOON, places::readable(Some(&places))).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("path");
    fs::write(&path, "/run/nvidia/driver/lib/firmware").unwrap();
    let mut places = Places::open().unwrap();
    let step = Step::WriteParameter(WriteParameter { path: path.clone(), value: String::new() });
    places.arm(&[
        step.clone(),
        Step::MakeNodes(MakeNodes { dirs: vec!["/nonexistent".into()], left_to_admin: false }),
    ]);
    places.arm(&[step]);
    fs::write(&path, "/elsewhere").unwrap();
    let guard = timeout(AMPLE, places::readable(Some(&places))).await.unwrap();
    assert!(places::read(guard).driver);
}

/// A rival's spec has any name.
#[tokio::test(start_paused = true)]
async fn a_spec_of_any_name_is_told_and_does_not_ask_for_a_look_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let specs = dir.path().join("run/cdi");
    fs::create_dir_all(&specs).unwrap();
    let steps = [Step::PublishSpec(PublishSpec {
        host_root: dir.path().to_path_buf(),
        driver_root: "/run/nvidia/driver".into(),
        capabilities: Vec::new(),
    })];
    let mut watch = Watch::begin(&Triggers { kernel: true, ..Triggers::default() });
    watch.arm(&steps);
    for (name, wanted) in [
        ("a.txt", Reported::default()),
        ("gpus.json", Reported { specs: true, driver: false }),
        ("gpus.yaml", Reported { specs: true, driver: false }),
        ("longshore-nvidia.com-gpu.json", Reported { specs: true, driver: true }),
    ] {
        fs::write(specs.join(name), "{}").unwrap();
        let guard = timeout(AMPLE, places::readable(watch.places.as_ref())).await.unwrap();
        assert_eq!(places::read(guard), wanted, "{name}");
    }
    // The last check is long ago.
    watch.looked = None;
    fs::write(specs.join("another.json"), "{}").unwrap();
    timeout(AMPLE, watch.changed()).await.unwrap();
    watch.arm(&steps);
    fs::write(specs.join("another.json"), "{ }").unwrap();
    assert!(timeout(TOGETHER + DULL * 2, watch.changed()).await.is_err());
    assert_eq!(watch.specs_due, watch.looked.map(|looked| looked + SPECS_APART));
}

#[test]
fn mounts_and_unmounts_are_told_once_each() {
    // A mount namespace belongs to a thread; the others keep theirs.
    let waiting = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS).expect("this test wants root");
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.unwrap();
        runtime.block_on(async {
            let mounts = Mounts::open_at(Path::new("/proc/thread-self/mountinfo")).unwrap();
            assert!(timeout(SOON, mounts::changed(Some(&mounts))).await.is_err(), "nothing yet");
            for _ in 0..2 {
                let none = MsFlags::empty();
                mount(Some("t"), dir.path(), Some("tmpfs"), none, None::<&str>).unwrap();
                timeout(AMPLE, mounts::changed(Some(&mounts))).await.unwrap();
                assert!(timeout(SOON, mounts::changed(Some(&mounts))).await.is_err(), "once");
                umount2(dir.path(), MntFlags::MNT_DETACH).unwrap();
                timeout(AMPLE, mounts::changed(Some(&mounts))).await.unwrap();
            }
        });
    });
    waiting.join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_program_sends_as_an_event_of_the_kernels_is_not_believed() {
    let uevents = Uevents::open().unwrap();
    let own: NetlinkAddr = getsockname(uevents.as_raw_fd()).unwrap();
    let forger = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkKObjectUEvent,
    )
    .unwrap();
    let forged = b"remove@/module/nvidia\0DEVPATH=/module/nvidia\0SUBSYSTEM=module\0";
    let to = NetlinkAddr::new(own.pid(), 0);
    match sendto(forger.as_raw_fd(), forged, &to, MsgFlags::empty()) {
        Ok(_) => {
            let guard = timeout(AMPLE, uevents::readable(Some(&uevents))).await.unwrap();
            assert!(!uevents::read(guard));
        }
        // Without CAP_NET_ADMIN sending fails earlier.
        Err(errno) => assert!(matches!(errno, Errno::EPERM | Errno::ECONNREFUSED), "{errno}"),
    }
    assert!(timeout(SOON, uevents::readable(Some(&uevents))).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn however_many_events_come_a_look_is_made_twice_a_second_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = Watch::begin(&Triggers { kernel: true, ..Triggers::default() });
    assert!(watch.left_out().is_empty(), "{:?}", watch.left_out());
    let flood = |round| {
        for n in 0..1000 {
            fs::write(dir.path().join(format!("nvidia{round}-{n}")), "").unwrap();
        }
    };
    let begun = Instant::now();
    watch.arm(&of_nodes(dir.path()));
    for round in 0..3 {
        flood(round);
        timeout(AMPLE, watch.changed()).await.unwrap();
        watch.arm(&of_nodes(dir.path()));
    }
    assert!(begun.elapsed() >= 3 * APART, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_within_a_second() {
    // At any time after a check.
    for delay in (0..1500).step_by(37).map(Duration::from_millis) {
        let dir = tempfile::tempdir().unwrap();
        let steps = of_nodes(dir.path());
        let mut watch = Watch::begin(&Triggers { kernel: true, ..Triggers::default() });
        watch.arm(&steps);
        let changed = Cell::new(None);
        let reported = async {
            loop {
                watch.changed().await;
                // Another program's mount may have been told before.
                if let Some(changed) = changed.get() {
                    return Instant::now() - changed;
                }
                watch.arm(&steps);
            }
        };
        let change = async {
            sleep(delay).await;
            fs::write(dir.path().join("nvidia0"), "").unwrap();
            changed.set(Some(Instant::now()));
            pending::<()>().await;
        };
        // Other programs make events all the while.
        let others = async {
            loop {
                fs::write(dir.path().join("tty"), "").unwrap();
                sleep(Duration::from_millis(10)).await;
            }
        };
        let took = tokio::select! {
            took = reported => took,
            () = change => unreachable!(),
            () = others => unreachable!(),
        };
        assert!(took <= Duration::from_secs(1), "{took:?} after a change at {delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_kernel_is_not_listened_to_only_asking_counts() {
    let again = Renewal::default();
    let mut watch = Watch::begin(&Triggers { again: again.clone(), kernel: false });
    assert!(timeout(SOON, watch.changed()).await.is_err());
    again.ask();
    timeout(AMPLE, watch.changed()).await.unwrap();
}
