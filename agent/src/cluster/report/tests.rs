use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::journal::phase::Phase;
use crate::telemetry::{Awaited, Condition, DaemonState, DriverInfo, NextKernel, Unprepared};
use longshore_cluster::testing::{Api, SHORT, ScriptedAnswer, refused};
use longshore_cluster::{Limits, NodeStatus};
use longshore_core::failure::FailureKind;
use longshore_core::paths::Paths;
use longshore_host::facts::in_use::InUse;
use longshore_host::values::DriverUser;

const LONG: Duration = Duration::from_secs(60);

fn driver(version: &str) -> DriverInfo {
    DriverInfo {
        version: version.to_owned(),
        flavour: "open".to_owned(),
        kernel: "6.1".to_owned(),
        module_digest: None,
        origin: None,
    }
}

fn user(pid: u32, comm: &str, pod: Option<&str>) -> DriverUser {
    DriverUser {
        pid,
        namespace_pid: None,
        comm: comm.to_owned(),
        container: None,
        pod: pod.map(str::to_owned),
        devices: vec!["/dev/nvidia0".to_owned()],
    }
}

/// Telemetry of an agent that wants 550.163.01, with this phase.
fn at(phase: Phase) -> Telemetry {
    let telemetry = Telemetry::default();
    telemetry.wanted("550.163.01", Some(false));
    telemetry.enter(phase);
    telemetry
}

fn ready() -> Telemetry {
    let telemetry = at(Phase::Installing);
    telemetry.driver(driver("550.163.01"));
    telemetry.enter(Phase::Ready);
    telemetry
}

fn failed() -> Telemetry {
    let telemetry = at(Phase::Installing);
    telemetry.enter(Phase::Failed);
    telemetry.failed(&Failure::new(FailureKind::Compile, "it does not compile").remedy("wait"));
    telemetry
}

fn with_users(telemetry: Telemetry) -> Telemetry {
    let users = vec![user(7, "python3", Some("uid-1"))];
    telemetry.holders(Some(&InUse { users, ..InUse::default() }));
    telemetry
}

fn not_whole() -> Telemetry {
    let telemetry = ready();
    let not_ready = vec!["module-replaced: nvidia is another".to_owned()];
    telemetry.condition(Condition { not_ready, ..Condition::default() });
    telemetry
}

fn with_daemon(state: DaemonState) -> Telemetry {
    let telemetry = ready();
    telemetry.daemon("nvidia-persistenced", true, state);
    telemetry
}

fn awaiting(phase: Phase) -> Telemetry {
    let telemetry = at(phase);
    telemetry.awaits(Some(Awaited {
        driver: "550".to_owned(),
        flavour: "open".to_owned(),
        kernel: "6.1".to_owned(),
        registries: vec!["registry.example.com/a".to_owned()],
        since: Timestamp::UNIX_EPOCH,
    }));
    telemetry
}

fn kept(telemetry: Telemetry) -> Telemetry {
    telemetry.kept();
    telemetry.enter(Phase::InUse);
    telemetry
}

fn host(version: Option<&str>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    if let Some(version) = version {
        let dir = root.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        );
        std::fs::write(dir.join("version"), text).unwrap();
    }
    root
}

