//! The table: kernels in rows, drivers in columns.
//!
//! The roles are stated, because a style that shows a table as cards takes them away.

use longshore_core::sanitize::in_line;
use maud::{Markup, html};

use super::super::absent::Axes;
use super::super::merge::{Cell, Merged};
use super::super::support::DriverState;
use super::ROOMY;
use crate::results::{DriverAxis, KernelAxis, KernelState, Line};

pub(super) fn render(merged: &Merged, axes: &Axes<'_>) -> Markup {
    html! {
        section.matrix aria-labelledby="matrix" {
            h2.sr id="matrix" { "Kernels by drivers" }
            p.sr id="keys" hidden {
                "Arrow keys move between cells, Enter opens the details of one."
            }
            @if axes.drivers.is_empty() && !axes.ended.is_empty() {
                p { "No driver here is of a branch that is supported on the day of this report." }
            } @else {
                (table(merged, axes, &axes.drivers, "matrix"))
            }
            @if !axes.ended.is_empty() {
                // Open where there is nothing else to see.
                details.ended open[axes.drivers.is_empty()] {
                    summary id="ended" {
                        "Ended branches: " (in_line(&names(&axes.ended).join(", ")))
                    }
                    (table(merged, axes, &axes.ended, "ended"))
                }
            }
            p.quiet id="nothing" hidden { "No cell fits the filter." }
            (states(merged, axes))
            (absent(merged, axes))
        }
        "\n"
    }
}

/// Renders the table of some drivers. Where there are two, each has the kernels alone that it has cells of.
fn table(merged: &Merged, axes: &Axes<'_>, drivers: &[&DriverAxis], name: &str) -> Markup {
    let grid = merged.grid();
    let kernels = axes.kernels_of(merged, drivers);
    html! {
        @let is_roomy = drivers.len() <= ROOMY;
        table role="table" aria-labelledby=(name) data-roomy[is_roomy] {
            (head(merged, axes, drivers))
            @for kernels in kernels.chunk_by(|a, b| group(a) == group(b)) {
                tbody role="rowgroup" {
                    tr.group role="row" {
                        th role="rowheader" scope="rowgroup" colspan=(drivers.len() + 1) {
                            (group(kernels[0]))
                        }
                    }
                    @for kernel in kernels {
                        tr role="row" {
                            (row_head(kernel))
                            @for driver in drivers {
                                @let cells = grid.get(&(&kernel.id, &driver.id));
                                @let cells = cells.map_or(&[][..], Vec::as_slice);
                                (column(merged, driver, cells, is_roomy))
                            }
                        }
                        "\n"
                    }
                }
            }
        }
    }
}

/// Returns the names of drivers, each branch with its flavours: `550 open, proprietary`.
fn names(drivers: &[&DriverAxis]) -> Vec<String> {
    let branches = drivers.chunk_by(|a, b| a.branch == b.branch);
    let named = branches.map(|branch| {
        let flavours: Vec<String> = branch.iter().map(|driver| driver.origin()).collect();
        format!("{} {}", branch[0].branch, flavours.join(" and "))
    });
    named.collect()
}

fn group(kernel: &KernelAxis) -> String {
    match &kernel.line {
        Some(line) => format!("{} · {line}", kernel.suite),
        None => kernel.suite.to_string(),
    }
}

fn head(merged: &Merged, axes: &Axes<'_>, drivers: &[&DriverAxis]) -> Markup {
    html! {
        thead role="rowgroup" {
            tr role="row" {
                th role="columnheader" scope="col" rowspan="2" { "Kernel" }
                @for branch in drivers.chunk_by(|a, b| a.branch == b.branch) {
                    th role="columnheader" scope="colgroup" colspan=(branch.len()) {
                        (branch[0].branch)
                    }
                }
            }
            tr role="row" {
                @for driver in drivers {
                    th role="columnheader" scope="col" {
                        (driver.origin())
                        @let version = merged.version(driver);
                        @if version != driver.branch.as_str() { " " span.version { (version) } }
                    }
                }
            }
            @if !axes.states.is_empty() {
                tr.states role="row" {
                    th role="rowheader" scope="row" { "Support and CVEs" }
                    @for driver in drivers {
                        td role="cell" {
                            @if let Some(state) = axes.states.get(&driver.id) { (shown(state)) }
                        }
                    }
                }
            }
        }
        "\n"
    }
}

fn shown(state: &DriverState) -> Markup {
    html! {
        span.ended[state.support.is_ended()] { (state.support.text()) }
        @for cves in state.cves(|id| in_line(id).into_owned()) { " " span { (cves) } }
    }
}

