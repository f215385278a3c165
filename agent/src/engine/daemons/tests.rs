use std::sync::Arc;

use nix::errno::Errno;
use rstest::rstest;

use super::*;
use crate::engine::fake_images::FakeImages;
use crate::engine::tests::{SHORT_WAIT, daemon, failed, gpu_host, install};
use crate::engine::{InUseWait, NotUndone};
use crate::steps::{Bind, LoadModule, StartDaemon, Step};
use crate::telemetry::Telemetry;
use longshore_core::failure::ExitCode;
use longshore_host::fake::{FakeHost, Ill};

const NAME: &str = "nvidia-persistenced";

struct Scene {
    host: Arc<FakeHost>,
    telemetry: Telemetry,
    journal: Journal,
}

impl Scene {
    fn new() -> Self {
        let host = Arc::new(gpu_host());
        Self { host, telemetry: Telemetry::default(), journal: Journal::in_memory() }
    }

    fn engine(&self) -> Engine<'_> {
        let (host, telemetry) = (&*self.host, &self.telemetry);
        Engine {
            host,
            images: &FakeImages,
            in_use_wait: SHORT_WAIT,
            telemetry,
            refuses_missing_gpus: false,
        }
    }

    fn apply(&mut self, steps: &[Step]) -> Result<(), crate::engine::Stopped> {
        let (host, telemetry) = (Arc::clone(&self.host), self.telemetry.clone());
        let engine = Engine {
            host: &*host,
            images: &FakeImages,
            in_use_wait: SHORT_WAIT,
            telemetry: &telemetry,
            refuses_missing_gpus: false,
        };
        engine.apply(steps, &mut self.journal, &CancelFlag::default())
    }

    fn undo(&mut self) -> Result<(), NotUndone> {
        let mut journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        let result = self.engine().undo(&mut journal);
        self.journal = journal;
        result
    }

    fn log_of(&self, wanted: &[&str]) -> Vec<String> {
        let log = self.host.log().into_iter();
        log.filter(|line| wanted.iter().any(|verb| line.starts_with(verb))).collect()
    }
}

fn requested(required: bool) -> Vec<Step> {
    let mut steps = install();
    for step in &mut steps {
        if let Step::StartDaemon(StartDaemon { daemon }) = step {
            daemon.required = required;
        }
    }
    steps
}

#[test]
fn a_daemon_is_started_last_and_ended_before_any_module_goes() {
    let mut scene = Scene::new();
    scene.apply(&install()).unwrap();
    assert_eq!(kept(&scene.journal).len(), 1);
    scene.undo().unwrap();
    let log = scene.log_of(&["start", "end", "delete_module nvidia", "init_module nvidia"]);
    let at = |line: &str| log.iter().position(|l| l == line).unwrap();
    assert!(at("start nvidia-persistenced") > at("init_module nvidia_modeset"));
    assert!(at("end nvidia-persistenced") < at("delete_module nvidia_modeset"));
    assert!(kept(&scene.journal).is_empty());
}

#[test]
fn a_daemon_that_survived_its_agent_is_adopted_by_its_mark() {
    let mut scene = Scene::new();
    scene.apply(&install()).unwrap();
    let before = scene.host.state();
    scene.apply(&install()).unwrap();
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.log_of(&["start"]), ["start nvidia-persistenced"]);
}

#[test]
fn a_dead_one_is_started_anew_under_the_mark_of_its_entry() {
    let mut scene = Scene::new();
    scene.apply(&install()).unwrap();
    let mark = kept(&scene.journal)[0].mark.clone();
    scene.host.daemon_dies(NAME);
    scene.apply(&install()).unwrap();
    assert_eq!(kept(&scene.journal)[0].mark, mark);
    assert!(scene.host.state().daemons.contains_key(&mark));
    scene.undo().unwrap();
    assert!(scene.host.state().daemons.is_empty());
}

