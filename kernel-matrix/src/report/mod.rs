//! The report for people: results of all shards as one HTML page and as Markdown.
//!
//! [`merge`] puts the shards together, [`difference`] compares them with an earlier run, [`history`] keeps
//! earlier runs. [`absent`] takes drivers and kernels without sources out of the table, [`booted`] adds what other cells
//! booted. [`markdown`] and [`html`] only write: all texts in results are foreign, and are escaped
//! there once more.

pub(crate) mod absent;
pub(crate) mod booted;
pub(crate) mod difference;
pub(crate) mod history;
pub(crate) mod html;
pub(crate) mod markdown;
pub(crate) mod merge;
pub(crate) mod origin;
pub(crate) mod status;

#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::results::{Authenticity, Key, Results};
use difference::Differences;
use history::PastRun;
use longshore_lab::host::disk;
use longshore_lab::host::error::{At, Error};
use merge::{Merged, Source};
use origin::{Link, Origin};

/// Options of `kernel-matrix report`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Results of a run, or of every shard of it.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Write the report here as one HTML page.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write the report here as Markdown, at most 60 kB.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Compare with these results; give it once for each shard. By default, compare with the last run
    /// of the history.
    #[arg(long, value_name = "RESULTS")]
    against: Vec<PathBuf>,
    /// Show the runs in this directory as a trend.
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Add this run to the history.
    #[arg(long, requires = "history")]
    record: bool,
    /// Mark the cells whose kernel and driver a cell of longshore's own tests booted: a file as
    /// kernel-matrix/measured/booted.jsonl.
    #[arg(long, value_name = "FILE")]
    booted: Option<PathBuf>,
    /// Add a link to the page, for example lock=matrix.lock; the address is relative or https.
    #[arg(long, value_name = "NAME=ADDRESS")]
    link: Vec<Link>,
    /// Exit with 1 if a cell has no answer, a run did not come to its end, or a cell is worse than before.
    #[arg(long)]
    check: bool,
}

impl Options {
    /// Returns the command that makes the same page of the same files.
    fn command(&self) -> String {
        let path = |path: &PathBuf| path.display().to_string();
        let mut words = vec!["kernel-matrix report".to_owned()];
        words.extend(self.results.iter().map(path));
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        self.against.iter().for_each(|file| add("--against", path(file)));
        self.history.iter().for_each(|dir| add("--history", path(dir)));
        self.booted.iter().for_each(|file| add("--booted", path(file)));
        let link = |link: &Link| format!("{}={}", link.name, link.address);
        self.link.iter().for_each(|of| add("--link", link(of)));
        self.html.iter().for_each(|file| add("--html", path(file)));
        words.join(" ")
    }
}

/// Outcome of a report.
#[derive(Debug)]
pub struct Reported {
    /// Summary, for the terminal.
    pub summary: String,
    /// False if `--check` found something.
    pub is_good: bool,
}

/// Writes the report.
///
/// # Errors
/// Results or history cannot be read, or contradict each other; a file cannot be written.
pub fn report(options: &Options, key: Option<&Key>) -> Result<Reported, Error> {
    let mut merged = merged(&options.results, key)?;
    if let Some(path) = &options.booted {
        merged.booted = booted::read(path)?;
    }
    merged.origin = Origin { links: options.link.clone(), command: options.command() };
    let mut past = match &options.history {
        Some(dir) => history::read(dir)?,
        None => Vec::new(),
    };
    past.retain(|run| run.id != merged.id());
    let baseline = match options.against.as_slice() {
        [] => past.last().cloned(),
        files => Some(PastRun::from_merged(&self::merged(files, key)?)),
    };
    let differences = baseline.as_ref().map(|run| Differences::new(&merged, run));
    let now = PastRun::from_merged(&merged);
    if let Some(path) = &options.markdown {
        write(path, &markdown::render(&merged, differences.as_ref()))?;
    }
    if let Some(path) = &options.html {
        let mut trend = past;
        trend.push(now.clone());
        write(path, &html::render(&merged, differences.as_ref(), &trend))?;
    }
    if let (Some(dir), true) = (&options.history, options.record) {
        now.record(dir)?;
    }
    Ok(reported(options, &merged, differences.as_ref()))
}

fn merged(files: &[PathBuf], key: Option<&Key>) -> Result<Merged, Error> {
    let mut sources = Vec::new();
    for path in files {
        let (results, authenticity): (Results, Authenticity) = Results::read(path, key)?;
        let file = path.display().to_string();
        sources.push(Source { file, results, authenticity });
    }
    Merged::merge(sources).map_err(Error::Unexpected)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    disk::of_this_machine().write_atomically(path, text.as_bytes()).at("write", path)
}

fn reported(options: &Options, merged: &Merged, differences: Option<&Differences<'_>>) -> Reported {
    let mut lines = vec![merged.headline()];
    for (status, count) in merged.counts() {
        lines.push(format!("{count:6} {:18} {}", status.word(), status.meaning()));
    }
    lines.extend(merged.problems.iter().chain(&merged.notes).cloned());
    let mut is_good = merged.is_answered();
    if let Some(differences) = differences {
        lines.push(format!("against {}: {}", differences.id, differences.summary()));
        is_good &= differences.worse.is_empty();
    }
    let summary = longshore_core::sanitize::printable(&lines.join("\n")).into_owned();
    Reported { summary, is_good: is_good || !options.check }
}
