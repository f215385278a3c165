//! `scripts/show-combinations` with stand-ins for apt, dkms and longshore: one row is about one revision of a driver.

use longshore_core::testing::write_program;
use std::fs;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/show-combinations");
/// Revision of the suite that is named.
const REVISION: &str = "550.163.01-2";
const NEWER: &str = "550.163.01-4~bpo13+1";

/// Stand-ins, each for a program of its name. `DIR` is their directory.
const PROGRAMS: [(&str, &str); 6] = [
    ("id", "echo 0"),
    ("mmdebstrap", "exit 1"),
    (
        "apt-get",
        "echo http://deb.example.com/debian/; echo http://deb.example.com/debian-security/",
    ),
    (
        "chroot",
        r#"case "$*" in
  *madison*) cat DIR/madison ;;
  *"apt-cache show nvidia-kernel-source=550.163.01-2") echo 'SHA256: aa' ;;
  *download*) touch "$1/tmp/nvidia-kernel-dkms_1.deb" ;;
esac"#,
    ),
    (
        "dpkg-deb",
        r#"case $1 in --field) echo 550.163.01-2 ;; *) tar -c -C DIR/package ./usr/src ;; esac"#,
    ),
    // dkms build.
    ("unshare", "exit 0"),
];

/// Runs the script for a driver of trixie on a kernel of trixie-backports; returns true for success, and its output.
/// `in_suites` are the revisions there, `longshore` the stand-in for `longshore build`.
fn run(in_suites: &[&str], longshore: &str) -> (bool, String) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let root = dir.path().join("combinations/root-trixie-backports");
    let package = dir.path().join("package/usr/src/nvidia-550.163.01");
    for made in [&root.join("usr/lib/modules/7.3/build"), &root.join("tmp"), &package] {
        fs::create_dir_all(made).expect("made");
    }
    fs::create_dir_all(root.join("etc/apt/sources.list.d")).expect("made");
    let conf = "PACKAGE_NAME=\"nvidia\"\nPACKAGE_VERSION=\"550.163.01\"\n";
    fs::write(package.join("dkms.conf"), conf).expect("written");
    let line = |version| {
        format!(
            " nvidia-kernel-source | {version} | http://deb.example.com/debian trixie/non-free amd64 Packages\n"
        )
    };
    fs::write(dir.path().join("madison"), in_suites.iter().map(line).collect::<String>())
        .expect("written");
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).expect("made");
    for (name, script) in PROGRAMS.into_iter().chain([("longshore", longshore)]) {
        let script = script.replace("DIR", &dir.path().display().to_string());
        write_program(&bin.join(name), &format!("#!/bin/sh\n{script}\n"));
    }
    let output = Command::new(SCRIPT)
        .arg("trixie-backports/trixie/nvidia-kernel-dkms")
        .env("LONGSHORE_CACHE", dir.path())
        .env("LONGSHORE", bin.join("longshore"))
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .output()
        .expect("the script runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

#[test]
fn a_row_is_about_one_revision() {
    let built = |digest| format!(r#"echo '{{"key": {{"driver_digest": "{digest}"}}}}'"#);
    let failed = |first: &str| {
        format!(
            r#"echo '{{"message":"continuing with nvidia-kernel-source 550.163.01-1 (sid) instead of nvidia-kernel-source {first} (sid): a"}}' >&2
echo '{{"cause":"compiling: a.c:1:1: error: no such member"}}' >&2
exit 14"#
        )
    };
    let older = &[REVISION, "550.163.01-1", "555.58.02-3"][..];
    let newer = &[NEWER, REVISION][..];
    for (in_suites, longshore, succeeds, wanted) in [
        (older, built("aa"), true, "| compiles | compiles | compiles |"),
        (older, failed(REVISION), true, "| compiles | **fails**: no such member |"),
        (newer, built("aa"), false, "longshore takes 550.163.01-4~bpo13+1 of"),
        (older, built("bb"), false, "compiled another package (sha256 bb) than the 550.163.01-2"),
        (older, failed(NEWER), false, "failure is that of 550.163.01-4~bpo13+1, and dkms"),
    ] {
        let (success, said) = run(in_suites, &longshore);
        assert_eq!((success, said.contains(wanted)), (succeeds, true), "{wanted}: {said}");
    }
}
