//! Plan of one node, from the JSON that `longshore plan --json` prints in its agent's pod.

use serde::{Deserialize, Serialize};

use super::status::used_by;
use super::{NAME, NodeStatus, SENTENCE, bounded};
use longshore_core::finding::OF_SUPPORT;

/// Number of refusals that are kept.
const MOST_REFUSALS: usize = 16;

/// Change of the driver on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The loaded driver is the wanted one.
    Keeps,
    /// No driver is loaded.
    Installs,
    /// Another driver is loaded, or the same one otherwise.
    Replaces,
    /// The plan is refused.
    Refused,
    /// There is no plan.
    Unknown,
}

/// Finding of a plan that refuses it, or warns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Code of the finding (docs/reference/errors.md).
    pub code: String,
    /// Detail.
    pub detail: String,
    /// Remedy.
    pub remedy: String,
}

/// Plan of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodePlan {
    /// The node's name.
    pub name: String,
    /// Change of the driver.
    pub action: Action,
    /// Driver version that is loaded, as the agent reported it before.
    pub live: Option<String>,
    /// Driver version of the plan.
    pub driver: Option<String>,
    /// Flavour of the plan.
    pub flavour: Option<String>,
    /// Origin of the modules: `prebuilt`, `package`, `compile` or `stored`.
    pub modules: Option<&'static str>,
    /// Reason for which loaded modules are replaced.
    pub replaces: Option<String>,
    /// Findings that refuse the plan, the gravest first.
    pub refusals: Vec<Refusal>,
    /// Warnings by the support table about the driver, the gravest first.
    pub warnings: Vec<Refusal>,
    /// Reason for which there is no plan.
    pub reason: Option<String>,
    /// The agent's status.
    pub status: Option<NodeStatus>,
}

/// The part of a plan that is read; other versions of longshore may write more.
#[derive(Deserialize)]
struct Printed {
    driver_version: String,
    #[serde(default)]
    flavour: Option<String>,
    #[serde(default)]
    replaces: Vec<PrintedModule>,
    #[serde(default)]
    acquire: Vec<PrintedAcquire>,
    #[serde(default)]
    findings: Vec<PrintedFinding>,
}

#[derive(Deserialize)]
struct PrintedModule {
    reason: String,
}

#[derive(Deserialize)]
struct PrintedAcquire {
    acquire: String,
}

#[derive(Deserialize)]
struct PrintedFinding {
    code: String,
    severity: String,
    detail: String,
    #[serde(default)]
    remedy: String,
}

impl NodePlan {
    /// Returns a node without a plan.
    pub(super) fn unknown(name: &str, status: Option<NodeStatus>, reason: String) -> Self {
        Self {
            name: name.to_owned(),
            action: Action::Unknown,
            live: status.as_ref().and_then(|status| status.live.clone()),
            driver: None,
            flavour: None,
            modules: None,
            replaces: None,
            refusals: Vec::new(),
            warnings: Vec::new(),
            reason: Some(reason),
            status,
        }
    }

    /// Reads a plan in JSON, with every text in it bounded and escaped.
    ///
    /// # Errors
    /// The reason for which it is none.
    pub(super) fn read(
        name: &str,
        status: &NodeStatus,
        json: &[u8],
    ) -> Result<Self, serde_json::Error> {
        let printed: Printed = serde_json::from_slice(json)?;
        let is_refusal = |finding: &PrintedFinding| finding.severity == "refusal";
        let refusals = printed.findings.iter().filter(|finding| is_refusal(finding));
        let refusals: Vec<Refusal> =
            refusals.take(MOST_REFUSALS).map(Refusal::from_finding).collect();
        let warnings = printed.findings.iter().filter(|finding| {
            let is_of_support = OF_SUPPORT.iter().any(|code| code.as_str() == finding.code);
            finding.severity == "warning" && is_of_support
        });
        let driver = bounded(&printed.driver_version, NAME);
        let action = match &status.live {
            _ if !refusals.is_empty() => Action::Refused,
            _ if !printed.replaces.is_empty() => Action::Replaces,
            Some(live) if *live == driver => Action::Keeps,
            Some(_) => Action::Replaces,
            None => Action::Installs,
        };
        let is_planned = matches!(action, Action::Installs | Action::Replaces);
        Ok(Self {
            name: name.to_owned(),
            action,
            live: status.live.clone(),
            driver: Some(driver),
            flavour: printed.flavour.map(|flavour| bounded(&flavour, NAME)),
            modules: is_planned.then(|| origin(&printed.acquire)),
            replaces: printed.replaces.first().map(|module| bounded(&module.reason, SENTENCE)),
            refusals,
            warnings: warnings.take(MOST_REFUSALS).map(Refusal::from_finding).collect(),
            reason: None,
            status: Some(status.clone()),
        })
    }