#[rstest]
#[case::start(
    Telemetry::default(),
    Reason::DriverChanging,
    "the agent is inspecting the host",
    true
)]
#[case::acquiring(
    at(Phase::Acquiring),
    Reason::DriverChanging,
    "driver 550.163.01 is being downloaded or compiled",
    false
)]
#[case::waiting(
    awaiting(Phase::Planning),
    Reason::DriverChanging,
    "waiting for modules of driver 550 (open) for kernel 6.1 in registry.example.com/a",
    false
)]
#[case::changing(
    at(Phase::Changing),
    Reason::DriverChanging,
    "driver 535.261.03 is being changed to driver 550.163.01",
    false
)]
#[case::ready(ready(), Reason::DriverReady, "driver 550.163.01 is ready", false)]
#[case::daemon(
    with_daemon(DaemonState::Live),
    Reason::DriverReady,
    "driver 550.163.01 is ready",
    false
)]
#[case::daemon_gone(
    with_daemon(DaemonState::Failed),
    Reason::DriverFailed,
    "driver 550.163.01 is not whole: nvidia-persistenced is failed",
    true
)]
#[case::not_whole(
    not_whole(),
    Reason::DriverFailed,
    "driver 550.163.01 is not whole: module-replaced: nvidia is another",
    true
)]
#[case::in_use(
    with_users(at(Phase::InUse)),
    Reason::DriverInUse,
    "driver 550.163.01 waits for the users of driver 535.261.03",
    false
)]
#[case::removal_waits(
    with_users(at(Phase::Removing)),
    Reason::DriverInUse,
    "the removal of driver 535.261.03 waits for its users",
    false
)]
#[case::removing(
    at(Phase::Removing),
    Reason::DriverChanging,
    "driver 535.261.03 is being uninstalled",
    false
)]
#[case::idle(at(Phase::Idle), Reason::NoGpu, "no GPU is here", false)]
#[case::removed(at(Phase::Removed), Reason::DriverRemoved, "the driver was uninstalled", false)]
#[case::kept(kept(ready()), Reason::DriverReady, "driver 550.163.01 stays for the next pod", false)]
#[case::kept_without_its_daemon(
    kept(with_daemon(DaemonState::Live)),
    Reason::DriverChanging,
    "driver 550.163.01 stays for the next pod, which starts its nvidia-persistenced",
    false
)]
#[case::kept_before_it_was_ready(
    kept(at(Phase::Acquiring)),
    Reason::DriverChanging,
    "driver 535.261.03 stays for the next pod",
    false
)]
#[case::failed(failed(), Reason::DriverFailed, "it does not compile", false)]
#[tokio::test]
async fn a_state_has_a_reason_and_a_sentence(
    #[case] telemetry: Telemetry,
    #[case] reason: Reason,
    #[case] message: &str,
    #[case] passes: bool,
) {
    let root = host(Some("535.261.03"));
    let source = Source::new(&telemetry, &Paths::below(root.path()), None);
    let described = source.described().await;
    assert_eq!((described.report.reason, described.report.message.as_str()), (reason, message));
    assert_eq!(described.report.ready, matches!(reason, Reason::DriverReady | Reason::NoGpu));
    assert_eq!(described.passes, passes);
}

/// Annotation and label follow readiness, and name the loaded driver alone.
#[tokio::test]
async fn a_ready_driver_whose_modules_another_program_unloads_is_degraded_until_it_is_whole() {
    let (telemetry, root) = (ready(), host(Some("550.163.01")));
    let reported = || async {
        let source = Source::new(&telemetry, &Paths::below(root.path()), None);
        source.described().await.report.status
    };
    let first = reported().await;
    assert_eq!((first.phase.as_str(), first.live.as_deref()), ("ready", Some("550.163.01")));
    std::fs::remove_file(root.path().join("proc/driver/nvidia/version")).unwrap();
    let not_ready = vec!["module-replaced: nvidia is no longer loaded".to_owned()];
    telemetry.condition(Condition { not_ready, ..Condition::default() });
    let degraded = reported().await;
    assert_eq!((degraded.phase.as_str(), degraded.live), ("degraded", None));
    assert!(degraded.since > first.since, "{:?} {:?}", degraded.since, first.since);
    telemetry.condition(Condition::default());
    let again = reported().await;
    assert_eq!((again.phase.as_str(), again.live.as_deref()), ("ready", Some("550.163.01")));
    assert!(again.since > degraded.since);
    telemetry.enter(Phase::Changing);
    assert_eq!(reported().await.phase, "changing");
}

#[tokio::test]
async fn a_change_whose_modules_are_loaded_names_no_other_driver() {
    let root = host(Some("550.163.01"));
    let telemetry = at(Phase::Changing);
    let source = Source::new(&telemetry, &Paths::below(root.path()), None);
    let message = source.described().await.report.message;
    assert_eq!(message, "a change of driver 550.163.01 is under way");
}

#[tokio::test]
async fn the_loaded_driver_is_named_whichever_program_loaded_it() {
    for (on_host, live, flavour) in
        [(Some("535.261.03"), Some("535.261.03"), Some("open")), (None, None, None)]
    {
        let root = host(on_host);
        let telemetry = at(Phase::InUse);
        let source = Source::new(&telemetry, &Paths::below(root.path()), Some("a/b".into()));
        let NodeStatus { live: found, flavour: of, wanted, pod, .. } =
            source.described().await.report.status;
        assert_eq!((found.as_deref(), of.as_deref()), (live, flavour));
        assert_eq!((wanted.as_deref(), pod.as_deref()), (Some("550.163.01"), Some("a/b")));
    }
}

