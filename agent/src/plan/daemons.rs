//! Selection of the driver's daemons, which start after all other steps.

use std::path::{Path, PathBuf};

use super::{Reason, labels};
use crate::config::{Config, Mode};
use crate::steps::{MakeDir, MountTmpfs, Share, StartDaemon, Step};
use longshore_build::source::userspace::AvailableUserspace;
use longshore_core::finding::{Code, Finding};
use longshore_core::machine::Machine;
use longshore_host::HostFacts;
use longshore_host::daemon::{Daemon, FABRICMANAGER_SOCKET, PERSISTENCED_SOCKET, Settings};
use longshore_host::facts::{DeviceKind, SwitchManager};

const PERSISTENCED: &str = "nvidia-persistenced";
const FABRICMANAGER: &str = "nv-fabricmanager";
const SUBNET_MANAGER: &str = "nvlsm";

/// Directory of further files of the subnet manager's package, named in its settings: nvlsm.conf
/// has `plugin_options -grpc_mgr --config_file /usr/share/nvidia/nvlsm/grpc_mgr.conf`, and without
/// that plugin nothing listens on its socket.
pub(crate) const SUBNET_SETTINGS: &str = "/usr/share/nvidia/nvlsm";

/// Socket on which the subnet manager waits for the fabric manager: the default of
/// FM_SM_IPC_INTERFACE (the Fabric Manager User Guide). NVIDIA's start script sleeps five seconds
/// instead.
const SUBNET_SOCKET: &str = "/run/nvidia-fabricmanager/fm_sm_ipc.socket";

/// Socket between the fabric manager's own parts; by default that is a TCP port.
const FABRIC_INTERNAL_SOCKET: &str = "/run/nvidia-fabricmanager/internal.socket";

/// Daemon steps, their reasons, and findings.
#[derive(Debug, Default)]
pub(super) struct Daemons {
    pub(super) steps: Vec<Step>,
    pub(super) reasons: Vec<Reason>,
    pub(super) findings: Vec<Finding>,
}

/// Returns the daemons for a host, with their programs in `tree`; without a tree their existence is
/// unknown.
pub(super) fn daemons(
    config: &Config,
    facts: &HostFacts,
    tree: Option<&AvailableUserspace>,
) -> Daemons {
    let mut found = Daemons::default();
    let Some(tree) = tree else { return found };
    let place = Place { config, tree };
    let mut daemons: Vec<Daemon> = found.persistence(&place, facts).into_iter().collect();
    daemons.extend(found.fabric(&place, facts));
    if !daemons.is_empty() {
        let run = place.driver_root().join("run");
        let label = labels::of_nodes(facts);
        found.steps.push(Step::MountTmpfs(MountTmpfs { target: run, label }));
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

/// Location of the daemons' programs, with the results so far.
struct Place<'a> {
    config: &'a Config,
    tree: &'a AvailableUserspace,
}

impl Place<'_> {
    fn driver_root(&self) -> &Path {
        &self.config.paths.driver_root
    }

    /// Returns the same path below the driver root.
    fn in_root(&self, path: &Path) -> PathBuf {
        self.driver_root().join(path.strip_prefix("/").unwrap_or(path))
    }

    fn has(&self, program: &str) -> bool {
        self.tree.tools.iter().any(|tool| tool == program)
    }

    fn daemon(&self, program: &str, socket: &str, mode: Mode) -> Daemon {
        let libraries = match Machine::named(&self.tree.arch) {
            Ok(machine) => self.driver_root().join("usr/lib").join(machine.triplet),
            Err(_) => self.driver_root().join("usr/lib"),
        };
        Daemon {
            name: program.to_owned(),
            program: self.driver_root().join("usr/bin").join(program),
            arguments: Vec::new(),
            libraries,
            socket: PathBuf::from(socket),
            settings: None,
            capabilities: Vec::new(),
            required: mode == Mode::On,
            ready_within: self.config.daemons.deadline.as_secs(),
        }
    }
}

