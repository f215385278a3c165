//! Report as text.

use super::{Check, Report, ReportedFinding};
use crate::console::{Form, Text, Tone};
use longshore_core::finding::{Area, Severity, Verdict};

/// Columns of a check's name.
const NAME: usize = 34;

/// Formats the verdict, the findings by area and gravest first, passed checks, and skipped checks.
pub fn render(report: &Report, form: Form) -> String {
    let mut text = Text::new(form);
    write_verdict(&mut text, report);
    let mut areas: Vec<Area> = Vec::new();
    for finding in &report.findings {
        if !areas.contains(&finding.area) {
            areas.push(finding.area);
        }
    }
    for area in areas {
        text.line("");
        text.line(area.title());
        for finding in report.findings.iter().filter(|finding| finding.area == area) {
            write_finding(&mut text, finding);
        }
    }
    write_checks(&mut text, "Passed checks", &report.passed);
    write_checks(&mut text, "Skipped checks", &report.skipped);
    text.finish()
}

fn write_verdict(text: &mut Text, report: &Report) {
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
    let words = format!("{}: {counts} (exit code {})", report.host, report.exit_code.number());
    text.item(&format!("{word}  "), report.verdict.into(), 2, &words);
}

fn write_finding(text: &mut Text, finding: &ReportedFinding) {
    let ReportedFinding { code, severity, detail, consequence, remedy, .. } = finding;
    let head = format!("  {} ", severity.as_str());
    text.item(&head, (*severity).into(), 4, &format!("{code}: {detail}"));
    text.item("    why it matters: ", Tone::Plain, 6, consequence);
    text.item("    what to do: ", Tone::Plain, 6, remedy);
}

fn write_checks(text: &mut Text, title: &str, checks: &[Check]) {
    if checks.is_empty() {
        return;
    }
    text.line("");
    text.line(title);
    for item in checks {
        text.item(&format!("  {:<NAME$} ", item.name), Tone::Plain, NAME + 3, &item.detail);
    }
}
