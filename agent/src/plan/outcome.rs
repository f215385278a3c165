//! The plan as it is handed out: its parts, verdict and exit code.

use serde::Serialize;

use super::acquisition::Acquire;
use super::live::Replaced;
use super::next_kernel::PlannedKernel;
use super::values::Reason;
use crate::catalog::Item;
use crate::journal::PlanSummary;
use crate::steps::{LoadModule, Step};
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::finding::{self, Finding, Verdict};
use longshore_core::flavour::Flavour;

/// Plan: choices with reasons, steps and findings.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// Driver version chosen.
    pub driver_version: String,
    /// Flavour chosen.
    pub flavour: Flavour,
    /// Kernel release that it is for.
    pub kernel_release: String,
    /// Every choice with its reason, in the order they were made.
    pub reasons: Vec<Reason>,
    /// Acquisitions into the store, which come first and change nothing else on the host.
    pub acquire: Vec<Acquire>,
    /// Modules of longshore's that must be unloaded first: with these the plan changes the driver,
    /// without them it installs or adopts one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaces: Vec<Replaced>,
    /// The changes to the host, in order.
    pub install: Vec<Step>,
    /// True if `install` is complete: a module's dependencies are known only once it is built.
    pub exact: bool,
    /// Findings of the preflight.
    pub findings: Vec<Finding>,
    /// True if the sources that an acquisition needs are another machine's, and none of them answered here.
    #[serde(skip)]
    pub undecided: bool,
    /// True if there is nothing to install: no GPU is here, and the agent waits for one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
    /// Newer kernel that is installed on the host and not booted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_kernel: Option<PlannedKernel>,
}

impl From<&Plan> for PlanSummary {
    fn from(plan: &Plan) -> Self {
        Self {
            driver_version: plan.driver_version.clone(),
            flavour: plan.flavour,
            kernel_release: plan.kernel_release.clone(),
        }
    }
}

impl Plan {
    /// Returns true if the modules are at hand without compiling them, in the store or elsewhere; None where
    /// the plan has none.
    pub fn is_prebuilt(&self) -> Option<bool> {
        let builds = self.acquire.iter().any(|one| matches!(one, Acquire::BuildSet(_)));
        let fetches = |one: &Acquire| {
            matches!(one, Acquire::Fetch(Item::Set(_) | Item::Package(_)) | Acquire::SignSet { .. })
        };
        let is_stored = |module: &LoadModule| module.is_of_driver() && module.digest().is_some();
        let is_available = self.acquire.iter().any(fetches)
            || self.install.iter().filter_map(LoadModule::from_step).any(is_stored);
        (builds || is_available).then_some(!builds)
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> Verdict {
        Verdict::from_findings(&self.findings, self.undecided)
    }

    /// Returns the exit code of a command that prints the plan: that which `run` would be refused with.
    pub fn exit_code(&self) -> ExitCode {
        match self.verdict() {
            Verdict::Undecided => UNDECIDED,
            _ => self.refusal().map_or(ExitCode::Done, |failure| failure.code()),
        }
    }

    /// Returns the gravest refusal among the findings, as the failure that ends a command.
    pub fn refusal(&self) -> Option<Failure> {
        finding::refusal(&self.findings)
    }
}

/// Exit code of a command that could not decide: no source answered for another machine's captured tree.
pub(crate) const UNDECIDED: ExitCode = ExitCode::Download;
