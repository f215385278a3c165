//! Report as text.

use std::fmt::{self, Write};

use super::{Check, Report, ReportedFinding};
use longshore_core::finding::{Area, Severity, Verdict};

/// Formats the verdict, the findings by area and gravest first, passed checks, and skipped checks.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_all(&mut text, report);
    text
}

fn write_all(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "{}", verdict(report))?;
    let mut areas: Vec<Area> = Vec::new();
    for finding in &report.findings {
        if !areas.contains(&finding.area) {
            areas.push(finding.area);
        }
    }
    for area in areas {
        writeln!(out, "\n{}", area.title())?;
        for finding in report.findings.iter().filter(|finding| finding.area == area) {
            write_finding(out, finding)?;
        }
    }
    write_checks(out, "Passed checks", &report.passed)?;
    write_checks(out, "Skipped checks", &report.skipped)
}

fn verdict(report: &Report) -> String {
    let count = |severity: Severity, one: &str| {
        let n = report.findings.iter().filter(|finding| finding.severity == severity).count();
        match n {
            0 => None,
            1 => Some(format!("1 {one}")),
            n => Some(format!("{n} {one}s")),
        }
    };
    let counts: Vec<String> =
        [(Severity::Refusal, "refusal"), (Severity::Warning, "warning"), (Severity::Note, "note")]
            .into_iter()
            .filter_map(|(severity, one)| count(severity, one))
            .collect();
    let counts = if counts.is_empty() { "nothing found".to_owned() } else { counts.join(", ") };
    let word = match report.verdict {
        Verdict::Passed => "PASSED",
        Verdict::Warned => "WARNED",
        Verdict::Undecided => "CANNOT BE DECIDED HERE",
        Verdict::Refused => "REFUSED",
    };
    format!("{word}  {}: {counts} (exit code {})", report.host, report.exit_code.number())
}

fn write_finding(out: &mut String, finding: &ReportedFinding) -> fmt::Result {
    writeln!(out, "  {} {}: {}", finding.severity.as_str(), finding.code, finding.detail)?;
    writeln!(out, "    why it matters: {}", finding.consequence)?;
    writeln!(out, "    what to do: {}", finding.remedy)
}

fn write_checks(out: &mut String, title: &str, checks: &[Check]) -> fmt::Result {
    if checks.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for item in checks {
        writeln!(out, "  {:<34} {}", item.name, item.detail)?;
    }
    Ok(())
}