#[tokio::test]
async fn a_failure_is_named_by_its_exit_code() {
    let source = Source::new(&failed(), &Paths::below("/".as_ref()), None);
    let failure = source.described().await.report.status.last_failure.unwrap();
    assert_eq!(
        (failure.code.as_str(), failure.cause.as_str(), failure.remedy.as_str()),
        ("compile", "it does not compile", "wait")
    );
}

#[tokio::test]
async fn the_next_kernel_is_reported_and_no_reason_not_to_be_ready() {
    let telemetry = ready();
    let source = Source::new(&telemetry, &Paths::below("/".as_ref()), None);
    assert_eq!(source.described().await.report.status.next_kernel, None);
    for is_ready in [false, true] {
        let (release, cause) = ("6.1.0-51-amd64".to_owned(), "no headers".to_owned());
        let failure = (!is_ready).then_some(Unprepared { cause, remedy: None });
        let next = NextKernel { release, ready: is_ready, failure, ..NextKernel::default() };
        telemetry.next_kernel(Some(next));
        let report = source.described().await.report;
        let next = report.status.next_kernel.expect("a kernel");
        assert_eq!((next.release.as_str(), next.ready), ("6.1.0-51-amd64", is_ready));
        assert_eq!(report.reason, Reason::DriverReady);
    }
}

/// The host's directories of logs have the names, and are read again for a pod that is not known yet alone.
#[tokio::test]
async fn holders_have_the_names_that_the_host_has() {
    let (root, telemetry) = (tempfile::tempdir().unwrap(), at(Phase::InUse));
    let uid = |n: u32| format!("8f3b2c1d-1111-2222-3333-{n:012}");
    let logs =
        |n: u32, name: &str| root.path().join("var/log/pods").join(format!("{name}_{}", uid(n)));
    let held = |pods: &[u32]| {
        let users = pods.iter().map(|n| user(*n, "train", Some(&uid(*n)))).collect();
        telemetry.holders(Some(&InUse { users, ..InUse::default() }));
    };
    let source = Source::new(&telemetry, &Paths::below(root.path()), None);
    let names = async || -> Vec<Option<String>> {
        let holders = source.described().await.report.holders;
        holders.into_iter().map(|holder| holder.pod.map(|pod| pod.to_string())).collect()
    };
    held(&[1]);
    assert_eq!(names().await, [None], "without a directory");
    std::fs::create_dir_all(logs(1, "ml_a")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(root.path().join("var/log/pods"), mode).unwrap();
    let is_root = nix::unistd::geteuid().is_root();
    assert_eq!(names().await, [is_root.then(|| "ml/a".to_owned())]);
    std::fs::remove_dir(logs(1, "ml_a")).unwrap();
    assert_eq!(
        names().await,
        [is_root.then(|| "ml/a".to_owned())],
        "it ended and still holds the driver"
    );
    std::fs::create_dir(logs(2, "ml_b")).unwrap();
    held(&[2]);
    assert_eq!(names().await, [is_root.then(|| "ml/b".to_owned())]);
}

#[tokio::test]
async fn holders_are_named_once_for_each_pod_with_the_time_they_were_found_first() {
    let telemetry = at(Phase::InUse);
    let held = |users: Vec<DriverUser>| {
        telemetry.holders(Some(&InUse { users, ..InUse::default() }));
    };
    let source = Source::new(&telemetry, &Paths::below("/nowhere".as_ref()), None);
    held(vec![user(7, "python3", Some("uid-1"))]);
    let first = source.described().await.report.holders;
    held(vec![
        user(7, "python3", Some("uid-1")),
        user(8, "python3", Some("uid-1")),
        user(9, "smi", None),
    ]);
    let next = source.described().await.report.holders;
    assert_eq!(next.len(), 2);
    assert_eq!(next[0], first[0]);
    assert!(next[1].since > first[0].since && next[1].pod.is_none());
    held(vec![user(10, "python3", Some("uid-1")), user(9, "smi", None)]);
    assert_eq!(source.described().await.report.holders, next, "a program that started another one");
    telemetry.holders(None);
    assert!(source.described().await.report.holders.is_empty());
}

fn node() -> ScriptedAnswer {
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": "n", "resourceVersion": "1" }, "spec": {}, "status": {},
    });
    ScriptedAnswer::Body(200, node.to_string())
}

