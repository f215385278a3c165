//! The table of results.

use std::fmt::Write as _;
use std::time::Duration;

/// Times of one contestant.
pub(crate) struct Row {
    name: String,
    pub(crate) times: Vec<Duration>,
}

impl Row {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), times: Vec::new() }
    }

    /// Returns the median time.
    pub(crate) fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// Formats the table in seconds: the median, the shortest, the longest.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<28}{:>8}{:>8}{:>8}", "seconds", "median", "least", "most");
    for row in rows {
        let least = row.times.iter().min().copied().unwrap_or_default();
        let most = row.times.iter().max().copied().unwrap_or_default();
        let [median, least, most] = [row.median(), least, most].map(|t| t.as_secs_f64());
        let _ = write!(text, "\n{:<28}{median:>8.2}{least:>8.2}{most:>8.2}", row.name);
    }
    text
}
