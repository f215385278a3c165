//! Bounds of what programs inside write, watched from outside while they run.
//!
//! Files that have no name any more are not counted; nor is what a program writes to a file that is counted already.
//! So the free space of the file system is watched, too, and each file has a bound of its own ([`super::limits`]).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Outcome, Spec};
use crate::outputs::OutputDir;
use longshore_core::space;

/// Maximum size and number of files in the writable directories of a sandbox, the ones from before included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Bytes, as files state them: sparse ones count in full.
    pub bytes: u64,
    /// Files and directories.
    pub entries: usize,
}

/// Least free space of the file system: the same that is left free of everything that is written to the store.
const LEAST_FREE: u64 = space::MARGIN;
/// Depth of directories that are counted; deeper ones are over the bound.
const DEEPEST: usize = 128;
/// Interval of the counts: at least this, and at least that many times what a count takes.
const PERIOD: Duration = Duration::from_millis(250);
const PAUSE: u32 = 25;

/// Ends when more lies in the writable directories of `spec` than its bound, or when their file system is full.
pub(super) async fn over(spec: &Spec) -> Outcome {
    let (dirs, bound) = (writable(spec), spec.bound);
    let mut pause = PERIOD;
    loop {
        tokio::time::sleep(pause).await;
        let (dirs, since) = (dirs.clone(), Instant::now());
        // One that panicked is repeated.
        let counted = tokio::task::spawn_blocking(move || count(&dirs, bound)).await;
        if let Ok(Some(outcome)) = counted {
            return outcome;
        }
        pause = PERIOD.max(since.elapsed() * PAUSE);
    }
}

/// Returns the directories outside that programs inside can write to, without those below another.
fn writable(spec: &Spec) -> Vec<PathBuf> {
    let sources = || spec.binds.iter().filter(|bind| !bind.read_only).map(|bind| &bind.source);
    let is_below = |path: &Path| sources().any(|other| path != other && path.starts_with(other));
    sources().filter(|path| !is_below(path)).cloned().collect()
}

fn count(dirs: &[PathBuf], bound: Bound) -> Option<Outcome> {
    let mut left = Left { bytes: bound.bytes, entries: bound.entries };
    for dir in dirs {
        if space::free(dir).is_ok_and(|free| free < LEAST_FREE) {
            return Some(Outcome::NoSpace);
        }
        // One that is not there yet, or is a file, has nothing.
        let Ok(opened) = OutputDir::open(dir) else { continue };
        if left.take(&opened, DEEPEST).is_err() {
            return Some(Outcome::Outgrown);
        }
    }
    None
}

/// Rest of a bound.
struct Left {
    bytes: u64,
    entries: usize,
}

/// The bound was exceeded.
struct Over;

impl Left {
    /// Subtracts the files below `dir`; those that disappear meanwhile are ignored.
    fn take(&mut self, dir: &OutputDir, deepest: usize) -> Result<(), Over> {
        let entries = match dir.entries(self.entries) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Over),
            Err(_) => return Ok(()),
        };
        for entry in entries {
            self.entries = self.entries.checked_sub(1).ok_or(Over)?;
            self.bytes = self.bytes.checked_sub(entry.size()).ok_or(Over)?;
            if let (true, Ok(below)) = (entry.is_dir(), dir.below(&entry.name)) {
                self.take(&below, deepest.checked_sub(1).ok_or(Over)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bind;
    use super::*;
    use rstest::rstest;
    use std::fs::{self, File};

    const BOUND: Bound = Bound { bytes: 1 << 30, entries: 10 };

    /// Two directories, one with a file of `bytes` and one with `entries` in a directory.
    fn scene(bytes: u64, entries: usize) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let dirs = ["work", "objects"].map(|name| dir.path().join(name));
        fs::create_dir(&dirs[0]).expect("directory");
        fs::create_dir_all(dirs[1].join("a")).expect("directories");
        File::create(dirs[0].join("file")).and_then(|f| f.set_len(bytes)).expect("a sparse file");
        for number in 0..entries {
            File::create(dirs[1].join("a").join(number.to_string())).expect("a file");
        }
        (dir, dirs.to_vec())
    }

    #[rstest]
    #[case::nothing(0, 0, None)]
    // Directories have a size, too.
    #[case::most((1 << 30) - (1 << 16), 8, None)]
    #[case::too_large((1 << 30) + 1, 0, Some(Outcome::Outgrown))]
    #[case::too_many(0, 9, Some(Outcome::Outgrown))]
    fn all_directories_count_together(
        #[case] bytes: u64,
        #[case] entries: usize,
        #[case] wanted: Option<Outcome>,
    ) {
        let (_dir, dirs) = scene(bytes, entries);
        assert_eq!(count(&dirs, BOUND), wanted);
    }

    #[test]
    fn depth_has_a_bound() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let bound = Bound { entries: 10 * DEEPEST, ..BOUND };
        let deep = |levels: usize| dir.path().join("d/".repeat(levels));
        fs::create_dir_all(deep(DEEPEST)).expect("directories");
        assert_eq!(count(&[dir.path().to_owned()], bound), None);
        fs::create_dir_all(deep(DEEPEST + 1)).expect("directories");
        assert_eq!(count(&[dir.path().to_owned()], bound), Some(Outcome::Outgrown));
    }

    #[test]
    fn a_full_file_system_ends_it() {
        // A file system that has no blocks at all.
        assert_eq!(count(&[PathBuf::from("/proc")], BOUND), Some(Outcome::NoSpace));
    }

    #[test]
    fn a_directory_below_another_counts_once() {
        let spec = Spec {
            root: "/root".into(),
            binds: vec![
                Bind::new("/job", "/build"),
                Bind::new("/job/tmp", "/tmp"),
                Bind::read_only("/key", "/build/key"),
                Bind::new("/jobs", "/other"),
            ],
            command: Vec::new(),
            environment: Vec::new(),
            handed_on: Vec::new(),
            directory: "/build".into(),
            user: None,
            bound: BOUND,
            outcome: "/outcome".into(),
            held: None,
        };
        assert_eq!(writable(&spec), ["/job", "/jobs"].map(PathBuf::from));
    }
}
