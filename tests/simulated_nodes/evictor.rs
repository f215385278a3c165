//! Controller of evictions of the simulated nodes: longshore's own, as a process with the files of its pod.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore::cluster::run_evictor;
use longshore::logging::Log;
use longshore_cluster::EvictorOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::agent::{given, mount_volumes, variables};
use crate::kubelet::{End, Error, Kubelet};
use crate::pod::{ADDRESS, FIRST_PAUSE, Running, asked, values_of};
use crate::volumes::Volumes;

/// Option of the command, and the variable with its value.
const MAX_NODES: &str = "--max-nodes";
const MAX_NODES_GIVEN: &str = "SIMULATED_MAX_NODES";

/// Words of the command of a pod's first container.
fn words(pod: &Pod) -> Vec<&str> {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let words = container.into_iter().flat_map(|of| [&of.command, &of.args]).flatten();
    words.flatten().map(String::as_str).collect()
}

/// True for a pod of the controller.
pub(crate) fn is_in(pod: &Pod) -> bool {
    words(pod).contains(&crate::EVICTOR)
}

/// Value of the option, as one word or two.
fn max_nodes(pod: &Pod) -> Option<String> {
    let words = words(pod);
    let at = words.iter().position(|word| word.starts_with(MAX_NODES))?;
    let value = words[at].strip_prefix(MAX_NODES)?.strip_prefix('=');
    value.or(words.get(at + 1).copied()).map(str::to_owned)
}

/// Runs the controller, with the environment of its pod, until SIGTERM.
pub(crate) fn main() -> ExitCode {
    mount_volumes(&given(variables::VOLUMES).unwrap_or_default());
    let log = Log::default();
    log.start(None, &given).expect("a log");
    let mut options = EvictorOptions::default();
    if let Some(nodes) = given(MAX_NODES_GIVEN) {
        options.most_nodes = nodes.parse().expect("a number of nodes");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.expect("a runtime").block_on(async {
        let mut ends = signal(SignalKind::terminate()).expect("a signal handler");
        tokio::select! {
            _ = ends.recv() => Ok(()),
            ended = run_evictor(&given, options) => ended.map(|never| match never {}),
        }
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.report(&failure);
            ExitCode::from(failure.code().number())
        }
    }
}

/// Runs a pod of the controller, with its log in the directory of its node, until its end is asked for.
pub(crate) async fn run(
    kubelet: &Kubelet,
    dir: &std::path::Path,
    node: &str,
    pod: &Pod,
    running: &Running,
    volumes: &Volumes,
    end: &mut watch::Receiver<End>,
) -> Result<(), Error> {
    let mut restarts = 0;
    while end.borrow().is_none() {
        let mut log = std::fs::OpenOptions::new();
        let log = log.create(true).append(true).open(dir.join("evictor.log"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(crate::EVICTOR).env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
            .envs(values_of(pod, node, &running.name))
            .env("KUBERNETES_SERVICE_HOST", ADDRESS)
            .env("KUBERNETES_SERVICE_PORT", kubelet.options.port.to_string())
            .env(variables::VOLUMES, volumes.to_string());
        if let Some(nodes) = max_nodes(pod) {
            command.env(MAX_NODES_GIVEN, nodes);
        }
        let mut child = command.spawn()?;
        running.status(true, restarts, json!({ "running": {} }), Value::Null).await?;
        tokio::select! {
            status = child.wait() => println!("{node}: the controller ended with {}", status?),
            seconds = asked(end) => {
                if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                    // One that has just ended needs no signal.
                    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
                }
                let grace = Duration::from_secs(seconds.try_into().unwrap_or(0));
                if timeout(grace, child.wait()).await.is_err() {
                    println!("{node}: the controller was killed after {seconds} s");
                    child.kill().await?;
                }
                return Ok(());
            }
        }
        restarts += 1;
        let waits = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "it ended" } });
        running.status(false, restarts, waits, Value::Null).await?;
        let _ = timeout(FIRST_PAUSE, asked(end)).await;
    }
    Ok(())
}
