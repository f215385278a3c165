//! The trend over runs, as a drawing and as a table.

use maud::{Markup, html};

use super::super::history::PastRun;
use super::super::status::Status;
use super::time;

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

pub(super) fn render(runs: &[PastRun]) -> Markup {
    html! {
        @if let [first, .., last] = runs {
            section.trend aria-labelledby="trend" {
                h2 id="trend" { "Trend" }
                p.quiet { (runs.len()) " runs, " (time(first.ended)) " to " (time(last.ended)) }
                (drawing(runs))
                (numbers(runs))
            }
            "\n"
        }
    }
}

fn sums(run: &PastRun) -> [usize; GROUPS.len()] {
    let counts = run.counts();
    GROUPS.map(|(.., statuses)| statuses.iter().filter_map(|s| counts.get(s)).sum())
}

fn drawing(runs: &[PastRun]) -> Markup {
    let most = runs.iter().map(|run| run.cells.len()).max().unwrap_or(0).max(1);
    let width = runs.len() * (BAR + GAP);
    let label = format!("Cells of the last {} runs by outcome; the numbers follow", runs.len());
    html! {
        svg role="img" aria-label=(label) viewBox={ "0 0 " (width) " " (HEIGHT) }
            width=(width) height=(HEIGHT) {
            @for (place, run) in runs.iter().enumerate() {
                (bar(run, place * (BAR + GAP), most)) "\n"
            }
        }
        ul.key {
            @for (class, name, _) in GROUPS {
                li {
                    svg width="12" height="12" aria-hidden="true" {
                        rect class=(class) width="12" height="12" {}
                    }
                    " " (name)
                }
            }
        }
    }
}

/// Draws the bar of a run; one of `most` cells has the whole height.
fn bar(run: &PastRun, x: usize, most: usize) -> Markup {
    let sums = sums(run);
    let said: Vec<String> =
        GROUPS.iter().zip(sums).map(|((_, name, _), sum)| format!("{sum} {name}")).collect();
    html! {
        g {
            title { (run.ended.strftime("%Y-%m-%d %H:%M")) ": " (said.join(", ")) }
            @for (at, (class, ..)) in GROUPS.iter().enumerate() {
                @let below: usize = sums[..at].iter().sum();
                @let [from, to] = [below, below + sums[at]].map(|n| HEIGHT - n * HEIGHT / most);
                @if from > to {
                    rect class=(class) x=(x) y=(to) width=(BAR) height=(from - to) {}
                }
            }
        }
    }
}

fn numbers(runs: &[PastRun]) -> Markup {
    html! {
        details {
            summary { "Numbers" }
            table.numbers {
                thead {
                    tr {
                        th scope="col" { "Run" }
                        th scope="col" { "Ended" }
                        @for (_, name, _) in GROUPS { th scope="col" { (name) } }
                        th scope="col" { "hours" }
                    }
                }
                tbody {
                    @for run in runs.iter().rev() { (row(run)) "\n" }
                }
            }
        }
    }
}

fn row(run: &PastRun) -> Markup {
    let took = run.cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.took_ms));
    html! {
        tr {
            th scope="row" { (run.id) }
            td { (time(run.ended)) }
            @for sum in sums(run) { td { (sum) } }
            td { (took / 3_600_000) "." (took / 360_000 % 10) }
        }
    }
}
