//! A pod on a simulated node: an agent as a process, or a user of the driver.

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{EnvVar, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::agent::variables;
use crate::evictor;
use crate::kubelet::{End, Error, Kubelet, persist};
use crate::node::SimulatedNode;
use crate::volumes::Volumes;

/// Pause before the first restart of a container; each further one is twice as long. A kubelet's are 10 s to
/// 5 min.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// Time that a user of the driver takes to end.
const USER_ENDS: Duration = Duration::from_millis(500);
/// Label with the name of the chart, in whose pods agents run.
const NAME: &str = "app.kubernetes.io/name";
/// Address of all nodes.
pub(crate) const ADDRESS: &str = "127.0.0.1";

/// Runs a pod until its end.
pub(crate) async fn run(
    kubelet: &Kubelet,
    node: &SimulatedNode,
    pod: Pod,
    mut end: watch::Receiver<End>,
) -> Result<(), Error> {
    let api = Api::namespaced(kubelet.client.clone(), &pod.namespace().unwrap_or_default());
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let container = container.map(|container| container.name.clone()).unwrap_or_default();
    let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
    let running = Running { api, name, uid, container };
    // As a kubelet makes it: agents read the names of pods there.
    let of = format!("{}_{}_{}", pod.namespace().unwrap_or_default(), running.name, running.uid);
    let logs = node.dir.join("var/log/pods").join(of);
    fs::create_dir_all(&logs)?;
    // Their labels differ, so that the selector of the agents' pods takes no other.
    let is_agent = pod.labels().get(NAME).is_some_and(|name| name == "longshore");
    if is_agent || evictor::is_in(&pod) {
        let volumes = Volumes::make(kubelet, &pod, node.dir.join("volumes").join(&running.uid));
        let volumes = volumes.await?;
        if evictor::is_in(&pod) {
            let (dir, name) = (&node.dir, &node.name);
            evictor::run(kubelet, dir, name, &pod, &running, &volumes, &mut end).await?;
        } else {
            let (running, restarts) = (&running, 0);
            let agent = AgentPod { kubelet, node, running, pod: &pod, volumes: &volumes, restarts };
            agent.run(&mut end).await?;
        }
        volumes.remove()?;
    } else {
        let uses = pod.labels().get("uses-driver").is_some_and(|uses| uses == "true");
        if uses {
            node.uses(&running.uid, true);
        }
        running.status(true, 0, json!({ "running": {} }), Value::Null).await?;
        asked(&mut end).await;
        sleep(USER_ENDS).await;
        if uses {
            node.uses(&running.uid, false);
        }
    }
    fs::remove_dir_all(&logs)?;
    running.delete().await
}

/// Waits until the end of a pod is asked for; returns the grace period in seconds.
pub(crate) async fn asked(end: &mut watch::Receiver<End>) -> i64 {
    // A pod that nobody follows any more has ended.
    end.wait_for(Option::is_some).await.ok().and_then(|grace| *grace).unwrap_or(0)
}

/// The object of a pod that runs.
pub(crate) struct Running {
    api: Api<Pod>,
    pub(crate) name: String,
    uid: String,
    /// Name of its first container.
    container: String,
}

impl Running {
    pub(crate) async fn status(
        &self,
        ready: bool,
        restarts: u32,
        state: Value,
        last: Value,
    ) -> Result<(), Error> {
        let is = if ready { "True" } else { "False" };
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let condition = |kind| json!({ "type": kind, "status": is, "lastTransitionTime": now });
        let status = json!({ "metadata": { "uid": self.uid }, "status": {
            "phase": "Running", "hostIP": ADDRESS,
            "conditions": [
                condition("Ready"), condition("ContainersReady"),
                { "type": "Initialized", "status": "True" },
                { "type": "PodScheduled", "status": "True" },
            ],
            "containerStatuses": [{
                "name": self.container, "image": "simulated", "imageID": "", "ready": ready,
                "started": true, "restartCount": restarts, "state": state, "lastState": last,
            }],
        } });
        let patch = Patch::Merge(status);
        let parameters = PatchParams::default();
        match persist(|| self.api.patch_status(&self.name, &parameters, &patch)).await {
            // It was deleted by force.
            Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    async fn delete(&self) -> Result<(), Error> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let now = now.preconditions(self.precondition());
        match persist(|| self.api.delete(&self.name, &now)).await {
            Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    fn precondition(&self) -> kube::api::Preconditions {
        kube::api::Preconditions { uid: Some(self.uid.clone()), resource_version: None }
    }
}

/// Variables of the containers of a pod on this node.
pub(crate) fn values_of(pod: &Pod, node: &str, name: &str) -> Vec<(String, String)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let given = containers.flat_map(|container| container.env.iter().flatten());
    let value = |variable: &EnvVar| {
        let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        match field.map(|field| field.field_path.as_str()) {
            Some("spec.nodeName") => node.to_owned(),
            Some("status.hostIP") => ADDRESS.to_owned(),
            Some("metadata.name") => name.to_owned(),
            Some("metadata.namespace") => pod.namespace().unwrap_or_default(),
            _ => variable.value.clone().unwrap_or_default(),
        }
    };
    given.map(|variable| (variable.name.clone(), value(variable))).collect()
}

/// A pod of the agent.
struct AgentPod<'a> {
    kubelet: &'a Kubelet,
    node: &'a SimulatedNode,
    running: &'a Running,
    pod: &'a Pod,
    volumes: &'a Volumes,
    restarts: u32,
}

/// An agent that has ended.
struct Ended {
    status: ExitStatus,
    message: String,
}

impl AgentPod<'_> {
    async fn run(mut self, end: &mut watch::Receiver<End>) -> Result<(), Error> {
        let mut pause = FIRST_PAUSE;
        let mut last = Value::Null;
        while end.borrow().is_none() {
            let (mut child, killed) = self.spawn()?;
            let ended = self.follow(&mut child, end, &last).await?;
            self.node.way.agent.store(0, Ordering::SeqCst);
            let Some(ended) = ended else { return Ok(()) };
            let code = ended.status.code();
            let code = code.unwrap_or_else(|| 128 + ended.status.signal().unwrap_or(0));
            let name = &self.node.name;
            if killed && code == 137 {
                println!("{name}: killed {}", self.node.point());
            } else {
                println!("{name}: ended with {code}: {}", ended.message);
            }
            self.restarts += 1;
            last = json!({ "terminated": {
                "exitCode": code, "reason": "Error", "message": ended.message,
            } });
            let waits = json!({ "waiting": {
                "reason": "CrashLoopBackOff", "message": "back-off restarting failed container",
            } });
            self.running.status(false, self.restarts, waits, last.clone()).await?;
            let _ = timeout(pause, asked(end)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Starts the agent; true if this one is to be killed.
    fn spawn(&self) -> Result<(Child, bool), Error> {
        let Self { kubelet, node, .. } = self;
        let options = &kubelet.options;
        let log = OpenOptions::new().create(true).append(true).open(node.dir.join("agent.log"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(crate::AGENT).env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let given = values_of(self.pod, &node.name, &self.running.name);
        let driver = given.iter().find(|(name, _)| name == "LONGSHORE_DRIVER");
        let driver = driver.map(|(_, version)| version.clone());
        command.envs(given);
        command
            .env("KUBERNETES_SERVICE_HOST", ADDRESS)
            .env("KUBERNETES_SERVICE_PORT", node.port.to_string())
            .env(variables::DIR, &node.dir)
            .env(variables::VOLUMES, self.volumes.to_string())
            .env(variables::DRIVERS, &options.drivers);
        if node.refuses {
            command.env(variables::REFUSED, &options.refused);
        }
        let dies = driver.is_some() && driver == options.kill && node.kills();
        if let (true, Some(at)) = (dies, node.dies_at) {
            command.env(variables::DIES_AT, at.to_string());
        }
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        node.way.agent.store(pid, Ordering::SeqCst);
        Ok((child, dies))
    }

    /// Follows the agent until it has ended; None if that was asked for.
    async fn follow(
        &self,
        child: &mut Child,
        end: &mut watch::Receiver<End>,
        last: &Value,
    ) -> Result<Option<Ended>, Error> {
        let out = child.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(out).lines();
        let (mut ready, mut message) = (false, String::new());
        self.running.status(false, self.restarts, json!({ "running": {} }), last.clone()).await?;
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Some(line) = line? else { break };
                    if let Some(failure) = line.strip_prefix("failed ") {
                        message = failure.to_owned();
                    }
                    let is = line.starts_with("phase ") && line.ends_with(" ready");
                    if line.starts_with("phase ") && is != ready {
                        ready = is;
                        let running = json!({ "running": {} });
                        self.running.status(ready, self.restarts, running, last.clone()).await?;
                    }
                }
                seconds = asked(end) => {
                    self.stop(child, seconds, &mut lines).await?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(Ended { status: child.wait().await?, message }))
    }

    /// Ends the agent by SIGTERM, and after the grace period by SIGKILL.
    async fn stop(
        &self,
        child: &mut Child,
        seconds: i64,
        lines: &mut Lines<BufReader<ChildStdout>>,
    ) -> Result<(), Error> {
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // One that has just ended needs no signal.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let ended = async {
            while lines.next_line().await?.is_some() {}
            child.wait().await
        };
        let grace = Duration::from_secs(seconds.try_into().unwrap_or(0));
        if timeout(grace, ended).await.is_err() {
            println!("{}: killed after {seconds} s", self.node.name);
            child.kill().await?;
        }
        Ok(())
    }
}