/// Lists the state of each driver, for screens that are too narrow for the table's head.
fn states(merged: &Merged, axes: &Axes<'_>) -> Markup {
    html! {
        @if let Some(judge) = merged.judge.as_ref().filter(|_| !axes.states.is_empty()) {
            details.states {
                summary {
                    "Drivers by the support table of " (judge.table.issued()) ", on " (judge.day)
                }
                dl.pairs {
                    @for driver in axes.drivers.iter().chain(&axes.ended) {
                        @if let Some(state) = axes.states.get(&driver.id) {
                            dt { (driver.branch) " " (driver.origin()) }
                            dd {
                                (state.support.text())
                                @for cves in state.cves(|id| in_line(id).into_owned()) {
                                    "; " (cves)
                                }
                            }
                            "\n"
                        }
                    }
                }
            }
        }
    }
}

fn row_head(kernel: &KernelAxis) -> Markup {
    let release = if kernel.release.is_empty() { &kernel.id } else { &kernel.release };
    let state = match kernel.state {
        KernelState::Available => None,
        KernelState::HeadersMissing => Some("no headers"),
        KernelState::Gone => Some("gone from the archive"),
    };
    html! {
        th role="rowheader" scope="row" {
            span.flavour { (kernel.flavour) } " " span.release { (release) }
            @if let Some(state) = state { " " span.state { (state) } }
        }
    }
}

/// Renders the cells of a kernel and driver; where there is room, each with its patches or the reason.
fn column(merged: &Merged, driver: &DriverAxis, cells: &[usize], is_roomy: bool) -> Markup {
    // Cells of one kernel and driver booted together.
    let booted = cells.iter().find_map(|at| merged.booted(&merged.cells[*at]));
    html! {
        td role="cell" data-driver={ (driver.branch) " " (driver.flavour) } {
            @if cells.is_empty() {
                span.none { span aria-hidden="true" { "·" } span.sr { "not in the matrix" } }
            }
            @for at in cells {
                (link(merged, driver, *at, cells.len() > 1))
                @let reason = short_reason(&merged.cells[*at]);
                @if is_roomy && !reason.is_empty() { span.note { (reason) } }
            }
            @if let Some(booted) = booted {
                span.s.works title=(in_line(&booted.to_string())) {
                    span aria-hidden="true" { "✓" } " booted"
                }
            }
        }
    }
}

fn link(merged: &Merged, driver: &DriverAxis, at: usize, names_scenario: bool) -> Markup {
    let cell = &merged.cells[at];
    let (status, version) = (cell.status(), cell.driver_version());
    let reason = short_reason(cell);
    html! {
        a.s.(status.name()).again[cell.is_reused()] href={ "#c" (at) } title=(reason) {
            @if names_scenario {
                @let named = format!("{} {}", cell.planned.scenario, counted(&cell.planned.gpus));
                span.scenario { (named.trim_end()) } " "
            }
            @if !version.is_empty() && version != merged.version(driver) {
                span.scenario { (version) } " "
            }
            span aria-hidden="true" { (status.symbol()) } " " (status.word())
            @if cell.is_reused() { span.sr { ", of an earlier run" } }
        }
    }
}

fn short_reason(cell: &Cell) -> String {
    cell.reason().chars().take(200).collect()
}

/// Lists drivers and kernels without sources, folded.
fn absent(merged: &Merged, axes: &Axes<'_>) -> Markup {
    let absent = axes.absent(merged);
    let names: Vec<&str> = absent.iter().map(|(name, ..)| name.as_str()).collect();
    html! {
        @if !absent.is_empty() {
            details.absent {
                summary { "Without sources, and not in the table: " (names.join(", ")) }
                dl.pairs {
                    @for (name, count, reason) in &absent {
                        dt { (name) " " span.quiet { "(" (count) ")" } } dd { (reason) } "\n"
                    }
                }
            }
        }
    }
}

/// Returns devices with the number of each: `8 h100, 4 nvswitch`.
pub(super) fn counted(devices: &[Line]) -> String {
    let groups = devices.chunk_by(|a, b| a == b);
    let counted = groups.map(|group| match group {
        [one] => one.to_string(),
        group => format!("{} {}", group.len(), group[0]),
    });
    counted.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted() {
        for (devices, expected) in
            [(&["t4"][..], "t4"), (&["h100", "h100", "nvswitch"], "2 h100, nvswitch"), (&[], "")]
        {
            let devices: Vec<Line> = devices.iter().map(|name| Line::new(name)).collect();
            assert_eq!(counted(&devices), expected);
        }
    }
}
