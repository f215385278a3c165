//! Differences to the last run, at the top of the page.

use maud::{Markup, html};

use super::super::difference::{Change, Differences};
use super::super::status::Status;
use super::{badge, time};
use crate::results::Line;

/// Number of names in a list of new or removed cells.
const NAMED: usize = 500;

pub(super) fn render(differences: &Differences<'_>) -> Markup {
    let new: Vec<&Line> = differences.new.iter().map(|(_, cell)| &cell.planned.name).collect();
    html! {
        section.changes aria-labelledby="changes" {
            h2 id="changes" { "Since the last run" }
            p.quiet {
                (differences.summary()) ", against run " (differences.id)
                " of " (time(differences.ended))
            }
            @for (title, changes) in differences.groups() { (group(title, changes)) }
            (names("new", &new))
            (names("no longer planned", &differences.gone))
        }
        "\n"
    }
}

/// Lists changes; those of one kind and reason stand together.
fn group(title: &str, changes: &[Change<'_>]) -> Markup {
    let mut alike: Vec<(Status, Status, String, Vec<&Change<'_>>)> = Vec::new();
    for change in changes {
        let (before, now, reason) = (change.before, change.cell.status(), change.cell.reason());
        let same = alike.iter_mut().find(|(b, n, r, _)| (*b, *n, &**r) == (before, now, &*reason));
        match same {
            Some((.., cells)) => cells.push(change),
            None => alike.push((before, now, reason, vec![change])),
        }
    }
    html! {
        h3 { (title) " " span.quiet { (changes.len()) } }
        ul.list {
            @for (before, now, reason, cells) in alike {
                li {
                    span.step {
                        (badge(before)) " " span aria-hidden="true" { "→" }
                        span.sr { " now " } " " (badge(now))
                    }
                    " "
                    div {
                        p.why { (reason) }
                        ul.links {
                            @for Change { at, cell, .. } in cells {
                                li { a href={ "#c" (at) } { (cell.planned.name) } }
                            }
                        }
                    }
                }
                "\n"
            }
        }
    }
}

fn names(what: &str, names: &[&Line]) -> Markup {
    html! {
        @if !names.is_empty() {
            details {
                summary { (names.len()) " " (what) }
                ul.names {
                    @for name in names.iter().take(NAMED) { li { (name) } "\n" }
                    @if names.len() > NAMED { li { "and " (names.len() - NAMED) " more" } }
                }
            }
        }
    }
}
