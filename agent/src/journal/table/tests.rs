use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::engine::fake_images::FakeImages;
use crate::engine::{Engine, InUseWait};
use crate::journal::MadeFor;
use crate::steps::OTHERS;
use crate::telemetry::Telemetry;
use longshore_core::disk::Disk;
use longshore_core::failure::{ExitCode, Failure};
use longshore_host::fake::{FakeHost, FakeModule};
use longshore_host::places::FIRMWARE_PATH;
use longshore_host::verbs::Node;

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const MARK: &str = "00112233445566778899aabbccddeeff";
const FIRMWARE: &str = "/run/nvidia/driver/lib/firmware";
const NODES: [&str; 2] = ["/dev", "/run/nvidia/driver/dev"];

fn paths() -> Paths {
    Paths {
        store: paths::STORE.into(),
        driver_root: paths::DRIVER_ROOT.into(),
        host_root: "/proc/1/root".into(),
        any_entry: false,
        ..Paths::below(Path::new("/"))
    }
}

/// Returns a record with these entries, as text.
fn text(entries: &[Value]) -> Vec<u8> {
    let record = json!({
        "format": 2, "boot_id": null, "agent": 1, "phase": "ready", "plan": null,
        "entries": entries,
    });
    serde_json::to_vec(&record).unwrap()
}

fn read(step: &Value, before: &Value) -> Result<State, Failure> {
    let entry = json!({"seq": 1, "step": step, "before": before, "state": "done"});
    crate::journal::parse_state(Path::new("state.json"), &text(&[entry]))
}

/// Returns a record with this entry alone.
fn record(step: &Value, before: &Value) -> State {
    read(step, before).unwrap()
}

fn refused(step: &Value, before: &Value) -> Option<String> {
    match read(step, before) {
        Ok(state) => check(&state, &paths(), Proof::None).err(),
        Err(failure) => {
            assert_eq!(failure.code(), ExitCode::Verification);
            Some(failure.to_string())
        }
    }
}

fn fabric_manager() -> Value {
    json!({"do": "start-daemon", "daemon": {
        "name": "nv-fabricmanager",
        "program": "/run/nvidia/driver/usr/bin/nv-fabricmanager",
        "arguments": ["-c", "/run/nvidia-fabricmanager/fabricmanager.cfg", "-g", "0xb83fd20300aabbcc"],
        "libraries": "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "socket": "/run/nvidia-fabricmanager/socket",
        "settings": {
            "template": "/run/nvidia/driver/usr/share/nvidia/nvswitch/fabricmanager.cfg",
            "set": [["DAEMONIZE", "0"], ["LOG_FILE_NAME", ""],
                    ["STATE_FILE_NAME", "/run/nvidia-fabricmanager/fabricmanager.state"]],
            "file": "/run/nvidia-fabricmanager/fabricmanager.cfg",
        },
        "capabilities": ["CAP_SYS_ADMIN"], "required": true, "ready_within": 60,
    }})
}

