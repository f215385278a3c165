//! Termination records of a failed agent: a message for Kubernetes, and a record for `longshore
//! status`, which outlives the agent and the boot.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::journal;
use crate::journal::phase::Phase;
use crate::telemetry::{FailureRecord, Telemetry};
use longshore_core::bounded_call;
use longshore_core::bounded_read;
use longshore_core::disk::Disk;
use longshore_core::failure::Failure;
use longshore_core::paths::Paths;
use longshore_core::root::is_absent;
use longshore_core::sanitize::in_line;

/// Name of the record, in the state directory, and in the store for the time after a reboot.
const NAME: &str = "last-failure.json";
const MOST_BYTES: u64 = 64 << 10;
/// Limit in bytes of the cause, and of the remedy: each takes at most six times as much in JSON.
const MOST_OF_EACH: usize = 5 << 10;

/// Time limit for writing the record and the message.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// Limit of Kubernetes (pkg/kubelet/container/runtime.go, MaxContainerTerminationMessageLength).
const MESSAGE: usize = 4096;

/// Writer of a command's failure to all its destinations. Clones share the destinations.
#[derive(Debug, Clone, Default)]
pub struct TerminationRecord(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    message: Option<PathBuf>,
    record: Option<(Paths, Disk)>,
    telemetry: Telemetry,
}

/// The last failure of an agent on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// The failure.
    #[serde(flatten, with = "WrittenFailure")]
    pub failure: FailureRecord,
    /// The boot it happened in; None if that is unknown.
    pub boot_id: Option<String>,
}

/// The failure's keys in the file, which earlier and later agents read.
#[derive(Serialize, Deserialize)]
#[serde(remote = "FailureRecord")]
struct WrittenFailure {
    #[serde(rename = "at")]
    time: Timestamp,
    code: Option<u8>,
    cause: String,
    remedy: String,
    phase: Option<Phase>,
}

impl TerminationRecord {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the file for the message.
    pub fn leave_message(&self, path: Option<PathBuf>) {
        self.places().message = path;
    }

    /// Keeps a record from now on, of an agent with this configuration and telemetry.
    pub fn keep_record(&self, config: &Config, telemetry: &Telemetry) {
        let mut places = self.places();
        places.record = Some((config.paths.clone(), config.disk()));
        places.telemetry = telemetry.clone();
    }

    /// Writes the failure. A destination that cannot be written is no failure of its own.
    pub fn write(&self, failure: &Failure) {
        let record = self.places().telemetry.record(failure);
        self.write_in_time(record);
    }

    /// Writes, in the agent's place, that a signal killed it.
    pub fn write_killed(&self, code: u8, signal: &str) {
        self.write_in_time(FailureRecord::killed(code, signal));
    }

    /// Writes the record within [`LIMIT`]: the failed disk may be the reason of the failure.
    fn write_in_time(&self, record: FailureRecord) {
        let (writer, kept) = (self.clone(), record.clone());
        let written = bounded_call::in_time("last-failure", LIMIT, move || {
            writer.write_record(kept);
            Ok(())
        });
        match written {
            Some(Ok(())) => {}
            // There is no room for one more thread.
            Some(Err(_)) => self.write_record(record),
            None => tracing::warn!("failure not recorded: no disk answered within {LIMIT:?}"),
        }
    }

    fn write_record(&self, record: FailureRecord) {
        let places = self.places();
        if let Some(path) = &places.message
            && let Err(error) = write_message(path, &message(&record))
        {
            tracing::warn!("writing {}: {error}", path.display());
        }
        if let Some((paths, disk)) = &places.record {
            keep(paths, *disk, record);
        }
    }
}

/// Like [`keep`], within [`LIMIT`].
pub(crate) fn keep_soon(paths: &Paths, disk: Disk, failure: FailureRecord) {
    let paths = paths.clone();
    let kept = bounded_call::in_time("last-failure", LIMIT, move || {
        keep(&paths, disk, failure);
        Ok(())
    });
    if !matches!(kept, Some(Ok(()))) {
        tracing::warn!("the last agent's end is not recorded: no disk answered within {LIMIT:?}");
    }
}

/// Writes the record of a failure to those of its directories that exist.
fn keep(paths: &Paths, disk: Disk, mut failure: FailureRecord) {
    for text in [&mut failure.cause, &mut failure.remedy] {
        *text = shortened(text, MOST_OF_EACH);
    }
    let last = LastFailure { failure, boot_id: journal::boot_id(&paths.root) };
    let Ok(mut bytes) = serde_json::to_vec_pretty(&last) else { return };
    bytes.push(b'\n');
    for dir in [&paths.state, &paths.store] {
        match disk.write_atomically(&dir.join(NAME), &bytes) {
            Ok(()) => {}
            Err(e) if is_absent(&e) => {}
            Err(error) => tracing::warn!("writing {}: {error}", dir.join(NAME).display()),
        }
    }
}

