//! `gc` and `store verify`: cleanup and verification of the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use jiff::tz::TimeZone;

use super::{print, print_answer, verdict_of};
use crate::config::{Config, SizeBound};
use crate::upkeep::check::{Health, check};
use crate::upkeep::gc::{self, Line, Needed, Report};
use crate::upkeep::inventory::ItemKind;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// Format of the JSON of both commands.
const FORMAT: u32 = 1;

/// Arguments of `gc`.
#[derive(Debug, clap::Args)]
pub(super) struct Gc {
    /// Size limit of the store, for example 10GiB, 0, or none; by default store-max-size
    #[arg(long, value_name = "SIZE")]
    max_size: Option<SizeBound>,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `store`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum StoreCommand {
    /// Read everything in the store again and name what is damaged
    Verify {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn gc(config: &Config, gc: Gc) -> Result<ExitCode, Failure> {
    let bound = gc.max_size.map_or(config.store_max_size, SizeBound::bytes);
    let store = Store::open(&config.paths.store, config.disk())?;
    // A dry run only reads: other processes may keep using the store.
    let lock = config.deadlines.lock;
    let held = if gc.dry_run {
        store.lock_shared(lock).await?
    } else {
        store.lock_exclusive(lock).await?
    };
    let (paths, dry_run) = (config.paths.clone(), gc.dry_run);
    let work = move || -> Result<Report, Failure> {
        let needed = Needed::read(&store, &paths)?;
        let decision = gc::decide(&store, &needed, bound, SystemTime::now())?;
        if dry_run { Ok(decision.report().clone()) } else { decision.carry_out(&store, held) }
    };
    let report = tokio::task::spawn_blocking(work)
        .await
        .or_fail(FailureKind::Bug, || "removing from the store")??;
    let is_full = report.bound.is_some_and(|bound| report.after > bound);
    if gc.json {
        let (verdict, code) = verdict_of(None, !is_full);
        print_answer(FORMAT, verdict, code, &report)?
    } else {
        print(&render(&report))?
    }
    if is_full {
        tracing::warn!("the store stays above its size limit: everything left is needed");
    }
    Ok(ExitCode::Done)
}

pub(super) async fn of_store(config: &Config, what: StoreCommand) -> Result<ExitCode, Failure> {
    let StoreCommand::Verify { json } = what;
    let store = Store::open(&config.paths.store, config.disk())?;
    let _shared = store.lock_shared(config.deadlines.lock).await?;
    let health: Health = tokio::task::spawn_blocking(move || check(&store))
        .await
        .or_fail(FailureKind::Bug, || "reading the store")??;
    let failure = health.failure();
    if json {
        let (verdict, code) = verdict_of(failure.as_ref(), true);
        print_answer(FORMAT, verdict, code, &health)?;
    } else {
        let counts = health.read.iter().map(|(what, count)| format!("{count} {what}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let counts = if counts.is_empty() { "nothing".to_owned() } else { counts };
        let mut text = format!("{}: read {counts}\n", config.paths.store.display());
        for damage in &health.damaged {
            text.push_str(&format!("damaged  {}: {}\n", damage.path.display(), damage.reason));
        }
        print(&text)?;
    }
    failure.map_or(Ok(ExitCode::Done), Err)
}

fn render(report: &Report) -> String {
    let verb = if report.dry_run { "would remove" } else { "removed" };
    let mut text = lines(verb, &report.removed);
    text.push_str(&lines("keeps", &report.kept));
    let bound = report.bound.map_or("no bound".to_owned(), |b| format!("the bound is {}", size(b)));
    text.push_str(&format!(
        "{}: {} before, {} after; {bound}\n",
        report.store.display(),
        size(report.before),
        size(report.after)
    ));
    text
}

/// Formats kinds with hundreds of files as one line per kind and reason, the others by name.
fn lines(verb: &str, of: &[Line]) -> String {
    let many =
        |kind: ItemKind| !matches!(kind, ItemKind::Modules | ItemKind::UserMode | ItemKind::Driver);
    let mut text = String::new();
    let mut sums: BTreeMap<(ItemKind, &str), (usize, u64)> = BTreeMap::new();
    for line in of {
        if many(line.kind) {
            let sum = sums.entry((line.kind, line.reason)).or_default();
            *sum = (sum.0 + 1, sum.1 + line.bytes);
            continue;
        }
        let day = line.last_used.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d");
        text.push_str(&format!(
            "{verb:<13}{:<11}{:>9}  {}, used {day}: {}\n",
            name(line.kind),
            size(line.bytes),
            stem(&line.path),
            line.reason
        ));
    }
    for ((kind, why), (count, bytes)) in sums {
        text.push_str(&format!(
            "{verb:<13}{:<11}{:>9}  {count} of them: {why}\n",
            name(kind),
            size(bytes)
        ));
    }
    text
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    name.strip_suffix(".json").map(str::to_owned).unwrap_or(name)
}

fn name(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Leftover => "leftovers",
        ItemKind::Download => "downloads",
        ItemKind::BuildRoot => "build root",
        ItemKind::Cache => "cache",
        ItemKind::Driver => ".run file",
        ItemKind::Record => "logs",
        ItemKind::UserMode => "user mode",
        ItemKind::Modules => "modules",
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
