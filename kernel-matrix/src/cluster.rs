//! Control plane of a real Kubernetes cluster on this machine's loopback (scripts/cluster), which one
//! guest joins as a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::bounded_output::Lines;
use crate::checkout::own_file;
use crate::checks::{self, Expected};
use crate::error::{At, Error};
use crate::process::{self, run};
use crate::records::Records;
use crate::timing;

/// Address and port of the API server in the guest: those of the service `kubernetes`.
pub const IN_GUEST: &str = "10.0.2.97:443";
/// Name of the guest's node.
pub const NODE: &str = "matrix";
/// Time limit of the control plane's start, which compiles Kubernetes where this machine has none yet.
const START_LIMIT: Duration = Duration::from_secs(3600);

/// A running control plane. Dropping it ends it.
#[derive(Debug)]
pub struct Cluster {
    /// Port of the API server on 127.0.0.1.
    pub port: u16,
    /// Port of kubelet, on 127.0.0.1 and in the guest.
    pub kubelet: u16,
    /// Directory with kubelet, kubectl and the files of the node.
    pub node: PathBuf,
    child: Child,
    /// State directory of scripts/cluster.
    state: PathBuf,
    administrator: Option<Administrator>,
}

/// A running program that works in the cluster as its administrator.
#[derive(Debug)]
struct Administrator {
    child: Child,
    /// File with its records.
    log: PathBuf,
}

impl Cluster {
    /// Starts a control plane with its state in `dir`, and waits until it answers.
    ///
    /// # Errors
    /// scripts/kubernetes or scripts/cluster failed.
    pub fn start(dir: &Path) -> Result<Self, Error> {
        run(&mut Command::new(own_file("scripts/kubernetes")?), START_LIMIT)?;
        let (state, program) = (dir.join("cluster"), own_file("scripts/cluster")?);
        let log = dir.join("cluster.log");
        let stderr = fs::File::create(&log).at("make", &log)?;
        let mut child = process::bound(&program)
            .arg("run")
            .env("CLUSTER", &state)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .at("start", &program)?;
        let said = child.stdout.take();
        let mut cluster = Self {
            port: 0,
            kubelet: 0,
            node: PathBuf::new(),
            child,
            state: state.clone(),
            administrator: None,
        };
        let line = said.and_then(|said| Lines::of(said).next()).transpose().at("read", &program)?;
        if line.is_none_or(|line| line.trim() != "ready") {
            let why = fs::read_to_string(&log).at("read", &log)?;
            return Err(Error::Unexpected(format!("scripts/cluster: {}", why.trim())));
        }
        cluster.port = port(&state)?;
        let mut node = Command::new(&program);
        node.args(["node", NODE]).env("CLUSTER", &state);
        cluster.node = run(&mut node, process::LIMIT)?.concat().into();
        cluster.kubelet = port(&cluster.node)?;
        Ok(cluster)
    }

    /// Starts host/cluster-upgrade, which changes the first of two driver `branches` to the second. Its
    /// records and its transcript are written to `dir`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn administer(
        &mut self,
        dir: &Path,
        longshore: &Path,
        branches: [&str; 2],
    ) -> Result<(), Error> {
        let program = own_file("kernel-matrix/host/cluster-upgrade")?;
        let mut command = process::bound(&program);
        command.arg(dir).arg(longshore).args(branches).env("CLUSTER", &self.state);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.at("start", &program)?;
        self.administrator = Some(Administrator { child, log: dir.join("administrator.log") });
        Ok(())
    }

    /// Adds the administrator's records, as far as they were written, to those of the guest.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn records(&self, records: &mut Records) -> Result<(), Error> {
        let Some(Administrator { log, .. }) = &self.administrator else { return Ok(()) };
        for line in Lines::of(fs::File::open(log).at("open", log)?) {
            records.take(&line.at("read", log)?);
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All of it fails only for programs that have ended already.
        if let Some(administrator) = &mut self.administrator {
            // With the programs that it runs.
            if let Ok(pid) = i32::try_from(administrator.child.id()) {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGTERM);
            }
            let _ = administrator.child.wait();
        }
        // The script ends the programs that it started.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = self.child.wait();
    }
}

/// Reads the port that a directory of scripts/cluster names.
fn port(dir: &Path) -> Result<u16, Error> {
    let path = dir.join("port");
    let text = fs::read_to_string(&path).at("read", &path)?;
    let bad = |_| Error::Unexpected(format!("{} is not a port: {}", path.display(), text.trim()));
    text.trim().parse().map_err(bad)
}

/// Returns the faults found on a node whose DaemonSet ran the agent.
pub fn wrong(expected: &Expected, records: &Records) -> Vec<String> {
    let mut wrong = checks::ready(expected, records, "ready");
    wrong.extend(condition(records));
    wrong.extend(through_kubelet(records));
    wrong.extend(looped(records));
    wrong
}

/// Checks the answers about an agent that was told to install driver 999, and ended with each start: there is no
/// container for `kubectl exec`; log and diagnosis are there all the same, and no pod of a diagnosis is left.
fn looped(records: &Records) -> Vec<String> {
    let pods = records.text("looped.pods");
    let mut wrong: Vec<String> = [
        ("looped.exec", &["container not found", "exit code 1"][..]),
        ("looped.asked", &["an agent's container are in default", "exit code 2"]),
        ("looped.logs", &["no archive is configured", "exit code 0"]),
        ("looped.doctor", &["REFUSED", "no archive is configured", "exit code 12"]),
        ("looped.pods", &["CrashLoopBackOff"]),
    ]
    .iter()
    .flat_map(|(section, wanted)| wanted.iter().map(move |text| (section, text)))
    .filter(|(section, text)| !records.text(section).contains(**text))
    .map(|(section, text)| format!("{section} has no `{text}`: {}", records.text(section)))
    .collect();
    if pods.contains("longshore-doctor") {
        wrong.push(format!("a pod of a diagnosis is left: {pods}"));
    }
    wrong
}

