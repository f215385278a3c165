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
    /// Returns the reason why the driver root and the mounts on it are unknown.
    fn unread_places(&self) -> Option<&String> {
        let unread = &self.look.facts.unread;
        unread.places.as_ref().or(unread.mounts.as_ref())
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
    check: fn(&Input<'_>) -> Checked,
    /// Codes of its findings, the plan's among them: a check with a finding of the plan did not pass.
    codes: &'static [Code],
}

/// Defines the list of checks: area, name, function and codes of each.
macro_rules! checks {
    ($($area:ident $name:literal $check:path: $($code:ident)+;)+) => {
        /// All checks, in display order.
        const ALL: &[Definition] = &[$(Definition {
            area: Area::$area,
            name: $name,
            check: $check,
            codes: &[$(Code::$code),+],
        }),+];
    };
}

const CAPTURED: &str = "the tree was captured on another machine";
const HIDDEN: &str = "the host's own files are not accessible";
const NOT_LOADED: &str = "no driver is loaded";

checks! {
    Devices "machine" devices::machine: ArchUnsupported;
    Devices "GPUs" devices::gpus:
        NoDevice DevicesUnread GpuTooOld GpuUnsupported GpuNeedsDriver DriverExcluded GpuUnknown
        VgpuGuest;
    Devices "GPUs of the loaded driver" devices::gpus_of_driver: GpuMissing;
    Devices "clock" devices::clock: ClockWrong;
    Kernel "kernel" kernel::kernel: KernelWithoutModules PreemptRt KernelByClang;
    Kernel "loading of modules" kernel::loading_of_modules: ModulesDisabled;
    Kernel "the kernel's own modules" kernel::own_modules:
        KernelUnknown DependencyMissing SymbolsDiffer;
    Kernel "kernel configuration" kernel_config::configuration:
        CannotUnload LayoutRandomized ModulesPinned;
    Privileges "capabilities" privileges::capabilities:
        NotRoot MissingCapability CapabilitiesUnread;
    Privileges "user namespace" privileges::user_namespace: UserNamespace;
    Privileges "devices allowed by the cgroup" privileges::device_access: DeviceAccessDenied;
    Signatures "signatures" privileges::signatures:
        SignatureRequired ModuleKeyUntrusted SignFileMissing;
    OtherDrivers "bound drivers" other_drivers::bound: GpuBoundElsewhere;
    OtherDrivers "loaded driver" other_drivers::loaded:
        OtherDriverLive LoadedUnread DaemonForeign ModuleReplaced PeermemMissing
        MofedLeftOut;
    OtherDrivers "driver of the distribution" other_drivers::of_distribution: HostBringsDriver;
    OtherDrivers "driver of the host itself" other_drivers::of_host:
        HostDriverInstalled UserModeDiffers DriverAutoloads;
    OtherDrivers "nouveau and nova" other_drivers::in_tree: NouveauAtBoot;
    OtherDrivers "mounts on the driver root" other_drivers::mounts:
        OtherInstallerAlive DriverRootTaken Leftovers;
    OtherDrivers "stale device nodes" device_nodes::stale: NodesStale;
    Places "driver root" places::driver_root:
        DriverRootOdd ExposureLost OperatorFileUnwritten FeaturesUnwritten;
    Places "mount propagation" places::propagation:
        RunNvidiaNotShared HostRootHidden LostWithContainer;
    Places "SELinux labels" places::selinux: FilesUnlabelled;
    Places "free space" places::space: SpaceShort;
    Places "links in /dev/char" device_nodes::links: DevCharLinksMissing;
    Places "CDI spec" places::cdi_spec: CdiUnpublished CdiConflict;
    Sources "sources" sources::sources:
        SignatureMissing AttestationMissing IndexRefused SetDenied DriverBelowMinimum
        DriverNotOffered ArchivesUnread RegistryUnread RunFileUnread SourcesUnread
        NothingBuilt UserspaceNotOffered HeadersMissing HeadersUnknown ModuleNotBuilt
        AptSourcesLeftOut AptProxy;
    Sources "support of the driver" sources::support: DriverVulnerable DriverEnded;
    Sources "daemons" sources::daemons: DaemonMissing FabricManagerMissing;
    Configuration "settings" sources::settings:
        DriverVersionUnknown DriverRulesConflict DriverSourcesMissing VgpuUnsupported DrmUnderOperator
        ParametersUnused;
    Agent "agent" agent::agent: AgentAlive AgentFailed StateUnreadable StateOutOfReach WatchLimited;
    Agent "refused drivers" agent::refused_drivers: DriverRefusedBefore;
    Agent "users of the driver" agent::users: DriverInUse;
    Agent "store" store::store: StoreUnusable StoreDamaged;
    Agent "failed compiles" store::failed_compiles: CompileFailedBefore;
    Agent "modules for the next kernel" next_kernel::next_kernel: NextKernelUnprepared;
}

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
    for check in ALL {
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
