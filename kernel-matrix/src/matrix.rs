//! matrix.toml: the declared cells.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use longshore_core::flavour::Flavour;
use serde::{Deserialize, Serialize};

use crate::error::{At, Error};
use crate::gpu::{self, Model};
use crate::guests::{self, Consumer, Engine, Guest, Guests, Init};
use crate::stand_in::{self, StandIn};

/// The whole matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Root file system of the guests of cells that name none.
    pub guest: Guest,
    /// Further root file systems, by name.
    #[serde(default)]
    pub guests: BTreeMap<String, Guest>,
    /// The cells, in order.
    #[serde(rename = "cell")]
    pub cells: Vec<Cell>,
}

/// One cell.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cell {
    /// Unique, kebab-case.
    pub name: String,
    /// Sequence of events in the guest.
    pub scenario: Scenario,
    /// Part of the core set: the cells that CI runs after every change.
    #[serde(default)]
    pub core: bool,
    /// The kernel.
    pub kernel: KernelWanted,
    /// The driver.
    pub driver: DriverWanted,
    /// Driver that it is changed to, if any.
    pub next_driver: Option<DriverWanted>,
    /// Kernel that is installed while the driver is Ready, and booted then, if any.
    pub next_kernel: Option<KernelWanted>,
    /// Modules of the driver that the agent loads beyond the usual ones.
    #[serde(default)]
    pub extra_modules: Vec<String>,
    /// Module parameters for the agent: `nvidia_drm.modeset=1`.
    #[serde(default)]
    pub parameters: Vec<String>,
    /// Source of the guest's driver.
    #[serde(default)]
    pub from: Supply,
    /// True if its guest pulls the agent's image from that registry, and names it by its digest.
    #[serde(default)]
    pub by_digest: bool,
    /// Name of its guest's root file system; empty for the default.
    #[serde(default)]
    pub guest: String,
    /// Process 1 of its guest.
    #[serde(default)]
    pub init: Init,
    /// Container engine that runs the agent.
    #[serde(default)]
    pub engine: Engine,
    /// Programs that each give a container the GPUs.
    #[serde(default = "default_consumers")]
    pub consumers: Vec<Consumer>,
    /// Suites that longshore reads beside those of kernel and driver, for a cell of the rules.
    #[serde(skip)]
    pub further_suites: Vec<String>,
    /// sha256 of the key of the module set that the guest gets, which the store has; None for the one that
    /// `longshore fetch` decides for.
    #[serde(skip)]
    pub set: Option<String>,
    /// Simulated devices.
    #[serde(default)]
    pub gpus: Vec<gpu::Spec>,
    /// Modules that are loaded before the agent starts, as by another program.
    #[serde(default)]
    pub preload: Vec<String>,
    /// Kernel command line arguments beyond the usual ones.
    #[serde(default)]
    pub kernel_arguments: String,
    /// podman arguments for the privileges of the agent's container.
    #[serde(default = "default_privileges")]
    pub privileges: Vec<String>,
    /// True if the agent is to run nvidia-persistenced.
    #[serde(default)]
    pub persistenced: bool,
    /// True if the guest boots by UEFI under Secure Boot, with modules signed for it.
    #[serde(default)]
    pub secure_boot: bool,
    /// True if the guest's kernel enforces the policy of SELinux that its packages have.
    #[serde(default)]
    pub selinux: bool,
    /// Expected exit code.
    #[serde(default)]
    pub exit: i32,
    /// Texts that the agent's log, or the build's output, must contain.
    #[serde(default)]
    pub says: Vec<String>,
    /// Time limit of the cell once everything is prepared.
    #[serde(default = "default_deadline")]
    pub deadline_seconds: u64,
}

