//! Progress on a terminal as bars, in a log as lines.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use longshore_core::progress::{Progress, Task, Unit};

/// Interval between two log lines of a task.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Returns bars where standard error is a terminal, log lines elsewhere.
pub fn progress() -> Box<dyn Progress> {
    if std::io::stderr().is_terminal() {
        Box::new(Bars(MultiProgress::new()))
    } else {
        Box::new(Log)
    }
}

/// Bars on a terminal.
#[derive(Debug)]
struct Bars(MultiProgress);

impl Progress for Bars {
    fn begin(&self, what: &str, total: Option<u64>, unit: Unit) -> Box<dyn Task> {
        let template = match (unit, total) {
            (Unit::Bytes, _) => {
                "{msg:<44!} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {elapsed}"
            }
            (Unit::Items, _) => "{msg:<44!} {bar:24} {pos}/{len} {elapsed}",
        };
        let bar = self.0.add(total.map_or_else(ProgressBar::no_length, ProgressBar::new));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        Box::new(Bar { bar, what: what.to_owned() })
    }
}

/// One bar; it stays on the screen with its final figures.
#[derive(Debug)]
struct Bar {
    bar: ProgressBar,
    what: String,
}

impl Task for Bar {
    fn advance(&self, by: u64) {
        self.bar.inc(by);
    }

    fn total(&self, total: u64) {
        self.bar.set_length(total);
    }

    fn note(&self, text: &str) {
        self.bar.set_message(format!("{}: {text}", self.what));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.abandon_with_message(self.what.clone());
    }
}

/// Log lines: one at the beginning, one every ten seconds, one at the end.
#[derive(Debug)]
struct Log;

impl Progress for Log {
    fn begin(&self, what: &str, total: Option<u64>, unit: Unit) -> Box<dyn Task> {
        tracing::info!("{what}");
        let now = Instant::now();
        let state = LogState { done: 0, total, spoke: now, note: String::new() };
        Box::new(LogTask { what: what.to_owned(), unit, began: now, state: Mutex::new(state) })
    }
}

#[derive(Debug)]
struct LogState {
    done: u64,
    total: Option<u64>,
    spoke: Instant,
    note: String,
}

#[derive(Debug)]
struct LogTask {
    what: String,
    unit: Unit,
    began: Instant,
    state: Mutex<LogState>,
}

impl LogTask {
    fn with_state(&self, change: impl FnOnce(&mut LogState)) {
        // A poisoned lock only means that another thread panicked between two numbers.
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut state);
        if state.spoke.elapsed() >= LOG_EVERY {
            state.spoke = Instant::now();
            let far = match (state.done, state.total) {
                // Without a count, only the waiting time is shown.
                (0, None) => String::new(),
                (done, total) => format!(" {}", amount(done, total, self.unit)),
            };
            let seconds = self.began.elapsed().as_secs();
            let note = if state.note.is_empty() { "" } else { ": " };
            tracing::info!("{}:{far} after {seconds} s{note}{}", self.what, state.note);
        }
    }
}

impl Task for LogTask {
    fn advance(&self, by: u64) {
        self.with_state(|state| state.done += by);
    }

    fn total(&self, total: u64) {
        self.with_state(|state| state.total = Some(total));
    }

    fn note(&self, text: &str) {
        self.with_state(|state| text.clone_into(&mut state.note));
    }
}

impl Drop for LogTask {
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let far = amount(state.done, state.total, self.unit);
        tracing::info!("{}: {far} in {:.1} s", self.what, self.began.elapsed().as_secs_f64());
    }
}

fn amount(done: u64, total: Option<u64>, unit: Unit) -> String {
    let show = |n: u64| match unit {
        Unit::Bytes => format!("{:.1} MB", n as f64 / 1e6),
        Unit::Items => n.to_string(),
    };
    match total {
        // A total that was estimated may be too low.
        Some(total) => format!("{} of {}", show(done), show(total.max(done))),
        None => show(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_in_the_units_people_read() {
        let cases = [
            (1_500_000, Some(3_000_000), Unit::Bytes, "1.5 MB of 3.0 MB"),
            (469, Some(463), Unit::Items, "469 of 469"),
            (7, Some(71), Unit::Items, "7 of 71"),
            (7, None, Unit::Items, "7"),
        ];
        for (done, total, unit, expected) in cases {
            assert_eq!(amount(done, total, unit), expected);
        }
    }
}
