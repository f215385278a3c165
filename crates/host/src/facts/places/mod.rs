//! The driver root, the mounts on it and their owners, and free space where longshore writes.
//!
//! NVIDIA's driver container leaves behind when it dies: its own root, mounted recursively on the
//! driver root; `nvidia-driver.pid`, which it locks (flock) while it runs; `nvidia-driver.state`;
//! two files for the validator; the firmware path.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;

use crate::facts::{
    DriverRootState, FreeSpace, Installer, Mount, PlacedFile, RootKind, RootMount, RootMountOwner,
};
use crate::values::{DirId, FileId, TMPFS_SOURCE};
use longshore_core::bounded_call;
use longshore_core::paths::Paths;
use longshore_core::root::{Root, if_there, is_absent};

const PID_FILE: &str = "nvidia-driver.pid";
const LONGEST_PID: u64 = 32;
/// Files of NVIDIA's driver container, in the order of their removal: the one that proves their
/// owner goes last.
pub const FILES: [&str; 4] = [
    "validations/.driver-ctr-ready",
    "validations/.driver-daemons-status",
    "nvidia-driver.state",
    PID_FILE,
];
/// Entry point of NVIDIA's image.
const ENTRY_POINT: &str = "usr/local/bin/nvidia-driver";
/// Parameter file of the kernel's additional firmware directory.
pub const FIRMWARE_PATH: &str = "/sys/module/firmware_class/parameters/path";
/// Time limit for inspecting the processes: a root can lie on a dead file system.
const LIMIT: Duration = Duration::from_secs(3);

/// Changes that the record of this boot has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Mount points of live mounts.
    pub mounts: Vec<PathBuf>,
    /// Status files of live steps.
    pub files: Vec<PathBuf>,
    /// True if the firmware path is set by a live step.
    pub firmware_path: bool,
}

/// Reads the state of the configured paths. Unreadable ones count as absent; code that needs them
/// fails on them.
pub fn read(paths: &Paths, mounts: &[Mount], recorded: &Recorded) -> io::Result<DriverRootState> {
    let root = Root::open(&paths.root)?;
    let look = Look { root: &root, paths, mounts, recorded };
    let room = |path: &Path| if paths.is_captured() { None } else { room(path) };
    Ok(DriverRootState {
        kind: look.kind()?,
        installer: look.installer(),
        mounts: look.mounts(),
        files: look.files()?,
        firmware_path: look.firmware_path(),
        state_room: room(&paths.state),
        store_room: room(&paths.store),
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

    /// Path of a file of NVIDIA's container: beside the driver root.
    fn beside(&self, name: &str) -> PathBuf {
        self.driver_root().parent().unwrap_or(Path::new("/")).join(name)
    }

    fn files(&self) -> io::Result<Vec<PlacedFile>> {
        let mut files = Vec::new();
        let all = FILES.iter().map(|name| self.beside(name));
        for path in all.filter(|path| !self.recorded.files.contains(path)) {
            let found = if_there(fs::symlink_metadata(self.root.display(&path)))?;
            // A directory with such a name is not one of that container's files.
            let file = found.filter(|found| !found.is_dir());
            files.extend(file.map(|found| PlacedFile { path, id: FileId::from_metadata(&found) }));
        }
        Ok(files)
    }

    /// Liveness of NVIDIA's container: the kernel releases the lock when its holder dies.
    fn installer(&self) -> Installer {
        let path = self.beside(PID_FILE);
        if let Ok(file) = self.root.file(&path) {
            let mut text = String::new();
            // Limited in case of a foreign file: a process id is short.
            let _ = (&file).take(LONGEST_PID).read_to_string(&mut text);
            let who = match text.trim().parse::<u32>() {
                Ok(pid) => format!("process {pid}"),
                Err(_) => "a process".to_owned(),
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

    /// Device and inode of the directory at the driver root, if a foreign mount lies on it.
    fn dir(&self) -> Option<DirId> {
        let top = self.mounts.iter().rfind(|mount| mount.target == self.driver_root())?;
        if self.is_ours(top) {
            return None;
        }
        let found = fs::metadata(self.root.display(self.driver_root())).ok()?;
        Some((found.dev(), found.ino()))
    }

    /// Describes a process whose root directory is the mount on the driver root.
    fn living_in(&self, dir: DirId) -> Option<String> {
        let proc = self.root.display("proc");
        let look = move || {
            let processes = fs::read_dir(&proc)?.flatten();
            Ok(processes.map(|entry| entry.path()).find_map(|process| {
                let pid: u32 = process.file_name()?.to_str()?.parse().ok()?;
                let root = fs::metadata(process.join("root")).ok()?;
                let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
                let who = format!("process {pid} ({}) has it as its root", comm.trim_end());
                ((root.dev(), root.ino()) == dir).then_some(who)
            }))
        };
        // If the processes cannot be inspected the container counts as running: nothing is removed
        // under it.
        let unseen = "cannot inspect the root directories of processes";
        match bounded_call::in_time("roots", LIMIT, look) {
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
            // Mounts below another mount on the driver root are unmounted with it.
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

    /// True for a tree of longshore's store, its tmpfs, or a mount recorded in its journal.
    fn is_ours(&self, mount: &Mount) -> bool {
        let of_record = self.recorded.mounts.contains(&mount.target);
        of_record || mount.source == TMPFS_SOURCE || is_of_store(&mount.root)
    }

    /// True if a mount on the driver root can only be the root of NVIDIA's container: it holds that
    /// image's entry point, or it is a container's root and that container's files lie beside it.
    fn is_theirs(&self, mount: &Mount) -> bool {
        let at = |name: &str| self.root.exists(self.driver_root().join(name)).unwrap_or(false);
        let beside = |name: &str| self.root.exists(self.beside(name)).unwrap_or(false);
        let files = beside(PID_FILE) || beside("nvidia-driver.state");
        let overlay = matches!(mount.fstype.as_str(), "overlay" | "fuse.fuse-overlayfs");
        // Without the lock file, /proc must show that no process has it as its root.
        let can_be_judged = beside(PID_FILE) || self.sees_all_processes();
        (at(ENTRY_POINT) || (overlay && files)) && can_be_judged
    }

    /// True if /proc shows the processes of the whole host: on the host itself, and if the host's
    /// root was found through its process 1.
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
}

/// Returns the free space on the file system of a path, or of the nearest directory above it that is there.
fn room(path: &Path) -> Option<FreeSpace> {
    let there = path.ancestors().find(|dir| dir.exists())?;
    let found = statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Some(FreeSpace {
        path: path.to_path_buf(),
        free_bytes: bytes(found.blocks_available()),
        // A file system without an inode table reports zero inodes.
        free_inodes: (found.files() > 0).then(|| found.files_available()),
    })
}

/// True for a user-mode tree of a store, wherever that is mounted: `.../userspace/NAME/root`.
fn is_of_store(root: &Path) -> bool {
    let text = root.to_string_lossy();
    // Suffix of a tree that was removed while it was mounted (fs/d_path.c).
    let root = Path::new(text.strip_suffix("//deleted").unwrap_or(&text)).to_path_buf();
    root.file_name().is_some_and(|name| name == "root")
        && root
            .ancestors()
            .nth(2)
            .is_some_and(|dir| dir.file_name().is_some_and(|n| n == "userspace"))
}

/// Tries to take the lock for a moment.
fn is_locked(file: File) -> bool {
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests;