/// Returns one entry of every kind, as agents write them.
fn entries() -> Vec<(Value, Value)> {
    let mounts = json!({"was": "mounts", "count": 0});
    let load = |name: &str, origin: Value| {
        json!({"do": "load-module", "name": name, "origin": origin, "parameters": "a=1 b=\"c d\"",
               "version": "535.261.03", "srcversion": null})
    };
    let leftover =
        |what: Value| (json!({"do": "remove-leftover", "what": what}), json!({"was": "leftover"}));
    let node = |path: &str, major: u32| {
        json!({"path": path, "made": {"major": major, "minor": 0, "mode": 0o666},
               "was": {"major": major, "minor": 1, "mode": 0o600}})
    };
    vec![
        (
            json!({"do": "make-dir", "path": "/run/nvidia/driver"}),
            json!({"was": "missing-dirs", "dirs": ["/run/nvidia", "/run/nvidia/driver"]}),
        ),
        (
            json!({"do": "make-dir", "path": "/run/nvidia/driver/run/nvidia-persistenced"}),
            json!({"was": "missing-dirs", "dirs": ["/run/nvidia/driver/run/nvidia-persistenced"]}),
        ),
        (
            json!({"do": "write-parameter", "path": FIRMWARE_PATH, "value": FIRMWARE}),
            json!({"was": "value", "value": "/lib/firmware/site/"}),
        ),
        (load("nvidia", json!({"driver": {"sha256": HEX}})), json!({"was": "not-loaded"})),
        (
            load("i2c_core", json!({"kernel": {"file": "kernel/drivers/i2c/i2c-core.ko.xz"}})),
            json!({"was": "not-loaded"}),
        ),
        // As agents mounted it that had no mount-root.
        (
            json!({"do": "bind", "source": "/var/lib/longshore/userspace/535.261.03/root",
                   "target": "/run/nvidia/driver"}),
            mounts.clone(),
        ),
        (json!({"do": "mount-tmpfs", "target": "/run/nvidia/driver/dev"}), mounts.clone()),
        (json!({"do": "mount-tmpfs", "target": "/run/nvidia/driver/run"}), mounts.clone()),
        (
            json!({"do": "share", "source": "/run/nvidia/driver/run/nvidia-fabricmanager",
                   "target": "/run/nvidia-fabricmanager"}),
            mounts.clone(),
        ),
        (fabric_manager(), json!({"was": "no-daemon", "mark": MARK})),
        (
            json!({"do": "make-nodes", "dirs": ["/proc/1/root/dev", NODES[0], NODES[1]]}),
            json!({"was": "nodes", "missing_dirs": ["/dev/nvidia-caps"],
                   "nodes": [node("/dev/nvidia0", 195), node("/dev/nvidia-caps/nvidia-cap1", 236),
                             node("/proc/1/root/dev/nvidia-uvm", 511)]}),
        ),
        leftover(json!({"kind": "mount", "target": "/run/nvidia/driver", "device": 1, "inode": 2})),
        leftover(json!({"kind": "file", "path": "/run/nvidia/nvidia-driver.pid"})),
        leftover(json!({"kind": "value", "path": FIRMWARE_PATH, "value": FIRMWARE})),
        (json!({"do": "mount-root", "target": "/run/nvidia/driver"}), mounts.clone()),
        (
            json!({"do": "bind", "source": "/var/lib/longshore/userspace/535.261.03/root/usr",
                   "target": "/run/nvidia/driver/usr"}),
            mounts.clone(),
        ),
        (json!({"do": "mount-sysfs", "target": "/run/nvidia/driver/sys"}), mounts),
        (
            json!({"do": "reserve-device", "address": "0000:01:00.0", "driver": "nouveau"}),
            json!({"was": "bound-elsewhere", "only": "nouveau"}),
        ),
        (
            json!({"do": "unload-conflicting", "name": "nouveau", "parameters": "modeset=1",
                   "file": "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz"}),
            json!({"was": "loaded"}),
        ),
        (
            json!({"do": "link-nodes", "dev": "/proc/1/root/dev"}),
            json!({"was": "links", "missing_dirs": ["/proc/1/root/dev/char"], "links": [
                {"path": "/proc/1/root/dev/char/195:0", "target": "../nvidia0", "was": null},
                {"path": "/proc/1/root/dev/char/511:0", "target": "../nvidia-uvm",
                 "was": "../nvidia-caps/nvidia-cap1"},
            ]}),
        ),
        (
            json!({"do": "cdi-spec", "host_root": "/proc/1/root",
                   "driver_root": "/run/nvidia/driver", "capabilities": ["compute", "utility"]}),
            json!({"was": "not-published", "sha256": HEX, "makes_dir": true}),
        ),
        (
            json!({"do": "write-status", "path": "/run/nvidia/validations/.driver-daemons-status",
                   "text": "Ready",
                   "confirmed_by": "/run/nvidia/validations/.driver-ctr-ready"}),
            json!({"was": "status", "same": false}),
        ),
        (
            json!({"do": "write-status", "path": "/run/nvidia/nvidia-driver.state",
                   "text": "2166136261"}),
            json!({"was": "status", "same": true}),
        ),
        (
            json!({"do": "write-status", "path": "/run/nvidia/validations/.driver-ctr-ready",
                   "text": "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: true"}),
            json!({"was": "status", "same": false}),
        ),
    ]
}