    /// Formats the plan in one line without the node's name, and the lines below it.
    pub(super) fn lines(&self) -> (String, Vec<String>) {
        let driver = self.driver.as_deref().unwrap_or("?");
        let modules = self.modules.unwrap_or("?");
        match self.action {
            Action::Keeps => (format!("keeps {driver}"), self.warned()),
            Action::Installs => (format!("installs {driver} (modules: {modules})"), self.warned()),
            Action::Replaces => {
                let (line, mut below) = self.replacing(driver, modules);
                below.extend(self.warned());
                (line, below)
            }
            Action::Refused => {
                let line =
                    |refusal: &Refusal| format!("refused: {}: {}", refusal.code, refusal.detail);
                let mut lines = self
                    .refusals
                    .iter()
                    .flat_map(|refusal| [line(refusal), format!("remedy: {}", refusal.remedy)]);
                (lines.next().unwrap_or_default(), lines.collect())
            }
            Action::Unknown => {
                (format!("no plan: {}", self.reason.as_deref().unwrap_or("?")), Vec::new())
            }
        }
    }

    /// Returns a line for each warning, and one for its remedy.
    fn warned(&self) -> Vec<String> {
        let lines = |Refusal { code, detail, remedy }: &Refusal| {
            [format!("warning: {code}: {detail}"), format!("remedy: {remedy}")]
        };
        self.warnings.iter().flat_map(lines).collect()
    }

    fn replacing(&self, driver: &str, modules: &str) -> (String, Vec<String>) {
        let change = match &self.live {
            Some(live) if live != driver => format!("replaces {live} by {driver}"),
            Some(_) => format!("reloads {driver}"),
            None => format!("replaces the loaded modules by {driver}"),
        };
        let users = self.status.as_ref().map(used_by).filter(|users| users != "-");
        let users = users.map_or_else(String::new, |users| format!(", in use by {users}"));
        let line = format!("{change} (modules: {modules}){users}");
        // A change of the version explains itself.
        let same = self.live.as_deref() == Some(driver);
        (line, self.replaces.iter().filter(|_| same).cloned().collect())
    }
}

impl Refusal {
    fn from_finding(finding: &PrintedFinding) -> Self {
        Self {
            code: bounded(&finding.code, NAME),
            detail: bounded(&finding.detail, SENTENCE),
            remedy: bounded(&finding.remedy, SENTENCE),
        }
    }
}

/// Returns the origin of the modules by the acquisitions of a plan.
fn origin(acquire: &[PrintedAcquire]) -> &'static str {
    let has = |names: &[&str]| acquire.iter().any(|one| names.contains(&one.acquire.as_str()));
    if has(&["build-set"]) {
        "compile"
    } else if has(&["read-package"]) {
        "package"
    } else if has(&["pull-set", "import-set"]) {
        "prebuilt"
    } else {
        "stored"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn status() -> NodeStatus {
        NodeStatus { live: Some("535.309.01".to_owned()), ..NodeStatus::default() }
    }

    #[rstest]
    #[case::by_the_table("driver-ended", "warning", 2)]
    #[case::other_warning("preempt-rt", "warning", 0)]
    #[case::note("driver-ended", "note", 0)]
    fn warnings_by_the_support_table_are_lines_below_the_plan(
        #[case] code: &str,
        #[case] severity: &str,
        #[case] lines: usize,
    ) {
        let printed = json!({
            "driver_version": "535.309.01",
            "findings": [{"code": code, "severity": severity, "detail": "over", "remedy": "r"}],
        });
        let plan = NodePlan::read("gpu-1", &status(), printed.to_string().as_bytes()).unwrap();
        let (line, below) = plan.lines();
        assert_eq!((line.as_str(), below.len()), ("keeps 535.309.01", lines));
        if lines > 0 {
            assert_eq!(below, ["warning: driver-ended: over", "remedy: r"]);
        }
    }
}
