//! Resource use of an idle agent whose driver is Ready, against its allowance, and the time of its
//! end beside bare rmmod (rest.sh).

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judge::records::Records;
use crate::judge::timing::{Timing, median};

/// Private memory (RssAnon) that an agent is allowed, kB. Its pages of files are the page cache's, which the kernel takes
/// back; it maps 64 kB of them around each that is touched (docs/internals/benchmarks.md, rest).
const ALLOWED_KB: f64 = 5.0 * 1024.0;
/// Least allowed time between two wake-ups, seconds.
const ALLOWED_PERIOD: f64 = 10.0;

/// Resources that an agent used.
#[derive(Debug, PartialEq)]
pub struct Rest {
    /// Length of the observation, seconds.
    pub seconds: f64,
    /// VmRSS, RssAnon and RssFile of proc_pid_status(5), and Referenced of smaps_rollup: the pages used in these
    /// seconds, private and of files. kB.
    pub memory: BTreeMap<String, u64>,
    /// Voluntary and involuntary context switches by thread.
    pub switches: Vec<(String, u64, u64)>,
    /// Times of its end, and of the modules alone.
    pub timing: Timing,
}

impl Rest {
    /// Reads what a guest reported.
    ///
    /// # Errors
    /// Something is missing or cannot be read.
    pub fn read(records: &Records) -> Result<Self, String> {
        let seconds = records.facts.get("rest-seconds").and_then(|s| s.parse().ok());
        let before = threads(records.section("rest.before")?)?;
        let after = threads(records.section("rest.after")?)?;
        let switches = after.into_iter().map(|(id, (name, asked, not))| {
            // All switches of a new thread happened since.
            let (_, asked_before, not_before) = before.get(&id).cloned().unwrap_or_default();
            (name, asked - asked_before, not - not_before)
        });
        let memory = records.section("rest.memory")?.iter().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            Some((key.to_owned(), value.trim().strip_suffix(" kB")?.parse().ok()?))
        });
        let memory: BTreeMap<String, u64> = memory.collect();
        if !memory.contains_key("RssAnon") {
            return Err("the guest's `rest.memory` has no RssAnon".into());
        }
        Ok(Self {
            seconds: seconds.ok_or("the guest did not report its waiting time")?,
            memory,
            switches: switches.collect(),
            timing: Timing::read(records)?,
        })
    }

    /// Returns a table, and last the ratios: to the allowance, and to rmmod.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (what, kb) in &self.memory {
            let _ = writeln!(text, "{what:24} {:8.1} MB", *kb as f64 / 1024.0);
        }
        for (name, asked, not) in &self.switches {
            let _ = writeln!(text, "thread {name:17} {asked:8} switches asked for, {not} not");
        }
        let wakeups: u64 = self.switches.iter().map(|(_, asked, not)| asked + not).sum();
        let _ = writeln!(text, "{:24} {wakeups:8} in {:.0} s", "all threads", self.seconds);
        let (ours, bare) = (median(&self.timing.agent_remove), median(&self.timing.bare_remove));
        let _ = writeln!(
            text,
            "{:24} {ours:8.2} s, median of {}",
            "SIGTERM to Removed",
            self.timing.agent_remove.len()
        );
        let _ = writeln!(text, "{:24} {bare:8.2} s", "rmmod of the same");
        let memory = self.memory.get("RssAnon").map_or(f64::NAN, |kb| *kb as f64) / ALLOWED_KB;
        let wakeups = wakeups as f64 / (self.seconds / ALLOWED_PERIOD);
        let _ = write!(
            text,
            "rest memory ratio {memory:.2}\nrest wake-ups ratio {wakeups:.2}\nrest ratio {:.2}",
            ours / bare
        );
        text
    }
}

/// Name and switches by thread id.
type Threads = BTreeMap<u64, (String, u64, u64)>;

fn threads(lines: &[String]) -> Result<Threads, String> {
    let thread = |line: &String| {
        let mut words = line.split(' ');
        let (id, name) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        Some((id, (name, words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
    };
    let read = |line| thread(line).ok_or_else(|| format!("this is no thread: {line}"));
    let threads: Threads = lines.iter().map(read).collect::<Result<_, _>>()?;
    if threads.is_empty() { Err("the guest's agent has no thread".into()) } else { Ok(threads) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Records {
        let mut records = Records::default();
        let mut section = |name: &str, text: &str| {
            records.sections.insert(name.into(), text.lines().map(str::to_owned).collect());
        };
        section("rest.before", "40 longshore 100 5\n41 tokio-rt 7 0");
        section("rest.after", "40 longshore 110 6\n42 tokio-rt 4 0");
        section("rest.memory", "VmRSS:\t    6144 kB\nRssAnon:\t 2048 kB\nThreads:\t2");
        let log = "2026-01-31T23:59:59.500000Z  INFO phase probing\n\
            2026-02-01T00:00:02.500000Z  INFO driver 1 is ready\n\
            2026-02-01T00:00:03.000000Z  INFO SIGTERM: stopping\n\
            2026-02-01T00:00:03.600000Z  INFO phase removed, after 1 s";
        for round in [0, 1] {
            section(&format!("agent-log-{round}"), log);
        }
        for line in [
            "rest-seconds 300",
            "bare-load-0 1 2",
            "bare-load-1 1 2",
            "bare-remove-1 1.0 1.5",
            "agent-start-1 23:59:59.3",
        ] {
            records.take(&format!("@fact {line}"));
        }
        records
    }

    #[test]
    fn switches_are_counted_from_the_first_look_and_a_new_threads_are_all_its_own() {
        let rest = Rest::read(&records()).unwrap();
        assert_eq!(rest.switches, [("longshore".into(), 10, 1), ("tokio-rt".into(), 4, 0)]);
        let table = rest.table();
        assert!(table.contains("VmRSS                         6.0 MB"), "{table}");
        assert!(table.contains("rest memory ratio 0.40\nrest wake-ups ratio 0.50\n"), "{table}");
        assert!(table.ends_with("rest ratio 1.20"), "{table}");
    }

    #[test]
    fn what_is_missing_or_malformed_is_an_error() {
        let why = |change: &dyn Fn(&mut Records)| {
            let mut records = records();
            change(&mut records);
            Rest::read(&records).unwrap_err()
        };
        let section = |name: &'static str, text: &'static str| {
            move |records: &mut Records| {
                records.sections.insert(name.into(), vec![text.into()]);
            }
        };
        assert!(why(&section("rest.after", "x y")).contains("no thread: x y"));
        assert!(why(&section("rest.memory", "VmHWM: 3 kB")).contains("RssAnon"));
        assert!(why(&|r| r.facts.clear()).contains("waiting time"));
        let none = |records: &mut Records| {
            records.sections.insert("rest.before".into(), Vec::new());
        };
        assert!(why(&none).contains("no thread"));
    }
}
