use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::journal::MadeFor;
use longshore_core::failure::{ExitCode, Failure};
use longshore_host::facts::places::FIRMWARE_PATH;

mod any_words;
mod forged;

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const LABEL: &str = "system_u:object_r:container_ro_file_t:s0";
const MARK: &str = "00112233445566778899aabbccddeeff";
const FIRMWARE: &str = "/run/nvidia/driver/lib/firmware";
const NODES: [&str; 2] = ["/dev", "/run/nvidia/driver/dev"];

fn paths() -> Paths {
    Paths {
        store: paths::STORE.into(),
        driver_root: paths::DRIVER_ROOT.into(),
        host_root: "/proc/1/root".into(),
        any_entry: false,
        // No driver is loaded there.
        root: "/nonexistent".into(),
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
        Ok(state) => check(&state, &paths(), Proof::Vouched).err(),
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
        "arguments": ["-c", "/run/longshore/daemons/fabricmanager.cfg", "-g", "0xb83fd20300aabbcc"],
        "libraries": "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "socket": "/run/nvidia-fabricmanager/socket",
        "settings": {
            "template": "/run/nvidia/driver/usr/share/nvidia/nvswitch/fabricmanager.cfg",
            "set": [["DAEMONIZE", "0"], ["LOG_FILE_NAME", ""],
                    ["STATE_FILE_NAME", "/run/longshore/daemons/fabricmanager.state"]],
            "file": "/run/longshore/daemons/fabricmanager.cfg",
        },
        "capabilities": ["CAP_SYS_ADMIN"], "required": true, "ready_within": 60,
    }})
}

/// Returns it as agents started it that kept its files beside its socket.
fn earlier_fabric_manager() -> Value {
    let earlier = fabric_manager().to_string();
    let earlier = earlier.replace("/run/longshore/daemons", "/run/nvidia-fabricmanager");
    serde_json::from_str(&earlier).unwrap()
}

fn subnet_manager() -> Value {
    json!({"do": "start-daemon", "daemon": {
        "name": "nvlsm",
        "program": "/run/nvidia/driver/usr/bin/nvlsm",
        "arguments": ["-F", "/usr/share/nvidia/nvlsm/nvlsm.conf", "-g", "0xb83fd20300aabbcc",
                      "--pid_file", "/var/lib/longshore/daemons/nvlsm.pid", "--log_file", "stdout"],
        "libraries": "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "socket": "/run/nvidia-fabricmanager/fm_sm_ipc.socket",
        "settings": null, "capabilities": [], "required": true, "ready_within": 60,
    }})
}

/// Returns the step of this name among [`entries`], and the state before it.
fn entry(name: &str) -> (Value, Value) {
    let (_, step, before) = entries().into_iter().find(|(n, ..)| *n == name).expect("an entry");
    (step, before)
}