/// Checks that the API server reaches kubelet: for the agent's log, and for a command in its container, which says
/// `ready` and nothing else.
fn through_kubelet(records: &Records) -> Vec<String> {
    let (log, said) = (records.text("ready.logs"), records.text("ready.exec"));
    let is_ready = |line: &str| line.contains(" is ready") || line.contains("phase ready");
    let mut wrong = Vec::new();
    if !log.lines().any(is_ready) {
        wrong.push(format!("ready.logs has no line by which the driver is ready: {log}"));
    }
    if said.trim_end() != "ready" {
        wrong.push(format!("ready.exec is not `ready`: {said}"));
    }
    wrong
}

/// Checks the conditions that the API server has of the node.
fn condition(records: &Records) -> Option<String> {
    let node = records.text("ready.node");
    let is_ready = node.lines().any(|condition| condition == "Ready=True");
    (!is_ready).then(|| format!("the node is not Ready: {node}"))
}

/// Returns the measured times: of kubelet's start until its node was Ready, and of the DaemonSet's
/// creation until its pod was, and of its deletion until the API server had no pod of it.
pub fn measured(records: &Records) -> Vec<(String, String)> {
    timing::spans(
        records,
        &[
            ("node", "kubelet's start to node Ready"),
            ("pod", "DaemonSet to pod Ready"),
            ("deletion", "deletion to no pod"),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_ready_is_found() {
        for (conditions, fault) in [
            (&["MemoryPressure=False", "Ready=True"][..], ""),
            (&["MemoryPressure=True", "Ready=False"], "the node is not Ready: MemoryPressure=True"),
            (&[], "the node is not Ready"),
        ] {
            let mut records = Records::default();
            let lines = conditions.iter().map(|line| (*line).to_owned()).collect();
            records.sections.insert("ready.node".into(), lines);
            let wrong = condition(&records).unwrap_or_default();
            assert_eq!(wrong.is_empty(), fault.is_empty(), "{wrong}");
            assert!(wrong.starts_with(fault), "{wrong}");
        }
    }

    #[test]
    fn an_api_server_that_does_not_reach_kubelet_is_found() {
        for (logs, exec, faults) in [
            ("driver 550 is ready", "ready", 0),
            ("error: dial tcp", "ready", 1),
            ("error: dial tcp", "error: unable to upgrade connection", 2),
            ("driver 550 is ready", "not ready: exposure-lost: x", 1),
            ("driver 550 is ready", "ready\nerror: no", 1),
            ("phase failed: the node is not ready", "not ready", 2),
            ("", "", 2),
        ] {
            let mut records = Records::default();
            for (section, text) in [("ready.logs", logs), ("ready.exec", exec)] {
                records.sections.insert(section.into(), vec![text.to_owned()]);
            }
            assert_eq!(through_kubelet(&records).len(), faults, "{logs}, {exec}");
        }
    }

    #[test]
    fn a_wrong_answer_about_a_crash_loop_is_found() {
        let loops = "longshore-x 0/1 CrashLoopBackOff 2 1m";
        let good = [
            (
                "looped.exec",
                "error: unable to upgrade connection: container not found\nexit code 1",
            ),
            ("looped.asked", "an agent's container are in default\nexit code 2"),
            ("looped.logs", "no archive is configured\nexit code 0"),
            ("looped.doctor", "REFUSED (exit code 12)\n  no archive is configured\nexit code 12"),
            ("looped.pods", loops),
        ];
        for (section, text, fault) in [
            ("", "", ""),
            ("looped.exec", "PASSED\nexit code 0", "looped.exec has no `container not found`"),
            ("looped.asked", "exit code 2", "looped.asked has no `an agent's container"),
            ("looped.logs", "\nexit code 0", "looped.logs has no `no archive is configured`"),
            ("looped.doctor", "exit code 32", "looped.doctor has no `REFUSED`"),
            ("looped.pods", "longshore-x 1/1 Running", "looped.pods has no `CrashLoopBackOff`"),
            (
                "looped.pods",
                &format!("{loops}\nlongshore-doctor-1 0/1 Completed"),
                "a pod of a diagnosis is left",
            ),
        ] {
            let mut records = Records::default();
            for (name, answer) in good.iter().chain([&(section, text)]) {
                let lines = answer.lines().map(str::to_owned).collect();
                records.sections.insert((*name).to_owned(), lines);
            }
            let wrong = looped(&records).join("; ");
            assert!(wrong.starts_with(fault), "{wrong}");
            assert_eq!(wrong.is_empty(), fault.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn the_times_that_were_reported_are_shown() {
        let mut records = Records::default();
        records.take("@fact node.seconds 12.5 30.0");
        records.take("@fact pod.seconds 40.0 101.25");
        let times: Vec<String> = measured(&records).into_iter().map(|(_, time)| time).collect();
        assert_eq!(times, ["17.5 s", "61.2 s"]);
    }
}
