//! Preflight checks, from the facts alone.

use std::path::Path;

use super::acquisition::Acquire;
use super::values::{Reason, name_of};
use super::{conflicts, in_tree};
use crate::config::{Config, StorePlace};
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::machine::Machine;
use longshore_core::privileges::{self, NEEDS};
use longshore_host::HostFacts;
use longshore_host::facts::{
    DeviceKind, FreeSpace, ModuleLoading, PciDevice, Platform, Probe, Propagation,
};
use longshore_host::facts::{gpus, mounts};

/// Returns the findings that do not depend on the modules to be loaded.
pub(super) fn findings(config: &Config, facts: &HostFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(arch(facts));
    found.extend(devices(facts));
    found.extend(bound_elsewhere(config, facts));
    found.extend(unknown_gpus(config, facts));
    found.extend(vgpus(config, facts));
    found.extend(privileges(facts));
    found.extend(module_loading(facts));
    found.extend(sharing(config, facts));
    found.extend(host_root_hidden(config, facts));
    found.extend(lost_with_container(config, facts));
    found.extend(preempt_rt(facts));
    let hidden = is_host_hidden(config, facts);
    found.extend(conflicts::findings(config, facts, hidden));
    found
}

fn arch(facts: &HostFacts) -> Option<Finding> {
    let arch = facts.kernel.arch.as_str();
    let seen = format!("NVIDIA has no data-centre driver for {arch}");
    Machine::named(arch).is_err().then(|| Finding::refusal(Code::ArchUnsupported, seen))
}

fn devices(facts: &HostFacts) -> Option<Finding> {
    if let Some(why) = &facts.unread.pci {
        let seen = format!("the PCI bus could not be read: {why}");
        return Some(Finding::refusal(Code::DevicesUnread, seen));
    }
    facts.devices.is_empty().then(|| no_device(facts))
}

/// Returns the note of a host without a device, where the agent waits for one; None where a device is there or may be,
/// or a driver is loaded.
pub(super) fn waits_for_device(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let is_idle =
        facts.devices.is_empty() && facts.unread.pci.is_none() && facts.live_driver.is_none();
    let found = (config.no_gpu.waits() && is_idle).then(|| no_device(facts))?;
    Some(Finding { severity: Severity::Note, ..found })
}

/// Returns the finding that there is no device, with the remedy of the platform.
fn no_device(facts: &HostFacts) -> Finding {
    let none = "there is no NVIDIA GPU or NVSwitch on the PCI bus";
    match &facts.platform {
        Some(Platform::Wsl) => {
            let seen = format!("{none}: this is a WSL 2 machine, whose GPU Windows drives");
            Finding::refusal(Code::NoDevice, seen).remedy(
                "install no driver here, but update that of Windows: its libraries are in /usr/lib/wsl/lib, and \
                 containers get them by the NVIDIA container toolkit (`nvidia-ctk cdi generate --mode=wsl`)",
            )
        }
        Some(Platform::Tegra(soc)) => {
            let seen = format!("{none}: this is a {soc}, whose GPU is part of the SoC");
            Finding::refusal(Code::NoDevice, seen).remedy(
                "use the driver of the board's own system (Jetson Linux brings it with its kernel); containers \
                 get it by the NVIDIA container toolkit (`nvidia-ctk cdi generate --mode=csv`)",
            )
        }
        None => Finding::refusal(Code::NoDevice, none),
    }
}

/// Reports vGPUs of a virtual machine. The contents of a configured .run file are the user's choice: it may be a
/// guest driver.
fn vgpus(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let list: Vec<String> = facts.devices.iter().filter(|d| d.vgpu).map(name_of).collect();
    if list.is_empty() {
        return None;
    }
    let seen = format!("a vGPU of this virtual machine: {}", list.join(", "));
    match config.run_files.is_empty() && facts.live_driver.is_none() {
        true => Some(Finding::refusal(Code::VgpuGuest, seen)),
        false => Some(Finding::warning(Code::VgpuGuest, seen)),
    }
}