/// Returns entries of every kind, as agents write them, each with a name for the tests.
fn entries() -> Vec<(&'static str, Value, Value)> {
    let mounts = json!({"was": "mounts", "count": 0});
    let load = |name: &str, origin: Value| {
        json!({"do": "load-module", "name": name, "origin": origin, "parameters": "a=1 b=\"c d\"",
               "version": "535.261.03", "srcversion": null})
    };
    let leftover = |name, what: Value| {
        (name, json!({"do": "remove-leftover", "what": what}), json!({"was": "leftover"}))
    };
    let node = |path: &str, major: u32| {
        json!({"path": path, "made": {"major": major, "minor": 0, "mode": 0o666},
               "was": {"major": 195, "minor": 1, "mode": 0o600}})
    };
    vec![
        (
            "dir",
            json!({"do": "make-dir", "path": "/run/nvidia/driver"}),
            json!({"was": "missing-dirs", "dirs": ["/run/nvidia", "/run/nvidia/driver"]}),
        ),
        (
            "daemon-dir",
            json!({"do": "make-dir", "path": "/run/nvidia/driver/run/nvidia-persistenced"}),
            json!({"was": "missing-dirs", "dirs": ["/run/nvidia/driver/run/nvidia-persistenced"]}),
        ),
        (
            "parameter",
            json!({"do": "write-parameter", "path": FIRMWARE_PATH, "value": FIRMWARE}),
            json!({"was": "value", "value": "/lib/firmware/updates/"}),
        ),
        (
            "driver-module",
            load("nvidia", json!({"driver": {"sha256": HEX}})),
            json!({"was": "not-loaded"}),
        ),
        (
            "kernel-module",
            load("i2c_core", json!({"kernel": {"file": "kernel/drivers/i2c/i2c-core.ko.xz"}})),
            json!({"was": "not-loaded"}),
        ),
        // As agents mounted it that had no mount-root.
        (
            "bind",
            json!({"do": "bind", "source": "/var/lib/longshore/userspace/535.261.03/root",
                   "target": "/run/nvidia/driver"}),
            mounts.clone(),
        ),
        ("tmpfs", json!({"do": "mount-tmpfs", "target": "/run/nvidia/driver/dev"}), mounts.clone()),
        (
            "run-tmpfs",
            json!({"do": "mount-tmpfs", "target": "/run/nvidia/driver/run"}),
            mounts.clone(),
        ),
        (
            "share",
            json!({"do": "share", "source": "/run/nvidia/driver/run/nvidia-fabricmanager",
                   "target": "/run/nvidia-fabricmanager"}),
            mounts.clone(),
        ),
        ("daemon", fabric_manager(), json!({"was": "no-daemon", "mark": MARK})),
        (
            "made-nodes",
            json!({"do": "make-nodes", "dirs": ["/proc/1/root/dev", NODES[0], NODES[1]]}),
            json!({"was": "nodes", "missing_dirs": ["/dev/nvidia-caps"],
                   "nodes": [node("/dev/nvidia0", 195), node("/dev/nvidia-caps/nvidia-cap1", 236),
                             node("/proc/1/root/dev/nvidia-uvm", 511)]}),
        ),
        leftover(
            "left-mount",
            json!({"kind": "mount", "target": "/run/nvidia/driver", "device": 1, "inode": 2}),
        ),
        leftover("left-file", json!({"kind": "file", "path": "/run/nvidia/nvidia-driver.pid"})),
        leftover("left-value", json!({"kind": "value", "path": FIRMWARE_PATH, "value": FIRMWARE})),
        ("root", json!({"do": "mount-root", "target": "/run/nvidia/driver"}), mounts.clone()),
        (
            "tree-dir",
            json!({"do": "bind", "source": "/var/lib/longshore/userspace/535.261.03/root/usr",
                   "target": "/run/nvidia/driver/usr"}),
            mounts.clone(),
        ),
        ("sysfs", json!({"do": "mount-sysfs", "target": "/run/nvidia/driver/sys"}), mounts),
        (
            "reserved",
            json!({"do": "reserve-device", "address": "0000:01:00.0", "driver": "nouveau"}),
            json!({"was": "bound-elsewhere", "only": "nouveau"}),
        ),
        (
            "unloaded",
            json!({"do": "unload-conflicting", "name": "nouveau", "parameters": "modeset=1",
                   "file": "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz"}),
            json!({"was": "loaded"}),
        ),
        (
            "links",
            json!({"do": "link-nodes", "dev": "/proc/1/root/dev"}),
            json!({"was": "links", "missing_dirs": ["/proc/1/root/dev/char"], "links": [
                {"path": "/proc/1/root/dev/char/195:0", "target": "../nvidia0", "was": null},
                {"path": "/proc/1/root/dev/char/511:0", "target": "../nvidia-uvm",
                 "was": "../nvidia-caps/nvidia-cap1"},
            ]}),
        ),
        (
            "spec",
            json!({"do": "cdi-spec", "host_root": "/proc/1/root",
                   "driver_root": "/run/nvidia/driver", "capabilities": ["compute", "utility"]}),
            json!({"was": "not-published", "sha256": HEX, "makes_dir": true}),
        ),
        (
            "ready",
            json!({"do": "write-status", "path": "/run/nvidia/validations/.driver-daemons-status",
                   "text": "Ready",
                   "confirmed_by": "/run/nvidia/validations/.driver-ctr-ready"}),
            json!({"was": "status", "same": false}),
        ),
        (
            "digest",
            json!({"do": "write-status", "path": "/run/nvidia/nvidia-driver.state",
                   "text": "2166136261"}),
            json!({"was": "status", "same": true}),
        ),
        (
            "confirmation",
            json!({"do": "write-status", "path": "/run/nvidia/validations/.driver-ctr-ready",
                   "text": "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: true"}),
            json!({"was": "status", "same": false}),
        ),
        (
            "labels",
            json!({"do": "label-files", "label": LABEL, "paths": [
                "/var/lib/longshore/userspace/535.261.03/root",
                format!("/var/lib/longshore/blobs/sha256/{HEX}"),
            ]}),
            json!({"was": "other-labels"}),
        ),
        (
            "labelled-root",
            json!({"do": "mount-root", "target": "/run/nvidia/driver", "label": LABEL}),
            json!({"was": "mounts", "count": 0}),
        ),
        (
            "labelled-tmpfs",
            json!({"do": "mount-tmpfs", "target": "/run/nvidia/driver/dev", "label": LABEL}),
            json!({"was": "mounts", "count": 0}),
        ),
        (
            "features",
            json!({"do": "write-features", "host_root": "/proc/1/root", "version": "535.261.03",
                   "flavour": "open"}),
            json!({"was": "features", "makes_dir": true}),
        ),
        (
            "private-dir",
            json!({"do": "make-dir", "path": "/run/longshore/daemons"}),
            json!({"was": "missing-dirs", "dirs": ["/run/longshore/daemons"]}),
        ),
        ("earlier-daemon", earlier_fabric_manager(), json!({"was": "no-daemon", "mark": MARK})),
        ("subnet-manager", subnet_manager(), json!({"was": "no-daemon", "mark": MARK})),
    ]
}

