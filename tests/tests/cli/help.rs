//! Help, version, completions and options of the log, as a shell sees them.

use std::os::unix::fs::symlink;
use std::process::Command;

use longshore_tests::scene::{Scene, longshore};

/// The program without a configuration.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(longshore());
    command.args(args);
    command
}

/// Runs a command line; returns its exit code and what it wrote to both streams.
fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.env("LONGSHORE_LOG_FORMAT", "pretty").output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn pages_go_to_standard_output() {
    for args in [&["-h"][..], &["--help"], &["fleet", "status", "--help"], &["help", "plan"]] {
        let (code, out, err) = ended(&mut program(args));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{args:?}");
        assert!(out.contains("Usage: ") && !out.contains('\x1b'), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    }
}

#[test]
fn the_version_names_the_commit_or_says_that_none_is_recorded() {
    let (code, out, _) = ended(&mut program(&["--version"]));
    let number = env!("CARGO_PKG_VERSION");
    let of_build = out.strip_prefix(&format!("longshore {number} (")).expect("a version");
    let of_build = of_build.strip_suffix(")\n").expect("a commit");
    let commit = of_build.split(' ').next().unwrap_or_default();
    let is_commit = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(code == Some(0) && (is_commit || of_build == "no commit recorded"), "{out}");
}

#[test]
fn wrong_words_end_with_2_and_name_the_right_ones() {
    for (args, named) in [
        (&["completions", "tcsh"][..], "bash, zsh, fish"),
        (&["--log-level", "loud", "status"], "off, error, warn, info, debug, trace"),
        (&["-v", "--log-level", "debug", "status"], "cannot be used with"),
        (&["settings", "drvier"], "`driver`"),
        (&["status", "--jobs", "0"], "from 1 to 65535"),
    ] {
        let (code, _, err) = ended(&mut program(args));
        assert!(code == Some(2) && err.contains(named), "{args:?}: {err}");
    }
}

#[test]
fn the_log_s_options_are_taken_before_and_behind_a_command() {
    let scene = Scene::new();
    for args in [&["-q", "status"][..], &["status", "-vv"], &["status", "--log-level", "off"]] {
        let (code, _, err) = ended(&mut scene.agent(args));
        assert_eq!(code, Some(0), "{args:?}: {err}");
    }
}

#[test]
fn kubectl_s_name_for_completions_is_one_of_the_program_s() {
    let dir = tempfile::tempdir().expect("dir");
    let link = dir.path().join("kubectl_complete-longshore");
    symlink(longshore(), &link).expect("linked");
    let (code, reported, _) = ended(Command::new(link).arg("sta"));
    assert!(code == Some(0) && reported.starts_with("status\t"), "{reported}");
    assert!(reported.ends_with("\n:4\n"), "{reported}");
}
