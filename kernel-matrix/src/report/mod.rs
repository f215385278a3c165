//! The report for people: results of all shards as one HTML page and as Markdown.
//!
//! [`merge`] puts the shards together, [`beside`] adds runs over other rules, [`difference`] compares them with an
//! earlier run, [`history`] keeps earlier runs. [`support`] judges the drivers by the support table, [`absent`] orders the
//! table by that and takes drivers and kernels without sources out of it, [`booted`] adds what other cells booted.
//! [`markdown`], [`html`], [`verdicts`] and [`whole`] only write: all texts in results are foreign, and are escaped there once more.

pub(crate) mod absent;
pub(crate) mod beside;
pub(crate) mod booted;
pub(crate) mod difference;
pub(crate) mod history;
pub(crate) mod html;
pub(crate) mod markdown;
pub(crate) mod merge;
pub(crate) mod origin;
pub(crate) mod status;
pub(crate) mod support;
pub(crate) mod verdicts;
pub(crate) mod whole;

#[cfg(test)]
mod columns;
#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::results::{Authenticity, Key, Results};
use difference::Differences;
use history::PastRun;
use longshore_core::day::Day;
use longshore_lab::host::disk;
use longshore_lab::host::error::{At, Error};
use longshore_support::SupportTable;
use merge::{Merged, Source};
use origin::{Link, Origin};
use support::{Judge, table};

/// Options of `kernel-matrix report`.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// Results of a run, or of every shard of it.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Add the results of a run over other rules: of other drivers, or of other kernels (repeatable). No cell may be in
    /// both.
    #[arg(long, value_name = "RESULTS")]
    beside: Vec<PathBuf>,
    /// Write the report here as one HTML page.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write the report here as Markdown, at most 60 kB.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Write the results of all shards here as one file without a seal, for a repository.
    #[arg(long = "results", value_name = "FILE", conflicts_with = "beside")]
    whole: Option<PathBuf>,
    /// Write the differences to the earlier run here as Markdown, without the table.
    #[arg(long, value_name = "FILE")]
    difference: Option<PathBuf>,
    /// Write the verdicts and the state of each driver here as lines of text, without run and day: the same lines are the
    /// same verdicts.
    #[arg(long, value_name = "FILE")]
    verdicts: Option<PathBuf>,
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
    /// Support table in place of the built-in one: a file in the format of the setting support-table, signed in FILE.sig.
    #[arg(long, value_name = "FILE", requires = "support_key")]
    support_table: Option<PathBuf>,
    /// Public key that may sign the support table (repeatable).
    #[arg(long, value_name = "FILE", requires = "support_table")]
    support_key: Vec<PathBuf>,
    /// Judge branches and versions by the support table for this day; by default today, in UTC.
    #[arg(long, value_name = "YYYY-MM-DD")]
    day: Option<Day>,
    /// Exit with 1 if a cell has no answer, a run did not come to its end, or a cell is worse than before.
    #[arg(long)]
    check: bool,
}

impl Options {
    /// Returns the options of a page of one run, judged today.
    pub fn page_of(results: PathBuf, html: PathBuf) -> Self {
        Self { results: vec![results], html: Some(html), ..Self::default() }
    }

    /// Returns the command that makes the same page of the same files, as of `day`.
    fn command(&self, day: Day) -> String {
        let path = |path: &PathBuf| path.display().to_string();
        let mut words = vec!["kernel-matrix report".to_owned()];
        words.extend(self.results.iter().map(path));
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        self.beside.iter().for_each(|file| add("--beside", path(file)));
        self.against.iter().for_each(|file| add("--against", path(file)));
        self.history.iter().for_each(|dir| add("--history", path(dir)));
        self.booted.iter().for_each(|file| add("--booted", path(file)));
        let link = |link: &Link| format!("{}={}", link.name, link.address);
        self.link.iter().for_each(|of| add("--link", link(of)));
        self.support_table.iter().for_each(|file| add("--support-table", path(file)));
        self.support_key.iter().for_each(|file| add("--support-key", path(file)));
        self.verdicts.iter().for_each(|file| add("--verdicts", path(file)));
        self.html.iter().for_each(|file| add("--html", path(file)));
        add("--day", day.to_string());
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
    for path in &options.beside {
        let other = self::merged(std::slice::from_ref(path), key)?;
        let file = path.display().to_string();
        beside::add(&mut merged, other, &file).map_err(Error::Unexpected)?;
    }
    let day = options.day.unwrap_or_else(Day::today);
    let table = match &options.support_table {
        Some(file) => table::of_file(file, &options.support_key)?,
        None => SupportTable::built_in()?.clone(),
    };
    merged.judge = Some(Judge { table, day });
    if let Some(path) = &options.booted {
        merged.booted = booted::read(path)?;
    }
    merged.origin = Origin { links: options.link.clone(), command: options.command(day) };
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
    if let Some(path) = &options.difference {
        write(path, &markdown::difference(&merged, differences.as_ref()))?;
    }
    if let Some(path) = &options.whole {
        write(path, &whole::text(&merged)?)?;
    }
    if let Some(path) = &options.verdicts {
        write(path, &verdicts::render(&merged))?;
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
