//! A telemetry state in the words of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::{Program, Source, program};
use crate::journal::phase::Phase;
use crate::telemetry::{self, FailureRecord, Live};
use longshore_cluster::{
    Holder, LastFailure, NextKernel, NodeStatus, PodRef, Reason, Report, STATUS_FORMAT,
};
use longshore_core::failure::ExitCode;
use longshore_host::facts::LiveDriver;

/// Description of a state.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) report: Report,
    /// True if it is seldom of interest: it is reported only once it has lasted.
    pub(super) passes: bool,
}

/// Returns the report of a state with this loaded driver; `pods` are those of its users, by uid.
pub(super) fn describe(
    source: &Source,
    live: &Live,
    loaded: Option<LiveDriver>,
    pods: &BTreeMap<String, PodRef>,
) -> Described {
    // Of a driver that is not whole, other programs may have unloaded the modules.
    let is_whole = live.phase == Some(Phase::Ready) && live.ready || live.kept;
    let installed = live.driver.as_ref().filter(|_| is_whole);
    let version = installed.map(|driver| driver.version.clone());
    let flavour = installed.map(|driver| driver.flavour.clone());
    let loaded_flavour = loaded.as_ref().and_then(|driver| driver.flavour).map(|f| f.to_string());
    let version = version.or_else(|| loaded.map(|driver| driver.version));
    let (reason, message) = condition(live, version.as_deref());
    let report = Report {
        status: NodeStatus {
            format: STATUS_FORMAT,
            agent: live.version.clone(),
            pod: source.pod.clone(),
            kernel: source.kernel.clone(),
            phase: live.state(),
            since: live.state_since(),
            wanted: live.wanted.clone(),
            flavour: flavour.or(loaded_flavour).filter(|_| version.is_some()),
            live: version,
            last_failure: live.last_failure.as_ref().map(last_failure),
            prebuilt: live.prebuilt,
            next_kernel: live.next_kernel.as_ref().map(next_kernel),
            ..NodeStatus::default()
        },
        // Nothing waits for a driver on a node without a GPU.
        ready: matches!(reason, Reason::DriverReady | Reason::NoGpu),
        reason,
        message,
        holders: holders(source, live, pods),
    };
    let passes = match live.phase {
        None | Some(Phase::Probing | Phase::Planning) => live.awaited.is_none(),
        // A try of a change that waits, and its end.
        Some(Phase::Acquiring | Phase::Changing) => source.was_in_use,
        Some(Phase::Ready) => !live.ready,
        _ => false,
    };
    Described { report, passes }
}

