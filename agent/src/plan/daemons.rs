//! Selection of the driver's daemons, which start after all other steps.

use std::path::{Path, PathBuf};

use super::daemon_place::{DaemonPlace, is_foreign};
use super::fabric::{self, FABRICMANAGER, SUBNET_MANAGER};
use super::labels;
use super::values::{Choice, Inputs, Reason};
use crate::config::Mode;
use crate::steps::{MakeDir, MountTmpfs, Share, StartDaemon, Step};
use longshore_core::finding::{Code, Finding};
use longshore_host::HostFacts;
use longshore_host::daemon::{Daemon, FABRICMANAGER_SOCKET, PERSISTENCED_SOCKET, SUBNET_SETTINGS};
use longshore_host::facts::DeviceKind;
use longshore_sources::userspace::AvailableUserspace;

const PERSISTENCED: &str = "nvidia-persistenced";

/// Daemon steps, their reasons, and findings.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    pub(super) steps: Vec<Step>,
    pub(super) reasons: Vec<Reason>,
    pub(super) findings: Vec<Finding>,
}

/// Returns the daemons for a host, with their programs in `tree`. Without a tree only the fabric manager is judged,
/// by what the sources offer.
pub(super) fn daemons(
    inputs: Inputs<'_>,
    choice: &Choice,
    tree: Option<&AvailableUserspace>,
) -> Daemons {
    let Inputs { config, facts, .. } = inputs;
    let mut found = Daemons::default();
    // Daemons are programs of the user mode: the host's own.
    if config.modules_only {
        return found;
    }
    let Some(tree) = tree else {
        found.findings.extend(fabric::not_offered(inputs, choice));
        return found;
    };
    let place = DaemonPlace { config, tree, live: choice.live };
    let mut daemons: Vec<Daemon> = found.persistence(&place, facts).into_iter().collect();
    daemons.extend(found.fabric(&place, facts));
    if !daemons.is_empty() {
        let run = place.driver_root().join("run");
        let label = labels::of_nodes(facts);
        found.steps.push(Step::MountTmpfs(MountTmpfs { target: run, label }));
    }
    if daemons.iter().any(|daemon| !daemon.private_files().is_empty()) {
        let path = config.paths.daemons();
        found.steps.push(Step::MakeDir(MakeDir { path }));
    }
    let mut shared: Vec<PathBuf> = Vec::new();
    for daemon in daemons {
        // Clients connect below the driver root, and the daemons' paths cannot be configured.
        let dir = daemon.socket.parent().unwrap_or(Path::new("/run")).to_path_buf();
        if !shared.contains(&dir) {
            found.steps.push(Step::MakeDir(MakeDir { path: place.in_root(&dir) }));
            found.share(&place, &dir);
            shared.push(dir);
        }
        if daemon.name == SUBNET_MANAGER {
            found.share(&place, Path::new(SUBNET_SETTINGS));
        }
        found.steps.push(Step::StartDaemon(StartDaemon { daemon }));
    }
    found
}

impl Daemons {
    fn persistence(&mut self, place: &DaemonPlace<'_>, facts: &HostFacts) -> Option<Daemon> {
        let mode = place.config.daemons.persistenced;
        let (has, foreign) = (place.has(PERSISTENCED), is_foreign(facts, PERSISTENCED_SOCKET));
        let has_gpu = facts.devices.iter().any(|device| device.kind == DeviceKind::Gpu);
        match mode {
            Mode::Off => return None,
            _ if foreign => {
                self.leave(PERSISTENCED, PERSISTENCED_SOCKET);
                return None;
            }
            Mode::Auto if !has || !has_gpu => return None,
            _ if !has => {
                self.findings.push(lacks(PERSISTENCED, place));
                return None;
            }
            _ => {}
        }
        self.decide(PERSISTENCED, "it keeps the GPUs initialized while no program uses them");
        Some(place.daemon(PERSISTENCED, PERSISTENCED_SOCKET, mode))
    }

    /// Adds the fabric manager, after the subnet manager where the switches are of NVLink5.
    fn fabric(&mut self, place: &DaemonPlace<'_>, facts: &HostFacts) -> Vec<Daemon> {
        let Some(wanted) = fabric::wanted(place.config, facts) else { return Vec::new() };
        if wanted.is_foreign {
            self.leave(FABRICMANAGER, FABRICMANAGER_SOCKET);
            return Vec::new();
        }
        if !place.has(FABRICMANAGER) {
            let version = &place.tree.driver_version;
            let detail = format!(
                "{}, and the user-mode files of driver {version} have no {FABRICMANAGER}",
                wanted.why
            );
            self.findings.push(match place.config.daemons.fabricmanager {
                Mode::On => lacks(FABRICMANAGER, place),
                _ => fabric::missing(place.config, facts, place.live, detail),
            });
            return Vec::new();
        }
        let mut daemons = Vec::new();
        let mut manager = fabric::fabric_manager(place);
        if let Some(port) = wanted.port {
            if !place.has(SUBNET_MANAGER) {
                self.findings.push(lacks(SUBNET_MANAGER, place));
                return Vec::new();
            }
            let why = format!("{} manages this host's NVLink5 switches", port.name);
            self.decide(SUBNET_MANAGER, &why);
            manager.arguments.extend(["-g".to_owned(), port.port.clone()]);
            daemons.push(fabric::subnet_manager(place, port));
        }
        self.decide(FABRICMANAGER, &wanted.why);
        daemons.push(manager);
        daemons
    }

    /// Bind-mounts a directory of the driver root on the path that a daemon expects.
    fn share(&mut self, place: &DaemonPlace<'_>, target: &Path) {
        let (source, target) = (place.in_root(target), target.to_path_buf());
        self.steps.push(Step::MakeDir(MakeDir { path: target.clone() }));
        self.steps.push(Step::Share(Share { source, target }));
    }

    fn decide(&mut self, daemon: &str, reason: &str) {
        self.reasons.push(Reason::chosen("daemon", daemon, reason));
    }

    fn leave(&mut self, what: &str, socket: &str) {
        let seen = format!("{what} is running already: it answers on the host's {socket}");
        self.findings.push(Finding::note(Code::DaemonForeign, seen));
    }
}

fn lacks(what: &str, place: &DaemonPlace<'_>) -> Finding {
    let version = &place.tree.driver_version;
    let seen = format!("{what} is to run, and the user-mode files of driver {version} have none");
    Finding::refusal(Code::DaemonMissing, seen)
}
