//! Disk under the state directory, as a cut of the power leaves it: files have the bytes of their last sync,
//! and names are those of the directory's last one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use longshore_core::disk;

use crate::journal::Point;

use super::{Files, NAMES};

/// Files of a directory on the disk, by their syncs.
#[derive(Debug, Default)]
struct Synced {
    dir: PathBuf,
    names: BTreeMap<String, u64>,
    /// Inode -> bytes at its last sync; none for a file that was never synced.
    bytes: BTreeMap<u64, Vec<u8>>,
}

fn names(dir: &Path) -> BTreeMap<String, u64> {
    let inode = |name: &str| Some((name.to_owned(), fs::metadata(dir.join(name)).ok()?.ino()));
    NAMES.into_iter().filter_map(inode).collect()
}

impl Synced {
    fn sync(&mut self, file: &File) {
        // By the descriptor: the file may have no name any more.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let found = file.metadata().unwrap();
        if found.is_dir() {
            assert_eq!(fs::read_link(path).unwrap(), self.dir, "another directory was synced");
            self.names = names(&self.dir);
        } else {
            self.bytes.insert(found.ino(), fs::read(path).unwrap());
        }
    }

    /// Returns the files with these names; one whose bytes were never synced is empty.
    fn files(&self, names: &BTreeMap<String, u64>) -> Files {
        let bytes = |inode: &u64| self.bytes.get(inode).cloned().unwrap_or_default();
        names.iter().map(|(name, inode)| (name.clone(), bytes(inode))).collect()
    }
}

/// The disk, which notices the syncs of its thread until it is dropped.
pub(super) struct PowerCut(Arc<Mutex<Synced>>);

impl PowerCut {
    /// Begins with the files of the directory on the disk.
    pub(super) fn begin(dir: &Path) -> Self {
        let names = names(dir);
        let read = |(name, inode): (&String, &u64)| (*inode, fs::read(dir.join(name)).unwrap());
        let bytes = names.iter().map(read).collect();
        let dir = fs::canonicalize(dir).unwrap();
        let synced = Arc::new(Mutex::new(Synced { dir, names, bytes }));
        let noticed = Arc::clone(&synced);
        disk::observe_syncs(Some(Box::new(move |file| noticed.lock().unwrap().sync(file))));
        Self(synced)
    }

    /// Returns a handle for the points of an agent.
    pub(super) fn at_points(&self) -> AtPoints {
        AtPoints(Arc::clone(&self.0))
    }
}

impl Drop for PowerCut {
    fn drop(&mut self) {
        disk::observe_syncs(None);
    }
}

/// The same disk at the points of an agent.
pub(super) struct AtPoints(Arc<Mutex<Synced>>);

impl AtPoints {
    /// Returns the directories that a cut of the power at this point may leave: the kernel may have written
    /// names, and bytes, before it was asked to.
    pub(super) fn directories(&self, point: Option<Point>, written: &Files) -> Vec<Files> {
        let mut synced = self.0.lock().unwrap();
        let names = names(&synced.dir);
        if point == Some(Point::Created) {
            // Its inode may have been a removed file's.
            synced.bytes.remove(&names[NAMES[1]]);
        }
        let of_last_sync = synced.files(&synced.names);
        if point.is_none() {
            assert_eq!(of_last_sync, *written, "the host is changed before its record is synced");
        }
        vec![of_last_sync, synced.files(&names), written.clone()]
    }
}