/// The kernel's command line may name any directory; installing on such a host is no fault of the
/// program.
#[rstest]
#[case("/run/site/firmware", true)]
#[case("/home/firmware/", true)]
#[case("firmware", true)]
#[case("/lib/firmware\n/evil", false)]
fn a_hosts_own_firmware_path_is_kept_where_an_agent_is_known_to_have_read_it(
    #[case] value: &str,
    #[case] taken: bool,
) {
    let step = &entries()[PARAMETER].0;
    let record = record(step, &json!({"was": "value", "value": value}));
    assert_eq!(check(&record, &paths(), Proof::Whole).is_ok(), taken);
    assert!(check(&record, &paths(), Proof::None).is_err());
}

#[test]
fn every_kind_of_entry_that_an_agent_writes_is_taken() {
    for (step, before) in entries() {
        assert_eq!(refused(&step, &before), None, "{step}");
    }
    let kinds: std::collections::BTreeSet<_> =
        entries().iter().map(|(step, _)| step["do"].as_str().unwrap().to_owned()).collect();
    let all = Step::KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    assert_eq!(kinds, all, "a kind has no entry here");
}

/// Forges the entry of this number: one value is replaced by another.
fn forged(at: usize, pointer: &str, value: Value) -> Option<String> {
    let (step, before) = entries()[at].clone();
    let mut both = json!({"step": step, "before": before});
    *both.pointer_mut(pointer).expect("there") = value;
    refused(&both["step"], &both["before"])
}

const DIR: usize = 0;
const PARAMETER: usize = 2;
const DRIVER_MODULE: usize = 3;
const KERNEL_MODULE: usize = 4;
const BIND: usize = 5;
const TMPFS: usize = 6;
const SHARE: usize = 8;
const DAEMON: usize = 9;
const MADE_NODES: usize = 10;
const LEFT_MOUNT: usize = 11;
const LEFT_FILE: usize = 12;
const LEFT_VALUE: usize = 13;
const ROOT: usize = 14;
const TREE_DIR: usize = 15;
const SYSFS: usize = 16;
const RESERVED: usize = 17;
const UNLOADED: usize = 18;
const LINKS: usize = 19;
const SPEC: usize = 20;
const READY: usize = 21;
const DIGEST: usize = 22;
const CONFIRMATION: usize = 23;

