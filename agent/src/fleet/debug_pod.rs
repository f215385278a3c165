//! A pod that runs one command once in place of an agent's that has ended: made of the DaemonSet's template, pinned to
//! one node, deleted afterwards.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::kubectl::{Kubectl, LARGEST_ANSWER, failed, why};
use super::pods::{Container, Pod};
use super::{NAME, bounded};
use longshore_core::failure::{Failure, FailureKind};

/// Time limit of the container, which the kubelet holds to where nobody deletes the pod.
const DEADLINE: Duration = Duration::from_secs(300);
/// Pause between two looks at the pod.
const PAUSE: Duration = Duration::from_secs(1);

/// Name of the container: none of an agent's, by which agents' pods are found.
const CONTAINER: &str = "doctor";

/// Keys of a template's pod that are of its place or start: the pod has another place, and runs one command.
const OF_POD: [&str; 12] = [
    "affinity",
    "ephemeralContainers",
    "hostname",
    "initContainers",
    "nodeSelector",
    "preemptionPolicy",
    "priority",
    // The kubelet evicts other pods of a full node to admit one of a critical class.
    "priorityClassName",
    "readinessGates",
    "schedulerName",
    "schedulingGates",
    "topologySpreadConstraints",
];
/// Keys of a container that are about its ports, probes and restarts.
const OF_CONTAINER: [&str; 8] = [
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "restartPolicy",
    "startupProbe",
    "workingDir",
];

/// A command, and the pod that runs it.
pub(super) struct OneShot<'a> {
    /// Name of the pod.
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) node: &'a str,
    /// The agent's container in the template.
    pub(super) container: &'a str,
    /// Words after `longshore`; the flags of the agent's own command follow them.
    pub(super) arguments: &'a [&'a str],
}

/// End of the command.
#[derive(Debug)]
pub(super) struct OneShotEnd {
    pub(super) exit_code: i32,
    /// Its state as the kubelet reports it, with the reason.
    pub(super) state: String,
    /// Its output and its log.
    pub(super) output: Vec<u8>,
}

/// Pods that were made, and are to be deleted in any case: also where a signal stopped the command.
#[derive(Debug, Clone, Default)]
pub struct DebugPods(Arc<Mutex<Vec<(Kubectl, String, String)>>>);

impl DebugPods {
    fn add(&self, kubectl: &Kubectl, namespace: &str, name: &str) {
        let pod = (kubectl.clone(), namespace.to_owned(), name.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(pod);
    }

    fn forget(&self, namespace: &str, name: &str) {
        let mut pods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|(_, of, pod)| of != namespace || pod != name);
    }

    /// Deletes all pods. One that cannot be deleted is a warning with the command for a person.
    pub async fn delete(&self) {
        let pods = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (kubectl, namespace, name) in pods {
            let in_namespace = format!("--namespace={namespace}");
            let words =
                ["delete", "pod", &name, &in_namespace, "--ignore-not-found", "--wait=false"];
            let failure = match kubectl.call(&words, LARGEST_ANSWER).await {
                Ok(answer) if answer.status.success() => continue,
                Ok(answer) => why(&answer),
                Err(failure) => failure.one_line(),
            };
            tracing::warn!(
                "pod {namespace}/{name} is left: {failure}; run `kubectl --namespace {namespace} delete pod \
                 {name}`"
            );
        }
    }
}

