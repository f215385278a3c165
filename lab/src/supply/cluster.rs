//! Control plane of a real Kubernetes cluster on this machine's loopback (scripts/cluster), which one
//! guest joins as a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::host::bounded_output::Lines;
use crate::host::checkout::own_file;
use crate::host::error::{At, Error};
use crate::host::process::{self, run};
use crate::judge::records::Records;

/// Address and port of the API server in the guest: those of the service `kubernetes`.
pub(crate) const IN_GUEST: &str = "10.0.2.97:443";
/// Name of the guest's node.
pub(crate) const NODE: &str = "matrix";
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
        let line =
            said.and_then(|said| Lines::new(said).next()).transpose().at("read", &program)?;
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

    /// Starts scenarios/cluster_upgrade/administrator, which changes the first of two driver `branches` to the second.
    /// Its records and its transcript are written to `dir`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn administer(
        &mut self,
        dir: &Path,
        longshore: &Path,
        branches: [&str; 2],
    ) -> Result<(), Error> {
        let program = own_file("lab/src/scenarios/cluster_upgrade/administrator")?;
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
        for line in Lines::new(fs::File::open(log).at("open", log)?) {
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
