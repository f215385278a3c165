//! Times of starting a container, with the GPUs by CDI and without (`consume_podman_rounds` of
//! guest/scripts/consumers.sh): measured, and held to no limit.

use crate::cell::guests::Consumer;
use crate::judge::records::Records;
use crate::judge::timing::median;

/// Containers of each kind.
const ROUNDS: usize = 10;
const KINDS: [&str; 2] = ["without", "with"];

/// Returns the faults: a container of which there is no time.
pub(crate) fn wrong(records: &Records) -> Vec<String> {
    let kinds = KINDS.into_iter().filter(|kind| times(records, kind).len() != ROUNDS);
    let seen = records.text(&Consumer::PodmanRounds.section());
    kinds.map(|kind| format!("not {ROUNDS} starts {kind} CDI: {seen}")).collect()
}

/// Returns the median of each kind.
pub(crate) fn measured(records: &Records) -> Vec<(String, String)> {
    let of = |kind: &str| {
        let times = times(records, kind);
        let name = format!("podman run {kind} CDI, median of {}", times.len());
        (!times.is_empty()).then(|| (name, format!("{:.0} ms", median(&times) * 1000.0)))
    };
    KINDS.into_iter().filter_map(of).collect()
}

/// Returns the seconds of the lines `KIND BEGIN END`.
fn times(records: &Records, kind: &str) -> Vec<f64> {
    let time = |line: &String| {
        let mut words = line.strip_prefix(kind)?.split_whitespace();
        let (begin, end): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(end - begin)
    };
    let lines = records.section(&Consumer::PodmanRounds.section()).unwrap_or_default();
    lines.iter().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_measured_and_a_missing_start_is_a_fault() {
        let mut records = Records::default();
        assert_eq!((wrong(&records).len(), measured(&records)), (2, Vec::new()));
        let mut lines = Vec::new();
        for round in 0..ROUNDS {
            lines.push(format!("without {round}.0 {round}.5"));
            lines.push(format!("with {round}.0 {round}.75"));
        }
        records.sections.insert(Consumer::PodmanRounds.section(), lines);
        assert_eq!(wrong(&records), Vec::<String>::new());
        let of =
            |kind: &str, ms: &str| (format!("podman run {kind} CDI, median of 10"), ms.to_owned());
        assert_eq!(measured(&records), [of("without", "500 ms"), of("with", "750 ms")]);
    }
}