impl OneShot<'_> {
    /// Makes the pod of a DaemonSet's template, waits for its end, and returns its log. `pods` deletes it.
    ///
    /// # Errors
    /// Exit code 32 where the template has no such container, kubectl fails, or the container does not start and end
    /// in time.
    pub(super) async fn run(
        &self,
        kubectl: &Kubectl,
        template: &Value,
        pods: &DebugPods,
    ) -> Result<OneShotEnd, Failure> {
        let pod = self.manifest(template)?.to_string();
        // Before the call: it may be stopped after the server took the pod.
        pods.add(kubectl, self.namespace, self.name);
        let words = ["create", "--filename=-", "--output=name"];
        let created = kubectl.call_with(&words, Some(pod.as_bytes()), LARGEST_ANSWER).await?;
        if !created.status.success() {
            // The server refused it: there is none to delete.
            if created.message.contains("(Forbidden)") {
                pods.forget(self.namespace, self.name);
            }
            return Err(failed("kubectl create pod", &created));
        }
        let (exit_code, state) = self.ended(kubectl).await?;
        let in_namespace = format!("--namespace={}", self.namespace);
        let container = format!("--container={CONTAINER}");
        let words = ["logs", self.name, &in_namespace, &container];
        let log = kubectl.call(&words, LARGEST_ANSWER).await?;
        match log.status.success() {
            true => Ok(OneShotEnd { exit_code, state, output: log.output }),
            false => {
                let what = format!("kubectl logs of pod {}, which {state}", self.name);
                Err(failed(&what, &log))
            }
        }
    }

    /// Waits for the end of the container, and returns its exit code and state.
    async fn ended(&self, kubectl: &Kubectl) -> Result<(i32, String), Failure> {
        let in_namespace = format!("--namespace={}", self.namespace);
        let words = ["get", "pod", self.name, &in_namespace, "--output=json"];
        let since = Instant::now();
        loop {
            let pod: Pod = kubectl.read(&words, LARGEST_ANSWER, "a pod").await?;
            if let Some(code) = pod.exit_code(CONTAINER) {
                return Ok((code, pod.describe(CONTAINER)));
            }
            let state = match pod.never_starts(CONTAINER) {
                Some(why) => why,
                None if since.elapsed() < DEADLINE => {
                    sleep(PAUSE).await;
                    continue;
                }
                None => {
                    format!("after {} s it {}", DEADLINE.as_secs(), pod.describe(CONTAINER))
                }
            };
            let cause = format!("pod {}/{} gave no answer: {state}", self.namespace, self.name);
            return Err(Failure::new(FailureKind::Kubectl, cause).remedy(
                "see that the node's kubelet is ready (`kubectl get node`), and run the container on the node \
                 itself: `longshore explain preflight` has its command",
            ));
        }
    }

    /// Returns the pod: image, mounts, variables, security and account of the agent's container in the template, with
    /// another command.
    fn manifest(&self, template: &Value) -> Result<Value, Failure> {
        let no_container = || {
            let name = bounded(self.container, NAME);
            Failure::new(
                FailureKind::Kubectl,
                format!("the DaemonSet's template has no container {name}"),
            )
            .remedy("name the agent's container with --container")
        };
        let mut spec = template.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        let containers = spec.get("containers").and_then(Value::as_array);
        let is_agents =
            |one: &&Value| one.get("name").and_then(Value::as_str) == Some(self.container);
        let container =
            containers.and_then(|all| all.iter().find(is_agents)).ok_or_else(no_container)?;
        let container = self.container_of(container.as_object().ok_or_else(no_container)?);
        for key in OF_POD {
            spec.remove(key);
        }
        spec.insert("containers".into(), json!([container]));
        spec.insert("nodeName".into(), json!(self.node));
        spec.insert("restartPolicy".into(), json!("Never"));
        spec.insert("tolerations".into(), json!([{ "operator": "Exists" }]));
        spec.insert("activeDeadlineSeconds".into(), json!(DEADLINE.as_secs()));
        spec.insert("terminationGracePeriodSeconds".into(), json!(5));
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            // No label of the template: a DaemonSet adopts pods with the labels of its selector.
            "metadata": {
                "name": self.name, "namespace": self.namespace,
                "labels": { "app.kubernetes.io/name": "longshore-doctor" },
            },
            "spec": spec,
        }))
    }

    fn container_of(&self, of_template: &Map<String, Value>) -> Value {
        let mut container = of_template.clone();
        for key in OF_CONTAINER {
            container.remove(key);
        }
        container.insert("name".into(), json!(CONTAINER));
        let flags = serde_json::from_value(Value::Object(of_template.clone()));
        let flags = flags.map(|of: Container| of.flags()).unwrap_or_default();
        let words = self.arguments.iter().copied().chain(flags.iter().map(String::as_str));
        container.insert("args".into(), words.collect());
        container.insert("command".into(), json!(["longshore"]));
        // Nothing is reserved: the node may be full, and the agent's own pod has its share.
        let limits =
            of_template.get("resources").and_then(|resources| resources.get("limits")).cloned();
        let requests = json!({ "cpu": "0", "memory": "0" });
        container.insert(
            "resources".into(),
            match limits {
                Some(limits) => json!({ "requests": requests, "limits": limits }),
                None => json!({ "requests": requests }),
            },
        );
        // The log is printed with the answer: failures alone, for a person.
        let log = [("LONGSHORE_LOG", "error"), ("LONGSHORE_LOG_FORMAT", "pretty")];
        let is_log = |one: &Value| {
            let name = one.get("name").and_then(Value::as_str);
            log.iter().any(|(of_log, _)| name == Some(of_log))
        };
        let mut env = of_template.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
        env.retain(|one| !is_log(one));
        env.extend(log.map(|(name, value)| json!({ "name": name, "value": value })));
        container.insert("env".into(), json!(env));
        Value::Object(container)
    }
}