/// Refuses where every device is bound to another driver: the driver loads as long as it can have
/// one.
fn bound_elsewhere(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let (free, taken): (Vec<&PciDevice>, Vec<&PciDevice>) =
        facts.devices.iter().partition(|d| is_free(config, facts, d));
    let first = taken.first().and_then(|d| d.driver.as_deref())?;
    let stays = taken.first().and_then(|device| in_tree::stays(config, facts, device));
    let list: Vec<String> = taken
        .iter()
        .map(|d| format!("{} by {}", name_of(d), d.driver.as_deref().unwrap_or("?")))
        .collect();
    let why = stays.as_ref().map_or_else(String::new, |stays| format!("; {}", stays.why));
    let seen = format!("bound to another driver: {}{why}", list.join(", "));
    let remedy = stays.map_or_else(|| unbind_remedy(first), |stays| stays.remedy);
    // NVSwitches alone suffice where the GPUs are passed through to virtual machines.
    let passed_through = is_pass_through(first);
    if free.iter().any(|d| d.kind == DeviceKind::Gpu || passed_through) {
        let seen = format!("{seen}; the driver takes only the others");
        let found = Finding::warning(Code::GpuBoundElsewhere, seen);
        return Some(found.remedy(remedy));
    }
    Some(Finding::refusal(Code::GpuBoundElsewhere, seen).remedy(remedy))
}

/// True if NVIDIA's driver can have the device: no other is bound to it, or one that the plan unloads.
pub(super) fn is_free(config: &Config, facts: &HostFacts, device: &PciDevice) -> bool {
    matches!(device.driver.as_deref(), None | Some("nvidia" | "nvidia-nvswitch"))
        || in_tree::releases(config, facts, device)
}

/// Finds GPUs that the loaded driver did not take. Before it is loaded this is unknown.
pub(super) fn missing_gpus(config: &Config, facts: &HostFacts) -> Vec<Finding> {
    let parameters = config.driver.parameters.get("nvidia").map_or("", String::as_str);
    let gpus = gpus::assigned(facts.gpus.clone(), parameters);
    gpus::missing(&gpus, config.missing_gpus.refuses())
}

fn unbind_remedy(driver: &str) -> String {
    let module = driver.replace('-', "_");
    match module.as_str() {
        "nova" | "nvidiafb" => format!(
            "unload {module} (modprobe -r {module}) and blacklist it: `blacklist {module}` in /etc/modprobe.d, then renew the initramfs"
        ),
        _ if is_pass_through(driver) => format!(
            "the device is set aside for a virtual machine: unbind it from {driver} (write its address to /sys/bus/pci/drivers/{driver}/unbind) if the host is to have it"
        ),
        _ => format!("unbind it: write its address to /sys/bus/pci/drivers/{driver}/unbind"),
    }
}

/// True for drivers that reserve a device for a virtual machine or a program.
fn is_pass_through(driver: &str) -> bool {
    let known = ["pci-stub", "pciback", "xen-pciback", "uio_pci_generic", "igb_uio"];
    driver.contains("vfio") || known.contains(&driver)
}

fn unknown_gpus(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let unknown = |d: &&PciDevice| {
        d.kind == DeviceKind::Gpu && config.support.table.generation(d.device).is_none()
    };
    let list: Vec<String> = facts.devices.iter().filter(unknown).map(name_of).collect();
    (!list.is_empty()).then(|| {
        let chosen = match config.driver.flavour {
            Some(_) => "",
            None => "; taken for newer than this longshore, so only open modules are chosen for it",
        };
        let detail = format!("not in the support table: {}{chosen}", list.join(", "));
        Finding::warning(Code::GpuUnknown, detail)
    })
}

/// Capabilities that the installation needs.
pub(crate) const NEEDED: [&str; 3] = ["CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_MKNOD"];

fn privileges(facts: &HostFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Probe::Read(euid) = facts.euid
        && euid != 0
    {
        let seen = format!("running with user id {euid}");
        found.push(Finding::refusal(Code::NotRoot, seen));
    }
    if facts.initial_user_namespace == Probe::Read(false) {
        let seen = "running in a user namespace, where the kernel refuses to load modules";
        found.push(Finding::refusal(Code::UserNamespace, seen));
    }
    match &facts.capabilities {
        Probe::Read(have) => {
            let lacks = |need: &&privileges::Need| need.required && !have.contains(need.name);
            let named = |need: &privileges::Need| format!("{} (to {})", need.name, need.purpose);
            let missing: Vec<String> = NEEDS.iter().filter(lacks).map(named).collect();
            if !missing.is_empty() {
                let seen = format!("missing {}", missing.join(", "));
                found.push(Finding::refusal(Code::MissingCapability, seen));
            }
        }
        Probe::Unreadable(why) => {
            let needed = NEEDED.join(", ");
            let seen = format!("the capabilities {needed} of this process are unknown: {why}");
            found.push(Finding::warning(Code::CapabilitiesUnread, seen));
        }
    }
    found
}

