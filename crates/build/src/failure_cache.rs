//! Cache of compile failures: the same inputs fail the same way, and a node that restarts again and
//! again must not compile each time.
//!
//! A failure is kept under a digest of everything the build is made of: another input, patch or
//! compiler makes another build. Disk, memory and time are properties of the host, not the build: a
//! full disk is not remembered, the other two for a short time and only for as many jobs, or as
//! little time, as failed. A failure caused by the inputs alone is the same on every host: it is
//! kept with the details other hosts need, and such a record from another host is kept as if it had
//! been met here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Failed;
use super::diagnose::Class;
use super::shared_failure::{About, KnownFailure, LASTING, time};
use longshore_core::failure::{CompileClass, Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleKey;

/// Lifetime of a failure caused by the host.
const PASSING: SignedDuration = SignedDuration::from_mins(10);
/// Larger than any record.
const MAX_RECORD: u64 = 1 << 16;

/// Identity of a build in the failure cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Human-readable name: driver, flavour and kernel.
    pub(super) tag: String,
    /// sha256 (hex) over all its inputs.
    pub(super) inputs: String,
    /// Parallel jobs.
    pub(super) jobs: usize,
    /// Time limit.
    pub(super) limit: Duration,
}

/// The store's record of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Record {
    inputs: String,
    at: Timestamp,
    why: Why,
    jobs: usize,
    limit_seconds: u64,
    cause: String,
    remedy: Option<String>,
    /// Class of the failure; None in a record of an earlier longshore.
    #[serde(default)]
    class: Option<CompileClass>,
    /// Host and build that met it, if it is the same on every host.
    #[serde(default)]
    about: Option<About>,
}

