//! The trend over runs, as a drawing and as a table.

use std::fmt::Write;

use super::super::history::PastRun;
use super::super::status::Status;
use super::{Esc, time};

const BAR: usize = 14;
const GAP: usize = 4;
const HEIGHT: usize = 96;

/// Groups of statuses in the drawing, from the bottom: class and name.
const GROUPS: [(&str, &str, &[Status]); 4] = [
    ("works", "work", &[Status::Works, Status::WorksPatched]),
    ("compiled", "compiled alone", &[Status::Compiled, Status::CompiledPatched]),
    (
        "does-not-compile",
        "explained",
        &[Status::Refused, Status::Unavailable, Status::DoesNotCompile],
    ),
    ("faulty", "without an answer", &[Status::Faulty, Status::NotRun, Status::Missing]),
];

pub(super) fn render(page: &mut String, runs: &[PastRun]) {
    if runs.len() < 2 {
        return;
    }
    page.push_str(
        "<section class=\"trend\" aria-labelledby=\"trend\">\n<h2 id=\"trend\">Trend</h2>\n",
    );
    let _ = writeln!(
        page,
        "<p class=\"quiet\">{} runs, {} to {}</p>",
        runs.len(),
        time(runs[0].ended),
        time(runs[runs.len() - 1].ended)
    );
    drawing(page, runs);
    numbers(page, runs);
    page.push_str("</section>\n");
}

fn sums(run: &PastRun) -> [usize; GROUPS.len()] {
    let counts = run.counts();
    GROUPS.map(|(.., statuses)| statuses.iter().filter_map(|s| counts.get(s)).sum())
}

fn drawing(page: &mut String, runs: &[PastRun]) {
    let most = runs.iter().map(|run| run.cells.len()).max().unwrap_or(0).max(1);
    let width = runs.len() * (BAR + GAP);
    let _ = writeln!(
        page,
        "<svg role=\"img\" aria-label=\"Cells of the last {} runs by outcome; the numbers follow\" \
         viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" height=\"{HEIGHT}\">",
        runs.len()
    );
    for (place, run) in runs.iter().enumerate() {
        let _ = write!(page, "<g><title>{}: ", run.ended.strftime("%Y-%m-%d %H:%M"));
        let said: Vec<String> = GROUPS
            .iter()
            .zip(sums(run))
            .map(|((_, name, _), sum)| format!("{sum} {name}"))
            .collect();
        let _ = write!(page, "{}</title>", said.join(", "));
        let (x, mut below) = (place * (BAR + GAP), 0);
        for ((class, ..), sum) in GROUPS.iter().zip(sums(run)) {
            let [from, to] = [below, below + sum].map(|count| HEIGHT - count * HEIGHT / most);
            if from > to {
                let height = from - to;
                let _ = write!(
                    page,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{to}\" width=\"{BAR}\" height=\"{height}\"/>"
                );
            }
            below += sum;
        }
        page.push_str("</g>\n");
    }
    page.push_str("</svg>\n<ul class=\"key\">");
    for (class, name, _) in GROUPS {
        let _ = write!(
            page,
            "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"12\" height=\"12\"/></svg> {name}</li>"
        );
    }
    page.push_str("</ul>\n");
}

fn numbers(page: &mut String, runs: &[PastRun]) {
    page.push_str("<details><summary>Numbers</summary>\n<table class=\"numbers\">\n<thead><tr><th scope=\"col\">Run</th><th scope=\"col\">Ended</th>");
    for (_, name, _) in GROUPS {
        let _ = write!(page, "<th scope=\"col\">{name}</th>");
    }
    page.push_str("<th scope=\"col\">hours</th></tr></thead>\n<tbody>\n");
    for run in runs.iter().rev() {
        let took = run.cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.took_ms));
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{}</th><td>{}</td>",
            Esc(run.id.as_str()),
            time(run.ended)
        );
        for sum in sums(run) {
            let _ = write!(page, "<td>{sum}</td>");
        }
        let _ = writeln!(page, "<td>{}.{}</td></tr>", took / 3_600_000, took / 360_000 % 10);
    }
    page.push_str("</tbody>\n</table>\n</details>\n");
}
