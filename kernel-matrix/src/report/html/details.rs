//! Details of each cell: reason, remedy, log, versions and times.

use std::fmt::{Display, Write};

use super::super::merge::{Cell, Merged};
use super::table::counted;
use super::{Esc, badge, searchable};
use crate::results::{CellResult, Line, LogExcerpt, ResolvedCell, Times, Verdict};

pub(super) fn render(page: &mut String, merged: &Merged) {
    page.push_str("<section class=\"details\" aria-labelledby=\"details\">\n<h2 id=\"details\">Details</h2>\n");
    for (at, cell) in merged.cells.iter().enumerate() {
        // The anchor is within the element, so that a browser opens it without the script.
        let _ = write!(
            page,
            "<details class=\"cell\" data-at=\"{at}\" data-status=\"{}\" data-text=\"{}\">\
             <summary>{} <span class=\"name\">{}</span> <span class=\"why\">{}</span></summary>\n\
             <div class=\"body\" id=\"c{at}\">\n",
            cell.status().name(),
            Esc(&searchable(merged, cell)),
            badge(cell.status()),
            Esc(cell.planned.name.as_str()),
            Esc(&cell.reason()),
        );
        body(page, merged, cell);
        page.push_str("</div>\n</details>\n");
    }
    page.push_str("</section>\n");
}

fn body(page: &mut String, merged: &Merged, cell: &Cell) {
    match &cell.result {
        None => paragraph(page, "reason", &cell.reason()),
        Some(result) => {
            explain(page, &result.verdict);
            if let Some(log) = &result.log {
                excerpt(page, log);
            }
        }
    }
    page.push_str("<dl class=\"pairs\">\n");
    if let Some(resolved) = cell.result.as_ref().and_then(|result| result.resolved.as_ref()) {
        versions(page, resolved);
    }
    if let Some(result) = &cell.result {
        measurements(page, result);
    }
    if let Some(booted) = merged.booted(cell) {
        let (name, date, commit) = (&booted.cell, &booted.date, &booted.commit);
        pair(page, "Booted", format_args!("cell {name}, {date}, commit {commit}"));
    }
    let planned = &cell.planned;
    pair(
        page,
        "Cell",
        format_args!("{}, rule {}, set {}", planned.scenario, planned.rule, planned.set),
    );
    pair(page, "Devices", counted(&planned.gpus));
    page.push_str("</dl>\n");
}

fn explain(page: &mut String, verdict: &Verdict) {
    match verdict {
        Verdict::Works {} => paragraph(page, "reason", "All checks of the scenario passed."),
        Verdict::WorksPatched { patches } => {
            paragraph(
                page,
                "reason",
                &format!("All checks passed, with patches: {}.", join(patches)),
            );
        }
        Verdict::Compiled { patches } => {
            let with = match &patches[..] {
                [] => String::new(),
                _ => format!(", with patches: {}", join(patches)),
            };
            paragraph(
                page,
                "reason",
                &format!("The modules compiled{with}; nothing was booted in this run."),
            );
        }
        Verdict::Refused { code, reason, remedy } => {
            paragraph(page, "reason", &format!("{code}: {reason}"));
            advise(page, remedy);
        }
        Verdict::DoesNotCompile { class, name, line, remedy } => {
            let of = if name.is_empty() { String::new() } else { format!(": {name}") };
            paragraph(page, "reason", &format!("Does not compile, {class}{of}."));
            let _ = writeln!(page, "<pre class=\"failing\">{}</pre>", Esc(line.as_str()));
            advise(page, remedy);
        }
        Verdict::Unavailable { part, why } => {
            paragraph(page, "reason", &format!("The {} cannot be had: {why}", part.name()));
        }
        Verdict::Faulty { why } => faults(page, why),
        Verdict::GuestEnded { class, why } => {
            paragraph(page, "reason", &format!("The guest gave no verdict: {}.", class.name()));
            faults(page, why);
        }
        Verdict::NotRun { why } => paragraph(page, "reason", why.as_str()),
    }
}

