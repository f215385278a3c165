//! Report as text.

use std::fmt::{self, Write};

use super::{Looked, Report, Told, Verdict};
use crate::finding::{Area, Severity};

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
    for told in &report.findings {
        if !areas.contains(&told.area) {
            areas.push(told.area);
        }
    }
    for area in areas {
        writeln!(out, "\n{}", area.title())?;
        for told in report.findings.iter().filter(|told| told.area == area) {
            write_told(out, told)?;
        }
    }
    write_looked(out, "Passed checks", &report.well)?;
    write_looked(out, "Skipped checks", &report.not_looked_at)
}

fn verdict(report: &Report) -> String {
    let count = |severity: Severity, one: &str| {
        let n = report.findings.iter().filter(|told| told.severity == severity).count();
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
        Verdict::Well => "WELL",
        Verdict::Warned => "WARNED",
        Verdict::Refused => "REFUSED",
    };
    format!("{word}  {}: {counts} (exit code {})", report.host, report.exit_code.number())
}

fn write_told(out: &mut String, told: &Told) -> fmt::Result {
    writeln!(out, "  {} {}: {}", told.severity.as_str(), told.code, told.seen)?;
    writeln!(out, "    why it matters: {}", told.matters)?;
    writeln!(out, "    what to do: {}", told.remedy)
}

fn write_looked(out: &mut String, title: &str, looked: &[Looked]) -> fmt::Result {
    if looked.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for item in looked {
        writeln!(out, "  {:<34} {}", item.what, item.seen)?;
    }
    Ok(())
}
