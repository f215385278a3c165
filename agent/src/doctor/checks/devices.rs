//! Checks of the machine: its GPUs and its clock.

use jiff::Timestamp;

use super::{CAPTURED, Checked, Input, NOT_LOADED, found_or, passed, skipped};
use crate::plan;
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::gpus::Taken;

/// 2026-01-01, the earliest possible release of longshore.
const RELEASED: i64 = 1_767_225_600;

pub(super) fn machine(input: &Input<'_>) -> Checked {
    passed(&input.look.facts.kernel.arch)
}

pub(super) fn gpus(input: &Input<'_>) -> Checked {
    let (facts, table) = (input.look.facts, input.look.config.support.table.as_ref());
    passed(plan::device_lines(&facts.devices, table).join("; "))
}

pub(super) fn gpus_of_driver(input: &Input<'_>) -> Checked {
    let facts = input.look.facts;
    match &facts.unread.gpus {
        Some(why) => skipped(why),
        None if !facts.loaded.contains_key("nvidia") => skipped(NOT_LOADED),
        None => {
            let taken = facts.gpus.iter().filter(|gpu| gpu.taken == Taken::Driver);
            passed(format!("{}, and none is missing", taken.count()))
        }
    }
}

pub(super) fn clock(input: &Input<'_>) -> Checked {
    if input.look.captured() {
        return skipped(CAPTURED);
    }
    let now = Timestamp::now();
    found_or(wrong_clock(now), || day(now))
}

fn wrong_clock(now: Timestamp) -> Option<Finding> {
    (now.as_second() < RELEASED)
        .then(|| Finding::warning(Code::ClockWrong, format!("the clock says {}", day(now))))
}

/// Formats a time for people.
fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_the_release_is_wrong() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert!(wrong_clock(at(RELEASED)).is_none());
        let finding = wrong_clock(at(0)).unwrap();
        assert_eq!(finding.detail, "the clock says 1970-01-01 00:00:00 UTC");
    }
}
