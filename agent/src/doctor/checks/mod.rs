//! Checks of the doctor. Each is one function, which answers with findings, passed or skipped, and one
//! row of the list; all of them are reported, so that the user sees that they ran.

mod agent;
mod device_nodes;
mod devices;
mod kernel;
mod kernel_config;
mod next_kernel;
mod other_drivers;
mod places;
mod privileges;
mod sources;
mod store;

use super::{Check, Look};
use crate::plan::Plan;
use longshore_core::finding::{self, Area, Code, Finding};

/// Input of all checks.
struct Input<'a> {
    look: &'a Look<'a>,
    /// The plan; None where none could be made.
    plan: Option<&'a Plan>,
    record: agent::Record,
}

impl Input<'_> {
    /// Returns the reason why one of these sources of the facts could not be read.
    fn unread(&self, sources: &[&str]) -> Option<&str> {
        let unread = &self.look.facts.unread;
        sources.iter().find_map(|source| unread.get(*source)).map(String::as_str)
    }
}

/// Result of one check.
enum Checked {
    /// Findings; at least one.
    Found(Vec<Finding>),
    /// The observed state.
    Passed(String),
    /// Reason why the check did not run.
    Skipped(String),
}

fn passed(state: impl Into<String>) -> Checked {
    Checked::Passed(state.into())
}

fn skipped(why: impl Into<String>) -> Checked {
    Checked::Skipped(why.into())
}

/// Returns the findings; a passed check where there are none.
fn found_or(found: impl IntoIterator<Item = Finding>, state: impl FnOnce() -> String) -> Checked {
    let found: Vec<Finding> = found.into_iter().collect();
    if found.is_empty() { Checked::Passed(state()) } else { Checked::Found(found) }
}

