//! The driver root, what is mounted on it and by whom, and the room where longshore writes.
//!
//! What NVIDIA's driver container leaves when it dies: its own root, mounted recursively on the
//! driver root; `nvidia-driver.pid`, on which it holds a lock (flock) while it lives;
//! `nvidia-driver.state`; two files for the validator; the firmware path.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;

use super::facts::{
    Installer, Mount, PlacedFile, Places, Room, RootKind, RootMount, RootMountOwner,
};
use super::verbs::{DirId, FileId, TMPFS_SOURCE};
use crate::input;
use crate::paths::Paths;
use crate::root::{Root, is_absent};

const PID_FILE: &str = "nvidia-driver.pid";
const LONGEST_PID: u64 = 32;
/// The order in which they are taken away: what proves whose they are goes last.
pub(crate) const FILES: [&str; 4] = [
    "validations/.driver-ctr-ready",
    "validations/.driver-daemons-status",
    "nvidia-driver.state",
    PID_FILE,
];
/// What NVIDIA's image begins with.
const ENTRY_POINT: &str = "usr/local/bin/nvidia-driver";
/// Where the kernel is told of a further directory with firmware.
pub(crate) const FIRMWARE_PATH: &str = "/sys/module/firmware_class/parameters/path";
/// How long the processes may take to look at: a root can lie on a file system that is gone.
const LIMIT: Duration = Duration::from_secs(3);

/// Changes that the record of this boot has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Mount points of live mounts.
    pub mounts: Vec<PathBuf>,
    /// True if the firmware path is set by a live step.
    pub firmware_path: bool,
}

/// Looks at the places that the configuration names. What cannot be read counts as not there; who
/// needs it fails on it.
pub fn read(paths: &Paths, mounts: &[Mount], recorded: &Recorded) -> io::Result<Places> {
    let root = Root::open(&paths.root)?;
    let look = Look { root: &root, paths, mounts, recorded };
    let room = if paths.is_captured() { Vec::new() } else { look.room() };
    Ok(Places {
        kind: look.kind()?,
        installer: look.installer(),
        mounts: look.mounts(),
        files: look.files()?,
        firmware_path: look.firmware_path(),
        room,
    })
}

struct Look<'a> {
    root: &'a Root,
    paths: &'a Paths,
    mounts: &'a [Mount],
    recorded: &'a Recorded,
}

