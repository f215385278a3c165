//! Logs of a guest beside the results, and the excerpt that results show.

use std::fs;
use std::path::Path;

use super::verdict::Ran;
use crate::build_run::keep_log;
use crate::results::cell::EXCERPT_LINES;
use crate::results::{Line, LogExcerpt, Verdict};
use crate::rules::Cell;
use longshore_lab::host::error::{At, Error};
use longshore_lab::judge::evidence::Evidence;

/// Lines of an excerpt after the failing one.
const AFTER: usize = 12;

/// Returns the lines of a console's log, which [`Transcript`](longshore_lab::guest::transcript) bounds.
///
/// # Errors
/// It cannot be read.
pub(super) fn lines(log: &Path) -> Result<Vec<String>, Error> {
    let bytes = fs::read(log).at("read", log)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect())
}

/// Keeps the console's log in `dir`, and that of the agent where the scenario failed by it or it refused; returns an
/// excerpt of the one that explains the verdict.
///
/// # Errors
/// A file cannot be written.
pub(super) fn keep(
    dir: &Path,
    cell: &Cell,
    ran: &Ran,
    evidence: &Evidence,
    verdict: &Verdict,
) -> Result<LogExcerpt, Error> {
    let last = |lines: &[String]| lines.len().checked_sub(1);
    let failing = match verdict {
        Verdict::GuestEnded { class, .. } => ran.line_of(*class).or_else(|| last(&ran.console)),
        _ => None,
    };
    let kept = |kind: &str, lines: &[String], failing: Option<usize>| {
        let name = format!("{}.{kind}", cell.name);
        keep_log(dir, &name, &text(lines), excerpt(lines, failing))
    };
    let console = kept("console", &ran.console, failing)?;
    match (verdict, evidence.records.section("agent-log")) {
        (Verdict::Faulty { .. } | Verdict::Refused { .. }, Ok(log)) if !log.is_empty() => {
            let error = log.iter().rposition(|line| line.to_ascii_lowercase().contains("error"));
            kept("agent", log, error.or_else(|| last(log)))
        }
        _ => Ok(console),
    }
}

fn text(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// Returns the lines around the failing one, or the last ones, and the index of the failing one in them.
fn excerpt(lines: &[String], failing: Option<usize>) -> (Vec<Line>, Option<u32>) {
    let end = failing.map_or(lines.len(), |at| (at + 1 + AFTER).min(lines.len()));
    let begin = end.saturating_sub(EXCERPT_LINES);
    let shown = lines[begin..end].iter().map(|line| Line::new(line)).collect();
    (shown, failing.and_then(|at| u32::try_from(at - begin).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_the_failing_line() {
        let lines: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        for (all, failing, first, count, at) in [
            (100, Some(50), "line 23", 40, Some(27)),
            (100, Some(99), "line 60", 40, Some(39)),
            (100, Some(0), "line 0", 13, Some(0)),
            (100, None, "line 60", 40, None),
            (5, Some(4), "line 0", 5, Some(4)),
        ] {
            let (shown, failing_line) = excerpt(&lines[..all], failing);
            assert_eq!((shown[0].as_str(), shown.len(), failing_line), (first, count, at));
            if let (Some(failing), Some(at)) = (failing, at) {
                assert_eq!(shown[at as usize].as_str(), lines[failing]);
            }
        }
        assert_eq!(excerpt(&[], None), (Vec::new(), None));
    }

    #[test]
    fn a_console_is_read_as_lines() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.log");
        fs::write(&log, b"a\r\n\xff\x1b[2J\nc").unwrap();
        assert_eq!(lines(&log).unwrap(), ["a", "\u{fffd}\u{1b}[2J", "c"]);
        assert!(lines(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}
