//! Handling of INT, TERM and HUP: every started program ends, and each waiting thread removes its
//! own unfinished work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use longshore_lab::host::error::{At, Error};

/// Time that programs have to end after TERM.
const GRACE: Duration = Duration::from_secs(10);
/// Interval at which newly started programs are looked for.
const PERIOD: Duration = Duration::from_millis(100);

/// The ending signal that was received, if any.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    signal: Arc<AtomicI32>,
}

impl Ending {
    /// Makes the first of these signals end all programs below this process: threads that wait for
    /// one fail, and clean up. The second signal ends this process too.
    ///
    /// # Errors
    /// Signal handlers cannot be set.
    pub fn heed() -> Result<Self, Error> {
        let own = Path::new("this process");
        // Orphans of a program are adopted by this process and not by the machine's init.
        prctl::set_child_subreaper(true).at("adopt orphans in", own)?;
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).at("handle signals in", own)?;
        let ending = Self::default();
        let said = Arc::clone(&ending.signal);
        thread::spawn(move || {
            for signal in signals.forever() {
                if said.swap(signal, Ordering::Relaxed) == 0 {
                    thread::spawn(end_all);
                } else {
                    std::process::exit(128 + signal);
                }
            }
        });
        Ok(ending)
    }

    /// Returns the signal that was received.
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// Sends TERM to every program once, and KILL after a while; until this process ends.
fn end_all() {
    let own = Pid::this().as_raw();
    let begun = Instant::now();
    let mut signalled = BTreeSet::new();
    loop {
        let parents = parents();
        let overdue = begun.elapsed() > GRACE;
        for pid in descendants(own, &parents) {
            let signal = if overdue { Signal::SIGKILL } else { Signal::SIGTERM };
            if signalled.insert(pid) || overdue {
                // Fails only if the process has ended already.
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
        thread::sleep(PERIOD);
    }
}

/// Returns every process's parent, without zombies.
fn parents() -> BTreeMap<i32, i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let of = |pid: i32| parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| Some((pid, of(pid)?))).collect()
}

/// Parses the parent from a line of /proc/PID/stat (proc_pid_stat(5)), unless it is a zombie's.
fn parent(stat: &str) -> Option<i32> {
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    words.next()?.parse().ok().filter(|_| state != "Z" && state != "X")
}

fn descendants(of: i32, parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut open = vec![of];
    while let Some(next) = open.pop() {
        let children = parents.iter().filter(|(_, parent)| **parent == next);
        open.extend(children.map(|(pid, _)| *pid).filter(|pid| found.insert(*pid)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_whatever_a_program_is_called() {
        let cases = [
            ("7 (sh) S 1 7 7 0", Some(1)),
            ("7 (a) b) R (x) S 42 7", Some(42)),
            ("7 (sh) Z 1 7 7 0", None),
            ("", None),
        ];
        for (stat, wanted) in cases {
            assert_eq!(parent(stat), wanted, "{stat}");
        }
    }

    #[test]
    fn all_generations_are_found_and_nobody_else() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 5)]);
        assert_eq!(descendants(2, &parents), BTreeSet::from([3, 4]));
        assert!(descendants(6, &parents).is_empty());
    }
}
