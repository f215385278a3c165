//! `longshore fleet logs NODE`: the log of a node's agent, also of the one before it.

use super::agent_pod::AgentOf;
use super::kubectl::{Kubectl, failed};
use super::{NAME, bounded};
use longshore_core::failure::{Failure, FailureKind};

/// Size limit of a log, in bytes.
const LARGEST: u64 = 64 << 20;

/// Returns the last `lines` lines of the agent's log, or with `previous` of the run before the last restart. Of a
/// container that waits for its restart, kubectl prints the run that ended.
///
/// # Errors
/// Exit code 2 where the agents' namespace is not known; 32 where kubectl fails, or the node has no pod of an agent.
pub async fn logs(
    kubectl: &Kubectl,
    asked: &AgentOf,
    previous: bool,
    lines: u32,
) -> Result<String, Failure> {
    let found = asked.find(kubectl).await?;
    let Some((pod, container)) = &found.pod else {
        let (node, namespace) = (&asked.node, &found.namespace);
        let cause = format!("node {node} has no pod of an agent in namespace {namespace}");
        return Err(Failure::new(FailureKind::Kubectl, cause).remedy(
            "see why (`kubectl describe daemonset`): node selector, affinity or a taint; or name another namespace \
             with --namespace",
        ));
    };
    tracing::info!("pod {} {}", bounded(&pod.place(), NAME), pod.describe(container));
    // Until the container starts again, the run that ended is the one that kubectl counts as the last.
    let previous = previous && !pod.has_just_ended(container);
    let (in_namespace, container) = (found.in_namespace(), format!("--container={container}"));
    let tail = format!("--tail={lines}");
    let mut words = vec!["logs", pod.name(), &in_namespace, &container, &tail];
    words.extend(previous.then_some("--previous"));
    let answer = kubectl.call(&words, LARGEST).await?;
    match answer.status.success() {
        true => Ok(String::from_utf8_lossy(&answer.output).into_owned()),
        false => Err(failed("kubectl logs", &answer)),
    }
}
