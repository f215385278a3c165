//! Details of each cell: reason, remedy, log, versions and times.

use std::fmt::Display;

use longshore_core::sanitize::in_line;
use maud::{Markup, html};

use super::super::merge::{Cell, Merged};
use super::table::counted;
use super::{badge, searchable};
use crate::results::{CellResult, Line, LogExcerpt, ResolvedCell, Times, Verdict};

pub(super) fn render(merged: &Merged) -> Markup {
    html! {
        section.details aria-labelledby="details" {
            h2 id="details" { "Details" }
            @for (at, cell) in merged.cells.iter().enumerate() {
                "\n"
                details.cell data-at=(at) data-status=(cell.status().name())
                    data-text=(searchable(merged, cell)) {
                    summary {
                        (badge(cell.status())) " " span.name { (cell.planned.name) } " "
                        span.why { (cell.reason()) }
                    }
                    // The anchor is within the element: a browser opens it without the script.
                    div.body id={ "c" (at) } { (body(merged, cell)) }
                }
            }
        }
        "\n"
    }
}

fn body(merged: &Merged, cell: &Cell) -> Markup {
    let planned = &cell.planned;
    let rule = format!("{}, rule {}, set {}", planned.scenario, planned.rule, planned.set);
    html! {
        @match &cell.result {
            None => p.reason { (cell.reason()) },
            Some(result) => {
                (explain(&result.verdict))
                @if let Some(log) = &result.log { (excerpt(log)) }
            }
        }
        "\n"
        dl.pairs {
            @if let Some(result) = &cell.result {
                @if let Some(resolved) = &result.resolved { (versions(resolved)) }
                (measurements(result))
            }
            @if let Some(booted) = merged.booted(cell) { (pair("Booted", booted)) }
            (pair("Cell", rule))
            (pair("Devices", counted(&planned.gpus)))
        }
    }
}

fn explain(verdict: &Verdict) -> Markup {
    html! {
        @match verdict {
            Verdict::Works {} => p.reason { "All checks of the scenario passed." },
            Verdict::WorksPatched { patches } => {
                p.reason { "All checks passed, with patches: " (Line::list(patches, ", ")) "." }
            }
            Verdict::Compiled { patches } => {
                p.reason {
                    "The modules compiled"
                    @if !patches.is_empty() { ", with patches: " (Line::list(patches, ", ")) }
                    "; nothing was booted in this run."
                }
            }
            Verdict::Refused { code, reason, remedy } => {
                p.reason { (code) ": " (reason) }
                (advise(remedy))
            }
            Verdict::DoesNotCompile { class, name, line, remedy } => {
                p.reason {
                    "Does not compile, " (class) @if !name.is_empty() { ": " (name) } "."
                }
                pre.failing { (line) }
                (advise(remedy))
            }
            Verdict::Unavailable { part, why } => {
                p.reason { "The " (part) " cannot be had: " (why) }
            }
            Verdict::Faulty { why } => (faults(why)),
            Verdict::GuestEnded { class, why } => {
                p.reason { "The guest gave no verdict: " (class) "." }
                (faults(why))
            }
            Verdict::NotRun { why } => p.reason { (why) },
        }
    }
}

fn faults(why: &[Line]) -> Markup {
    html! {
        ul.reason { @for why in why { li { (why) } } }
    }
}

fn advise(remedy: &Line) -> Markup {
    html! {
        @if !remedy.is_empty() { p.remedy { b { "Remedy" } " " (remedy) } }
    }
}

fn excerpt(log: &LogExcerpt) -> Markup {
    let digest = log.sha256.as_str();
    html! {
        @if !log.excerpt.is_empty() {
            pre.log tabindex="0" aria-label="Log" {
                @for (at, line) in (0..).zip(&log.excerpt) {
                    @if log.failing_line == Some(at) { mark { (line) } } @else { (line) }
                    "\n"
                }
            }
        }
        p.quiet {
            "From " code { (log.file) } ", " (log.bytes) " bytes, "
            span title=(digest) { "sha256 " (&digest[..12]) "…" }
        }
    }
}

fn versions(resolved: &ResolvedCell) -> Markup {
    let kernel = format!("{} ({})", resolved.kernel_release, resolved.kernel_version);
    html! {
        (pair("Kernel", kernel))
        (pair("Headers", &resolved.headers))
        (pair("Compiler", &resolved.compiler))
        (pair("Driver", &resolved.driver_version))
        (pair("Revision", &resolved.revision))
        @for refused in &resolved.refused_revisions {
            (pair("Tried before", format_args!("{}: {}", refused.revision, refused.line)))
        }
        (pair("Patches", Line::list(&resolved.patches, ", ")))
        (pair("Module set", resolved.set.as_ref().map_or("", |set| set.as_str())))
        @for note in &resolved.notes { (pair("Note", note)) }
    }
}

fn measurements(result: &CellResult) -> Markup {
    let phases: Vec<String> = result
        .phases
        .iter()
        .map(|phase| format!("{} {}", phase.name, seconds(phase.after_ms)))
        .collect();
    html! {
        (pair("Times", times(result.times)))
        (pair("Guest's phases", phases.join(" · ")))
        @for (what, value) in &result.measured { (pair(what.as_str(), value)) }
        @if let Some(run) = &result.reused_from {
            (pair("Taken from", format_args!("run {run}: no input has changed since")))
        }
        @if let Some(key) = &result.key { (pair("Key", key.as_str())) }
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

/// Returns a row, unless its value is empty.
fn pair(name: &str, value: impl Display) -> Markup {
    let value = value.to_string();
    html! {
        @if !value.is_empty() { dt { (name) } dd { (in_line(&value)) } "\n" }
    }
}
