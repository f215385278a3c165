//! The look-out over kernels in memory: no process is started.

use std::time::Duration;

use rstest::rstest;
use tokio::sync::watch;

use super::in_memory::{AT_ONCE, Ends, InMemory};
use super::*;
use crate::config::{Fragment, load};
use crate::journal::phase::Phase;
use crate::telemetry;

const NEXT: &str = "6.1.0-51-amd64";

struct Scene {
    kernels: InMemory,
    permission: Permission,
    telemetry: Telemetry,
    changes: watch::Receiver<()>,
    look_out: NextKernel,
    config: Config,
}

/// Begins a look-out on a host whose next kernel is this one.
fn scene(next: Option<(&str, bool)>, ends: Ends, mode: &str, times: Times) -> Scene {
    let kernels = InMemory::new(next, ends);
    let env = |name: &str| (name == "LONGSHORE_NEXT_KERNEL").then(|| mode.to_owned());
    let config = load(Fragment::default(), &env, None).expect("a configuration");
    let (permission, telemetry) = (Permission::default(), Telemetry::default());
    let changes = telemetry.changes();
    let look_out =
        NextKernel::begin(kernels.clone(), &permission, &telemetry, kernels.tell(), times);
    Scene { kernels, permission, telemetry, changes, look_out, config }
}

impl Scene {
    /// Lets the agent be Ready.
    fn rest(&self) {
        self.telemetry.enter(Phase::Ready);
        self.permission.give(&self.config);
    }

    /// Waits for a state of the next kernel.
    async fn until(&mut self, wanted: impl Fn(Option<&telemetry::NextKernel>) -> bool) {
        while !wanted(self.telemetry.live().next_kernel.as_ref()) {
            self.changes.changed().await.expect("telemetry lives");
        }
    }

    fn begun(&self) -> usize {
        self.kernels.with(|state| state.begun.len())
    }
}

#[rstest]
#[case::newer(Some((NEXT, false)), "prepare", Ends::Well, true, 1)]
#[case::only_reported(Some((NEXT, false)), "report", Ends::Well, false, 0)]
#[case::running(Some((NEXT, true)), "prepare", Ends::Well, false, 0)]
#[tokio::test]
async fn a_newer_kernel_is_prepared_where_that_is_wanted(
    #[case] next: Option<(&str, bool)>,
    #[case] mode: &str,
    #[case] ends: Ends,
    #[case] ready: bool,
    #[case] begun: usize,
) {
    let mut scene = scene(next, ends, mode, AT_ONCE);
    scene.rest();
    scene.until(|next| next.is_some_and(|next| next.ready == ready && !next.preparing)).await;
    let live = scene.telemetry.live();
    assert_eq!(live.next_kernel.map(|next| next.running), next.map(|(_, running)| running));
    assert_eq!(scene.begun(), begun);
    assert!(live.ready, "it is no reason not to be ready");
    scene.look_out.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_begun_before_the_agent_rests() {
    let mut scene = scene(Some((NEXT, false)), Ends::Well, "prepare", AT_ONCE);
    scene.permission.give(&scene.config);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((scene.begun(), scene.telemetry.live().next_kernel), (0, None));
    scene.telemetry.enter(Phase::Ready);
    scene.until(|next| next.is_some_and(|next| next.ready)).await;
    scene.look_out.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_kernel_is_prepared_only_once_it_has_settled() {
    let settled = Duration::from_secs(60);
    let mut scene = scene(Some((NEXT, false)), Ends::Well, "prepare", Times { settled, ..AT_ONCE });
    scene.rest();
    scene.until(|next| next.is_some()).await;
    let noticed = tokio::time::Instant::now();
    tokio::time::sleep(settled - Duration::from_millis(1)).await;
    assert_eq!(scene.begun(), 0);
    assert!(scene.kernels.with(|state| state.looks) > 1000, "it was looked for all the while");
    scene.kernels.until(|state| !state.begun.is_empty()).await;
    assert!(noticed.elapsed() <= settled + Duration::from_millis(2), "{:?}", noticed.elapsed());
    scene.look_out.end().await;
}

#[rstest]
#[case::change(|scene: &Scene| scene.permission.withdraw())]
#[case::renewal(|scene: &Scene| scene.permission.give(&scene.config))]
#[case::repair(|scene: &Scene| scene.telemetry.enter(Phase::Changing))]
#[tokio::test]
async fn a_preparation_gives_way_to_the_agent_and_is_begun_again(#[case] comes: fn(&Scene)) {
    let mut scene = scene(Some((NEXT, false)), Ends::Never, "prepare", AT_ONCE);
    scene.rest();
    scene.kernels.until(|state| state.begun.len() == 1).await;
    comes(&scene);
    scene.kernels.until(|state| state.stopped == 1).await;
    assert_eq!(scene.telemetry.live().findings, [], "that is no failure");
    scene.kernels.with(|state| state.ends = Ends::Well);
    scene.rest();
    scene.until(|next| next.is_some_and(|next| next.ready)).await;
    scene.look_out.end().await;
}

#[tokio::test]
async fn the_end_of_the_agent_ends_a_preparation() {
    let scene = scene(Some((NEXT, false)), Ends::Never, "prepare", AT_ONCE);
    scene.rest();
    scene.kernels.until(|state| state.begun.len() == 1).await;
    let kernels = scene.kernels.clone();
    scene.look_out.end().await;
    assert_eq!(kernels.with(|state| state.stopped), 1);
}

#[rstest]
#[case::failed(Ends::Badly, "no headers")]
#[case::still_missing(
    Ends::Emptily,
    "everything was fetched, but the store lacks something for it all the same"
)]
#[tokio::test]
async fn a_failure_is_a_finding_told_once_and_tried_again(#[case] ends: Ends, #[case] cause: &str) {
    let mut scene = scene(Some((NEXT, false)), ends, "prepare", AT_ONCE);
    scene.rest();
    scene.kernels.until(|state| state.begun.len() >= 3).await;
    let live = scene.telemetry.live();
    let found: Vec<_> = live.findings.iter().map(|f| (f.code.entry().name, &*f.detail)).collect();
    let detail = format!("kernel {NEXT}: {cause}");
    assert_eq!(found, [("next-kernel-unprepared", &*detail)]);
    assert!(live.ready, "it is no reason not to be ready");
    assert_eq!(scene.kernels.with(|state| state.reported.clone()), [format!("{NEXT}: {cause}")]);
    scene.kernels.with(|state| state.ends = Ends::Well);
    scene.until(|next| next.is_some_and(|next| next.ready)).await;
    assert_eq!(scene.telemetry.live().findings, []);
    scene.look_out.end().await;
}

