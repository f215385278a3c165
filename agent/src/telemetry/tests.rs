use rstest::rstest;

use super::*;
use crate::steps::LoadModule;
use longshore_core::failure::FailureKind;

fn load(name: &str) -> Step {
    Step::LoadModule(LoadModule {
        name: name.to_owned(),
        origin: crate::steps::ModuleOrigin::Driver { sha256: "0".repeat(64) },
        parameters: String::new(),
        version: None,
        srcversion: None,
    })
}

#[test]
fn an_agent_that_has_begun_nothing_is_not_ready() {
    let live = Telemetry::default().live();
    assert!(!live.ready && live.phase.is_none());
    assert_eq!(live.not_ready, ["the agent is starting"]);
}

#[rstest]
#[case(&[], true, &[])]
#[case(&[("a", true, DaemonState::Live)], true, &[])]
#[case(&[("a", true, DaemonState::Starting)], false, &["a is starting"])]
#[case(&[("a", true, DaemonState::Live), ("a", true, DaemonState::BackingOff)], false, &["a is backing-off"])]
#[case(&[("a", false, DaemonState::Failed), ("b", true, DaemonState::Live)], true, &[])]
fn ready_is_a_phase_and_every_required_daemon(
    #[case] daemons: &[(&str, bool, DaemonState)],
    #[case] ready: bool,
    #[case] why: &[&str],
) {
    let telemetry = Telemetry::default();
    telemetry.enter(Phase::Installing);
    telemetry.enter(Phase::Ready);
    for (name, required, state) in daemons {
        telemetry.daemon(name, *required, *state);
    }
    let live = telemetry.live();
    assert_eq!(live.ready, ready);
    assert_eq!(live.not_ready, why);
}

#[test]
fn a_daemon_that_is_started_again_was_restarted() {
    let telemetry = Telemetry::default();
    for state in [
        DaemonState::Starting,
        DaemonState::Live,
        DaemonState::BackingOff,
        DaemonState::Starting,
        DaemonState::Starting,
        DaemonState::Live,
    ] {
        telemetry.daemon("nvidia-persistenced", true, state);
    }
    let daemons = telemetry.live().daemons;
    assert_eq!((daemons.len(), daemons[0].restarts), (1, 1));
}

#[test]
fn seconds_are_added_up_by_phase_and_the_present_one_counts() {
    let telemetry = Telemetry::default();
    for phase in [Phase::Probing, Phase::Planning, Phase::Acquiring, Phase::Planning] {
        telemetry.enter(phase);
    }
    let live = telemetry.live();
    let phases: Vec<_> = live.phase_seconds.keys().map(String::as_str).collect();
    assert_eq!(phases, ["acquiring", "planning", "probing"]);
    assert_eq!(live.phase, Some(Phase::Planning));
    let later = telemetry.live();
    assert!(later.phase_seconds["planning"] > live.phase_seconds["planning"]);
    assert_eq!(later.phase_seconds["probing"], live.phase_seconds["probing"]);
}

#[test]
fn the_last_outcome_of_a_step_is_kept_and_all_are_counted() {
    let telemetry = Telemetry::default();
    let nvidia = load("nvidia");
    telemetry.begin(&nvidia, false).end(StepOutcome::Failed);
    let running = telemetry.begin(&nvidia, false);
    let at = telemetry.live().current_step.expect("a step in progress");
    assert_eq!((at.step.as_str(), at.subject.as_str(), at.undo), ("load-module", "nvidia", false));
    running.end(StepOutcome::Done);
    telemetry.begin(&nvidia, true).end(StepOutcome::Undone);
    let live = telemetry.live();
    assert_eq!(live.current_step, None);
    let steps: Vec<_> =
        live.steps.iter().map(|s| (s.subject.as_str(), s.undo, s.outcome)).collect();
    assert_eq!(
        steps,
        [("nvidia", false, StepOutcome::Done), ("nvidia", true, StepOutcome::Undone)]
    );
    assert_eq!(live.step_counts.len(), 3);
    assert!(live.step_counts.iter().all(|c| c.count == 1 && c.step == "load-module"));
}