impl Daemons {
    fn persistence(&mut self, place: &Place<'_>, facts: &HostFacts) -> Option<Daemon> {
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
    fn fabric(&mut self, place: &Place<'_>, facts: &HostFacts) -> Vec<Daemon> {
        let mode = place.config.daemons.fabricmanager;
        let switches = facts.devices.iter().filter(|d| d.kind == DeviceKind::NvSwitch).count();
        let manager = facts.switch_managers.first();
        let has_fabric = switches > 0 || manager.is_some();
        if mode == Mode::Off || (mode == Mode::Auto && !has_fabric) {
            return Vec::new();
        }
        if is_foreign(facts, FABRICMANAGER_SOCKET) {
            self.leave(FABRICMANAGER, FABRICMANAGER_SOCKET);
            return Vec::new();
        }
        if !place.has(FABRICMANAGER) {
            self.findings.push(match mode {
                Mode::On => lacks(FABRICMANAGER, place),
                _ => no_fabric_manager(place, switches),
            });
            return Vec::new();
        }
        let mut daemons = Vec::new();
        let mut fabric = fabric_manager(place);
        if let Some(manager) = manager {
            if !place.has(SUBNET_MANAGER) {
                self.findings.push(lacks(SUBNET_MANAGER, place));
                return Vec::new();
            }
            let why = format!("{} manages this host's NVLink5 switches", manager.name);
            self.decide(SUBNET_MANAGER, &why);
            fabric.arguments.extend(["-g".to_owned(), manager.port.clone()]);
            daemons.push(subnet_manager(place, manager));
        }
        let why = format!("the GPUs are connected by switches ({switches} on the PCI bus)");
        self.decide(FABRICMANAGER, &why);
        daemons.push(fabric);
        daemons
    }

    /// Bind-mounts a directory of the driver root on the path that a daemon expects.
    fn share(&mut self, place: &Place<'_>, target: &Path) {
        let (source, target) = (place.in_root(target), target.to_path_buf());
        self.steps.push(Step::MakeDir(MakeDir { path: target.clone() }));
        self.steps.push(Step::Share(Share { source, target }));
    }

    fn decide(&mut self, daemon: &str, reason: &str) {
        self.reasons.push(Reason { topic: format!("daemon {daemon}"), reason: reason.to_owned() });
    }

    fn leave(&mut self, what: &str, socket: &str) {
        let seen = format!("{what} is running already: it answers on the host's {socket}");
        self.findings.push(Finding::note(Code::DaemonForeign, seen));
    }
}

fn is_foreign(facts: &HostFacts, socket: &str) -> bool {
    facts.foreign_daemons.iter().any(|there| there == Path::new(socket))
}

/// Returns the fabric manager, without which no CUDA program runs on such a host. It opens the
/// switches' nodes, nvidia-nvlink and the capability fabric-mgmt. NVIDIA's programs make those that
/// lack the mode and owner in /proc themselves (nvidia-modprobe-utils.c, `mknod_helper`). They are
/// made before it starts, so that it needs no CAP_MKNOD.
fn fabric_manager(place: &Place<'_>) -> Daemon {
    let given = &place.config.operator.fabric;
    let share = place.driver_root().join("usr/share/nvidia/nvswitch");
    let run = Path::new(FABRICMANAGER_SOCKET).parent().unwrap_or(Path::new("/run"));
    let file = run.join("fabricmanager.cfg");
    let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    Daemon {
        arguments: vec!["-c".to_owned(), file.display().to_string()],
        settings: Some(Settings {
            template: share.join("fabricmanager.cfg"),
            set: [
                set("DAEMONIZE", "0"),
                // Empty: it then logs to standard error.
                set("LOG_FILE_NAME", ""),
                set("UNIX_SOCKET_PATH", FABRIC_INTERNAL_SOCKET),
                set("FM_CMD_UNIX_SOCKET_PATH", FABRICMANAGER_SOCKET),
                set("TOPOLOGY_FILE_PATH", &share.display().to_string()),
                set("STATE_FILE_NAME", &run.join("fabricmanager.state").display().to_string()),
                set("DATABASE_PATH", &share.display().to_string()),
            ]
            .into_iter()
            .chain(given.iter().map(|(key, value)| set(key, value)))
            .collect(),
            file,
        }),
        // Required by the switches' driver (nvswitch_os_is_admin).
        capabilities: vec!["CAP_SYS_ADMIN".to_owned()],
        required: true,
        ..place.daemon(FABRICMANAGER, FABRICMANAGER_SOCKET, Mode::On)
    }
}

/// Returns the subnet manager, run as by NVIDIA's nvidia-fabricmanager-start.sh (`nvlsm -F CONF -B
/// --pid_file FILE -g GUID`), but in the foreground and with its log sent to the agent. It uses the
/// umad device of that port.
fn subnet_manager(place: &Place<'_>, manager: &SwitchManager) -> Daemon {
    let file = place.in_root(Path::new(SUBNET_SETTINGS)).join("nvlsm.conf").display().to_string();
    let pid_file = Path::new(SUBNET_SOCKET).with_file_name("nvlsm.pid").display().to_string();
    let arguments =
        ["-F", &file, "-g", &manager.port, "--pid_file", &pid_file, "--log_file", "stdout"];
    Daemon {
        arguments: arguments.map(str::to_owned).to_vec(),
        required: true,
        ..place.daemon(SUBNET_MANAGER, SUBNET_SOCKET, Mode::On)
    }
}

fn lacks(what: &str, place: &Place<'_>) -> Finding {
    let seen = format!(
        "{what} is to run, and the user-mode files of driver {} have none",
        place.tree.driver_version
    );
    Finding::refusal(Code::DaemonMissing, seen)
}

fn no_fabric_manager(place: &Place<'_>, switches: usize) -> Finding {
    let seen = format!(
        "there are NVSwitches ({switches} on the PCI bus), and the user-mode files of driver {} \
         have no {FABRICMANAGER}",
        place.tree.driver_version
    );
    Finding::warning(Code::FabricManagerMissing, seen)
}