#[rstest]
#[case(DIR, "/step/path", json!("/etc/cron.d"))]
#[case(DIR, "/step/path", json!("/run/nvidia/driver/../../../etc/cron.d"))]
#[case(DIR, "/step/path", json!("run/nvidia/driver"))]
#[case(DIR, "/step/path", json!("/run/nvidia//driver"))]
#[case(DIR, "/before/dirs", json!(["/etc/cron.d", "/run/nvidia/driver"]))]
#[case(DIR, "/before/dirs", json!(["/run/nvidia"]))]
#[case(DIR, "/before/dirs", json!(["/", "/run", "/run/nvidia", "/run/nvidia/driver"]))]
#[case(DIR, "/before/dirs", json!([]))]
#[case(PARAMETER, "/step/path", json!("/proc/sys/kernel/core_pattern"))]
#[case(PARAMETER, "/step/path", json!("/proc/1/root/sys/module/firmware_class/parameters/path"))]
#[case(PARAMETER, "/step/value", json!("/run/nvidia/evil"))]
#[case(PARAMETER, "/step/value", json!("/run/nvidia/driver/lib/firmware/../../../evil"))]
#[case(PARAMETER, "/before/value", json!("|/evil"))]
#[case(PARAMETER, "/before/value", json!("/run/nvidia/evil"))]
#[case(PARAMETER, "/before/value", json!("/usr/../tmp/evil"))]
#[case(PARAMETER, "/before/value", json!("/proc/1234/root/evil"))]
#[case(PARAMETER, "/before/value", json!("/lib/firmware\n/evil"))]
#[case(DRIVER_MODULE, "/step/name", json!("kvm"))]
#[case(DRIVER_MODULE, "/step/name", json!("nvidia/../kvm"))]
#[case(DRIVER_MODULE, "/step/origin/driver/sha256", json!("../../../../etc/passwd"))]
#[case(DRIVER_MODULE, "/step/parameters", json!("a=1\nb=2"))]
#[case(KERNEL_MODULE, "/step/name", json!("ext4"))]
#[case(KERNEL_MODULE, "/step/name", json!("nvidia"))]
#[case(KERNEL_MODULE, "/step/origin/kernel/file", json!("/run/nvidia/i2c_core.ko"))]
#[case(KERNEL_MODULE, "/step/origin/kernel/file", json!("../../../run/nvidia/i2c_core.ko"))]
#[case(KERNEL_MODULE, "/step/origin/kernel/file", json!("./i2c_core.ko"))]
#[case(BIND, "/step/target", json!("/etc"))]
#[case(BIND, "/step/target", json!("/run/nvidia/driver/"))]
#[case(BIND, "/step/source", json!("/run/nvidia/userspace/evil/root"))]
#[case(BIND, "/step/source", json!("/var/lib/longshore/userspace/../../../../evil/root"))]
#[case(BIND, "/step/source", json!("/var/lib/longshore/userspace/a/b/root"))]
#[case(BIND, "/step/source", json!("/var/lib/longshore"))]
#[case(ROOT, "/step/target", json!("/etc"))]
#[case(ROOT, "/step/target", json!("/run/nvidia/driver/usr"))]
#[case(TREE_DIR, "/step/target", json!("/run/nvidia/driver/lib"))]
#[case(TREE_DIR, "/step/target", json!("/run/nvidia/driver/sys"))]
#[case(TREE_DIR, "/step/target", json!("/run/nvidia/driver/usr/"))]
#[case(TREE_DIR, "/step/source", json!("/var/lib/longshore/userspace/a/root/usr/bin"))]
#[case(TREE_DIR, "/step/source", json!("/var/lib/longshore/userspace/a/root"))]
#[case(TREE_DIR, "/step/source", json!("/run/nvidia/userspace/evil/root/usr"))]
#[case(SYSFS, "/step/target", json!("/sys"))]
#[case(SYSFS, "/step/target", json!("/run/nvidia/driver/proc"))]
#[case(RESERVED, "/step/address", json!("../../../../etc/cron.d"))]
#[case(RESERVED, "/step/address", json!("0000:01:00.0/../0000:02:00.0"))]
#[case(RESERVED, "/step/driver", json!("vfio-pci"))]
#[case(RESERVED, "/step/driver", json!("../../nouveau"))]
#[case(RESERVED, "/before/only", json!("a\nb"))]
#[case(RESERVED, "/before/only", json!("../x"))]
#[case(UNLOADED, "/step/name", json!("kvm"))]
#[case(UNLOADED, "/step/name", json!("nvidia"))]
#[case(UNLOADED, "/step/file", json!("../../../run/nvidia/nouveau.ko"))]
#[case(UNLOADED, "/step/file", json!("kernel/evil.ko"))]
#[case(UNLOADED, "/step/parameters", json!("a=1\nb=2"))]
#[case(READY, "/step/path", json!("/etc/cron.d/evil"))]
#[case(READY, "/step/path", json!("/run/nvidia/validations/driver-ready"))]
#[case(READY, "/step/path", json!("/run/nvidia/validations/../../../etc/.driver-daemons-status"))]
#[case(READY, "/step/text", json!("evil"))]
#[case(READY, "/step/text", json!("Ready\nevil"))]
#[case(READY, "/step/confirmed_by", json!("/etc/passwd"))]
#[case(CONFIRMATION, "/step/path", json!("/run/nvidia/nvidia-driver.state"))]
#[case(CONFIRMATION, "/step/path", json!("/etc/.driver-ctr-ready"))]
#[case(CONFIRMATION, "/step/text", json!("GDS_ENABLED: true"))]
#[case(CONFIRMATION, "/step/text", json!("Ready"))]
#[case(DIGEST, "/step/path", json!("/run/nvidia/nvidia-driver.pid"))]
#[case(DIGEST, "/step/path", json!("/run/nvidia//nvidia-driver.state"))]
#[case(DIGEST, "/step/text", json!("1\n2"))]
#[case(DIGEST, "/step/text", json!(""))]
#[case(TMPFS, "/step/target", json!("/etc"))]
#[case(TMPFS, "/step/target", json!("/run/nvidia/driver/usr"))]
#[case(SHARE, "/step/target", json!("/run/systemd"))]
#[case(SHARE, "/step/target", json!("/run/nvidia-fabricmanager/"))]
#[case(SHARE, "/step/source", json!("/run/nvidia/evil"))]
#[case(SHARE, "/step/source", json!("/run/nvidia/driver/run/nvidia-persistenced"))]
#[case(DAEMON, "/step/daemon/name", json!("sshd"))]
#[case(DAEMON, "/step/daemon/program", json!("/run/nvidia/evil"))]
#[case(DAEMON, "/step/daemon/program", json!("/run/nvidia/driver/../evil"))]
#[case(DAEMON, "/step/daemon/program", json!("/run/nvidia/driver/usr/bin/evil"))]
#[case(DAEMON, "/step/daemon/arguments/1", json!("/etc/shadow"))]
#[case(DAEMON, "/step/daemon/arguments/1", json!("/run/nvidia-fabricmanager/../../etc/shadow"))]
#[case(DAEMON, "/step/daemon/arguments/0", json!("-c/etc/shadow"))]
#[case(DAEMON, "/step/daemon/libraries", json!("/run/nvidia/evil"))]
#[case(DAEMON, "/step/daemon/socket", json!("/run/docker.sock"))]
#[case(DAEMON, "/step/daemon/capabilities", json!(["CAP_SYS_ADMIN", "CAP_SYS_MODULE"]))]
#[case(DAEMON, "/step/daemon/settings/template", json!("/etc/shadow"))]
#[case(DAEMON, "/step/daemon/settings/file", json!("/etc/cron.d/evil"))]
#[case(DAEMON, "/step/daemon/settings/file", json!("/run/nvidia-fabricmanager/x/../y"))]
#[case(DAEMON, "/step/daemon/settings/set/1", json!(["LOG_FILE_NAME", "/etc/passwd"]))]
#[case(DAEMON, "/step/daemon/settings/set/1", json!(["A", "0\nLOG_FILE_NAME=/etc/passwd"]))]
#[case(DAEMON, "/step/daemon/settings/set/1/0", json!("A\nB"))]
#[case(DAEMON, "/before/mark", json!(""))]
#[case(DAEMON, "/before/mark", json!("1"))]
#[case(MADE_NODES, "/step/dirs/0", json!("/etc"))]
#[case(MADE_NODES, "/step/dirs/0", json!("/proc/77/root/dev"))]
#[case(MADE_NODES, "/before/missing_dirs", json!(["/dev/shm"]))]
#[case(MADE_NODES, "/before/missing_dirs", json!(["/dev"]))]
#[case(MADE_NODES, "/before/missing_dirs", json!(["/etc/cron.d"]))]
#[case(MADE_NODES, "/before/nodes/0/path", json!("/dev/mem"))]
#[case(MADE_NODES, "/before/nodes/0/path", json!("/etc/nvidia0"))]
#[case(MADE_NODES, "/before/nodes/0/path", json!("/dev/nvidia-caps/../mem"))]
#[case(MADE_NODES, "/before/nodes/0/path", json!("/dev/nvidia/a/b"))]
#[case(MADE_NODES, "/before/nodes/0/made/major", json!(1))]
#[case(MADE_NODES, "/before/nodes/0/was", json!({"major": 1, "minor": 1, "mode": 0o666}))]
#[case(MADE_NODES, "/before/nodes/0/was", json!({"major": 8, "minor": 0, "mode": 0o666}))]
#[case(MADE_NODES, "/before/nodes/0/made/mode", json!(0o4666))]
#[case(LINKS, "/step/dev", json!("/etc"))]
#[case(LINKS, "/before/missing_dirs", json!(["/etc/char"]))]
#[case(LINKS, "/before/links/0/path", json!("/etc/passwd"))]
#[case(LINKS, "/before/links/0/path", json!("/proc/1/root/dev/char/../mem"))]
#[case(LINKS, "/before/links/0/path", json!("/proc/1/root/dev/char/195:"))]
#[case(LINKS, "/before/links/0/target", json!("../mem"))]
#[case(LINKS, "/before/links/0/target", json!("/dev/nvidia0"))]
#[case(LINKS, "/before/links/0/was", json!("/etc/shadow"))]
#[case(LINKS, "/before/links/0/was", json!("/dev/../etc/shadow"))]
#[case(LINKS, "/before/links/0/was", json!("../../etc/shadow"))]
#[case(SPEC, "/step/host_root", json!("/proc/77/root"))]
#[case(SPEC, "/step/host_root", json!("/proc/1/root/../.."))]
#[case(SPEC, "/step/driver_root", json!("/etc"))]
#[case(SPEC, "/before/sha256", json!("0"))]
#[case(LEFT_MOUNT, "/step/what/target", json!("/"))]
#[case(LEFT_FILE, "/step/what/path", json!("/etc/passwd"))]
#[case(LEFT_FILE, "/step/what/path", json!("/run/nvidia/../../etc/nvidia-driver.pid"))]
#[case(LEFT_VALUE, "/step/what/path", json!("/proc/sys/kernel/core_pattern"))]
fn a_forged_entry_is_named_and_refused(
    #[case] at: usize,
    #[case] pointer: &str,
    #[case] value: Value,
) {
    let why = forged(at, pointer, value).expect("refused");
    assert!(why.starts_with("entry 1 ("), "{why}");
}