/// Scenarios of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Start, Ready, TERM.
    RoundTrip,
    /// The agent ends by itself.
    Refused,
    /// TERM while the agent installs.
    Interrupted,
    /// TERM while a process holds the driver; then the next agent.
    InUse,
    /// Nodes and mounts are removed while the driver is Ready.
    Restored,
    /// Links of former nodes, a directory of specs that is read-only and then full, a second agent.
    BadInput,
    /// The compose file and the systemd unit of deploy, through restarts of dockerd and of the guest.
    Deployed,
    /// The GPU appears while the agent waits for one.
    HotPlug,
    /// The store's disk does not answer: while the agent starts, and at TERM.
    DeadDisk,
    /// Change to the next driver and back, by SIGHUP and by a start; change to a driver that the
    /// kernel refuses; and change while a process holds the driver.
    Upgrade,
    /// A driver pod of the GPU operator: its gates, deletions of the pod, changes of configuration.
    Operator,
    /// The agent is the pod of a DaemonSet, on a node of a real Kubernetes cluster.
    Cluster,
    /// The driver pod and the validator pod of the GPU operator, filled in by hand, on such a node.
    OperatorPod,
    /// An administrator of such a cluster installs the agent by helm, changes the driver under a pod that uses
    /// it, and uninstalls the agent.
    ClusterUpgrade,
    /// As a round trip, while an unprivileged user and a container with /run/nvidia attack the agent.
    Attacked,
    /// The GPU is bound to nouveau: first held by a process, then unused.
    Nouveau,
    /// nvidia_peermem is wanted, and the network driver is loaded while the driver is Ready.
    Peermem,
    /// SIGKILL at many points, one agent run after the other.
    Killed,
    /// The kernel's integrity policy (IMA) loads only modules from files with their digest.
    Ima,
    /// A newer kernel is installed while the driver is Ready, and prepared; then it boots, with the prepared
    /// store and with one that nothing was prepared in.
    NextKernel,
    /// Losses of power while the store is filled and the driver installed, one boot after the other.
    PowerCut,
    /// A module provokes a warning of the kernel, which the judge must find. No agent runs.
    Warns,
    /// `longshore build`, without a VM.
    Build,
}

impl Scenario {
    /// True if its guest is a node of a [cluster](crate::cluster).
    pub fn is_in_cluster(self) -> bool {
        matches!(self, Self::Cluster | Self::ClusterUpgrade | Self::OperatorPod)
    }

    /// Returns the module that is compiled for the guest's kernel beside the driver's, if any.
    pub(crate) fn stand_in(self) -> Option<&'static StandIn> {
        match self {
            Self::Nouveau => Some(&stand_in::NOUVEAU),
            Self::Peermem => Some(&stand_in::PEER_MEMORY),
            Self::Warns => Some(&stand_in::WARNS),
            _ => None,
        }
    }

    /// True if it changes to the cell's next driver.
    pub fn changes_driver(self) -> bool {
        matches!(self, Self::Upgrade | Self::ClusterUpgrade)
    }
}

/// Source of the guest's driver. Modules are compiled on this machine except for
/// [`Supply::Compile`]: in an emulated one, compiling from scratch takes an hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supply {
    /// A store that `longshore fetch` filled from the archive. No network.
    #[default]
    Archive,
    /// A .run file made of the archive's packages: the modules were compiled from it, and the guest
    /// extracts the user-mode files from it. No network.
    RunFile,
    /// A registry with the modules, signed; the store has only the user-mode files. The guest
    /// reaches nothing but that registry.
    Registry,
    /// A bundle that the guest imports into an empty store. No network.
    Bundle,
    /// A store that a first boot filled as with `Registry`, losing its power when the driver was
    /// Ready. The second boot, without a network, is judged.
    Store,
    /// The archive that this machine uses, through a relay: the guest fetches and compiles. Its
    /// store has the objects and conftest results of a compile on this machine, and nothing else.
    Compile,
    /// A store that `longshore fetch` filled from archives of Ubuntu's shape. No network.
    UbuntuArchive,
    /// As `Archive`, with a stand-in for the fabric manager as a package of a further archive. No network.
    FabricManager,
    /// A store with modules that were compiled in a build root of Enterprise Linux's layout. No
    /// network.
    BuildRoot,
    /// Archives on a disk at /srv, with the modules as a package, and without headers, compiler and
    /// kernel sources. The guest's store is empty. No network.
    FinishedModules,
}

impl Supply {
    /// Returns the name of the store on this machine, one for each source of modules: none reuses
    /// what another compiled.
    pub fn store(self) -> &'static str {
        match self {
            Self::Compile => "store-of-one-archive",
            Self::UbuntuArchive => "store-of-ubuntu-archive",
            Self::FabricManager => "store-with-fabric-manager",
            Self::BuildRoot => "store-of-build-root",
            _ => "store",
        }
    }

    /// True if its modules must equal those that the Debian archive's packages give.
    pub fn is_of_another_shape(self) -> bool {
        matches!(self, Self::UbuntuArchive | Self::BuildRoot)
    }

    /// True if the driver's user-mode files have a fabric manager.
    pub fn has_fabric_manager(self) -> bool {
        self == Self::FabricManager
    }

    /// True if the (first) guest reaches a registry.
    pub fn has_registry(self) -> bool {
        matches!(self, Self::Registry | Self::Store)
    }
}