#[rstest]
#[case(Ill::Dies, Errno::ECHILD)]
#[case(Ill::Mute, Errno::ETIMEDOUT)]
fn a_required_daemon_that_does_not_serve_ends_the_installation(
    #[case] ill: Ill,
    #[case] errno: Errno,
) {
    let mut scene = Scene::new();
    let before = scene.host.state();
    scene.host.daemon_is(NAME, Some(ill));
    let failure = failed(scene.apply(&requested(true)));
    assert_eq!(failure.code(), ExitCode::Expose);
    assert!(failure.report().contains(errno.desc()), "{}", failure.report());
    assert_eq!(scene.host.state(), before);
}

#[rstest]
#[case(Ill::Dies)]
#[case(Ill::Mute)]
fn without_one_that_is_not_required_the_driver_is_ready(#[case] ill: Ill) {
    let mut scene = Scene::new();
    let before = scene.host.state();
    scene.host.daemon_is(NAME, Some(ill));
    scene.apply(&requested(false)).unwrap();
    assert_eq!(scene.telemetry.live().daemons[0].state, DaemonState::Failed);
    // It is among those that are tried again.
    assert_eq!(kept(&scene.journal).len(), 1);
    scene.undo().unwrap();
    assert_eq!(scene.host.state(), before);
}

#[test]
fn somebody_elses_daemon_is_neither_started_nor_ended() {
    let mut scene = Scene::new();
    scene.host.change(|state| state.daemons.insert("theirs".to_owned(), NAME.to_owned()));
    let before = scene.host.state();
    scene.apply(&install()).unwrap();
    assert!(scene.log_of(&["start", "end"]).is_empty());
    assert!(kept(&scene.journal).is_empty());
    scene.undo().unwrap();
    assert_eq!(scene.host.state(), before);
}

#[test]
fn one_that_ignores_sigterm_is_killed() {
    let mut scene = Scene::new();
    let before = scene.host.state();
    scene.host.daemon_is(NAME, Some(Ill::Stubborn));
    scene.apply(&install()).unwrap();
    scene.undo().unwrap();
    assert_eq!(scene.log_of(&["end"]).len(), 2);
    assert_eq!(scene.host.state(), before);
}

#[test]
fn a_driver_in_use_has_no_daemon_of_ours_any_more_and_gets_one_again() {
    let mut scene = Scene::new();
    scene.apply(&install()).unwrap();
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    assert!(matches!(scene.undo(), Err(NotUndone::InUse(_))));
    assert!(scene.host.state().daemons.is_empty());
    assert!(scene.host.state().loaded.contains_key("nvidia"));
    scene.apply(&install()).unwrap();
    assert_eq!(scene.host.state().daemons.len(), 1);
    assert_eq!(scene.log_of(&["init_module nvidia"]).len(), 3, "nothing was loaded anew");
}

#[test]
fn what_a_daemon_takes_to_end_is_taken_from_the_time_for_the_users() {
    let mut scene = Scene::new();
    scene.apply(&install()).unwrap();
    scene.host.daemon_is(NAME, Some(Ill::Stubborn));
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let mut journal = std::mem::replace(&mut scene.journal, Journal::in_memory());
    let in_use_wait = InUseWait { deadline: Duration::from_millis(1200), ..SHORT_WAIT };
    let since = std::time::Instant::now();
    let engine = Engine { in_use_wait, ..scene.engine() };
    assert!(matches!(engine.undo(&mut journal), Err(NotUndone::InUse(_))));
    assert!(since.elapsed() < Duration::from_millis(2000), "{:?}", since.elapsed());
}

#[test]
fn where_the_drivers_modules_go_its_daemons_go_first() {
    let mut scene = Scene::new();
    scene.apply(&install()).unwrap();
    let mut journal = std::mem::replace(&mut scene.journal, Journal::in_memory());
    let modules = |entry: &JournalEntry| LoadModule::recorded(&entry.step).is_some();
    scene.engine().undo_those(&modules, &mut journal).unwrap();
    assert!(scene.host.state().daemons.is_empty() && scene.host.state().loaded.is_empty());
    assert!(journal.live().any(|entry| Bind::recorded(&entry.step).is_some()));
}

#[test]
fn another_deadline_makes_no_other_daemon() {
    let one = daemon(NAME);
    assert_eq!(Daemon { required: false, ready_within: 9, ..one.clone() }, one);
    assert_ne!(Daemon { arguments: vec!["-V".to_owned()], ..one.clone() }, one);
}