#[test]
fn what_is_kept_is_bounded() {
    let telemetry = Telemetry::default();
    for n in 0..10 * MOST_STEPS {
        telemetry.begin(&load(&format!("m{n}")), false).end(StepOutcome::Done);
    }
    let live = telemetry.live();
    assert_eq!(live.steps.len(), MOST_STEPS);
    assert_eq!(
        live.steps.last().map(|s| s.subject.clone()),
        Some(format!("m{}", 10 * MOST_STEPS - 1))
    );
}

#[test]
fn the_driver_is_of_the_store_unless_it_came_from_elsewhere_and_goes_when_it_is_removed() {
    let info = || DriverInfo {
        version: "535.1".into(),
        flavour: "open".into(),
        kernel: "6.1".into(),
        module_digest: None,
        origin: None,
    };
    let telemetry = Telemetry::default();
    telemetry.driver(info());
    let origin = |t: &Telemetry| t.live().driver.and_then(|d| d.origin);
    assert_eq!(origin(&telemetry), Some(Origin::Stored));
    telemetry.origin(Origin::Compiled);
    telemetry.driver(info());
    assert_eq!(origin(&telemetry), Some(Origin::Compiled));
    telemetry.driver(DriverInfo { origin: Some(Origin::Adopted), ..info() });
    assert_eq!(origin(&telemetry), Some(Origin::Adopted));
    telemetry.enter(Phase::Removed);
    assert_eq!(telemetry.live().driver, None);
}

#[test]
fn a_failure_is_told_with_its_phase_and_survives_json() {
    let telemetry = Telemetry::default();
    telemetry.enter(Phase::Removing);
    telemetry.enter(Phase::InUse);
    telemetry.failed(&Failure::new(FailureKind::InUse, "the driver is in use").with_source("a"));
    let live = telemetry.live();
    let failure = live.last_failure.clone().expect("a failure");
    assert_eq!((failure.code, failure.cause.as_str()), (Some(20), "the driver is in use: a"));
    assert_eq!(failure.phase, Some(Phase::Removing));
    assert!(!failure.remedy.is_empty());
    let text = serde_json::to_string(&live).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Live>(&text).expect("parses").last_failure,
        live.last_failure
    );
}

/// A plan that is refused changes nothing of what is loaded.
#[test]
fn patches_are_those_of_the_last_plan_that_was_installed() {
    let telemetry = Telemetry::default();
    let info = || DriverInfo {
        version: "535.1".into(),
        flavour: "open".into(),
        kernel: "6.1".into(),
        module_digest: None,
        origin: None,
    };
    let patches = |t: &Telemetry| t.live().patches;
    telemetry.planned(&[], vec!["a".into()]);
    assert!(patches(&telemetry).is_empty());
    telemetry.driver(info());
    telemetry.planned(&[], vec!["b".into()]);
    assert_eq!(patches(&telemetry), ["a"]);
    telemetry.driver(info());
    assert_eq!(patches(&telemetry), ["b"]);
    telemetry.enter(Phase::Removed);
    assert!(patches(&telemetry).is_empty());
}

#[test]
fn a_builder_is_ready_where_it_says_so_and_needs_no_driver() {
    let telemetry = Telemetry::default();
    telemetry.builder_not_ready(Some("the registry cannot be used: no answer".to_owned()));
    let live = telemetry.live();
    assert_eq!((live.ready, live.not_ready.len()), (false, 1));
    telemetry.builder_not_ready(None);
    telemetry.builder_asked(BuilderSets { served: 1, ..BuilderSets::default() }, 0);
    telemetry.builder_tried(false);
    let live = telemetry.live();
    let status = live.builder.expect("a builder");
    assert!(live.ready && status.sets.served == 1 && status.failed == 1 && status.pushed == 0);
    assert_eq!(Telemetry::default().live().builder, None);
}
