//! Sampling of the host and of this process for a request.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::process_sampler;
use super::store_sampler::StoreSampler;
use crate::telemetry::metrics::HostSample;
use longshore_core::deadlines::LOOK;
use longshore_host::facts::holders::driver_users;
use longshore_host::facts::modules::is_of_driver;
use longshore_host::facts::process_files::Looker;
use longshore_host::values::DriverUsers;

/// Shortest interval between two searches for the driver's holders: each inspects every open file
/// of the host.
const EVERY: Duration = Duration::from_secs(60);

/// Sampler of a host below a root, and of its store.
#[derive(Debug)]
pub(super) struct HostSampler {
    root: PathBuf,
    store: StoreSampler,
    looker: Looker,
    holders: Mutex<Option<(Instant, Option<usize>)>>,
}

impl HostSampler {
    pub(super) fn new(root: &Path, store: &Path, looker: Looker) -> Self {
        let store = StoreSampler::new(store);
        Self { root: root.to_path_buf(), store, looker, holders: Mutex::default() }
    }

    /// Samples the present state. Blocks.
    pub(super) fn look(&self) -> HostSample {
        let modules = modules(&self.root);
        HostSample {
            holders: self.holders(&modules),
            references: modules.into_iter().map(|m| (m.name, m.references)).collect(),
            loaded_version: self.driver_version(),
            store: self.store.last(),
            process: process_sampler::sample(),
        }
    }

    /// Returns the version of the loaded nvidia module.
    pub(super) fn driver_version(&self) -> Option<String> {
        let path = self.root.join("sys/module/nvidia/version");
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }

    fn holders(&self, modules: &[Module]) -> Option<usize> {
        // Without references other than those of modules, no process has it open.
        if modules.iter().all(|module| module.references <= module.holders) {
            return Some(0);
        }
        let mut last = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((at, count)) if at.elapsed() < EVERY => count,
            _ => {
                let count =
                    driver_users(&self.root, LOOK, &self.looker).ok().as_ref().and_then(count);
                *last = Some((Instant::now(), count));
                count
            }
        }
    }
}

/// Returns the number of holders, if it is known: there is a reference, so an empty list means an
/// unseen process, as in another PID namespace; and if some processes could not be inspected there
/// may be more.
fn count(seen: &DriverUsers) -> Option<usize> {
    (seen.unseen.is_none() && !seen.users.is_empty()).then_some(seen.users.len())
}

struct Module {
    name: String,
    references: i64,
    holders: i64,
}

/// Returns the driver's loaded modules, by name.
fn modules(root: &Path) -> Vec<Module> {
    let listed = fs::read_dir(root.join("sys/module")).into_iter().flatten().flatten();
    let mut modules: Vec<Module> = listed
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let refcnt = is_of_driver(&name).then(|| entry.path().join("refcnt"))?;
            let references = fs::read_to_string(refcnt).ok()?.trim().parse().ok()?;
            let holders = fs::read_dir(entry.path().join("holders")).map_or(0, Iterator::count);
            Some(Module { name, references, holders: holders as i64 })
        })
        .collect();
    modules.sort_by(|a, b| a.name.cmp(&b.name));
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_host::values::DriverUser;

    fn module(root: &Path, name: &str, references: &str, holders: &[&str]) {
        let dir = root.join("sys/module").join(name);
        fs::create_dir_all(dir.join("holders")).expect("directory");
        fs::write(dir.join("refcnt"), references).expect("write");
        for holder in holders {
            fs::create_dir(dir.join("holders").join(holder)).expect("directory");
        }
    }

    fn sampler(root: &Path) -> HostSampler {
        HostSampler::new(root, &root.join("store"), Looker::default())
    }

    #[test]
    fn the_loaded_driver_is_that_of_sysfs() {
        let root = tempfile::tempdir().expect("temporary directory");
        assert_eq!(sampler(root.path()).look().loaded_version, None);
        module(root.path(), "nvidia", "0\n", &[]);
        fs::write(root.path().join("sys/module/nvidia/version"), "535.1\n").expect("write");
        assert_eq!(sampler(root.path()).look().loaded_version.as_deref(), Some("535.1"));
    }

    #[test]
    fn references_of_the_drivers_modules_are_seen_and_nobody_holds_an_idle_driver() {
        let root = tempfile::tempdir().expect("temporary directory");
        module(root.path(), "nvidia_uvm", "0\n", &[]);
        module(root.path(), "nvidia", "1\n", &["nvidia_uvm"]);
        module(root.path(), "drm", "7\n", &[]);
        let seen = sampler(root.path()).look();
        assert_eq!(seen.references, [("nvidia".to_owned(), 1), ("nvidia_uvm".to_owned(), 0)]);
        assert_eq!(seen.holders, Some(0));
    }

    #[test]
    fn holders_that_cannot_be_seen_are_unknown_and_not_none() {
        let root = tempfile::tempdir().expect("temporary directory");
        module(root.path(), "nvidia", "3\n", &[]);
        assert_eq!(sampler(root.path()).look().holders, None);
    }

    #[test]
    fn a_reference_that_no_process_explains_is_not_nobody() {
        let user = |pid| DriverUser {
            pid,
            namespace_pid: None,
            comm: "sleep".into(),
            container: None,
            pod: None,
            devices: vec!["/dev/nvidiactl".into()],
        };
        for (users, unseen, wanted) in [
            (vec![], None, None),
            (vec![], Some("3 processes may not be looked at"), None),
            (vec![user(7)], Some("3 processes may not be looked at"), None),
            (vec![user(7), user(8)], None, Some(2)),
        ] {
            let seen = DriverUsers { users, unseen: unseen.map(str::to_owned) };
            assert_eq!(count(&seen), wanted, "{seen:?}");
        }
    }
}
