//! Entries with one forged value.

use super::*;

/// Forges the entry of this name: one value is replaced by another.
fn forged(name: &str, pointer: &str, value: Value) -> Option<String> {
    let (step, before) = entry(name);
    let mut both = json!({"step": step, "before": before});
    *both.pointer_mut(pointer).expect("there") = value;
    refused(&both["step"], &both["before"])
}

#[rstest]
#[case("dir", "/step/path", json!("/etc/cron.d"))]
#[case("dir", "/step/path", json!("/etc/daemons"))]
#[case("dir", "/step/path", json!("/run/longshore"))]
#[case("dir", "/step/path", json!("/run/nvidia/driver/../../../etc/cron.d"))]
#[case("dir", "/step/path", json!("run/nvidia/driver"))]
#[case("dir", "/step/path", json!("/run/nvidia//driver"))]
#[case("dir", "/before/dirs", json!(["/etc/cron.d", "/run/nvidia/driver"]))]
#[case("dir", "/before/dirs", json!(["/run/nvidia"]))]
#[case("dir", "/before/dirs", json!(["/", "/run", "/run/nvidia", "/run/nvidia/driver"]))]
#[case("dir", "/before/dirs", json!([]))]
#[case("parameter", "/step/path", json!("/proc/sys/kernel/core_pattern"))]
#[case("parameter", "/step/path", json!("/proc/1/root/sys/module/firmware_class/parameters/path"))]
#[case("parameter", "/step/value", json!("/run/nvidia/evil"))]
#[case("parameter", "/step/value", json!("/run/nvidia/driver/lib/firmware/../../../evil"))]
#[case("parameter", "/before/value", json!("|/evil"))]
#[case("parameter", "/before/value", json!("/run/nvidia/evil"))]
#[case("parameter", "/before/value", json!("/usr/../tmp/evil"))]
#[case("parameter", "/before/value", json!("/proc/1234/root/evil"))]
#[case("parameter", "/before/value", json!("/lib/firmware\n/evil"))]
#[case("parameter", "/before/value", json!("/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/fw"))]
#[case("parameter", "/before/value", json!("/lib/firmware/../../tmp/evil"))]
#[case("parameter", "/before/value", json!("/lib/firmware/evil"))]
#[case("parameter", "/before/value", json!("/lib/firmware//"))]
#[case("parameter", "/before/value", json!("/opt/evil"))]
#[case("driver-module", "/step/name", json!("kvm"))]
#[case("driver-module", "/step/name", json!("nvidia/../kvm"))]
#[case("driver-module", "/step/origin/driver/sha256", json!("../../../../etc/passwd"))]
#[case("driver-module", "/step/parameters", json!("a=1\nb=2"))]
#[case("kernel-module", "/step/name", json!("ext4"))]
#[case("kernel-module", "/step/name", json!("nvidia"))]
#[case("kernel-module", "/step/origin/kernel/file", json!("/run/nvidia/i2c_core.ko"))]
#[case("kernel-module", "/step/origin/kernel/file", json!("../../../run/nvidia/i2c_core.ko"))]
#[case("kernel-module", "/step/origin/kernel/file", json!("./i2c_core.ko"))]
#[case("bind", "/step/target", json!("/etc"))]
#[case("bind", "/step/target", json!("/run/nvidia/driver/"))]
#[case("bind", "/step/source", json!("/run/nvidia/userspace/evil/root"))]
#[case("bind", "/step/source", json!("/var/lib/longshore/userspace/../../../../evil/root"))]
#[case("bind", "/step/source", json!("/var/lib/longshore/userspace/a/b/root"))]
#[case("bind", "/step/source", json!("/var/lib/longshore"))]
#[case("root", "/step/target", json!("/etc"))]
#[case("root", "/step/target", json!("/run/nvidia/driver/usr"))]
#[case("tree-dir", "/step/target", json!("/run/nvidia/driver/lib"))]
#[case("tree-dir", "/step/target", json!("/run/nvidia/driver/sys"))]
#[case("tree-dir", "/step/target", json!("/run/nvidia/driver/usr/"))]
#[case("tree-dir", "/step/source", json!("/var/lib/longshore/userspace/a/root/usr/bin"))]
#[case("tree-dir", "/step/source", json!("/var/lib/longshore/userspace/a/root"))]
#[case("tree-dir", "/step/source", json!("/run/nvidia/userspace/evil/root/usr"))]
#[case("sysfs", "/step/target", json!("/sys"))]
#[case("sysfs", "/step/target", json!("/run/nvidia/driver/proc"))]
#[case("reserved", "/step/address", json!("../../../../etc/cron.d"))]
#[case("reserved", "/step/address", json!("0000:01:00.0/../0000:02:00.0"))]
#[case("reserved", "/step/driver", json!("vfio-pci"))]
#[case("reserved", "/step/driver", json!("../../nouveau"))]
#[case("reserved", "/before/only", json!("a\nb"))]
#[case("reserved", "/before/only", json!("../x"))]
#[case("unloaded", "/step/name", json!("kvm"))]
#[case("unloaded", "/step/name", json!("nvidia"))]
#[case("unloaded", "/step/file", json!("../../../run/nvidia/nouveau.ko"))]
#[case("unloaded", "/step/file", json!("kernel/evil.ko"))]
#[case("unloaded", "/step/parameters", json!("a=1\nb=2"))]
#[case("ready", "/step/path", json!("/etc/cron.d/evil"))]
#[case("ready", "/step/path", json!("/run/nvidia/validations/driver-ready"))]
#[case("ready", "/step/path", json!("/run/nvidia/validations/../../../etc/.driver-daemons-status"))]
#[case("ready", "/step/text", json!("evil"))]
#[case("ready", "/step/text", json!("Ready\nevil"))]
#[case("ready", "/step/confirmed_by", json!("/etc/passwd"))]
#[case("confirmation", "/step/path", json!("/run/nvidia/nvidia-driver.state"))]
#[case("confirmation", "/step/path", json!("/etc/.driver-ctr-ready"))]
#[case("confirmation", "/step/text", json!("GDS_ENABLED: true"))]
#[case("confirmation", "/step/text", json!("Ready"))]
#[case("digest", "/step/path", json!("/run/nvidia/nvidia-driver.pid"))]
#[case("digest", "/step/path", json!("/run/nvidia//nvidia-driver.state"))]
#[case("digest", "/step/text", json!("1\n2"))]
#[case("digest", "/step/text", json!(""))]
#[case("labels", "/step/paths/0", json!("/etc"))]
#[case("labels", "/step/paths/0", json!("/var/lib/longshore"))]
#[case("labels", "/step/paths/0", json!("/var/lib/longshore/userspace/../../../../root"))]
#[case("labels", "/step/paths/0", json!("/var/lib/longshore/userspace/a/root/usr"))]
#[case("labels", "/step/paths/1", json!("/var/lib/longshore/blobs/sha256/x"))]
#[case("labels", "/step/label", json!("a:b:c,d"))]
#[case("labelled-root", "/step/label", json!("a:b:c,size=9g"))]
#[case("labelled-tmpfs", "/step/label", json!("a:b:c,size=9g"))]
#[case("tmpfs", "/step/target", json!("/etc"))]
#[case("tmpfs", "/step/target", json!("/run/nvidia/driver/usr"))]
#[case("share", "/step/target", json!("/run/systemd"))]
#[case("share", "/step/target", json!("/run/nvidia-fabricmanager/"))]
#[case("share", "/step/source", json!("/run/nvidia/evil"))]
#[case("share", "/step/source", json!("/run/nvidia/driver/run/nvidia-persistenced"))]
#[case("daemon", "/step/daemon/name", json!("sshd"))]
#[case("daemon", "/step/daemon/program", json!("/run/nvidia/evil"))]
#[case("daemon", "/step/daemon/program", json!("/run/nvidia/driver/../evil"))]
#[case("daemon", "/step/daemon/program", json!("/run/nvidia/driver/usr/bin/evil"))]
#[case("daemon", "/step/daemon/arguments/1", json!("/etc/shadow"))]
#[case("daemon", "/step/daemon/arguments/1", json!("/run/nvidia-fabricmanager/../../etc/shadow"))]
#[case("daemon", "/step/daemon/arguments/0", json!("-c/etc/shadow"))]
#[case("daemon", "/step/daemon/libraries", json!("/run/nvidia/evil"))]
#[case("daemon", "/step/daemon/socket", json!("/run/docker.sock"))]
#[case("daemon", "/step/daemon/capabilities", json!(["CAP_SYS_ADMIN", "CAP_SYS_MODULE"]))]
#[case("daemon", "/step/daemon/settings/template", json!("/etc/shadow"))]
#[case("daemon", "/step/daemon/settings/file", json!("/etc/cron.d/evil"))]
#[case("daemon", "/step/daemon/settings/file", json!("/run/nvidia-fabricmanager/x/../y"))]
#[case("daemon", "/step/daemon/settings/file", json!("/run/longshore/state.json"))]
#[case("daemon", "/step/daemon/settings/file", json!("/run/longshore/daemons/../state.json"))]
#[case("daemon", "/step/daemon/settings/file", json!("/var/lib/longshore/record.key"))]
#[case("daemon", "/step/daemon/settings/file", json!("/etc/daemons/evil"))]
#[case("daemon", "/step/daemon/settings/set/2", json!(["STATE_FILE_NAME", "/run/longshore/state.json"]))]
#[case("daemon", "/step/daemon/settings/set/2", json!(["STATE_FILE_NAME", "/etc/daemons/evil"]))]
#[case("daemon", "/step/daemon/settings/set/1", json!(["LOG_FILE_NAME", "/etc/passwd"]))]
#[case("daemon", "/step/daemon/settings/set/1", json!(["A", "0\nLOG_FILE_NAME=/etc/passwd"]))]
#[case("daemon", "/step/daemon/settings/set/1/0", json!("A\nB"))]
#[case("daemon", "/before/mark", json!(""))]
#[case("daemon", "/before/mark", json!("1"))]
#[case("made-nodes", "/step/dirs/0", json!("/etc"))]
#[case("made-nodes", "/step/dirs/0", json!("/proc/77/root/dev"))]
#[case("made-nodes", "/before/missing_dirs", json!(["/dev/shm"]))]
#[case("made-nodes", "/before/missing_dirs", json!(["/dev"]))]
#[case("made-nodes", "/before/missing_dirs", json!(["/etc/cron.d"]))]
#[case("made-nodes", "/before/nodes/0/path", json!("/dev/mem"))]
#[case("made-nodes", "/before/nodes/0/path", json!("/etc/nvidia0"))]
#[case("made-nodes", "/before/nodes/0/path", json!("/dev/nvidia-caps/../mem"))]
#[case("made-nodes", "/before/nodes/0/path", json!("/dev/nvidia/a/b"))]
#[case("made-nodes", "/before/nodes/0/made/major", json!(1))]
#[case("made-nodes", "/before/nodes/0/was", json!({"major": 1, "minor": 1, "mode": 0o666}))]
#[case("made-nodes", "/before/nodes/0/was", json!({"major": 8, "minor": 0, "mode": 0o666}))]
#[case("made-nodes", "/before/nodes/0/made/mode", json!(0o4666))]
#[case("made-nodes", "/before/nodes/0/was/major", json!(243))]
#[case("made-nodes", "/before/nodes/0/was/mode", json!(0o777))]
#[case("made-nodes", "/before/nodes/0/was", json!({"major": 195, "minor": 0, "mode": 0o666,
    "owner": {"uid": 65534, "gid": 0}}))]
