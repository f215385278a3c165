//! A cell: kernel, driver, simulated GPUs, scenario and expected result. lab/matrix.toml declares them.

pub mod guests;
pub(crate) mod needs;
pub mod supply;

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_core::flavour::Flavour;
use serde::Deserialize;

use crate::cell::guests::{Consumer, Engine, Init};
use crate::cell::supply::Supply;
use crate::gpu::{self, Model};
use crate::host::error::Error;

/// One cell.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cell {
    /// Unique, kebab-case.
    pub name: String,
    /// Name of its scenario: a sequence of events in the guest, and the judgement of it.
    pub scenario: String,
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

    /// Returns the arguments of `longshore run` for its modules, their parameters and its switches.
    pub fn own_arguments(&self) -> Vec<String> {
        let modules = self.extra_modules.iter().map(|name| ["--extra-module", name]);
        let parameters = self.parameters.iter().map(|one| ["--parameter", one]);
        // Debian has no fabric manager.
        let without_manager = self.gpus.iter().any(|gpu| gpu.model == Model::NvSwitch)
            && !self.from.has_fabric_manager();
        let switches = without_manager.then_some(["--fabric-manager-missing", "warn"]);
        let all = modules.chain(parameters).chain(switches);
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

    /// True if `version` is this version or of this branch.
    pub fn is_met_by(&self, version: &str) -> bool {
        version
            .strip_prefix(&self.branch)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}