/// A look-out whose only preparation has failed, with an hour until the next.
async fn failed_once() -> Scene {
    let hour = Duration::from_secs(3600);
    let times = Times { retry: (hour, hour), ..AT_ONCE };
    let mut scene = scene(Some((NEXT, false)), Ends::Badly, "prepare", times);
    scene.rest();
    scene.until(|next| next.is_some_and(|next| next.failure.is_some() && !next.preparing)).await;
    scene
}

impl Scene {
    /// Waits for the looks that follow, and returns the numbers of preparations and of told failures; the
    /// failure is a finding all the time.
    async fn attempts(&self) -> (usize, usize) {
        self.kernels.looked().await;
        let failure = self.telemetry.live().next_kernel.and_then(|next| next.failure);
        assert!(failure.is_some(), "the failure stays a finding");
        self.kernels.with(|state| (state.begun.len(), state.reported.len()))
    }
}

#[rstest]
#[case::the_same(|_: &mut Config| {}, 1)]
#[case::another(|config: &mut Config| config.jobs = Some(1), 2)]
#[tokio::test]
async fn the_wait_after_a_failure_ends_with_another_configuration_alone(
    #[case] change: fn(&mut Config),
    #[case] wanted: usize,
) {
    let mut scene = failed_once().await;
    change(&mut scene.config);
    scene.permission.withdraw();
    scene.permission.give(&scene.config);
    assert_eq!(scene.attempts().await, (wanted, wanted));
    scene.look_out.end().await;
}

#[tokio::test]
async fn the_wait_after_a_failure_goes_on_while_the_host_is_not_read() {
    let mut scene = failed_once().await;
    let unread = NextRelease { release: String::new(), is_running: false };
    let next = scene.kernels.with(|state| state.next.replace(unread));
    scene.until(|next| next.is_none()).await;
    scene.kernels.with(|state| state.next = next);
    scene.until(|next| next.is_some()).await;
    assert_eq!(scene.attempts().await, (1, 1));
    scene.look_out.end().await;
}

#[tokio::test]
async fn a_kernel_that_something_else_prepared_has_no_failure() {
    let mut scene = failed_once().await;
    scene.kernels.with(|state| state.is_ready = true);
    scene.until(|next| next.is_some_and(|next| next.ready)).await;
    assert_eq!(scene.telemetry.live().findings, []);
    scene.look_out.end().await;
}

#[rstest]
#[case::no_kernels(None, "prepare")]
#[case::switched_off(Some((NEXT, false)), "off")]
#[case::unread(Some(("", false)), "prepare")]
#[tokio::test]
async fn an_unknown_kernel_is_not_reported(#[case] next: Option<(&str, bool)>, #[case] mode: &str) {
    let mut scene = scene(Some((NEXT, true)), Ends::Well, "report", AT_ONCE);
    scene.rest();
    scene.until(|next| next.is_some()).await;
    let env = |name: &str| (name == "LONGSHORE_NEXT_KERNEL").then(|| mode.to_owned());
    scene.config = load(Fragment::default(), &env, None).expect("a configuration");
    scene.kernels.with(|state| {
        let next = next.map(|(release, is_running)| (release.to_owned(), is_running));
        state.next = next.map(|(release, is_running)| NextRelease { release, is_running });
    });
    scene.rest();
    scene.until(|next| next.is_none()).await;
    assert_eq!(scene.begun(), 0);
    scene.look_out.end().await;
}

#[tokio::test]
async fn a_kernel_that_follows_another_one_is_prepared_too() {
    let mut scene = scene(Some((NEXT, false)), Ends::Well, "prepare", AT_ONCE);
    scene.rest();
    scene.until(|next| next.is_some_and(|next| next.ready)).await;
    let release = "6.1.0-52-amd64".to_owned();
    scene.kernels.with(|state| {
        state.next = Some(NextRelease { release: release.clone(), is_running: false });
        state.is_ready = false;
    });
    scene.until(|next| next.is_some_and(|next| next.ready && next.release == release)).await;
    assert_eq!(scene.kernels.with(|state| state.begun.clone()), [NEXT, &release]);
    scene.look_out.end().await;
}
