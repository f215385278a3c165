//! Forged records with any words in any place, undone over a host of an attacker.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::engine::fake_images::FakeImages;
use crate::engine::{Engine, InUseWait};
use crate::telemetry::Telemetry;
use longshore_core::disk::Disk;
use longshore_host::fake::{FakeHost, FakeModule};
use longshore_host::values::Node;

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
        "/var/lib/kubelet/pods/6b1e/volumes/kubernetes.io~empty-dir/fw",
        "/opt/evil",
        "/srv/evil",
        "/mnt/evil",
        "/tmp/evil",
        "/lib/firmware",
        "/lib/firmware/evil",
        "/usr/lib/firmware/updates/",
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
            6 if driver => json!({"do": "make-nodes", "dirs": ["/dev"]}),
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
    let of_devices = prop::sample::select(vec![195, 1, 8, 231, 243, 254, 511]);
    let modes = prop::sample::select(vec![0o600, 0o666, 0o777]);
    let was = (of_devices, modes, prop::sample::select(vec![0, 65534]));
    let node = (words(), prop::option::of(was)).prop_map(|(path, was)| {
        let was = was.map(|(major, mode, uid)| {
            json!({"major": major, "minor": 1, "mode": mode, "owner": {"uid": uid, "gid": 0}})
        });
        json!({"path": path, "made": {"major": 195, "minor": 0, "mode": 0o666}, "was": was})
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
        owner: longshore_host::values::Owner::default(),
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
        state.daemons.contains_key("theirs"),
    )
}

/// Major numbers of nodes that an agent may have found on a host: NVIDIA's, InfiniBand's, and those that
/// the kernel gives out (Documentation/admin-guide/devices.txt).
fn is_given_out(major: u32) -> bool {
    matches!(major, 195 | 231 | 234..=254 | 384..=511)
}

/// Values of the firmware path that only root of the host fills: none, an agent's own, and the
/// directories that the kernel searches by itself. They are written out here: a list of the code's own
/// would permit whatever that permits.
const SAFE_FIRMWARE: [&str; 6] = [
    "",
    "/run/nvidia/driver/lib/firmware",
    "/lib/firmware",
    "/lib/firmware/updates",
    "/usr/lib/firmware",
    "/usr/lib/firmware/updates",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// A record is refused, or undoing it leaves alone everything that is not in the table. In the
    /// table is any idle module of the kernel, firmware path and device of the host for a record in
    /// root's own place. One where others write is passed over, and has none of these if a person
    /// vouches for it.
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
                if earlier {
                    prop_assert_eq!(journal.live().count(), 0);
                    match journal.take_over_unsealed(&paths) {
                        Ok(taken) => prop_assert!(taken),
                        Err(failure) => {
                            prop_assert_eq!(failure.code(), ExitCode::Verification);
                            prop_assert!(failure.to_string().contains("entry "), "{}", failure);
                        }
                    }
                }
                // A failure to undo everything does not matter here.
                let (in_use_wait, telemetry) = (InUseWait::with_deadline(Duration::from_millis(1)), Telemetry::default());
                let engine = Engine { host: &host, images: &FakeImages, in_use_wait, telemetry: &telemetry, refuses_missing_gpus: false };
                drop(engine.undo(&mut journal));
                prop_assert_eq!(of_others(&host), others);
                let state = host.state();
                let is_made = |path: &Path| path.to_string_lossy().contains("/dev/nvidia");
                let made: Vec<_> = state.nodes.iter().filter(|(path, _)| is_made(path)).collect();
                prop_assert!(made.iter().all(|(_, node)| is_given_out(node.major)), "{:?}", made);
                if earlier {
                    prop_assert!(state.loaded.contains_key("kvm"));
                    let firmware = &state.parameters[Path::new(FIRMWARE_PATH)];
                    let firmware = firmware.strip_suffix('/').unwrap_or(firmware);
                    prop_assert!(SAFE_FIRMWARE.contains(&firmware), "{}", firmware);
                    let is_nvidias = |node: &Node| {
                        node.major == 195 && node.mode & !0o666 == 0 && node.owner.uid == 0
                    };
                    prop_assert!(made.iter().all(|(_, node)| is_nvidias(node)), "{:?}", made);
                }
            }
        }
    }
}
