//! Standard streams, working directories and paths in unusual states, as scripts produce them.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use longshore_tests::scene::{Scene, finish, fixture, longshore, names};

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let scene = Scene::new();
    let tree = fixture("bookworm-t4-live");
    for args in [&["plan", "--root", &tree][..], &["--help"], &["status"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = scene.agent(args);
        let status = command.stdout(writer).stderr(Stdio::null()).status().expect("runs");
        assert_eq!(status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_log_that_nobody_reads_changes_no_exit_code() {
    let scene = Scene::new();
    for (args, code) in [(&["unload"][..], 0), (&["build", "--kernel", "6.1"], 12), (&["x"], 2)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = scene.agent(args);
        let status = command.stdout(Stdio::null()).stderr(writer).status().expect("runs");
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let scene = Scene::new();
    for args in [&["status"][..], &["plan", "--root", &fixture("bookworm-t4-live")]] {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let output = scene.agent(args).stdout(full).output().expect("runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("standard output") && err.contains("\"remedy\":"), "{err}");
    }
}

#[test]
fn the_failure_at_the_end_has_the_form_of_the_log() {
    let scene = Scene::new();
    let tree = fixture("bookworm-no-gpu");
    for args in [&["run", "--root", &tree][..], &["plan", "--jobs", "0"], &["build"]] {
        let json = finish(&mut scene.agent(args));
        let failure = json.failure().unwrap_or_else(|| panic!("no failure: {json}"));
        assert_eq!(failure["exit_code"].as_i64(), json.code.map(i64::from), "{json}");
        let text = |key: &str| failure[key].as_str().unwrap_or_default().to_owned();
        let (cause, remedy) = (text("cause"), text("remedy"));
        assert!(!cause.is_empty() && !remedy.is_empty(), "{json}");
        assert!(text("timestamp").ends_with('Z') && text("message").contains(&cause), "{json}");
        // With the whole log switched off.
        let mut quiet = scene.agent(args);
        let quiet = finish(quiet.env("LONGSHORE_LOG", "off"));
        assert_eq!(quiet.log().len(), 1, "{quiet}");
        let mut pretty = scene.agent(args);
        let pretty = finish(pretty.env("LONGSHORE_LOG_FORMAT", "pretty"));
        let cause = cause.split("; ").next().unwrap_or_default();
        assert!(pretty.err.contains(&format!("error: {cause}")), "{pretty}");
        assert_eq!(pretty.code, json.code);
    }
}

#[test]
fn relative_paths_count_from_the_working_directory() {
    let scene = Scene::new();
    let mut command = scene.agent(&["fetch", "--store", "here/store"]);
    finish(command.current_dir(scene.path("")));
    assert!(scene.path("here/store/tmp").is_dir());
    assert!(!scene.path("store").exists());
}

#[test]
fn a_working_directory_that_is_gone_does_not_matter() {
    let scene = Scene::new();
    let gone = scene.path("gone");
    fs::create_dir(&gone).expect("directory");
    let nowhere = File::open(&gone).expect("open");
    fs::remove_dir(&gone).expect("remove");
    let dir = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nowhere));
    nix::fcntl::fcntl(&nowhere, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
        .expect("inherited");
    let tree = fixture("bookworm-t4-live");
    let mut command = scene.agent(&["plan", "--root", &tree]);
    finish(command.current_dir(&dir)).assert_done();
    let mut command = scene.agent(&["plan", "--root", &tree, "--store", "relative"]);
    let ended = finish(command.current_dir(&dir));
    assert_eq!(ended.code, Some(2), "{ended}");
    ended.assert_no_panic();
}

#[test]
fn the_umask_it_is_started_with_does_not_matter() {
    use std::os::unix::fs::PermissionsExt;
    for umask in ["000", "077"] {
        let scene = Scene::new();
        let tree = fixture("bookworm-t4-live");
        // Its archive has no driver.
        finish(&mut scene.with_umask(umask, &["fetch", "--root", &tree]));
        for (dir, wanted) in [("store", 0o700), ("store/userspace", 0o755)] {
            let found = fs::metadata(scene.path(dir)).expect(dir).permissions().mode() & 0o777;
            assert_eq!(found, wanted, "{dir} with umask {umask}");
        }
    }
}

#[test]
fn no_environment_and_no_file_will_do() {
    let scene = Scene::new();
    let mut command = Command::new(longshore());
    let state = scene.path("state-dir");
    finish(command.env_clear().arg("status").arg("--state-dir").arg(&state)).assert_done();
    assert_eq!(names(&scene.path("")), ["config.toml", "keyring.asc"]);
}