fn event() -> ScriptedAnswer {
    let event = json!({
        "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": { "name": "e" },
    });
    ScriptedAnswer::Body(201, event.to_string())
}

fn report_of(api: &Api, limits: Limits, telemetry: &Telemetry, limit: Duration) -> DriverReport {
    let cluster = api.cluster(limits);
    let reporter = Reporter::begin(cluster, "n".to_owned(), Options::default()).unwrap();
    DriverReport::start(
        reporter,
        Source::new(telemetry, &Paths::below("/nowhere".as_ref()), None),
        limit,
    )
}

/// Reasons of the conditions that were written.
fn reasons(api: &Api) -> Vec<String> {
    let written = api.requests().into_iter().filter(|r| r.line.contains("/status"));
    let reason = |body: &str| {
        let body: Value = serde_json::from_str(body).unwrap();
        body["status"]["conditions"][0]["reason"].as_str().unwrap().to_owned()
    };
    written.map(|request| reason(&request.body)).collect()
}

#[tokio::test]
async fn a_change_is_reported_at_once_and_the_end_before_the_agent_ends() {
    let api = Api::with([node(), node(), node(), event(), node(), node(), event()]);
    let telemetry = ready();
    let report = report_of(&api, SHORT, &telemetry, LONG);
    while api.requests().len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    telemetry.enter(Phase::Removing);
    telemetry.enter(Phase::Removed);
    report.end().await;
    assert_eq!(reasons(&api), ["DriverReady", "DriverRemoved"]);
}

#[tokio::test]
async fn a_state_that_passes_is_not_reported() {
    // The end may cut off the first answer about the event, which is written again then.
    let api = Api::with([node(), node(), node(), event(), event()]);
    let telemetry = at(Phase::Probing);
    let report = report_of(&api, SHORT, &telemetry, LONG);
    tokio::task::yield_now().await;
    telemetry.enter(Phase::Planning);
    telemetry.driver(driver("550.163.01"));
    telemetry.enter(Phase::Ready);
    while api.requests().len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    report.end().await;
    assert_eq!(reasons(&api), ["DriverReady"]);
}

#[tokio::test]
async fn a_cluster_that_refuses_everything_ends_no_agent_and_is_not_asked_again() {
    let api = Api::by(|_| refused(403));
    let telemetry = ready();
    let report = report_of(&api, SHORT, &telemetry, LONG);
    while api.requests().len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    telemetry.enter(Phase::Removing);
    report.end().await;
    // The end may cut off the answer about the event, the last of the four; the others were read before it.
    let lines = api.lines();
    let (events, others): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l.contains("/events"));
    assert_eq!(
        others,
        ["GET /api/v1/nodes/n", "PATCH /api/v1/nodes/n/status", "PATCH /api/v1/nodes/n"]
    );
    assert!(matches!(events.len(), 1 | 2), "{events:?}");
}

#[tokio::test]
async fn the_end_waits_for_a_silent_server_no_longer_than_its_limit() {
    let api = Api::with([ScriptedAnswer::Silence, ScriptedAnswer::Silence]);
    let limits = Limits { call: LONG, ..SHORT };
    let telemetry = ready();
    let report = report_of(&api, limits, &telemetry, LAST);
    while api.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // No answer comes: on a paused clock the time goes straight to the first limit.
    tokio::time::pause();
    let begun = Instant::now();
    report.end().await;
    let took = begun.elapsed();
    assert!((LAST..LAST + Duration::from_millis(10)).contains(&took), "{took:?}");
    assert!(reasons(&api).is_empty());
}

#[test]
fn nothing_is_begun_outside_of_a_cluster() {
    let config = crate::config::load(crate::config::Fragment::default(), &|_| None, None).unwrap();
    assert!(DriverReport::begin(&config, &Telemetry::default(), &|_| None).is_none());
}

#[test]
fn the_page_about_deadlines_has_the_limits() {
    let pages = [
        ("The last report of the driver to the cluster", LAST),
        ("A passing state of the driver before it is reported to the cluster", PASSING),
    ];
    for (row, limit) in pages {
        longshore_core::testing::assert_in_page(row, limit);
    }
}
