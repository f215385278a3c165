//! Checks of the doctor, listed even where nothing was found: the user sees that they ran.
//!
//! Every code belongs to exactly one check. A check without findings passed, and reports what it
//! observed.

use std::path::Path;

use jiff::Timestamp;

use super::agent::Notes;
use super::host::{day, nodes};
use super::kernel_config::KernelConfig;
use super::{Check, Look, NOT_ASKED, Text};
use crate::config::CdiSpecs;
use crate::plan::{self, Plan};
use longshore_core::finding::{Area, Code, Finding};
use longshore_host::facts::gpus::Taken;
use longshore_host::facts::{Probe, RootKind};

/// Input of the checks' texts.
pub(super) struct Input<'a> {
    pub(super) look: &'a Look<'a>,
    pub(super) plan: Option<&'a Plan>,
    pub(super) kernel_config: Result<KernelConfig, String>,
    pub(super) notes: Notes,
    pub(super) next_kernel: Text,
}

/// Definition of a check.
pub(super) struct Definition {
    area: Area,
    name: &'static str,
    pub(super) codes: &'static [Code],
    text: fn(&Input<'_>) -> Text,
}

/// All checks, in display order.
pub(super) const ALL: [Definition; 34] = [
    check(Area::Devices, "machine", &[Code::ArchUnsupported], |s| {
        Ok(s.look.facts.kernel.arch.clone())
    }),
    check(
        Area::Devices,
        "GPUs",
        &[
            Code::NoDevice,
            Code::DevicesUnread,
            Code::GpuTooOld,
            Code::GpuUnsupported,
            Code::GpuUnknown,
            Code::VgpuGuest,
        ],
        |s| Ok(plan::device_lines(&s.look.facts.devices).join("; ")),
    ),
    check(Area::Devices, "GPUs of the loaded driver", &[Code::GpuMissing], |s| {
        let facts = s.look.facts;
        match unread(s, &["gpus"]) {
            Some(why) => Err(why),
            None if !facts.loaded.contains_key("nvidia") => Err("no driver is loaded".to_owned()),
            None => {
                let taken = facts.gpus.iter().filter(|gpu| gpu.taken == Taken::Driver);
                Ok(format!("{}, and none is missing", taken.count()))
            }
        }
    }),
    check(Area::Devices, "clock", &[Code::ClockWrong], |s| match s.look.captured() {
        true => Err(CAPTURED.to_owned()),
        false => Ok(day(Timestamp::now())),
    }),
    check(
        Area::Kernel,
        "kernel",
        &[Code::KernelWithoutModules, Code::PreemptRt, Code::KernelByClang],
        |s| Ok(format!("{} {}", s.look.facts.kernel.release, s.look.facts.kernel.version)),
    ),
    check(Area::Kernel, "loading of modules", &[Code::ModulesDisabled], |s| {
        match &s.look.facts.security.module_loading {
            Probe::Read(_) => Ok("allowed".to_owned()),
            Probe::Unreadable(why) => Err(why.clone()),
        }
    }),
    check(
        Area::Kernel,
        "the kernel's own modules",
        &[Code::KernelUnknown, Code::DependencyMissing, Code::SymbolsDiffer],
        |s| {
            let facts = s.look.facts;
            let (files, builtin) = (facts.available.len(), facts.builtin.len());
            Ok(format!(
                "{files} as files and {builtin} built in, by /lib/modules/{}",
                facts.kernel.release
            ))
        },
    ),
    check(
        Area::Kernel,
        "kernel configuration",
        &[Code::CannotUnload, Code::LayoutRandomized, Code::ModulesPinned],
        |s| match &s.kernel_config {
            Ok(config) => Ok(format!(
                "modules can be unloaded, no random layout, not pinned ({})",
                config.path
            )),
            Err(why) => Err(why.clone()),
        },
    ),
    check(
        Area::Privileges,
        "capabilities",
        &[Code::NotRoot, Code::MissingCapability, Code::CapabilitiesUnread],
        |_| Ok(format!("root, with {}", plan::NEEDED.join(", "))),
    ),
    check(Area::Privileges, "user namespace", &[Code::UserNamespace], |s| {
        match &s.look.facts.initial_user_namespace {
            Probe::Read(_) => Ok("the host's".to_owned()),
            Probe::Unreadable(why) => Err(why.clone()),
        }
    }),
    check(Area::Privileges, "devices allowed by the cgroup", &[Code::DeviceAccessDenied], |s| {
        match s.look.captured() {
            true => Err(CAPTURED.to_owned()),
            false => Ok("/dev/kmsg is not denied".to_owned()),
        }
    }),
    check(
        Area::Signatures,
        "signatures",
        &[Code::SignatureRequired, Code::ModuleKeyUntrusted, Code::SignFileMissing],
        |s| Ok(plan::security_line(s.look.facts)),
    ),
    check(Area::OtherDrivers, "bound drivers", &[Code::GpuBoundElsewhere], |s| {
        let mut drivers: Vec<&str> =
            s.look.facts.devices.iter().filter_map(|d| d.driver.as_deref()).collect();
        drivers.sort_unstable();
        drivers.dedup();
        Ok(if drivers.is_empty() { "none".to_owned() } else { drivers.join(", ") })
    }),
    check(
        Area::OtherDrivers,
        "loaded driver",
        &[
            Code::OtherDriverLive,
            Code::LoadedUnread,
            Code::DaemonForeign,
            Code::ModuleReplaced,
            Code::PeermemMissing,
            Code::MofedLeftOut,
        ],
        |s| {
            let live = s.look.facts.live_driver.as_ref();
            Ok(live.map_or_else(|| "none".to_owned(), |live| live.version.clone()))
        },
    ),
    check(
        Area::OtherDrivers,
        "driver of the distribution",
        &[Code::HostBringsDriver],
        of_distribution,
    ),
    check(
        Area::OtherDrivers,
        "driver of the host itself",
        &[Code::HostDriverInstalled, Code::DriverAutoloads],
        |s| match s.look.hidden {
            true => Err(HIDDEN.to_owned()),
            false => unread(s, &["installed", "autoload", "available"])
                .map_or(Ok("none: no modules, libraries, DKMS or services".to_owned()), Err),
        },
    ),
    check(Area::OtherDrivers, "nouveau and nova", &[Code::NouveauAtBoot], |s| {
        match s.look.hidden {
            true => Err(HIDDEN.to_owned()),
            false => unread(s, &["autoload", "available"])
                .map_or(Ok("blacklisted, or not in the kernel".to_owned()), Err),
        }
    }),
    check(
        Area::OtherDrivers,
        "mounts on the driver root",
        &[Code::OtherInstallerAlive, Code::DriverRootTaken, Code::Leftovers],
        |s| match (unread(s, &PLACES), s.look.facts.places.mounts.is_empty()) {
            (Some(why), _) => Err(why),
            (None, true) => Ok("none, and no leftover of NVIDIA's container".to_owned()),
            (None, false) => Ok("longshore's own".to_owned()),
        },
    ),
    check(Area::OtherDrivers, "stale device nodes", &[Code::NodesStale], |s| match s.look.hidden {
        true => Err(HIDDEN.to_owned()),
        false if nodes(s.look).is_empty() => Ok("no nodes".to_owned()),
        false => Ok("none: the nodes are the loaded driver's".to_owned()),
    }),
    check(Area::Places, "driver root", &OF_DRIVER_ROOT, |s| {
        let path = s.look.config.paths.driver_root.display();
        match (unread(s, &PLACES), &s.look.facts.places.kind) {
            (Some(why), _) => Err(why),
            (None, RootKind::Absent) => Ok(format!("{path} does not exist yet; `run` makes it")),
            (None, _) => Ok(format!("{path} is a directory")),
        }
    }),
    check(
        Area::Places,
        "mount propagation",
        &[Code::RunNvidiaNotShared, Code::HostRootHidden, Code::LostWithContainer],
        |s| {
            let here = s.look.config.paths.host_root == Path::new("/") || s.look.captured();
            Ok(if here { "on the host itself" } else { "mounts propagate to the host" }.to_owned())
        },
    ),
    check(Area::Places, "SELinux labels", &[Code::FilesUnlabelled], |s| {
        match &s.look.facts.security.selinux {
            None => Err("the host has no SELinux".to_owned()),
            Some(selinux) if selinux.enforcing => {
                Ok("the policy has each, and is enforced".to_owned())
            }
            Some(_) => Ok("the policy has each, and is not enforced".to_owned()),
        }
    }),
    check(Area::Places, "free space", &[Code::SpaceShort], |s| {
        let room = |room: &longshore_host::facts::FreeSpace| {
            format!("{} MiB for {}", room.free_bytes >> 20, room.path.display())
        };
        let rooms: Vec<String> = s.look.facts.places.room.iter().map(room).collect();
        if rooms.is_empty() { Err(CAPTURED.to_owned()) } else { Ok(rooms.join(", ")) }
    }),
    check(Area::Places, "links in /dev/char", &[Code::DevCharLinksMissing], |s| {
        match s.look.facts.loaded.contains_key("nvidia") {
            _ if s.look.hidden => Err(HIDDEN.to_owned()),
            true => Ok("every node of the driver has one".to_owned()),
            false => Err("no driver is loaded".to_owned()),
        }
    }),
    check(Area::Places, "CDI spec", &[Code::CdiUnpublished, Code::CdiConflict], |s| {
        match s.look.config.cdi_spec {
            CdiSpecs::Off => Err("cdi-spec is off".to_owned()),
            CdiSpecs::Auto if s.look.hidden => Err(HIDDEN.to_owned()),
            CdiSpecs::Auto => Ok("no other spec has devices of nvidia.com/gpu".to_owned()),
        }
    }),
    check(
        Area::Sources,
        "sources",
        &[
            Code::SignatureMissing,
            Code::AttestationMissing,
            Code::IndexRefused,
            Code::SetDenied,
            Code::DriverBelowMinimum,
            Code::DriverNotOffered,
            Code::ArchivesUnread,
            Code::RegistryUnread,
            Code::RunFileUnread,
            Code::SourcesUnread,
            Code::NothingBuilt,
            Code::UserspaceNotOffered,
            Code::HeadersMissing,
            Code::HeadersUnknown,
            Code::ModuleNotBuilt,
            Code::AptSourcesLeftOut,
            Code::AptProxy,
        ],
        sources,
    ),
    check(Area::Sources, "daemons", &[Code::DaemonMissing, Code::FabricManagerMissing], daemons),
    check(Area::Configuration, "settings", &SETTINGS, |s| {
        let driver = s.look.config.driver.version.as_deref().unwrap_or("newest");
        Ok(format!("driver = {driver}; every parameter belongs to a loaded module"))
    }),
    check(
        Area::Agent,
        "agent",
        &[
            Code::AgentAlive,
            Code::AgentFailed,
            Code::StateUnreadable,
            Code::StateOutOfReach,
            Code::WatchLimited,
        ],
        |s| s.notes.record.clone(),
    ),
    check(Area::Agent, "refused drivers", &[Code::DriverRefusedBefore], |_| {
        Ok("none since the host was booted".to_owned())
    }),
    check(Area::Agent, "users of the driver", &[Code::DriverInUse], |s| s.notes.holders.clone()),
    check(Area::Agent, "store", &[Code::StoreUnusable, Code::StoreDamaged], |s| {
        Ok(s.notes.store.clone())
    }),
    check(Area::Agent, "failed compiles", &[Code::CompileFailedBefore], |_| {
        Ok("none that delays a retry".to_owned())
    }),
    check(Area::Agent, "modules for the next kernel", &[Code::NextKernelUnprepared], |s| {
        s.next_kernel.clone()
    }),
];

const OF_DRIVER_ROOT: [Code; 4] =
    [Code::DriverRootOdd, Code::ExposureLost, Code::OperatorFileUnwritten, Code::FeaturesUnwritten];
const SETTINGS: [Code; 5] = [
    Code::DriverVersionUnknown,
    Code::DriverSourcesMissing,
    Code::VgpuUnsupported,
    Code::DrmUnderOperator,
    Code::ParametersUnused,
];
const CAPTURED: &str = "the tree was captured on another machine";
const NO_ID: &str = "os-release has no ID";
pub(super) const HIDDEN: &str = "the host's own files are not accessible";

const fn check(
    area: Area,
    name: &'static str,
    codes: &'static [Code],
    text: fn(&Input<'_>) -> Text,
) -> Definition {
    Definition { area, name, codes, text }
}

/// Sources of the facts about the driver root's mounts.
const PLACES: [&str; 2] = ["places", "mounts"];

/// Returns the reason why one of these sources of the facts could not be read.
fn unread(input: &Input<'_>, sources: &[&str]) -> Option<String> {
    sources.iter().find_map(|source| input.look.facts.unread.get(*source)).cloned()
}

fn of_distribution(input: &Input<'_>) -> Text {
    let look = input.look;
    let os = &look.facts.os;
    match plan::brings_driver(os) {
        None if os.id.is_empty() => {
            Err(unread(input, &["os-release"]).unwrap_or_else(|| NO_ID.to_owned()))
        }
        None => Ok(format!("{} brings none by itself", os.id)),
        Some(name) if look.facts.loaded.contains_key("nvidia") => {
            Ok(format!("{name} brings one, and a driver is loaded"))
        }
        Some(_) if !look.online && !look.config.registries.is_empty() => Err(NOT_ASKED.to_owned()),
        Some(name) => Ok(format!("{name} brings one, and the kernel accepts other modules")),
    }
}

/// Describes the acquisition, where it is known without queries or the sources were queried.
fn sources(input: &Input<'_>) -> Text {
    let Some(plan) = input.plan else { return Err(NOT_ASKED.to_owned()) };
    let driver = format!("driver {} ({})", plan.driver_version, plan.flavour);
    match (plan.acquire.is_empty(), input.look.online) {
        (true, _) => Ok(format!("{driver}: everything needed is available")),
        (false, true) => Ok(format!("{driver} is available")),
        (false, false) => Err(NOT_ASKED.to_owned()),
    }
}

/// Describes the switches' need of a fabric manager, where it is known without queries or the sources were queried.
fn daemons(input: &Input<'_>) -> Text {
    let Some(plan) = input.plan else { return Err(NOT_ASKED.to_owned()) };
    let Some(need) = plan::fabric_needs_manager(input.look.config, input.look.facts) else {
        return Ok("none that the driver's user-mode files lack".to_owned());
    };
    match plan.acquire.is_empty() || input.look.online {
        true => Ok(format!("{need}, and driver {} has a fabric manager", plan.driver_version)),
        false => {
            Err(format!("{need}, which need a fabric manager of the driver's version; {NOT_ASKED}"))
        }
    }
}

/// Returns the checks that passed, and those that were skipped.
pub(super) fn list(input: &Input<'_>, findings: &[Finding]) -> (Vec<Check>, Vec<Check>) {
    let (mut passed, mut skipped) = (Vec::new(), Vec::new());
    let found = |check: &&Definition| findings.iter().any(|f| check.codes.contains(&f.code));
    for check in ALL.iter().filter(|check| !found(check)) {
        let entry = |detail| Check { area: check.area, name: check.name, detail };
        match (check.text)(input) {
            Ok(text) => passed.push(entry(text)),
            Err(why) => skipped.push(entry(why)),
        }
    }
    (passed, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_belongs_to_exactly_one_check_of_its_area() {
        for code in Code::ALL {
            let of: Vec<&Definition> =
                ALL.iter().filter(|check| check.codes.contains(code)).collect();
            assert_eq!(of.len(), 1, "{code}");
            assert_eq!(of[0].area, code.entry().area, "{code}");
        }
    }
}
