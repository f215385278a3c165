use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::telemetry::Telemetry;
use longshore_host::fake::{FakeHost, Ill};

/// Maximum wait for a state.
const AMPLE: Duration = Duration::from_secs(20);

fn daemon() -> Daemon {
    Daemon {
        name: "d".to_owned(),
        program: "/d".into(),
        arguments: Vec::new(),
        libraries: "/l".into(),
        socket: "/s".into(),
        settings: None,
        capabilities: Vec::new(),
        required: true,
        ready_within: 0,
    }
}

/// States that a keeper reports, in their order.
type States = mpsc::UnboundedReceiver<DaemonState>;

/// Keeps a daemon running; its states go to the telemetry and to the receiver.
fn keep_running(host: &Arc<dyn Host>, telemetry: &Telemetry) -> (Keeper, States) {
    let (reported, states) = mpsc::unbounded_channel();
    let telemetry = telemetry.clone();
    let kept = vec![Kept { daemon: daemon(), mark: "m".to_owned() }];
    let keeper = Keeper::begin(host, kept, move |daemon, state| {
        telemetry.daemon(&daemon.name, daemon.required, state);
        // The test may have seen enough.
        let _ = reported.send(state);
    });
    (keeper, states)
}

struct Scene {
    fake: Arc<FakeHost>,
    telemetry: Telemetry,
    keeper: Keeper,
    states: States,
}

/// A host with a driver and a daemon that is being kept running.
fn kept() -> Scene {
    let fake = Arc::new(FakeHost::default());
    fake.change(|state| {
        state.loaded.insert("nvidia".to_owned(), String::new());
        state.daemons.insert("m".to_owned(), "d".to_owned());
    });
    let host: Arc<dyn Host> = Arc::clone(&fake) as Arc<dyn Host>;
    let telemetry = Telemetry::default();
    let (keeper, states) = keep_running(&host, &telemetry);
    Scene { fake, telemetry, keeper, states }
}

impl Scene {
    fn state(&self) -> Option<DaemonState> {
        self.telemetry.live().daemons.first().map(|daemon| daemon.state)
    }

    /// Waits until the daemon enters the state.
    async fn comes_to(&mut self, state: DaemonState) {
        let came = async { while self.states.recv().await.expect("a keeper") != state {} };
        tokio::time::timeout(AMPLE, came).await.expect("in time");
    }
}

#[tokio::test]
async fn a_daemon_that_dies_is_started_again() {
    let mut scene = kept();
    scene.comes_to(DaemonState::Live).await;
    assert!(scene.fake.log().is_empty());
    scene.fake.daemon_dies("d");
    scene.comes_to(DaemonState::BackingOff).await;
    assert!(!scene.telemetry.live().daemons.is_empty());
    scene.comes_to(DaemonState::Live).await;
    assert_eq!(scene.fake.log(), ["start d"]);
    assert!(scene.fake.state().daemons.contains_key("m"));
    assert_eq!(scene.telemetry.live().daemons[0].restarts, 1);
    scene.keeper.end().await;
    assert!(scene.fake.state().daemons.contains_key("m"), "the undo ends it");
}

/// On a host with a hanging process of root's, the runtime's only thread is not blocked.
#[tokio::test]
async fn while_processes_cannot_be_looked_at_the_runtime_goes_on_and_the_keeper_too() {
    let stuck = longshore_host::fake::Stuck::new();
    let host: Arc<dyn Host> = Arc::new(stuck.host(Duration::from_secs(2)));
    let telemetry = Telemetry::default();
    let (keeper, mut states) = keep_running(&host, &telemetry);
    let backs_off = async { while states.recv().await != Some(DaemonState::BackingOff) {} };
    let mut backs_off = pin!(tokio::time::timeout(AMPLE, backs_off));
    // A tick that comes late shows that the runtime's thread was blocked.
    loop {
        let asleep = Instant::now();
        tokio::select! {
            reported = &mut backs_off => break reported.expect("no state was reported"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        assert!(
            asleep.elapsed() < Duration::from_secs(1),
            "a worker could not run its other tasks"
        );
    }
    keeper.end().await;
    stuck.let_go();
}

#[tokio::test]
async fn one_that_will_not_start_is_tried_again_until_the_stop() {
    let mut scene = kept();
    scene.fake.daemon_is("d", Some(Ill::Dies));
    scene.fake.daemon_dies("d");
    // It backs off after its end, and after each of two starts.
    for _ in 0..3 {
        scene.comes_to(DaemonState::BackingOff).await;
    }
    assert_eq!(scene.fake.log().len(), 2);
    assert_ne!(scene.state(), Some(DaemonState::Live));
    scene.keeper.end().await;
    assert!(scene.fake.state().daemons.is_empty());
}
