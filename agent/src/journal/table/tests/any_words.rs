//! Forged records with any words in any place, undone over a host of an attacker.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::engine::fake_images::FakeImages;
use crate::engine::{Engine, InUseWait};
use crate::steps::OTHERS;
use crate::telemetry::Telemetry;
use longshore_core::disk::Disk;
use longshore_host::fake::{FakeHost, FakeModule};
use longshore_host::verbs::Node;

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
