//! Times of the agent's install from its store and of its uninstall, beside bare modprobe and rmmod
//! of the same files, alternating in one VM (guest/scripts/rounds.sh).

use std::fmt::Write;

use crate::judge::records::Records;

/// Number of uncounted first rounds: one fills the page cache and lets the agent hash its user-mode
/// tree.
const WARM_UP: usize = 1;

/// Seconds of each counted round.
#[derive(Debug, Default, PartialEq)]
pub struct Timing {
    /// modprobe of all modules.
    pub bare_load: Vec<f64>,
    /// The agent, from its first log line to Ready.
    pub agent_load: Vec<f64>,
    /// The agent, from the execution of its program to Ready: also the dynamic linker, which modprobe's and rmmod's
    /// times have, too.
    pub agent_start: Vec<f64>,
    /// rmmod of the same modules.
    pub bare_remove: Vec<f64>,
    /// The agent, from SIGTERM to Removed.
    pub agent_remove: Vec<f64>,
}

impl Timing {
    /// Reads what a guest reported.
    ///
    /// # Errors
    /// A round is missing, or its times cannot be read.
    pub fn read(records: &Records) -> Result<Self, String> {
        let rounds = records.facts.keys().filter(|key| key.starts_with("bare-load-")).count();
        if rounds <= WARM_UP {
            return Err(format!("the guest reported {rounds} rounds, more are needed"));
        }
        let mut timing = Self::default();
        for round in WARM_UP..rounds {
            timing.bare_load.push(span(records, &format!("bare-load-{round}"))?);
            timing.bare_remove.push(span(records, &format!("bare-remove-{round}"))?);
            let log = records.section(&format!("agent-log-{round}"))?;
            let ready = clock(log, "is ready")?;
            timing.agent_load.push(since(first(log)?, ready));
            timing.agent_start.push(since(executed(records, round)?, ready));
            timing.agent_remove.push(between(log, "SIGTERM: stopping", "phase removed")?);
        }
        Ok(timing)
    }

    /// Returns a table, and last the ratios (the agent's median over the bare one), one a line.
    pub fn table(&self) -> String {
        let mut text = format!("{:10} {:>8} {:>8} {:>8}   seconds\n", "", "min", "median", "max");
        for (name, times) in self.rows() {
            let (min, max) = (least(times), greatest(times));
            let _ = writeln!(text, "{name:10} {min:8.2} {:8.2} {max:8.2}", median(times));
        }
        let [start, load, removal] = self.ratios();
        let _ = write!(
            text,
            "start ratio {start:.2}\nremove ratio {removal:.2}\ninstall ratio {load:.2}"
        );
        text
    }

    /// Returns the same table in instructions, for a clock whose second is half a billion of them.
    pub fn executed(&self) -> String {
        const MILLIONS: f64 = 500.0;
        let mut text =
            format!("{:10} {:>8} {:>8} {:>8}   million instructions\n", "", "min", "median", "max");
        for (name, times) in self.rows() {
            let [min, median, max] =
                [least(times), median(times), greatest(times)].map(|seconds| seconds * MILLIONS);
            let _ = writeln!(text, "{name:10} {min:8.0} {median:8.0} {max:8.0}");
        }
        let [_, load, removal] = self.ratios();
        let _ =
            write!(text, "executed remove ratio {removal:.2}\nexecuted install ratio {load:.2}");
        text
    }