/// Returns the last failure on record; None if there is none, or it cannot be parsed.
pub(crate) fn last(paths: &Paths) -> Option<LastFailure> {
    let read = |dir: &Path| -> Option<LastFailure> {
        let bytes = bounded_read::read(&dir.join(NAME), MOST_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    [&paths.state, &paths.store].iter().filter_map(|dir| read(dir)).max_by_key(|l| l.failure.time)
}

/// Returns one line, with the remedy whole even if the cause is too long.
fn message(record: &FailureRecord) -> String {
    let code = record.code.map_or_else(String::new, |code| format!("exit code {code}: "));
    let line = |text: &str, most| shortened(&in_line(&text.trim_end().replace('\n', " ")), most);
    let end = format!("; remedy: {}\n", line(&record.remedy, MESSAGE / 2));
    let cause = line(&record.cause, MESSAGE - code.len() - end.len());
    format!("{code}{cause}{end}")
}

/// Returns at most `most` bytes of a text.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most.saturating_sub(3);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", text.get(..end).unwrap_or_default())
}

/// Writes in place: Kubernetes' file is a mount, which nothing can be renamed over.
fn write_message(path: &Path, message: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(message.as_bytes())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use longshore_core::failure::FailureKind;

    fn record(cause: &str, remedy: &str) -> FailureRecord {
        let failure = Failure::new(FailureKind::InUse, cause).remedy(remedy);
        Telemetry::default().record(&failure)
    }

    #[rstest]
    #[case("in use", "stop it", "exit code 20: in use; remedy: stop it\n")]
    #[case("one\ntwo", "a\nb\n", "exit code 20: one two; remedy: a b\n")]
    #[case("a\x1b[2J\rb", "c", "exit code 20: a\\u{1b}[2J\\rb; remedy: c\n")]
    fn a_message_is_one_line(#[case] cause: &str, #[case] remedy: &str, #[case] wanted: &str) {
        assert_eq!(message(&record(cause, remedy)), wanted);
    }

    #[rstest]
    #[case(10_000, 10)]
    #[case(10_000, 10_000)]
    #[case(10, 10_000)]
    #[case(4000, 60)]
    fn a_message_is_as_long_as_kubernetes_takes_it(#[case] cause: usize, #[case] remedy: usize) {
        // Two bytes each, so that a cut can fall between them.
        let message = message(&record(&"ä".repeat(cause / 2), &"ö".repeat(remedy / 2)));
        assert!(message.len() <= MESSAGE && message.ends_with('\n'), "{}", message.len());
        assert!(message.starts_with("exit code 20: ä") && message.contains("; remedy: ö"));
    }

    #[test]
    fn the_newest_record_of_both_places_counts_and_garbage_does_not() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        keep(&paths, Disk::default(), record("before there is a directory", ""));
        assert_eq!(last(&paths), None);
        for place in [&paths.state, &paths.store] {
            std::fs::create_dir_all(place).expect("directory");
        }
        keep(&paths, Disk::default(), record("first", ""));
        // As after a reboot.
        std::fs::remove_file(paths.state.join(NAME)).expect("removed");
        let cause = |paths| last(paths).map(|last| last.failure.cause);
        assert_eq!(cause(&paths).as_deref(), Some("first"));
        std::fs::write(paths.store.join(NAME), "{").expect("write");
        assert_eq!(cause(&paths), None);
        keep(&paths, Disk::default(), record("second", ""));
        assert_eq!(cause(&paths).as_deref(), Some("second"));
    }

    #[test]
    fn a_record_has_the_keys_of_earlier_agents() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        std::fs::create_dir_all(&paths.state).expect("directory");
        let mut failure = record("in use", "stop it");
        failure.time = "2026-01-02T03:04:05Z".parse().expect("a time");
        keep(&paths, Disk::default(), failure.clone());
        let text = std::fs::read_to_string(paths.state.join(NAME)).expect("a record");
        let expected = "{
  \"at\": \"2026-01-02T03:04:05Z\",
  \"code\": 20,
  \
                        \"cause\": \"in use\",
  \"remedy\": \"stop it\",
  \
                        \"phase\": null,
  \"boot_id\": null
}
";
        assert_eq!(text, expected);
        assert_eq!(last(&paths).map(|last| last.failure), Some(failure));
    }

    /// The holders of a driver can be hundreds of processes.
    #[test]
    fn a_record_that_is_kept_is_short_enough_to_be_read() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = Paths::below(dir.path());
        std::fs::create_dir_all(&paths.state).expect("directory");
        for text in ["pid 1 (a) holds /dev/nvidiactl; ".repeat(5000), "\u{1}".repeat(100_000)] {
            keep(&paths, Disk::default(), record(&text, &text));
            let last = last(&paths).expect("a record").failure;
            assert!(last.cause.starts_with(&text[..1000]) && last.cause.ends_with("..."));
            assert!(last.remedy.starts_with(&text[..1000]));
        }
    }

    #[test]
    fn the_page_about_deadlines_has_their_span() {
        longshore_core::testing::assert_in_page("termination message and failure record", LIMIT);
    }

    #[test]
    fn a_failure_is_said_where_it_is_to_be_said() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("termination-log");
        let termination = TerminationRecord::default();
        let failure = Failure::new(FailureKind::Compile, "it does not compile");
        termination.write(&failure);
        assert!(!path.exists());
        termination.leave_message(Some(path.clone()));
        termination.write(&failure);
        let text = std::fs::read_to_string(&path).expect("a message");
        assert!(text.starts_with("exit code 14: it does not compile; remedy: see the"), "{text}");
    }
}