#[test]
fn a_step_has_before_it_what_such_a_step_has() {
    let all = entries();
    for (at, (step, right)) in all.iter().enumerate() {
        for (_, before) in &all {
            if before["was"] != right["was"] {
                let why = refused(step, before).expect("refused");
                assert!(why.ends_with("no such step has this state before it"), "{at}: {why}");
            }
        }
    }
}

#[test]
fn what_is_to_come_back_is_held_against_the_table_as_well() {
    let (step, before) = entries()[PARAMETER].clone();
    let forged = json!({"do": "write-parameter", "path": "/proc/sys/kernel/core_pattern", "value": "|/evil"});
    let mut state = record(&step, &before);
    state.previous = vec![serde_json::from_value(forged).unwrap()];
    let why = check(&state, &paths(), Proof::None).unwrap_err();
    assert!(why.contains("core_pattern"), "{why}");
}

#[rstest]
#[case(&[1, 1])]
#[case(&[2, 1])]
#[case(&[0])]
#[case(&[u64::MAX])]
fn numbers_that_no_agent_gives_are_refused(#[case] numbers: &[u64]) {
    let (step, before) = entries()[TMPFS].clone();
    let mut state = record(&step, &before);
    let entry = state.entries[0].clone();
    state.entries = numbers.iter().map(|seq| Entry { seq: *seq, ..entry.clone() }).collect();
    assert!(check(&state, &paths(), Proof::None).is_err());
}

