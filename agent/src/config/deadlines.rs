//! Time limits of everything that longshore waits for while it changes a host (docs/reference/deadlines.md).

use std::time::Duration;

use super::Fragment;
use super::values::{BoundedDuration, OnBusy};
use longshore_core::deadlines::Deadlines;

/// Time limits of the settings, with the defaults for those that are not set.
pub(super) fn deadlines(all: &Fragment) -> Deadlines {
    let default = Deadlines::default();
    let or =
        |given: Option<BoundedDuration>, default| given.map_or(default, BoundedDuration::duration);
    let unload_said = or(all.unload_deadline, default.unload);
    Deadlines {
        users: all.on_busy.unwrap_or(usual(all)).users_deadline(unload_said),
        // A module that is given no time at all would count as hanging.
        unload: unload_said.max(LEAST),
        load: or(all.load_deadline, default.load).max(LEAST),
        lock: or(all.lock_deadline, default.lock),
        look: or(all.look_deadline, default.look),
        build: or(all.build_deadline, default.build).max(LEAST),
        disk: or(all.disk_deadline, default.disk).max(LEAST),
        step: or(all.step_deadline, default.step).max(LEAST),
    }
}

/// Returns the default of `on-busy`: the pods that use the driver outlive the operator's driver pod,
/// and its successor adopts the driver.
fn usual(all: &Fragment) -> OnBusy {
    if all.operator_config().enabled { OnBusy::Leave } else { OnBusy::Wait(None) }
}

/// Lower bound of `unload`, `load`, `build`, `disk` and `step`: removing nvidia takes seconds on a
/// host with many GPUs.
const LEAST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::testing::assert_in_page;

    #[test]
    fn the_page_has_the_defaults() {
        let Deadlines { users, unload, load, lock, look, build, disk, step } = Deadlines::default();
        assert_eq!(users, unload, "the page says that `on-busy` is as long as `unload-deadline`");
        for (setting, span) in [
            ("| `unload-deadline`", unload),
            ("| `load-deadline`", load),
            ("| `lock-deadline`", lock),
            ("| `look-deadline`", look),
            ("| `build-deadline`", build),
            ("| `disk-deadline`", disk),
            ("| `step-deadline`", step),
            ("at least", LEAST),
        ] {
            assert_in_page(setting, span);
        }
    }

    #[test]
    fn every_row_of_the_page_has_four_cells() {
        let page = include_str!("../../../docs/reference/deadlines.md");
        let rows = page.lines().filter(|line| line.starts_with('|'));
        let wrong: Vec<_> = rows.filter(|row| row.matches('|').count() != 5).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_step_has_time_for_every_call_in_it() {
        let config = crate::config::load(crate::config::Fragment::default(), &|_| None, None);
        let config = config.unwrap();
        // A load that the kernel refuses from a file is repeated from memory; a busy mount is
        // detached.
        let Deadlines { users, unload, load, .. } = config.deadlines;
        assert!(config.step_limit() > users + 2 * unload + 2 * load + config.daemons.deadline);
        assert_in_page("Other work of an install step", config.step_limit());
        assert_in_page("| The agent's own task", config.task_limit());
    }
}
