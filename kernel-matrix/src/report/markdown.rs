//! The report as Markdown, for a comment on a pull request: at most [`BYTES`].

use std::fmt::Write;

use super::absent::Axes;
use super::difference::{Change, Differences};
use super::merge::{Cell, Merged};
use super::status::Status;
use crate::results::DriverAxis;

/// Largest size of the text: GitHub takes 65,536 characters in a comment.
pub(crate) const BYTES: usize = 60_000;

/// Number of changes or reasons that a list shows.
const LISTED: usize = 40;

/// Longest foreign text in a list.
const TEXT_CHARS: usize = 160;

/// Room for the last line.
const RESERVE: usize = 200;

/// Returns the report as Markdown.
pub(crate) fn render(merged: &Merged, differences: Option<&Differences<'_>>) -> String {
    let mut text = summary(merged, differences);
    let mut sections = Vec::new();
    sections.extend(differences.map(changes));
    sections.push(tables(merged));
    sections.push(reasons(merged));
    sections.push(left_out(merged));
    let mut cut = Vec::new();
    for Section { name, body } in sections {
        if body.is_empty() {
        } else if text.len() + body.len() + RESERVE <= BYTES {
            text += &body;
        } else {
            cut.push(name);
        }
    }
    if !cut.is_empty() {
        let _ =
            writeln!(text, "\nToo long for a comment, and on the page alone: {}.", cut.join(", "));
    }
    text
}

/// Returns headline and differences alone, as Markdown: the cells that are worse, better, new or no longer planned.
pub(crate) fn difference(merged: &Merged, differences: Option<&Differences<'_>>) -> String {
    let mut text = summary(merged, differences);
    let Some(differences) = differences else { return text };
    text += &changes(differences).body;
    if !differences.new.is_empty() {
        text += "\n**New**\n\n| Cell | Now | Reason |\n|---|---|---|\n";
        for (_, cell) in differences.new.iter().take(LISTED) {
            let (name, now) = (code(cell.planned.name.as_str()), mark(cell.status(), true));
            let _ = writeln!(text, "| {name} | {now} | {} |", code(&cell.reason()));
        }
        more(&mut text, differences.new.len());
    }
    if !differences.gone.is_empty() {
        let gone = differences.gone.iter().take(LISTED).map(|name| code(name.as_str()));
        let _ = writeln!(text, "\n**No longer planned:** {}", gone.collect::<Vec<_>>().join(", "));
        more(&mut text, differences.gone.len());
    }
    text
}

struct Section {
    name: &'static str,
    body: String,
}

fn summary(merged: &Merged, differences: Option<&Differences<'_>>) -> String {
    let mut text = format!("## Kernel matrix: {}\n\n", merged.headline());
    let counts: Vec<String> = merged
        .counts()
        .map(|(status, count)| format!("{} {count} {}", status.symbol(), status.word()))
        .collect();
    let _ = writeln!(text, "{}  ", counts.join(" · "));
    let _ = writeln!(text, "Run {}, ended {}", code(merged.id().as_str()), time(merged.ended()));
    if merged.reused() > 0 {
        let _ = writeln!(
            text,
            "\n{} results are of an earlier run with the same inputs",
            merged.reused()
        );
    }
    for problem in merged.problems.iter().take(LISTED) {
        let _ = writeln!(text, "\n**Incomplete:** {}", code(problem));
    }
    if let Some(differences) = differences {
        let id = code(differences.id.as_str());
        let _ = writeln!(
            text,
            "\n**Against {id}** ({}): {}",
            time(differences.ended),
            differences.summary()
        );
    }
    text
}

