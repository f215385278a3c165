//! `longshore fleet doctor` with a stand-in for kubectl, stopped by a signal; and `longshore explain` beside a wrong
//! configuration.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;

use longshore_core::testing::write_program;
use longshore_tests::scene::{finish, longshore, send, start, until, wait};

const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
case "$1 $2" in
'get node') echo '{"metadata": {"name": "gpu-1"}}' ;;
'get pods') echo '{"items": []}' ;;
'get daemonsets') cat sets ;;
'create --filename=-') cat > created ;;
'get pod') exec sleep 600 ;;
esac"#;

const SETS: &str = r#"{"items": [{"metadata": {"name": "longshore"}, "spec": {"template": {"spec": {
    "containers": [{"name": "longshore", "image": "registry.example.com/longshore"}]}}}}]}"#;

/// The signal comes while the pod's end is waited for.
#[test]
fn a_doctor_that_is_stopped_deletes_its_pod() {
    for (hangup, signals) in [
        ("--default-signal=HUP", &[Signal::SIGTERM][..]),
        ("--default-signal=HUP", &[Signal::SIGINT]),
        // The terminal is closed.
        ("--default-signal=HUP", &[Signal::SIGHUP]),
        // Below nohup(1).
        ("--ignore-signal=HUP", &[Signal::SIGHUP, Signal::SIGTERM]),
    ] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let kubectl = dir.path().join("kubectl");
        write_program(&kubectl, KUBECTL);
        fs::write(dir.path().join("sets"), SETS).expect("written");
        let mut command = Command::new("env");
        command.arg(hangup).arg(longshore());
        command.args(["fleet", "doctor", "gpu-1", "--namespace", "gpu", "--kubectl"]).arg(&kubectl);
        let child = start(&mut command);
        let calls = || fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        until("the pod is waited for", || calls().contains("get pod longshore-doctor-"));
        signals.iter().for_each(|signal| send(&child, *signal));
        let ended = wait(child);
        let last = signals.last().map(|signal| *signal as i32);
        assert_eq!(ended.signal, last, "{ended}");
        let calls = calls();
        let last = calls.lines().last().unwrap_or_default();
        assert!(last.starts_with("delete pod longshore-doctor-"), "{calls}");
        assert!(last.ends_with(" --namespace=gpu --ignore-not-found --wait=false"), "{calls}");
    }
}

#[test]
fn codes_are_explained_beside_a_wrong_configuration() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = dir.path().join("config.toml");
    fs::write(&config, "drvier = 1\n").expect("written");
    let run = |words: &[&str]| {
        let mut command = Command::new(longshore());
        finish(command.args(words).env("LONGSHORE_CONFIG", &config))
    };
    let explained = run(&["explain", "2"]);
    explained.assert_done();
    assert!(explained.out.starts_with("usage  exit code 2\n"), "{explained}");
    // Any other command reads it.
    run(&["plan"]).assert_failed(2, &["drvier".to_owned()]);
    run(&["explain", "signature-requird"]).assert_failed(2, &["signature-required".to_owned()]);
}