impl Record {
    fn known(&self) -> Option<KnownFailure> {
        Some(KnownFailure {
            inputs: self.inputs.clone(),
            at: self.at,
            cause: self.cause.clone(),
            remedy: self.remedy.clone(),
            about: self.about.clone()?,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Why {
    Memory,
    Time,
    Inputs,
}

impl Why {
    fn lasts(self) -> SignedDuration {
        if self == Self::Inputs { LASTING } else { PASSING }
    }
}

impl Attempt {
    fn path(&self) -> PathBuf {
        let digest = self.inputs.get(..12).unwrap_or(&self.inputs);
        Path::new("failures").join(format!("{}-{digest}.json", self.tag))
    }

    /// True if this attempt can be expected to fail as `record` did.
    fn is_hopeless(&self, record: &Record, now: Timestamp) -> bool {
        let age = now.duration_since(record.at);
        // A negative age: the clock was set back, and the record's time is unknown.
        let within = |limit: SignedDuration| !age.is_negative() && age < limit;
        record.inputs == self.inputs
            && match record.why {
                Why::Inputs => within(LASTING),
                Why::Memory => within(PASSING) && self.jobs >= record.jobs,
                Why::Time => {
                    within(PASSING)
                        && self.jobs <= record.jobs
                        && self.limit.as_secs() <= record.limit_seconds
                }
            }
    }
}

/// Refuses an attempt that failed before.
///
/// # Errors
/// Exit code 14 with when and how it failed.
pub(super) fn check(store: &Store, attempt: &Attempt) -> Result<(), Failed> {
    let path = store.root().join(attempt.path());
    let now = Timestamp::now();
    let Some(record) = read(&path).filter(|record| attempt.is_hopeless(record, now)) else {
        return Ok(());
    };
    let host = record.about.as_ref().map(|about| format!(" on {}", about.host)).unwrap_or_default();
    let failure = Failure::new(
        FailureKind::Compile,
        format!("failed before, at {}{host}: {}", time(record.at), record.cause),
    );
    let first = record.remedy.as_ref().map(|remedy| format!("{remedy}; ")).unwrap_or_default();
    let until = record.at + record.why.lasts();
    let failure = match record.class.clone() {
        Some(class) => failure.with_compile_class(class),
        None => failure,
    };
    let failure = failure.remedy(format!(
        "{first}it is not tried again before {}: to try at once, `longshore build --retry`, or \
         remove {}",
        time(until),
        path.display()
    ));
    Err(Failed { failure, known: record.known().map(Box::new) })
}

/// Remembers the failure of an attempt to build a set with `key`, if it would recur; returns the
/// record for other hosts if it would recur on all of them.
///
/// # Errors
/// Exit code 15 where the store cannot be written.
pub(super) fn keep(
    store: &Store,
    attempt: &Attempt,
    key: &ModuleKey,
    class: &Class,
    failure: &Failure,
) -> Result<Option<KnownFailure>, Failure> {
    let why = match class {
        Class::Space => return Ok(None),
        // An unknown failure may not be the inputs' fault: it is tried again soon.
        Class::Memory | Class::Processes | Class::Crash | Class::Unknown => Why::Memory,
        Class::Slow => Why::Time,
        _ => Why::Inputs,
    };
    let described = class.described();
    let record = Record {
        inputs: attempt.inputs.clone(),
        at: Timestamp::now(),
        why,
        jobs: attempt.jobs,
        limit_seconds: attempt.limit.as_secs(),
        cause: failure.to_string(),
        remedy: failure.remedy_text().map(str::to_owned),
        about: described.of_inputs.then(|| About::here(described.clone(), key.clone())),
        class: Some(described),
    };
    write(store, attempt, &record)?;
    Ok(record.known())
}

fn write(store: &Store, attempt: &Attempt, record: &Record) -> Result<(), Failure> {
    let bytes = serde_json::to_vec_pretty(record)
        .or_fail(FailureKind::Bug, || "writing down a failed compile")?;
    store.write_file(&attempt.path(), &bytes)
}

/// Removes the record of an attempt.
pub(super) fn forget(store: &Store, attempt: &Attempt) {
    let path = store.root().join(attempt.path());
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("removing {}: {e}", path.display());
        }
        _ => {}
    }
}

/// Lists the failed compiles that are not retried yet: driver, kernel, cause and end of the wait.
pub fn failed_before(store: &Store) -> Vec<String> {
    let now = Timestamp::now();
    let entries = fs::read_dir(store.dir("failures")).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let describe = |path: &PathBuf| {
        let record = read(path)?;
        let until = record.at + record.why.lasts();
        let name = path.file_stem()?.to_string_lossy().into_owned();
        // The digest of the inputs is not for people.
        let tag = name.rsplit_once('-').map_or(name.as_str(), |(tag, _)| tag);
        (record.at <= now && now < until)
            .then(|| format!("{tag}: {} (not before {})", record.cause, time(until)))
    };
    paths.iter().filter_map(describe).collect()
}

/// Reads a record; an unreadable one counts as none, and the build is tried.
fn read(path: &Path) -> Option<Record> {
    if fs::metadata(path).ok()?.len() > MAX_RECORD {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    fn attempt() -> Attempt {
        Attempt {
            tag: "535.261.03-open-6.1.0-56-amd64".into(),
            inputs: "a".repeat(64),
            jobs: 4,
            limit: Duration::from_secs(60),
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        (dir, store)
    }

    fn failure() -> Failure {
        Failure::new(FailureKind::Compile, "no strncpy (log: /l)").remedy("another driver")
    }

    fn kept(class: &Class) -> (tempfile::TempDir, Store) {
        let (dir, store) = store();
        let key = longshore_modules::testing::set().key;
        let reported = keep(&store, &attempt(), &key, class, &failure()).expect("keeps");
        assert_eq!(reported.is_some(), class.described().of_inputs);
        (dir, store)
    }

    #[test]
    fn the_same_attempt_is_refused_with_what_it_failed_of() {
        let (_dir, store) = kept(&Class::Gone(None));
        let refused = check(&store, &attempt()).expect_err("refused");
        assert_eq!(refused.known.expect("one of all hosts").about.class, "interface-gone");
        let refused = refused.failure;
        assert_eq!(refused.compile_class(), Some(&Class::Gone(None).described()));
        assert_eq!(refused.code(), ExitCode::Compile);
        assert!(refused.to_string().starts_with("failed before, at 2"), "{refused}");
        assert!(refused.to_string().contains("no strncpy (log: /l)"), "{refused}");
        let remedy = refused.remedy_text().expect("a remedy");
        assert!(remedy.contains("another driver") && remedy.contains("--retry"), "{remedy}");
    }

    #[test]
    fn what_is_held_back_is_listed() {
        let (_dir, store) = kept(&Class::Gone(None));
        let listed = failed_before(&store);
        assert_eq!(listed.len(), 1);
        assert!(
            listed[0].starts_with("535.261.03-open-6.1.0-56-amd64: no strncpy (log: /l) (not"),
            "{listed:?}"
        );
        forget(&store, &attempt());
        assert!(failed_before(&store).is_empty());
    }

    #[test]
    fn other_inputs_are_tried_and_so_is_what_was_forgotten() {
        let (_dir, store) = kept(&Class::Unknown);
        let mut other = attempt();
        other.inputs = format!("{}b", "a".repeat(63));
        check(&store, &other).expect("other inputs");
        forget(&store, &attempt());
        check(&store, &attempt()).expect("forgotten");
        forget(&store, &attempt());
    }

    #[rstest]
    #[case::same(4, 60, Class::Memory, false)]
    #[case::fewer_jobs_take_less_memory(1, 60, Class::Memory, true)]
    #[case::more_jobs_take_more(8, 60, Class::Memory, false)]
    #[case::slow(4, 60, Class::Slow, false)]
    #[case::more_time(4, 61, Class::Slow, true)]
    #[case::more_jobs_are_faster(8, 60, Class::Slow, true)]
    #[case::the_disk_may_have_room_now(4, 60, Class::Space, true)]
    #[case::neither_jobs_nor_time_help(8, 600, Class::Compiler, false)]
    fn what_lies_in_the_machine_is_tried_with_other_means(
        #[case] jobs: usize,
        #[case] seconds: u64,
        #[case] class: Class,
        #[case] tried: bool,
    ) {
        let (_dir, store) = kept(&class);
        let again = Attempt { jobs, limit: Duration::from_secs(seconds), ..attempt() };
        assert_eq!(check(&store, &again).is_ok(), tried);
    }

    #[rstest]
    #[case::just_now(Why::Inputs, 0, true)]
    #[case::a_day(Why::Inputs, 24 * 3600 - 1, true)]
    #[case::over(Why::Inputs, 24 * 3600, false)]
    #[case::from_the_future(Why::Inputs, -10, false)]
    #[case::memory(Why::Memory, 599, true)]
    #[case::memory_over(Why::Memory, 600, false)]
    fn a_failure_is_believed_for_a_while(
        #[case] why: Why,
        #[case] age: i64,
        #[case] believed: bool,
    ) {
        let at = Timestamp::from_second(1_700_000_000).expect("a time");
        let (cause, remedy) = (String::new(), None);
        let inputs = attempt().inputs;
        let about = None;
        let (jobs, limit_seconds, class) = (4, 60, None);
        let record = Record { inputs, at, why, jobs, limit_seconds, cause, remedy, class, about };
        let now = at + SignedDuration::from_secs(age);
        assert_eq!(attempt().is_hopeless(&record, now), believed);
    }

    #[rstest]
    #[case("")]
    #[case("{}")]
    #[case("[1, 2")]
    fn a_damaged_record_is_none(#[case] text: &str) {
        let (dir, store) = store();
        fs::write(dir.path().join(attempt().path()), text).expect("write");
        check(&store, &attempt()).expect("tried");
    }
}