fn module_loading(facts: &HostFacts) -> Option<Finding> {
    match facts.security.module_loading {
        Probe::Read(ModuleLoading::Unsupported) => Some(Finding::refusal(
            Code::KernelWithoutModules,
            format!("kernel {} was built without support for modules", facts.kernel.release),
        )),
        Probe::Read(ModuleLoading::Disabled) => Some(Finding::refusal(
            Code::ModulesDisabled,
            "loading modules is switched off until the next boot (/proc/sys/kernel/modules_disabled is 1)",
        )),
        Probe::Read(ModuleLoading::Allowed) | Probe::Unreadable(_) => None,
    }
}

/// Checks, in a container, that a mount on the driver root propagates to the host.
fn sharing(config: &Config, facts: &HostFacts) -> Option<Finding> {
    if !in_container(config, facts) {
        return None;
    }
    let target = &config.paths.driver_root;
    if let Some(why) = &facts.unread.mounts {
        let seen = format!("mount propagation to the host is unknown: {why}");
        return Some(Finding::warning(Code::RunNvidiaNotShared, seen));
    }
    let why = unshared(facts, target)?;
    let seen = format!("a mount on {} would not propagate to the host: {why}", target.display());
    Some(Finding::refusal(Code::RunNvidiaNotShared, seen))
}

/// True in a container: detected by a separate host root; without one, by an overlay as root, as
/// every container runtime makes it. A host with such a root itself shares /run, and so loses
/// nothing by it.
fn in_container(config: &Config, facts: &HostFacts) -> bool {
    let root = mounts::containing(&facts.mounts, Path::new("/"));
    config.paths.host_root != config.paths.root || root.is_some_and(mounts::is_overlay)
}

/// True if the host's own files are not accessible.
pub(crate) fn is_host_hidden(config: &Config, facts: &HostFacts) -> bool {
    config.paths.host_root == config.paths.root && in_container(config, facts)
}

/// True if the device nodes that are made for the host are in its own /dev.
pub(super) fn has_hosts_dev(config: &Config, facts: &HostFacts) -> bool {
    let dev = mounts::containing(&facts.mounts, Path::new("/dev"));
    !is_host_hidden(config, facts) || dev.is_some_and(|dev| dev.fstype == "devtmpfs")
}

/// Warns that the host's own /dev gets no nodes, which is all that programs without the driver root
/// see.
fn host_root_hidden(config: &Config, facts: &HostFacts) -> Option<Finding> {
    is_host_hidden(config, facts).then(|| {
        let seen = "the host's own file system is not accessible: its /dev gets no device nodes, only the driver root and this container do";
        if facts.foreign_first_process {
            let why = "process 1 is another container's, not the host's (shareProcessNamespace?)";
            let remedy = "replace shareProcessNamespace by hostPID: true, or mount the host's / and set host-root";
            return Finding::warning(Code::HostRootHidden, format!("{seen}; {why}")).remedy(remedy);
        }
        Finding::warning(Code::HostRootHidden, seen)
    })
}

/// Warns about directories in the container's own file system, which is removed with the container.
fn lost_with_container(config: &Config, facts: &HostFacts) -> Option<Finding> {
    let paths = &config.paths;
    let in_overlay =
        |path: &Path| mounts::containing(&facts.mounts, path).is_some_and(mounts::is_overlay);
    let is_store_lost = match &config.store_place {
        StorePlace::Attached | StorePlace::ToAttach => false,
        StorePlace::InContainer(_) => true,
        StorePlace::AsItIs => in_overlay(&paths.store),
    };
    let lost = [(&paths.store, is_store_lost), (&paths.state, in_overlay(&paths.state))];
    let lost: Vec<String> =
        lost.iter().filter(|(_, lost)| *lost).map(|(path, _)| path.display().to_string()).collect();
    if !in_container(config, facts) || lost.is_empty() {
        return None;
    }
    let detail = format!("in the container's own file system: {}", lost.join(", "));
    let StorePlace::InContainer(why) = &config.store_place else {
        return Some(Finding::warning(Code::LostWithContainer, detail));
    };
    let detail = format!("{detail}; the host's directory is not attached as the store: {why}");
    let store = paths.store.display();
    let remedy = format!(
        "mount these directories from the host (a hostPath, or docker run -v {store}:{store}), or \
         remove the cause"
    );
    Some(Finding::warning(Code::LostWithContainer, detail).remedy(remedy))
}

