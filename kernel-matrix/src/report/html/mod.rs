//! The report as one HTML page, which loads nothing: style and script are in it, and its content security
//! policy allows these two alone, by their digests.
//!
//! The templates escape every text, in elements and in attributes. Control characters are written out: in
//! results by each [`Line`](crate::results::Line), elsewhere by [`in_line`], which every `String` from outside goes through. No attribute holds an address, a
//! style or a script from results. Without the script the page has all its contents; with it, a filter, keys
//! in the table and a panel for details.

mod changes;
mod details;
mod head;
mod table;
mod trend;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use longshore_core::sanitize::in_line;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::absent::Axes;
use super::difference::Differences;
use super::history::PastRun;
use super::merge::{Cell, Merged};
use super::status::Status;
use crate::results::Shard;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Width of a table's column and of its first one, in CSS pixels: page.css has them, too.
const COLUMN: usize = 88;
const FIRST_COLUMN: usize = 290;
/// Most columns of a table that has room for the reason of each cell, and their width.
const ROOMY: usize = 4;
const ROOMY_COLUMN: usize = 220;

/// Returns the page.
pub(crate) fn render(
    merged: &Merged,
    differences: Option<&Differences<'_>>,
    trend: &[PastRun],
) -> String {
    let axes = Axes::new(merged);
    // Ended branches that are folded scroll on their own.
    let shown = if axes.drivers.is_empty() { &axes.ended } else { &axes.drivers };
    let style = style(shown.len());
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(&style),
        hash(SCRIPT)
    );
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { "Kernel matrix: " (merged.headline()) }
                style { (PreEscaped(style)) }
            }
            body {
                a.skip href="#matrix" { "Skip to the table" }
                (head::render(merged))
                main {
                    (problems(merged))
                    @if let Some(differences) = differences { (changes::render(differences)) }
                    (filter(merged))
                    (table::render(merged, &axes))
                    (trend::render(trend))
                    (details::render(merged))
                    (left_out(merged))
                }
                (foot(merged))
                script { (PreEscaped(SCRIPT)) }
            }
        }
        "\n"
    };
    page.into_string()
}

/// Returns the style with the width from which a table of so many columns fits.
fn style(columns: usize) -> String {
    let columns = columns * if columns <= ROOMY { ROOMY_COLUMN } else { COLUMN };
    let fits = FIRST_COLUMN + columns.max(6 * COLUMN) + 64;
    STYLE.replace("/*NARROW*/", &format!("@media (max-width: {}px)", fits - 1))
}

/// Returns the digest of an element's content, as a content security policy states it.
fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

fn problems(merged: &Merged) -> Markup {
    html! {
        @if !merged.problems.is_empty() {
            section.problems aria-labelledby="problems" {
                h2 id="problems" { "This run is incomplete" }
                ul {
                    @for problem in &merged.problems { li { (in_line(problem)) } }
                }
            }
        }
    }
}

/// Returns the counts, which are the legend and with the script the filter.
fn filter(merged: &Merged) -> Markup {
    let all = merged.cells.len();
    html! {
        section.filter aria-labelledby="filter" {
            h2 id="filter" { "Cells" }
            p.search hidden {
                label for="search" { "Filter" } " "
                input id="search" type="search" autocomplete="off" spellcheck="false"
                    placeholder="550 open 6.12 rt" aria-describedby="count";
                " " span.hint.quiet { "press " kbd { "/" } }
            }
            ul.legend {
                @for (status, count) in merged.counts() { (entry(status, count)) "\n" }
            }
            @if merged.reused() > 0 {
                p.quiet {
                    span.s.again { "dashed" } " " (merged.reused())
                    " results are of an earlier run with the same inputs"
                }
            }
            @if merged.booted_count() > 0 {
                p.quiet {
                    span.s.works { span aria-hidden="true" { "✓" } " booted" }
                    " " (merged.booted_count()) " of these kernels and drivers also booted in a "
                    "virtual machine, in a cell of longshore's own tests"
                }
            }
            p.quiet id="count" role="status" aria-live="polite" { (all) " of " (all) " cells" }
        }
        "\n"
    }
}

fn entry(status: Status, count: usize) -> Markup {
    html! {
        li {
            label {
                input type="checkbox" name="status" value=(status.name()) checked hidden;
                " " (badge(status)) " " b { (count) } " " span.meaning { (status.meaning()) }
            }
        }
    }
}

/// Returns a status with its colour, symbol and word.
fn badge(status: Status) -> Markup {
    html! {
        span.s.(status.name()) {
            span aria-hidden="true" { (status.symbol()) } " " (status.word())
        }
    }
}

/// Returns the texts that the filter searches in a cell.
fn searchable(merged: &Merged, cell: &Cell) -> String {
    let kernel = merged.kernels.iter().find(|kernel| kernel.id == cell.planned.kernel);
    let driver = merged.drivers.iter().find(|driver| driver.id == cell.planned.driver);
    let mut words = vec![cell.planned.name.to_string(), cell.planned.scenario.to_string()];
    words.extend(kernel.map(|k| format!("{} {} {}", k.release, k.suite, k.flavour)));
    words.extend(driver.map(|d| format!("{} {}", d.branch, d.flavour)));
    words.push(cell.status().word().into());
    words.extend(merged.booted(cell).map(|_| "booted".to_owned()));
    words.push(cell.driver_version().to_owned());
    words.push(cell.reason().chars().take(300).collect());
    words.join(" ").to_lowercase()
}

fn left_out(merged: &Merged) -> Markup {
    html! {
        @if !merged.excluded.is_empty() {
            section aria-labelledby="left-out" {
                h2 id="left-out" { "Left out" }
                dl.pairs {
                    @for exclusion in &merged.excluded {
                        dt { (exclusion.what()) " " span.quiet { "(" (exclusion.count) ")" } }
                        dd { (exclusion.reason) }
                        "\n"
                    }
                }
            }
        }
    }
}

fn foot(merged: &Merged) -> Markup {
    html! {
        footer.quiet {
            @for note in &merged.notes { p { (in_line(note)) } }
            @for run in &merged.runs {
                p {
                    "Run " (run.id)
                    @if let Some(Shard { index, count }) = run.shard {
                        ", shard " (index) " of " (count)
                    }
                    ": " (time(run.began)) " to " (time(run.ended))
                    @if !run.machine.backend.is_empty() {
                        ", simulated GPU by " (run.machine.backend)
                    }
                }
                "\n"
            }
            @if !merged.origin.command.is_empty() {
                p { "Made by " code { (in_line(&merged.origin.command)) } }
            }
            p {
                "The GPU of these runs is simulated: a driver loads and unloads, and computes "
                "nothing."
            }
        }
        "\n"
    }
}

fn time(time: jiff::Timestamp) -> Markup {
    html! {
        time datetime=(time.strftime("%Y-%m-%dT%H:%M:%SZ")) {
            (time.strftime("%Y-%m-%d %H:%M UTC"))
        }
    }
}