fn time(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

fn changes(differences: &Differences<'_>) -> Section {
    let mut body = String::new();
    for (title, changes) in differences.groups() {
        let _ =
            writeln!(body, "\n**{title}**\n\n| Cell | Before | Now | Reason |\n|---|---|---|---|");
        for Change { cell, before, .. } in changes.iter().take(LISTED) {
            let [before, now] = [*before, cell.status()].map(|status| mark(status, true));
            let name = code(cell.planned.name.as_str());
            let _ = writeln!(body, "| {name} | {before} | {now} | {} |", code(&cell.reason()));
        }
        more(&mut body, changes.len());
    }
    Section { name: "the differences", body }
}

fn more(body: &mut String, count: usize) {
    if count > LISTED {
        let _ = writeln!(body, "\nand {} more", count - LISTED);
    }
}

/// The matrix, with words if there is room for them.
fn tables(merged: &Merged) -> Section {
    let body = [true, false]
        .into_iter()
        .map(|words| table(merged, words))
        .find(|body| body.len() < BYTES / 2)
        .unwrap_or_else(|| table(merged, false));
    Section { name: "the table", body }
}

fn table(merged: &Merged, words: bool) -> String {
    if merged.cells.is_empty() {
        return String::new();
    }
    let axes = Axes::new(merged);
    let mut body = String::new();
    if !axes.drivers.is_empty() || axes.ended.is_empty() {
        rows(&mut body, merged, &axes, &axes.drivers, words);
    } else {
        body += "\nNo driver here is of a branch that is supported.\n";
    }
    if !axes.ended.is_empty() {
        body += "\n### Ended branches\n";
        rows(&mut body, merged, &axes, &axes.ended, words);
    }
    let absent: Vec<String> =
        axes.absent(merged).iter().map(|(name, ..)| code(name)).take(LISTED).collect();
    if !absent.is_empty() {
        let _ = writeln!(body, "\nWithout sources, and not in the table: {}", absent.join(", "));
    }
    let legend: Vec<String> = merged
        .counts()
        .map(|(s, _)| format!("{} {}: {}", s.symbol(), s.word(), s.meaning()))
        .collect();
    let _ = writeln!(body, "\n<sub>{}; · not in the matrix</sub>", legend.join("; "));
    if let Some(judge) = &merged.judge {
        let (issued, day) = (judge.table.issued(), judge.day);
        let _ = writeln!(body, "\n<sub>Drivers by the support table of {issued}, on {day}</sub>");
    }
    body
}

/// Writes the table of some drivers, each with its state.
fn rows(body: &mut String, merged: &Merged, axes: &Axes<'_>, drivers: &[&DriverAxis], words: bool) {
    body.push_str("\n| Kernel |");
    for driver in drivers {
        let (branch, origin) = (code(driver.branch.as_str()), code(&driver.origin()));
        let _ = write!(body, " {branch} {origin}<br>{}", code(&merged.version(driver)));
        if let Some(state) = axes.states.get(&driver.id) {
            let _ = write!(body, "<br>{}", state.support.text());
            state.cves(code).iter().for_each(|cves| *body += &format!("<br>{cves}"));
        }
        body.push_str(" |");
    }
    let _ = writeln!(body, "\n|---|{}", "---|".repeat(drivers.len()));
    let grid = merged.grid();
    for kernel in axes.kernels_of(merged, drivers) {
        let _ = write!(body, "| {} {} |", code(kernel.id.as_str()), code(kernel.release.as_str()));
        for driver in drivers {
            let cells = grid.get(&(&kernel.id, &driver.id)).map_or(&[][..], Vec::as_slice);
            let shown: Vec<String> =
                cells.iter().map(|at| mark(merged.cells[*at].status(), words)).collect();
            let _ =
                write!(body, " {} |", if shown.is_empty() { "·".into() } else { shown.join(" ") });
        }
        body.push('\n');
    }
}

fn mark(status: Status, words: bool) -> String {
    if words { format!("{} {}", status.symbol(), status.word()) } else { status.symbol().into() }
}

/// Reasons of the cells that do not work, the worst first.
fn reasons(merged: &Merged) -> Section {
    let mut cells: Vec<&Cell> = merged.cells.iter().filter(|c| !c.reason().is_empty()).collect();
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.status()));
    let mut body = String::new();
    if !cells.is_empty() {
        let _ = writeln!(body, "\n<details><summary>Reasons ({})</summary>\n", cells.len());
        let _ = writeln!(body, "| Cell | | Reason |\n|---|---|---|");
        for cell in cells.iter().take(LISTED) {
            let name = code(cell.planned.name.as_str());
            let _ = writeln!(
                body,
                "| {name} | {} | {} |",
                mark(cell.status(), true),
                code(&cell.reason())
            );
        }
        more(&mut body, cells.len());
        body += "\n</details>\n";
    }
    Section { name: "the reasons", body }
}

fn left_out(merged: &Merged) -> Section {
    let mut body = String::new();
    if !merged.excluded.is_empty() {
        body += "\n<details><summary>Left out</summary>\n\n";
        for exclusion in merged.excluded.iter().take(LISTED) {
            let (count, reason) = (exclusion.count, code(exclusion.reason.as_str()));
            let _ = writeln!(body, "- {} ({count} cells): {reason}", code(&exclusion.what()));
        }
        more(&mut body, merged.excluded.len());
        body += "\n</details>\n";
    }
    Section { name: "the combinations that are left out", body }
}

/// Returns foreign text as a code span, in which neither HTML nor a mention has an effect.
fn code(text: &str) -> String {
    let mut shown: String = longshore_core::sanitize::in_line(text)
        .chars()
        .take(TEXT_CHARS + 1)
        .map(|c| if c == '`' { '\'' } else { c })
        .collect();
    if shown.chars().count() > TEXT_CHARS {
        shown.pop();
        shown.push('…');
    }
    // A bar ends a table's cell even in a code span; a backslash before it is taken off again.
    let shown = shown.trim().replace('|', "\\|");
    if shown.is_empty() { String::new() } else { format!("`{shown}`") }
}
