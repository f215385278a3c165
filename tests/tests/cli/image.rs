//! Tests of files in the agent's image.

use longshore_core::testing::write_program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../images")
}

#[test]
fn nothing_of_the_driver_root_is_named_to_the_agents_loader() {
    let text = fs::read_to_string(images().join("Containerfile")).expect("the file");
    let settings: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    for named in ["LD_LIBRARY_PATH", "LD_PRELOAD", "/run/nvidia"] {
        assert!(!settings.iter().any(|line| line.contains(named)), "{named}");
    }
}

/// Tests with the shells that may run it: the image has busybox's.
#[test]
fn nvidia_smi_is_that_of_the_driver_root_with_its_libraries_and_arguments() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path().join("driver root");
    let program = root.join("usr/bin/nvidia-smi");
    fs::create_dir_all(root.join("usr/bin")).expect("directory");
    let text = "#!/bin/sh\necho \"$LD_LIBRARY_PATH|$1|$2|$#\"\nexit 9\n";
    write_program(&program, text);
    // As longshore mounts it: read-only.
    let mounted = "mount --bind \"$ROOT\" \"$ROOT\" && mount -o remount,bind,ro \"$ROOT\" && \
        LONGSHORE_DRIVER_ROOT=$ROOT exec \"$0\" \"$@\"";
    let run = |script: &str| {
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(images().join("nvidia-smi"))
            .args(["-q", "two words"])
            .env_remove("LD_LIBRARY_PATH")
            .env("ROOT", &root)
            .output()
            .expect("it runs")
    };
    let ended = run(mounted);
    let lib = root.join("usr/lib").display().to_string();
    let libraries = format!("{lib}/x86_64-linux-gnu:{lib}/aarch64-linux-gnu");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said.trim_end(), format!("{libraries}|-q|two words|2"));
    assert_eq!(ended.status.code(), Some(9));
    // A directory that others may write to, and a mount that is not read-only.
    for planted in [
        "LONGSHORE_DRIVER_ROOT=$ROOT exec \"$0\" \"$@\"",
        "mount --bind \"$ROOT\" \"$ROOT\" && LONGSHORE_DRIVER_ROOT=$ROOT exec \"$0\" \"$@\"",
    ] {
        let refused = run(planted);
        assert_eq!(refused.status.code(), Some(1), "{planted}");
        assert!(refused.stdout.is_empty(), "{planted}");
    }
}

#[test]
fn nvidia_smi_without_a_driver_fails() {
    let ended = Command::new(images().join("nvidia-smi"))
        .env("LONGSHORE_DRIVER_ROOT", "/nonexistent")
        .output()
        .expect("it runs");
    assert_eq!(ended.status.code(), Some(1));
}
