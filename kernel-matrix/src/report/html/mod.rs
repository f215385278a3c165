//! The report as one HTML page, which loads nothing: style and script are in it, and its content security
//! policy allows these two alone, by their digests.
//!
//! Every foreign text goes through [`Esc`], in text and in attributes; no attribute holds an address, a
//! style or a script from results. Without the script the page has all its contents; with it, a filter, keys
//! in the table and a panel for details.

mod changes;
mod details;
mod head;
mod table;
mod trend;

use std::fmt::{self, Display, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::absent::Axes;
use super::difference::Differences;
use super::history::PastRun;
use super::merge::{Cell, Merged};
use super::status::Status;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Width of a table's column and of its first one, in CSS pixels: page.css has them, too.
const COLUMN: usize = 88;
const FIRST_COLUMN: usize = 290;

/// Foreign text, escaped for HTML text and double-quoted attributes.
struct Esc<'a>(&'a str);

impl Display for Esc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in longshore_core::sanitize::in_line(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Returns the page.
pub(crate) fn render(
    merged: &Merged,
    differences: Option<&Differences<'_>>,
    trend: &[PastRun],
) -> String {
    let axes = Axes::of(merged);
    let style = style(axes.drivers.len());
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(&style),
        hash(SCRIPT)
    );
    let mut page = String::new();
    let title = format!("Kernel matrix: {}", merged.headline());
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#matrix\">Skip to the table</a>\n"
    );
    head::render(&mut page, merged);
    page += "<main>\n";
    problems(&mut page, merged);
    if let Some(differences) = differences {
        changes::render(&mut page, differences);
    }
    filter(&mut page, merged);
    table::render(&mut page, merged, &axes);
    trend::render(&mut page, trend);
    details::render(&mut page, merged);
    left_out(&mut page, merged);
    page += "</main>\n";
    foot(&mut page, merged);
    let _ = write!(page, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

/// Returns the style with the width from which the table fits.
fn style(columns: usize) -> String {
    let fits = FIRST_COLUMN + COLUMN * columns.max(6) + 64;
    STYLE.replace("/*NARROW*/", &format!("@media (max-width: {}px)", fits - 1))
}

/// Returns the digest of an element's content, as a content security policy states it.
fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}

fn problems(page: &mut String, merged: &Merged) {
    if merged.problems.is_empty() {
        return;
    }
    page.push_str("<section class=\"problems\" aria-labelledby=\"problems\">\n");
    page.push_str("<h2 id=\"problems\">This run is incomplete</h2>\n<ul>\n");
    for problem in &merged.problems {
        let _ = writeln!(page, "<li>{}</li>", Esc(problem));
    }
    page.push_str("</ul>\n</section>\n");
}

/// Writes the counts, which are the legend and with the script the filter.
fn filter(page: &mut String, merged: &Merged) {
    let all = merged.cells.len();
    page.push_str(
        "<section class=\"filter\" aria-labelledby=\"filter\">\n<h2 id=\"filter\">Cells</h2>\n\
         <p class=\"search\" hidden><label for=\"search\">Filter</label> <input id=\"search\" type=\"search\" \
         autocomplete=\"off\" spellcheck=\"false\" placeholder=\"550 open 6.12 rt\" aria-describedby=\"count\"> \
         <span class=\"hint quiet\">press <kbd>/</kbd></span></p>\n<ul class=\"legend\">\n",
    );
    for status in Status::ALL.into_iter().filter(|status| merged.count(*status) > 0) {
        let (name, count, meaning) = (status.name(), merged.count(status), status.meaning());
        let _ = writeln!(
            page,
            "<li><label><input type=\"checkbox\" name=\"status\" value=\"{name}\" checked hidden> {} \
             <b>{count}</b> <span class=\"meaning\">{meaning}</span></label></li>",
            badge(status)
        );
    }
    page.push_str("</ul>\n");
    if merged.reused() > 0 {
        let _ = writeln!(
            page,
            "<p class=\"quiet\"><span class=\"s again\">dashed</span> {} results are of an earlier run with the same inputs</p>",
            merged.reused()
        );
    }
    if merged.booted_count() > 0 {
        let _ = writeln!(
            page,
            "<p class=\"quiet\"><span class=\"s works\"><span aria-hidden=\"true\">✓</span> booted</span> {} of these \
             kernels and drivers also booted in a virtual machine, in a cell of longshore's own tests</p>",
            merged.booted_count()
        );
    }
    let _ = writeln!(
        page,
        "<p id=\"count\" class=\"quiet\" role=\"status\" aria-live=\"polite\">{all} of {all} cells</p>\n</section>"
    );
}

/// Returns a status with its colour, symbol and word.
fn badge(status: Status) -> String {
    format!(
        "<span class=\"s {}\"><span aria-hidden=\"true\">{}</span> {}</span>",
        status.name(),
        status.symbol(),
        status.word()
    )
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

fn left_out(page: &mut String, merged: &Merged) {
    if merged.excluded.is_empty() {
        return;
    }
    page.push_str("<section aria-labelledby=\"left-out\">\n<h2 id=\"left-out\">Left out</h2>\n<dl class=\"pairs\">\n");
    for exclusion in &merged.excluded {
        let parts: Vec<String> =
            exclusion.condition.iter().map(|(axis, value)| format!("{axis} {value}")).collect();
        let (parts, reason) = (parts.join(", "), Esc(exclusion.reason.as_str()));
        let _ = writeln!(
            page,
            "<dt>{} <span class=\"quiet\">({})</span></dt><dd>{reason}</dd>",
            Esc(&parts),
            exclusion.count
        );
    }
    page.push_str("</dl>\n</section>\n");
}

fn foot(page: &mut String, merged: &Merged) {
    page.push_str("<footer class=\"quiet\">\n");
    for note in &merged.notes {
        let _ = writeln!(page, "<p>{}</p>", Esc(note));
    }
    for run in &merged.runs {
        let shard =
            run.shard.map(|s| format!(", shard {} of {}", s.index, s.count)).unwrap_or_default();
        let backend = match run.machine.backend.as_str() {
            "" => String::new(),
            backend => format!(", simulated GPU by {}", Esc(backend)),
        };
        let (id, began, ended) = (Esc(run.id.as_str()), time(run.began), time(run.ended));
        let _ = writeln!(page, "<p>Run {id}{shard}: {began} to {ended}{backend}</p>");
    }
    if !merged.origin.command.is_empty() {
        let _ = writeln!(page, "<p>Made by <code>{}</code></p>", Esc(&merged.origin.command));
    }
    page.push_str("<p>The GPU of these runs is simulated: a driver loads and unloads, and computes nothing.</p>\n</footer>\n");
}

fn time(time: jiff::Timestamp) -> String {
    let machine = time.strftime("%Y-%m-%dT%H:%M:%SZ");
    format!("<time datetime=\"{machine}\">{}</time>", time.strftime("%Y-%m-%d %H:%M UTC"))
}
