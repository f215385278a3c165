//! A simulated node: its files, the way of its agents to the API server, and the users of its driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longshore_host::values::DriverUser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::Options;
use crate::host::{STATE, USERS};
use crate::proxy::{self, Death, Way};
use crate::pulled::{self, KERNEL_FILE};

/// A node.
pub(crate) struct SimulatedNode {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) way: Arc<Way>,
    /// Port of the way to the API server.
    pub(crate) port: u16,
    /// The kernel refuses a module of one driver.
    pub(crate) refuses: bool,
    /// Point of the host's steps at which an agent is killed.
    pub(crate) dies_at: Option<usize>,
    death: Option<Death>,
    was_killed: AtomicBool,
    users: Mutex<BTreeMap<String, DriverUser>>,
}

impl SimulatedNode {
    /// Makes node number `number`, and serves its way to the API server.
    pub(crate) async fn make(number: usize, options: &Options) -> std::io::Result<Self> {
        let name = format!("sim-{:04}", number + 1);
        let dir = options.dir.join(&name);
        fs::create_dir_all(dir.join("proc/sys/kernel/random"))?;
        fs::write(dir.join("proc/sys/kernel/random/boot_id"), format!("boot-of-{name}\n"))?;
        let (mut dies_at, mut death) = (None, None);
        if options.kill.is_some() {
            match (number % 3, number / 3) {
                // Two points belong to each step.
                (0, n) => dies_at = Some(2 * n),
                (1, n) => death = Some(Death::Before(n)),
                (_, n) => death = Some(Death::After(n)),
            }
        }
        let way = Arc::new(Way::default());
        let port = proxy::serve(options.port, Arc::clone(&way), death).await?;
        // Spread over the nodes.
        let every = options.nodes / options.failing.max(1);
        let refuses =
            options.failing > 0 && number % every == every / 2 && number / every < options.failing;
        let (was_killed, users) = (AtomicBool::default(), Mutex::default());
        Ok(Self { name, dir, way, port, refuses, dies_at, death, was_killed, users })
    }

    /// True for the first agent that is to be killed on this node.
    pub(crate) fn kills(&self) -> bool {
        let kills = self.dies_at.is_some() || self.death.is_some();
        let first = kills && !self.was_killed.swap(true, Ordering::SeqCst);
        if first && self.death.is_some() {
            self.way.arm();
        }
        first
    }

    /// Name of the point at which an agent is killed.
    pub(crate) fn point(&self) -> String {
        match (self.dies_at, self.death) {
            (Some(n), _) => format!("before step {} of the host", n / 2),
            (_, Some(Death::Before(n))) => format!("before request {n} to the API server"),
            (_, Some(Death::After(n))) => format!("before the answer to request {n}"),
            _ => "none".to_owned(),
        }
    }

    /// Adds a user of the driver, or removes it.
    pub(crate) fn uses(&self, pod: &str, is_user: bool) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        match is_user {
            false => drop(users.remove(pod)),
            true => {
                let user = DriverUser {
                    pid: 4000 + users.len() as u32,
                    namespace_pid: None,
                    comm: "train".to_owned(),
                    container: Some("0".repeat(64)),
                    pod: Some(pod.to_owned()),
                    devices: vec!["/dev/nvidiactl".to_owned()],
                };
                users.insert(pod.to_owned(), user);
            }
        }
        let users: Vec<_> = users.values().collect();
        let (fresh, file) = (self.dir.join("users.new"), self.dir.join(USERS));
        let text = serde_json::to_vec(&users).expect("JSON");
        fs::write(&fresh, text).and_then(|()| fs::rename(fresh, file)).expect("written");
    }

    /// Boots another kernel: the driver is no longer loaded, and the agent is gone. Returns the change of the node's
    /// status.
    pub(crate) fn boot(&self, release: &str) -> std::io::Result<Value> {
        let agent = self.way.agent.load(Ordering::SeqCst);
        if agent > 0 {
            // One that has just ended needs no signal.
            let _ = kill(Pid::from_raw(agent), Signal::SIGKILL);
        }
        fs::write(self.dir.join(KERNEL_FILE), release)?;
        let id = self.dir.join("proc/sys/kernel/random/boot_id");
        fs::write(id, format!("boot-of-{}-{release}\n", self.name))?;
        match fs::remove_file(self.dir.join(STATE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(json!({ "status": { "nodeInfo": { "kernelVersion": release } } }))
    }

    /// The node's object.
    pub(crate) fn object(&self, now: &str) -> Value {
        let room = json!({ "cpu": "64", "memory": "512Gi", "pods": "110" });
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Simulated",
            "message": "no kubelet runs there", "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        });
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": self.name, "labels": {
                "kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux",
                "simulated": "true",
            } },
            "status": {
                "capacity": room, "allocatable": room, "conditions": [ready],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "none://1",
                    "kernelVersion": pulled::kernel(&self.dir), "kubeProxyVersion": "", "kubeletVersion": "v1.20.2",
                    "machineID": "", "operatingSystem": "linux", "osImage": "simulated",
                    "systemUUID": "",
                },
            },
        })
    }
}