#[case("made-nodes", "/before/nodes/0/was", json!({"major": 195, "minor": 0, "mode": 0o660,
    "owner": {"uid": 0, "gid": 65534}}))]
#[case("links", "/step/dev", json!("/etc"))]
#[case("links", "/before/missing_dirs", json!(["/etc/char"]))]
#[case("links", "/before/links/0/path", json!("/etc/passwd"))]
#[case("links", "/before/links/0/path", json!("/proc/1/root/dev/char/../mem"))]
#[case("links", "/before/links/0/path", json!("/proc/1/root/dev/char/195:"))]
#[case("links", "/before/links/0/target", json!("../mem"))]
#[case("links", "/before/links/0/target", json!("/dev/nvidia0"))]
#[case("links", "/before/links/0/was", json!("/etc/shadow"))]
#[case("links", "/before/links/0/was", json!("/dev/../etc/shadow"))]
#[case("links", "/before/links/0/was", json!("../../etc/shadow"))]
#[case("spec", "/step/host_root", json!("/proc/77/root"))]
#[case("spec", "/step/host_root", json!("/proc/1/root/../.."))]
#[case("spec", "/step/driver_root", json!("/etc"))]
#[case("features", "/step/host_root", json!("/proc/77/root"))]
#[case("features", "/step/host_root", json!("/proc/1/root/../.."))]
#[case("features", "/step/version", json!("535\nx=1"))]
#[case("features", "/step/version", json!(""))]
#[case("features", "/step/flavour", json!("evil"))]
#[case("spec", "/before/sha256", json!("0"))]
#[case("left-mount", "/step/what/target", json!("/"))]
#[case("left-file", "/step/what/path", json!("/etc/passwd"))]
#[case("left-file", "/step/what/path", json!("/run/nvidia/../../etc/nvidia-driver.pid"))]
#[case("left-value", "/step/what/path", json!("/proc/sys/kernel/core_pattern"))]
fn a_forged_entry_is_named_and_refused(
    #[case] name: &str,
    #[case] pointer: &str,
    #[case] value: Value,
) {
    let why = forged(name, pointer, value).expect("refused");
    assert!(why.starts_with("entry 1 ("), "{why}");
}

/// Holds a kind that has no `check_before` to a state without texts.
#[test]
fn a_forged_text_before_any_step_is_refused() {
    for (name, step, before) in entries() {
        for pointer in texts(&before, "").into_iter().filter(|pointer| pointer != "/was") {
            let mut forged = before.clone();
            *forged.pointer_mut(&pointer).expect("there") = json!("/etc/evil");
            assert!(refused(&step, &forged).is_some(), "{name}: {pointer}");
        }
    }
}

/// Returns the pointers of all texts in a value that is itself at `at`.
fn texts(value: &Value, at: &str) -> Vec<String> {
    match value {
        Value::String(_) => vec![at.to_owned()],
        Value::Array(values) => {
            let values = values.iter().enumerate();
            values.flat_map(|(n, value)| texts(value, &format!("{at}/{n}"))).collect()
        }
        Value::Object(fields) => {
            fields.iter().flat_map(|(key, value)| texts(value, &format!("{at}/{key}"))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}
