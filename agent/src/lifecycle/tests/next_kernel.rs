//! Agents on a host with a newer kernel.

use super::*;
use crate::next_kernel::NextKernel;
use crate::next_kernel::in_memory::{AT_ONCE, Ends, InMemory};

const NEXT: Option<(&str, bool)> = Some(("6.1.0-51-amd64", false));

/// Begins the look-out of a scene's agent.
fn look_out(scene: &Scene, ends: Ends) -> (InMemory, NextKernel) {
    let kernels = InMemory::new(NEXT, ends);
    let (permission, telemetry) = (&scene.permission, &scene.telemetry);
    let begun = NextKernel::begin(kernels.clone(), permission, telemetry, kernels.tell(), AT_ONCE);
    (kernels, begun)
}

#[tokio::test]
async fn a_ready_agent_prepares_the_next_kernel_and_is_stopped_as_ever() {
    let scene = Scene::new();
    let before = scene.host.state();
    let (kernels, look_out) = look_out(&scene, Ends::Well);
    let stops = async {
        kernels.until(|state| state.is_ready).await;
        assert_eq!(scene.phase(), Some(Phase::Ready));
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), stops);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    look_out.end().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_stop_ends_a_preparation() {
    let scene = Scene::new();
    let (kernels, look_out) = look_out(&scene, Ends::Never);
    let stops = async {
        kernels.until(|state| state.begun.len() == 1).await;
        scene.stop.set();
        kernels.until(|state| state.stopped == 1).await;
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), stops);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    look_out.end().await;
    assert_eq!(kernels.with(|state| state.begun.len()), 1);
}

#[tokio::test]
async fn a_renewal_ends_a_preparation_which_is_begun_again() {
    let scene = Scene::new();
    let (kernels, look_out) = look_out(&scene, Ends::Never);
    let renews = async {
        kernels.until(|state| state.begun.len() == 1).await;
        scene.configs.lock().unwrap().push_back(Ok(scene.config()));
        scene.renewal.ask();
        kernels.until(|state| state.stopped == 1).await;
        kernels.until(|state| state.begun.len() == 2).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), renews);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    look_out.end().await;
}
