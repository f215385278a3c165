//! Pods of a cluster, as `kubectl get pods --output=json` prints them.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{NAME, SENTENCE, bounded};
use crate::cluster::CONTAINERS;
use longshore_cluster::is_name;
use longshore_core::failure::ExitCode;

/// A list of pods.
#[derive(Deserialize)]
pub(super) struct PodList {
    pub(super) items: Vec<Pod>,
}

/// The part of a pod's object that is read.
#[derive(Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    metadata: Metadata,
    pub(super) spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    owner_references: Vec<Owner>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) node_name: String,
    containers: Vec<Container>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Container {
    name: String,
    command: Vec<String>,
    args: Vec<String>,
}

impl Container {
    /// Returns the flags of `longshore run FLAG...`: settings, which other commands take, too. None for another command,
    /// such as the operator's `nvidia-driver init`.
    pub(super) fn flags(&self) -> Vec<String> {
        let words = self.command.iter().chain(&self.args);
        let is_program = |word: &&String| word.rsplit('/').next() == Some("longshore");
        let mut words: Vec<String> = words.skip_while(is_program).cloned().collect();
        match words.iter().position(|word| word == "run") {
            Some(at) => drop(words.remove(at)),
            None => words.clear(),
        }
        words
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    reason: String,
    message: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    state: ContainerState,
    #[serde(default)]
    last_state: ContainerState,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<IgnoredAny>,
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: String,
    message: String,
}

/// Reasons of a container that waits for something that a person has to change.
const FINAL: [&str; 5] = [
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

impl Pod {
    /// Returns its name.
    pub(super) fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Returns its namespace.
    pub(super) fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    /// True for a pod that is being deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the name of the DaemonSet that made it.
    pub(super) fn daemon_set(&self) -> Option<&str> {
        let owners = &self.metadata.owner_references;
        let owner = owners.iter().find(|owner| owner.kind == "DaemonSet")?;
        Some(&owner.name).filter(|name| is_name(name)).map(String::as_str)
    }

    fn container(&self, name: &str) -> Option<&ContainerStatus> {
        self.status.container_statuses.iter().find(|container| container.name == name)
    }

    /// True if this container runs.
    pub(super) fn runs(&self, container: &str) -> bool {
        self.container(container).is_some_and(|found| found.state.running.is_some())
    }

    /// Returns the flags of this container's command.
    pub(super) fn flags(&self, container: &str) -> Vec<String> {
        let mut all = self.spec.containers.iter();
        all.find(|one| one.name == container).map(Container::flags).unwrap_or_default()
    }

    /// True if this container has ended, and does not wait for its restart yet.
    pub(super) fn has_just_ended(&self, container: &str) -> bool {
        self.container(container).is_some_and(|found| found.state.terminated.is_some())
    }

    /// Returns the exit code of this container, once it has ended.
    pub(super) fn exit_code(&self, container: &str) -> Option<i32> {
        Some(self.container(container)?.state.terminated.as_ref()?.exit_code)
    }

    /// Returns the reason for which a container never starts, or its pod failed without a start of it.
    pub(super) fn never_starts(&self, container: &str) -> Option<String> {
        let found = self.container(container);
        let waiting = found.and_then(|found| found.state.waiting.as_ref());
        match waiting {
            Some(waiting) if FINAL.contains(&waiting.reason.as_str()) => {
                Some(reason(&waiting.reason, &waiting.message))
            }
            _ if self.status.phase == "Failed" => {
                Some(reason(&self.status.reason, &self.status.message))
            }
            _ => None,
        }
    }

    /// Describes the state of a container, and the end of its last run.
    pub(super) fn describe(&self, container: &str) -> String {
        let Some(found) = self.container(container) else {
            let phase = bounded(&self.status.phase, NAME);
            return format!("has no status of its container yet (phase {phase})");
        };
        let ended = |ended: &Terminated| {
            let code = u8::try_from(ended.exit_code).ok().and_then(ExitCode::from_number);
            let explained = code.map_or_else(String::new, |code| {
                format!(" (`longshore explain {}`)", code.number())
            });
            // An agent's termination message begins with its exit code.
            let code_first = format!("exit code {}: ", ended.exit_code);
            let message = ended.message.trim();
            let message = match message.strip_prefix(&code_first).unwrap_or(message) {
                "" => bounded(&ended.reason, NAME),
                message => bounded(message, SENTENCE),
            };
            format!("ended with exit code {}{explained}: {message}", ended.exit_code)
        };
        let state = match &found.state {
            ContainerState { running: Some(_), .. } => "runs".to_owned(),
            ContainerState { terminated: Some(state), .. } => ended(state),
            ContainerState { waiting: Some(state), .. } => {
                format!("waits: {}", reason(&state.reason, &state.message))
            }
            _ => "has not started".to_owned(),
        };
        match &found.last_state.terminated {
            Some(last) => format!("{state}; its last run {}", ended(last)),
            None => state,
        }
    }

    /// Returns its place, `NAMESPACE/NAME`.
    pub(super) fn place(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// True for a pod whose containers have ended for good.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// True for an agent's pod that runs on this node: one that the node's status names, or with an agent's container,
    /// or the given one.
    pub(super) fn is_agent_on(
        &self,
        node: &str,
        place: Option<&str>,
        container: Option<&str>,
    ) -> bool {
        self.is_on(node) && !self.has_ended() && self.is_of(place, container)
    }

    /// True for a pod of this node.
    pub(super) fn is_on(&self, node: &str) -> bool {
        self.spec.node_name == node
    }

    /// True for an agent's pod: one that a status names, or with an agent's container, or the given one.
    pub(super) fn is_of(&self, place: Option<&str>, container: Option<&str>) -> bool {
        self.is_agents(container) || place == Some(&self.place())
    }

    /// True if one of its containers has the given name, or one of an agent's.
    fn is_agents(&self, given: Option<&str>) -> bool {
        self.spec.containers().any(|name| match given {
            Some(given) => name == given,
            None => CONTAINERS.contains(&name),
        })
    }
}

impl Spec {
    /// Names of the containers.
    pub(super) fn containers(&self) -> impl Iterator<Item = &str> {
        self.containers.iter().map(|container| container.name.as_str())
    }

    /// Returns the name of the agent's container: the given one, the only one, or one of an agent's names.
    pub(super) fn agents_container(&self, given: Option<&str>) -> Result<String, String> {
        let names: Vec<&str> = self.containers().collect();
        let found = match (given, names.as_slice()) {
            (Some(given), names) => names.contains(&given).then_some(given),
            (None, [only]) => Some(*only),
            (None, names) => CONTAINERS.into_iter().find(|name| names.contains(name)),
        };
        found.map(str::to_owned).ok_or_else(|| {
            let names = bounded(&names.join(", "), NAME);
            format!(
                "none of the pod's containers ({names}) is longshore's: name it with --container"
            )
        })
    }
}

/// Splits the place of a pod; an error where it is none, or in another namespace than `only`.
pub(super) fn parts<'a>(pod: &'a str, only: Option<&str>) -> Result<(&'a str, &'a str), String> {
    let split = pod.split_once('/').filter(|(namespace, name)| is_name(namespace) && is_name(name));
    let Some((namespace, name)) = split else {
        return Err(format!("the status names no pod: {pod:?} is not NAMESPACE/NAME"));
    };
    match only {
        Some(only) if only != namespace => {
            Err(format!("pod {pod} is not in namespace {}", bounded(only, NAME)))
        }
        _ => Ok((namespace, name)),
    }
}

/// Joins a reason and its message.
fn reason(reason: &str, message: &str) -> String {
    match (bounded(reason, NAME), bounded(message, SENTENCE)) {
        (reason, message) if message.is_empty() => reason,
        (reason, message) if reason.is_empty() => message,
        (reason, message) => format!("{reason}: {message}"),
    }
}
