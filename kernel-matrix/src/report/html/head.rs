//! Head of the page: the share of good cells, and the run with its sources.

use longshore_core::sanitize::in_line;
use maud::{Markup, html};

use super::super::merge::Merged;
use super::super::status::Status;
use super::time;
use crate::results::Run;

pub(super) fn render(merged: &Merged) -> Markup {
    let (good, all) = (merged.good(), merged.with_sources());
    let share = (good * 100).checked_div(all).unwrap_or(0);
    let absent = merged.count(Status::Unavailable);
    html! {
        header.top {
            h1 { "Kernel matrix" }
            p.lead {
                b { (good) } " of " b { (all) } " combinations of kernel and driver"
                @if absent > 0 { " that have sources" }
                " " (merged.verb()) " " span.quiet { "(" (share) " %)" }
            }
            @if absent > 0 {
                p.quiet {
                    (absent) " more have no sources: a package of theirs is not in the archives."
                }
            }
            p.quiet {
                "Run " (merged.id()) ", ended " (time(merged.ended()))
                @if let Some(run) = merged.runs.first() { (provenance(run)) }
                @if merged.runs.len() > 1 {
                    @let are_shards = merged.runs.iter().all(|run| run.shard.is_some());
                    " · " (merged.runs.len()) @if are_shards { " shards" } @else { " runs" }
                }
            }
            @if !merged.origin.links.is_empty() {
                p.quiet {
                    @for (at, link) in merged.origin.links.iter().enumerate() {
                        @if at > 0 { " · " }
                        a href=(in_line(&link.address)) { (in_line(&link.name)) }
                    }
                }
            }
        }
        "\n"
    }
}

fn provenance(run: &Run) -> Markup {
    html! {
        " · longshore " (run.agent.version)
        @if let Some(commit) = &run.agent.commit { " of " (commit) }
        @if !run.machine.qemu.is_empty() { " · QEMU " (run.machine.qemu) }
        " · " (run.machine.cores) " cores"
        @for (what, digest) in [("program", &run.agent.program), ("lock file", &run.lock)] {
            " · "
            @if let Some(digest) = digest {
                @let hex = digest.as_str();
                span title={ "sha256 " (hex) } { (what) " " (&hex[..12]) "…" }
            } @else {
                (what) " not named"
            }
        }
    }
}