    fn rows(&self) -> [(&'static str, &[f64]); 5] {
        [
            ("modprobe", &self.bare_load),
            ("from exec", &self.agent_start),
            ("to Ready", &self.agent_load),
            ("rmmod", &self.bare_remove),
            ("removal", &self.agent_remove),
        ]
    }

    /// Returns the ratios of loading from the execution on, of loading and of removing.
    fn ratios(&self) -> [f64; 3] {
        let bare = median(&self.bare_load);
        let removal = median(&self.agent_remove) / median(&self.bare_remove);
        [median(&self.agent_start) / bare, median(&self.agent_load) / bare, removal]
    }
}

pub(crate) fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn least(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn greatest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// Returns the spans of these facts that were measured, each under its name: `(fact, name)`.
pub(crate) fn spans(records: &Records, facts: &[(&str, &str)]) -> Vec<(String, String)> {
    let measured = |(fact, name): &(&str, &str)| {
        let seconds = span(records, &format!("{fact}.seconds")).ok()?;
        Some(((*name).to_owned(), format!("{seconds:.1} s")))
    };
    facts.iter().filter_map(measured).collect()
}

/// Returns the seconds of a fact "FROM UNTIL", both in seconds since boot.
pub(crate) fn span(records: &Records, key: &str) -> Result<f64, String> {
    let bad = || format!("the guest's `{key}` is absent or malformed");
    let (from, until) = records.facts.get(key).and_then(|f| f.split_once(' ')).ok_or_else(bad)?;
    match (from.parse::<f64>(), until.parse::<f64>()) {
        (Ok(from), Ok(until)) => Ok(until - from),
        _ => Err(bad()),
    }
}

/// Returns the seconds between the first log line with `first` and the first one with `last`.
pub(crate) fn between(log: &[String], first: &str, last: &str) -> Result<f64, String> {
    Ok(since(clock(log, first)?, clock(log, last)?))
}

/// Returns the seconds from one time of day to the next occurrence of the other.
pub(crate) fn since(from: f64, until: f64) -> f64 {
    const DAY: f64 = 86_400.0;
    (until - from).rem_euclid(DAY)
}

/// Returns the second of the day at which a log has `text`: lines begin with
/// `2026-01-31T23:59:59.123456Z`.
pub(crate) fn clock(log: &[String], text: &str) -> Result<f64, String> {
    let bad = || format!("the agent's log has no line with `{text}` and a time");
    let line = log.iter().find(|line| line.contains(text)).ok_or_else(bad)?;
    time_of(line).ok_or_else(bad)
}

/// Returns the second of the day at which a round's agent was executed.
fn executed(records: &Records, round: usize) -> Result<f64, String> {
    let fact = format!("agent-start-{round}");
    let clock = records.facts.get(&fact).and_then(|clock| seconds_of_day(clock));
    clock.ok_or_else(|| format!("the guest's `{fact}` is absent or malformed"))
}

/// Returns the second of the day of a log's first line.
fn first(log: &[String]) -> Result<f64, String> {
    log.first()
        .and_then(|line| time_of(line))
        .ok_or_else(|| format!("the agent's log does not begin with a time: {:?}", log.first()))
}

/// Returns the fault of a span of the agent's own log that is not from `least` to `most` seconds long, between the
/// first line with `first` and the first one with `last`.
pub(crate) fn not_within(
    log: &[String],
    (first, last): (&str, &str),
    (least, most): (f64, f64),
) -> Option<String> {
    /// Tolerance in seconds: the log's clock and the agent's deadlines are two clocks.
    const CLOCKS: f64 = 0.05;
    match between(log, first, last) {
        Ok(seconds) if (least - CLOCKS..=most).contains(&seconds) => None,
        Ok(seconds) => Some(format!(
            "by the agent's log `{last}` came {seconds:.2} s after `{first}`, not {least} to {most} s"
        )),
        Err(missing) => Some(missing),
    }
}

/// Returns the second of the day at which a line was logged.
pub(crate) fn time_of(line: &str) -> Option<f64> {
    let time = line.split_once('T').and_then(|(_, rest)| rest.split_once('Z'));
    time.and_then(|(time, _)| seconds_of_day(time))
}

/// Parses the second of the day from `23:59:59.123456`.
pub(crate) fn seconds_of_day(time: &str) -> Option<f64> {
    let parts: Result<Vec<f64>, _> = time.split(':').map(str::parse).collect();
    let [hours, minutes, seconds] = parts.ok()?[..] else { return None };
    Some((hours * 60.0 + minutes) * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(rounds: usize) -> Records {
        let mut records = Records::default();
        for round in 0..rounds {
            let slow = if round == 0 { 9 } else { 0 };
            for line in [
                format!("@fact bare-load-{round} 10.00 1{}.00", 2 + slow / 9),
                format!("@fact bare-remove-{round} 20.00 20.50"),
                format!("@fact agent-start-{round} 23:59:59.300000000"),
                format!("@begin agent-log-{round}"),
                "|2026-01-31T23:59:59.500000Z  INFO serving health".to_owned(),
                "|2026-02-01T00:00:02.500000Z  INFO driver 1 is ready".to_owned(),
                "|2026-02-01T00:00:03.000000Z  INFO SIGTERM: stopping".to_owned(),
                "|2026-02-01T00:00:03.600000Z  INFO phase removed, after 1 s".to_owned(),
                format!("@end agent-log-{round}"),
            ] {
                records.take(&line);
            }
        }
        records
    }

    #[test]
    fn times_are_taken_after_the_warm_up_and_across_midnight() {
        let timing = Timing::read(&records(3)).unwrap();
        assert_eq!(timing.bare_load, [2.0, 2.0]);
        assert_eq!(timing.agent_load, [3.0, 3.0]);
        // The start of the program and its links are 0.2 s.
        assert!(timing.agent_start.iter().all(|seconds| (seconds - 3.2).abs() < 1e-6));
        let table = timing.table();
        assert!(table.contains("start ratio 1.60\nremove ratio 1.20\n"), "{table}");
        assert!(table.contains("from exec"), "{table}");
        assert!(table.ends_with("install ratio 1.50"), "{table}");
    }

    #[test]
    fn a_span_that_is_too_short_or_too_long_or_absent_is_a_fault() {
        let log = ["2026-01-31T23:59:50.0Z begin", "2026-02-01T00:00:10.5Z end"].map(str::to_owned);
        for (last, least, most, fault) in [
            ("end", 20.0, 25.0, ""),
            ("end", 20.54, 25.0, ""),
            ("end", 20.6, 25.0, "came 20.50 s after `begin`, not 20.6 to 25 s"),
            ("end", 10.0, 20.0, "came 20.50 s after `begin`, not 10 to 20 s"),
            ("nothing", 0.0, 90.0, "no line with `nothing`"),
        ] {
            let found = not_within(&log, ("begin", last), (least, most)).unwrap_or_default();
            assert_eq!(found.is_empty(), fault.is_empty(), "{found}");
            assert!(found.contains(fault), "{found}");
        }
    }

    #[test]
    fn seconds_of_a_clock_that_counts_are_instructions() {
        let executed = Timing::read(&records(3)).unwrap().executed();
        assert!(executed.contains("modprobe       1000     1000     1000\n"), "{executed}");
        assert!(executed.ends_with("executed install ratio 1.50"), "{executed}");
    }

    #[test]
    fn a_round_that_is_missing_or_malformed_is_an_error() {
        assert!(Timing::read(&records(1)).unwrap_err().contains("1 rounds"));
        let mut unready = records(3);
        unready.sections.get_mut("agent-log-2").unwrap().remove(1);
        assert!(Timing::read(&unready).unwrap_err().contains("is ready"));
        let mut timeless = records(3);
        timeless.sections.get_mut("agent-log-2").unwrap().insert(0, "cannot start".into());
        assert!(Timing::read(&timeless).unwrap_err().contains("cannot start"));
        let mut unstarted = records(3);
        unstarted.facts.remove("agent-start-2");
        assert!(Timing::read(&unstarted).unwrap_err().contains("`agent-start-2` is absent"));
        let mut garbled = records(3);
        garbled.facts.insert("bare-load-2".into(), "x y".into());
        assert!(Timing::read(&garbled).unwrap_err().contains("bare-load-2"));
    }
}
