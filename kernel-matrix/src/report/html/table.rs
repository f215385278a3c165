//! The table: kernels in rows, drivers in columns.
//!
//! The roles are stated, because a style that shows a table as cards takes them away.

use std::fmt::Write;

use super::super::absent::Axes;
use super::super::merge::{Cell, Merged};
use super::Esc;
use crate::results::{DriverAxis, KernelAxis, KernelState, Line};

pub(super) fn render(page: &mut String, merged: &Merged, axes: &Axes<'_>) {
    page.push_str(
        "<section class=\"matrix\" aria-labelledby=\"matrix\">\n<h2 id=\"matrix\" class=\"sr\">Kernels by drivers</h2>\n\
         <p id=\"keys\" class=\"sr\" hidden>Arrow keys move between cells, Enter opens the details of one.</p>\n\
         <table role=\"table\" aria-labelledby=\"matrix\">\n",
    );
    head(page, merged, &axes.drivers);
    let grid = merged.grid();
    for kernels in axes.kernels.chunk_by(|a, b| group(a) == group(b)) {
        let columns = axes.drivers.len() + 1;
        let _ = writeln!(
            page,
            "<tbody role=\"rowgroup\">\n<tr role=\"row\" class=\"group\"><th role=\"rowheader\" scope=\"rowgroup\" colspan=\"{columns}\">{}</th></tr>",
            Esc(&group(kernels[0]))
        );
        for kernel in kernels {
            page.push_str("<tr role=\"row\">");
            row_head(page, kernel);
            for driver in &axes.drivers {
                let cells = grid.get(&(&kernel.id, &driver.id)).map_or(&[][..], Vec::as_slice);
                column(page, merged, driver, cells);
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody>\n");
    }
    page.push_str(
        "</table>\n<p id=\"nothing\" class=\"quiet\" hidden>No cell fits the filter.</p>\n",
    );
    absent(page, merged, axes);
    page.push_str("</section>\n");
}

fn group(kernel: &KernelAxis) -> String {
    match &kernel.line {
        Some(line) => format!("{} · {line}", kernel.suite),
        None => kernel.suite.to_string(),
    }
}

fn head(page: &mut String, merged: &Merged, drivers: &[&DriverAxis]) {
    page.push_str("<thead role=\"rowgroup\">\n<tr role=\"row\"><th role=\"columnheader\" scope=\"col\" rowspan=\"2\">Kernel</th>");
    for branch in drivers.chunk_by(|a, b| a.branch == b.branch) {
        let (count, name) = (branch.len(), Esc(branch[0].branch.as_str()));
        let _ = write!(
            page,
            "<th role=\"columnheader\" scope=\"colgroup\" colspan=\"{count}\">{name}</th>"
        );
    }
    page.push_str("</tr>\n<tr role=\"row\">");
    for driver in drivers {
        let (flavour, version) = (Esc(driver.flavour.as_str()), merged.version(driver));
        let _ = write!(
            page,
            "<th role=\"columnheader\" scope=\"col\">{flavour} <span class=\"version\">{}</span></th>",
            Esc(&version)
        );
    }
    page.push_str("</tr>\n</thead>\n");
}

fn row_head(page: &mut String, kernel: &KernelAxis) {
    let release = if kernel.release.is_empty() { &kernel.id } else { &kernel.release };
    let state = match kernel.state {
        KernelState::Available => "",
        KernelState::HeadersMissing => " <span class=\"state\">no headers</span>",
        KernelState::Gone => " <span class=\"state\">gone from the archive</span>",
    };
    let (flavour, release) = (Esc(kernel.flavour.as_str()), Esc(release.as_str()));
    let _ = write!(
        page,
        "<th role=\"rowheader\" scope=\"row\"><span class=\"flavour\">{flavour}</span> <span class=\"release\">{release}</span>{state}</th>"
    );
}

fn column(page: &mut String, merged: &Merged, driver: &DriverAxis, cells: &[usize]) {
    let (branch, flavour) = (Esc(driver.branch.as_str()), Esc(driver.flavour.as_str()));
    let _ = write!(page, "<td role=\"cell\" data-driver=\"{branch} {flavour}\">");
    if cells.is_empty() {
        page.push_str("<span class=\"none\"><span aria-hidden=\"true\">·</span><span class=\"sr\">not in the matrix</span></span>");
    }
    for at in cells {
        link(page, merged, driver, *at, cells.len() > 1);
    }
    // Cells of one kernel and driver booted together.
    if let Some(booted) = cells.iter().find_map(|at| merged.booted(&merged.cells[*at])) {
        let title = format!("cell {}, {}, commit {}", booted.cell, booted.date, booted.commit);
        let _ = write!(
            page,
            "<span class=\"s works\" title=\"{}\"><span aria-hidden=\"true\">✓</span> booted</span>",
            Esc(&title)
        );
    }
    page.push_str("</td>");
}

fn link(page: &mut String, merged: &Merged, driver: &DriverAxis, at: usize, names_scenario: bool) {
    let cell: &Cell = &merged.cells[at];
    let status = cell.status();
    let scenario = if names_scenario {
        let planned = &cell.planned;
        let named = format!("{} {}", planned.scenario, counted(&planned.gpus));
        format!("<span class=\"scenario\">{}</span> ", Esc(named.trim_end()))
    } else {
        String::new()
    };
    let other = match cell.driver_version() {
        version if version.is_empty() || version == merged.version(driver) => String::new(),
        version => format!("<span class=\"scenario\">{}</span> ", Esc(version)),
    };
    let (name, symbol, word) = (status.name(), status.symbol(), status.word());
    let (again, said) = match cell.is_reused() {
        true => (" again", "<span class=\"sr\">, of an earlier run</span>"),
        false => ("", ""),
    };
    let reason: String = cell.reason().chars().take(200).collect();
    let _ = write!(
        page,
        "<a class=\"s {name}{again}\" href=\"#c{at}\" title=\"{}\">{scenario}{other}<span aria-hidden=\"true\">{symbol}</span> {word}{said}</a>",
        Esc(&reason)
    );
}

/// Writes drivers and kernels without sources, folded.
fn absent(page: &mut String, merged: &Merged, axes: &Axes<'_>) {
    let absent = axes.absent(merged);
    if absent.is_empty() {
        return;
    }
    let names: Vec<&str> = absent.iter().map(|(name, ..)| name.as_str()).collect();
    let _ = writeln!(
        page,
        "<details class=\"absent\"><summary>Without sources, and not in the table: {}</summary>\n<dl class=\"pairs\">",
        Esc(&names.join(", "))
    );
    for (name, count, reason) in &absent {
        let (name, reason) = (Esc(name), Esc(reason));
        let _ = writeln!(
            page,
            "<dt>{name} <span class=\"quiet\">({count})</span></dt><dd>{reason}</dd>"
        );
    }
    page.push_str("</dl>\n</details>\n");
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
