//! The hook for /etc/kernel/postinst.d, with a stand-in for the command that it runs.

use longshore_core::testing::write_program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kernel/postinst.d/longshore");
const RELEASE: &str = "6.1.0-51-amd64";

/// Runs the hook; returns its messages and the arguments that the stand-in got. `script` is the stand-in's
/// end, `settings` the file's, in which `PROGRAM` is the stand-in's path.
fn run(script: &str, settings: &str, release: &str) -> (String, String) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (program, got) = (dir.path().join("podman"), dir.path().join("got"));
    let script = format!("#!/bin/sh\necho \"$@\" > {}\n{script}\n", got.display());
    write_program(&program, &script);
    let defaults = dir.path().join("defaults");
    let settings = settings.replace("PROGRAM", &program.display().to_string());
    fs::write(&defaults, settings).expect("written");
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let output = Command::new(HOOK)
        .args([release, "/boot/vmlinuz"])
        .env("LONGSHORE_DEFAULTS", &defaults)
        .env("PATH", path)
        .output()
        .expect("the hook runs");
    assert!(output.status.success(), "a kernel's package never fails to install: {output:?}");
    assert!(output.stdout.is_empty(), "standard output may be debconf's");
    let said = String::from_utf8(output.stderr).expect("text");
    (said, fs::read_to_string(got).unwrap_or_default().trim_end().to_owned())
}

#[test]
fn the_command_of_the_settings_gets_the_release() {
    let engine = "exec longshore longshore fetch --kernel 6.1.0-51-amd64";
    let command = "--store /s fetch --kernel 6.1.0-51-amd64";
    for (settings, wanted) in [
        ("", engine),
        ("ENGINE=PROGRAM\nOPTIONS=-e A=b -e C=d\n", engine),
        ("ENGINE=docker\nKERNEL_COMMAND=PROGRAM --store /s\n", command),
        ("KERNEL_COMMAND=\"PROGRAM --store /s\"  \n", command),
        (
            "KERNEL_COMMAND=/bin/false\n#KERNEL_COMMAND=a\nKERNEL_COMMAND=PROGRAM --store /s\n",
            command,
        ),
        ("KERNEL_COMMAND=PROGRAM *\n", "* fetch --kernel 6.1.0-51-amd64"),
    ] {
        let (said, got) = run("exit 0", settings, RELEASE);
        assert_eq!(got, wanted, "{settings}: {said}");
        assert!(said.contains("modules for kernel 6.1.0-51-amd64 are in the store"), "{said}");
    }
}

#[test]
fn there_is_always_a_time_limit() {
    for (value, wanted) in
        [("90", "90"), ("090", "090"), ("", "1800"), ("0", "1800"), ("00", "1800"), ("1h", "1800")]
    {
        let (said, _) = run("exit 0", &format!("KERNEL_TIMEOUT={value}\n"), RELEASE);
        assert!(said.contains(&format!("for {wanted} s at most")), "{value}: {said}");
    }
}

#[test]
fn the_command_has_the_lowest_priority() {
    let (said, _) = run("cat /proc/self/stat >&2", "", RELEASE);
    let stat = said.lines().find_map(|line| line.rsplit_once(") ")).map(|(_, rest)| rest);
    let fields: Vec<&str> = stat.expect("the command's state").split(' ').collect();
    // Nice, and SCHED_IDLE (proc_pid_stat(5), fields 19 and 41, counted from the third).
    assert_eq!((fields[16], fields[38]), ("19", "5"), "{said}");
}

#[test]
fn a_failure_is_told() {
    for (script, settings, wanted) in [
        ("exit 11", "", "ended with 11; a running agent tries it again"),
        ("sleep 60", "KERNEL_TIMEOUT=1\n", "it took longer than 1 s"),
        ("", "KERNEL_COMMAND=/no/such/program\n", "there is no program /no/such/program"),
    ] {
        let (said, _) = run(script, settings, RELEASE);
        assert!(said.contains("kernel 6.1.0-51-amd64 is not prepared"), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn what_is_no_release_is_not_passed_on() {
    for release in ["", "--help", "6.1 x", "6.1;reboot", "6.1$(reboot)"] {
        let (said, got) = run("exit 0", "", release);
        assert!(said.contains("is not a kernel release") && got.is_empty(), "{said}{got}");
    }
}

#[test]
fn the_hook_can_be_executed() {
    let mode = fs::metadata(Path::new(HOOK)).expect("the hook").permissions().mode();
    assert_eq!(mode & 0o111, 0o111);
}
