//! The pure decision: configuration, facts and catalog in; choices with reasons and steps out.

mod render;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use render::render;

use crate::artifact::Flavour;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::failure::{ExitCode, Failure};
use crate::host::HostFacts;
use crate::step::Step;

/// What would be done, and why.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Driver version chosen.
    pub driver_version: String,
    /// Flavour chosen.
    pub flavour: Flavour,
    /// Kernel release it is for.
    pub kernel_release: String,
    /// Every choice with its reason, in the order they were made.
    pub reasons: Vec<Reason>,
    /// What must be brought into the store first; it changes nothing else on the host.
    pub acquire: Vec<Acquire>,
    /// The changes to the host, in order.
    pub install: Vec<Step>,
    /// Whether `install` is complete: what a module depends on is known only once it is built.
    pub exact: bool,
    /// What preflight found.
    pub findings: Vec<Finding>,
}

/// One choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What was decided, for example `flavour open`.
    pub what: String,
    /// Why.
    pub why: String,
}

/// One thing to bring into the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "acquire", rename_all = "kebab-case")]
pub enum Acquire {
    /// Copy a prebuilt set out of an OCI image layout.
    ImportSet {
        /// The layout's directory.
        dir: PathBuf,
        /// `sha256:...` of the manifest.
        manifest: String,
    },
    /// Compile the modules.
    BuildSet {
        /// Driver version.
        driver_version: String,
        /// Flavour.
        flavour: Flavour,
        /// Kernel release.
        kernel_release: String,
    },
    /// Fetch and assemble the user-mode tree.
    AssembleUserspace {
        /// Driver version.
        driver_version: String,
    },
}

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// It may go wrong.
    Warning,
    /// The plan cannot be carried out.
    Refusal,
}

/// What preflight found: a code, what was seen, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable code, for example `gpu-bound-elsewhere`.
    pub code: String,
    /// How grave it is.
    pub severity: Severity,
    /// What was seen.
    pub seen: String,
    /// What to do.
    pub remedy: String,
}

/// Decides; reads and changes nothing.
///
/// # Errors
/// Where no plan can be made at all: exit code 10, 11, 12 or 17. A plan that must not be carried
/// out is returned with a [`Severity::Refusal`] among its findings: see [`Plan::refusal`].
pub fn plan(_config: &Config, facts: &HostFacts, _catalog: &Catalog) -> Result<Plan, Failure> {
    let cause = format!("no plan for kernel {}", facts.kernel.release);
    Err(Failure::new(ExitCode::HostUnsupported, cause))
}

impl Plan {
    /// The gravest refusal among the findings, as the failure that ends a command.
    pub fn refusal(&self) -> Option<Failure> {
        let finding = self.findings.iter().find(|f| f.severity == Severity::Refusal)?;
        Some(Failure::new(ExitCode::Preflight, finding.seen.clone()).remedy(finding.remedy.clone()))
    }
}