/// A kernel, by suite and meta-package.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelWanted {
    /// Suite, for example `bookworm-security`.
    pub suite: String,
    /// Meta-package, for example `linux-image-amd64`.
    pub package: String,
}

/// A driver, by branch or version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DriverWanted {
    /// Branch (`535`) or version.
    pub branch: String,
    /// Flavour.
    pub flavour: Flavour,
    /// Suite of its packages, if neither the kernel's nor one that the machine's apt sources name.
    pub suite: Option<String>,
    /// Compatibility patches that are not applied.
    #[serde(default)]
    pub no_patches: Vec<String>,
    /// True if expired package lists are accepted: those of a suite that Debian seldom signs anew,
    /// on a mirror that is no longer updated.
    #[serde(default)]
    pub archive_frozen: bool,
}

fn default_privileges() -> Vec<String> {
    vec!["--privileged".to_owned()]
}

fn default_consumers() -> Vec<Consumer> {
    vec![Consumer::Podman]
}

fn default_deadline() -> u64 {
    600
}

impl Cell {
    /// Returns a cell with the defaults of matrix.toml for all but these keys.
    ///
    /// # Errors
    /// A key is unknown, missing or of another type.
    pub fn with_defaults(keys: toml::Table) -> Result<Self, Error> {
        keys.try_into().map_err(|e| Error::Matrix(format!("a cell: {e}")))
    }

    /// Returns the deadline as a duration.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_seconds)
    }

    /// True if a daemon of the driver's is among the driver's holders.
    pub fn has_daemon(&self) -> bool {
        self.persistenced || self.from.has_fabric_manager()
    }

    /// Returns the daemons that its guest starts before the agent.
    pub fn daemons(&self) -> Vec<&'static str> {
        guests::daemons(self.engine, &self.consumers)
    }

    /// Returns the arguments of `longshore run` for its modules, their parameters, its switches and its scenario.
    pub fn own_arguments(&self) -> Vec<String> {
        let modules = self.extra_modules.iter().map(|name| ["--extra-module", name]);
        let parameters = self.parameters.iter().map(|one| ["--parameter", one]);
        // Debian has no fabric manager.
        let without_manager = self.gpus.iter().any(|gpu| gpu.model == Model::NvSwitch)
            && !self.from.has_fabric_manager();
        let switches = without_manager.then_some(["--fabric-manager-missing", "warn"]);
        let waits = (self.scenario == Scenario::HotPlug).then_some(["--no-gpu", "wait"]);
        let all = modules.chain(parameters).chain(switches).chain(waits);
        all.flatten().map(str::to_owned).collect()
    }

    /// Returns the cell with its next driver as its driver.
    pub fn next(&self) -> Option<Self> {
        let driver = self.next_driver.clone()?;
        Some(Self { driver, next_driver: None, ..self.clone() })
    }

    /// Returns the cell with its next kernel as its kernel.
    pub fn on_next_kernel(&self) -> Option<Self> {
        let kernel = self.next_kernel.clone()?;
        Some(Self { kernel, ..self.clone() })
    }

    /// Returns the suites of its kernels.
    pub fn kernel_suites(&self) -> Vec<&str> {
        let kernels = std::iter::once(&self.kernel).chain(&self.next_kernel);
        let mut suites: Vec<&str> = kernels.map(|kernel| kernel.suite.as_str()).collect();
        suites.dedup();
        for further in &self.further_suites {
            if !suites.contains(&further.as_str()) {
                suites.push(further);
            }
        }
        suites
    }

    /// Returns the suites of its kernels, its driver and the compiler for them.
    pub fn suites(&self) -> Vec<&str> {
        let mut suites = Vec::new();
        for suite in self.kernel_suites() {
            suites.extend(std::iter::once(suite).chain(suite_below(suite)));
        }
        suites.extend(self.driver.suite.as_deref());
        let mut seen = BTreeSet::new();
        suites.retain(|suite| seen.insert(*suite));
        suites
    }
}

/// Returns the suite below updates and backports, with whose packages they are built.
pub fn suite_below(suite: &str) -> Option<&str> {
    ["-security", "-backports"].iter().find_map(|end| suite.strip_suffix(end))
}