/// The kernel's command line may name any directory; installing on such a host is no fault of the
/// program.
#[rstest]
#[case("/run/site/firmware", true)]
#[case("/lib/firmware/site", true)]
#[case("/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/fw", true)]
#[case("/home/firmware/", true)]
#[case("firmware", true)]
#[case("/lib/firmware\n/evil", false)]
fn a_hosts_own_firmware_path_is_kept_where_an_agent_is_known_to_have_read_it(
    #[case] value: &str,
    #[case] taken: bool,
) {
    let step = entry("parameter").0;
    let record = record(&step, &json!({"was": "value", "value": value}));
    assert_eq!(check(&record, &paths(), Proof::Whole).is_ok(), taken);
    assert!(check(&record, &paths(), Proof::Vouched).is_err());
}

/// A driver's own devices may have had other nodes before it: those of another driver, or a site's.
#[rstest]
#[case(195, 0o666, 0)]
#[case(511, 0o666, 0)]
#[case(231, 0o600, 0)]
#[case(195, 0o777, 0)]
#[case(195, 0o660, 27)]
fn a_hosts_own_node_is_kept_where_an_agent_is_known_to_have_found_it(
    #[case] major: u32,
    #[case] mode: u32,
    #[case] gid: u32,
) {
    let (step, mut before) = entry("made-nodes");
    before["nodes"][0]["was"] =
        json!({"major": major, "minor": 0, "mode": mode, "owner": {"uid": 0, "gid": gid}});
    let record = record(&step, &before);
    assert_eq!(check(&record, &paths(), Proof::Whole), Ok(()));
    let is_drivers = (major, mode, gid) == (195, 0o666, 0);
    assert_eq!(check(&record, &paths(), Proof::Vouched).is_ok(), is_drivers);
}

