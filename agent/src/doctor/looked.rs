//! Checks of the doctor, listed even where nothing was found: the user sees that they ran.
//!
//! Every code belongs to exactly one check. A check without findings passed, and reports what it
//! observed.

use std::path::Path;

use jiff::Timestamp;

use super::agent::Notes;
use super::host::{day, nodes};
use super::kernel_config::KernelConfig;
use super::{Look, Looked, NOT_ASKED};
use crate::finding::{Area, Code, Finding};
use crate::host::facts::{Known, RootKind};
use crate::host::gpus::Taken;
use crate::plan::{self, Plan};

/// Input of the checks' texts.
pub(super) struct Seen<'a> {
    pub(super) look: &'a Look<'a>,
    pub(super) plan: Option<&'a Plan>,
    pub(super) kernel_config: Result<KernelConfig, String>,
    pub(super) notes: Notes,
}

/// Text of a passed check; an error is the reason why it was skipped.
type Words = Result<String, String>;

/// A check.
pub(super) struct Item {
    area: Area,
    what: &'static str,
    pub(super) codes: &'static [Code],
    words: fn(&Seen<'_>) -> Words,
}

/// All checks, in display order.
pub(super) const ITEMS: [Item; 29] = [
    item(Area::Devices, "machine", &[Code::ArchUnsupported], |s| {
        Ok(s.look.facts.kernel.arch.clone())
    }),
    item(
        Area::Devices,
        "GPUs",
        &[
            Code::NoDevice,
            Code::DevicesUnread,
            Code::GpuTooOld,
            Code::GpuUnsupported,
            Code::GpuUnknown,
        ],
        |s| Ok(plan::device_lines(&s.look.facts.devices).join("; ")),
    ),
    item(Area::Devices, "GPUs of the loaded driver", &[Code::GpuMissing], |s| {
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
    item(Area::Devices, "clock", &[Code::ClockWrong], |s| match s.look.captured() {
        true => Err(CAPTURED.to_owned()),
        false => Ok(day(Timestamp::now())),
    }),
    item(Area::Kernel, "kernel", &[Code::KernelWithoutModules, Code::PreemptRt], |s| {
        Ok(format!("{} {}", s.look.facts.kernel.release, s.look.facts.kernel.version))
    }),
    item(Area::Kernel, "loading of modules", &[Code::ModulesDisabled], |s| {
        match &s.look.facts.security.module_loading {
            Known::Yes(_) => Ok("allowed".to_owned()),
            Known::Unknown(why) => Err(why.clone()),
        }
    }),
    item(
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
    item(
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
    item(
        Area::Privileges,
        "capabilities",
        &[Code::NotRoot, Code::MissingCapability, Code::CapabilitiesUnread],
        |_| Ok(format!("root, with {}", plan::NEEDED.join(", "))),
    ),
    item(Area::Privileges, "user namespace", &[Code::UserNamespace], |s| {
        match &s.look.facts.initial_user_namespace {
            Known::Yes(_) => Ok("the host's".to_owned()),
            Known::Unknown(why) => Err(why.clone()),
        }
    }),
    item(
        Area::Privileges,
        "devices allowed by the cgroup",
        &[Code::DeviceAccessDenied],
        |s| match s.look.captured() {
            true => Err(CAPTURED.to_owned()),
            false => Ok("/dev/kmsg is not denied".to_owned()),
        },
    ),
    item(
        Area::Signatures,
        "signatures",
        &[Code::SignatureRequired, Code::ModuleKeyUntrusted],
        |s| Ok(plan::security_line(s.look.facts)),
    ),
    item(Area::OtherDrivers, "bound drivers", &[Code::GpuBoundElsewhere], |s| {
        let mut drivers: Vec<&str> =
            s.look.facts.devices.iter().filter_map(|d| d.driver.as_deref()).collect();
        drivers.sort_unstable();
        drivers.dedup();
        Ok(if drivers.is_empty() { "none".to_owned() } else { drivers.join(", ") })
    }),
    item(
        Area::OtherDrivers,
        "loaded driver",
        &[Code::OtherDriverLive, Code::LoadedUnread, Code::DaemonForeign, Code::ModuleReplaced],
        |s| {
            let live = s.look.facts.live_driver.as_ref();
            Ok(live.map_or_else(|| "none".to_owned(), |live| live.version.clone()))
        },
    ),
    item(
        Area::OtherDrivers,
        "driver of the host itself",
        &[Code::HostDriverInstalled, Code::DriverAutoloads],
        |s| match s.look.hidden {
            true => Err(HIDDEN.to_owned()),
            false => unread(s, &["installed", "autoload", "available"])
                .map_or(Ok("none: no modules, libraries, DKMS or services".to_owned()), Err),
        },
    ),
    item(Area::OtherDrivers, "nouveau and nova", &[Code::NouveauAtBoot], |s| match s.look.hidden {
        true => Err(HIDDEN.to_owned()),
        false => unread(s, &["autoload", "available"])
            .map_or(Ok("blacklisted, or not in the kernel".to_owned()), Err),
    }),
    item(
        Area::OtherDrivers,
        "mounts on the driver root",
        &[Code::OtherInstallerAlive, Code::DriverRootTaken, Code::Leftovers],
        |s| match (unread(s, &PLACES), s.look.facts.places.mounts.is_empty()) {
            (Some(why), _) => Err(why),
            (None, true) => Ok("none, and no leftover of NVIDIA's container".to_owned()),
            (None, false) => Ok("longshore's own".to_owned()),
        },
    ),
    item(Area::OtherDrivers, "stale device nodes", &[Code::NodesStale], |s| match s.look.hidden {
        true => Err(HIDDEN.to_owned()),
        false if nodes(s.look).is_empty() => Ok("no nodes".to_owned()),
        false => Ok("none: the nodes are the loaded driver's".to_owned()),
    }),
    item(Area::Places, "driver root", &[Code::DriverRootOdd, Code::ExposureLost], |s| {
        let path = s.look.config.paths.driver_root.display();
        match (unread(s, &PLACES), &s.look.facts.places.kind) {
            (Some(why), _) => Err(why),
            (None, RootKind::Absent) => Ok(format!("{path} does not exist yet; `run` makes it")),
            (None, _) => Ok(format!("{path} is a directory")),
        }
    }),
    item(
        Area::Places,
        "mount propagation",
        &[Code::RunNvidiaNotShared, Code::HostRootHidden, Code::LostWithContainer],
        |s| {
            let here = s.look.config.paths.host_root == Path::new("/") || s.look.captured();
            Ok(if here { "on the host itself" } else { "mounts propagate to the host" }.to_owned())
        },
    ),
    item(Area::Places, "free space", &[Code::SpaceShort], |s| {
        let room = |room: &crate::host::facts::Room| {
            format!("{} MiB for {}", room.free_bytes >> 20, room.path.display())
        };
        let rooms: Vec<String> = s.look.facts.places.room.iter().map(room).collect();
        if rooms.is_empty() { Err(CAPTURED.to_owned()) } else { Ok(rooms.join(", ")) }
    }),
    item(Area::Places, "links in /dev/char", &[Code::DevCharLinksMissing], |s| {
        match s.look.facts.loaded.contains_key("nvidia") {
            _ if s.look.hidden => Err(HIDDEN.to_owned()),
            true => Ok("every node of the driver has one".to_owned()),
            false => Err("no driver is loaded".to_owned()),
        }
    }),
    item(
        Area::Sources,
        "sources",
        &[
            Code::SignatureMissing,
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
            Code::DaemonMissing,
            Code::FabricManagerMissing,
        ],
        sources,
    ),
    item(Area::Configuration, "settings", &[Code::ParametersUnused], |s| {
        let driver = s.look.config.driver.version.as_deref().unwrap_or("newest");
        Ok(format!("driver = {driver}; every parameter belongs to a loaded module"))
    }),
    item(
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
    item(Area::Agent, "refused drivers", &[Code::DriverRefusedBefore], |_| {
        Ok("none since the host was booted".to_owned())
    }),
    item(Area::Agent, "users of the driver", &[Code::DriverInUse], |s| s.notes.holders.clone()),
    item(Area::Agent, "store", &[Code::StoreUnusable, Code::StoreDamaged], |s| {
        Ok(s.notes.store.clone())
    }),
    item(Area::Agent, "failed compiles", &[Code::CompileFailedBefore], |_| {
        Ok("none that delays a retry".to_owned())
    }),
];

const CAPTURED: &str = "the tree was captured on another machine";
const HIDDEN: &str = "the host's own files are not accessible";

const fn item(
    area: Area,
    what: &'static str,
    codes: &'static [Code],
    words: fn(&Seen<'_>) -> Words,
) -> Item {
    Item { area, what, codes, words }
}

/// Sources of the facts about the driver root's mounts.
const PLACES: [&str; 2] = ["places", "mounts"];

/// Returns the reason why one of these sources of the facts could not be read.
fn unread(seen: &Seen<'_>, sources: &[&str]) -> Option<String> {
    sources.iter().find_map(|source| seen.look.facts.unread.get(*source)).cloned()
}

/// Describes the acquisition, where it is known without queries or the sources were queried.
fn sources(seen: &Seen<'_>) -> Words {
    let Some(plan) = seen.plan else { return Err(NOT_ASKED.to_owned()) };
    let driver = format!("driver {} ({})", plan.driver_version, plan.flavour);
    match (plan.acquire.is_empty(), seen.look.online) {
        (true, _) => Ok(format!("{driver}: everything needed is available")),
        (false, true) => Ok(format!("{driver} is available")),
        (false, false) => Err(NOT_ASKED.to_owned()),
    }
}

/// Returns the checks that passed, and those that were skipped.
pub(super) fn looked(seen: &Seen<'_>, findings: &[Finding]) -> (Vec<Looked>, Vec<Looked>) {
    let (mut well, mut not) = (Vec::new(), Vec::new());
    let found = |item: &&Item| findings.iter().any(|f| item.codes.contains(&f.code));
    for item in ITEMS.iter().filter(|item| !found(item)) {
        let told = |seen| Looked { area: item.area, what: item.what, seen };
        match (item.words)(seen) {
            Ok(words) => well.push(told(words)),
            Err(why) => not.push(told(why)),
        }
    }
    (well, not)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_belongs_to_exactly_one_thing_of_its_area() {
        for code in Code::ALL {
            let of: Vec<&Item> = ITEMS.iter().filter(|item| item.codes.contains(code)).collect();
            assert_eq!(of.len(), 1, "{code}");
            assert_eq!(of[0].area, code.entry().area, "{code}");
        }
    }
}