#[test]
fn entries_of_other_settings_are_taken_where_the_record_names_these() {
    let step = json!({"do": "mount-tmpfs", "target": "/opt/driver/dev"});
    let before = json!({"was": "mounts", "count": 0});
    let mut state = record(&step, &before);
    assert!(check(&state, &paths(), Proof::None).is_err());
    state.made_for = vec![MadeFor { driver_root: "/opt/driver".into(), store: "/opt/s".into() }];
    assert_eq!(check(&state, &paths(), Proof::None), Ok(()));
}

/// Generates words for forged records: some right, some of an attacker's choice.
fn words() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "/etc",
        "/etc/empty",
        "/proc/sys/kernel/core_pattern",
        "|/evil",
        "/",
        "..",
        "/dev/mem",
        "/dev",
        "/run/nvidia/driver",
        "/run/nvidia/driver/dev",
        "/run/nvidia/driver/run",
        "/run/nvidia/driver/../../../etc",
        "/var/lib/longshore/userspace/a/root",
        FIRMWARE_PATH,
        FIRMWARE,
        "",
        "nvidia",
        "kvm",
        "/dev/nvidia0",
        "/dev/nvidia9",
        "/proc/1/root/dev/nvidia0",
        "/run/nvidia-persistenced",
        "/run/nvidia-fabricmanager",
        MARK,
        "/home/user",
        HEX,
        "/run/nvidia/driver/run/nvidia-persistenced",
        "/etc/passwd",
        "theirs",
    ]);
    known.prop_map(str::to_owned)
}

