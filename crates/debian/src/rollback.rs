//! Rollback protection: the newest Release date known of each archive.
//!
//! A signature proves the author of a Release, not that it is current. Suites with a Valid-Until
//! state their own expiry; stable releases have none, and a mirror, or an attacker on the way,
//! could serve one of years ago, correctly signed, whose packages have known faults. So the newest
//! Date of each suite is kept, by its URL, in the store's `archives.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::release::{Release, Rules, date_text};
use longshore_core::disk::Disk;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted;
use longshore_core::store::Store;

/// Version of the file's format; a file with another is ignored.
const FORMAT: u32 = 1;

/// Seconds that a Release may be older than the newest known: the machines behind one name are not
/// updated at the same time, and a suite with a Valid-Until is valid for as long.
const LAG: i64 = 7 * 86_400;

/// Larger than any record.
const MOST_BYTES: u64 = 1 << 20;

/// The newest Release date of each suite.
#[derive(Debug)]
pub(super) struct NewestDates {
    path: PathBuf,
    disk: Disk,
    before: BTreeMap<String, i64>,
    now: Mutex<BTreeMap<String, i64>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// URL of the suite -> seconds since 1970 of the newest Date.
    newest: BTreeMap<String, i64>,
}

impl NewestDates {
    /// Reads the store's record; empty where it is absent or invalid.
    pub(super) fn read(store: &Store) -> Self {
        let path = store.root().join("archives.json");
        let small = fs::metadata(&path).is_ok_and(|found| found.len() <= MOST_BYTES);
        let bytes = if small { fs::read(&path).ok() } else { None };
        let record = bytes.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let known = record.filter(|record| record.format == FORMAT);
        let before = known.map(|known| known.newest).unwrap_or_default();
        let path = store.writable().join("archives.json");
        Self { path, disk: store.disk(), now: Mutex::new(before.clone()), before }
    }

    /// Compares the verified Release of the suite at `url` with the newest known, and remembers it.
    /// Releases of a frozen archive are neither compared nor remembered.
    ///
    /// # Errors
    /// Exit code 13 where it is older by more than a mirror may lag.
    pub(super) fn check(&self, url: &str, release: &Release, rules: Rules) -> Result<(), Failure> {
        let Some(date) = release.date.filter(|_| !rules.frozen) else { return Ok(()) };
        let url = redacted(url);
        let newest = self.before.get(&url).copied();
        if let Some(newest) = newest.filter(|newest| date < newest.saturating_sub(LAG)) {
            let (date, newest) = (date_text(date), date_text(newest));
            let cause = format!("{url} is of {date}, and one of {newest} was seen there before");
            return Err(Failure::new(FailureKind::Verification, cause).remedy(
                "use another mirror: this one, or an attacker on the way, serves outdated data; where \
                 it went back on purpose (a snapshot) give --archive-frozen",
            ));
        }
        // A future date would refuse every Release until then.
        let date = date.min(rules.now.try_into().unwrap_or(i64::MAX));
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = now.entry(url).or_insert(date);
        *kept = date.max(*kept);
        Ok(())
    }

    /// Writes the record if there is a newer date. Of two concurrent agents, one's dates may be
    /// lost.
    pub(super) fn keep(&self) {
        let newest = self.now.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if newest == self.before {
            return;
        }
        let written = serde_json::to_vec_pretty(&Record { format: FORMAT, newest })
            .map_err(Into::into)
            .and_then(|bytes| self.disk.write_atomically(&self.path, &bytes));
        if let Err(error) = written {
            tracing::warn!("the dates of the archives' metadata were not kept: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const URL: &str = "http://archive.example.com/debian/dists/bookworm";
    /// 2026-11-18.
    const SEEN: i64 = 1_795_000_000;
    const DAY: i64 = 86_400;

    fn release(date: Option<i64>) -> Release {
        let date = date.map(|seconds| {
            let time = jiff::Timestamp::from_second(seconds).expect("a time");
            format!("Date: {}\n", time.strftime("%a, %d %b %Y %H:%M:%S UTC"))
        });
        Release::parse(&format!("Suite: a\n{}SHA256:\n", date.unwrap_or_default())).expect("reads")
    }

    fn rules(now: i64) -> Rules {
        Rules { now: now.try_into().expect("since 1970"), frozen: false }
    }

    /// A store that knows a Release of [`SEEN`].
    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let seen = NewestDates::read(&store);
        seen.check(URL, &release(Some(SEEN)), rules(SEEN + DAY)).expect("the first");
        seen.keep();
        (dir, store)
    }

    #[rstest]
    #[case::the_same(Some(SEEN), true)]
    #[case::newer(Some(SEEN + DAY), true)]
    #[case::of_a_mirror_that_lags(Some(SEEN - LAG), true)]
    #[case::older(Some(SEEN - LAG - 1), false)]
    #[case::of_years_ago(Some(1_000_000_000), false)]
    #[case::without_a_date(None, true)]
    fn a_release_is_not_older_than_seen_before(#[case] date: Option<i64>, #[case] accepted: bool) {
        let (_dir, store) = store();
        let seen = NewestDates::read(&store);
        let checked = seen.check(URL, &release(date), rules(SEEN + 30 * DAY));
        assert_eq!(checked.is_ok(), accepted);
        if let Err(failure) = checked {
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(failure.remedy_text().is_some_and(|text| text.contains("--archive-frozen")));
        }
        // An older date never replaces a newer one.
        seen.keep();
        let newest = NewestDates::read(&store).before[URL];
        assert_eq!(newest, date.unwrap_or(SEEN).max(SEEN));
    }

    #[test]
    fn another_suite_and_a_frozen_one_are_not_compared() {
        let (_dir, store) = store();
        let (seen, old) = (NewestDates::read(&store), release(Some(1_000_000_000)));
        seen.check(&format!("{URL}-updates"), &old, rules(SEEN)).expect("another");
        let frozen = Rules { frozen: true, ..rules(SEEN) };
        seen.check(URL, &old, frozen).expect("frozen");
        seen.keep();
        assert_eq!(NewestDates::read(&store).before[URL], SEEN);
    }

    #[test]
    fn a_date_of_the_future_shuts_nothing_out() {
        let (_dir, store) = store();
        let seen = NewestDates::read(&store);
        seen.check(URL, &release(Some(SEEN + 9000 * DAY)), rules(SEEN + 2 * DAY)).expect("newer");
        seen.keep();
        assert_eq!(NewestDates::read(&store).before[URL], SEEN + 2 * DAY);
        // Nor is an older date remembered if the clock is in the past.
        let seen = NewestDates::read(&store);
        seen.check(URL, &release(Some(SEEN + DAY)), rules(0)).expect("within the lag");
        seen.keep();
        assert_eq!(NewestDates::read(&store).before[URL], SEEN + 2 * DAY);
    }

    #[rstest]
    #[case::cut_off(r#"{"format":1,"#)]
    #[case::of_another_form(r#"{"format":2,"newest":{}}"#)]
    #[case::no_json("hello")]
    fn a_record_that_is_unreadable_is_as_none(#[case] text: &str) {
        let (_dir, store) = store();
        fs::write(store.root().join("archives.json"), text).expect("written");
        let seen = NewestDates::read(&store);
        seen.check(URL, &release(Some(1_000_000_000)), rules(SEEN)).expect("the first");
        seen.keep();
        assert_eq!(NewestDates::read(&store).before[URL], 1_000_000_000);
    }
}
