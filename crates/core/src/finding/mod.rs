//! Findings about a host: code, severity, detail and remedy.

pub mod code;
mod name;
#[cfg(test)]
mod page;
pub mod table;

use serde::{Deserialize, Serialize};

pub use code::{About, Area, FindingCodeEntry, Severities};
pub use table::Code;

use crate::failure::{ExitCode, Failure};

/// Codes about a driver that the support table judges.
pub const OF_SUPPORT: [Code; 4] =
    [Code::GpuNeedsDriver, Code::DriverExcluded, Code::DriverVulnerable, Code::DriverEnded];

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information only.
    Note,
    /// Possible problem.
    Warning,
    /// The plan cannot be carried out.
    Refusal,
}

impl Severity {
    /// Returns the severity as written in plans and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Refusal => "refusal",
        }
    }
}

/// Finding about a host: code, severity, detail and remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable code, for example `gpu-bound-elsewhere`.
    pub code: Code,
    /// Severity.
    pub severity: Severity,
    /// Detail: the observed state.
    pub detail: String,
    /// Remedy.
    pub remedy: String,
}

impl Finding {
    /// Makes a finding with the default remedy of its code.
    pub fn new(severity: Severity, code: Code, detail: impl Into<String>) -> Self {
        debug_assert!(code.entry().severities.has(severity), "{code} is never a {severity:?}");
        Self { code, severity, detail: detail.into(), remedy: code.entry().remedy.to_owned() }
    }

    /// Makes a refusal: `run` ends before it changes anything.
    pub fn refusal(code: Code, detail: impl Into<String>) -> Self {
        Self::new(Severity::Refusal, code, detail)
    }

    /// Makes a warning.
    pub fn warning(code: Code, detail: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, detail)
    }

    /// Makes a note.
    pub fn note(code: Code, detail: impl Into<String>) -> Self {
        Self::new(Severity::Note, code, detail)
    }

    /// Replaces the default remedy by one for this very case.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Returns the exit code of a command that this finding ends.
    pub fn exit_code(&self) -> ExitCode {
        self.code.entry().kind.exit_code()
    }
}

/// Verdict of a command about a host: its gravest result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No finding, or only notes.
    Passed,
    /// At least one warning.
    Warned,
    /// Not to be decided on this machine: the tree was captured on another one, whose sources do not answer here.
    Undecided,
    /// Refusal: `run` would end before it changes anything.
    Refused,
}

impl Verdict {
    /// Returns the verdict that the findings give; `undecided` where an acquisition could not be judged.
    pub fn from_findings(findings: &[Finding], undecided: bool) -> Self {
        match findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Refusal) => Self::Refused,
            _ if undecided => Self::Undecided,
            Some(Severity::Warning) => Self::Warned,
            Some(Severity::Note) | None => Self::Passed,
        }
    }
}

/// Sorts refusals before warnings before notes, and within these by gravity of the code.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|f| (std::cmp::Reverse(f.severity), f.code));
}

/// Returns the gravest refusal as the failure that ends a command.
pub fn refusal(findings: &[Finding]) -> Option<Failure> {
    let refusals = || findings.iter().filter(|f| f.severity == Severity::Refusal);
    let gravest = refusals().min_by_key(|f| f.code)?;
    let cause = match refusals().count() {
        1 => format!("{}: {}", gravest.code, gravest.detail),
        n => {
            let more = if n == 2 {
                "1 more refusal".to_owned()
            } else {
                format!("{} more refusals", n - 1)
            };
            format!("{}: {} ({more}: see `longshore plan`)", gravest.code, gravest.detail)
        }
    };
    Some(Failure::new(gravest.code.entry().kind, cause).remedy(gravest.remedy.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_refusal_ends_the_command() {
        let mut findings = vec![
            Finding::warning(Code::HostRootHidden, "w"),
            Finding::refusal(Code::HeadersMissing, "h"),
            Finding::refusal(Code::GpuUnsupported, "g"),
        ];
        sort(&mut findings);
        let codes: Vec<Code> = findings.iter().map(|f| f.code).collect();
        assert_eq!(codes, [Code::GpuUnsupported, Code::HeadersMissing, Code::HostRootHidden]);
        let failure = refusal(&findings).expect("refused");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert_eq!(
            failure.to_string(),
            "gpu-unsupported: g (1 more refusal: see `longshore plan`)"
        );
        assert!(refusal(&findings[2..]).is_none());
    }

    #[test]
    fn a_finding_has_the_tables_remedy_unless_it_knows_better() {
        let finding = Finding::refusal(Code::NoDevice, "none");
        assert_eq!(finding.remedy, Code::NoDevice.entry().remedy);
        assert_eq!(finding.remedy("buy one").remedy, "buy one");
    }
}
