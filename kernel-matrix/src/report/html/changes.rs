//! Differences to the last run, at the top of the page.

use std::fmt::Write;

use super::super::difference::{Change, Differences};
use super::super::status::Status;
use super::{Esc, badge, time};

/// Number of names in a list of new or removed cells.
const NAMED: usize = 500;

pub(super) fn render(page: &mut String, differences: &Differences<'_>) {
    let _ = write!(
        page,
        "<section class=\"changes\" aria-labelledby=\"changes\">\n<h2 id=\"changes\">Since the last run</h2>\n\
         <p class=\"quiet\">{}, against run {} of {}</p>\n",
        differences.summary(),
        Esc(differences.id.as_str()),
        time(differences.ended)
    );
    group(page, "Worse", &differences.worse);
    group(page, "Better", &differences.better);
    group(page, "Otherwise different", &differences.other);
    let new: Vec<&str> =
        differences.new.iter().map(|(_, cell)| cell.planned.name.as_str()).collect();
    names(page, "new", &new);
    let gone: Vec<&str> = differences.gone.iter().map(|name| name.as_str()).collect();
    names(page, "no longer planned", &gone);
    page.push_str("</section>\n");
}

/// Writes changes; those of one kind and reason stand together.
fn group(page: &mut String, title: &str, changes: &[Change<'_>]) {
    if changes.is_empty() {
        return;
    }
    let mut alike: Vec<(Status, Status, String, Vec<&Change<'_>>)> = Vec::new();
    for change in changes {
        let (before, now, reason) = (change.before, change.cell.status(), change.cell.reason());
        let same = alike.iter_mut().find(|(b, n, r, _)| (*b, *n, &**r) == (before, now, &*reason));
        match same {
            Some((.., cells)) => cells.push(change),
            None => alike.push((before, now, reason, vec![change])),
        }
    }
    let _ = writeln!(
        page,
        "<h3>{title} <span class=\"quiet\">{}</span></h3>\n<ul class=\"list\">",
        changes.len()
    );
    for (before, now, reason, cells) in alike {
        let _ = write!(
            page,
            "<li><span class=\"step\">{} <span aria-hidden=\"true\">→</span><span class=\"sr\"> now </span> {}</span> \
             <div><p class=\"why\">{}</p><ul class=\"links\">",
            badge(before),
            badge(now),
            Esc(&reason)
        );
        for Change { at, cell, .. } in cells {
            let name = Esc(cell.planned.name.as_str());
            let _ = write!(page, "<li><a href=\"#c{at}\">{name}</a></li>");
        }
        page.push_str("</ul></div></li>\n");
    }
    page.push_str("</ul>\n");
}

fn names(page: &mut String, what: &str, names: &[&str]) {
    if names.is_empty() {
        return;
    }
    let _ =
        writeln!(page, "<details><summary>{} {what}</summary>\n<ul class=\"names\">", names.len());
    for name in names.iter().take(NAMED) {
        let _ = writeln!(page, "<li>{}</li>", Esc(name));
    }
    if names.len() > NAMED {
        let _ = writeln!(page, "<li>and {} more</li>", names.len() - NAMED);
    }
    page.push_str("</ul>\n</details>\n");
}