/// Returns the reason of a store on the host's disk that no mount of the container has.
pub(super) fn store_of_host(config: &Config) -> Option<Reason> {
    let store = config.paths.store.display();
    let reason = match config.store_place {
        StorePlace::Attached => format!("the host's {store}, attached through process 1"),
        StorePlace::ToAttach => format!(
            "the host's {store}, which `run` attaches through process 1; this plan was made without \
             its contents"
        ),
        StorePlace::AsItIs | StorePlace::InContainer(_) => return None,
    };
    Some(Reason::new("store", reason))
}

fn unshared(facts: &HostFacts, target: &Path) -> Option<String> {
    let Some(mount) = mounts::containing(&facts.mounts, target) else {
        return Some("no mount holds it".into());
    };
    let at = mount.target.display();
    match (mount.propagation, mount.peer_group, &facts.host_peer_groups) {
        (Propagation::Shared, Some(group), Probe::Read(groups)) if !groups.contains(&group) => {
            Some(format!("the mount on {at} is shared, but not with the host"))
        }
        (Propagation::Shared, ..) => None,
        (Propagation::Slave, ..) => Some(format!("the mount on {at} only receives (slave)")),
        (Propagation::Private | Propagation::Unbindable, ..) => {
            Some(format!("the mount on {at} is private"))
        }
    }
}

/// Warns where the module tree is missing: the dependencies of the driver's modules are then
/// unknown.
pub(super) fn kernel_unknown(facts: &HostFacts) -> Option<Finding> {
    let (why, release) = (facts.unread.modules()?, &facts.kernel.release);
    let seen = format!("the modules of kernel {release}, built in or as files, are unknown: {why}");
    Some(Finding::warning(Code::KernelUnknown, seen))
}

fn preempt_rt(facts: &HostFacts) -> Option<Finding> {
    facts.kernel.version.contains("PREEMPT_RT").then(|| {
        Finding::warning(
            Code::PreemptRt,
            "the kernel is PREEMPT_RT, which NVIDIA does not support; the modules are built for it nevertheless",
        )
    })
}

/// Required free space of a file system, in bytes and inodes.
struct Need {
    least: (u64, u64),
    good: (u64, u64),
}

const MIB: u64 = 1 << 20;
/// A record of some kilobytes, written under a second name; /run is a shared tmpfs.
const STATE: Need = Need { least: (MIB, 8), good: (16 * MIB, 256) };
/// Each download is checked once more, by its own size, before it is written.
const STORE: Need = Need { least: (64 * MIB, 1000), good: (512 * MIB, 10_000) };
/// The driver's kernel sources take up to 250 MiB, and once more packed.
const WITH_SOURCES: Need = Need { least: (64 * MIB, 1000), good: (1024 * MIB, 12_000) };
/// Headers and compiler, unpacked (71 packages, some 20,000 files), and the driver's source and
/// objects.
const COMPILING: Need = Need { least: (64 * MIB, 1000), good: (2048 * MIB, 40_000) };

/// Checks the free space for the record, and for everything that is to be acquired.
pub(super) fn room(facts: &HostFacts, acquire: &[Acquire]) -> Vec<Finding> {
    let compiles = acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. }));
    let has_sources =
        |a: &Acquire| matches!(a, Acquire::AssembleUserspace { sources: Some(_), .. });
    let need = match (compiles, acquire.iter().any(has_sources)) {
        (true, _) => COMPILING,
        (false, true) => WITH_SOURCES,
        (false, false) => STORE,
    };
    let (state, store) = (&facts.places.state_room, &facts.places.store_room);
    let store = store.as_ref().filter(|_| !acquire.is_empty());
    let of_state = state.as_ref().and_then(|room| short(room, &STATE));
    let of_store = store.and_then(|room| short(room, &need));
    of_state.into_iter().chain(of_store).collect()
}

fn short(room: &FreeSpace, need: &Need) -> Option<Finding> {
    let inodes = room.free_inodes.unwrap_or(u64::MAX);
    let lacks = |(bytes, files): (u64, u64)| room.free_bytes < bytes || inodes < files;
    let of_inodes =
        room.free_inodes.map_or_else(String::new, |inodes| format!(" and {inodes} inodes"));
    let seen = |(bytes, files): (u64, u64)| {
        format!(
            "the file system of {} has {} MiB{of_inodes} free; {} MiB and {files} inodes are \
             required",
            room.path.display(),
            room.free_bytes / MIB,
            bytes / MIB
        )
    };
    if lacks(need.least) {
        Some(Finding::refusal(Code::SpaceShort, seen(need.least)))
    } else {
        lacks(need.good).then(|| Finding::warning(Code::SpaceShort, seen(need.good)))
    }
}
