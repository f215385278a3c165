//! Tests of the build sandbox, with real namespaces and mounts: they require root.

mod bounds;
mod filter;
mod scene;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use longshore_build::sandbox::{self, Bind, Outcome, SUBCOMMAND, Spec};
use longshore_core::failure::ExitCode;
use longshore_core::testing::write_program;
use scene::{HELPER, MINUTE, Scene};

#[tokio::test]
async fn output_of_both_streams_and_the_status_come_back() {
    let scene = Scene::new();
    let (outcome, lines) = scene.run("echo out; echo err >&2; printf last; exit 3").await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(3));
    assert_eq!(lines, ["out", "err", "last"]);
}

#[tokio::test]
async fn a_signal_is_told_from_a_status() {
    let (outcome, _) = Scene::new().run("kill -9 $$").await;
    assert_eq!(outcome.expect("it runs"), Outcome::Signalled(9));
}

#[tokio::test]
async fn who_stays_root_reads_the_key_and_has_no_power_beyond() {
    let scene = Scene::new();
    let key = scene.path("key");
    fs::write(&key, "secret\n").expect("key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("mode");
    std::os::unix::fs::chown(&key, Some(1000), Some(1000)).expect("chown");
    fs::write(scene.path("work/key"), "").expect("the mount point");
    let script = "id -u; cat key; echo more >> key; rm -f key; mount -t tmpfs none /proc; \
                  grep -E '^Cap(Eff|Prm)|^NoNewPrivs' /proc/self/status; true";
    let mut spec = scene.spec(script);
    spec.user = None;
    spec.binds.push(Bind::read_only(&key, "/build/key"));
    let (outcome, lines) = scene.run_as(&spec, MINUTE).await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
    assert_eq!(lines[..2], ["0", "secret"], "{lines:?}");
    let said = lines.join("\n");
    // Only CAP_DAC_OVERRIDE.
    for expected in
        ["Read-only file system", "CapPrm:\t0000000000000002", "CapEff:\t0000000000000002"]
    {
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
    assert!(said.contains("NoNewPrivs:\t1"), "{said}");
    assert_eq!(fs::read_to_string(&key).expect("still there"), "secret\n");
    // The directory it was mounted on is empty.
    assert_eq!(fs::read_to_string(scene.path("work/key")).expect("still there"), "");
    assert!(!scene.is_mounted());
}

#[tokio::test]
async fn there_is_no_network_inside() {
    let (outcome, lines) = Scene::new().run("cat /proc/net/dev; cat /proc/net/route").await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
    let interfaces: Vec<_> =
        lines.iter().filter_map(|l| l.split_once(':')).map(|(name, _)| name.trim()).collect();
    assert_eq!(interfaces, ["lo"]);
    assert_eq!(lines.iter().filter(|l| l.contains("00000000")).count(), 0, "no route");
}

#[tokio::test]
async fn only_what_was_started_inside_is_seen_inside() {
    let (outcome, lines) =
        Scene::new().run("for d in /proc/[0-9]*; do echo ${d#/proc/}; done; ls /; hostname").await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
    assert!(lines.iter().filter(|l| l.parse::<u32>().is_ok()).count() <= 3, "{lines:?}");
    assert!(!lines.iter().any(|l| l == "etc"), "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("longshore"));
}

/// Everybody may write to all of it, as far as owners and modes go: what refuses is a mount.
#[tokio::test]
async fn only_the_work_directory_can_be_written_whoever_writes() {
    let script = "id -u; touch /build/made || exit 1; \
                  touch /y; touch /x/y; touch /seen/x; echo x > /seen/file; echo x > /lone; true";
    for (user, id) in [(Some(65534), "65534"), (None, "0")] {
        let scene = Scene::new();
        let seen = scene.path("seen");
        for dir in ["seen", "root/seen", "root/x"] {
            fs::create_dir(scene.path(dir)).expect("directory");
        }
        for file in ["seen/file", "lone", "root/lone"] {
            fs::write(scene.path(file), "").expect("file");
        }
        for (path, mode) in [
            ("root", 0o777),
            ("root/x", 0o777),
            ("seen", 0o777),
            ("seen/file", 0o666),
            ("lone", 0o666),
        ] {
            fs::set_permissions(scene.path(path), fs::Permissions::from_mode(mode)).expect("mode");
        }
        let mut spec = scene.spec(script);
        spec.user = user;
        spec.binds.push(Bind::read_only(&seen, "/seen"));
        spec.binds.push(Bind::read_only(scene.path("lone"), "/lone"));
        let (outcome, lines) = scene.run_as(&spec, MINUTE).await;
        assert_eq!(outcome.expect("it runs"), Outcome::Exited(0), "{lines:?}");
        assert_eq!(lines[0], id);
        let refused: Vec<_> =
            lines[1..].iter().map(|line| line.ends_with(": Read-only file system")).collect();
        assert_eq!(refused, [true; 5], "{lines:?}");
        assert!(scene.path("work/made").is_file());
        assert_eq!(fs::read_dir(seen).expect("listed").count(), 1);
    }
}

#[tokio::test]
async fn no_setting_of_the_kernel_can_be_written_inside() {
    let scene = Scene::new();
    // Writes only the value that is there already, and the request for the trigger's letters.
    let script = "read pattern < /proc/sys/kernel/core_pattern; \
                  echo \"$pattern\" > /proc/sys/kernel/core_pattern && echo core_pattern; \
                  echo h > /proc/sysrq-trigger && echo sysrq-trigger; \
                  echo 0 > /proc/self/oom_score_adj && echo oom_score_adj; true";
    for user in [None, Some(65534)] {
        let mut spec = scene.spec(script);
        (spec.user, spec.outcome) = (user, scene.path(&format!("outcome-{user:?}")));
        let (outcome, lines) = scene.run_as(&spec, MINUTE).await;
        assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
        assert!(lines.iter().all(|line| line.contains(": cannot create")), "{user:?}: {lines:?}");
    }
}

#[tokio::test]
async fn what_is_said_is_heard_by_every_name_of_the_output() {
    let scene = Scene::new();
    // The pipe belongs to root.
    let spec = scene.spec("echo a > /dev/stdout; echo b > /proc/self/fd/2; echo c >&2");
    let (outcome, lines) = scene.run_as(&Spec { user: None, ..spec }, MINUTE).await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
    assert_eq!(lines, ["a", "b", "c"]);
}

#[tokio::test]
async fn the_environment_is_what_was_given() {
    let (_, lines) = Scene::new().run("/usr/bin/env").await;
    let mut kept: Vec<_> = lines.iter().filter(|l| !l.starts_with("PWD=")).collect();
    kept.sort();
    assert_eq!(kept, ["LC_ALL=C", "PATH=/usr/bin"]);
}

#[tokio::test]
async fn mounts_and_background_processes_end_with_the_command() {
    let scene = Scene::new();
    let mark = scene.dir.path().display();
    let (outcome, _) = scene.run(&format!("tail -f /dev/null {mark}/a >/dev/null 2>&1 &")).await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
    assert_eq!(scene.processes(), 0);
    assert!(!scene.is_mounted());
}

#[tokio::test]
async fn at_the_deadline_everything_is_killed() {
    let scene = Scene::new();
    let (outcome, lines) = scene.run_for(&scene.endless(), Duration::from_secs(3)).await;
    assert_eq!(outcome.expect("it runs"), Outcome::TimedOut);
    assert!(lines.contains(&"started".to_owned()), "{lines:?}");
    assert_eq!(scene.processes(), 0);
}

#[test]
fn a_dropped_run_leaves_no_process_and_no_mount() {
    let scene = Scene::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let held = std::sync::Arc::new(());
    let spec = Spec { held: Some(held.clone()), ..scene.spec(&scene.endless()) };
    runtime.block_on(drop_when_started(Path::new(HELPER), &spec));
    drop(spec);
    // Waits for the thread that waits for the end.
    drop(runtime);
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
    assert_eq!(scene.processes(), 0);
    assert!(!scene.is_mounted());
    scene.dir.close().expect("nothing holds the directory");
}

#[test]
fn a_sandbox_that_does_not_end_keeps_no_thread_of_the_runtime() {
    let scene = Scene::new();
    let helper = scene.path("helper");
    // Like a process that is stuck in the kernel: it does not notice that its lifeline is closed.
    write_program(&helper, "#!/bin/sh\necho started\nexec sleep 4\n");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let held = std::sync::Arc::new(());
    let spec = Spec { held: Some(held.clone()), ..scene.spec("true") };
    // The thread that drops it is the agent's own, which handles signals.
    let took = runtime.block_on(drop_when_started(&helper, &spec));
    assert!(took < Duration::from_secs(1), "{took:?}");
    drop(spec);
    assert_eq!(std::sync::Arc::strong_count(&held), 2, "its directory is kept meanwhile");
    drop(runtime);
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
}

/// Runs a program until it prints `started`, and drops it then; returns the time that dropping
/// took.
async fn drop_when_started(helper: &Path, spec: &Spec) -> Duration {
    let (started, wait) = tokio::sync::oneshot::channel();
    let mut started = Some(started);
    let mut note = |line: &str| {
        if line == "started" {
            started.take().map(|s| s.send(()));
        }
    };
    let mut run = Box::pin(sandbox::run(helper, spec, MINUTE, &mut note));
    tokio::select! {
        outcome = &mut run => panic!("it ended: {outcome:?}"),
        begun = wait => begun.expect("it started"),
    }
    let since = std::time::Instant::now();
    drop(run);
    since.elapsed()
}

#[test]
fn when_the_agent_is_gone_the_sandbox_ends() {
    use std::io::{BufRead, BufReader, Read};
    let scene = Scene::new();
    let spec = serde_json::to_string(&scene.spec(&scene.endless())).expect("a spec");
    let mut child = Command::new(HELPER)
        .args([SUBCOMMAND, &spec])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the helper starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while line.trim() != "started" {
        line.clear();
        assert_ne!(output.read_line(&mut line).expect("output"), 0, "it ended early");
    }
    // Closes the agent's end of the lifeline, as the kernel does when the agent is killed.
    drop(child.stdin.take());
    output.read_to_end(&mut Vec::new()).expect("the end of the output");
    child.wait().expect("the helper ends");
    assert_eq!(scene.processes(), 0);
}

#[tokio::test]
async fn a_root_that_is_not_there_is_told() {
    let scene = Scene::new();
    let mut spec = scene.spec("true");
    spec.root = scene.path("nowhere");
    let failure = sandbox::run(Path::new(HELPER), &spec, MINUTE, &mut |_: &str| {})
        .await
        .expect_err("refused");
    assert_eq!(failure.code(), ExitCode::HostUnsupported);
    assert!(failure.report().contains("No such file or directory"), "{}", failure.report());
}
