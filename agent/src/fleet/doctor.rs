//! `longshore fleet doctor NODE`: the diagnosis of one node, by its agent's pod where that runs, else by a pod made for it.

use serde_json::Value;

use super::agent_pod::{AgentLocation, AgentOf};
use super::debug_pod::{DebugPods, OneShot, OneShotEnd};
use super::kubectl::{Kubectl, LARGEST_ANSWER, why};
use super::{NAME, bounded};
use crate::cluster::CONTAINERS;
use longshore_cluster::is_name;
use longshore_core::failure::{ExitCode, Failure, FailureKind};

/// Size limit of a namespace's DaemonSets, in bytes.
const LARGEST: u64 = 64 << 20;

/// Answer of `longshore doctor` on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// Text that it printed.
    pub text: String,
    /// Exit code that it ended with.
    pub code: ExitCode,
}

/// A DaemonSet of agents.
struct DaemonSet {
    name: String,
    container: String,
    template: Value,
}

/// Runs `longshore doctor` on a node, with the mounts, rights and settings of the node's agent: in the agent's container
/// where it runs, else in a pod of its own, which `pods` deletes. `arguments` are added.
///
/// # Errors
/// Exit code 2 where the agents' namespace is not known; 32 where kubectl fails, no DaemonSet has an agent's container,
/// or the pod does not start.
pub async fn doctor(
    kubectl: &Kubectl,
    asked: &AgentOf,
    arguments: &[&str],
    pods: &DebugPods,
) -> Result<Diagnosis, Failure> {
    let found = asked.find(kubectl).await?;
    let node = &asked.node;
    match &found.pod {
        Some((pod, container)) => {
            let place = bounded(&pod.place(), NAME);
            tracing::info!("pod {place} on node {node} {}", pod.describe(container));
            // Variables in a command are replaced by kubelet alone.
            let flags = pod.flags(container);
            let words: Vec<&str> =
                arguments.iter().copied().chain(flags.iter().map(String::as_str)).collect();
            if pod.runs(container)
                && !flags.iter().any(|flag| flag.contains("$("))
                && let Some(diagnosis) =
                    in_pod(kubectl, &found, pod.name(), container, &words).await?
            {
                return Ok(diagnosis);
            }
        }
        None => {
            tracing::info!("node {node} has no pod of an agent in namespace {}", found.namespace)
        }
    }
    let set = daemon_set(kubectl, asked, &found).await?;
    let name = format!("longshore-doctor-{:08x}", fastrand::u32(..));
    tracing::info!(
        "`longshore doctor` runs in pod {}/{name} of the template of DaemonSet {}; it is deleted afterwards",
        found.namespace,
        set.name
    );
    let arguments: Vec<&str> = ["doctor"].into_iter().chain(arguments.iter().copied()).collect();
    let one_shot = OneShot {
        name: &name,
        namespace: &found.namespace,
        node,
        container: &set.container,
        arguments: &arguments,
    };
    let OneShotEnd { exit_code, state, output } =
        one_shot.run(kubectl, &set.template, pods).await?;
    let text = String::from_utf8_lossy(&output).into_owned();
    diagnosis(exit_code, &text).ok_or_else(|| {
        let place = format!("pod {}/{name}", found.namespace);
        let cause = format!("{place} {state}: {}", bounded(&text, 1000));
        Failure::new(FailureKind::Kubectl, cause).remedy(
            "for OOMKilled raise the container's memory limit; else see that the image of the DaemonSet is longshore's; \
             --container names another container",
        )
    })
}

/// Runs it in the agent's container; None where that has ended meanwhile.
async fn in_pod(
    kubectl: &Kubectl,
    found: &AgentLocation,
    pod: &str,
    container: &str,
    arguments: &[&str],
) -> Result<Option<Diagnosis>, Failure> {
    let (in_namespace, container) = (found.in_namespace(), format!("--container={container}"));
    let mut words = vec!["exec", pod, &in_namespace, &container, "--", "longshore", "doctor"];
    words.extend(arguments);
    let answer = kubectl.call(&words, LARGEST_ANSWER).await?;
    let text = String::from_utf8_lossy(&answer.output).into_owned();
    let code = answer.status.code();
    let diagnosis = code.and_then(|code| diagnosis(code, &text)).filter(|one| !one.text.is_empty());
    if diagnosis.is_none() {
        tracing::warn!("kubectl exec in pod {}/{pod}: {}", found.namespace, why(&answer));
    }
    Ok(diagnosis)
}

fn diagnosis(code: i32, text: &str) -> Option<Diagnosis> {
    let code = u8::try_from(code).ok().and_then(ExitCode::from_number)?;
    Some(Diagnosis { text: text.to_owned(), code })
}

/// Returns the DaemonSet of the agent's pod, or the only one in the namespace with an agent's container.
async fn daemon_set(
    kubectl: &Kubectl,
    asked: &AgentOf,
    found: &AgentLocation,
) -> Result<DaemonSet, Failure> {
    let words = ["get", "daemonsets", &found.in_namespace(), "--output=json"];
    let list: Value = kubectl.read(&words, LARGEST, "a list of DaemonSets").await?;
    let owner = found.pod.as_ref().and_then(|(pod, _)| pod.daemon_set());
    let items = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    // The container that was found in the pod is the agent's, whatever its name.
    let of_pod = found.pod.as_ref().map(|(_, container)| container.as_str());
    let container = asked.container.as_deref().or(of_pod);
    let sets = items.iter().filter_map(|item| of_agents(item, container));
    let mut sets: Vec<DaemonSet> =
        sets.filter(|set| owner.is_none_or(|owner| set.name == owner)).collect();
    let none =
        |cause: String, remedy: &str| Err(Failure::new(FailureKind::Kubectl, cause).remedy(remedy));
    match (sets.pop(), sets.as_slice()) {
        (Some(set), []) => Ok(set),
        (Some(last), _) => {
            let names: Vec<&str> =
                sets.iter().chain([&last]).map(|set| set.name.as_str()).collect();
            let names = bounded(&names.join(", "), NAME);
            none(
                format!(
                    "namespace {} has several DaemonSets of agents ({names}), and the node no pod of one",
                    found.namespace
                ),
                "see why the node has no pod (`kubectl describe daemonset`): node selector, affinity, or a taint",
            )
        }
        (None, _) => none(
            format!("no DaemonSet in namespace {} has an agent's container", found.namespace),
            "name the namespace with --namespace and the container with --container",
        ),
    }
}

fn of_agents(item: &Value, container: Option<&str>) -> Option<DaemonSet> {
    let name = item.pointer("/metadata/name")?.as_str().filter(|name| is_name(name))?;
    let template = item.pointer("/spec/template")?;
    let containers = template.pointer("/spec/containers")?.as_array()?;
    let names: Vec<&str> = containers.iter().filter_map(|one| one.get("name")?.as_str()).collect();
    let agents = match container {
        Some(given) => [given].to_vec(),
        None => CONTAINERS.to_vec(),
    };
    let container = agents.into_iter().find(|name| names.contains(name))?;
    Some(DaemonSet {
        name: name.to_owned(),
        container: container.to_owned(),
        template: template.clone(),
    })
}
