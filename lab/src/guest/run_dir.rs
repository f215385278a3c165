//! Directories of the runs of guests: logs and results that stay, and files that are removed after a run.

use std::fs;
use std::path::PathBuf;

use crate::guest::workbench::Workbench;
use crate::host::cache::Cache;
use crate::host::error::{At, Error};

/// Returns an empty directory for the logs and results of the run `name`.
pub fn make(workbench: &Workbench, name: &str) -> Result<PathBuf, Error> {
    let dir = workbench.cache().dir("runs").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).at("empty", &dir)?;
    }
    fs::create_dir_all(&dir).at("make", &dir)?;
    Ok(dir)
}

/// Beginning of the name of a directory of files that are removed after a run.
pub(crate) const WORK: &str = "work-";

/// Removes the disks and other files that killed runs have left.
///
/// # Errors
/// A directory cannot be read or removed.
pub fn remove_leftovers(cache: &Cache) -> Result<(), Error> {
    let runs = cache.dir("runs");
    if !runs.exists() {
        return Ok(());
    }
    for run in fs::read_dir(&runs).at("read", &runs)? {
        let run = run.at("read", &runs)?;
        let name = run.file_name().to_string_lossy().into_owned();
        // A run that is going on holds it.
        let Some(_held) = cache.try_lock(&format!("run-{name}"))? else { continue };
        for entry in fs::read_dir(run.path()).at("read", &run.path())? {
            let path = entry.at("read", &run.path())?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(WORK)) {
                fs::remove_dir_all(&path).at("remove", &path)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_killed_runs_are_removed_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().into()).unwrap();
        remove_leftovers(&cache).unwrap();
        let made = ["killed", "running"].map(|name| {
            let run = cache.dir("runs").join(name);
            fs::create_dir_all(run.join("work-1")).unwrap();
            fs::write(run.join("console.log"), "").unwrap();
            run
        });
        let _running = cache.lock("run-running").unwrap();
        remove_leftovers(&cache).unwrap();
        assert!(!made[0].join("work-1").exists() && made[0].join("console.log").exists());
        assert!(made[1].join("work-1").exists());
    }
}
