//! The table: kernels in rows, drivers in columns.
//!
//! The roles are stated, because a style that shows a table as cards takes them away.

use longshore_core::sanitize::in_line;
use maud::{Markup, html};

use super::super::absent::Axes;
use super::super::merge::Merged;
use crate::results::{DriverAxis, KernelAxis, KernelState, Line};

pub(super) fn render(merged: &Merged, axes: &Axes<'_>) -> Markup {
    let grid = merged.grid();
    html! {
        section.matrix aria-labelledby="matrix" {
            h2.sr id="matrix" { "Kernels by drivers" }
            p.sr id="keys" hidden {
                "Arrow keys move between cells, Enter opens the details of one."
            }
            table role="table" aria-labelledby="matrix" {
                (head(merged, &axes.drivers))
                @for kernels in axes.kernels.chunk_by(|a, b| group(a) == group(b)) {
                    tbody role="rowgroup" {
                        tr.group role="row" {
                            th role="rowheader" scope="rowgroup" colspan=(axes.drivers.len() + 1) {
                                (group(kernels[0]))
                            }
                        }
                        @for kernel in kernels {
                            tr role="row" {
                                (row_head(kernel))
                                @for driver in &axes.drivers {
                                    @let cells = grid.get(&(&kernel.id, &driver.id));
                                    (column(merged, driver, cells.map_or(&[][..], Vec::as_slice)))
                                }
                            }
                            "\n"
                        }
                    }
                }
            }
            p.quiet id="nothing" hidden { "No cell fits the filter." }
            (absent(merged, axes))
        }
        "\n"
    }
}

fn group(kernel: &KernelAxis) -> String {
    match &kernel.line {
        Some(line) => format!("{} · {line}", kernel.suite),
        None => kernel.suite.to_string(),
    }
}

fn head(merged: &Merged, drivers: &[&DriverAxis]) -> Markup {
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
                        (driver.flavour) " " span.version { (merged.version(driver)) }
                    }
                }
            }
        }
        "\n"
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

fn column(merged: &Merged, driver: &DriverAxis, cells: &[usize]) -> Markup {
    // Cells of one kernel and driver booted together.
    let booted = cells.iter().find_map(|at| merged.booted(&merged.cells[*at]));
    html! {
        td role="cell" data-driver={ (driver.branch) " " (driver.flavour) } {
            @if cells.is_empty() {
                span.none { span aria-hidden="true" { "·" } span.sr { "not in the matrix" } }
            }
            @for at in cells { (link(merged, driver, *at, cells.len() > 1)) }
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
    let reason: String = cell.reason().chars().take(200).collect();
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