/// Definition of a check.
struct Definition {
    area: Area,
    name: &'static str,
    /// Codes of its findings, the plan's among them: a check with a finding of the plan did not pass.
    codes: &'static [Code],
    check: fn(&Input<'_>) -> Checked,
}

const fn check(
    area: Area,
    name: &'static str,
    codes: &'static [Code],
    check: fn(&Input<'_>) -> Checked,
) -> Definition {
    Definition { area, name, codes, check }
}

const CAPTURED: &str = "the tree was captured on another machine";
const HIDDEN: &str = "the host's own files are not accessible";
const NOT_LOADED: &str = "no driver is loaded";
/// Sources of the facts about the driver root's mounts.
const PLACES: [&str; 2] = ["places", "mounts"];

/// All checks, in display order.
const ALL: [Definition; 34] = [
    check(Area::Devices, "machine", &[Code::ArchUnsupported], devices::machine),
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
        devices::gpus,
    ),
    check(Area::Devices, "GPUs of the loaded driver", &[Code::GpuMissing], devices::gpus_of_driver),
    check(Area::Devices, "clock", &[Code::ClockWrong], devices::clock),
    check(
        Area::Kernel,
        "kernel",
        &[Code::KernelWithoutModules, Code::PreemptRt, Code::KernelByClang],
        kernel::kernel,
    ),
    check(Area::Kernel, "loading of modules", &[Code::ModulesDisabled], kernel::loading_of_modules),
    check(
        Area::Kernel,
        "the kernel's own modules",
        &[Code::KernelUnknown, Code::DependencyMissing, Code::SymbolsDiffer],
        kernel::own_modules,
    ),
    check(
        Area::Kernel,
        "kernel configuration",
        &[Code::CannotUnload, Code::LayoutRandomized, Code::ModulesPinned],
        kernel_config::configuration,
    ),
    check(
        Area::Privileges,
        "capabilities",
        &[Code::NotRoot, Code::MissingCapability, Code::CapabilitiesUnread],
        privileges::capabilities,
    ),
    check(Area::Privileges, "user namespace", &[Code::UserNamespace], privileges::user_namespace),
    check(
        Area::Privileges,
        "devices allowed by the cgroup",
        &[Code::DeviceAccessDenied],
        privileges::device_access,
    ),
    check(
        Area::Signatures,
        "signatures",
        &[Code::SignatureRequired, Code::ModuleKeyUntrusted, Code::SignFileMissing],
        privileges::signatures,
    ),
    check(Area::OtherDrivers, "bound drivers", &[Code::GpuBoundElsewhere], other_drivers::bound),
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
        other_drivers::loaded,
    ),
    check(
        Area::OtherDrivers,
        "driver of the distribution",
        &[Code::HostBringsDriver],
        other_drivers::of_distribution,
    ),
    check(
        Area::OtherDrivers,
        "driver of the host itself",
        &[Code::HostDriverInstalled, Code::DriverAutoloads],
        other_drivers::of_host,
    ),
    check(Area::OtherDrivers, "nouveau and nova", &[Code::NouveauAtBoot], other_drivers::in_tree),
    check(
        Area::OtherDrivers,
        "mounts on the driver root",
        &[Code::OtherInstallerAlive, Code::DriverRootTaken, Code::Leftovers],
        other_drivers::mounts,
    ),
    check(Area::OtherDrivers, "stale device nodes", &[Code::NodesStale], device_nodes::stale),
    check(
        Area::Places,
        "driver root",
        &[
            Code::DriverRootOdd,
            Code::ExposureLost,
            Code::OperatorFileUnwritten,
            Code::FeaturesUnwritten,
        ],
        places::driver_root,
    ),
    check(
        Area::Places,
        "mount propagation",
        &[Code::RunNvidiaNotShared, Code::HostRootHidden, Code::LostWithContainer],
        places::propagation,
    ),
    check(Area::Places, "SELinux labels", &[Code::FilesUnlabelled], places::selinux),
    check(Area::Places, "free space", &[Code::SpaceShort], places::space),
    check(Area::Places, "links in /dev/char", &[Code::DevCharLinksMissing], device_nodes::links),
    check(Area::Places, "CDI spec", &[Code::CdiUnpublished, Code::CdiConflict], places::cdi_spec),
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
        sources::sources,
    ),
    check(
        Area::Sources,
        "daemons",
        &[Code::DaemonMissing, Code::FabricManagerMissing],
        sources::daemons,
    ),
    check(
        Area::Configuration,
        "settings",
        &[
            Code::DriverVersionUnknown,
            Code::DriverSourcesMissing,
            Code::VgpuUnsupported,
            Code::DrmUnderOperator,
            Code::ParametersUnused,
        ],
        sources::settings,
    ),
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
        agent::agent,
    ),
    check(Area::Agent, "refused drivers", &[Code::DriverRefusedBefore], agent::refused_drivers),
    check(Area::Agent, "users of the driver", &[Code::DriverInUse], agent::users),
    check(Area::Agent, "store", &[Code::StoreUnusable, Code::StoreDamaged], store::store),
    check(Area::Agent, "failed compiles", &[Code::CompileFailedBefore], store::failed_compiles),
    check(
        Area::Agent,
        "modules for the next kernel",
        &[Code::NextKernelUnprepared],
        next_kernel::next_kernel,
    ),
];

/// Results of all checks.
pub(super) struct Results {
    /// Findings, gravest first; those of the plan are among them.
    pub(super) findings: Vec<Finding>,
    pub(super) passed: Vec<Check>,
    pub(super) skipped: Vec<Check>,
}

/// Runs all checks, after a plan with these findings.
pub(super) fn run(look: &Look<'_>, plan: Option<&Plan>, findings: Vec<Finding>) -> Results {
    let input = Input { look, plan, record: agent::Record::read(look) };
    let mut results = Results { findings, passed: Vec::new(), skipped: Vec::new() };
    for check in &ALL {
        let is_its = |finding: &Finding| check.codes.contains(&finding.code);
        let entry = |detail| Check { area: check.area, name: check.name, detail };
        match (check.check)(&input) {
            Checked::Found(found) => {
                debug_assert!(found.iter().all(is_its), "{}: a code of another check", check.name);
                results.findings.extend(found);
            }
            Checked::Passed(_) | Checked::Skipped(_) if results.findings.iter().any(is_its) => {}
            Checked::Passed(state) => results.passed.push(entry(state)),
            Checked::Skipped(why) => results.skipped.push(entry(why)),
        }
    }
    finding::sort(&mut results.findings);
    results
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
