//! Head of the page: the share of good cells, and the run with its sources.

use std::fmt::Write;

use super::super::merge::Merged;
use super::super::status::Status;
use super::{Esc, time};
use crate::results::{Digest, Run};

pub(super) fn render(page: &mut String, merged: &Merged) {
    let (good, all, verb) = (merged.good(), merged.with_sources(), merged.verb());
    let share = (good * 100).checked_div(all).unwrap_or(0);
    let absent = merged.count(Status::Unavailable);
    let which = if absent > 0 { " that have sources" } else { "" };
    let _ = write!(
        page,
        "<header class=\"top\">\n<h1>Kernel matrix</h1>\n\
         <p class=\"lead\"><b>{good}</b> of <b>{all}</b> combinations of kernel and driver{which} {verb} \
         <span class=\"quiet\">({share} %)</span></p>\n"
    );
    if absent > 0 {
        let _ = writeln!(
            page,
            "<p class=\"quiet\">{absent} more have no sources: a package of theirs is not in the archives.</p>"
        );
    }
    let _ = write!(
        page,
        "<p class=\"quiet\">Run {}, ended {}",
        Esc(merged.id().as_str()),
        time(merged.ended())
    );
    if let Some(run) = merged.runs.first() {
        provenance(page, run);
    }
    if merged.runs.len() > 1 {
        let _ = write!(page, " · {} shards", merged.runs.len());
    }
    page.push_str("</p>\n");
    links(page, merged);
    page.push_str("</header>\n");
}

fn provenance(page: &mut String, run: &Run) {
    let _ = write!(page, " · longshore {}", Esc(run.agent.version.as_str()));
    if let Some(commit) = &run.agent.commit {
        let _ = write!(page, " of {}", Esc(commit.as_str()));
    }
    let qemu = run.machine.qemu.as_str();
    if !qemu.is_empty() {
        let _ = write!(page, " · QEMU {}", Esc(qemu));
    }
    let _ = write!(page, " · {} cores", run.machine.cores);
    for (what, digest) in [("program", &run.agent.program), ("lock file", &run.lock)] {
        match digest.as_ref().map(Digest::as_str) {
            Some(hex) => {
                let _ =
                    write!(page, " · <span title=\"sha256 {hex}\">{what} {}…</span>", &hex[..12]);
            }
            None => {
                let _ = write!(page, " · {what} not named");
            }
        }
    }
}

fn links(page: &mut String, merged: &Merged) {
    let link = |link: &super::super::origin::Link| {
        format!("<a href=\"{}\">{}</a>", Esc(&link.address), Esc(&link.name))
    };
    let links: Vec<String> = merged.origin.links.iter().map(link).collect();
    if !links.is_empty() {
        let _ = writeln!(page, "<p class=\"quiet\">{}</p>", links.join(" · "));
    }
}