fn paths_in_words() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(words(), 0..3)
}

/// Generates a step and the state before it, with any words in any place.
fn forgery() -> impl Strategy<Value = (Value, Value)> {
    let step = (0..9_usize, words(), words(), paths_in_words(), any::<bool>()).prop_map(
        |(kind, a, b, many, driver)| match kind {
            0 => json!({"do": "make-dir", "path": a}),
            1 if driver => {
                json!({"do": "write-parameter", "path": FIRMWARE_PATH, "value": FIRMWARE})
            }
            1 => json!({"do": "write-parameter", "path": a, "value": b}),
            2 => json!({"do": "load-module", "name": a,
                "origin": if driver { json!({"driver": {"sha256": HEX}}) }
                          else { json!({"kernel": {"file": format!("{b}.ko")}}) },
                "parameters": "", "version": null, "srcversion": null}),
            3 => json!({"do": "bind", "source": a, "target": b}),
            4 => json!({"do": "mount-tmpfs", "target": a}),
            5 => json!({"do": "share", "source": a, "target": b}),
            6 => json!({"do": "make-nodes", "dirs": many}),
            7 => json!({"do": "remove-leftover", "what": {"kind": "file", "path": a}}),
            _ => {
                let mut step = fabric_manager();
                step["daemon"]["program"] = json!(a);
                step
            }
        },
    );
    let node = (words(), 0..2_u32, any::<bool>()).prop_map(|(path, device, was)| {
        let of = [json!({"major": 195, "minor": 0, "mode": 0o666}), json!({"major": 1, "minor": 1, "mode": 0o666})];
        json!({"path": path, "made": of[0], "was": if was { of[device as usize].clone() } else { Value::Null }})
    });
    let nodes = prop::collection::vec(node, 0..3);
    let before = (0..7_usize, words(), paths_in_words(), nodes, 0..2_usize).prop_map(
        |(kind, word, many, nodes, count)| match kind {
            0 => json!({"was": "missing-dirs", "dirs": many}),
            1 => json!({"was": "value", "value": word}),
            2 => json!({"was": "not-loaded"}),
            3 => json!({"was": "leftover"}),
            4 => json!({"was": "mounts", "count": count}),
            5 => json!({"was": "no-daemon", "mark": word}),
            _ => json!({"was": "nodes", "missing_dirs": many, "nodes": nodes}),
        },
    );
    (step, before)
}

