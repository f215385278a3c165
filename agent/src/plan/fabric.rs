//! Fabric manager and subnet manager of hosts with NVLink switches: their daemons, and the finding that
//! the driver has none.

use std::path::Path;

use super::daemon_place::{DaemonPlace, is_foreign};
use super::preflight;
use super::values::{Choice, Inputs, run_file_of, unread_sources};
use crate::config::{Config, Mode, Reaction};
use longshore_core::driver_version::DriverVersion;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_host::HostFacts;
use longshore_host::daemon::{Daemon, FABRICMANAGER_SOCKET, SUBNET_SETTINGS, Settings};
use longshore_host::facts::{DeviceKind, Probe, SwitchManager};

pub(super) const FABRICMANAGER: &str = "nv-fabricmanager";
pub(super) const SUBNET_MANAGER: &str = "nvlsm";

/// Socket on which the subnet manager waits for the fabric manager: the default of
/// FM_SM_IPC_INTERFACE (the Fabric Manager User Guide). NVIDIA's start script sleeps five seconds
/// instead.
const SUBNET_SOCKET: &str = "/run/nvidia-fabricmanager/fm_sm_ipc.socket";

/// Socket between the fabric manager's own parts; by default that is a TCP port.
const FABRIC_INTERNAL_SOCKET: &str = "/run/nvidia-fabricmanager/internal.socket";

/// Unit of NVIDIA's own packages on the host.
const HOSTS_SERVICE: &str = "nvidia-fabricmanager.service";
/// Number of other versions that a remedy names.
const NAMED: usize = 4;

/// A fabric that needs a manager.
pub(super) struct Wanted<'a> {
    /// Reason, for example `the GPUs are connected by NVSwitches (4 on the PCI bus)`.
    pub(super) why: String,
    /// Port that manages NVLink5 switches.
    pub(super) port: Option<&'a SwitchManager>,
    /// True if a fabric manager that longshore did not start answers on the host.
    pub(super) is_foreign: bool,
}

/// Returns the fabric that the configuration and the devices want a manager for.
pub(super) fn wanted<'a>(config: &Config, facts: &'a HostFacts) -> Option<Wanted<'a>> {
    let mode = config.daemons.fabricmanager;
    let switches = facts.devices.iter().filter(|d| d.kind == DeviceKind::NvSwitch).count();
    let port = facts.switch_managers.first();
    let has_fabric = switches > 0 || port.is_some();
    if mode == Mode::Off || (mode == Mode::Auto && !has_fabric) {
        return None;
    }
    let why = match (switches, port) {
        (0, None) => "fabricmanager is on".to_owned(),
        (0, Some(port)) => format!("{} manages NVLink5 switches", port.name),
        (1, _) => "there is an NVSwitch on the PCI bus".to_owned(),
        (many, _) => format!("there are {many} NVSwitches on the PCI bus"),
    };
    Some(Wanted { why, port, is_foreign: is_foreign(facts, FABRICMANAGER_SOCKET) })
}

/// Returns the fabric that has no manager of its own yet, in words.
pub(crate) fn needs_manager(config: &Config, facts: &HostFacts) -> Option<String> {
    wanted(config, facts).filter(|wanted| !wanted.is_foreign).map(|wanted| wanted.why)
}

