//! Agents that report to a cluster.

use super::*;
use crate::cluster::DriverReport;
use longshore_cluster::Limits;
use longshore_cluster::testing::{Api, SHORT, ScriptedAnswer};

/// Runs an agent with an API server of these answers until it is Ready, and stops it.
async fn run_with(answers: Vec<ScriptedAnswer>) -> Api {
    let scene = Scene::new();
    let before = scene.host.state();
    let api = Api::with(answers);
    let limits = Limits { call: Duration::from_secs(3600), ..SHORT };
    let report = DriverReport::to(api.cluster(limits), &scene.telemetry);
    let until_asked = async {
        scene.until_ready().await;
        while api.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), until_asked);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    report.end().await;
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Removed));
    api
}

#[tokio::test]
async fn an_api_server_that_hangs_delays_the_driver_and_its_removal_by_less_than_ten_seconds() {
    let run = run_with(vec![ScriptedAnswer::Silence, ScriptedAnswer::Silence]);
    let ended = tokio::time::timeout(Duration::from_secs(10), run).await;
    ended.expect("the agent waited for the API server");
}

#[tokio::test]
async fn an_api_server_that_fails_ends_no_agent() {
    let api = run_with(Vec::new()).await;
    assert!(!api.requests().is_empty());
}