fn faults(page: &mut String, why: &[Line]) {
    page.push_str("<ul class=\"reason\">");
    for why in why {
        let _ = write!(page, "<li>{}</li>", Esc(why.as_str()));
    }
    page.push_str("</ul>\n");
}

fn paragraph(page: &mut String, class: &str, text: &str) {
    let _ = writeln!(page, "<p class=\"{class}\">{}</p>", Esc(text));
}

fn advise(page: &mut String, remedy: &Line) {
    if !remedy.is_empty() {
        let _ = writeln!(page, "<p class=\"remedy\"><b>Remedy</b> {}</p>", Esc(remedy.as_str()));
    }
}

fn excerpt(page: &mut String, log: &LogExcerpt) {
    if !log.excerpt.is_empty() {
        page.push_str("<pre class=\"log\" tabindex=\"0\" aria-label=\"Log\">");
        for (at, line) in log.excerpt.iter().enumerate() {
            let line = Esc(line.as_str());
            if log.failing_line.is_some_and(|failing| u64::from(failing) == at as u64) {
                let _ = writeln!(page, "<mark>{line}</mark>");
            } else {
                let _ = writeln!(page, "{line}");
            }
        }
        page.push_str("</pre>\n");
    }
    let (file, digest) = (Esc(log.file.as_str()), log.sha256.as_str());
    let _ = writeln!(
        page,
        "<p class=\"quiet\">From <code>{file}</code>, {} bytes, <span title=\"{digest}\">sha256 {}…</span></p>",
        log.bytes,
        &digest[..12]
    );
}

fn versions(page: &mut String, resolved: &ResolvedCell) {
    pair(page, "Kernel", format_args!("{} ({})", resolved.kernel_release, resolved.kernel_version));
    pair(page, "Headers", &resolved.headers);
    pair(page, "Compiler", &resolved.compiler);
    pair(page, "Driver", &resolved.driver_version);
    pair(page, "Revision", &resolved.revision);
    for refused in &resolved.refused_revisions {
        pair(page, "Tried before", format_args!("{}: {}", refused.revision, refused.line));
    }
    pair(page, "Patches", join(&resolved.patches));
    pair(page, "Module set", resolved.set.as_ref().map_or("", |set| set.as_str()));
    for note in &resolved.notes {
        pair(page, "Note", note);
    }
}

fn measurements(page: &mut String, result: &CellResult) {
    pair(page, "Times", times(result.times));
    let phases: Vec<String> = result
        .phases
        .iter()
        .map(|phase| format!("{} {}", phase.name, seconds(phase.after_ms)))
        .collect();
    pair(page, "Guest's phases", phases.join(" · "));
    for (what, value) in &result.measured {
        pair(page, what.as_str(), value);
    }
    if let Some(run) = &result.reused_from {
        pair(page, "Taken from", format_args!("run {run}: no input has changed since"));
    }
    if let Some(key) = &result.key {
        pair(page, "Key", key.as_str());
    }
}

fn times(times: Times) -> String {
    let parts = [
        ("prepare", times.prepare_ms),
        ("compile", times.compile_ms),
        ("guest", times.guest_ms),
        ("other", times.other_ms),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, ms)| *ms > 0)
        .map(|(name, ms)| format!("{name} {}", seconds(*ms)))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("{} ({})", seconds(times.total_ms()), parts.join(" · "))
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms / 100 % 10)
}

fn join(lines: &[Line]) -> String {
    lines.iter().map(Line::as_str).collect::<Vec<_>>().join(", ")
}

/// Writes a row, unless its value is empty.
fn pair(page: &mut String, name: &str, value: impl Display) {
    let value = value.to_string();
    if !value.is_empty() {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", Esc(name), Esc(&value));
    }
}