/// Returns the finding that the archives have no fabric manager of the chosen version, before its user-mode files
/// are fetched. The contents of a .run file are known only once it is unpacked.
pub(super) fn not_offered(inputs: Inputs<'_>, choice: &Choice) -> Option<Finding> {
    let Inputs { config, facts, catalog } = inputs;
    let wanted = wanted(config, facts).filter(|wanted| !wanted.is_foreign)?;
    let Probe::Read(offered) = &catalog.switch_programs else { return None };
    if run_file_of(catalog, choice).is_some() || !choice.findings.is_empty() {
        return None;
    }
    let version = &choice.version;
    let what = match wanted.port {
        _ if !offered.fabric_managers.contains(version) => {
            format!("{FABRICMANAGER} of driver {version}")
        }
        Some(_) if !offered.subnet_manager => SUBNET_MANAGER.to_owned(),
        _ => return None,
    };
    let unread = unread_sources(catalog);
    let detail = format!("{}, and no archive has {what}{unread}", wanted.why);
    // A source that could not be read may have it: the user-mode files tell, once they are there.
    let mut found = match config.daemons.fabricmanager {
        Mode::On if !unread.is_empty() => return None,
        Mode::On => Finding::refusal(Code::DaemonMissing, detail),
        _ => missing(config, facts, choice.live, detail),
    };
    if !unread.is_empty() {
        found.severity = Severity::Warning;
    }
    let mut others: Vec<&String> = offered.fabric_managers.iter().collect();
    others.sort_by_key(|other| std::cmp::Reverse(DriverVersion::new(other)));
    let others: Vec<&str> = others.into_iter().take(NAMED).map(String::as_str).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        found.remedy =
            format!("select a driver version that has one ({others}), or {}", found.remedy);
    }
    Some(found)
}

/// Returns the finding about a fabric without a manager. It refuses where this driver would serve GPUs that the
/// switches connect, and no manager of the host's own is enabled; a loaded driver is not refused.
pub(super) fn missing(config: &Config, facts: &HostFacts, live: bool, detail: String) -> Finding {
    let service = facts.installed.services.iter().any(|service| service == HOSTS_SERVICE);
    let is_refused = config.daemons.fabric_manager_missing == Reaction::Refuse
        && !live
        && !service
        && serves_gpus(config, facts);
    let detail = match service {
        true => format!(
            "{detail}; the host's {HOSTS_SERVICE} is enabled, and has to be of exactly this version"
        ),
        false => detail,
    };
    let severity = if is_refused { Severity::Refusal } else { Severity::Warning };
    Finding::new(severity, Code::FabricManagerMissing, detail)
}

/// True if the driver would drive GPUs and the switches between them. Switches whose GPUs are passed through to
/// virtual machines, and GPUs whose switches are, have their fabric manager elsewhere.
fn serves_gpus(config: &Config, facts: &HostFacts) -> bool {
    let has = |kind| {
        let mut of_kind = facts.devices.iter().filter(|device| device.kind == kind);
        of_kind.any(|device| preflight::is_free(config, facts, device))
    };
    has(DeviceKind::Gpu) && (has(DeviceKind::NvSwitch) || !facts.switch_managers.is_empty())
}

/// Returns the fabric manager, without which no CUDA program runs on such a host. It opens the
/// switches' nodes, nvidia-nvlink and the capability fabric-mgmt. NVIDIA's programs make those that
/// lack the mode and owner in /proc themselves (nvidia-modprobe-utils.c, `mknod_helper`). They are
/// made before it starts, so that it needs no CAP_MKNOD.
///
/// Its settings name files that it writes as root, and files that it parses, so no container may
/// write to them: settings and state are in the agent's private directory.
pub(super) fn fabric_manager(place: &DaemonPlace<'_>) -> Daemon {
    let given = &place.config.operator.fabric;
    let share = place.driver_root().join("usr/share/nvidia/nvswitch");
    let private = place.config.paths.daemons();
    let file = private.join("fabricmanager.cfg");
    let state = private.join("fabricmanager.state");
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
                set("STATE_FILE_NAME", &state.display().to_string()),
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
/// umad device of that port. Its settings are the tree's own, at the path where they are
/// bind-mounted for it, which no container shares.
pub(super) fn subnet_manager(place: &DaemonPlace<'_>, manager: &SwitchManager) -> Daemon {
    let file = Path::new(SUBNET_SETTINGS).join("nvlsm.conf").display().to_string();
    let pid_file = place.config.paths.daemons().join("nvlsm.pid").display().to_string();
    let arguments =
        ["-F", &file, "-g", &manager.port, "--pid_file", &pid_file, "--log_file", "stdout"];
    Daemon {
        arguments: arguments.map(str::to_owned).to_vec(),
        required: true,
        ..place.daemon(SUBNET_MANAGER, SUBNET_SOCKET, Mode::On)
    }
}
