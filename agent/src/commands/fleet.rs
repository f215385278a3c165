//! `longshore fleet`, which is `kubectl longshore` too: the driver on all nodes of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::{env, print, print_answer};
use crate::config::Fragment;
use crate::fleet::kubectl::Kubectl;
use crate::fleet::{
    AgentOf, Backend, Cleaning, DaemonSetRef, DebugPods, FleetStatus, InCluster, Question, clean,
    doctor, end, logs, plan, rollouts,
};
use longshore_cluster::{FILES, Limits};
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::finding::Verdict;

/// Format of the JSON.
const FORMAT: u32 = 1;

/// Subcommands of `fleet`.
#[derive(Debug, Subcommand)]
pub(super) enum FleetCommand {
    /// Show the driver on each node; exit code 31 where a node is not ready
    Status {
        #[command(flatten)]
        cluster: BackendArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Also nodes without an agent and without a label of a GPU
        #[arg(long)]
        all: bool,
        /// Show the rollouts of these DaemonSets instead; exit code 31 where one has not a Ready pod of its
        /// present version on each of its nodes
        #[arg(long, value_name = "NAMESPACE/NAME,...", value_delimiter = ',',
              conflicts_with_all = ["json", "all"])]
        daemonsets: Vec<DaemonSetRef>,
        /// Time that the rollouts may still take, and that an API server without an answer is asked again
        #[arg(long, value_name = "SPAN", default_value = "0s", value_parser = span)]
        wait: Duration,
    },
    /// Show what the agent of each node would do with --driver, or with its own configuration; exit
    /// code 31 where one would refuse, or does not answer
    Plan {
        #[command(flatten)]
        kubectl: Kubectl,
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Ask only pods of this namespace
        #[arg(long, short = 'n', value_name = "NAMESPACE")]
        namespace: Option<String>,
        /// Container of the agents' pods; by default nvidia-driver-ctr, longshore, or the only one
        #[arg(long, short = 'c', value_name = "NAME")]
        container: Option<String>,
    },
    /// Remove what agents left on nodes that have none any more: labels, annotations, condition, taint and
    /// cordon; exit code 31 where something stays
    Clean {
        #[command(flatten)]
        cluster: BackendArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Show what would be removed, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Container of the agents' pods; by default nvidia-driver-ctr or longshore
        #[arg(long, short = 'c', value_name = "NAME")]
        container: Option<String>,
        /// Delete these DaemonSets of agents before, wait until their pods are gone, and clean only the nodes whose
        /// last agent was one of theirs
        #[arg(
            long,
            value_name = "NAMESPACE/NAME,...",
            value_delimiter = ',',
            conflicts_with = "dry_run"
        )]
        end_daemonsets: Vec<DaemonSetRef>,
        /// Time that their pods have to end, and that an API server without an answer is asked again
        #[arg(long, value_name = "SPAN", default_value = "4m", value_parser = span)]
        wait: Duration,
    },
    /// Run `longshore doctor` on a node: in its agent's pod, or where that does not run in a pod made of the
    /// DaemonSet's template for it and deleted afterwards; exit code as doctor's
    Doctor {
        #[command(flatten)]
        kubectl: Kubectl,
        #[command(flatten)]
        agent: AgentOf,
        /// Also check the configured archives, registries and mirrors
        #[arg(long)]
        online: bool,
    },
    /// Print the log of a node's agent
    Logs {
        #[command(flatten)]
        kubectl: Kubectl,
        #[command(flatten)]
        agent: AgentOf,
        /// That of the run before the last restart
        #[arg(long, short = 'p')]
        previous: bool,
        /// Number of the last lines
        #[arg(long, value_name = "LINES", default_value = "500",
              value_parser = clap::value_parser!(u32).range(1..))]
        tail: u32,
    },
}

/// Access to the cluster, also in a pod.
#[derive(Debug, Args)]
pub(super) struct BackendArgs {
    #[command(flatten)]
    kubectl: Kubectl,
    /// Ask the API server with the service account of the pod that this runs in, without kubectl
    #[arg(long, conflicts_with_all = ["kubectl", "context", "kubeconfig", "call_limit"])]
    in_cluster: bool,
    /// Directory with the service account's token and ca.crt
    #[arg(long, value_name = "DIR", default_value = FILES, requires = "in_cluster")]
    service_account: PathBuf,
}

impl BackendArgs {
    /// Returns the backend; in a pod an API server that does not answer is asked again for this time.
    fn backend(self, patience: Duration) -> Result<Backend, Failure> {
        if !self.in_cluster {
            return Ok(Backend::Kubectl(self.kubectl));
        }
        let (files, limits) = (&self.service_account, Limits::default());
        InCluster::of_pod(&env, files, limits, patience).map(Backend::InCluster)
    }
}

/// Longest `--wait`.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Parses a span of time.
fn span(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    let parsed = parsed.and_then(|span| Duration::try_from(span).ok());
    let parsed = parsed.filter(|span| *span <= LONGEST_WAIT);
    parsed.ok_or_else(|| "a span of time from 0s to 24h, for example 20s or 1m30s".to_owned())
}

