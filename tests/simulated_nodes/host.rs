//! Simulated host of a node, with its state in a file: it outlives the agents, which can be killed at each
//! step.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use longshore::lifecycle::scripted;
use longshore_host::fake::{FakeHost, FakeState};
use longshore_host::values::{DriverUser, Node};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// File with the host's state.
pub(crate) const STATE: &str = "host.json";
/// File with the users of its driver.
pub(crate) const USERS: &str = "users.json";
/// Interval between two looks at that file. Instances of inotify are too few for a thousand agents (128 for a
/// user, by default).
const LOOK: Duration = Duration::from_millis(500);

/// Fields of a host's state that steps of a simulated driver change.
#[derive(Serialize, Deserialize)]
struct Saved {
    loaded: BTreeMap<String, String>,
    instances: BTreeMap<String, u64>,
    parameters: BTreeMap<PathBuf, String>,
    mounts: Vec<(String, PathBuf)>,
    dirs: BTreeSet<PathBuf>,
    roots: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    nodes: BTreeMap<PathBuf, Node>,
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Saved {
    fn new(state: FakeState) -> Self {
        let FakeState { loaded, instances, parameters, mounts, dirs, roots, nodes, links, .. } =
            state;
        Self { loaded, instances, parameters, mounts, dirs, roots, nodes, links }
    }

    fn restore(self, host: &FakeHost) {
        // Loads are counted on: a module that is loaded anew is another instance.
        for _ in 0..self.instances.values().max().copied().unwrap_or(0) {
            host.reload("nvidia");
        }
        host.change(|state| {
            let Self { loaded, instances, parameters, mounts, dirs, roots, nodes, links } = self;
            let references = std::mem::take(&mut state.references);
            *state = FakeState {
                loaded,
                instances,
                parameters,
                mounts,
                dirs,
                roots,
                nodes,
                links,
                references,
                ..FakeState::default()
            };
        });
    }
}

/// Opens the host of the node with these files. The agent of this process is killed at point `dies_at`: there
/// are two of each step, before and after it.
pub(crate) fn open(dir: &Path, drivers: &[&str], dies_at: Option<usize>) -> Arc<FakeHost> {
    let host = Arc::new(scripted::host(drivers));
    if let Ok(text) = fs::read(dir.join(STATE)) {
        let saved: Saved = serde_json::from_slice(&text).expect("a host's state");
        saved.restore(&host);
    }
    let (dir_of, points) = (dir.to_path_buf(), AtomicUsize::new(0));
    host.at_point(move |host| {
        save(&dir_of, host.state());
        if Some(points.fetch_add(1, Ordering::Relaxed)) == dies_at {
            die();
        }
    });
    let (follows, dir) = (host.share(), dir.to_path_buf());
    let mut known = Vec::new();
    follow_users(&follows, &dir, &mut known);
    thread::spawn(move || {
        loop {
            thread::sleep(LOOK);
            follow_users(&follows, &dir, &mut known);
        }
    });
    host
}

/// Ends this process as a SIGKILL from outside does.
pub(crate) fn die() {
    kill(Pid::this(), Signal::SIGKILL).expect("killed");
}

fn save(dir: &Path, state: FakeState) {
    let version = scripted::loaded_driver(&state);
    let text = serde_json::to_vec(&Saved::new(state)).expect("JSON");
    let fresh = dir.join("host.json.new");
    fs::write(&fresh, text).expect("written");
    fs::rename(&fresh, dir.join(STATE)).expect("renamed");
    // The report to the cluster has the version that the kernel shows.
    let module = dir.join("sys/module/nvidia");
    match version {
        Some(version) => {
            fs::create_dir_all(&module).expect("made");
            fs::write(module.join("version"), format!("{version}\n")).expect("written");
        }
        None => drop(fs::remove_dir_all(&module)),
    }
}

/// Takes over the users of the driver from the file where they changed.
fn follow_users(host: &FakeHost, dir: &Path, known: &mut Vec<u8>) {
    let text = fs::read(dir.join(USERS)).unwrap_or_default();
    if text == *known {
        return;
    }
    // Before the first user there is none.
    let Ok(users) = serde_json::from_slice::<Vec<DriverUser>>(&text) else { return };
    host.change(|state| state.references.insert("nvidia".to_owned(), users.len() as i64));
    host.used_by(users);
    *known = text;
}