impl DriverWanted {
    /// Returns the suite of its packages, for a kernel of the suite `kernel`.
    pub fn suite_for<'a>(&'a self, kernel: &'a KernelWanted) -> &'a str {
        self.suite.as_deref().unwrap_or(&kernel.suite)
    }

    /// Returns the flavour as longshore's command line takes it.
    pub fn flavour_name(&self) -> &'static str {
        match self.flavour {
            Flavour::Open => "open",
            Flavour::Proprietary => "proprietary",
        }
    }

    /// True if `version` is this version or of this branch.
    pub fn is_met_by(&self, version: &str) -> bool {
        version
            .strip_prefix(&self.branch)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl Matrix {
    /// Reads and checks matrix.toml.
    ///
    /// # Errors
    /// It cannot be read, is malformed, or a name occurs twice or is not kebab-case.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).at("read", path)?;
        Self::parse(&text).map_err(|e| Error::Matrix(format!("{}: {e}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let matrix: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut names = BTreeSet::new();
        for cell in &matrix.cells {
            if !is_kebab_case(&cell.name) {
                return Err(format!("cell name `{}` is not kebab-case", cell.name));
            }
            if !names.insert(&cell.name) {
                return Err(format!("two cells are named `{}`", cell.name));
            }
            if !cell.guest.is_empty() && !matrix.guests.contains_key(&cell.guest) {
                return Err(format!("{}: no guest `{}`", cell.name, cell.guest));
            }
            if cell.from != Supply::Archive && cell.scenario == Scenario::Build {
                return Err(format!("{}: a build has no guest to supply", cell.name));
            }
            if cell.by_digest && !cell.from.has_registry() {
                return Err(format!("{}: an image by digest comes from a registry", cell.name));
            }
            if cell.scenario.changes_driver() != cell.next_driver.is_some() {
                return Err(format!("{}: an upgrade has a next-driver, no other cell", cell.name));
            }
            if cell.scenario.is_in_cluster() != (cell.engine == Engine::Kubelet) {
                return Err(format!("{}: kubelet runs the agent in a cluster only", cell.name));
            }
            if cell.scenario.is_in_cluster() && cell.from != Supply::Archive {
                return Err(format!("{}: a node reaches nothing but its cluster", cell.name));
            }
            if cell.next_driver.is_some() && cell.from != Supply::Archive {
                return Err(format!("{}: two drivers come from the archive only", cell.name));
            }
            if (cell.scenario == Scenario::NextKernel) != cell.next_kernel.is_some() {
                return Err(format!("{}: next-kernel has a next-kernel, no other cell", cell.name));
            }
            if cell.next_kernel.is_some() && cell.from != Supply::Compile {
                return Err(format!("{}: a next kernel is compiled for in the guest", cell.name));
            }
            let peermem = cell.extra_modules.iter().any(|name| name == "nvidia-peermem");
            if cell.scenario == Scenario::Peermem && !(peermem && cell.from == Supply::Archive) {
                return Err(format!("{}: peermem has nvidia-peermem of the archive", cell.name));
            }
            gpu::check(&cell.gpus).map_err(|why| format!("{}: {why}", cell.name))?;
        }
        Ok(matrix)
    }

    /// Returns all guests.
    pub fn guests(&self) -> Guests {
        Guests { default: self.guest.clone(), named: self.guests.clone() }
    }

    /// Returns the cells of the core set, in the order of the matrix.
    pub fn core(&self) -> Vec<&Cell> {
        self.cells.iter().filter(|cell| cell.core).collect()
    }

    /// Returns the cells with these names, in the order of the matrix; all where no name is given.
    ///
    /// # Errors
    /// A name that no cell has.
    pub fn select(&self, names: &[String]) -> Result<Vec<&Cell>, Error> {
        if let Some(name) = names.iter().find(|n| !self.cells.iter().any(|c| c.name == **n)) {
            let known: Vec<&str> = self.cells.iter().map(|c| c.name.as_str()).collect();
            let known = known.join(", ");
            return Err(Error::Matrix(format!("no cell `{name}`; there are: {known}")));
        }
        Ok(self.cells.iter().filter(|c| names.is_empty() || names.contains(&c.name)).collect())
    }
}

fn is_kebab_case(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && !name.starts_with('-') && name.chars().all(good)
}

#[cfg(test)]
mod tests;