/// Runs a subcommand; returns 31 where a node is not ready, has no plan, or keeps leftovers, and the code of `doctor`
/// on a node. `pods` gets the pods that are to be deleted.
///
/// # Errors
/// Exit code 32 where kubectl is missing or fails, or the API server cannot be asked; 31 where a DaemonSet does not end.
pub(super) async fn fleet(
    flags: &Fragment,
    asked: FleetCommand,
    pods: &DebugPods,
) -> Result<ExitCode, Failure> {
    match asked {
        FleetCommand::Status { cluster, daemonsets, wait, .. } if !daemonsets.is_empty() => {
            let rollouts = rollouts(&cluster.backend(wait)?, &daemonsets, wait).await?;
            print(&rollouts.render())?;
            Ok(code(rollouts.are_ready()))
        }
        FleetCommand::Status { cluster, json, all, wait, .. } => {
            let cluster = cluster.backend(wait)?;
            let mut nodes = cluster.nodes(all).await?;
            nodes.look_for_agents(&cluster).await;
            let status = FleetStatus::from_nodes(nodes);
            answer(json, status.not_ready == 0, &status, || status.render(Timestamp::now()))
        }
        FleetCommand::Plan { kubectl, json, namespace, container } => {
            let question = Question {
                // Each node has its own configuration: only what was said here is handed on.
                driver: flags.driver.as_ref().map(ToString::to_string),
                flavour: flags.flavour.map(|wanted| {
                    wanted
                        .flavour()
                        .map_or_else(|| "auto".to_owned(), |flavour| flavour.to_string())
                }),
                namespace,
                container,
            };
            let nodes = Backend::Kubectl(kubectl.clone()).nodes(false).await?;
            let plans = plan(&kubectl, nodes, &question).await;
            answer(json, plans.impossible == 0, &plans, || plans.render())
        }
        FleetCommand::Clean { cluster, json, dry_run, container, end_daemonsets, wait } => {
            let cluster = cluster.backend(wait)?;
            let not_gone = end(&cluster, &end_daemonsets, wait).await?;
            let cleaning = Cleaning { dry_run, container, only: end_daemonsets };
            let cleaned = clean(&cluster, &cleaning).await?;
            let is_good = cleaned.failed == 0 && not_gone.is_none();
            let code = answer(json, is_good, &cleaned, || cleaned.render())?;
            not_gone.map_or(Ok(code), Err)
        }
        FleetCommand::Doctor { kubectl, agent, online } => {
            let arguments: &[&str] = if online { &["--online"] } else { &[] };
            let found = doctor(&kubectl, &agent, arguments, pods).await?;
            print(&found.text)?;
            Ok(found.code)
        }
        FleetCommand::Logs { kubectl, agent, previous, tail } => {
            print(&logs(&kubectl, &agent, previous, tail).await?)?;
            Ok(ExitCode::Done)
        }
    }
}

fn code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::Done } else { ExitCode::NodesNotReady }
}

/// Prints the answer of a subcommand, as JSON or as text, and returns its exit code.
fn answer(
    json: bool,
    is_good: bool,
    body: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> Result<ExitCode, Failure> {
    let code = code(is_good);
    let verdict = if is_good { Verdict::Passed } else { Verdict::Refused };
    match json {
        true => print_answer(FORMAT, verdict, code, body)?,
        false => print(&text())?,
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use longshore_core::testing::write_program;

    /// A DaemonSet whose pod stays on node `a`, as where its kubelet is away, and a node `b` without one.
    const KUBECTL: &str = r#"
echo "$*" >> calls
record() { echo "{\"longshore.dev/status\": \"{\\\"format\\\":1,\\\"pod\\\":\\\"gpu/driver-$1\\\"}\"}"; }
meta() { echo "{\"metadata\": {\"name\": \"$1\", \"resourceVersion\": \"7\", \"annotations\": $(record "$2")}}"; }
pod='{"metadata": {"namespace": "gpu", "name": "driver-aaaaa", "ownerReferences": [{"kind": "DaemonSet", "name": "driver"}]},
      "spec": {"nodeName": "a", "containers": [{"name": "longshore"}]}}'
case "$*" in
"get daemonset "*) echo '{"metadata": {"uid": "1"}}' ;;
"delete daemonset "*) ;;
"get nodes "*) echo "{\"items\": [$(meta a aaaaa), $(meta b bbbbb)]}" ;;
"get pods "*spec.nodeName=b*) echo '{"items": []}' ;;
"get pods "*) echo "{\"items\": [$pod]}" ;;
"patch node b "*) meta b bbbbb ;;
*) exit 9 ;;
esac"#;

    #[tokio::test]
    async fn a_pod_that_does_not_end_fails_after_the_other_nodes_are_clean() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("kubectl");
        let script = format!("#!/bin/sh\ncd '{}'\n{KUBECTL}\n", dir.path().display());
        write_program(&program, &script);
        let kubectl =
            Kubectl { program, context: None, kubeconfig: None, limit: Duration::from_secs(60) };
        let asked = FleetCommand::Clean {
            cluster: BackendArgs { kubectl, in_cluster: false, service_account: FILES.into() },
            json: false,
            dry_run: false,
            container: None,
            end_daemonsets: vec!["gpu/driver".parse().unwrap()],
            wait: Duration::ZERO,
        };
        let ended = fleet(&Fragment::default(), asked, &DebugPods::default()).await;
        let failure = ended.unwrap_err();
        assert_eq!(failure.code(), ExitCode::NodesNotReady);
        assert!(failure.one_line().ends_with("gpu/driver-aaaaa on node a"), "{failure:?}");
        let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
        let patched = calls.lines().filter(|call| call.starts_with("patch node"));
        assert_eq!(patched.map(|call| &call[..12]).collect::<Vec<_>>(), ["patch node b"]);
    }
}
