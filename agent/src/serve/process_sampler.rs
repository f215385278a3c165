//! Resources of this process, under the names of Prometheus' client libraries.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

use crate::telemetry::metrics::ProcessSample;

/// Samples this process.
pub(super) fn sample() -> ProcessSample {
    let [virtual_bytes, resident_bytes] = memory().map_or([None; 2], |both| both.map(Some));
    ProcessSample {
        resident_bytes,
        virtual_bytes,
        cpu_seconds: cpu_seconds(),
        open_fds: open_fds(),
        max_fds: fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(max_fds),
    }
}

/// Reads proc_pid_statm(5): address space and memory, in pages.
fn memory() -> Option<[u64; 2]> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    Some([pages.next()?? * page, pages.next()?? * page])
}

/// Reads proc_pid_stat(5): utime and stime, fields 14 and 15, in clock ticks. The name, field 2,
/// may have blanks and brackets.
fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let a_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(ticks as f64 / a_second as f64)
}

/// Counts the open files, without the one that lists them.
fn open_fds() -> Option<u64> {
    let listed = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(listed.saturating_sub(1) as u64)
}

/// Reads the soft limit of proc_pid_limits(5); None for no limit.
fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_process_knows_its_resources() {
        let seen = sample();
        let (resident, reserved) = (seen.resident_bytes.expect("memory"), seen.virtual_bytes);
        assert!(resident > 1 << 20 && reserved > Some(resident), "{seen:?}");
        assert!(seen.cpu_seconds.expect("time") >= 0.0);
        assert!(seen.open_fds >= Some(3) && seen.max_fds >= seen.open_fds, "{seen:?}");
    }

    #[rstest]
    #[case(
        "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   524288   files \n",
        Some(1024)
    )]
    #[case("Max open files            unlimited            unlimited            files \n", None)]
    #[case("", None)]
    fn limits_of_open_files(#[case] text: &str, #[case] wanted: Option<u64>) {
        assert_eq!(max_fds(text), wanted);
    }
}
