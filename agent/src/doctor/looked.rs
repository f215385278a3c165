//! What was looked at, whether or not something was found: a person sees that it was.
//!
//! Every code belongs to exactly one thing that is looked at. Where none of its codes was found, it is
//! well, and says what was seen.

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

/// What the words are made of.
pub(super) struct Seen<'a> {
    pub(super) look: &'a Look<'a>,
    pub(super) plan: Option<&'a Plan>,
    pub(super) kernel_config: Result<KernelConfig, String>,
    pub(super) notes: Notes,
}

/// What is well, in words; an error says why it was not looked at.
type Words = Result<String, String>;

/// Something that is looked at.
pub(super) struct Item {
    area: Area,
    what: &'static str,
    pub(super) codes: &'static [Code],
    words: fn(&Seen<'_>) -> Words,
}

/// All of them, in the order in which they are shown.
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
    item(Area::Devices, "GPUs that the driver took", &[Code::GpuMissing], |s| {
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
        "how it was built",
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
        "driver that is loaded",
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
            .map_or(Ok("kept out, or the kernel does not have them".to_owned()), Err),
    }),
    item(
        Area::OtherDrivers,
        "what is mounted on the driver root",
        &[Code::OtherInstallerAlive, Code::DriverRootTaken, Code::Leftovers],
        |s| match (unread(s, &PLACES), s.look.facts.places.mounts.is_empty()) {
            (Some(why), _) => Err(why),
            (None, true) => Ok("nothing, and no container of NVIDIA's was here".to_owned()),
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
            (None, RootKind::Absent) => Ok(format!("{path} is not there yet; `run` makes it")),
            (None, _) => Ok(format!("{path} is a directory")),
        }
    }),
    item(
        Area::Places,
        "sharing with the host",
        &[Code::RunNvidiaNotShared, Code::HostRootHidden, Code::LostWithContainer],
        |s| {
            let here = s.look.config.paths.host_root == Path::new("/") || s.look.captured();
            Ok(if here { "on the host itself" } else { "mounts reach the host" }.to_owned())
        },
    ),
    item(Area::Places, "room", &[Code::SpaceShort], |s| {
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
        Ok(format!("driver = {driver}; every parameter is for a module that is loaded"))
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
    item(Area::Agent, "drivers that were refused", &[Code::DriverRefusedBefore], |_| {
        Ok("none in the place of a live one".to_owned())
    }),
    item(Area::Agent, "who holds the driver", &[Code::DriverInUse], |s| s.notes.holders.clone()),
    item(Area::Agent, "store", &[Code::StoreUnusable, Code::StoreDamaged], |s| {
        Ok(s.notes.store.clone())
    }),
    item(Area::Agent, "compiles that failed", &[Code::CompileFailedBefore], |_| {
        Ok("none that would be held back".to_owned())
    }),
];

const CAPTURED: &str = "the tree was captured on another machine";
const HIDDEN: &str = "the host's own files are out of reach";

const fn item(
    area: Area,
    what: &'static str,
    codes: &'static [Code],
    words: fn(&Seen<'_>) -> Words,
) -> Item {
    Item { area, what, codes, words }
}

/// What the driver root's mounts are told from.
const PLACES: [&str; 2] = ["places", "mounts"];

/// Why one of these sources of the facts could not be read.
fn unread(seen: &Seen<'_>, sources: &[&str]) -> Option<String> {
    sources.iter().find_map(|source| seen.look.facts.unread.get(*source)).cloned()
}

/// What would be done, where that is known without asking, or was asked.
fn sources(seen: &Seen<'_>) -> Words {
    let Some(plan) = seen.plan else { return Err(NOT_ASKED.to_owned()) };
    let driver = format!("driver {} ({})", plan.driver_version, plan.flavour);
    match (plan.acquire.is_empty(), seen.look.online) {
        (true, _) => Ok(format!("{driver}: all that is wanted is at hand")),
        (false, true) => Ok(format!("{driver} can be had")),
        (false, false) => Err(NOT_ASKED.to_owned()),
    }
}

/// What is well, and what was not looked at.
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
