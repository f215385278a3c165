//! The codes of findings, and the failure a refusal ends a command with.

use super::{Finding, Plan, Severity};
use crate::failure::{ExitCode, Failure};

/// Every code with the exit code of a refusal, gravest first. Documented for users in
/// docs/findings.md; stable.
const CODES: [(&str, ExitCode); 34] = [
    ("arch-unsupported", ExitCode::HostUnsupported),
    ("kernel-without-modules", ExitCode::HostUnsupported),
    ("no-device", ExitCode::NoDevice),
    ("devices-unread", ExitCode::Preflight),
    ("gpu-too-old", ExitCode::HostUnsupported),
    ("gpu-unsupported", ExitCode::Preflight),
    ("gpu-bound-elsewhere", ExitCode::Preflight),
    ("not-root", ExitCode::Preflight),
    ("user-namespace", ExitCode::Preflight),
    ("missing-capability", ExitCode::Preflight),
    ("capabilities-unread", ExitCode::Preflight),
    ("modules-disabled", ExitCode::Preflight),
    ("signature-required", ExitCode::Preflight),
    ("module-key-untrusted", ExitCode::Preflight),
    ("other-driver-live", ExitCode::Preflight),
    ("loaded-unread", ExitCode::Preflight),
    ("run-nvidia-not-shared", ExitCode::Preflight),
    ("host-root-hidden", ExitCode::Preflight),
    ("lost-with-container", ExitCode::Preflight),
    ("signature-missing", ExitCode::Verification),
    ("driver-not-offered", ExitCode::Download),
    ("archives-unread", ExitCode::Download),
    ("registry-unread", ExitCode::Download),
    ("run-file-unread", ExitCode::Download),
    ("nothing-built", ExitCode::Download),
    ("userspace-not-offered", ExitCode::Download),
    ("headers-missing", ExitCode::Toolchain),
    ("headers-unknown", ExitCode::Toolchain),
    ("kernel-unknown", ExitCode::Preflight),
    ("dependency-missing", ExitCode::Preflight),
    ("module-not-built", ExitCode::Preflight),
    ("parameters-unused", ExitCode::Usage),
    ("preempt-rt", ExitCode::HostUnsupported),
    ("gpu-unknown", ExitCode::Preflight),
];

impl Finding {
    pub(super) fn new(
        severity: Severity,
        code: &str,
        seen: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        debug_assert!(CODES.iter().any(|(known, _)| *known == code), "{code} is in no table");
        Self { code: code.to_owned(), severity, seen: seen.into(), remedy: remedy.into() }
    }

    pub(super) fn refusal(code: &str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Severity::Refusal, code, seen, remedy)
    }

    pub(super) fn warning(code: &str, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, seen, remedy)
    }

    /// The exit code of a command that this finding ends.
    pub fn exit_code(&self) -> ExitCode {
        CODES.iter().find(|(code, _)| *code == self.code).map_or(ExitCode::Preflight, |(_, e)| *e)
    }

    fn rank(&self) -> usize {
        CODES.iter().position(|(code, _)| *code == self.code).unwrap_or(CODES.len())
    }
}

/// Puts refusals before warnings before notes, and the gravest code first.
pub(super) fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|f| (std::cmp::Reverse(f.severity), f.rank()));
}

impl Plan {
    /// The gravest refusal among the findings, as the failure that ends a command.
    pub fn refusal(&self) -> Option<Failure> {
        let refusals = || self.findings.iter().filter(|f| f.severity == Severity::Refusal);
        let gravest = refusals().min_by_key(|f| f.rank())?;
        let cause = match refusals().count() {
            1 => format!("{}: {}", gravest.code, gravest.seen),
            n => format!("{}: {} (and {} more findings refuse)", gravest.code, gravest.seen, n - 1),
        };
        Some(Failure::new(gravest.exit_code(), cause).remedy(gravest.remedy.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_refusal_ends_the_command() {
        let mut findings = vec![
            Finding::warning("no-device", "w", "r"),
            Finding::refusal("headers-missing", "h", "r"),
            Finding::refusal("gpu-unsupported", "g", "r"),
        ];
        sort(&mut findings);
        let codes: Vec<&str> = findings.iter().map(|f| f.code.as_str()).collect();
        assert_eq!(codes, ["gpu-unsupported", "headers-missing", "no-device"]);
        assert_eq!(findings[1].exit_code(), ExitCode::Toolchain);
    }

    #[test]
    fn every_code_is_documented_with_its_exit_code() {
        let page = include_str!("../../../docs/findings.md");
        for (code, exit) in CODES {
            let row = format!("| `{code}` | {} |", exit.number());
            assert!(page.contains(&row), "docs/findings.md has no row {row}");
        }
    }

    #[test]
    fn no_code_is_listed_twice() {
        let mut codes: Vec<&str> = CODES.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), CODES.len());
    }
}
