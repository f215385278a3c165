use std::time::Duration;

use super::*;
use longshore_host::fake::{FakeHost, Ill};

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

struct Scene {
    fake: Arc<FakeHost>,
    telemetry: Telemetry,
    keeper: Keeper,
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
    let one = Kept { daemon: daemon(), mark: "m".to_owned() };
    let keeper = Keeper::begin(&host, vec![one], &telemetry);
    Scene { fake, telemetry, keeper }
}

impl Scene {
    fn state(&self) -> Option<DaemonState> {
        self.telemetry.live().daemons.first().map(|daemon| daemon.state)
    }

    async fn comes_to(&self, state: DaemonState) {
        let came = async {
            while self.state() != Some(state) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), came).await.expect("in time");
    }
}

#[tokio::test]
async fn a_daemon_that_dies_is_started_again() {
    let scene = kept();
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
    let kept = vec![Kept { daemon: daemon(), mark: "m".to_owned() }];
    let keeper = Keeper::begin(&host, kept, &telemetry);
    let since = Instant::now();
    let state = || telemetry.live().daemons.first().map(|daemon| daemon.state);
    while state() != Some(DaemonState::BackingOff) {
        let asleep = Instant::now();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            asleep.elapsed() < Duration::from_secs(1),
            "a worker could not run its other tasks"
        );
        assert!(since.elapsed() < Duration::from_secs(20), "no state was reported");
    }
    keeper.end().await;
    stuck.let_go();
}

#[tokio::test]
async fn one_that_will_not_start_is_tried_again_until_the_stop() {
    let scene = kept();
    scene.fake.daemon_is("d", Some(Ill::Dies));
    scene.fake.daemon_dies("d");
    let twice = async {
        while scene.fake.log().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), twice).await.expect("in time");
    assert_ne!(scene.state(), Some(DaemonState::Live));
    scene.keeper.end().await;
    assert!(scene.fake.state().daemons.is_empty());
}
