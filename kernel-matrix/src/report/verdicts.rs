//! The report as lines of text, without run, day and time: where two of them are the same, their pages show the same
//! verdicts. A repository that publishes the page keeps them for `git diff`.

use std::fmt::Write;

use super::absent::Axes;
use super::merge::Merged;
use crate::results::Line;
use longshore_core::sanitize::in_line;

/// Returns a line for each driver with its state, then one for each cell: name, kernel's release, driver version,
/// status and reason, with tabs between them.
pub(crate) fn render(merged: &Merged) -> String {
    let axes = Axes::new(merged);
    let mut text = String::new();
    for driver in axes.drivers.iter().chain(&axes.ended) {
        let mut parts = vec![driver.origin()];
        if let Some(state) = axes.states.get(&driver.id) {
            parts.push(state.support.text());
            parts.extend(state.cves(|id| in_line(id).into_owned()));
        }
        let _ = writeln!(text, "driver {} {}", driver.branch, parts.join("; "));
    }
    let grid = merged.grid();
    let releases = merged.kernels.iter().map(|kernel| (&kernel.id, &kernel.release));
    for (kernel, release) in releases {
        let mut cells: Vec<usize> = merged
            .drivers
            .iter()
            .filter_map(|of| grid.get(&(kernel, &of.id)))
            .flatten()
            .copied()
            .collect();
        cells.sort_by_key(|at| &merged.cells[*at].planned.name);
        for cell in cells.into_iter().map(|at| &merged.cells[at]) {
            let name: &Line = &cell.planned.name;
            let fields =
                [name.as_str(), release.as_str(), cell.driver_version(), cell.status().word()];
            let line = format!("{}\t{}", fields.join("\t"), in_line(&cell.reason()));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::merge::Source;
    use super::*;
    use crate::results::{Authenticity, Results, sample};

    fn verdicts(results: Results) -> String {
        let source = Source { file: "a".into(), results, authenticity: Authenticity::Sealed };
        render(&Merged::merge(vec![source]).unwrap())
    }

    #[test]
    fn another_run_with_the_same_verdicts_has_the_same_lines() {
        let mut later = sample::results();
        later.run.id = "later".into();
        later.run.ended = "2026-11-24T07:12:30Z".parse().unwrap();
        later.cells[0].times.compile_ms = 1;
        later.cells[0].reused_from = Some("other".into());
        let first = verdicts(sample::results());
        assert_eq!(verdicts(later.clone()), first);
        later.kernels[0].release = "6.1.0-57-amd64".into();
        assert_ne!(verdicts(later), first);
    }

    #[test]
    fn each_driver_and_cell_is_one_line_without_control_characters() {
        let text = verdicts(sample::results());
        assert_eq!(text.lines().count(), 2 + 8, "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
        let first = "driver 470 proprietary\n";
        assert!(text.starts_with(first), "{text}");
        let line = "bookworm-security-generic-470-proprietary\t6.1.0-56-amd64\t550.163.01\tworks\n";
        assert!(text.contains(line), "{text}");
    }
}