/// Returns a host with an attacker's targets, beside the effects of an agent.
fn host() -> FakeHost {
    let host = FakeHost::with_dirs([
        "/dev",
        "/etc",
        "/etc/empty",
        "/home/user",
        "/run/nvidia/driver/dev",
        "/run/nvidia/driver/run/nvidia-persistenced",
        "/run/nvidia-persistenced",
        "/run/nvidia-fabricmanager",
        "/var/lib/longshore/userspace/a/root",
        "/proc/1/root/dev",
    ]);
    for name in ["kvm", "nvidia"] {
        host.knows(name, FakeModule::default());
    }
    let node = |major, minor| Node {
        major,
        minor,
        mode: 0o600,
        owner: longshore_host::verbs::Owner::default(),
    };
    host.change(|state| {
        for (path, value) in [
            ("/proc/sys/kernel/core_pattern", "core"),
            ("/etc/passwd", "root"),
            (FIRMWARE_PATH, FIRMWARE),
        ] {
            state.parameters.insert(path.into(), value.into());
        }
        for (source, target) in
            [("theirs", "/etc"), ("theirs", "/home/user"), ("tree", "/run/nvidia/driver")]
        {
            state.mounts.push((source.into(), target.into()));
        }
        for (path, made) in
            [("/dev/mem", node(1, 1)), ("/dev/nvidia0", node(195, 0)), ("/etc/null", node(195, 0))]
        {
            state.nodes.insert(path.into(), made);
        }
        state.loaded = [("kvm".into(), String::new()), ("nvidia".into(), String::new())].into();
        state.daemons.insert(MARK.into(), "nvidia-persistenced".into());
        state.daemons.insert("theirs".into(), "sshd".into());
    });
    host
}

/// Returns the part of the host that no agent changes.
fn of_others(host: &FakeHost) -> impl PartialEq + std::fmt::Debug + use<> {
    let state = host.state();
    let ours =
        |path: &Path| path.starts_with("/run") || path.to_string_lossy().contains("/dev/nvidia");
    let mut parameters = state.parameters;
    parameters.remove(Path::new(FIRMWARE_PATH));
    (
        parameters,
        state.mounts.into_iter().filter(|(_, target)| !ours(target)).collect::<Vec<_>>(),
        state.dirs.into_iter().filter(|dir| !ours(dir)).collect::<Vec<_>>(),
        state
            .nodes
            .iter()
            .filter(|(path, _)| !ours(path))
            .map(|(p, n)| (p.clone(), *n))
            .collect::<Vec<_>>(),
        // Agents make only NVIDIA's devices.
        state.nodes.iter().any(|(path, node)| ours(path) && node.major != 195),
        state.daemons.contains_key("theirs"),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// A record is refused, or undoing it leaves alone everything that is not in the table. In the
    /// table is any idle module of the kernel for a record in root's own place, and none for one
    /// that an older agent left where others write.
    #[test]
    fn no_forged_entry_changes_anything_outside_the_table(
        forged in prop::collection::vec(forgery(), 1..4),
        done in any::<bool>(),
        earlier in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let [private, shared] = ["run", "shared"].map(|name| dir.path().join(name));
        let paths = Paths {
            state: private.clone(),
            earlier_state: Some(shared.clone()),
            store: dir.path().join("store"),
            root: dir.path().into(),
            host_root: "/".into(),
            ..paths()
        };
        let state = if done { "done" } else { "intended" };
        let forged: Vec<Value> = forged.iter().zip(1..).map(|((step, before), seq)| {
            json!({"seq": seq, "step": step, "before": before, "state": state})
        }).collect();
        let place = if earlier { shared } else { private };
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("state.json"), text(&forged)).unwrap();
        let host = host();
        let (before, others) = (host.state(), of_others(&host));
        match crate::journal::Journal::open(&paths, Disk::default()) {
            Err(failure) => {
                prop_assert_eq!(failure.code(), ExitCode::Verification);
                prop_assert!(failure.to_string().contains("entry "), "{}", failure);
                prop_assert_eq!(host.state(), before);
            }
            Ok(mut journal) => {
                // A failure to undo everything does not matter here.
                let (in_use_wait, telemetry) = (InUseWait::of(Duration::from_millis(1)), Telemetry::default());
                let engine = Engine { host: &host, images: &FakeImages, in_use_wait, telemetry: &telemetry, refuses_missing_gpus: false };
                drop(engine.undo(&mut journal));
                prop_assert_eq!(of_others(&host), others);
                let state = host.state();
                let firmware = &state.parameters[Path::new(FIRMWARE_PATH)];
                prop_assert!(!earlier || state.loaded.contains_key("kvm"));
                prop_assert!(!earlier || !OTHERS.iter().any(|dir| firmware.starts_with(dir))
                    || firmware == FIRMWARE, "{}", firmware);
            }
        }
    }
}