/// Returns reason and message of the condition. No message has a number that changes by itself: each
/// other one is an event.
fn condition(live: &Live, loaded: Option<&str>) -> (Reason, String) {
    let wanted = live.wanted.as_deref();
    let named =
        |version: Option<&str>| version.map_or("the driver".into(), |v| format!("driver {v}"));
    let wanted_name = named(wanted);
    if live.kept {
        return kept(live, loaded);
    }
    if let Some(awaited) = &live.awaited {
        return (Reason::DriverChanging, format!("waiting for {awaited}"));
    }
    match live.phase {
        None | Some(Phase::Probing | Phase::Planning) => {
            (Reason::DriverChanging, "the agent is inspecting the host".into())
        }
        Some(Phase::Acquiring) => {
            (Reason::DriverChanging, format!("{wanted_name} is being downloaded or compiled"))
        }
        Some(Phase::Installing) => {
            (Reason::DriverChanging, format!("{wanted_name} is being installed"))
        }
        // Its modules are loaded before the change is complete, or stay loaded in it.
        Some(Phase::Changing) if loaded.is_some() && loaded == wanted => {
            (Reason::DriverChanging, format!("a change of {wanted_name} is under way"))
        }
        Some(Phase::Changing) => {
            (Reason::DriverChanging, format!("{} is being changed to {wanted_name}", named(loaded)))
        }
        Some(Phase::Ready) if live.ready => {
            let driver = live.driver.as_ref().map(|driver| driver.version.as_str());
            let ready = format!("{} is ready", named(driver.or(loaded)));
            match (driver, wanted) {
                (Some(driver), Some(wanted)) if driver != wanted && live.holders.is_some() => {
                    let drain = undrained(live);
                    let waits = format!("{ready}; a change to {wanted} waits for its users{drain}");
                    (Reason::DriverReady, waits)
                }
                _ => (Reason::DriverReady, ready),
            }
        }
        Some(Phase::Ready) => {
            let why = live.not_ready.first().map_or("it was not verified", String::as_str);
            let driver = live.driver.as_ref().map(|driver| driver.version.as_str());
            (Reason::DriverFailed, format!("{} is not whole: {why}", named(driver.or(loaded))))
        }
        Some(Phase::InUse) => match (loaded, wanted) {
            (Some(loaded), Some(wanted)) if loaded != wanted => {
                let drain = undrained(live);
                let waits =
                    format!("driver {wanted} waits for the users of driver {loaded}{drain}");
                (Reason::DriverInUse, waits)
            }
            _ => (Reason::DriverInUse, format!("{} is in use and stays installed", named(loaded))),
        },
        Some(Phase::Removing) if live.holders.is_some() => {
            let waits = format!("the removal of {} waits for its users", named(loaded));
            (Reason::DriverInUse, waits)
        }
        Some(Phase::Removing) => {
            (Reason::DriverChanging, format!("{} is being uninstalled", named(loaded)))
        }
        Some(Phase::Idle) => (Reason::NoGpu, "no GPU is here".into()),
        Some(Phase::Removed) => (Reason::DriverRemoved, "the driver was uninstalled".into()),
        Some(Phase::Failed) => {
            let failure = live.last_failure.as_ref();
            let cause = failure.map_or("the agent failed", |failure| failure.cause.as_str());
            (Reason::DriverFailed, cause.to_owned())
        }
    }
}

/// Returns the end of a message about a change that waits, where no controller drains the node for it.
fn undrained(live: &Live) -> &'static str {
    match live.node {
        Some(node) if node.unanswered => "; no controller drains this node",
        _ => "",
    }
}

/// Returns reason and message of a driver that stays for the agent's next pod.
fn kept(live: &Live, loaded: Option<&str>) -> (Reason, String) {
    let name = loaded.map_or("the driver".into(), |version| format!("driver {version}"));
    let stays = format!("{name} stays for the next pod");
    // Daemons end with their container.
    let needed = live.daemons.iter().find(|daemon| daemon.required);
    match (&live.driver, needed) {
        (Some(_), None) => (Reason::DriverReady, stays),
        (Some(_), Some(daemon)) => {
            (Reason::DriverChanging, format!("{stays}, which starts its {}", daemon.name))
        }
        // This agent did not verify it.
        (None, _) => (Reason::DriverChanging, stays),
    }
}

/// Returns the holders, each program of a pod once.
fn holders(source: &Source, live: &Live, pods: &BTreeMap<String, PodRef>) -> Vec<Holder> {
    let found = source.found();
    let present = live.holders.iter().flat_map(|holders| &holders.processes).map(program);
    let present: BTreeSet<Program> = present.collect();
    let holder = |key: Program| {
        let since = found.get(&key).copied();
        let pod = key.1.and_then(|uid| pods.get(&uid)).cloned();
        Holder { program: key.0, pod, since }
    };
    present.into_iter().map(holder).collect()
}

fn next_kernel(next: &telemetry::NextKernel) -> NextKernel {
    NextKernel { release: next.release.clone(), ready: next.ready }
}

fn last_failure(failure: &FailureRecord) -> LastFailure {
    let code = failure
        .code
        .and_then(ExitCode::from_number)
        .map_or("killed", |code| code.entry().name)
        .to_owned();
    LastFailure { code, cause: failure.cause.clone(), remedy: failure.remedy.clone() }
}
