//! Changes of device nodes, and writes to the firmware path.
//!
//! inotify reports changes made through the file system. sysfs makes no events of its own, but a
//! write to one of its files goes through the VFS and is reported like any other (fs/notify,
//! `fsnotify_modify`), to watches on the file in the same superblock: every network namespace has
//! its own sysfs, so that a container with its own sysfs gets no event for the host's writes. There
//! the path is compared at the next event of another kind.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::listen;
use crate::steps::{Step, Watch};

/// Upper limit of reads at a time: each returns some tens of events.
const MOST: usize = 64;

/// Directories of a /dev with nodes of the driver and of its fabric (expose/nodes.rs).
const NODE_DIRS: [&str; 3] = ["nvidia-caps", "nvidia-caps-imex-channels", "infiniband"];
/// Prefixes of the names of these nodes and directories.
const NODE_NAMES: [&[u8]; 3] = [b"channel", b"umad", b"infiniband"];
/// Directory of specs below the host's root: a link in /var/run would be followed below this
/// process's own root.
const SPECS: &str = "run/cdi";

/// Watches on the places of an installed driver.
#[derive(Debug)]
pub(super) struct Places {
    inotify: Inotify,
    /// A copy of its descriptor: waiting is done on this one, reading on the other.
    events: AsyncFd<OwnedFd>,
    /// Places that could not be watched: each is logged once.
    logged: Vec<PathBuf>,
}

impl Places {
    pub(super) fn open() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let events = listen(inotify.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self { inotify, events, logged: Vec::new() })
    }

    /// Watches the places that `steps` made. A place that is watched already stays watched, once.
    pub(super) fn arm(&mut self, steps: &[Step]) {
        for step in steps {
            match step.properties().watch {
                Watch::Nothing => {}
                Watch::File(path) => self.add(path, AddWatchFlags::IN_MODIFY),
                Watch::Links(dev) => self.add(&dev.join("char"), in_dir()),
                Watch::Specs(root) => {
                    self.add(&root.join(SPECS), in_dir() | AddWatchFlags::IN_CLOSE_WRITE)
                }
                Watch::Nodes(dirs) => {
                    for dir in dirs {
                        self.add(dir, in_dir());
                        NODE_DIRS.iter().for_each(|name| self.add(&dir.join(name), in_dir()));
                    }
                }
            }
        }
    }

    fn add(&mut self, place: &Path, events: AddWatchFlags) {
        match self.inotify.add_watch(place, events) {
            Ok(_) => {}
            // The place is missing: the check reports it if it should be there.
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) if !self.logged.iter().any(|logged| logged == place) => {
                tracing::warn!(
                    "{}: changes are not reported: inotify_add_watch: {errno}",
                    place.display()
                );
                self.logged.push(place.to_path_buf());
            }
            Err(_) => {}
        }
    }
}

/// Returns all events that can replace or remove a node.
fn in_dir() -> AddWatchFlags {
    AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR
}

/// Events that are ready to be read.
pub(super) struct Guard<'a> {
    inotify: &'a Inotify,
    ready: AsyncFdReadyGuard<'a, OwnedFd>,
}

/// Waits for events; for ever if nothing is open.
pub(super) async fn readable(places: Option<&Places>) -> Guard<'_> {
    let Some(Places { inotify, events, .. }) = places else { return pending().await };
    match events.readable().await {
        Ok(ready) => Guard { inotify, ready },
        Err(_) => pending().await,
    }
}

/// Subjects of events. Other devices' nodes change in /dev as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reported {
    /// The driver's nodes, files or spec.
    pub(super) driver: bool,
    /// A spec of any name: another program's may have the same devices.
    pub(super) specs: bool,
}

/// Reads the events, and returns their subjects.
pub(super) fn read(mut guard: Guard<'_>) -> Reported {
    let mut tells = Reported::default();
    for _ in 0..MOST {
        match guard.inotify.read_events() {
            Ok(events) => {
                for event in events {
                    let name = event.name.as_deref();
                    tells.driver |= is_of_driver(name);
                    tells.specs |= name.is_some_and(is_spec);
                }
            }
            Err(Errno::EINTR) => {}
            Err(_) => {
                guard.ready.clear_ready();
                return tells;
            }
        }
    }
    guard.ready.retain_ready();
    tells
}

/// True for a name that readers of specs take.
fn is_spec(name: &OsStr) -> bool {
    [&b".json"[..], b".yaml"].iter().any(|ending| name.as_bytes().ends_with(ending))
}

/// True if an event is about one of the driver's names, or, without a name, about a watched place
/// itself or an overflown queue.
fn is_of_driver(name: Option<&OsStr>) -> bool {
    let is_node = |name: &[u8]| NODE_NAMES.iter().any(|start| name.starts_with(start));
    // A link to a node is named by numbers, a spec by its vendor.
    let is_link = |name: &[u8]| name.iter().all(|b| b.is_ascii_digit() || *b == b':');
    let is_named = |name: &[u8]| name.windows(6).any(|part| part == b"nvidia");
    let tells = |name: &[u8]| is_node(name) || is_link(name) || is_named(name);
    name.is_none_or(|name| tells(name.as_bytes()))
}