/// The limits are those of the driver that is loaded.
#[test]
fn an_unproved_node_may_be_of_the_loaded_drivers_other_majors_and_no_wider_than_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc/driver/nvidia");
    std::fs::create_dir_all(&proc).unwrap();
    let devices = "Character devices:\n195 nvidia\n243 hidraw\n511 nvidia-uvm\n\nBlock devices:\n259 nvidia\n";
    std::fs::write(dir.path().join("proc/devices"), devices).unwrap();
    std::fs::write(proc.join("params"), "ModifyDeviceFiles: 1\nDeviceFileMode: 432\n").unwrap();
    let paths = Paths { root: dir.path().into(), ..paths() };
    for (major, mode, taken) in [
        (511, 0o660, true),
        (195, 0o600, true),
        (511, 0o666, false),
        (243, 0o600, false),
        (259, 0o600, false),
    ] {
        let (step, mut before) = entry("made-nodes");
        before["nodes"][0]["was"] = json!({"major": major, "minor": 0, "mode": mode});
        let record = record(&step, &before);
        assert_eq!(check(&record, &paths, Proof::Vouched).is_ok(), taken, "{major} {mode:o}");
    }
}

#[test]
fn every_kind_of_entry_that_an_agent_writes_is_taken() {
    for (_, step, before) in entries() {
        assert_eq!(refused(&step, &before), None, "{step}");
        assert_eq!(check(&record(&step, &before), &paths(), Proof::Whole), Ok(()), "{step}");
    }
    let kinds: std::collections::BTreeSet<_> =
        entries().iter().map(|(_, step, _)| step["do"].as_str().unwrap().to_owned()).collect();
    let all = Step::KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    assert_eq!(kinds, all, "a kind has no entry here");
}

#[test]
fn a_step_has_before_it_what_such_a_step_has() {
    let all = entries();
    for (name, step, right) in &all {
        for (_, _, before) in &all {
            if before["was"] != right["was"] {
                let why = refused(step, before).expect("refused");
                assert!(
                    why.ends_with("the recorded earlier state belongs to another kind of step"),
                    "{name}: {why}"
                );
            }
        }
    }
}

#[test]
fn what_is_to_come_back_is_held_against_the_table_as_well() {
    let (step, before) = entry("parameter");
    let forged = json!({"do": "write-parameter", "path": "/proc/sys/kernel/core_pattern", "value": "|/evil"});
    let mut state = record(&step, &before);
    state.previous = vec![serde_json::from_value(forged).unwrap()];
    let why = check(&state, &paths(), Proof::Vouched).unwrap_err();
    assert!(why.contains("core_pattern"), "{why}");
}

#[rstest]
#[case(&[1, 1])]
#[case(&[2, 1])]
#[case(&[0])]
#[case(&[u64::MAX])]
fn numbers_that_no_agent_gives_are_refused(#[case] numbers: &[u64]) {
    let (step, before) = entry("tmpfs");
    let mut state = record(&step, &before);
    let entry = state.entries[0].clone();
    state.entries = numbers.iter().map(|seq| JournalEntry { seq: *seq, ..entry.clone() }).collect();
    assert!(check(&state, &paths(), Proof::Vouched).is_err());
}

#[test]
fn entries_of_other_settings_are_taken_where_the_record_names_these() {
    let step = json!({"do": "mount-tmpfs", "target": "/opt/driver/dev"});
    let before = json!({"was": "mounts", "count": 0});
    let mut state = record(&step, &before);
    assert!(check(&state, &paths(), Proof::Vouched).is_err());
    state.made_for = vec![MadeFor { driver_root: "/opt/driver".into(), store: "/opt/s".into() }];
    assert_eq!(check(&state, &paths(), Proof::Vouched), Ok(()));
}