impl Look<'_> {
    fn driver_root(&self) -> &Path {
        &self.paths.driver_root
    }

    fn kind(&self) -> io::Result<RootKind> {
        let path = self.root.display(self.driver_root());
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {
                Ok(RootKind::Symlink(fs::read_link(&path).unwrap_or_default()))
            }
            Ok(found) if found.is_dir() => Ok(RootKind::Directory),
            Ok(_) => Ok(RootKind::Other),
            Err(e) if is_absent(&e) => Ok(RootKind::Absent),
            Err(e) => Err(e),
        }
    }

    /// A file of NVIDIA's container: beside the driver root.
    fn beside(&self, name: &str) -> PathBuf {
        self.driver_root().parent().unwrap_or(Path::new("/")).join(name)
    }

    fn files(&self) -> io::Result<Vec<PlacedFile>> {
        let mut files = Vec::new();
        for path in FILES.iter().map(|name| self.beside(name)) {
            match fs::symlink_metadata(self.root.display(&path)) {
                // A directory by such a name is none of theirs.
                Ok(found) if found.is_dir() => {}
                Ok(found) => files.push(PlacedFile { path, id: FileId::of(&found) }),
                Err(e) if is_absent(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(files)
    }

    /// Whether NVIDIA's container is alive: the kernel gives the lock up when its holder dies.
    fn installer(&self) -> Installer {
        let path = self.beside(PID_FILE);
        if let Ok(file) = self.root.file(&path) {
            let mut text = String::new();
            // Whatever lies under that name: a number is short.
            let _ = (&file).take(LONGEST_PID).read_to_string(&mut text);
            let who = match text.trim().parse::<u32>() {
                Ok(pid) => format!("process {pid}"),
                Err(_) => "somebody".to_owned(),
            };
            if is_locked(file) {
                return Installer::Alive(format!("{who} holds the lock on {}", path.display()));
            }
        }
        match self.dir().and_then(|dir| self.living_in(dir)) {
            Some(who) => Installer::Alive(who),
            None => Installer::NotSeen,
        }
    }

    /// The directory seen at the driver root, where another one is mounted on it that is not ours.
    fn dir(&self) -> Option<DirId> {
        let top = self.mounts.iter().rfind(|mount| mount.target == self.driver_root())?;
        if self.is_ours(top) {
            return None;
        }
        let found = fs::metadata(self.root.display(self.driver_root())).ok()?;
        Some((found.dev(), found.ino()))
    }

    /// A process whose root directory is what is mounted on the driver root.
    fn living_in(&self, dir: DirId) -> Option<String> {
        let proc = self.root.display("proc");
        let look = move || {
            let processes = fs::read_dir(&proc)?.flatten();
            Ok(processes.map(|entry| entry.path()).find_map(|process| {
                let pid: u32 = process.file_name()?.to_str()?.parse().ok()?;
                let root = fs::metadata(process.join("root")).ok()?;
                let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
                let who = format!("process {pid} ({}) lives in it", comm.trim_end());
                ((root.dev(), root.ino()) == dir).then_some(who)
            }))
        };
        // Who cannot be looked at counts as alive: nothing is taken from the living.
        let unseen = "whether a process lives in it could not be seen";
        match input::in_time("roots", LIMIT, look) {
            Some(Ok(found)) => found,
            Some(Err(e)) => Some(format!("{unseen}: {e}")),
            None => Some(format!("{unseen} within {LIMIT:?}")),
        }
    }

    fn mounts(&self) -> Vec<RootMount> {
        let at_or_below = self.mounts.iter().filter(|m| m.target.starts_with(self.driver_root()));
        let on = |mount: &&Mount| mount.target == self.driver_root();
        let covered = self.mounts.iter().any(|mount| on(&mount));
        let owner = |mount: &Mount| {
            if self.is_ours(mount) {
                RootMountOwner::Ours
            } else if on(&mount) && self.is_theirs(mount) {
                RootMountOwner::Installer
            } else {
                RootMountOwner::Unknown
            }
        };
        at_or_below
            // What lies on somebody's mount goes and stays with it.
            .filter(|mount| on(mount) || !covered)
            .map(|mount| RootMount {
                target: mount.target.clone(),
                source: mount.source.clone(),
                fstype: mount.fstype.clone(),
                owner: owner(mount),
                dir: if on(&mount) { self.dir() } else { None },
            })
            .collect()
    }

    /// A tree of our store, our tmpfs, or what our record has.
    fn is_ours(&self, mount: &Mount) -> bool {
        let of_record = self.recorded.mounts.contains(&mount.target);
        of_record || mount.source == TMPFS_SOURCE || is_of_store(&mount.root)
    }

    /// Whether a mount on the driver root can only be the root of NVIDIA's container: it holds that
    /// image's entry point, or it is a container's root and their files lie beside it.
    fn is_theirs(&self, mount: &Mount) -> bool {
        let at = |name: &str| self.root.exists(self.driver_root().join(name)).unwrap_or(false);
        let beside = |name: &str| self.root.exists(self.beside(name)).unwrap_or(false);
        let files = beside(PID_FILE) || beside("nvidia-driver.state");
        let overlay = matches!(mount.fstype.as_str(), "overlay" | "fuse.fuse-overlayfs");
        // Without the lock's file it must be seen that no process lives there.
        let can_be_judged = beside(PID_FILE) || self.sees_all_processes();
        (at(ENTRY_POINT) || (overlay && files)) && can_be_judged
    }

    /// Whether the processes of the whole host are in /proc: on the host itself, and where the
    /// host's root was found through its process 1.
    fn sees_all_processes(&self) -> bool {
        let shared = self.paths.host_root.ends_with("proc/1/root");
        let root = super::mounts::containing(self.mounts, Path::new("/"));
        shared || root.is_some_and(|mount| mount.fstype != "overlay")
    }

    fn firmware_path(&self) -> Option<String> {
        let text = self.root.read_to_string(FIRMWARE_PATH).ok()?;
        let path = text.trim();
        (!self.recorded.firmware_path && !path.is_empty()).then(|| path.to_owned())
    }

    fn room(&self) -> Vec<Room> {
        let of = |path: &Path| {
            let there = path.ancestors().find(|dir| dir.exists())?;
            let found = statvfs(there).ok()?;
            let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
            Some(Room {
                path: path.to_path_buf(),
                free_bytes: bytes(found.blocks_available()),
                // A file system without a table of inodes says that it has none.
                free_inodes: (found.files() > 0).then(|| found.files_available()),
            })
        };
        [&self.paths.state, &self.paths.store].into_iter().filter_map(|path| of(path)).collect()
    }
}

/// A user-mode tree of a store, wherever that is mounted: `.../userspace/NAME/root`.
fn is_of_store(root: &Path) -> bool {
    let text = root.to_string_lossy();
    // A tree that was removed while it was mounted (fs/d_path.c).
    let root = Path::new(text.strip_suffix("//deleted").unwrap_or(&text)).to_path_buf();
    root.file_name().is_some_and(|name| name == "root")
        && root
            .ancestors()
            .nth(2)
            .is_some_and(|dir| dir.file_name().is_some_and(|n| n == "userspace"))
}

/// Tries the lock for a moment.
fn is_locked(file: File) -> bool {
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests;
