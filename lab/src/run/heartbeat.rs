//! Lines for people while nothing else is shown: what is being done, and how far it is.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use longshore_core::sanitize::in_line;

use crate::judge::event::{Event, What};

/// Longest time without a line.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest output line that is shown, in characters.
const LONGEST: usize = 100;

/// Shows a line whenever none was shown for five seconds. It ends when it is dropped.
#[derive(Debug)]
pub struct Heartbeat(Sender<Activity>);

/// News for the thread that shows lines.
#[derive(Debug)]
enum Activity {
    /// A line was shown, about this.
    Shown(String),
    /// A program wrote this.
    Output(String),
}

impl Heartbeat {
    /// Begins; lines go to `show`.
    pub fn begin(show: impl Fn(&str) + Send + 'static) -> Self {
        let (say, heard) = mpsc::channel();
        thread::spawn(move || {
            let mut state = State::default();
            loop {
                // Output alone is no line that was shown.
                let left = SILENCE.saturating_sub(state.shown.elapsed());
                match heard.recv_timeout(left) {
                    Ok(seen) => state.take(seen),
                    Err(RecvTimeoutError::Timeout) => {
                        show(&state.line());
                        state.shown = Instant::now();
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self(say)
    }

    /// Takes an event, and the line that is shown for it.
    pub fn take(&self, event: &Event, line: Option<&str>) {
        let seen = match (&event.what, line) {
            (What::Output(output), _) => Activity::Output(output.clone()),
            (_, Some(line)) => Activity::Shown(line.lines().next().unwrap_or_default().to_owned()),
            (_, None) => return,
        };
        // Fails only after the thread has panicked: the lines of events are shown all the same.
        let _ = self.0.send(seen);
    }
}

/// Last line that was shown, and what a program has written since.
#[derive(Debug)]
struct State {
    about: String,
    output: Option<String>,
    began: Instant,
    shown: Instant,
}

impl Default for State {
    fn default() -> Self {
        let now = Instant::now();
        Self { about: "preparing".into(), output: None, began: now, shown: now }
    }
}

impl State {
    fn take(&mut self, seen: Activity) {
        match seen {
            Activity::Shown(about) => {
                *self = Self { about: about.trim_start().to_owned(), ..Self::default() };
            }
            Activity::Output(line) => {
                // Of a line of longshore's log the message.
                let message = line.split_once(" INFO ").map_or(&*line, |(_, message)| message);
                let start: String = message.chars().take(LONGEST).collect();
                self.output = Some(in_line(&start).into_owned());
            }
        }
    }

    /// `... 12 s  preparing X: LAST OUTPUT`.
    fn line(&self) -> String {
        let output = self.output.as_ref().map(|line| format!(": {line}"));
        let seconds = self.began.elapsed().as_secs();
        format!("   ... {seconds} s  {}{}", self.about, output.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_the_last_output() {
        let mut state = State::default();
        assert_eq!(state.line(), "   ... 0 s  preparing");
        state.take(Activity::Shown("  1.2 a preparing driver".into()));
        assert_eq!(state.line(), "   ... 0 s  1.2 a preparing driver");
        state.take(Activity::Output("x".repeat(200)));
        assert_eq!(
            state.line(),
            format!("   ... 0 s  1.2 a preparing driver: {}", "x".repeat(100))
        );
        state.take(Activity::Output("2026-11-22T07:42:43Z  INFO unpacking 73 packages".into()));
        assert!(state.line().ends_with("driver: unpacking 73 packages"));
        state.take(Activity::Shown("b".into()));
        assert_eq!(state.line(), "   ... 0 s  b");
    }

    #[test]
    fn silence_is_broken_and_ends_with_it() {
        let (say, heard) = mpsc::channel();
        let heartbeat = Heartbeat::begin(move |line| drop(say.send(line.to_owned())));
        let event = Event { cell: "a".into(), what: What::Preparing("b".into()) };
        heartbeat.take(&event, Some("0.0 a preparing b"));
        let line = heard.recv_timeout(4 * SILENCE).expect("a line");
        assert!(line.contains("preparing b"), "{line}");
        drop(heartbeat);
        while heard.recv_timeout(4 * SILENCE).is_ok() {}
    }
}
